//! Contexts: which device a thread allocates on, and what a teardown takes with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::current::Current;
use super::totals::DeviceRef;
use crate::decode::Stream;
use crate::words::{ContextHandle, Ordinal, PciAddress, Tid};

/// A device has two UUIDs where it is a MIG instance: its own and its GPU's.
const UUIDS_OF_DEVICE: usize = 2;

/// A context that has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornDown {
    /// Its handle, if it was ever seen.
    pub context: Option<ContextHandle>,
    /// Memory of contexts that were never seen dies with it: it is the primary one of the only device the process ever named.
    pub takes_unknown: bool,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Primary {
    context: Option<ContextHandle>,
    references: u32,
}

/// The driver's answers to a program about one of its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAnswers {
    /// Answers of `cuDeviceGetUuid`, the latest last. `cuDeviceGetUuid_v2` answers with a MIG instance's own UUID, the first version
    /// with its GPU's.
    pub uuids: Vec<[u8; 16]>,
    /// The answer of `cuDeviceGetPCIBusId`.
    pub pci: Option<PciAddress>,
}

/// The contexts of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Contexts {
    devices: BTreeMap<ContextHandle, Ordinal>,
    primaries: BTreeMap<Ordinal, Primary>,
    current: Current,
    /// What the driver reported of each device.
    answers: BTreeMap<Ordinal, DeviceAnswers>,
    /// Which context a created stream belongs to.
    streams: HashMap<u64, ContextHandle>,
    /// The device of each green context, and what stands for it as a context: their memory is the primary one's.
    greens: BTreeMap<u64, Ordinal>,
    views: BTreeMap<ContextHandle, Ordinal>,
    /// The device of a thread whose context was never seen, as the driver reported the program.
    reported: BTreeMap<Tid, Ordinal>,
    /// Living threads that have allocated in their context.
    allocating: BTreeSet<Tid>,
    /// Whether any thread ever has.
    allocated: bool,
    limits: BTreeMap<u32, u64>,
    /// Every context call of the process was seen, so reference counts are the driver's.
    complete: bool,
}

impl Contexts {
    /// No contexts yet; `complete` says that no context call before now was missed.
    pub fn new(complete: bool) -> Self {
        Self { complete, ..Self::default() }
    }

    /// Entries in all tables.
    pub(super) fn listed(&self) -> usize {
        let devices = self.devices.len() + self.primaries.len() + self.answers.len() + self.views.len();
        let others = self.streams.len() + self.greens.len() + self.limits.len();
        devices + others + self.current.listed()
    }

    /// The thread's current context, if it is known.
    pub fn current(&self, tid: Tid) -> Option<ContextHandle> {
        self.current.of(tid, self.complete)
    }

    /// Whether there are more than one, as far as calls have named them: with one it does not matter which is current.
    pub fn are_several(&self) -> bool {
        self.current.are_several() || self.primaries.len() > 1 || !self.greens.is_empty()
    }

    /// How often threads have changed their current one, as far as that was seen.
    pub const fn changes(&self) -> u64 {
        self.current.changes()
    }

    /// Whether it is seen now when threads change their current one.
    pub fn sees_changes(&self) -> bool {
        self.current.are_seen()
    }

    /// From now on it is seen when threads change their current one, or not.
    pub fn see_changes(&mut self, seen: bool) {
        self.current.see(seen);
    }

    /// Whether it was seen which device this context is on.
    pub fn is_known(&self, context: ContextHandle) -> bool {
        self.devices.contains_key(&context)
    }

    /// The context that owns what the thread allocates: for a green context the primary one of its device, if that was seen.
    pub fn owner(&self, tid: Tid) -> Option<ContextHandle> {
        let current = self.current(tid)?;
        let primary = self.views.get(&current).and_then(|device| self.primaries.get(device)?.context);
        Some(primary.unwrap_or(current))
    }

    /// The device of the thread's current context.
    pub fn device_of(&self, tid: Tid) -> DeviceRef {
        match self.current(tid) {
            Some(context) => self.device_of_context(context),
            None => self.reported.get(&tid).map_or(DeviceRef::Unknown, |device| DeviceRef::Ordinal(*device)),
        }
    }

    /// The only device the process has ever named, if it is one.
    pub fn only_device(&self) -> DeviceRef {
        let mut named = self.devices.values().chain(self.primaries.keys());
        match named.next() {
            Some(first) if named.all(|other| other == first) => DeviceRef::Ordinal(*first),
            _ => DeviceRef::Unknown,
        }
    }

    fn device_of_context(&self, context: ContextHandle) -> DeviceRef {
        self.devices.get(&context).map_or(DeviceRef::Unknown, |device| DeviceRef::Ordinal(*device))
    }

    /// The device of a stream's context; of the thread's, where the stream is a default one or older than our attach.
    pub fn device_of_stream(&self, stream: Stream, tid: Tid) -> DeviceRef {
        match stream {
            Stream::Handle(handle) => self
                .streams
                .get(&handle)
                .map_or_else(|| self.device_of(tid), |context| self.device_of_context(*context)),
            Stream::Legacy | Stream::OfThread => self.device_of(tid),
        }
    }

    /// `cuStreamCreate`: of the thread's current context.
    pub fn create_stream(&mut self, tid: Tid, stream: u64) {
        match self.current(tid) {
            Some(context) => {
                self.streams.insert(stream, context);
            }
            // A new stream may have the address of an old one.
            None => {
                self.streams.remove(&stream);
            }
        }
    }

    /// `cuCtxGetCurrent`: the driver's own word, which fills in what was never seen.
    pub fn learn_current(&mut self, tid: Tid, context: Option<ContextHandle>) {
        if self.current(tid) != context {
            self.set_current(tid, context);
        }
    }

    /// `cuCtxGetDevice`: the driver's own word on the thread's device.
    pub fn learn_device(&mut self, tid: Tid, device: Ordinal) {
        match self.current(tid) {
            Some(context) => {
                self.devices.entry(context).or_insert(device);
            }
            None => {
                self.reported.insert(tid, device);
            }
        }
    }

    /// Whether it is known on which device the thread allocates.
    fn knows_device_of(&self, tid: Tid) -> bool {
        self.device_of(tid) != DeviceRef::Unknown
    }

    /// The thread has ended; its number may come back.
    pub fn forget_thread(&mut self, tid: Tid) {
        self.current.forget_thread(tid);
        self.reported.remove(&tid);
        self.allocating.remove(&tid);
    }

    /// The thread has allocated in its context.
    pub fn allocates(&mut self, tid: Tid) {
        self.allocating.insert(tid);
        self.allocated = true;
    }

    /// Whether it is known of every living thread that has allocated on which device it does; `None` before any has.
    pub fn knows_devices(&self) -> Option<bool> {
        self.allocated.then(|| self.allocating.iter().all(|tid| self.knows_device_of(*tid)))
    }

    /// `cuGreenCtxCreate`: retains the primary context.
    pub fn create_green(&mut self, green: u64, device: Ordinal) {
        self.greens.insert(green, device);
        self.primaries.entry(device).or_default().references += 1;
    }

    /// `cuCtxFromGreenCtx`.
    pub fn view_green(&mut self, context: ContextHandle, green: u64) {
        self.current.name(context);
        if let Some(device) = self.greens.get(&green) {
            self.devices.insert(context, *device);
            self.views.insert(context, *device);
        }
    }

    /// `cuGreenCtxDestroy`: releases the primary context.
    pub fn destroy_green(&mut self, green: u64) -> Option<TornDown> {
        let device = self.greens.remove(&green)?;
        self.release_primary(device)
    }

    /// `cuCtxSetLimit`.
    pub fn set_limit(&mut self, limit: u32, value: u64) {
        self.limits.insert(limit, value);
    }

    /// The limits that the program has set, by `CUlimit`.
    pub fn limit(&self, limit: u32) -> Option<u64> {
        self.limits.get(&limit).copied()
    }

    /// `cuDevicePrimaryCtxRetain`: does not make the context current.
    pub fn retain_primary(&mut self, context: ContextHandle, device: Ordinal) {
        self.devices.insert(context, device);
        self.current.name(context);
        let primary = self.primaries.entry(device).or_default();
        // A device has one: an earlier one is gone.
        if let Some(earlier) = primary.context.replace(context).filter(|earlier| *earlier != context) {
            self.current.forget(earlier);
        }
        primary.references += 1;
    }

    /// `cuDevicePrimaryCtxRelease`: the last reference tears the context down.
    ///
    /// Where calls before our attach were missed, references are not all known, and which is the last one is not known.
    pub fn release_primary(&mut self, device: Ordinal) -> Option<TornDown> {
        let primary = self.primaries.get_mut(&device)?;
        primary.references = primary.references.checked_sub(1)?;
        (primary.references == 0 && self.complete).then(|| self.reset_primary(device))
    }

    /// `cuDevicePrimaryCtxReset`: destroys what is in the context; it "does not release it" (cuda.h), so references stay.
    pub fn reset_primary(&self, device: Ordinal) -> TornDown {
        let mut named = self.devices.values().chain(self.primaries.keys());
        TornDown {
            context: self.primaries.get(&device).and_then(|primary| primary.context),
            takes_unknown: named.all(|other| *other == device),
        }
    }

    /// `cuCtxCreate`: pushes the new context on the calling thread.
    pub fn create(&mut self, tid: Tid, context: ContextHandle, device: Ordinal) {
        self.devices.insert(context, device);
        self.current.create(tid, context);
    }

    /// `cuCtxDestroy`: pops the context if it is current on the calling thread.
    pub fn destroy(&mut self, tid: Tid, context: ContextHandle) -> TornDown {
        self.devices.remove(&context);
        self.streams.retain(|_, own| *own != context);
        self.current.destroy(tid, context);
        TornDown { context: Some(context), takes_unknown: false }
    }

    /// `cuCtxSetCurrent`: replaces the top of the stack, or pops it.
    pub fn set_current(&mut self, tid: Tid, context: Option<ContextHandle>) {
        self.reported.remove(&tid);
        self.current.set(tid, context);
    }

    /// `cuCtxPushCurrent`.
    pub fn push(&mut self, tid: Tid, context: ContextHandle) {
        self.current.push(tid, context);
    }

    /// `cuCtxPopCurrent`.
    pub fn pop(&mut self, tid: Tid) {
        self.current.pop(tid);
    }

    /// The program asked the driver for a device's UUID.
    pub fn learn_uuid(&mut self, device: Ordinal, uuid: [u8; 16]) {
        let uuids = &mut self.answers.entry(device).or_default().uuids;
        uuids.retain(|known| *known != uuid);
        uuids.push(uuid);
        uuids.drain(..uuids.len().saturating_sub(UUIDS_OF_DEVICE));
    }

    /// The program asked the driver where a device sits: text that ends with a zero byte, cut off after sixteen bytes.
    pub fn learn_bus_id(&mut self, device: Ordinal, bus_id: [u8; 16]) {
        let text = bus_id.split(|byte| *byte == 0).next().and_then(|text| std::str::from_utf8(text).ok());
        if let Some(pci) = text.and_then(PciAddress::parse) {
            self.answers.entry(device).or_default().pci = Some(pci);
        }
    }

    /// What it was reported.
    pub fn reported(&self, device: Ordinal) -> Option<&DeviceAnswers> {
        self.answers.get(&device)
    }

    /// No contexts any more, and every later call is seen; the driver's answers about devices stay true.
    pub fn end(&mut self) {
        let answers = std::mem::take(&mut self.answers);
        *self = Self { answers, ..Self::new(true) };
    }

    /// The next image of the process may see other devices under the same numbers.
    pub fn forget_devices(&mut self) {
        self.answers.clear();
    }
}

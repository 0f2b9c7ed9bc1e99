//! Contexts: the device that a thread allocates on, and the memory that a teardown frees.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::current::Current;
use super::totals::DeviceRef;
use crate::decode::Stream;
use crate::words::{ContextHandle, Ordinal, PciAddress, Tid};

/// Number of UUIDs of a device. A MIG instance has two: its own and that of its GPU.
const UUIDS_OF_DEVICE: usize = 2;

/// A context that has just been torn down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornDown {
    /// Context handle, if it was ever seen.
    pub context: Option<ContextHandle>,
    /// Whether memory of contexts never seen ends with this one: it is the primary context of the
    /// only device that the process ever used.
    pub takes_unknown: bool,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Primary {
    context: Option<ContextHandle>,
    references: u32,
}

/// The driver's answers to queries of a program about one of its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAnswers {
    /// Answers of `cuDeviceGetUuid`, the latest last. `cuDeviceGetUuid_v2` returns the UUID of a
    /// MIG instance itself, the first version that of its GPU.
    pub uuids: Vec<[u8; 16]>,
    /// Answer of `cuDeviceGetPCIBusId`.
    pub pci: Option<PciAddress>,
}

/// The contexts of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Contexts {
    devices: BTreeMap<ContextHandle, Ordinal>,
    primaries: BTreeMap<Ordinal, Primary>,
    current: Current,
    /// The driver's answers about each device.
    answers: BTreeMap<Ordinal, DeviceAnswers>,
    /// Context of each created stream.
    streams: HashMap<u64, ContextHandle>,
    /// Device of each green context, and of the context handle that represents it. Memory of a
    /// green context belongs to the primary context.
    greens: BTreeMap<u64, Ordinal>,
    views: BTreeMap<ContextHandle, Ordinal>,
    /// Devices of threads without an observed context, as reported by the driver to the program.
    reported: BTreeMap<Tid, Ordinal>,
    /// Live threads that have allocated in their context.
    allocating: BTreeSet<Tid>,
    /// Whether any thread has allocated so far.
    allocated: bool,
    limits: BTreeMap<u32, u64>,
    /// Whether every context call of the process was seen, so that reference counts equal the
    /// driver's.
    complete: bool,
}

impl Contexts {
    /// Creates an empty state; `complete` means that no earlier context call was missed.
    pub fn new(complete: bool) -> Self {
        Self { complete, ..Self::default() }
    }

    /// Number of entries in all tables.
    pub(super) fn listed(&self) -> usize {
        let devices = self.devices.len() + self.primaries.len() + self.answers.len() + self.views.len();
        let others = self.streams.len() + self.greens.len() + self.limits.len();
        devices + others + self.current.listed()
    }

    /// Returns the thread's current context, if known.
    pub fn current(&self, tid: Tid) -> Option<ContextHandle> {
        self.current.of(tid, self.complete)
    }

    /// Returns whether the process has several contexts, as far as calls have named them. With a
    /// single one, it does not matter which is current.
    pub fn are_several(&self) -> bool {
        self.current.are_several() || self.primaries.len() > 1 || !self.greens.is_empty()
    }

    /// Number of observed changes of a thread's current context.
    pub const fn changes(&self) -> u64 {
        self.current.changes()
    }

    /// Returns whether changes of a thread's current context are traced at the moment.
    pub fn sees_changes(&self) -> bool {
        self.current.are_seen()
    }

    /// Sets whether changes of a thread's current context are traced.
    pub fn see_changes(&mut self, seen: bool) {
        self.current.see(seen);
    }

    /// Returns whether the device of this context is known.
    pub fn is_known(&self, context: ContextHandle) -> bool {
        self.devices.contains_key(&context)
    }

    /// Returns the context that owns the thread's allocations. For a green context this is the
    /// primary context of its device, if that was seen.
    pub fn owner(&self, tid: Tid) -> Option<ContextHandle> {
        let current = self.current(tid)?;
        let primary = self.views.get(&current).and_then(|device| self.primaries.get(device)?.context);
        Some(primary.unwrap_or(current))
    }

    /// Returns the device of the thread's current context.
    pub fn device_of(&self, tid: Tid) -> DeviceRef {
        match self.current(tid) {
            Some(context) => self.device_of_context(context),
            None => self.reported.get(&tid).map_or(DeviceRef::Unknown, |device| DeviceRef::Ordinal(*device)),
        }
    }

    /// Returns the only device that the process has used; `Unknown` if there are several or none.
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

    /// Returns the device of a stream's context, or of the thread's context for default streams and
    /// streams older than the attach.
    pub fn device_of_stream(&self, stream: Stream, tid: Tid) -> DeviceRef {
        match stream {
            Stream::Handle(handle) => self
                .streams
                .get(&handle)
                .map_or_else(|| self.device_of(tid), |context| self.device_of_context(*context)),
            Stream::Legacy | Stream::OfThread => self.device_of(tid),
        }
    }

    /// `cuStreamCreate`: the stream belongs to the thread's current context.
    pub fn create_stream(&mut self, tid: Tid, stream: u64) {
        match self.current(tid) {
            Some(context) => {
                self.streams.insert(stream, context);
            }
            // A new stream may reuse the address of an old one.
            None => {
                self.streams.remove(&stream);
            }
        }
    }

    /// `cuCtxGetCurrent`: the driver's answer, which fills in changes that were not seen.
    pub fn learn_current(&mut self, tid: Tid, context: Option<ContextHandle>) {
        if self.current(tid) != context {
            self.set_current(tid, context);
        }
    }

    /// `cuCtxGetDevice`: the driver's answer about the thread's device.
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

    /// Returns whether the device on which the thread allocates is known.
    fn knows_device_of(&self, tid: Tid) -> bool {
        self.device_of(tid) != DeviceRef::Unknown
    }

    /// Forgets an exited thread; its thread id may be reused.
    pub fn forget_thread(&mut self, tid: Tid) {
        self.current.forget_thread(tid);
        self.reported.remove(&tid);
        self.allocating.remove(&tid);
    }

    /// Notes that the thread has allocated in its context.
    pub fn allocates(&mut self, tid: Tid) {
        self.allocating.insert(tid);
        self.allocated = true;
    }

    /// Returns whether the device is known for every live thread that has allocated; `None` if none
    /// has allocated so far.
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

    /// Returns a limit (`CUlimit`) that the program has set.
    pub fn limit(&self, limit: u32) -> Option<u64> {
        self.limits.get(&limit).copied()
    }

    /// `cuDevicePrimaryCtxRetain`: does not make the context current.
    pub fn retain_primary(&mut self, context: ContextHandle, device: Ordinal) {
        self.devices.insert(context, device);
        self.current.name(context);
        let primary = self.primaries.entry(device).or_default();
        // A device has one primary context, so an earlier one is gone.
        if let Some(earlier) = primary.context.replace(context).filter(|earlier| *earlier != context) {
            self.current.forget(earlier);
        }
        primary.references += 1;
    }

    /// `cuDevicePrimaryCtxRelease`: the last reference tears the context down.
    ///
    /// If calls before the attach were missed, the reference count is unknown, so no release is
    /// known to be the last one.
    pub fn release_primary(&mut self, device: Ordinal) -> Option<TornDown> {
        let primary = self.primaries.get_mut(&device)?;
        primary.references = primary.references.checked_sub(1)?;
        (primary.references == 0 && self.complete).then(|| self.reset_primary(device))
    }

    /// `cuDevicePrimaryCtxReset`: destroys the contents of the context but "does not release it"
    /// (cuda.h), so references remain.
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

    /// Records the driver's answer about a device's UUID.
    pub fn learn_uuid(&mut self, device: Ordinal, uuid: [u8; 16]) {
        let uuids = &mut self.answers.entry(device).or_default().uuids;
        uuids.retain(|known| *known != uuid);
        uuids.push(uuid);
        uuids.drain(..uuids.len().saturating_sub(UUIDS_OF_DEVICE));
    }

    /// Records the driver's answer about a device's PCI address: NUL-terminated text, truncated to
    /// sixteen bytes.
    pub fn learn_bus_id(&mut self, device: Ordinal, bus_id: [u8; 16]) {
        let text = bus_id.split(|byte| *byte == 0).next().and_then(|text| std::str::from_utf8(text).ok());
        if let Some(pci) = text.and_then(PciAddress::parse) {
            self.answers.entry(device).or_default().pci = Some(pci);
        }
    }

    /// Returns the driver's answers about a device.
    pub fn reported(&self, device: Ordinal) -> Option<&DeviceAnswers> {
        self.answers.get(&device)
    }

    /// Clears all contexts. Every later call is seen, and the driver's answers about devices remain
    /// valid.
    pub fn end(&mut self) {
        let answers = std::mem::take(&mut self.answers);
        *self = Self { answers, ..Self::new(true) };
    }

    /// Forgets the answers about devices: the next image of the process may see other devices under
    /// the same ordinals.
    pub fn forget_devices(&mut self) {
        self.answers.clear();
    }
}

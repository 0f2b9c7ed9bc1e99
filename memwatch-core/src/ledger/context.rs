//! Contexts: which device a thread allocates on, and what a teardown takes with it.

use std::collections::BTreeMap;

use super::totals::DeviceRef;
use crate::words::{ContextHandle, Ordinal, Tid};

/// A context that has just ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TornDown {
    /// Its handle, if it was ever seen.
    pub context: Option<ContextHandle>,
    /// Memory of contexts that were never seen dies with it: it is the primary one of the only device the process ever named.
    pub takes_unknown: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Primary {
    context: Option<ContextHandle>,
    references: u32,
}

/// The contexts of one process.
#[derive(Clone, Debug, Default)]
pub struct Contexts {
    devices: BTreeMap<ContextHandle, Ordinal>,
    primaries: BTreeMap<Ordinal, Primary>,
    threads: BTreeMap<Tid, Vec<ContextHandle>>,
    uuids: BTreeMap<Ordinal, [u8; 16]>,
    /// Every context call of the process was seen, so reference counts are the driver's.
    complete: bool,
}

impl Contexts {
    /// No contexts yet; `complete` says that no context call before now was missed.
    pub fn new(complete: bool) -> Self {
        Self { complete, ..Self::default() }
    }

    /// The thread's current context, if it is known.
    pub fn current(&self, tid: Tid) -> Option<ContextHandle> {
        self.threads.get(&tid)?.last().copied()
    }

    /// Whether it was seen which device this context is on.
    pub fn is_known(&self, context: ContextHandle) -> bool {
        self.devices.contains_key(&context)
    }

    /// The device of the thread's current context.
    pub fn device_of(&self, tid: Tid) -> DeviceRef {
        self.current(tid)
            .and_then(|context| self.devices.get(&context))
            .map_or(DeviceRef::Unknown, |device| DeviceRef::Ordinal(*device))
    }

    /// `cuDevicePrimaryCtxRetain`: does not make the context current.
    pub fn retain_primary(&mut self, context: ContextHandle, device: Ordinal) {
        self.devices.insert(context, device);
        let primary = self.primaries.entry(device).or_default();
        primary.context = Some(context);
        primary.references += 1;
    }

    /// `cuDevicePrimaryCtxRelease`: the last reference tears the context down.
    ///
    /// Where calls before our attach were missed, references are not all known, and a last one cannot be told.
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
        self.push(tid, context);
    }

    /// `cuCtxDestroy`: pops the context if it is current on the calling thread.
    pub fn destroy(&mut self, tid: Tid, context: ContextHandle) -> TornDown {
        self.devices.remove(&context);
        if self.current(tid) == Some(context) {
            self.pop(tid);
        }
        TornDown { context: Some(context), takes_unknown: false }
    }

    /// `cuCtxSetCurrent`: replaces the top of the stack, or pops it.
    pub fn set_current(&mut self, tid: Tid, context: Option<ContextHandle>) {
        let stack = self.threads.entry(tid).or_default();
        stack.pop();
        stack.extend(context);
    }

    /// `cuCtxPushCurrent`.
    pub fn push(&mut self, tid: Tid, context: ContextHandle) {
        self.threads.entry(tid).or_default().push(context);
    }

    /// `cuCtxPopCurrent`.
    pub fn pop(&mut self, tid: Tid) {
        if let Some(stack) = self.threads.get_mut(&tid) {
            stack.pop();
        }
    }

    /// The program asked the driver for a device's UUID.
    pub fn learn_uuid(&mut self, device: Ordinal, uuid: [u8; 16]) {
        self.uuids.insert(device, uuid);
    }

    /// What it was told.
    pub fn uuid_of(&self, device: Ordinal) -> Option<[u8; 16]> {
        self.uuids.get(&device).copied()
    }
}

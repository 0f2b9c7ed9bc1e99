//! Objects of one client: a tree. A free removes a subtree.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::decode::{Lies, ObjectKey};
use super::labels::AttributedPurpose;
use crate::input::rm::Inside;
use crate::words::{GpuUuid, Tgid, Tid};

/// Depth limit of the object tree. libcuda's objects are at most three deep.
const DEEPEST: usize = 16;

/// GPU of a client's device, as far as its ioctls show.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DriverDevice {
    /// UUID of the GPU; for a MIG instance that of the whole GPU.
    pub uuid: Option<GpuUuid>,
    /// GPU instance id, as in NVML.
    pub gpu_instance: Option<u32>,
    /// Compute instance id, as in NVML.
    pub compute_instance: Option<u32>,
    /// Whether two different UUIDs were reported.
    pub contradictory: bool,
}

impl DriverDevice {
    pub(super) fn name(&mut self, uuid: GpuUuid) {
        self.contradictory |= self.uuid.as_ref().is_some_and(|known| *known != uuid);
        self.uuid = Some(uuid);
    }
}

/// A live memory object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverMemory {
    /// Location of the memory.
    pub lies: Lies,
    /// Requested size, bytes; `None` if it could not be read.
    pub asked_bytes: Option<u64>,
    /// Granted size, which NVML charges, bytes.
    pub granted_bytes: u64,
    /// Return time of the ioctl: `CLOCK_BOOTTIME`, nanoseconds.
    pub made_ns: u64,
    /// Requesting thread.
    pub tid: Tid,
    /// Driver function that issued the ioctl.
    pub inside: Option<Inside>,
    /// Device object of the memory; 0 if unknown.
    pub device: u32,
    /// Purpose of the memory.
    pub named: AttributedPurpose,
    /// Mapped ranges: first address and bytes.
    pub ranges: Vec<(u64, u64)>,
    /// Process that owned the memory before and freed it or exited; `None` if its present process
    /// requested it.
    pub left_by: Option<Tgid>,
}

/// Kind of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RmObjectKind {
    /// A GPU.
    Device(DriverDevice),
    /// One GPU of a device.
    Subdevice,
    /// Memory owned by the client.
    Memory(Box<DriverMemory>),
    /// Memory of another client: it counts no bytes here while the other client has it.
    Imported(ObjectKey),
    /// An object of any other kind.
    Other,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Object {
    parent: u32,
    what: RmObjectKind,
}

/// A client and its objects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RmClient {
    /// Process that created the client, also while a child of that process uses it.
    pub tgid: Tgid,
    /// Whether the client existed before the attach.
    pub is_older: bool,
    number: u32,
    objects: BTreeMap<u32, Object>,
    /// Pairs of parent and child.
    branches: BTreeSet<(u32, u32)>,
}

impl RmClient {
    pub(super) const fn new(number: u32, tgid: Tgid, is_older: bool) -> Self {
        Self { tgid, is_older, number, objects: BTreeMap::new(), branches: BTreeSet::new() }
    }

    /// Adds an object. Returns the previous object with this number and its descendants, which are
    /// gone.
    pub(super) fn put(&mut self, object: u32, parent: u32, what: RmObjectKind) -> Vec<(u32, RmObjectKind)> {
        let gone = self.take(object);
        self.objects.insert(object, Object { parent, what });
        self.branches.insert((parent, object));
        gone
    }

    /// Removes an object and all its descendants.
    pub(super) fn take(&mut self, object: u32) -> Vec<(u32, RmObjectKind)> {
        let mut gone = Vec::new();
        let mut next = vec![object];
        while let Some(number) = next.pop() {
            let Some(Object { parent, what }) = self.objects.remove(&number) else { continue };
            self.branches.remove(&(parent, number));
            next.extend(self.branches.range((number, 0)..=(number, u32::MAX)).map(|(_, child)| *child));
            gone.push((number, what));
        }
        gone
    }

    /// Removes all objects.
    pub(super) fn take_all(self) -> impl Iterator<Item = (ObjectKey, RmObjectKind)> {
        let client = self.number;
        self.objects.into_iter().map(move |(object, Object { what, .. })| (ObjectKey { client, object }, what))
    }

    pub(super) fn get(&self, object: u32) -> Option<&RmObjectKind> {
        self.objects.get(&object).map(|object| &object.what)
    }

    pub(super) fn get_mut(&mut self, object: u32) -> Option<&mut RmObjectKind> {
        self.objects.get_mut(&object).map(|object| &mut object.what)
    }

    /// Returns the device that an object is or belongs to; 0 if unknown.
    pub(super) fn device_of(&self, object: u32) -> u32 {
        let parents = std::iter::successors(Some(object), |number| Some(self.objects.get(number)?.parent));
        let device = parents.take(DEEPEST).find(|number| matches!(self.get(*number), Some(RmObjectKind::Device(_))));
        device.unwrap_or(0)
    }

    /// Returns the GPU of a device.
    pub(super) fn place(&self, device: u32) -> DriverDevice {
        match self.get(device) {
            Some(RmObjectKind::Device(place)) => place.clone(),
            _ => DriverDevice::default(),
        }
    }

    /// Iterates over the client's memory by object.
    pub fn memory(&self) -> impl Iterator<Item = (ObjectKey, &DriverMemory)> {
        let client = self.number;
        self.objects.iter().filter_map(move |(object, Object { what, .. })| match what {
            RmObjectKind::Memory(memory) => Some((ObjectKey { client, object: *object }, &**memory)),
            _ => None,
        })
    }

    /// Number of objects shared from other clients.
    pub(super) fn imported(&self) -> u64 {
        let imported = self.objects.values().filter(|object| matches!(object.what, RmObjectKind::Imported(_)));
        imported.fold(0, |count, _| count + 1)
    }

    pub(super) fn memory_mut(&mut self, object: u32) -> Option<&mut DriverMemory> {
        match self.get_mut(object)? {
            RmObjectKind::Memory(memory) => Some(memory),
            _ => None,
        }
    }
}

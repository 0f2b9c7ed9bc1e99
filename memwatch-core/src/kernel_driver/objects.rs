//! One client's objects: a tree, of which a free takes a branch.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::decode::{Key, Lies};
use super::labels::Named;
use crate::input::rm::Inside;
use crate::words::{GpuUuid, Tgid, Tid};

/// No object lies deeper than this below its client: in libcuda's they are three deep.
const DEEPEST: usize = 16;

/// Which GPU a device of a client is, as far as its own ioctls show.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The GPU; of a MIG instance the whole one.
    pub uuid: Option<GpuUuid>,
    /// NVML's number of the GPU instance.
    pub gpu_instance: Option<u32>,
    /// NVML's number of the compute instance in it.
    pub compute_instance: Option<u32>,
    /// It was named twice, and not alike.
    pub contradictory: bool,
}

impl Place {
    pub(super) fn name(&mut self, uuid: GpuUuid) {
        self.contradictory |= self.uuid.as_ref().is_some_and(|known| *known != uuid);
        self.uuid = Some(uuid);
    }
}

/// Memory that lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Where.
    pub lies: Lies,
    /// What was asked for, in bytes; `None` where that could not be read.
    pub asked_bytes: Option<u64>,
    /// What NVML charges for it, in bytes.
    pub granted_bytes: u64,
    /// When its ioctl returned: `CLOCK_BOOTTIME`, nanoseconds.
    pub made_ns: u64,
    /// The thread that asked.
    pub tid: Tid,
    /// The driver's function that it was inside of.
    pub inside: Option<Inside>,
    /// The device that it is below of; 0 where that is not known.
    pub device: u32,
    /// What it is for.
    pub named: Named,
    /// Where it is mapped: first address and bytes.
    pub ranges: Vec<(u64, u64)>,
    /// Who had it before, freed it or ended; `None` of what its process asked for itself.
    pub left_by: Option<Tgid>,
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A GPU.
    Device(Place),
    /// The same again.
    Subdevice,
    /// Memory of its own.
    Memory(Box<Memory>),
    /// Another client's memory: no bytes of its own, as long as the other has it.
    Imported(Key),
    /// Anything else.
    Other,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Object {
    parent: u32,
    what: What,
}

/// A client, and all that it has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Client {
    /// Whose it is: who made it, also where a child of that process uses it.
    pub tgid: Tgid,
    /// It was there before anything was seen of it.
    pub is_older: bool,
    number: u32,
    objects: BTreeMap<u32, Object>,
    /// Parent and child.
    branches: BTreeSet<(u32, u32)>,
}

impl Client {
    pub(super) const fn new(number: u32, tgid: Tgid, is_older: bool) -> Self {
        Self { tgid, is_older, number, objects: BTreeMap::new(), branches: BTreeSet::new() }
    }

    /// Puts in an object; what had its name before is gone, with all below it.
    pub(super) fn put(&mut self, object: u32, parent: u32, what: What) -> Vec<(u32, What)> {
        let gone = self.take(object);
        self.objects.insert(object, Object { parent, what });
        self.branches.insert((parent, object));
        gone
    }

    /// Takes out an object and all below it.
    pub(super) fn take(&mut self, object: u32) -> Vec<(u32, What)> {
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

    /// All of them at once.
    pub(super) fn take_all(self) -> impl Iterator<Item = (Key, What)> {
        let client = self.number;
        self.objects.into_iter().map(move |(object, Object { what, .. })| (Key { client, object }, what))
    }

    pub(super) fn get(&self, object: u32) -> Option<&What> {
        self.objects.get(&object).map(|object| &object.what)
    }

    pub(super) fn get_mut(&mut self, object: u32) -> Option<&mut What> {
        self.objects.get_mut(&object).map(|object| &mut object.what)
    }

    /// Which device an object is below of, or is; 0 where that is not known.
    pub(super) fn device_of(&self, object: u32) -> u32 {
        let parents = std::iter::successors(Some(object), |number| Some(self.objects.get(number)?.parent));
        let device = parents.take(DEEPEST).find(|number| matches!(self.get(*number), Some(What::Device(_))));
        device.unwrap_or(0)
    }

    /// Which GPU a device is.
    pub(super) fn place(&self, device: u32) -> Place {
        match self.get(device) {
            Some(What::Device(place)) => place.clone(),
            _ => Place::default(),
        }
    }

    /// Its memory, by object.
    pub fn memory(&self) -> impl Iterator<Item = (Key, &Memory)> {
        let client = self.number;
        self.objects.iter().filter_map(move |(object, Object { what, .. })| match what {
            What::Memory(memory) => Some((Key { client, object: *object }, &**memory)),
            _ => None,
        })
    }

    /// How many objects of others it has as well.
    pub(super) fn imported(&self) -> u64 {
        let imported = self.objects.values().filter(|object| matches!(object.what, What::Imported(_)));
        imported.fold(0, |count, _| count + 1)
    }

    pub(super) fn memory_mut(&mut self, object: u32) -> Option<&mut Memory> {
        match self.get_mut(object)? {
            What::Memory(memory) => Some(memory),
            _ => None,
        }
    }
}

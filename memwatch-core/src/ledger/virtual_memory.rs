//! Physical memory by handle, with its references and mappings (`cuMemCreate` and its family).
//!
//! Physical memory is freed when no handle reference and no mapping is left (cuda.h); a release while mapped frees nothing, and one
//! unmap may end many mappings. Address reservations are no memory and do not appear here.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::alias::Origin;
use super::tenants::{Release, Tenants};
use super::totals::{DeviceRef, Kind};
use crate::words::Ordinal;

/// Physical memory behind a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Physical {
    /// Requested bytes; 0 for memory that is not this process's, or not known.
    pub bytes: u64,
    /// Where it lies.
    pub device: DeviceRef,
    /// On a device or in host memory.
    pub kind: Kind,
    /// Since when: `CLOCK_BOOTTIME`, nanoseconds.
    pub created_ns: u64,
    owned: bool,
    imported: bool,
    /// Whose it is, where it is not this process's own and that is known.
    pub origin: Option<Origin>,
    /// Handle values that stand for it.
    names: u32,
    mappings: u32,
}

impl Physical {
    /// Memory this process created.
    pub const fn owned(bytes: u64, device: DeviceRef, kind: Kind) -> Self {
        Self { bytes, device, kind, created_ns: 0, owned: true, imported: false, origin: None, names: 0, mappings: 0 }
    }

    /// Another owner's memory, or memory older than our attach: a handle without bytes.
    pub const fn foreign() -> Self {
        Self { owned: false, ..Self::owned(0, DeviceRef::Unknown, Kind::Physical) }
    }

    /// Another process's memory, whose owner may be known.
    pub const fn imported(origin: Option<Origin>) -> Self {
        Self { imported: true, origin, ..Self::foreign() }
    }

    /// Whether its bytes are this process's.
    pub const fn is_owned(&self) -> bool {
        self.owned
    }

    /// Whether it is mapped, or bound to a multicast object.
    pub const fn is_mapped(&self) -> bool {
        self.mappings > 0
    }

    const fn is_unused(&self) -> bool {
        self.names == 0 && self.mappings == 0
    }
}

/// What a release of a handle did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleRelease {
    /// That was the last of it: the memory is free.
    Freed(Physical),
    /// References or mappings are left, or it was meant for memory that a later create has already replaced.
    Held,
    /// The handle is older than our attach.
    Unknown,
}

/// Physical memory keeps its identity after its handle value is released and reused: mappings refer to this.
pub type PhysicalId = u64;

/// A part of a multicast object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// On which device; `None` where the call does not say.
    pub device: Option<Ordinal>,
    /// Where it begins in the object.
    pub offset_bytes: u64,
    /// Its size.
    pub bytes: u64,
}

/// Physical memory bound to a part of a multicast object.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Binding {
    object: PhysicalId,
    part: Part,
    bound_ns: u64,
    physical: PhysicalId,
}

/// What a handle value stands for, and how many references the process holds under it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Name {
    id: PhysicalId,
    references: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Mapping {
    bytes: u64,
    mapped_ns: u64,
    /// `None`: made from a handle older than our attach.
    physical: Option<PhysicalId>,
}

/// All handles and mappings of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VirtualMemory {
    handles: Tenants<Name>,
    memory: HashMap<PhysicalId, Physical>,
    mappings: BTreeMap<u64, Mapping>,
    bindings: Vec<Binding>,
    next_id: PhysicalId,
}

impl VirtualMemory {
    /// Entries in all tables.
    pub(super) fn listed(&self) -> usize {
        self.handles.listed() + self.memory.len() + self.mappings.len() + self.bindings.len()
    }

    /// New physical memory under `handle`. Returns the memory that was still thought to be under this handle value, if that frees it.
    pub fn create(&mut self, handle: u64, returned_ns: u64, physical: Physical) -> Option<Physical> {
        self.next_id += 1;
        self.memory.insert(self.next_id, Physical { created_ns: returned_ns, ..physical });
        self.name(handle, returned_ns, self.next_id)
    }

    fn name(&mut self, handle: u64, returned_ns: u64, id: PhysicalId) -> Option<Physical> {
        self.memory.get_mut(&id)?.names += 1;
        let previous = self.handles.grant(handle, returned_ns, Name { id, references: 1 })?;
        // A value is handed out again only when the last reference under it is gone, by records that are yet to come.
        self.handles.await_frees(handle, previous.references.saturating_sub(1));
        self.unname(previous.id)
    }

    fn unname(&mut self, id: PhysicalId) -> Option<Physical> {
        let physical = self.memory.get_mut(&id)?;
        physical.names = physical.names.saturating_sub(1);
        self.collect(id)
    }

    /// One reference more on what is mapped at `address`, under `handle`. Returns the same as [`Self::create`].
    ///
    /// The address decides: the handle of mapped memory may have been released long ago.
    pub fn retain(&mut self, handle: u64, address: u64, returned_ns: u64) -> Option<Physical> {
        let mapped = self.mapped_at(address);
        let named = self.handles.get_mut(handle).filter(|name| mapped.is_none_or(|id| id == name.id));
        match (named, mapped) {
            (Some(name), _) => {
                name.references += 1;
                None
            }
            (None, Some(id)) => self.name(handle, returned_ns, id),
            (None, None) => self.create(handle, returned_ns, Physical::foreign()),
        }
    }

    fn mapped_at(&self, address: u64) -> Option<PhysicalId> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        mapping.physical.filter(|_| address - start < mapping.bytes)
    }

    /// The mapping that an address lies in: where it begins, its size in bytes, and the memory behind it.
    pub fn mapping_at(&self, address: u64) -> Option<(u64, u64, &Physical)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        let physical = self.memory.get(&self.mapped_at(address)?)?;
        Some((*start, mapping.bytes, physical))
    }

    /// One reference less.
    pub fn release(&mut self, handle: u64, entered_ns: u64) -> HandleRelease {
        if !self.handles.is_for_present(handle, entered_ns) {
            return match self.handles.release(handle, entered_ns) {
                Release::Unknown => HandleRelease::Unknown,
                _ => HandleRelease::Held,
            };
        }
        let Some(name) = self.handles.get_mut(handle) else { return HandleRelease::Unknown };
        let id = name.id;
        name.references = name.references.saturating_sub(1);
        if name.references > 0 {
            return HandleRelease::Held;
        }
        self.handles.release(handle, entered_ns);
        self.unname(id).map_or(HandleRelease::Held, HandleRelease::Freed)
    }

    /// A mapping more. Returns the memory that this shows to be free: whatever was mapped there is gone, by an unmap whose record is
    /// yet to come.
    pub fn map(&mut self, address: u64, bytes: u64, handle: u64, returned_ns: u64) -> Vec<Physical> {
        let freed = self.unmap_where(address, bytes, |_, _| true);
        let physical = self.handles.get(handle).map(|name| name.id);
        if let Some(memory) = physical.and_then(|id| self.memory.get_mut(&id)) {
            memory.mappings += 1;
        }
        self.mappings.insert(address, Mapping { bytes, mapped_ns: returned_ns, physical });
        freed
    }

    /// Ends every mapping that lies in the range and was made before `entered_ns`. Returns the memory that this frees.
    pub fn unmap(&mut self, address: u64, bytes: u64, entered_ns: u64) -> Vec<Physical> {
        let end = address.saturating_add(bytes);
        self.unmap_where(address, bytes, |start, mapping| {
            mapping.mapped_ns <= entered_ns && start >= address && start.saturating_add(mapping.bytes) <= end
        })
    }

    /// Ends the mappings that touch the range and that `ends` names.
    fn unmap_where(&mut self, address: u64, bytes: u64, ends: impl Fn(u64, &Mapping) -> bool) -> Vec<Physical> {
        // Mappings do not overlap: besides the ones that start in the range, only the last one before it can reach into it.
        let before = self.mappings.range(..address).next_back();
        let before = before.filter(|(start, mapping)| start.saturating_add(mapping.bytes) > address);
        let touching = before.into_iter().chain(self.mappings.range(address..address.saturating_add(bytes)));
        let gone: Vec<u64> =
            touching.filter(|(start, mapping)| ends(**start, mapping)).map(|(start, _)| *start).collect();
        gone.into_iter().filter_map(|start| self.unmap_one(start)).collect()
    }

    fn unmap_one(&mut self, start: u64) -> Option<Physical> {
        let id = self.mappings.remove(&start)?.physical?;
        self.unmap_physical(id)
    }

    fn unmap_physical(&mut self, id: PhysicalId) -> Option<Physical> {
        let physical = self.memory.get_mut(&id)?;
        physical.mappings = physical.mappings.saturating_sub(1);
        self.collect(id)
    }

    /// Binds the memory under a handle to a multicast object: it stays while it is bound.
    ///
    /// A call that names no device binds the memory to its own one's share of the object.
    pub fn bind(&mut self, object: u64, part: Part, handle: u64, bound_ns: u64) {
        let (Some(object), Some(physical)) = (self.id(object), self.id(handle)) else { return };
        if let Some(memory) = self.memory.get_mut(&physical) {
            memory.mappings += 1;
            let own = match memory.device {
                DeviceRef::Ordinal(ordinal) => Some(ordinal),
                DeviceRef::Unknown => None,
            };
            let part = Part { device: part.device.or(own), ..part };
            self.bindings.push(Binding { object, part, bound_ns, physical });
        }
    }

    /// Ends the bindings in a part of a multicast object that were made before `entered_ns`. Returns the memory that this frees.
    pub fn unbind(&mut self, object: u64, part: Part, entered_ns: u64) -> Vec<Physical> {
        let Some(object) = self.id(object) else { return Vec::new() };
        let end = part.offset_bytes.saturating_add(part.bytes);
        self.unbind_where(|binding| {
            let own = binding.part;
            binding.object == object
                && binding.bound_ns <= entered_ns
                && (own.device.is_none() || own.device == part.device)
                && own.offset_bytes >= part.offset_bytes
                && own.offset_bytes.saturating_add(own.bytes) <= end
        })
    }

    fn unbind_where(&mut self, ends: impl Fn(&Binding) -> bool) -> Vec<Physical> {
        let gone: Vec<Binding> = self.bindings.extract_if(.., |binding| ends(binding)).collect();
        gone.into_iter().filter_map(|binding| self.unmap_physical(binding.physical)).collect()
    }

    /// The memory that a handle stands for now.
    pub fn id(&self, handle: u64) -> Option<PhysicalId> {
        self.handles.get(handle).map(|name| name.id)
    }

    /// Memory that is still held, by its number.
    pub fn get(&self, id: PhysicalId) -> Option<&Physical> {
        self.memory.get(&id)
    }

    /// Those of other processes whose owner is known.
    pub fn origins(&self) -> impl Iterator<Item = Origin> {
        self.memory.values().filter_map(|physical| physical.origin)
    }

    /// The process's own physical memory.
    pub fn owned(&self) -> impl Iterator<Item = &Physical> {
        self.memory.values().filter(|physical| physical.owned)
    }

    /// The mappings that begin between two addresses, by address: from where to where.
    pub fn mapped_between(&self, begin: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        self.mappings.range(begin..end).map(|(start, mapping)| (*start, start.saturating_add(mapping.bytes)))
    }

    /// Live physical allocations of this process's own.
    pub fn owned_count(&self) -> usize {
        self.memory.values().filter(|physical| physical.owned).count()
    }

    /// Imports that are still held.
    pub fn imported_count(&self) -> usize {
        self.memory.values().filter(|physical| physical.imported).count()
    }

    fn collect(&mut self, id: PhysicalId) -> Option<Physical> {
        if self.memory.get(&id)?.is_unused() { self.memory.remove(&id) } else { None }
    }

    /// A multicast object that is gone binds nothing. Returns the memory that this frees.
    pub fn drop_bindings_of_the_gone(&mut self) -> Vec<Physical> {
        if self.bindings.is_empty() {
            return Vec::new();
        }
        let gone: Vec<PhysicalId> =
            self.bindings.iter().map(|binding| binding.object).filter(|id| !self.memory.contains_key(id)).collect();
        self.unbind_where(|binding| gone.contains(&binding.object))
    }
}

#[cfg(test)]
#[path = "tests/virtual_memory.rs"]
mod tests;

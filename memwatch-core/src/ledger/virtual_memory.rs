//! Physical memory by handle, with its references and mappings (`cuMemCreate` and its family).
//!
//! Physical memory is freed when no handle reference and no mapping remains (cuda.h). A release
//! while mapped frees nothing, and one unmap may end many mappings. Address reservations are not
//! memory and are not tracked here.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::alias::SharedOrigin;
use super::tenants::{ReleaseOutcome, Tenants};
use super::totals::{AllocationKind, DeviceRef};
use crate::words::Ordinal;

/// Physical memory behind a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Physical {
    /// Requested bytes; 0 if the memory belongs to another process or its size is unknown.
    pub bytes: u64,
    /// Device that holds the memory.
    pub device: DeviceRef,
    /// Device or host memory.
    pub kind: AllocationKind,
    /// Creation time: `CLOCK_BOOTTIME`, nanoseconds.
    pub created_ns: u64,
    owned: bool,
    imported: bool,
    /// Owner of the memory, if it is another process and known.
    pub origin: Option<SharedOrigin>,
    /// Number of handle values that refer to this memory.
    names: u32,
    mappings: u32,
}

impl Physical {
    /// Creates the entry of memory allocated by this process.
    pub const fn owned(bytes: u64, device: DeviceRef, kind: AllocationKind) -> Self {
        Self { bytes, device, kind, created_ns: 0, owned: true, imported: false, origin: None, names: 0, mappings: 0 }
    }

    /// Creates the entry of memory of another owner, or of memory older than the attach: a handle
    /// without bytes.
    pub const fn foreign() -> Self {
        Self { owned: false, ..Self::owned(0, DeviceRef::Unknown, AllocationKind::Physical) }
    }

    /// Creates the entry of memory imported from another process; its owner may be known.
    pub const fn imported(origin: Option<SharedOrigin>) -> Self {
        Self { imported: true, origin, ..Self::foreign() }
    }

    /// Returns whether the memory belongs to this process.
    pub const fn is_owned(&self) -> bool {
        self.owned
    }

    /// Returns whether the memory is mapped or bound to a multicast object.
    pub const fn is_mapped(&self) -> bool {
        self.mappings > 0
    }

    const fn is_unused(&self) -> bool {
        self.names == 0 && self.mappings == 0
    }
}

/// Outcome of a handle release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleRelease {
    /// The last reference is gone: the memory is free.
    Freed(Physical),
    /// References or mappings remain, or the release belongs to earlier memory and a later create
    /// has reused its handle value.
    Held,
    /// The handle is older than the attach.
    Unknown,
}

/// Identifies physical memory, also after its handle value is released and reused. Mappings refer
/// to this identifier.
pub type PhysicalId = u64;

/// A part of a multicast object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastPart {
    /// Device of the part; `None` if the call does not name one.
    pub device: Option<Ordinal>,
    /// Offset in the object, bytes.
    pub offset_bytes: u64,
    /// Size, bytes.
    pub bytes: u64,
}

/// Physical memory bound to a part of a multicast object.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Binding {
    object: PhysicalId,
    part: MulticastPart,
    bound_ns: u64,
    physical: PhysicalId,
}

/// Memory behind a handle value, and the references that the process has under this handle.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct HandleName {
    id: PhysicalId,
    references: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct PhysicalMapping {
    bytes: u64,
    mapped_ns: u64,
    /// Mapped memory; `None` if its handle is older than the attach.
    physical: Option<PhysicalId>,
}

/// All handles and mappings of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VirtualMemory {
    handles: Tenants<HandleName>,
    memory: HashMap<PhysicalId, Physical>,
    mappings: BTreeMap<u64, PhysicalMapping>,
    bindings: Vec<Binding>,
    next_id: PhysicalId,
}

impl VirtualMemory {
    /// Number of entries in all tables.
    pub(super) fn listed(&self) -> usize {
        self.handles.listed() + self.memory.len() + self.mappings.len() + self.bindings.len()
    }

    /// Adds physical memory under `handle`. Returns the memory previously recorded under this
    /// handle value, if the reuse shows that it is free.
    pub fn create(&mut self, handle: u64, returned_ns: u64, physical: Physical) -> Option<Physical> {
        self.next_id += 1;
        self.memory.insert(self.next_id, Physical { created_ns: returned_ns, ..physical });
        self.name(handle, returned_ns, self.next_id)
    }

    fn name(&mut self, handle: u64, returned_ns: u64, id: PhysicalId) -> Option<Physical> {
        self.memory.get_mut(&id)?.names += 1;
        let previous = self.handles.grant(handle, returned_ns, HandleName { id, references: 1 })?;
        // The driver reuses a handle value only after its last reference is released; the records
        // of those releases have yet to arrive.
        self.handles.await_frees(handle, previous.references.saturating_sub(1));
        self.unname(previous.id)
    }

    fn unname(&mut self, id: PhysicalId) -> Option<Physical> {
        let physical = self.memory.get_mut(&id)?;
        physical.names = physical.names.saturating_sub(1);
        self.collect(id)
    }

    /// Adds a reference, under `handle`, to the memory mapped at `address`. Returns the same as
    /// [`Self::create`].
    ///
    /// The address determines the memory, because the handle of mapped memory may have been
    /// released long ago.
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

    /// Returns the mapping that contains an address: its start, its size in bytes, and its memory.
    pub fn mapping_at(&self, address: u64) -> Option<(u64, u64, &Physical)> {
        let (start, mapping) = self.mappings.range(..=address).next_back()?;
        let physical = self.memory.get(&self.mapped_at(address)?)?;
        Some((*start, mapping.bytes, physical))
    }

    /// Drops one reference of a handle.
    pub fn release(&mut self, handle: u64, entered_ns: u64) -> HandleRelease {
        if !self.handles.is_for_present(handle, entered_ns) {
            return match self.handles.release(handle, entered_ns) {
                ReleaseOutcome::Unknown => HandleRelease::Unknown,
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

    /// Adds a mapping. Returns the memory that this shows to be free: earlier mappings of the range
    /// have ended; the record of their unmap has yet to arrive.
    pub fn map(&mut self, address: u64, bytes: u64, handle: u64, returned_ns: u64) -> Vec<Physical> {
        let freed = self.unmap_where(address, bytes, |_, _| true);
        let physical = self.handles.get(handle).map(|name| name.id);
        if let Some(memory) = physical.and_then(|id| self.memory.get_mut(&id)) {
            memory.mappings += 1;
        }
        self.mappings.insert(address, PhysicalMapping { bytes, mapped_ns: returned_ns, physical });
        freed
    }

    /// Ends every mapping within the range that was made before `entered_ns`. Returns the memory
    /// that this frees.
    pub fn unmap(&mut self, address: u64, bytes: u64, entered_ns: u64) -> Vec<Physical> {
        let end = address.saturating_add(bytes);
        self.unmap_where(address, bytes, |start, mapping| {
            mapping.mapped_ns <= entered_ns && start >= address && start.saturating_add(mapping.bytes) <= end
        })
    }

    /// Ends the mappings that overlap the range and for which `ends` returns true.
    fn unmap_where(&mut self, address: u64, bytes: u64, ends: impl Fn(u64, &PhysicalMapping) -> bool) -> Vec<Physical> {
        // Mappings do not overlap: besides those that start in the range, only the last one before
        // it can reach into it.
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

    /// Binds the memory under a handle to a multicast object. Bound memory is not freed.
    pub fn bind(&mut self, object: u64, part: MulticastPart, handle: u64, bound_ns: u64) {
        let (Some(object), Some(physical)) = (self.id(object), self.id(handle)) else { return };
        if let Some(memory) = self.memory.get_mut(&physical) {
            memory.mappings += 1;
            let own = match memory.device {
                DeviceRef::Ordinal(ordinal) => Some(ordinal),
                DeviceRef::Unknown => None,
            };
            let part = MulticastPart { device: part.device.or(own), ..part };
            self.bindings.push(Binding { object, part, bound_ns, physical });
        }
    }

    /// Ends the bindings in a part of a multicast object that were made before `entered_ns`.
    /// Returns the memory that this frees.
    ///
    /// If the call names no device, the memory is bound to its own device's part of the object.
    pub fn unbind(&mut self, object: u64, part: MulticastPart, entered_ns: u64) -> Vec<Physical> {
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

    /// Returns the memory that a handle currently refers to.
    pub fn id(&self, handle: u64) -> Option<PhysicalId> {
        self.handles.get(handle).map(|name| name.id)
    }

    /// Returns live memory by its identifier.
    pub fn get(&self, id: PhysicalId) -> Option<&Physical> {
        self.memory.get(&id)
    }

    /// Iterates over the known origins of imported memory.
    pub fn origins(&self) -> impl Iterator<Item = SharedOrigin> {
        self.memory.values().filter_map(|physical| physical.origin)
    }

    /// Iterates over the physical memory of this process.
    pub fn owned(&self) -> impl Iterator<Item = &Physical> {
        self.memory.values().filter(|physical| physical.owned)
    }

    /// Iterates over the mappings that start between two addresses, in address order, as start and
    /// end.
    pub fn mapped_between(&self, begin: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        self.mappings.range(begin..end).map(|(start, mapping)| (*start, start.saturating_add(mapping.bytes)))
    }

    /// Number of live physical allocations of this process.
    pub fn owned_count(&self) -> usize {
        self.memory.values().filter(|physical| physical.owned).count()
    }

    /// Number of live imports.
    pub fn imported_count(&self) -> usize {
        self.memory.values().filter(|physical| physical.imported).count()
    }

    fn collect(&mut self, id: PhysicalId) -> Option<Physical> {
        if self.memory.get(&id)?.is_unused() { self.memory.remove(&id) } else { None }
    }

    /// Ends the bindings of destroyed multicast objects. Returns the memory that this frees.
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

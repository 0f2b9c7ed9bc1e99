//! Effects of the simulated program's calls in the driver.

use super::{Deed, DriverThing, GRANULE, Hold, HoldState, RunningCall, SimulatedWorld, Space, ThingKind};
use crate::ledger::totals::AllocationKind;
use crate::test_calls::*;

pub(super) const NO_CONTEXT: i32 = 201;

impl SimulatedWorld {
    /// Applies a call. Returns its status, and the created reference.
    pub(super) fn effect(&mut self, thread: usize, running: &RunningCall, fails: bool) -> (i32, Option<usize>) {
        if fails {
            return (INVALID_VALUE, None);
        }
        match &running.deed {
            Deed::Make(what, device) => self.make(thread, *what, *device, running.bytes),
            Deed::Map { source, address, length } => {
                let thing = self.holds[*source].thing;
                self.hold_range(thing, Space::Range, (*address, *length), None)
            }
            Deed::Retain { source } => {
                let thing = self.holds[*source].thing;
                let same = |hold: &&Hold| hold.thing == thing && hold.space == Space::Handle && hold.in_driver;
                let handle = self.holds.iter().find(same).map(|hold| hold.key);
                match handle.or_else(|| self.free_key(Space::Handle)) {
                    Some(handle) => (0, Some(self.hold(thing, Space::Handle, handle, 0))),
                    None => (OUT_OF_MEMORY, None),
                }
            }
            Deed::Reopen { source } => {
                let Hold { thing, key, .. } = self.holds[*source];
                (0, Some(self.hold(thing, Space::Ipc, key, 0)))
            }
            Deed::Bind { source, object, offset, .. } => {
                let (thing, object) = (self.holds[*source].thing, self.holds[*object].thing);
                self.hold_range(thing, Space::Bound, (*offset, GRANULE), Some(object))
            }
            Deed::Unbind { .. } | Deed::End(_) => {
                for hold in running.deed.ends() {
                    self.holds[hold].in_driver = false;
                }
                (0, None)
            }
        }
    }

    /// Adds a reference to a range. Fails if a part of the range is taken, of the address space or
    /// of a device's share of a multicast object.
    fn hold_range(
        &mut self,
        thing: usize,
        space: Space,
        (key, length): (u64, u64),
        object: Option<usize>,
    ) -> (i32, Option<usize>) {
        let device = self.things[thing].device;
        let taken = |hold: &Hold| {
            let apart = hold.key + hold.length <= key || key + length <= hold.key;
            let same_device = space == Space::Range || self.things[hold.thing].device == device;
            hold.space == space && hold.object == object && same_device && hold.in_driver && !apart
        };
        if self.holds.iter().any(taken) {
            return (INVALID_VALUE, None);
        }
        let hold = self.hold(thing, space, key, length);
        self.holds[hold].object = object;
        (0, Some(hold))
    }

    fn make(&mut self, thread: usize, what: ThingKind, device: u32, bytes: u64) -> (i32, Option<usize>) {
        let space = match what {
            ThingKind::ImportedHandle
            | ThingKind::Multicast
            | ThingKind::Own(AllocationKind::Physical | AllocationKind::HostPhysical) => Space::Handle,
            ThingKind::Own(AllocationKind::Array) => Space::Array,
            ThingKind::Own(AllocationKind::Registered) => Space::Registered,
            ThingKind::OpenedByIpc => Space::Ipc,
            ThingKind::Reservation => Space::Reservation,
            ThingKind::Library => Space::Library,
            ThingKind::Own(_)
            | ThingKind::Pooled { .. }
            | ThingKind::ImportedPointer { .. }
            | ThingKind::ExternalBuffer => Space::Address,
        };
        let current = self.current_context(thread);
        let (context, current_device) = (current.map(|own| own.owner), current.map(|own| own.device));
        let pool = match what {
            ThingKind::Pooled { pool, stream } => pool.or_else(|| self.pool_of_stream(stream, current_device)),
            _ => None,
        };
        let needs_context = !matches!(space, Space::Handle | Space::Reservation | Space::Library);
        let is_lost =
            if let ThingKind::Pooled { .. } = what { pool.is_none() } else { needs_context && context.is_none() };
        if is_lost {
            return (NO_CONTEXT, None);
        }
        let (kind, device) = match (what, pool) {
            (_, Some(pool)) => (self.pools[pool].kind, self.pools[pool].device),
            (ThingKind::Own(kind), _) if kind.is_host() => (Some(kind), None),
            (ThingKind::Own(AllocationKind::Physical), _) => (Some(AllocationKind::Physical), Some(device)),
            (ThingKind::Own(kind), _) => (Some(kind), current_device),
            _ => (None, None),
        };
        let Some(key) = self.free_key(space) else { return (OUT_OF_MEMORY, None) };
        self.things.push(DriverThing { what, kind, device, context, pool, bytes, since: None });
        let hold = self.hold(self.things.len() - 1, space, key, 0);
        if let Some(pool) = pool {
            self.grow_pool(pool);
        }
        (0, Some(hold))
    }

    fn hold(&mut self, thing: usize, space: Space, key: u64, length: u64) -> usize {
        self.holds.push(Hold { thing, space, key, length, object: None, in_driver: true, state: HoldState::Coming });
        self.holds.len() - 1
    }

    pub(super) fn free_key(&mut self, space: Space) -> Option<u64> {
        if space == Space::Handle && self.habits.fresh_handles {
            self.last_handle += 1;
            return Some(self.last_handle);
        }
        let is_address = |space| matches!(space, Space::Address | Space::Ipc);
        let same = |other: Space| other == space || (is_address(other) && is_address(space));
        let taken = |key: u64| self.holds.iter().any(|hold| same(hold.space) && hold.key == key && hold.in_driver);
        (1..=8).find(|key| !taken(*key) && (!is_address(space) || !self.is_in_a_graph(*key)))
    }
}

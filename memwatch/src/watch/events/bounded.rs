//! A list of events with bounds, in which one user's events displace no other's.

use std::collections::{BTreeMap, VecDeque};

use memwatch_core::snapshot::Viewer;

/// Maximum size of a list of events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventBounds {
    /// Events.
    pub(crate) all: usize,
    /// Events of one owner.
    pub(crate) per_owner: usize,
    /// Bytes of all events.
    pub(crate) bytes: usize,
}

/// User that an event counts for; `None` if the user is not known.
type EventOwner = Option<u32>;

/// Events, oldest first.
#[derive(Clone, Debug)]
pub(crate) struct BoundedEvents<T> {
    bounds: EventBounds,
    kept: VecDeque<OwnedEvent<T>>,
    bytes: usize,
    left_out: u64,
    /// Owners of kept events.
    owners: BTreeMap<EventOwner, OwnerCounts>,
}

#[derive(Clone, Debug)]
struct OwnedEvent<T> {
    owner: EventOwner,
    bytes: usize,
    event: T,
}

/// Numbers of events of one owner.
#[derive(Clone, Copy, Debug, Default)]
struct OwnerCounts {
    kept: usize,
    left_out: u64,
}

impl<T> BoundedEvents<T> {
    /// Creates an empty list.
    pub(crate) const fn new(bounds: EventBounds) -> Self {
        Self { bounds, kept: VecDeque::new(), bytes: 0, left_out: 0, owners: BTreeMap::new() }
    }

    /// Appends an event of an owner that takes this number of bytes. If there are too many, the owner
    /// with most events loses the oldest one.
    pub(crate) fn push(&mut self, owner: EventOwner, bytes: usize, event: T) {
        self.kept.push_back(OwnedEvent { owner, bytes, event });
        self.bytes += bytes;
        let counts = self.owners.entry(owner).or_default();
        counts.kept += 1;
        if counts.kept > self.bounds.per_owner {
            self.drop_oldest(owner);
        }
        while self.kept.len() > self.bounds.all || (self.bytes > self.bounds.bytes && self.kept.len() > 1) {
            let most = self.owners.values().map(|counts| counts.kept).max();
            // Of several owners with the same number the one with the oldest event.
            let has_most = |one: &&OwnedEvent<T>| self.owners.get(&one.owner).map(|counts| counts.kept) == most;
            let Some(owner) = self.kept.iter().find(has_most).map(|one| one.owner) else { return };
            self.drop_oldest(owner);
        }
    }

    /// Counts an event that was not appended.
    pub(crate) fn note_left_out(&mut self, owner: EventOwner) {
        self.left_out += 1;
        if let Some(counts) = self.owners.get_mut(&owner) {
            counts.left_out += 1;
        }
    }

    /// Returns the events, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.kept.iter().map(|one| &one.event)
    }

    /// Returns the events, oldest first.
    pub(crate) fn into_events(self) -> impl Iterator<Item = T> {
        self.kept.into_iter().map(|one| one.event)
    }

    /// Returns the number of events that are missing, of those that the viewer may see. Of a user
    /// without an event in the list it is 0.
    pub(crate) fn left_out(&self, viewer: Viewer) -> u64 {
        match viewer {
            Viewer::Everything => self.left_out,
            Viewer::User(uid) => self.owners.get(&Some(uid)).map_or(0, |counts| counts.left_out),
        }
    }

    fn drop_oldest(&mut self, owner: EventOwner) {
        let at = self.kept.iter().position(|one| one.owner == owner);
        let Some(dropped) = at.and_then(|at| self.kept.remove(at)) else { return };
        self.bytes -= dropped.bytes;
        self.left_out += 1;
        let Some(counts) = self.owners.get_mut(&owner) else { return };
        (counts.kept, counts.left_out) = (counts.kept - 1, counts.left_out + 1);
        if counts.kept == 0 {
            self.owners.remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: EventOwner = Some(1);
    const BOB: EventOwner = Some(2);

    fn list(all: usize, per_owner: usize, bytes: usize) -> BoundedEvents<u32> {
        BoundedEvents::new(EventBounds { all, per_owner, bytes })
    }

    fn kept(events: &BoundedEvents<u32>) -> Vec<u32> {
        events.iter().copied().collect()
    }

    #[test]
    fn bounded_events_of_one_owner_displace_no_others() {
        let mut events = list(4, 3, 1000);
        events.push(BOB, 1, 100);
        for number in 0..10 {
            events.push(ANN, 1, number);
        }
        assert_eq!(kept(&events), [100, 7, 8, 9], "three of one owner");
        events.push(None, 1, 200);
        assert_eq!(kept(&events), [100, 8, 9, 200], "the owner with most loses the oldest");
        let left_out = [Viewer::Everything, Viewer::User(1), Viewer::User(2)].map(|viewer| events.left_out(viewer));
        assert_eq!(left_out, [8, 8, 0]);
        events.note_left_out(BOB);
        assert_eq!((events.left_out(Viewer::Everything), events.left_out(Viewer::User(2))), (9, 1));
        assert_eq!(events.into_events().collect::<Vec<_>>(), [100, 8, 9, 200]);
    }

    #[test]
    fn bounded_events_have_a_limit_of_bytes() {
        let mut events = list(100, 100, 10);
        events.push(BOB, 4, 100);
        events.push(ANN, 3, 1);
        events.push(ANN, 3, 2);
        assert_eq!(kept(&events), [100, 1, 2]);
        events.push(ANN, 6, 3);
        assert_eq!(kept(&events), [100, 3], "two of the owner with most");
        events.push(BOB, 11, 101);
        assert_eq!(kept(&events), [101], "one is kept whatever its size");
        assert_eq!(events.left_out(Viewer::User(1)), 0, "nothing of this owner is in the list");
    }
}

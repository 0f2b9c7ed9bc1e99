//! Decisions of the simulated program's threads: only calls that a program without mistakes may
//! make.

use super::{Deed, Focus, GRANULE, Hold, HoldState, RunningCall, SimulatedWorld, Space, ThingKind};
use crate::ledger::totals::AllocationKind;

/// Number of choices.
const CHOICES: u8 = 40;

impl Focus {
    /// Returns the choice of a program with this focus from one random byte.
    fn choice(self, choice: u8) -> u8 {
        let among: &[u8] = match self {
            Self::Everything => return choice % CHOICES,
            Self::Pools => &[3, 4, 3, 4, 14, 15, 16, 22, 27, 31, 33, 34, 35, 35],
            Self::Graphs => &[36, 37, 38, 39, 36, 37, 38, 39, 0, 4, 14, 31],
            Self::Multicast => &[8, 8, 28, 28, 29, 29, 30, 30, 30, 10, 13, 18, 19, 20],
            Self::Contexts => &[0, 2, 3, 5, 6, 14, 15, 22, 22, 23, 23, 23, 31, 32],
        };
        among[usize::from(choice) % among.len()]
    }
}

impl SimulatedWorld {
    /// Decides what an idle thread does.
    pub(super) fn enter(&mut self, thread: usize, choice: u8, pick: usize, bytes: u64) {
        let stateful = self.habits.stateful;
        let choice = self.habits.focus.choice(choice);
        let deed = match choice {
            0..=9 => self.decide_to_make(thread, choice, pick),
            10..=12 => self.idle(&[Space::Handle], pick).map(|source| {
                let place = u64::try_from(pick % 4).expect("small");
                Deed::Map { source, address: 0x10_0000 + place * GRANULE, length: (1 + bytes % 2) * GRANULE }
            }),
            13 => self.idle(&[Space::Range], pick).map(|source| Deed::Retain { source }),
            14..=17 => {
                let spaces = [Space::Address, Space::Array, Space::Registered, Space::Reservation, Space::Library];
                self.idle(&spaces, pick).map(|hold| Deed::End(vec![hold]))
            }
            18 | 19 => self.idle(&[Space::Handle], pick).map(|hold| Deed::End(vec![hold])),
            20 | 21 => self.idle(&[Space::Range], pick).map(|first| Deed::End(self.neighbours(first, 1 + pick % 3))),
            22 => return self.select_context(thread, pick),
            23 => return self.tear_down(thread, pick),
            24 => self.decide_to_see_others_memory(pick),
            25 => self.idle(&[Space::Ipc], pick).map(|hold| Deed::End(vec![hold])),
            26 => Some(Deed::Make(if pick.is_multiple_of(2) { ThingKind::Reservation } else { ThingKind::Library }, 0)),
            _ if !stateful => None,
            27 => self.import_pointer(pick),
            28 if pick.is_multiple_of(2) => Some(Deed::Make(ThingKind::Multicast, 0)),
            28 | 29 => self.decide_to_bind(pick),
            30 => self.decide_to_unbind(pick),
            31 => return self.change_streams(thread, pick),
            32 => return self.create_green(thread, pick),
            33..=35 => return self.change_pools(thread, pick, bytes),
            _ => return self.change_graphs(thread, pick, bytes),
        };
        let Some(deed) = deed else { return };
        for hold in deed.needs() {
            self.holds[hold].state = HoldState::InUse;
        }
        for hold in deed.ends() {
            self.holds[hold].state = HoldState::Ending;
        }
        self.threads[thread].running = Some(RunningCall { deed, entered_ns: self.now_ns, bytes, effect: None });
    }

    fn decide_to_make(&self, thread: usize, choice: u8, pick: usize) -> Option<Deed> {
        let what = match choice {
            0 | 1 => ThingKind::Own(AllocationKind::Device),
            2 => ThingKind::Own(AllocationKind::Managed),
            3 | 4 => return self.allocate_stream_ordered(thread, pick),
            5 => ThingKind::Own(AllocationKind::PinnedHost),
            6 => ThingKind::Own(AllocationKind::Array),
            7 => ThingKind::Own(AllocationKind::Registered),
            8 => ThingKind::Own(AllocationKind::Physical),
            _ if pick.is_multiple_of(3) => ThingKind::ImportedHandle,
            _ => ThingKind::Own(AllocationKind::HostPhysical),
        };
        Some(Deed::Make(what, u32::from(pick % 2 == 1)))
    }

    fn decide_to_see_others_memory(&self, pick: usize) -> Option<Deed> {
        let open = self.idle(&[Space::Ipc], pick / 3);
        match (pick % 3, open) {
            _ if self.habits.teardown => None,
            (0, Some(source)) => Some(Deed::Reopen { source }),
            (1, _) => Some(Deed::Make(ThingKind::ExternalBuffer, 0)),
            _ => Some(Deed::Make(ThingKind::OpenedByIpc, 0)),
        }
    }

    /// Returns a handle of a multicast object that no running call uses.
    fn multicast_object(&self, pick: usize, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let is_object = |hold: &&usize| {
            let thing = self.holds[**hold].thing;
            self.things[thing].what == ThingKind::Multicast && is_it(thing)
        };
        let handles = self.all_idle(&[Space::Handle]);
        let objects: Vec<usize> = handles.iter().filter(is_object).copied().collect();
        objects.get(pick % objects.len().max(1)).copied()
    }

    fn decide_to_bind(&self, pick: usize) -> Option<Deed> {
        let mut sources = self.all_idle(&[Space::Handle]);
        sources.retain(|hold| self.things[self.holds[*hold].thing].kind == Some(AllocationKind::Physical));
        let source = sources.get(pick / 4 % sources.len().max(1)).copied()?;
        let object = self.multicast_object(pick, |_| true)?;
        let offset = u64::try_from(pick % 2).expect("small") * GRANULE;
        Some(Deed::Bind { source, object, offset, named: (pick / 2).is_multiple_of(2) })
    }

    fn decide_to_unbind(&self, pick: usize) -> Option<Deed> {
        let bound = self.idle(&[Space::Bound], pick)?;
        let object = self.multicast_object(pick, |thing| self.holds[bound].object == Some(thing))?;
        Some(Deed::Unbind { bound, object })
    }

    fn all_idle(&self, spaces: &[Space]) -> Vec<usize> {
        let wanted =
            |index: &usize| self.holds[*index].state == HoldState::Idle && spaces.contains(&self.holds[*index].space);
        (0..self.holds.len()).filter(wanted).collect()
    }

    /// Returns a reference in one of these spaces that no running call uses.
    fn idle(&self, spaces: &[Space], pick: usize) -> Option<usize> {
        let found = self.all_idle(spaces);
        found.get(pick % found.len().max(1)).copied()
    }

    /// Returns a mapping and the ones that follow it without a gap, `count` at most.
    fn neighbours(&self, first: usize, count: usize) -> Vec<usize> {
        let mut run = vec![first];
        while run.len() < count {
            let end = run.last().map_or(0, |last| self.holds[*last].key + self.holds[*last].length);
            let next = |hold: &Hold| hold.space == Space::Range && hold.key == end && hold.state == HoldState::Idle;
            let Some(next) = self.holds.iter().position(next) else { break };
            run.push(next);
        }
        run
    }
}

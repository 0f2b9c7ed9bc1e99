//! What the threads of the simulated program decide to do: only what a program without mistakes may.

use super::{Context, Deed, GRANULE, Hold, Running, Space, State, World};
use crate::ledger::totals::Kind;
use crate::test_calls::*;

impl World {
    /// Decides what an idle thread does.
    pub(super) fn enter(&mut self, thread: usize, choice: u8, pick: usize, bytes: u64) {
        let device = u32::from(pick % 2 == 1);
        let deed = match choice % 24 {
            0 | 1 => Some(Deed::Make(Some(Kind::Device), device)),
            2 => Some(Deed::Make(Some(Kind::Managed), device)),
            3 | 4 => Some(Deed::Make(Some(Kind::Pool), device)),
            5 => Some(Deed::Make(Some(Kind::PinnedHost), device)),
            6 => Some(Deed::Make(Some(Kind::Array), device)),
            7 => Some(Deed::Make(Some(Kind::Registered), device)),
            8 => Some(Deed::Make(Some(Kind::Physical), device)),
            9 => Some(Deed::Make(if pick.is_multiple_of(3) { None } else { Some(Kind::HostPhysical) }, device)),
            10..=12 => self.idle(&[Space::Handle], pick).map(|source| {
                let place = u64::try_from(pick % 4).expect("small");
                Deed::Map { source, address: 0x10_0000 + place * GRANULE, length: (1 + bytes % 2) * GRANULE }
            }),
            13 => self.idle(&[Space::Range], pick).map(|source| Deed::Retain { source }),
            14..=17 => {
                self.idle(&[Space::Address, Space::Array, Space::Registered], pick).map(|hold| Deed::End(vec![hold]))
            }
            18 | 19 => self.idle(&[Space::Handle], pick).map(|hold| Deed::End(vec![hold])),
            20 | 21 => self.idle(&[Space::Range], pick).map(|first| Deed::End(self.neighbours(first, 1 + pick % 3))),
            22 => return self.select_context(thread, pick),
            _ => return self.tear_down(thread, pick),
        };
        let Some(deed) = deed else { return };
        match &deed {
            Deed::Make(..) => {}
            Deed::Map { source, .. } | Deed::Retain { source } => self.holds[*source].state = State::InUse,
            Deed::End(holds) => holds.iter().for_each(|hold| self.holds[*hold].state = State::Ending),
        }
        self.threads[thread].running = Some(Running { deed, entered_ns: self.now_ns, bytes, effect: None });
    }

    /// One of the holds in these spaces that no call is at work on.
    fn idle(&self, spaces: &[Space], pick: usize) -> Option<usize> {
        let wanted =
            |index: &usize| self.holds[*index].state == State::Idle && spaces.contains(&self.holds[*index].space);
        let found: Vec<usize> = (0..self.holds.len()).filter(wanted).collect();
        found.get(pick % found.len().max(1)).copied()
    }

    /// A mapping and those that follow it without a gap, `count` at most.
    fn neighbours(&self, first: usize, count: usize) -> Vec<usize> {
        let mut run = vec![first];
        while run.len() < count {
            let end = run.last().map_or(0, |last| self.holds[*last].key + self.holds[*last].length);
            let next = |hold: &Hold| hold.space == Space::Range && hold.key == end && hold.state == State::Idle;
            let Some(next) = self.holds.iter().position(next) else { break };
            run.push(next);
        }
        run
    }

    fn select_context(&mut self, thread: usize, pick: usize) {
        let alive: Vec<u64> =
            self.contexts.iter().filter(|context| context.alive).map(|context| context.handle).collect();
        let Some(&context) = alive.get(pick / 4 % alive.len().max(1)) else { return };
        let stack = &mut self.threads[thread].stack;
        let call = match pick % 4 {
            0 => {
                stack.pop();
                stack.push(context);
                ctx_set_current(context)
            }
            1 if !stack.is_empty() => {
                stack.pop();
                ctx_set_current(0)
            }
            2 if stack.pop().is_some() => ctx_pop(context),
            _ => {
                stack.push(context);
                ctx_push(context)
            }
        };
        self.instant(thread, call);
    }

    fn tear_down(&mut self, thread: usize, pick: usize) {
        if !self.habits.teardown || self.threads.iter().any(|thread| thread.running.is_some()) {
            return;
        }
        let primary = pick / 8 % 2;
        let device = u32::from(primary == 1);
        match pick % 5 {
            0 => {
                let handle = 0xd0 + u64::try_from(self.contexts.len()).expect("few contexts");
                self.contexts.push(Context { handle, device, alive: true });
                self.threads[thread].stack.push(handle);
                self.instant(thread, ctx_create(handle, device));
            }
            1 => {
                let made = self.contexts.iter_mut().skip(2).find(|context| context.alive);
                let Some(context) = made else { return };
                context.alive = false;
                let handle = context.handle;
                self.empty(handle);
                self.threads[thread].stack.pop_if(|top| *top == handle);
                self.instant(thread, ctx_destroy(handle));
            }
            2 => {
                self.primary_references[primary] += 1;
                self.contexts[primary].alive = true;
                self.instant(thread, primary_ctx_retain(self.contexts[primary].handle, device));
            }
            3 => {
                self.empty(self.contexts[primary].handle);
                self.instant(thread, primary_ctx_reset(device));
            }
            _ if self.primary_references[primary] > 0 => {
                self.primary_references[primary] -= 1;
                if self.primary_references[primary] == 0 {
                    self.contexts[primary].alive = false;
                    self.empty(self.contexts[primary].handle);
                }
                self.instant(thread, primary_ctx_release(device));
            }
            _ => {}
        }
    }
}

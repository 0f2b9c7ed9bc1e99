//! Contexts of the simulated program: which one is current, and what is freed with a context.

use super::{Context, DEVICES, HoldState, SimulatedWorld};
use crate::ledger::totals::AllocationKind;
use crate::test_calls::*;

/// Maximum number of green contexts at a time.
const GREENS: usize = 2;

impl SimulatedWorld {
    /// Returns the context in which the thread allocates, if it still exists.
    pub(super) fn current_context(&self, thread: usize) -> Option<&Context> {
        let current = self.threads[thread].stack.last();
        self.contexts.iter().find(|context| Some(&context.handle) == current && context.alive)
    }

    /// Frees everything that lives in a context.
    fn empty(&mut self, context: u64) {
        for hold in &mut self.holds {
            let thing = &self.things[hold.thing];
            let dies = matches!(
                thing.kind,
                Some(
                    AllocationKind::Device
                        | AllocationKind::Managed
                        | AllocationKind::PinnedHost
                        | AllocationKind::Array
                )
            ) && thing.pool.is_none();
            if dies && thing.context == Some(context) && hold.state.is_held() {
                (hold.in_driver, hold.state) = (false, HoldState::Ended);
                self.history.torn_down += 1;
            }
        }
        for stream in self.streams.iter_mut().filter(|stream| stream.context == context) {
            stream.alive = false;
        }
    }

    pub(super) fn select_context(&mut self, thread: usize, pick: usize) {
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

    fn next_context(&self) -> u64 {
        0xd0 + 2 * u64::try_from(self.contexts.len()).expect("few contexts")
    }

    /// Creates a green context and the context that represents it. It takes a reference on the
    /// primary context.
    pub(super) fn create_green(&mut self, thread: usize, pick: usize) {
        let primary = pick % DEVICES as usize;
        if self.contexts.iter().filter(|context| context.alive && context.green.is_some()).count() == GREENS {
            return;
        }
        let (owner, device) = (self.contexts[primary].handle, self.contexts[primary].device);
        let handle = self.next_context();
        let green = handle + 1;
        self.primary_references[primary] += 1;
        self.contexts[primary].alive = true;
        self.contexts.push(Context { handle, device, alive: true, owner, green: Some(green) });
        self.instant(thread, green_ctx_create(green, device));
        self.instant(thread, ctx_from_green_ctx(handle, green));
    }

    pub(super) fn tear_down(&mut self, thread: usize, pick: usize) {
        if !self.habits.teardown || !self.is_quiet() || !self.captures.is_empty() {
            return;
        }
        let primary = pick / 8 % 2;
        let device = u32::from(primary == 1);
        match pick % 6 {
            0 => {
                let handle = self.next_context();
                self.contexts.push(Context { handle, device, alive: true, owner: handle, green: None });
                self.threads[thread].stack.push(handle);
                self.instant(thread, ctx_create(handle, device));
            }
            1 => {
                let made = self.contexts.iter_mut().skip(2).find(|context| context.alive && context.green.is_none());
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
            4 => self.destroy_green(thread, pick),
            _ if self.primary_references[primary] > self.living_greens(device) => {
                self.drop_reference(primary);
                self.instant(thread, primary_ctx_release(device));
            }
            _ => {}
        }
    }

    fn living_greens(&self, device: u32) -> u32 {
        let greens = self.contexts.iter().filter(|context| context.alive && context.green.is_some());
        u32::try_from(greens.filter(|context| context.device == device).count()).expect("few contexts")
    }

    fn drop_reference(&mut self, primary: usize) {
        self.primary_references[primary] -= 1;
        if self.primary_references[primary] == 0 {
            self.contexts[primary].alive = false;
            self.empty(self.contexts[primary].handle);
        }
    }

    fn destroy_green(&mut self, thread: usize, pick: usize) {
        let greens = (0..self.contexts.len()).filter(|index| self.contexts[*index].alive);
        let greens: Vec<(usize, u64)> = greens.filter_map(|index| Some((index, self.contexts[index].green?))).collect();
        let Some(&(index, green)) = greens.get(pick % greens.len().max(1)) else { return };
        self.contexts[index].alive = false;
        for stream in self.streams.iter_mut().filter(|stream| stream.made_in == self.contexts[index].handle) {
            stream.alive = false;
        }
        self.drop_reference(usize::try_from(self.contexts[index].device).expect("a device"));
        self.instant(thread, green_ctx_destroy(green));
    }
}

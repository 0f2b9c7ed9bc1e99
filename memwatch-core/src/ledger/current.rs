//! Current context of each thread, also while the calls that change it are not traced.
//!
//! A process with one context needs none of those calls: every thread allocates in that context. As
//! long as this holds, programs that change contexts constantly run without those probes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::words::{ContextHandle, Tid};

/// Whether the calls that change a thread's context are traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum ContextTracing {
    /// Traced since the attach.
    #[default]
    Always,
    /// Not traced at the moment.
    No,
    /// Traced again after an interruption: earlier contexts of threads are unknown.
    Again,
}

/// The current contexts of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Current {
    threads: BTreeMap<Tid, Vec<ContextHandle>>,
    /// Contexts that calls have named and that were not seen destroyed.
    named: BTreeSet<ContextHandle>,
    changes: u64,
    seen: ContextTracing,
}

impl Current {
    /// Returns the thread's current context, if known. `complete` means that no call that could
    /// have created another context was missed.
    pub(super) fn of(&self, tid: Tid, complete: bool) -> Option<ContextHandle> {
        let own = || self.threads.get(&tid)?.last().copied();
        let only = || self.only().filter(|_| complete || self.seen != ContextTracing::Always);
        if self.seen == ContextTracing::No { only() } else { own().or_else(only) }
    }

    fn only(&self) -> Option<ContextHandle> {
        self.named.first().copied().filter(|_| self.named.len() == 1)
    }

    /// Number of named contexts and of entries on threads' stacks.
    pub(super) fn listed(&self) -> usize {
        self.named.len() + self.threads.values().map(Vec::len).sum::<usize>()
    }

    /// Returns whether the process has several contexts, as far as calls have named them.
    pub(super) fn are_several(&self) -> bool {
        self.named.len() > 1
    }

    /// Number of observed changes of a thread's context.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns whether changes are traced at the moment.
    pub(super) fn are_seen(&self) -> bool {
        self.seen != ContextTracing::No
    }

    /// Sets whether changes are traced from now on.
    pub(super) fn see(&mut self, seen: bool) {
        if seen != self.are_seen() {
            self.threads.clear();
            self.seen = if seen { ContextTracing::Again } else { ContextTracing::No };
        }
    }

    /// Adds a context that a call has named.
    pub(super) fn name(&mut self, context: ContextHandle) {
        self.named.insert(context);
    }

    /// Removes a destroyed context.
    pub(super) fn forget(&mut self, context: ContextHandle) {
        self.named.remove(&context);
    }

    /// Removes a destroyed context. On the thread that destroys it, another context becomes
    /// current; other threads keep the handle (cuda.h, `cuCtxDestroy`).
    pub(super) fn destroy(&mut self, tid: Tid, context: ContextHandle) {
        self.forget(context);
        if let Some(stack) = self.threads.get_mut(&tid)
            && stack.last() == Some(&context)
        {
            stack.pop();
        }
    }

    /// Pushes a new context on the thread's stack.
    pub(super) fn create(&mut self, tid: Tid, context: ContextHandle) {
        self.name(context);
        self.threads.entry(tid).or_default().push(context);
    }

    /// Replaces the top of the thread's stack, or pops it.
    pub(super) fn set(&mut self, tid: Tid, context: Option<ContextHandle>) {
        self.changes += 1;
        self.named.extend(context);
        let stack = self.threads.entry(tid).or_default();
        stack.pop();
        stack.extend(context);
    }

    /// Pushes a context on the thread's stack.
    pub(super) fn push(&mut self, tid: Tid, context: ContextHandle) {
        self.changes += 1;
        self.create(tid, context);
    }

    /// Pops the thread's stack.
    pub(super) fn pop(&mut self, tid: Tid) {
        self.changes += 1;
        if let Some(stack) = self.threads.get_mut(&tid) {
            stack.pop();
        }
    }

    /// Forgets an exited thread; its thread id may be reused.
    pub(super) fn forget_thread(&mut self, tid: Tid) {
        self.threads.remove(&tid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: Tid = Tid(1);
    const OTHER: Tid = Tid(2);
    const FIRST: ContextHandle = ContextHandle(0xc1);
    const SECOND: ContextHandle = ContextHandle(0xc2);

    #[test]
    fn every_thread_is_in_the_only_context_while_changes_are_not_seen() {
        let mut current = Current::default();
        current.set(MAIN, Some(FIRST));
        assert_eq!((current.of(MAIN, false), current.of(OTHER, false)), (Some(FIRST), None), "others may exist");
        current.see(false);
        assert_eq!((current.of(MAIN, false), current.of(OTHER, false)), (Some(FIRST), Some(FIRST)));
        current.see(true);
        assert_eq!((current.of(MAIN, false), current.of(OTHER, false)), (Some(FIRST), Some(FIRST)));
    }

    #[test]
    fn context_is_unknown_after_a_second_one_until_a_switch_is_seen() {
        let mut current = Current::default();
        current.set(MAIN, Some(FIRST));
        current.see(false);
        current.create(OTHER, SECOND);
        assert!(current.are_several());
        assert_eq!((current.of(MAIN, true), current.of(OTHER, true)), (None, None), "either may have changed it since");
        current.see(true);
        assert_eq!((current.of(MAIN, true), current.of(OTHER, true)), (None, None));
        current.set(OTHER, Some(FIRST));
        assert_eq!((current.of(MAIN, true), current.of(OTHER, true)), (None, Some(FIRST)));
    }

    #[test]
    fn context_stack_is_forgotten_after_a_blind_interval() {
        let mut current = Current::default();
        current.create(MAIN, FIRST);
        current.see(false);
        current.see(true);
        current.push(MAIN, SECOND);
        assert_eq!(current.of(MAIN, true), Some(SECOND));
        current.pop(MAIN);
        assert_eq!(current.of(MAIN, true), None, "the first one, unless it was popped meanwhile");
    }

    #[test]
    fn a_context_that_is_gone_leaves_the_other_one_the_only_one() {
        let mut current = Current::default();
        current.see(false);
        current.create(MAIN, FIRST);
        current.create(MAIN, SECOND);
        current.destroy(OTHER, SECOND);
        assert_eq!((current.are_several(), current.of(OTHER, true)), (false, Some(FIRST)));
    }
}

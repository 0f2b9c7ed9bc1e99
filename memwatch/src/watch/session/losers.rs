//! Resynchronizes processes after lost records from the kernel half's allocation map.

use memwatch_core::input::Input;

use super::Session;

impl Session {
    /// Resynchronizes the processes with a single pass over the map. A process that makes a call
    /// during the pass is left for later.
    pub(super) fn anchor_losers(&mut self) {
        let losers = self.sink.state().to_anchor();
        let before: Vec<_> =
            losers.into_iter().filter_map(|tgid| Some((tgid.0, self.allocation_map.sums(tgid.0)?))).collect();
        if before.is_empty() {
            return;
        }
        // Records made before the pass are in the ring, and this fetch empties it.
        self.pump();
        self.clean_allocation_map();
        for held in self.allocation_map.held_since(&before) {
            self.sink.step(Input::Held(held));
        }
    }

    /// Removes allocations from the kernel half's map that were freed without a free call of their
    /// own.
    pub(super) fn clean_allocation_map(&mut self) {
        for unnamed in self.sink.state_mut().take_unnamed() {
            let tgid = unnamed.tgid.0;
            match unnamed.life.or_else(|| self.allocation_map.sums(tgid).map(|sums| sums.life)) {
                Some(life) => self.allocation_map.remove((tgid, life), &unnamed),
                None if unnamed.addresses.is_empty() => {}
                None => self.allocation_map.want_sweep(tgid),
            }
            if unnamed.incomplete {
                self.allocation_map.want_sweep(tgid);
            }
        }
        self.allocation_map.sweep();
    }
}

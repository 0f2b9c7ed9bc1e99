//! Processes whose records were lost: the kernel half's own allocation map says what they hold.

use memwatch_core::input::Input;

use super::Session;

impl Session {
    /// They are taken back to what that says, at a moment between two of their calls: all of them by one look, however many there are.
    pub(super) fn anchor_losers(&mut self) {
        let losers = self.pipeline.to_anchor();
        let before: Vec<_> =
            losers.into_iter().filter_map(|tgid| Some((tgid.0, self.allocation_map.sums(tgid.0)?))).collect();
        if before.is_empty() {
            return;
        }
        // What had been recorded by then is in the ring, and a ringful is what this fetches.
        self.pump();
        self.clean_allocation_map();
        for held in self.allocation_map.held_since(&before) {
            self.pipeline.step(Input::Held(held));
        }
    }

    /// What went without a free of its own stands in the kernel half's allocation map still.
    pub(super) fn clean_allocation_map(&mut self) {
        for unnamed in self.pipeline.take_unnamed() {
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

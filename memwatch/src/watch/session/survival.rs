//! Restart handover: the kernel half keeps recording after the memwatch process ends, and the next
//! memwatch resumes with the same numbers.
//!
//! The journal holds the state, and the ring holds all records made since. Calls into a library
//! that was first mapped while no memwatch ran are missed, since no probe was attached to it; the
//! processes of such a library are treated as in a late attach.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use memwatch_common::loss::Loss;
use memwatch_core::Pipeline;
use memwatch_core::input::Input;

use super::{Session, SessionOptions};
use crate::exit::ExitFailure;
use crate::sources::clock;
use crate::sources::kernel::load::{chain, kernel_half};
use crate::sources::kernel::pins::{PinPlace, PinnedObjects};
use crate::sources::library::KnownHandles;
use crate::watch::journal::{self, Aside, Journal, JournalHead, NoJournal, RestoredJournal};

/// Where a session keeps the state that outlives its process.
#[derive(Clone, Debug)]
pub(crate) struct SurvivalPlace {
    /// Pinned objects of the kernel half.
    pub(crate) pins: Arc<PinPlace>,
    /// Journal of the state.
    pub(crate) journal: PathBuf,
}

/// Everything that a session starts from.
#[derive(Default)]
pub(crate) struct SessionStart {
    pub(crate) pins: Option<PinnedObjects>,
    pub(crate) kept: Option<RestoredJournal>,
    pub(crate) survival: Option<Survival>,
}

/// Restart handover of a running session.
#[derive(Debug)]
pub(crate) struct Survival {
    place: SurvivalPlace,
    boot: String,
    kernel_half: String,
    origin: SessionOrigin,
}

/// What a session resumes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionOrigin {
    /// A new session.
    New,
    /// A previous session, with its kernel half.
    Same,
    /// A previous session, with a new kernel half.
    Other,
}

/// Checks whether a previous session can be resumed.
pub(crate) fn start(options: &SessionOptions) -> Result<SessionStart, ExitFailure> {
    let Some(place) = options.survival.clone() else { return Ok(SessionStart::default()) };
    let boot =
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read the machine's boot id")?;
    let (boot, kernel_half) = (boot.trim().to_owned(), kernel_half(options.ring_bytes));
    let mut earlier = None;
    let kept = journal::read(&place.journal, |head| {
        earlier = place.pins.half_of(head.ring).filter(|_| head.boot == boot);
        earlier.is_some()
    });
    let kept = match kept {
        Ok(kept) => Some(kept),
        Err(NoJournal::Absent) => None,
        Err(error) => {
            let why = chain(&error);
            eprintln!(
                "memwatch: cannot resume the previous session in {}: {why}; starting a new one",
                place.journal.display()
            );
            None
        }
    };
    let earlier = earlier.filter(|_| kept.is_some());
    let origin = match &earlier {
        None => SessionOrigin::New,
        Some(half) if *half == kernel_half => SessionOrigin::Same,
        Some(_) => SessionOrigin::Other,
    };
    let pins = PinnedObjects::open(&place.pins, &kernel_half, earlier.as_deref())
        .context("the kernel half cannot be pinned")?;
    Ok(SessionStart { pins: Some(pins), kept, survival: Some(Survival { place, boot, kernel_half, origin }) })
}

/// Returns handles to open the files that the previous memwatch had probed.
pub(super) fn handles(pins: Option<&PinnedObjects>) -> KnownHandles {
    KnownHandles::of(pins.map(PinnedObjects::probed_handles).unwrap_or_default())
}

/// Returns the restored pipeline, or an empty one.
pub(crate) fn pipeline(kept: &mut Option<RestoredJournal>, keeps_ended: bool) -> Pipeline {
    kept.as_mut().map_or_else(
        || Pipeline::new(keeps_ended),
        |kept| std::mem::replace(&mut kept.pipeline, Pipeline::new(keeps_ended)),
    )
}

impl Session {
    /// Whether a previous session was resumed.
    pub(crate) fn goes_on(&self) -> bool {
        self.survival.as_ref().is_some_and(|survival| survival.origin != SessionOrigin::New)
    }

    /// Whether the session can be resumed after this process ends.
    pub(crate) const fn survives(&self) -> bool {
        self.survival.is_some()
    }

    /// Whether the session switches to a new kernel half.
    fn takes_over(&self) -> bool {
        self.survival.as_ref().is_some_and(|survival| survival.origin == SessionOrigin::Other)
    }

    /// Marks the resumed processes in a new kernel half before its probes are in place, since it
    /// has missed their earlier calls.
    pub(super) fn prepare_take_over(&mut self) {
        self.remember_changes();
        if self.takes_over() {
            self.allocation_map.expect_more(self.sink.state().watched().map(|tgid| tgid.0));
        }
    }

    /// Takes over the pinned objects. Must be called when all probes are in place. Once this has
    /// succeeded, the session can be resumed after this process ends.
    pub(super) fn go_on(&mut self, kept: Option<&RestoredJournal>) -> Result<(), ExitFailure> {
        let Some(survival) = &self.survival else { return Ok(()) };
        let (place, boot, takes_over) = (survival.place.clone(), survival.boot.clone(), self.takes_over());
        let ring =
            place.pins.ring_number(&survival.kernel_half).context("the kernel half that was just pinned is gone")?;
        match kept {
            Some(kept) if self.takes_over() => self.take_over(kept)?,
            Some(kept) => self.restore(kept),
            None => {}
        }
        self.ring.keep_until_taken();
        let (head, now) = (JournalHead { boot, ring }, (self.ring.position(), self.aside()));
        let journal = Journal::begin(&place.journal, head, self.sink.pipeline(), now);
        self.sink.journal = Some(journal.with_context(|| format!("{} cannot be written", place.journal.display()))?);
        if kept.is_none() {
            return Ok(());
        }
        let late = self
            .libraries
            .users_without_probes(|file| self.kernel.pins.as_ref().is_some_and(|pins| pins.was_probed(file)));
        self.learn_latecomers(late);
        self.pump();
        self.meet_kept();
        // The restored state must be in place before: it determines which single processes need
        // probes.
        self.discover();
        let pins = self.kernel.pins.as_mut();
        let dropped = pins.map_or(Ok(()), |pins| if takes_over { pins.remove_earlier() } else { pins.drop_earlier() });
        dropped.context("cannot remove the probes of the previous agent")?;
        Ok(())
    }

    /// Restores how far the previous memwatch has read the ring and the kernel half's tables.
    fn restore(&mut self, kept: &RestoredJournal) {
        self.losses.restore(&kept.aside.losses);
        self.allocation_map.restore(&kept.aside.removed);
        let mut lose = |loss| self.sink.step(Input::Lost { tgid: None, loss, count: 1 });
        if !self.ring.go_on_from(kept.position) {
            lose(Loss::RingFull);
        }
        if kept.aside.takes_waiting {
            lose(Loss::RmRecordLost);
        }
    }

    /// Checks the restored processes: some may have exited, and their numbers may be reused.
    fn meet_kept(&mut self) {
        let now_ns = clock::boottime_ns();
        self.presence.distrust(now_ns);
        let known: BTreeSet<u32> = self.sink.state().watched().map(|tgid| tgid.0).collect();
        for tgid in known {
            // A process without a call gets no exit record, so `/proc` must be checked.
            if !self.kernel.knows(tgid) {
                self.presence.unreported(tgid);
            }
            if let Some(facts) = self.processes.facts(tgid, false).filter(|_| !self.processes.is_over(tgid)) {
                self.sink.step(Input::Process(facts));
            }
        }
    }

    fn aside(&self) -> Aside {
        let (losses, removed) = (self.losses.reported(), self.allocation_map.removed());
        Aside { losses, removed, takes_waiting: false }
    }

    /// Writes to the journal which table entries of the kernel half were consumed, together with
    /// the inputs made from them.
    pub(super) fn note_aside(&mut self) {
        if self.sink.journal.is_some() {
            let aside = self.aside();
            if let Some(journal) = &mut self.sink.journal {
                journal.note_aside(aside);
            }
        }
    }

    /// Writes the journal. If that fails, removes everything kept for the next memwatch, since it
    /// would be wrong.
    pub(super) fn tend_survival(&mut self) {
        self.note_aside();
        self.sink.tend_journal();
        let failed = self.sink.journal.take_if(|journal| journal.failure().is_some());
        if let Some(error) = failed.as_ref().and_then(Journal::failure) {
            eprintln!("memwatch: the next agent will not resume this session: cannot write the journal: {error}");
            if let Err(error) = self.remove_survival() {
                eprintln!(
                    "memwatch: cannot remove the pinned BPF objects of this session: {error}; to remove them later: memwatch agent --uninstall"
                );
            }
        }
    }

    /// Ends the session: leaves it to the next memwatch, or removes everything.
    ///
    /// # Errors
    /// The session could not be left to the next memwatch, or not everything was removed.
    pub(crate) fn end_survival(&mut self, is_kept: bool) -> io::Result<()> {
        self.tick();
        let Some(survival) = self.survival.take() else { return Ok(()) };
        match self.sink.journal.take() {
            Some(journal) if is_kept => journal.end(self.sink.pipeline()),
            _ => {
                self.survival = Some(survival);
                self.remove_survival()
            }
        }
    }

    fn remove_survival(&mut self) -> io::Result<()> {
        let Some(survival) = self.survival.take() else { return Ok(()) };
        self.sink.journal = None;
        let removed = self.kernel.pins.take().map_or(Ok(()), |pins| pins.remove());
        removed.and(Journal::remove(&survival.place.journal))
    }
}

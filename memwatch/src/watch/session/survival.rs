//! A watch that outlives its process: the kernel half goes on, and whoever begins next goes on with the same numbers.
//!
//! What was known is in the journal, what has come since in the ring. What is not known is what calls a library has made that was mapped first while
//! nobody was there to probe it: its processes are known from then on, as in every watch that comes late.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use memwatch_common::loss::Loss;
use memwatch_core::Pipeline;
use memwatch_core::input::Input;

use super::{Session, SessionOptions};
use crate::exit::Failure;
use crate::sources::clock;
use crate::sources::kernel::load::{chain, kernel_half};
use crate::sources::kernel::pins::{PinPlace, Pins};
use crate::sources::library::KnownHandles;
use crate::watch::journal::{self, Aside, Head, Journal, Kept, NoJournal};

/// Where a watch outlives its process.
#[derive(Clone, Debug)]
pub(crate) struct SurvivalPlace {
    /// Of the kernel half.
    pub(crate) pins: Arc<PinPlace>,
    /// Of what was known.
    pub(crate) journal: PathBuf,
}

/// How a watch begins.
#[derive(Default)]
pub(crate) struct Start {
    pub(crate) pins: Option<Pins>,
    pub(crate) kept: Option<Kept>,
    pub(crate) survival: Option<Survival>,
}

/// A watch that outlives its process.
#[derive(Debug)]
pub(crate) struct Survival {
    place: SurvivalPlace,
    boot: String,
    kernel_half: String,
    origin: Origin,
}

/// What a watch begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Nothing.
    New,
    /// The watch of a process before, whose kernel half it goes on with.
    Same,
    /// The same, with another kernel half.
    Other,
}

/// Looks whether a watch before this one can be gone on with.
pub(crate) fn start(options: &SessionOptions) -> Result<Start, Failure> {
    let Some(place) = options.survival.clone() else { return Ok(Start::default()) };
    let boot =
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("the boot of this machine has no id")?;
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
                "memwatch: this is a new watch, since what {} has cannot be gone on with: {why}",
                place.journal.display()
            );
            None
        }
    };
    let earlier = earlier.filter(|_| kept.is_some());
    let origin = match &earlier {
        None => Origin::New,
        Some(half) if *half == kernel_half => Origin::Same,
        Some(_) => Origin::Other,
    };
    let pins = Pins::open(&place.pins, &kernel_half, earlier.as_deref()).context("the kernel half cannot be pinned")?;
    Ok(Start { pins: Some(pins), kept, survival: Some(Survival { place, boot, kernel_half, origin }) })
}

/// What opens the files that the process before had probed.
pub(super) fn handles(pins: Option<&Pins>) -> KnownHandles {
    KnownHandles::of(pins.map(Pins::probed_handles).unwrap_or_default())
}

/// What was known, or nothing yet.
pub(crate) fn pipeline(kept: &mut Option<Kept>, keeps_ended: bool) -> Pipeline {
    kept.as_mut().map_or_else(
        || Pipeline::new(keeps_ended),
        |kept| std::mem::replace(&mut kept.pipeline, Pipeline::new(keeps_ended)),
    )
}

impl Session {
    /// Whether this is the watch of a process before.
    pub(crate) fn goes_on(&self) -> bool {
        self.survival.as_ref().is_some_and(|survival| survival.origin != Origin::New)
    }

    /// Whether it goes on when this process does not.
    pub(crate) const fn survives(&self) -> bool {
        self.survival.is_some()
    }

    /// It goes on with another kernel half.
    fn takes_over(&self) -> bool {
        self.survival.as_ref().is_some_and(|survival| survival.origin == Origin::Other)
    }

    /// Before its probes are in place, a kernel half learns of which processes it will not know everything.
    pub(super) fn prepare_take_over(&mut self) {
        self.remember_changes();
        if self.takes_over() {
            self.allocation_map.expect_more(self.pipeline.watched().map(|tgid| tgid.0));
        }
    }

    /// All is probed: what the process before had is taken over, and from here on this one's watch outlives it.
    pub(super) fn go_on(&mut self, kept: Option<&Kept>) -> Result<(), Failure> {
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
        let (head, now) = (Head { boot, ring }, (self.ring.position(), self.aside()));
        let journal = Journal::begin(&place.journal, head, &self.pipeline, now);
        self.pipeline.journal =
            Some(journal.with_context(|| format!("{} cannot be written", place.journal.display()))?);
        if kept.is_none() {
            return Ok(());
        }
        let late = self
            .libraries
            .users_without_probes(|file| self.kernel.pins.as_ref().is_some_and(|pins| pins.was_probed(file)));
        self.learn_latecomers(late);
        self.pump();
        self.meet_kept();
        // What is probed in single processes is found by what is known of them.
        self.discover();
        let pins = self.kernel.pins.as_mut();
        let dropped = pins.map_or(Ok(()), |pins| if takes_over { pins.remove_earlier() } else { pins.drop_earlier() });
        dropped.context("the probes of the agent before cannot be taken out")?;
        Ok(())
    }

    /// The process before has read the kernel half so far.
    fn restore(&mut self, kept: &Kept) {
        self.losses.restore(&kept.aside.losses);
        self.allocation_map.restore(&kept.aside.removed);
        let mut lose = |loss| self.pipeline.step(Input::Lost { tgid: None, loss, count: 1 });
        if !self.ring.go_on_from(kept.position) {
            lose(Loss::RingFull);
        }
        if kept.aside.takes_waiting {
            lose(Loss::RmRecordLost);
        }
    }

    /// Processes that were known: they may have ended meanwhile, and their numbers may be others' now.
    fn meet_kept(&mut self) {
        let now_ns = clock::boottime_ns();
        self.presence.distrust(now_ns);
        let known: BTreeSet<u32> = self.pipeline.watched().map(|tgid| tgid.0).collect();
        for tgid in known {
            // Whoever made no call has no exit record, and is looked for.
            if !self.kernel.knows(tgid) {
                self.presence.unreported(tgid);
            }
            if let Some(facts) = self.processes.facts(tgid, false).filter(|_| !self.processes.is_over(tgid)) {
                self.pipeline.step(Input::Process(facts));
            }
        }
    }

    fn aside(&self) -> Aside {
        let (losses, removed) = (self.losses.reported(), self.allocation_map.removed());
        Aside { losses, removed, takes_waiting: false }
    }

    /// What the kernel half's tables have been read for goes into the journal with the inputs that came of it.
    pub(super) fn note_aside(&mut self) {
        if self.pipeline.journal.is_some() {
            let aside = self.aside();
            if let Some(journal) = &mut self.pipeline.journal {
                journal.note_aside(aside);
            }
        }
    }

    /// Where the journal cannot be written on, nothing is left for who comes next: it would not be true.
    pub(super) fn tend_survival(&mut self) {
        self.note_aside();
        self.pipeline.tend_journal();
        let failed = self.pipeline.journal.take_if(|journal| journal.failure().is_some());
        if let Some(error) = failed.as_ref().and_then(Journal::failure) {
            eprintln!(
                "memwatch: this watch does not outlive the agent any more: its journal cannot be written: {error}"
            );
            if let Err(error) = self.remove_survival() {
                eprintln!(
                    "memwatch: what is pinned of it cannot be taken out: {error}; later: memwatch agent --uninstall"
                );
            }
        }
    }

    /// The watch ends: it is left for who comes next, or nothing of it is.
    ///
    /// # Errors
    /// It could not be left, or something of it is still there.
    pub(crate) fn end_survival(&mut self, is_kept: bool) -> io::Result<()> {
        self.tick();
        let Some(survival) = self.survival.take() else { return Ok(()) };
        match self.pipeline.journal.take() {
            Some(journal) if is_kept => journal.end(&self.pipeline),
            _ => {
                self.survival = Some(survival);
                self.remove_survival()
            }
        }
    }

    fn remove_survival(&mut self) -> io::Result<()> {
        let Some(survival) = self.survival.take() else { return Ok(()) };
        self.pipeline.journal = None;
        let removed = self.kernel.pins.take().map_or(Ok(()), |pins| pins.remove());
        removed.and(Journal::remove(&survival.place.journal))
    }
}

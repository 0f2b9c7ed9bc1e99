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

use super::SessionOptions;
use super::collectors::Collectors;
use super::parts::SessionParts;
use super::take_over::take_over;
use crate::exit::ExitFailure;
use crate::sources::clock;
use crate::sources::kernel::load::{chain, kernel_half};
use crate::sources::kernel::pins::{PinPlace, PinnedObjects};
use crate::sources::library::KnownHandles;
use crate::watch::journal::{self, Journal, JournalHead, NoJournal, RestoredJournal};

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
    let boot = clock::boot_id().context("cannot read the machine's boot id")?;
    let kernel_half = kernel_half(options.ring_bytes);
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

impl Survival {
    /// Whether a previous session is resumed.
    pub(crate) fn resumes(&self) -> bool {
        self.origin != SessionOrigin::New
    }

    /// Whether the session switches to a new kernel half.
    fn takes_over(&self) -> bool {
        self.origin == SessionOrigin::Other
    }

    /// Marks the resumed processes in a new kernel half before its probes are in place, since it
    /// has missed their earlier calls.
    pub(super) fn prepare_take_over(&self, parts: &mut SessionParts) {
        if self.takes_over() {
            parts.allocation_map.expect_more(parts.sink.state().watched().map(|tgid| tgid.0));
        }
    }

    /// Takes over the pinned objects, and everything that a previous session left in `kept`. Must
    /// be called when all probes are in place. Once this has succeeded, the session can be resumed
    /// after this process ends.
    ///
    /// # Errors
    /// A pinned object or the journal cannot be used.
    pub(super) fn go_on(
        &self,
        parts: &mut SessionParts,
        collectors: &mut Collectors,
        kept: Option<&RestoredJournal>,
    ) -> Result<(), ExitFailure> {
        let ring = self.place.pins.ring_number(&self.kernel_half);
        let ring = ring.context("the kernel half that was just pinned is gone")?;
        match kept {
            Some(kept) if self.takes_over() => take_over(parts, kept)?,
            Some(kept) => restore(parts, kept),
            None => {}
        }
        parts.ring.keep_until_taken();
        let head = JournalHead { boot: self.boot.clone(), ring };
        let now = (parts.ring.position(), parts.aside());
        let journal = Journal::begin(&self.place.journal, head, parts.sink.pipeline(), now);
        parts.sink.journal =
            Some(journal.with_context(|| format!("{} cannot be written", self.place.journal.display()))?);
        if kept.is_none() {
            return Ok(());
        }
        let SessionParts { kernel, libraries, .. } = parts;
        let late =
            libraries.users_without_probes(|file| kernel.pins.as_ref().is_some_and(|pins| pins.was_probed(file)));
        parts.learn_latecomers(late);
        parts.pump();
        check_restored(parts);
        // The restored state must be in place before: it determines which single processes need
        // probes.
        collectors.collect(parts);
        self.drop_earlier(parts)
    }

    /// Removes the previous session's probes.
    fn drop_earlier(&self, parts: &mut SessionParts) -> Result<(), ExitFailure> {
        let Some(pins) = parts.kernel.pins.as_mut() else { return Ok(()) };
        let dropped = if self.takes_over() { pins.remove_earlier() } else { pins.drop_earlier() };
        Ok(dropped.context("cannot remove the probes of the previous agent")?)
    }

    /// Ends the session: leaves it to the next memwatch, or removes everything.
    ///
    /// # Errors
    /// The session could not be left to the next memwatch, or not everything was removed.
    pub(super) fn end(&self, parts: &mut SessionParts, is_kept: bool) -> io::Result<()> {
        match parts.sink.journal.take() {
            Some(journal) if is_kept => journal.end(parts.sink.pipeline()),
            _ => self.remove(parts),
        }
    }

    fn remove(&self, parts: &mut SessionParts) -> io::Result<()> {
        parts.sink.journal = None;
        let removed = parts.kernel.pins.take().map_or(Ok(()), |pins| pins.remove());
        removed.and(Journal::remove(&self.place.journal))
    }
}

/// Writes the journal. If that fails, removes everything kept for the next memwatch, since it would
/// be wrong.
pub(super) fn tend(survival: &mut Option<Survival>, parts: &mut SessionParts) {
    parts.note_aside();
    parts.sink.tend_journal();
    let failed = parts.sink.journal.take_if(|journal| journal.failure().is_some());
    if let Some(error) = failed.as_ref().and_then(Journal::failure) {
        eprintln!("memwatch: the next agent will not resume this session: cannot write the journal: {error}");
        let removed = survival.take().map_or(Ok(()), |survival| survival.remove(parts));
        if let Err(error) = removed {
            eprintln!(
                "memwatch: cannot remove the pinned BPF objects of this session: {error}; to remove them later: memwatch agent --uninstall"
            );
        }
    }
}

/// Restores how far the previous memwatch has read the ring and the kernel half's tables.
fn restore(parts: &mut SessionParts, kept: &RestoredJournal) {
    parts.losses.restore(&kept.aside.losses);
    parts.allocation_map.restore(&kept.aside.removed);
    let mut lose = |loss| parts.sink.step(Input::Lost { tgid: None, loss, count: 1 });
    if !parts.ring.go_on_from(kept.position) {
        lose(Loss::RingFull);
    }
    if kept.aside.takes_waiting {
        lose(Loss::RmRecordLost);
    }
}

/// Checks the restored processes: some may have exited, and their numbers may be reused.
fn check_restored(parts: &mut SessionParts) {
    let now_ns = clock::boottime_ns();
    parts.presence.distrust(now_ns);
    let known: BTreeSet<u32> = parts.sink.state().watched().map(|tgid| tgid.0).collect();
    for tgid in known {
        // A process without a call gets no exit record, so `/proc` must be checked.
        if !parts.kernel.knows(tgid) {
            parts.presence.unreported(tgid);
        }
        if let Some(facts) = parts.processes.facts(tgid, false).filter(|_| !parts.processes.is_over(tgid)) {
            parts.sink.step(Input::Process(facts));
        }
    }
}

//! Sources of facts besides the records: each is a collector with its own state and clock, in its
//! own file, and a row of the table below.

mod allocation_map;
mod container_names;
mod context_changes;
pub(crate) mod counters;
mod devices;
mod driver_version;
mod early;
mod ended;
mod frameworks;
mod kv_caches;
mod libraries;
mod losses;
mod owner_rounds;
mod probes_on_demand;
mod tensors;

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Instant;

use anyhow::Context as _;
use memwatch_core::state::State;

use self::allocation_map::AllocationMapResync;
use self::container_names::ContainerNameLookup;
use self::context_changes::ContextChangeProbes;
use self::counters::CounterPoller;
use self::devices::DevicePoller;
use self::early::EarlyProcesses;
pub(super) use self::early::learn_earlier;
use self::ended::EndedProcesses;
use self::frameworks::FrameworkLookup;
use self::kv_caches::KvCachePoller;
use self::libraries::LibraryDiscovery;
pub(super) use self::libraries::{attach_examined, update_coverage};
use self::losses::KernelLosses;
use self::probes_on_demand::OnDemandProbes;
use self::tensors::TensorPoller;
use super::SessionOptions;
use super::parts::SessionParts;
use crate::frameworks::watch::TensorLevel;
use crate::sources::driver_version::DriverVersion;

/// A source of facts about processes, devices or the machine.
///
/// What a collector finds becomes inputs, which it passes to [`SessionParts::sink`]. A collector
/// implements the methods that it needs.
pub(super) trait Collector: Send {
    /// Returns when a poll is needed that no record announces. A session sleeps until the earliest
    /// of these times, if nothing else wakes it.
    fn due(&self, _parts: &SessionParts, _now: Instant) -> Option<Instant> {
        None
    }

    /// Collects facts that decide how records are decoded. Called at each poll, before the records
    /// are fetched.
    fn collect_before_records(&mut self, _parts: &mut SessionParts) {}

    /// Collects at each poll, after the records were fetched.
    fn collect(&mut self, _parts: &mut SessionParts) {}

    /// Collects at each tick and for each snapshot what reports need, as of `now_ns`
    /// (`CLOCK_BOOTTIME`).
    fn collect_for_report(&mut self, _parts: &mut SessionParts, _now_ns: u64) {}

    /// Receives an answer from a thread of this collector and keeps it for [`Self::take_answer`].
    /// Wakes the session.
    fn poll_answer(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Collects from the answer that was received, if any.
    fn take_answer(&mut self, _parts: &mut SessionParts) {}

    /// Notes that a client has requested a report.
    fn note_request(&mut self, _now: Instant) {}

    /// Whether everything requested from other programs was answered at least once.
    fn is_settled(&self, _parts: &SessionParts) -> bool {
        true
    }
}

/// The collectors of a session.
pub(super) struct Collectors(Vec<Box<dyn Collector>>);

impl Collectors {
    /// Creates all collectors, in the order in which they collect. `state` is the state that the
    /// session starts from.
    ///
    /// Some depend on earlier ones: tracing starts in the poll that finds an early process, losses
    /// decide which processes are looked up, and counters are read of the frameworks found.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn new(options: &SessionOptions, state: &State) -> anyhow::Result<Self> {
        let names = ContainerNameLookup::start(&options.sockets);
        let mut all: Vec<Box<dyn Collector>> = vec![
            Box::new(DriverVersion::new()),
            Box::new(EarlyProcesses),
            Box::new(names.context("the thread that asks runtimes cannot be started")?),
            Box::new(OnDemandProbes::new()),
            Box::new(TensorPoller),
            Box::new(ContextChangeProbes::new(options, state)),
            Box::new(LibraryDiscovery),
            Box::new(KernelLosses),
            Box::new(DevicePoller::new(options)),
            Box::new(EndedProcesses),
            Box::new(AllocationMapResync),
            Box::new(FrameworkLookup),
        ];
        if let Some(every) = options.counters_every {
            all.push(Box::new(CounterPoller::new(every)));
        }
        // A session that reads nothing of PyTorch reads no server either.
        if options.counters_every.is_some() || options.tensors.level != TensorLevel::Off {
            all.push(Box::new(KvCachePoller::new()));
        }
        Ok(Self(all))
    }

    /// Returns when the first collector is due.
    pub(super) fn due(&self, parts: &SessionParts, now: Instant) -> Option<Instant> {
        self.0.iter().filter_map(|collector| collector.due(parts, now)).min()
    }

    /// Collects what must precede the next records.
    pub(super) fn collect_before_records(&mut self, parts: &mut SessionParts) {
        self.0.iter_mut().for_each(|collector| collector.collect_before_records(parts));
    }

    /// Collects at a poll.
    pub(super) fn collect(&mut self, parts: &mut SessionParts) {
        self.0.iter_mut().for_each(|collector| collector.collect(parts));
    }

    /// Collects for a report of this time.
    pub(super) fn collect_for_report(&mut self, parts: &mut SessionParts, now_ns: u64) {
        self.0.iter_mut().for_each(|collector| collector.collect_for_report(parts, now_ns));
    }

    /// Waits until a collector has received an answer, for [`Self::take_answers`].
    ///
    /// Cancel safe: a received answer is kept.
    pub(super) async fn answered(&mut self) {
        poll_fn(|context| {
            let is_any = self.0.iter_mut().any(|collector| collector.poll_answer(context).is_ready());
            if is_any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Collects from the answers that were received.
    pub(super) fn take_answers(&mut self, parts: &mut SessionParts) {
        self.0.iter_mut().for_each(|collector| collector.take_answer(parts));
    }

    /// Notes that a client has requested a report.
    pub(super) fn note_request(&mut self, now: Instant) {
        self.0.iter_mut().for_each(|collector| collector.note_request(now));
    }

    /// Whether everything requested from other programs was answered at least once.
    pub(super) fn is_settled(&self, parts: &SessionParts) -> bool {
        self.0.iter().all(|collector| collector.is_settled(parts))
    }
}

//! One monitoring session from attach to detach: the kernel half, the other sources and the
//! pipeline.

mod allocator_state;
pub(crate) mod analysis;
mod arenas;
mod calm;
mod changes;
mod copies;
pub(crate) mod counters;
mod devices;
mod discovery;
pub(crate) mod holdings;
pub(crate) mod intake;
mod left_behind;
pub(crate) mod life;
mod losers;
mod named;
mod numbers;
mod options;
pub(crate) mod peaks;
mod price;
pub(crate) mod recording;
mod rest;
pub(crate) mod survival;
mod take_over;
pub(crate) mod tensors;
mod turn;
mod users;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use aya_log::EbpfLogger;
use memwatch_common::loss::Loss;
use memwatch_common::record::{CallRecord, Item, ProcessRecord, RingRecord};
use memwatch_common::rm::RmRecord;
use memwatch_core::input::{Input, NvmlState, ProbeCoverage, ProcessFacts};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::{Framework, Tgid};

use self::calm::Calm;
use self::changes::Changes;
use self::counters::CounterPoller;
use self::intake::InputSink;
use self::life::ProcessEventSink;
pub(crate) use self::options::SessionOptions;
use self::rest::IdleBackoff;
use self::survival::{SessionStart, Survival};
use self::tensors::TensorTracing;
use crate::backends::library_watch::{LibraryWatch, library_source};
use crate::backends::readings::Readings;
use crate::backends::{self, ProbesOnDemand};
use crate::exit::ExitFailure;
use crate::frameworks::named::FrameworkNames;
use crate::frameworks::probes as tensor_probes;
use crate::frameworks::watch::{FrameworkWatch, TensorLevel};
use crate::sources::cgroup::{ControlGroups, own_limit};
use crate::sources::clock;
use crate::sources::containers::{RuntimeMessage, RuntimeNames};
use crate::sources::driver_version::DriverVersion;
use crate::sources::kernel::allocation_map::KernelAllocationMap;
use crate::sources::kernel::load::{KernelHalf, LoadError};
use crate::sources::kernel::losses::LossCounters;
use crate::sources::kernel::ring::{Drained, RecordRing};
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::LibraryScan;
use crate::sources::namespace;
use crate::sources::own::OwnProcesses;
use crate::sources::presence::Presence;
use crate::sources::procfs::ProcReader;
use crate::watch::priority::read_before_others;
use crate::watch::recording::Recorder;

/// Maximum number of calls passed to the pipeline as one batch. A batch fits the level-1 data
/// cache.
const TOGETHER: usize = 256;

/// A running session.
pub(crate) struct Session {
    kernel: KernelHalf,
    diagnostics: Option<EbpfLogger<&'static dyn log::Log>>,
    ring: RecordRing,
    rest: IdleBackoff,
    losses: LossCounters,
    allocation_map: KernelAllocationMap,
    pipeline: InputSink,
    processes: ProcReader,
    presence: Presence,
    groups: ControlGroups,
    driver_version: DriverVersion,
    libraries: LibraryWatch,
    on_demand: Vec<Box<dyn ProbesOnDemand>>,
    tensors: TensorTracing,
    /// The frameworks of processes with GPU memory.
    frameworks: FrameworkNames,
    counters: Option<CounterPoller>,
    changes: Changes,
    devices: Readings,
    calm: Calm,
    names: RuntimeNames,
    targets: BTreeSet<u32>,
    everybody: bool,
    own: OwnProcesses,
    last_reading_ns: u64,
    nvml_works: bool,
    survival: Option<Survival>,
    /// Processes whose calls may go unseen, as of the last device reading.
    unproven: BTreeSet<Tgid>,
}

/// Opens the log of the kernel half, which `--diagnostics` enables.
fn log_of(kernel: &mut KernelHalf) -> anyhow::Result<EbpfLogger<&'static dyn log::Log>> {
    EbpfLogger::init(&mut kernel.ebpf).context("the kernel half's log cannot be read")
}

impl Session {
    /// Loads the kernel half, attaches to every library known by now and starts the session. The
    /// calling thread must be the one that reads the records.
    pub(crate) fn open(options: &SessionOptions) -> Result<Self, ExitFailure> {
        if namespace::is_initial("pid") == Some(false) {
            return Err(ExitFailure::foreign_pid_namespace());
        }
        read_before_others();
        let everybody = options.targets.is_empty() && !options.expects_command;
        let recorder = options.recorder.as_ref().map(Recorder::create).transpose()?;
        let version = kernel_version()?;
        let SessionStart { pins, mut kept, survival } = survival::start(options)?;
        let handles = survival::handles(pins.as_ref());
        let mut kernel = KernelHalf::load_pinned(options.load(everybody), pins).map_err(ExitFailure::from_load)?;
        kernel.places_probes = !options.tensors.places_none();
        let diagnostics = options.diagnostics.then(|| log_of(&mut kernel)).transpose()?;
        let ring = RecordRing::open(&mut kernel.ebpf, options.ring_bytes).context("the ring buffer cannot be read")?;
        let losses = LossCounters::open(&mut kernel.ebpf).context("the loss counters cannot be read")?;
        let allocation_map =
            KernelAllocationMap::open(&mut kernel.ebpf).context("the kernel half's allocation map cannot be read")?;
        let scan = options.libraries.iter().fold(backends::scan(), LibraryScan::with_named).with_handles(handles);
        let libraries = LibraryWatch::new(scan, version, library_source(options.polls_libraries));
        let torch = FrameworkWatch::new(version, options.tensors.affordable());
        let mut session = Self {
            kernel,
            diagnostics,
            ring,
            rest: IdleBackoff::new(Instant::now()),
            losses,
            allocation_map,
            pipeline: InputSink::new(survival::pipeline(&mut kept, !everybody), recorder),
            processes: ProcReader::new("/proc"),
            presence: Presence::default(),
            groups: ControlGroups::open(),
            driver_version: DriverVersion::new(),
            libraries: libraries.context("the thread that looks for libraries cannot be started")?,
            on_demand: backends::backend().probes_on_demand(),
            frameworks: FrameworkNames::new(),
            tensors: TensorTracing::new(torch, options),
            counters: options.counters_every.map(CounterPoller::new),
            changes: Changes::new(options),
            devices: backends::backend().readings(options.device_library.clone()),
            calm: Calm::new(options.rests_without_processes),
            names: RuntimeNames::start(&options.sockets).context("the thread that asks runtimes cannot be started")?,
            targets: BTreeSet::new(),
            everybody,
            own: OwnProcesses::find(options.agent_socket.as_deref(), &options.targets),
            last_reading_ns: clock::boottime_ns(),
            nvml_works: false,
            survival,
            unproven: BTreeSet::new(),
        };
        session.prepare(options);
        session.prepare_take_over();
        session.expect_newcomers(options);
        session.attach_first(options)?;
        session.meet_earlier();
        session.go_on(kept.as_ref())?;
        Ok(session)
    }

    /// Prepares the tensor probes where a program is about to start: it may allocate soon after its
    /// start.
    fn expect_newcomers(&mut self, options: &SessionOptions) {
        let expects = options.expects_command || options.named.is_some();
        if expects && options.tensors.affordable().level > TensorLevel::Read {
            tensor_probes::prepare(&mut self.kernel);
        }
    }

    /// Attaches to every known library. The session begins once the last probe is in place.
    fn attach_first(&mut self, options: &SessionOptions) -> Result<(), ExitFailure> {
        let roots: BTreeSet<u32> = options.targets.iter().copied().collect();
        let mut all = if roots.is_empty() { BTreeSet::new() } else { self.processes.descendants(&roots) };
        all.extend(&roots);
        all.retain(|tgid| !self.own.holds(*tgid));
        for &tgid in &all {
            self.kernel.watch(tgid).map_err(ExitFailure::from_load)?;
            self.libraries.expect(tgid);
        }
        self.libraries.attach_host(&mut self.kernel);
        if self.everybody {
            self.libraries.attach_machine(&mut self.kernel);
        }
        self.libraries.attach_processes(&mut self.kernel, &all);
        self.update_coverage();
        if !self.goes_on() {
            self.pipeline.step(Input::Attached { time_ns: clock::boottime_ns() });
        }
        for &tgid in &all {
            let target = roots.contains(&tgid);
            self.learn(tgid, target);
            // A process that exits before the kernel half knows it gets no exit record.
            if !self.processes.exists(tgid) {
                if target {
                    return Err(ExitFailure::no_process(tgid));
                }
                self.pipeline.step(Input::ProcessEnded { tgid: Tgid(tgid), time_ns: clock::boottime_ns() });
            }
        }
        self.targets = roots;
        Ok(())
    }

    /// Adds a process that memwatch has forked and that has not run yet, so that it is traced from
    /// its first instruction.
    ///
    /// `words` are its program and arguments. `/proc` still shows the process as a fork of
    /// memwatch, and it may exit before the next poll.
    pub(crate) fn adopt(&mut self, tgid: u32, words: &[OsString]) -> Result<(), LoadError> {
        self.kernel.watch(tgid)?;
        self.libraries.expect(tgid);
        if let Some(program) = words.first() {
            self.libraries.attach_program(&mut self.kernel, Path::new(program));
        }
        if let Some(facts) = self.processes.facts(tgid, true) {
            let command = words.join(OsStr::new(" ")).to_string_lossy().into_owned();
            let comm = words.first().and_then(|program| Path::new(program).file_name()).unwrap_or_default();
            let comm = comm.to_string_lossy().into_owned();
            self.pipeline.step(Input::Process(ProcessFacts { command, comm, started_under_watch: true, ..facts }));
        }
        self.targets.insert(tgid);
        Ok(())
    }

    /// Reads all records in the ring.
    fn pump(&mut self) {
        if let Some(log) = &mut self.diagnostics {
            log.flush();
        }
        let Self { ring, pipeline, processes, presence, libraries, groups, targets, tensors, own, .. } = self;
        let mut life = ProcessEventSink { pipeline, processes, libraries, groups, targets };
        let mut calls = Vec::new();
        let mut has_come = false;
        let is_behind = ring.drain(|drained| {
            let item = match drained {
                Drained::Item(item) => item,
                Drained::UpTo(reached) => {
                    life.pipeline.step_calls(&calls);
                    calls.clear();
                    return life.pipeline.commit(reached);
                }
            };
            has_come = true;
            if let Ok(
                Item::Record(
                    RingRecord::Call(CallRecord { tgid, .. }) | RingRecord::Process(ProcessRecord { tgid, .. }),
                )
                | Item::Rm(RmRecord { tgid, .. }),
            ) = &item
                && own.holds(*tgid)
            {
                return;
            }
            let call = if let Ok(Item::Record(RingRecord::Call(call))) = item { Some(call) } else { None };
            calls.extend(call);
            if call.is_none() || calls.len() == TOGETHER {
                life.pipeline.step_calls(&calls);
                calls.clear();
            }
            match item {
                Ok(Item::Record(RingRecord::Call(_))) => {}
                Ok(Item::Record(RingRecord::Process(event))) => {
                    presence.reported(event.tgid);
                    tensors.note_life(&event);
                    life.take(event);
                }
                Ok(item) => tensors.take(&item).into_iter().for_each(|input| life.pipeline.step(input)),
                Err(_) => life.pipeline.step(Input::Lost { tgid: None, loss: Loss::UndecodableRecord, count: 1 }),
            }
        });
        life.pipeline.step_calls(&calls);
        if has_come {
            self.rest.note_records();
        }
        self.rest.note_behind(is_behind);
        tensors.note_fetched();
        for moved in self.groups.take_moved(&self.processes) {
            self.pipeline.step(moved);
        }
    }

    fn take_names(&mut self, found: RuntimeMessage) {
        if let Some(input) = self.names.take(found, self.pipeline.state.names()) {
            self.pipeline.step(input);
        }
    }

    /// Whether every runtime that may know a container of this session has been asked for names.
    pub(crate) fn has_asked_for_names(&self) -> bool {
        self.names.want(self.pipeline.state.names());
        self.names.is_settled()
    }

    /// Detects the frameworks of processes, and reads PyTorch's counters.
    fn look_at_frameworks(&mut self) {
        let tgids = self.pipeline.state.watched().map(|tgid| tgid.0).collect();
        for (tgid, frameworks) in self.frameworks.look(&tgids) {
            self.pipeline.step(Input::Frameworks { tgid: Tgid(tgid), frameworks });
        }
        if let Some(counters) = &mut self.counters {
            counters.advance(&mut self.pipeline, || self.frameworks.having(Framework::PyTorch));
        }
    }

    /// Reads the memory of control groups. Where the kernel does not report moves, also reads the
    /// control groups of processes.
    fn take_groups(&mut self) {
        if let Some(memory) = self.groups.device_memory(self.pipeline.state.cgroups().into_iter()) {
            self.pipeline.step(Input::CgroupMemory(memory));
        }
        if !self.kernel.reports_moves {
            self.pipeline.state.watched().for_each(|tgid| self.groups.note_move(tgid.0));
        }
    }

    /// Returns a snapshot of the current state.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        self.calm.note_question(Instant::now());
        self.devices.rest(false);
        self.tick();
        let mut snapshot = self.pipeline.snapshot();
        if !self.everybody {
            snapshot.keep_wanted();
        }
        snapshot
    }

    /// Processes everything up to now without making a report, so that peaks include this moment.
    pub(crate) fn tick(&mut self) {
        // The ring holds every call that has returned by now, so a report covers all calls up to its time.
        let now_ns = clock::boottime_ns();
        self.pump();
        let processes = &self.processes;
        self.kernel.login_users.refresh();
        for loss in self.losses.poll(|tgid| processes.exists(tgid)) {
            self.presence.distrust(now_ns);
            self.pipeline.step(loss);
        }
        self.note_aside();
        self.drop_stale_devices(now_ns);
        self.forget_gone(now_ns);
        self.clean_allocation_map();
        self.anchor_losers();
        self.look_at_frameworks();
        self.pipeline.step(Input::Tick { time_ns: now_ns });
        self.tend_survival();
    }

    /// Returns the number of watched processes and the number of GPUs that NVML lists.
    pub(crate) fn extent(&self) -> (usize, usize) {
        (self.pipeline.state.watched().count(), self.pipeline.state.gpus())
    }

    /// Whether a target or a child of one is alive. Always true in a machine-wide session.
    pub(crate) fn is_anybody_left(&self) -> bool {
        self.everybody || self.pipeline.state.watched().next().is_some()
    }

    /// Returns the targets that have not mapped a driver library.
    pub(crate) fn targets_without_library(&self) -> Vec<u32> {
        self.targets.iter().copied().filter(|tgid| self.libraries.is_expected(*tgid)).collect()
    }

    fn learn(&mut self, tgid: u32, target: bool) {
        let facts = self.processes.facts(tgid, target).filter(|_| !self.processes.is_over(tgid));
        // A listed process may be exiting after its exit record was processed: it would appear as a
        // new process.
        if let Some(mut facts) = facts.filter(|facts| !self.pipeline.state.has_ended(facts)) {
            self.presence.unreported(tgid);
            // A process that had not mapped the library at that time has made no call.
            facts.started_under_watch |= self.libraries.is_expected(tgid);
            self.pipeline.step(Input::Process(facts));
        }
    }

    /// Applies the settings that must precede the first input.
    fn prepare(&mut self, options: &SessionOptions) {
        // A session of named processes belongs to one user, who pays for its memory.
        if self.everybody {
            self.pipeline.state.bound(own_limit::room() as usize);
        }
        if options.logs_tensors {
            self.pipeline.state.log_tensors();
        }
        self.prepare_recording(options);
        self.driver_version.news().into_iter().for_each(|version| self.pipeline.step(version));
    }

    fn update_coverage(&mut self) {
        let Some((libraries, libraries_over_limit)) = self.libraries.new_coverage() else { return };
        let (mechanism, discovery) = (self.kernel.mechanism.name().into(), self.libraries.source_name().into());
        let moves = if self.kernel.reports_moves { "tracepoint" } else { "polling" }.into();
        self.pipeline.step(Input::Coverage(ProbeCoverage {
            libraries,
            libraries_over_limit,
            mechanism,
            discovery,
            moves,
        }));
        self.lose_unwatched();
    }

    /// Ends processes that are known from NVML or `/proc` alone and so get no exit record.
    fn forget_gone(&mut self, now_ns: u64) {
        let mut gone = self.presence.due(self.pipeline.state.watched(), now_ns);
        gone.retain(|tgid| !self.processes.exists(tgid.0));
        if gone.is_empty() {
            return;
        }
        // Any exit records of these processes are in the ring by now and must be processed first.
        self.pump();
        // A reused process number belongs to a newer process; the exit record of the older one has
        // been read.
        for tgid in gone.into_iter().filter(|tgid| !self.processes.exists(tgid.0)) {
            self.pipeline.step(Input::ProcessEnded { tgid, time_ns: now_ns });
        }
    }
}

/// Whether a device reading has arrived since the session began, successful or not.
pub(crate) fn has_reading(snapshot: &Snapshot) -> bool {
    match snapshot.nvml {
        NvmlState::Starting => false,
        NvmlState::Ok => snapshot.gpus.iter().all(|gpu| gpu.sampled_ns >= snapshot.attached_ns),
        NvmlState::Unavailable(_) => true,
    }
}

fn kernel_version() -> Result<KernelVersion, ExitFailure> {
    let release =
        std::fs::read_to_string("/proc/sys/kernel/osrelease").context("the kernel's release cannot be read")?;
    Ok(KernelVersion::from_release(&release)
        .with_context(|| format!("kernel release {release:?} is not understood"))?)
}

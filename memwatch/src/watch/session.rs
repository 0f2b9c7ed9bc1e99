//! One monitoring session from attach to detach: the kernel half, the collectors of other facts and
//! the pipeline.

mod allocator_state;
mod arenas;
pub(crate) mod collectors;
mod copies;
pub(crate) mod holdings;
pub(crate) mod input_sink;
pub(crate) mod life;
mod named;
mod numbers;
mod options;
mod parts;
mod price;
mod requests;
mod rest;
pub(crate) mod survival;
mod take_over;
pub(crate) mod tensors;
mod turn;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use memwatch_core::input::{Input, NvmlState, ProcessFacts};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;

use self::collectors::{Collectors, learn_earlier, update_coverage};
use self::input_sink::InputSink;
pub(crate) use self::options::SessionOptions;
use self::parts::{SessionParts, SessionScope, log_of};
use self::rest::IdleBackoff;
use self::survival::{SessionStart, Survival};
use self::tensors::TensorTracing;
use crate::backends;
use crate::backends::library_watch::{LibraryWatch, library_source};
use crate::exit::ExitFailure;
use crate::frameworks::named::FrameworkNames;
use crate::frameworks::probes as tensor_probes;
use crate::frameworks::watch::{FrameworkWatch, TensorLevel};
use crate::sources::cgroup::{ControlGroups, own_limit};
use crate::sources::clock;
use crate::sources::kernel::allocation_map::KernelAllocationMap;
use crate::sources::kernel::load::{KernelHalf, LoadError};
use crate::sources::kernel::losses::LossCounters;
use crate::sources::kernel::ring::RecordRing;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::LibraryScan;
use crate::sources::namespace;
use crate::sources::own::OwnProcesses;
use crate::sources::presence::Presence;
use crate::sources::procfs::ProcReader;
use crate::watch::priority::read_before_others;
use crate::watch::recording::{AtLimit, Recorder};

/// A running session.
pub(crate) struct Session {
    parts: SessionParts,
    collectors: Collectors,
    survival: Option<Survival>,
}

impl Session {
    /// Loads the kernel half, attaches to every library known by now and starts the session. The
    /// calling thread must be the one that reads the records.
    ///
    /// # Errors
    /// The kernel half cannot be loaded, or a target does not exist.
    pub(crate) fn open(options: &SessionOptions) -> Result<Self, ExitFailure> {
        if namespace::is_initial("pid") == Some(false) {
            return Err(ExitFailure::foreign_pid_namespace());
        }
        read_before_others();
        let version = kernel_version()?;
        let SessionStart { pins, mut kept, survival } = survival::start(options)?;
        let handles = survival::handles(pins.as_ref());
        let everybody = options.watches_everybody();
        let mut kernel = KernelHalf::load_pinned(options.load(everybody), pins).map_err(ExitFailure::from_load)?;
        kernel.places_probes = !options.tensors.places_none();
        // A session that is refused leaves no file.
        let recorder = options.recorder.as_ref().map(Recorder::create).transpose()?;
        let diagnostics = options.diagnostics.then(|| log_of(&mut kernel)).transpose()?;
        let ring = RecordRing::open(&mut kernel.ebpf, options.ring_bytes).context("the ring buffer cannot be read")?;
        let losses = LossCounters::open(&mut kernel.ebpf).context("the loss counters cannot be read")?;
        let allocation_map =
            KernelAllocationMap::open(&mut kernel.ebpf).context("the kernel half's allocation map cannot be read")?;
        let scan = options.libraries.iter().fold(backends::scan(), LibraryScan::with_named).with_handles(handles);
        let libraries = LibraryWatch::new(scan, version, library_source(options.polls_libraries));
        let torch = FrameworkWatch::new(version, options.tensors.affordable());
        let parts = SessionParts {
            kernel,
            diagnostics,
            ring,
            backoff: IdleBackoff::new(Instant::now()),
            losses,
            allocation_map,
            sink: InputSink::new(survival::pipeline(&mut kept, !everybody), recorder),
            processes: ProcReader::new("/proc"),
            presence: Presence::default(),
            groups: ControlGroups::open(),
            libraries: libraries.context("the thread that looks for libraries cannot be started")?,
            tensors: TensorTracing::new(torch, options),
            frameworks: FrameworkNames::new(),
            scope: SessionScope {
                targets: BTreeSet::new(),
                everybody,
                own: OwnProcesses::find(options.agent_socket.as_deref(), &options.targets),
            },
        };
        let collectors = Collectors::new(options, parts.sink.state())?;
        let mut session = Self { parts, collectors, survival };
        session.begin(options)?;
        if let Some(survival) = &session.survival {
            survival.go_on(&mut session.parts, &mut session.collectors, kept.as_ref())?;
        }
        Ok(session)
    }

    /// Applies the settings, and attaches to everything that exists.
    fn begin(&mut self, options: &SessionOptions) -> Result<(), ExitFailure> {
        self.prepare(options);
        if let Some(survival) = &self.survival {
            survival.prepare_take_over(&mut self.parts);
        }
        self.expect_newcomers(options);
        self.attach_first(options)?;
        learn_earlier(&mut self.parts);
        Ok(())
    }

    /// Applies the settings that must precede the first input.
    fn prepare(&mut self, options: &SessionOptions) {
        // A session of named processes belongs to one user, who pays for its memory.
        if self.parts.scope.everybody {
            self.parts.sink.state_mut().bound(own_limit::room() as usize);
        }
        if options.logs_tensors {
            self.parts.sink.state_mut().log_tensors();
        }
        if options.recorder.as_ref().is_some_and(|recorder| recorder.at_limit != AtLimit::End) {
            self.enable_detectors();
        }
        self.collectors.collect_before_records(&mut self.parts);
    }

    /// Prepares the tensor probes where a program is about to start: it may allocate soon after its
    /// start.
    fn expect_newcomers(&mut self, options: &SessionOptions) {
        let expects = options.expects_command || options.named.is_some();
        if expects && options.tensors.affordable().level > TensorLevel::Read {
            tensor_probes::prepare(&mut self.parts.kernel);
        }
    }

    /// Attaches to every known library. The session begins once the last probe is in place.
    fn attach_first(&mut self, options: &SessionOptions) -> Result<(), ExitFailure> {
        let resumes = self.goes_on();
        let parts = &mut self.parts;
        let roots: BTreeSet<u32> = options.targets.iter().copied().collect();
        let mut all = if roots.is_empty() { BTreeSet::new() } else { parts.processes.descendants(&roots) };
        all.extend(&roots);
        all.retain(|tgid| !parts.scope.own.holds(*tgid));
        for &tgid in &all {
            parts.kernel.watch(tgid).map_err(ExitFailure::from_load)?;
            parts.libraries.expect(tgid);
        }
        parts.libraries.attach_host(&mut parts.kernel);
        if parts.scope.everybody {
            parts.libraries.attach_machine(&mut parts.kernel);
        }
        parts.libraries.attach_processes(&mut parts.kernel, &all);
        update_coverage(parts);
        if !resumes {
            parts.sink.step(Input::Attached { time_ns: clock::boottime_ns() });
        }
        for &tgid in &all {
            let target = roots.contains(&tgid);
            parts.learn(tgid, target);
            // A process that exits before the kernel half knows it gets no exit record.
            if !parts.processes.exists(tgid) {
                if target {
                    return Err(ExitFailure::no_process(tgid));
                }
                parts.sink.step(Input::ProcessEnded { tgid: Tgid(tgid), time_ns: clock::boottime_ns() });
            }
        }
        parts.scope.targets = roots;
        Ok(())
    }

    /// Adds a process that memwatch has forked and that has not run yet, so that it is traced from
    /// its first instruction.
    ///
    /// `words` are its program and arguments. `/proc` still shows the process as a fork of
    /// memwatch, and it may exit before the next poll.
    ///
    /// # Errors
    /// The kernel half cannot watch the process.
    pub(crate) fn adopt(&mut self, tgid: u32, words: &[OsString]) -> Result<(), LoadError> {
        let parts = &mut self.parts;
        parts.kernel.watch(tgid)?;
        parts.libraries.expect(tgid);
        if let Some(program) = words.first() {
            parts.libraries.attach_program(&mut parts.kernel, Path::new(program));
        }
        if let Some(facts) = parts.processes.facts(tgid, true) {
            let command = words.join(OsStr::new(" ")).to_string_lossy().into_owned();
            let comm = words.first().and_then(|program| Path::new(program).file_name()).unwrap_or_default();
            let comm = comm.to_string_lossy().into_owned();
            parts.sink.step(Input::Process(ProcessFacts { command, comm, started_under_watch: true, ..facts }));
        }
        parts.scope.targets.insert(tgid);
        Ok(())
    }

    /// Whether a previous session was resumed.
    pub(crate) fn goes_on(&self) -> bool {
        self.survival.as_ref().is_some_and(Survival::resumes)
    }

    /// Whether the session can be resumed after this process ends.
    pub(crate) const fn survives(&self) -> bool {
        self.survival.is_some()
    }

    /// Ends the session: leaves it to the next memwatch, or removes everything.
    ///
    /// # Errors
    /// The session could not be left to the next memwatch, or not everything was removed.
    pub(crate) fn end_survival(&mut self, is_kept: bool) -> io::Result<()> {
        self.tick();
        self.survival.take().map_or(Ok(()), |survival| survival.end(&mut self.parts, is_kept))
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

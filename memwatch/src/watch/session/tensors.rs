//! Traces PyTorch, and completes its records from process memory: resolves the code of each stack
//! frame.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memwatch_common::python::PythonLayout;
use memwatch_common::record::{Item, ProcessEvent, ProcessRecord, RingRecord, StackItem};
use memwatch_common::rm::RmRecord;
use memwatch_common::tensor::{FLAG_NO_PYTHON, TensorMeaning, TensorRecord, tensor_probe};
use memwatch_core::allocators::threads::STEP;
use memwatch_core::attribution::governor::Governor;
use memwatch_core::input::Input;
use memwatch_core::input::rm::RmCall;
use memwatch_core::words::{Framework, Tgid};

use self::windows::ProcessWindows;
use super::SessionOptions;
use super::allocator_state::AllocatorStatePolls;
use super::arenas::ProcessArenas;
use super::copies::StackCopies;
use super::holdings::ProcessHoldings;
use super::input_sink::InputSink;
use super::named::TracedSelection;
use super::numbers::ProcessNumbers;
use super::price::{OverheadGuard, Rate};
use crate::frameworks::probes as tensor_probes;
use crate::frameworks::probes::TensorProbes;
use crate::frameworks::pytorch::{RecordPosition, RestingNumbers};
use crate::frameworks::watch::{Arrival, FrameworkWatch, TensorLevel};
use crate::sources::clock;
use crate::sources::kernel::load::KernelHalf;
use crate::sources::python::PythonProcess;

/// Interval for checking again a process with Python in which no thread ran Python.
const AGAIN: Duration = Duration::from_millis(500);
/// Minimum interval between reads of an allocator's own statistics: 1.2 KB, read under its lock.
const BETWEEN_STATISTICS: Duration = Duration::from_millis(100);

/// Default size from which an allocation is large.
const LARGE_BYTES: u64 = 100 << 20;

/// PyTorch processes of a session.
pub(crate) struct TensorTracing {
    pub(super) torch: FrameworkWatch,
    pub(super) prices: OverheadGuard,
    named: TracedSelection,
    pub(super) processes: BTreeMap<u32, TensorProcess>,
    /// How often live objects are read by name. Processes older than the session are always read
    /// once.
    holdings_every: Option<Duration>,
    /// Processes that have exited or called exec.
    replaced: Vec<u32>,
    /// Stacks resolved after their record was passed on.
    corrected: Vec<Input>,
    copies: StackCopies,
    /// Size from which allocations are recorded with more detail.
    large_bytes: u64,
    /// Number of completed fetches of the ring.
    fetches: u64,
}

pub(super) struct TensorProcess {
    pub(super) python: Python,
    /// Time of the last request for statistics.
    asked: Option<Instant>,
    /// Reads the allocators' statistics while the process is idle; `None` if its memory is unreadable.
    resting: Option<RestingNumbers>,
    /// Reads the complete state of the allocators.
    pub(super) allocator_state: AllocatorStatePolls,
    /// Reads the state of the arenas.
    pub(super) arenas: BTreeMap<Framework, ProcessArenas>,
    /// Reads the allocators' counters.
    pub(super) numbers: ProcessNumbers,
    /// Reads live objects and their retainers.
    pub(super) holdings: ProcessHoldings,
    /// Number of tensor records received.
    records: u64,
    /// Tensor event rate.
    pub(super) rate: Rate,
    /// Controls the overhead.
    pub(super) governor: Governor,
    /// Sampling windows, if the process is not traced all the time.
    windows: ProcessWindows,
}

pub(super) enum Python {
    /// Python lines are not wanted, or the process has no Python or an unsupported one.
    Without,
    /// No thread had run Python at this time.
    Idle(Instant),
    Found {
        python: Box<PythonProcess>,
        /// Probe on the destruction of code objects.
        probes: Option<TensorProbes>,
        /// Offsets with which the kernel half walks stacks.
        reported: PythonLayout,
    },
}

impl TensorTracing {
    /// Creates the state without any process.
    pub(crate) fn new(torch: FrameworkWatch, options: &SessionOptions) -> Self {
        Self {
            torch,
            prices: OverheadGuard::new(options),
            named: TracedSelection::new(options.named.clone()),
            processes: BTreeMap::new(),
            holdings_every: options.holdings_every,
            replaced: Vec::new(),
            corrected: Vec::new(),
            copies: StackCopies::default(),
            large_bytes: LARGE_BYTES,
            fetches: 0,
        }
    }

    /// Whether PyTorch is traced or read at all.
    pub(super) fn is_wanted(&self) -> bool {
        self.torch.level() != TensorLevel::Off
    }

    /// Sets the size from which allocations are large, in processes where PyTorch is found from now on.
    pub(crate) fn list_from(&mut self, least_bytes: u64) {
        self.large_bytes = least_bytes;
    }

    /// Looks for PyTorch in the watched processes, and configures the kernel half for processes that have it.
    pub(crate) fn update(&mut self, kernel: &mut KernelHalf, sink: &mut InputSink) {
        self.copies.keep(sink.state().watched());
        if self.torch.level() == TensorLevel::Off {
            return;
        }
        // The last events of a level that was lowered have been fetched by this point.
        self.report_choices(sink);
        for stack in self.corrected.drain(..) {
            sink.step(stack);
        }
        for tgid in std::mem::take(&mut self.replaced) {
            self.torch.forget(kernel, tgid);
            self.forget(kernel, tgid);
        }
        let arrival = |tgid| if sink.state().is_from_start(tgid) { Arrival::Start } else { Arrival::Late };
        let mut wanted: BTreeMap<u32, Arrival> = sink.state().watched().map(|tgid| (tgid.0, arrival(tgid))).collect();
        self.named.retain(sink.pipeline(), &mut wanted);
        let gone: Vec<u32> = self.processes.keys().copied().filter(|tgid| !wanted.contains_key(tgid)).collect();
        for tgid in gone {
            self.forget(kernel, tgid);
        }
        if !wanted.is_empty() && kernel.places_probes {
            self.prices.measure(kernel);
        }
        let Self { torch, prices, .. } = self;
        let attached = torch.update(kernel, &wanted, |tgid, rate| prices.decide(tgid, rate));
        self.report_choices(sink);
        for (tgid, missing) in attached {
            let (level, asked) = (self.torch.level_of(tgid), self.torch.level());
            self.processes.entry(tgid).or_insert_with(|| TensorProcess::new(tgid, level, asked));
            if level == TensorLevel::Read && sink.state().level_of(Tgid(tgid)).is_none() {
                self.prices.decide(tgid, (0, false));
            }
            if level > TensorLevel::Read {
                self.begin(kernel, (tgid, missing), sink);
            } else {
                self.meet(kernel, tgid);
            }
        }
        let due = |process: &TensorProcess| matches!(process.python, Python::Idle(looked) if looked.elapsed() >= AGAIN);
        let due: Vec<u32> = self.processes.iter().filter(|(_, process)| due(process)).map(|(tgid, _)| *tgid).collect();
        for tgid in due {
            self.meet(kernel, tgid);
        }
        for (tgid, process) in &mut self.processes {
            process.follow(kernel, *tgid, (self.holdings_every, self.fetches), sink);
            for whose in self.torch.arenas_of(*tgid) {
                process.arenas.entry(whose.0).or_default().read(*tgid, whose, sink);
            }
            if sink.state().lacks_trace(Tgid(*tgid)) {
                self.torch.do_without_trace(kernel, *tgid);
            } else if sink.state().has_trace(Tgid(*tgid)) {
                self.torch.trust_trace(kernel, *tgid);
            }
        }
        self.look_at_prices(kernel, sink);
        self.try_out(kernel, sink);
        self.turn_windows(kernel, sink);
    }

    /// Notes that a process's allocators are probed from now on, except for the table rows in
    /// `missing`.
    fn begin(&mut self, kernel: &mut KernelHalf, (tgid, missing): (u32, Vec<u16>), sink: &mut InputSink) {
        let time_ns = clock::boottime_ns();
        sink.step(Input::TensorsWatched { tgid: Tgid(tgid), missing, time_ns });
        for input in self.torch.announcements(tgid, time_ns) {
            sink.step(input);
        }
        // The kernel half reads the statistics with the first event, so that a program that goes
        // idle afterwards has been read once.
        log_failure(tgid, tensor_probes::want_statistics(kernel, tgid));
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.allocator_state.begin_window();
        }
        self.meet(kernel, tgid);
    }

    /// Passes the chosen levels to the pipeline.
    fn report_choices(&mut self, sink: &mut InputSink) {
        for choice in self.prices.take_choices() {
            sink.step(Input::TensorLevel(choice));
        }
    }

    /// Whether a process has PyTorch and everything requested is traced in all such processes.
    pub(crate) fn is_settled(&self) -> bool {
        let is_settled = |(tgid, process): (&u32, &TensorProcess)| {
            self.torch.is_settled(*tgid) && !matches!(process.python, Python::Idle(_))
        };
        !self.processes.is_empty() && self.processes.iter().all(is_settled)
    }

    /// Returns the frameworks found in all processes.
    pub(super) fn frameworks(&self) -> BTreeSet<Framework> {
        self.processes.keys().flat_map(|tgid| self.torch.frameworks_of(*tgid)).collect()
    }

    /// Converts a ring item into a pipeline input. Returns `None` for a process that is not
    /// watched.
    pub(crate) fn take(&mut self, item: &Item<'_>) -> Option<Input> {
        match item {
            Item::Stack(stack) => self.resolve(stack),
            Item::Native(copy) => self.copies.unwind(copy),
            Item::Rm(record) => {
                let stack = self.copies.take_number(record.tgid, record.stack);
                Some(Input::Rm(Box::new(RmCall::from(&RmRecord { stack, ..*record }))))
            }
            Item::Statistics(statistics) => Some(Input::Statistics {
                tgid: Tgid(statistics.tgid),
                allocator: statistics.allocator,
                time_ns: statistics.time_ns,
                words: Box::new(statistics.words()),
            }),
            Item::Record(record) => {
                self.count(record);
                self.note(record);
                Some(Input::Record(self.with_known_stack(*record)))
            }
        }
    }

    /// Drops the state of a process that has exited or called exec.
    pub(crate) fn note_life(&mut self, event: &ProcessRecord) {
        let ends = matches!(event.event(), Some(ProcessEvent::Exec | ProcessEvent::Exit));
        if ends {
            self.copies.forget(event.tgid);
        }
        // Without tensor tracing nothing consumes the list.
        if ends && self.torch.level() != TensorLevel::Off {
            self.replaced.push(event.tgid);
        }
    }

    /// Notes a completed fetch of the ring.
    pub(crate) fn note_fetched(&mut self) {
        self.fetches += 1;
    }

    fn count(&mut self, record: &RingRecord) {
        if let RingRecord::Tensor(tensor) = record
            && let Some(process) = self.processes.get_mut(&tensor.tgid)
        {
            process.records += 1;
            // If the allocators are readable, their own counters give the number.
            let is_counted = |meaning| match meaning {
                TensorMeaning::Reported | TensorMeaning::Granted | TensorMeaning::GivenBack => {
                    !process.numbers.are_known()
                }
                TensorMeaning::Chunk
                | TensorMeaning::ArenaChunk
                | TensorMeaning::ArenaChunkFreed
                | TensorMeaning::BufferMade
                | TensorMeaning::BufferGoes
                | TensorMeaning::PoolGranted
                | TensorMeaning::PoolAnswered
                | TensorMeaning::PoolFreed => true,
                _ => false,
            };
            if tensor_probe(tensor.probe).is_some_and(|row| is_counted(row.meaning)) {
                process.rate.count(1);
            }
        }
        if let RingRecord::Text(text) = record
            && text.text().starts_with(STEP.as_bytes())
            && let Some(process) = self.processes.get_mut(&text.tgid)
        {
            process.governor.note_step(text.time_ns);
        }
    }

    fn forget(&mut self, kernel: &mut KernelHalf, tgid: u32) {
        let Some(process) = self.processes.remove(&tgid) else { return };
        if let Python::Found { probes: Some(probes), .. } = process.python {
            log_failure(tgid, tensor_probes::detach(kernel, probes));
        }
        log_failure(tgid, tensor_probes::forget(kernel, tgid));
    }

    fn resolve(&mut self, item: &StackItem<'_>) -> Option<Input> {
        let process = self.processes.get_mut(&item.record.tgid)?;
        let Python::Found { python, .. } = &mut process.python else { return None };
        Some(Input::Stack { tgid: Tgid(item.record.tgid), id: item.record.id, stack: python.resolve(item) })
    }

    /// Replaces the number of a stack copy in a record by the number of the earlier equal stack.
    fn with_known_stack(&mut self, record: RingRecord) -> RingRecord {
        let RingRecord::Tensor(tensor) = record else { return record };
        if tensor.flags & FLAG_NO_PYTHON == 0 {
            return record;
        }
        RingRecord::Tensor(TensorRecord { stack: self.copies.take_number(tensor.tgid, tensor.stack), ..tensor })
    }

    fn note(&mut self, record: &RingRecord) {
        if let RingRecord::Tensor(tensor) = record
            && tensor_probe(tensor.probe).is_some_and(|row| row.meaning == TensorMeaning::CodeGoes)
            && let Some(process) = self.processes.get_mut(&tensor.tgid)
            && let Python::Found { python, .. } = &mut process.python
        {
            let stacks = python.forget_code(tensor.args[0], tensor.time_ns).into_iter();
            let tgid = Tgid(tensor.tgid);
            self.corrected.extend(stacks.map(|(id, stack)| Input::Stack { tgid, id, stack }));
        }
    }
}

impl TensorProcess {
    /// `asked` is the level of the session, of which this process may get less.
    fn new(tgid: u32, level: TensorLevel, asked: TensorLevel) -> Self {
        let resting = RestingNumbers::open(tgid);
        let resting =
            resting.inspect_err(|error| log::warn!("process {tgid}: its memory cannot be read: {error}")).ok();
        Self {
            python: Python::Without,
            asked: None,
            resting,
            allocator_state: AllocatorStatePolls::new(),
            arenas: BTreeMap::new(),
            numbers: ProcessNumbers::default(),
            holdings: ProcessHoldings::new(asked),
            records: 0,
            rate: Rate::new(),
            governor: Governor::new(level),
            windows: ProcessWindows::new(),
        }
    }

    /// Reads what is due from process memory, and requests missing parts from the kernel half.
    fn follow(
        &mut self,
        kernel: &mut KernelHalf,
        tgid: u32,
        (holdings_every, fetches): (Option<Duration>, u64),
        sink: &mut InputSink,
    ) {
        let is_traced = self.governor.present() > TensorLevel::Read;
        self.numbers.read(tgid, is_traced, sink).into_iter().for_each(|events| self.rate.count_read(events));
        if let Some(allocators) = self.numbers.take_allocators() {
            log_failure(tgid, tensor_probes::set_allocators(kernel, tgid, allocators));
        }
        if is_traced && !self.numbers.are_known() {
            self.rate.pass();
        }
        if !sink.state().is_read_only(Tgid(tgid)) {
            self.report(kernel, tgid, sink);
            self.rest(tgid, fetches, sink);
            self.allocator_state.read(tgid, sink);
        } else if self.numbers.are_known() {
            self.allocator_state.read_standing(tgid, sink);
        }
        let is_older = !sink.state().is_from_start(Tgid(tgid));
        self.holdings.advance(tgid, (is_older, holdings_every), sink);
    }

    /// Reads the allocators' own statistics if they are more certain than the traced state and the
    /// process is idle.
    fn rest(&mut self, tgid: u32, fetches: u64, sink: &mut InputSink) {
        let is_due = |resting: &&mut RestingNumbers| {
            let now = Instant::now();
            resting.due(now) <= now
        };
        let Some(resting) = self.resting.as_mut().filter(is_due) else { return };
        let now = RecordPosition { records: self.records, fetches };
        for (allocator, words) in resting.look(now, &sink.state().drifting_allocators(Tgid(tgid))) {
            let time_ns = clock::boottime_ns();
            sink.step(Input::Statistics { tgid: Tgid(tgid), allocator, time_ns, words });
        }
    }

    /// Updates the kernel half's configuration, and requests the statistics that the pipeline
    /// lacks.
    fn report(&mut self, kernel: &mut KernelHalf, tgid: u32, sink: &InputSink) {
        if let Python::Found { python, reported, .. } = &mut self.python
            && let layout = (PythonLayout { stacks: reported.stacks, ..python.layout() })
            && *reported != layout
        {
            *reported = layout;
            log_failure(tgid, tensor_probes::set_layout(kernel, tgid, reported));
        }
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= BETWEEN_STATISTICS);
        if is_due && sink.state().wants_statistics(Tgid(tgid)) {
            self.asked = Some(Instant::now());
            log_failure(tgid, tensor_probes::want_statistics(kernel, tgid));
        }
    }
}

pub(super) fn log_failure<E: std::fmt::Display>(tgid: u32, done: Result<(), E>) {
    if let Err(error) = done {
        log::warn!("process {tgid}: {error}");
    }
}

mod due;
mod levels;
mod python;
#[cfg(test)]
mod tests;
mod windows;

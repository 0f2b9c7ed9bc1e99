//! What is watched of PyTorch, and what only the process's memory knows of its records: which code a stack's frames are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memwatch_common::python::PythonLayout;
use memwatch_common::record::{Item, ProcessEvent, ProcessRecord, Record, StackItem};
use memwatch_common::rm::RmRecord;
use memwatch_common::tensor::{FLAG_NO_PYTHON, TensorMeaning, TensorRecord, tensor_probe};
use memwatch_core::allocators::threads::STEP;
use memwatch_core::attribution::governor::Governor;
use memwatch_core::input::Input;
use memwatch_core::input::rm::RmCall;
use memwatch_core::snapshot::MemoryHistory;
use memwatch_core::words::{Framework, Tgid};
use memwatch_core::{Pipeline, TensorLog};

use self::windows::ProcessWindows;
use super::arenas::ProcessArenas;
use super::books::ProcessBooks;
use super::copies::Copies;
use super::holdings::ProcessHoldings;
use super::intake::Intake;
use super::named::Named;
use super::numbers::ProcessNumbers;
use super::price::{PriceGuard, Rate};
use super::{Session, SessionOptions};
use crate::frameworks::probes as tensor_probes;
use crate::frameworks::probes::TensorProbes;
use crate::frameworks::pytorch::{Arrival, Moment, RestingNumbers, TensorLevel, TorchWatch};
use crate::sources::clock;
use crate::sources::kernel::load::Kernel;
use crate::sources::python::PythonProcess;

/// How often Python is looked for again in a process where no thread ran any.
const AGAIN: Duration = Duration::from_millis(500);
/// An allocator's own statistics are asked for no more often than this: they are 1.2 KB, read under its lock.
const BETWEEN_STATISTICS: Duration = Duration::from_millis(100);

/// What is large where nobody says otherwise.
const LARGE_BYTES: u64 = 100 << 20;

/// The PyTorch processes of a watch.
pub(crate) struct Tensors {
    pub(super) torch: TorchWatch,
    pub(super) prices: PriceGuard,
    named: Named,
    pub(super) processes: BTreeMap<u32, Process>,
    /// How often it is read what processes hold, by name; of the ones that are older than the watch it is once.
    holdings_every: Option<Duration>,
    /// Processes that have ended, or have another image now.
    replaced: Vec<u32>,
    /// Stacks that were resolved too late, as they are known now.
    corrected: Vec<Input>,
    copies: Copies,
    /// Of allocations of this size and above more is wanted.
    large_bytes: u64,
    /// How often all records that there were have been fetched.
    fetches: u64,
}

pub(super) struct Process {
    pub(super) python: Python,
    /// When statistics were last asked for.
    asked: Option<Instant>,
    /// Its allocators' numbers while it rests; `None` where its memory cannot be read.
    resting: Option<RestingNumbers>,
    /// All that they have.
    pub(super) books: ProcessBooks,
    /// And what its arenas have.
    pub(super) arenas: BTreeMap<Framework, ProcessArenas>,
    /// What they have counted, where no event is traced.
    pub(super) numbers: ProcessNumbers,
    /// And who keeps that.
    pub(super) holdings: ProcessHoldings,
    /// How many records of its tensors have come.
    records: u64,
    /// Its tensors that come and go.
    pub(super) rate: Rate,
    /// Watches over what that costs it.
    pub(super) governor: Governor,
    /// When it is traced, where that is not done all the time.
    windows: ProcessWindows,
}

pub(super) enum Python {
    /// Lines are not wanted, or there is none, or none that is understood.
    Without,
    /// It was not at work yet; when it was looked at.
    Idle(Instant),
    Found {
        python: Box<PythonProcess>,
        /// On the end of code objects.
        probes: Option<TensorProbes>,
        /// What the kernel half walks with.
        reported: PythonLayout,
    },
}

/// What of PyTorch a watch keeps, and reports.
impl Session {
    /// Blocks of this size in bytes and above are listed one by one, where PyTorch is found from now on.
    pub(crate) fn list_tensors_from(&mut self, least_bytes: u64) {
        self.pipeline.list_tensors_from(least_bytes);
        self.tensors.list_from(least_bytes);
    }

    /// Keeps what a process's caching allocators do from now on, so many lines of it.
    pub(crate) fn keep_history(&mut self, tgid: Tgid, lines: usize) {
        self.pipeline.keep_history(tgid, lines);
    }

    /// What a process's caching allocators have done, and what there is now, on stacks with or without native frames; `None` where nothing of
    /// PyTorch was seen.
    pub(crate) fn history(&self, tgid: Tgid, with_native: bool) -> Option<MemoryHistory> {
        self.pipeline.history(tgid, with_native)
    }

    /// What the logs of modules and stages have new.
    pub(crate) fn take_tensor_logs(&mut self) -> Vec<TensorLog> {
        self.pump();
        self.pipeline.take_tensor_logs()
    }

    /// The frameworks that were found, where all that is wanted of them is seen from now on; none before.
    pub(crate) fn seen_frameworks(&self) -> BTreeSet<Framework> {
        if self.tensors.is_settled() { self.tensors.frameworks() } else { BTreeSet::new() }
    }
}

impl Tensors {
    /// None yet.
    pub(crate) fn new(torch: TorchWatch, options: &SessionOptions) -> Self {
        Self {
            torch,
            prices: PriceGuard::new(options),
            named: Named::new(options.named.clone()),
            processes: BTreeMap::new(),
            holdings_every: options.holdings_every,
            replaced: Vec::new(),
            corrected: Vec::new(),
            copies: Copies::default(),
            large_bytes: LARGE_BYTES,
            fetches: 0,
        }
    }

    /// Whether anything of PyTorch is watched.
    pub(super) fn is_wanted(&self) -> bool {
        self.torch.level() != TensorLevel::Off
    }

    /// Allocations of this size and above are large, in processes where PyTorch is found from now on.
    pub(crate) fn list_from(&mut self, least_bytes: u64) {
        self.large_bytes = least_bytes;
    }

    /// Looks for PyTorch in the processes watched now, and gives the kernel half what it needs in the ones that have it.
    pub(crate) fn update(&mut self, kernel: &mut Kernel, pipeline: &mut Intake) {
        self.copies.keep(pipeline.watched());
        if self.torch.level() == TensorLevel::Off {
            return;
        }
        // The last events of what was lowered the last time have been taken in meanwhile.
        self.report_choices(pipeline);
        for stack in self.corrected.drain(..) {
            pipeline.step(stack);
        }
        for tgid in std::mem::take(&mut self.replaced) {
            self.torch.forget(kernel, tgid);
            self.forget(kernel, tgid);
        }
        let arrival = |tgid| if pipeline.is_from_start(tgid) { Arrival::Start } else { Arrival::Late };
        let mut wanted: BTreeMap<u32, Arrival> = pipeline.watched().map(|tgid| (tgid.0, arrival(tgid))).collect();
        self.named.retain(pipeline, &mut wanted);
        let gone: Vec<u32> = self.processes.keys().copied().filter(|tgid| !wanted.contains_key(tgid)).collect();
        for tgid in gone {
            self.forget(kernel, tgid);
        }
        if !wanted.is_empty() && kernel.places_probes {
            self.prices.measure(kernel);
        }
        let Self { torch, prices, .. } = self;
        let attached = torch.update(kernel, &wanted, |tgid, rate| prices.decide(tgid, rate));
        self.report_choices(pipeline);
        for (tgid, missing) in attached {
            let level = self.torch.level_of(tgid);
            self.processes.entry(tgid).or_insert_with(|| Process::new(tgid, level));
            if level == TensorLevel::Read && pipeline.level_of(Tgid(tgid)).is_none() {
                self.prices.decide(tgid, (0, false));
            }
            if level > TensorLevel::Read {
                self.begin(kernel, (tgid, missing), pipeline);
            } else {
                self.meet(kernel, tgid);
            }
        }
        let due = |process: &Process| matches!(process.python, Python::Idle(looked) if looked.elapsed() >= AGAIN);
        let due: Vec<u32> = self.processes.iter().filter(|(_, process)| due(process)).map(|(tgid, _)| *tgid).collect();
        for tgid in due {
            self.meet(kernel, tgid);
        }
        for (tgid, process) in &mut self.processes {
            process.follow(kernel, *tgid, (self.holdings_every, self.fetches), pipeline);
            for whose in self.torch.arenas_of(*tgid) {
                process.arenas.entry(whose.0).or_default().read(*tgid, whose, pipeline);
            }
            if pipeline.lacks_trace(Tgid(*tgid)) {
                self.torch.do_without_trace(kernel, *tgid);
            } else if pipeline.has_trace(Tgid(*tgid)) {
                self.torch.trust_trace(kernel, *tgid);
            }
        }
        self.look_at_prices(kernel, pipeline);
        self.try_out(kernel, pipeline);
        self.turn_windows(kernel, pipeline);
    }

    /// Probes are on a process's allocators from now on, but for these rows.
    fn begin(&mut self, kernel: &mut Kernel, (tgid, missing): (u32, Vec<u16>), pipeline: &mut Intake) {
        let time_ns = clock::boottime_ns();
        pipeline.step(Input::TensorsWatched { tgid: Tgid(tgid), missing, time_ns });
        for framework in self.torch.without_books(tgid) {
            pipeline.step(Input::FrameworkWatched { tgid: Tgid(tgid), framework, time_ns });
        }
        if self.torch.has_scratch(tgid) {
            pipeline.step(Input::ScratchWatched(Tgid(tgid), time_ns));
        }
        // With its first event: a program that then rests has been counted.
        log_failure(tgid, tensor_probes::want_statistics(kernel, tgid));
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.books.begin_window();
        }
        self.meet(kernel, tgid);
    }

    /// What was chosen, on its way to whoever reads it.
    fn report_choices(&mut self, pipeline: &mut Intake) {
        for choice in self.prices.take_choices() {
            pipeline.step(Input::TensorLevel(choice));
        }
    }

    /// Whether there is a process with PyTorch, and everything that is wanted of all such processes is seen from now on.
    pub(crate) fn is_settled(&self) -> bool {
        let is_settled = |(tgid, process): (&u32, &Process)| {
            self.torch.is_settled(*tgid) && !matches!(process.python, Python::Idle(_))
        };
        !self.processes.is_empty() && self.processes.iter().all(is_settled)
    }

    fn frameworks(&self) -> BTreeSet<Framework> {
        self.processes.keys().flat_map(|tgid| self.torch.frameworks_of(*tgid)).collect()
    }

    /// What an item of the ring is to the pipeline; `None` for one of a process that is not watched any more.
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

    /// A process has ended, or its image was replaced: what is known of its memory is of no use any more.
    pub(crate) fn note_life(&mut self, event: &ProcessRecord) {
        let ends = matches!(event.event(), Some(ProcessEvent::Exec | ProcessEvent::Exit));
        if ends {
            self.copies.forget(event.tgid);
        }
        // Of a watch without tensors nobody takes this list.
        if ends && self.torch.level() != TensorLevel::Off {
            self.replaced.push(event.tgid);
        }
    }

    /// All records that there were have been taken.
    pub(crate) fn note_fetched(&mut self) {
        self.fetches += 1;
    }

    fn count(&mut self, record: &Record) {
        if let Record::Tensor(tensor) = record
            && let Some(process) = self.processes.get_mut(&tensor.tgid)
        {
            process.records += 1;
            // Where its allocators can be read, they say how many there are.
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
        if let Record::Text(text) = record
            && text.text().starts_with(STEP.as_bytes())
            && let Some(process) = self.processes.get_mut(&text.tgid)
        {
            process.governor.note_step(text.time_ns);
        }
    }

    fn forget(&mut self, kernel: &mut Kernel, tgid: u32) {
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

    /// The record with the number that its stack has had before; each copy has one of its own.
    fn with_known_stack(&mut self, record: Record) -> Record {
        let Record::Tensor(tensor) = record else { return record };
        if tensor.flags & FLAG_NO_PYTHON == 0 {
            return record;
        }
        Record::Tensor(TensorRecord { stack: self.copies.take_number(tensor.tgid, tensor.stack), ..tensor })
    }

    fn note(&mut self, record: &Record) {
        if let Record::Tensor(tensor) = record
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

impl Process {
    fn new(tgid: u32, level: TensorLevel) -> Self {
        let resting = RestingNumbers::open(tgid);
        let resting =
            resting.inspect_err(|error| log::warn!("process {tgid}: its memory cannot be read: {error}")).ok();
        Self {
            python: Python::Without,
            asked: None,
            resting,
            books: ProcessBooks::new(),
            arenas: BTreeMap::new(),
            numbers: ProcessNumbers::default(),
            holdings: ProcessHoldings::default(),
            records: 0,
            rate: Rate::new(),
            governor: Governor::new(level),
            windows: ProcessWindows::new(),
        }
    }

    /// Reads what its memory says, and asks the kernel half for what is lacking.
    fn follow(
        &mut self,
        kernel: &mut Kernel,
        tgid: u32,
        (holdings_every, fetches): (Option<Duration>, u64),
        pipeline: &mut Intake,
    ) {
        let is_traced = self.governor.present() > TensorLevel::Read;
        self.numbers.read(tgid, is_traced, pipeline).into_iter().for_each(|events| self.rate.count_read(events));
        if let Some(allocators) = self.numbers.take_allocators() {
            log_failure(tgid, tensor_probes::set_allocators(kernel, tgid, allocators));
        }
        if is_traced && !self.numbers.are_known() {
            self.rate.pass();
        }
        if !pipeline.is_read_only(Tgid(tgid)) {
            self.report(kernel, tgid, pipeline);
            self.rest(tgid, fetches, pipeline);
            self.books.read(tgid, pipeline);
        } else if self.numbers.are_known() {
            self.books.read_standing(tgid, pipeline);
        }
        let is_older = !pipeline.is_from_start(Tgid(tgid));
        self.holdings.advance(tgid, (is_older, holdings_every), pipeline);
    }

    /// Its allocators' own numbers, where they are surer than what was followed and it rests.
    fn rest(&mut self, tgid: u32, fetches: u64, pipeline: &mut Intake) {
        let is_due = |resting: &&mut RestingNumbers| {
            let now = Instant::now();
            resting.due(now) <= now
        };
        let Some(resting) = self.resting.as_mut().filter(is_due) else { return };
        let now = Moment { records: self.records, fetches };
        for (allocator, words) in resting.look(now, &pipeline.drifting_allocators(Tgid(tgid))) {
            let time_ns = clock::boottime_ns();
            pipeline.step(Input::Statistics { tgid: Tgid(tgid), allocator, time_ns, words });
        }
    }

    /// Informs the kernel half what has been learnt since, and asks it for what the pipeline lacks.
    fn report(&mut self, kernel: &mut Kernel, tgid: u32, pipeline: &Pipeline) {
        if let Python::Found { python, reported, .. } = &mut self.python
            && let layout = (PythonLayout { stacks: reported.stacks, ..python.layout() })
            && *reported != layout
        {
            *reported = layout;
            log_failure(tgid, tensor_probes::set_layout(kernel, tgid, reported));
        }
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= BETWEEN_STATISTICS);
        if is_due && pipeline.wants_statistics(Tgid(tgid)) {
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

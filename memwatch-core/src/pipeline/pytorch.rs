//! The line's second level: events around PyTorch's caching allocators, on their way into the tensors of their process.

use std::collections::BTreeSet;

use memwatch_common::record::Record;

use crate::Pipeline;
use crate::allocators::TensorLedger;
use crate::allocators::log::LogLine;
use crate::allocators::pytorch::Words;
use crate::attribution::process::Process;
use crate::decode::{TensorChange, TensorEvent, TraceAction, decode_tensor};
use crate::input::LevelChoice;
use crate::input::arenas::ArenaBooks;
use crate::input::books::{BookBlock, BookState, Books, MovingBooks, Numbers};
use crate::input::holdings::Holdings;
use crate::ledger::refusals::FrameworkReading;
use crate::snapshot::PlaceNameView;
use crate::snapshot::build::places::{layer_name, stage_name};
use crate::stack::PythonStack;
use crate::stack::native::NativeStack;
use crate::words::{Framework, Name, Ordinal, Tgid};

/// What a process's log of stages and modules has new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLog {
    /// The process.
    pub tgid: Tgid,
    /// Its rank among the processes of its job.
    pub rank: Option<u32>,
    /// So many lines are missing before these, since they were not taken in time.
    pub missing: u64,
    /// In the order of their times.
    pub lines: Vec<TensorLogLine>,
}

/// A line of it: a thread allocates for another module, or in another stage, than the device's last allocation was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLogLine {
    /// The names behind its numbers.
    pub layer: PlaceNameView,
    /// As in [`crate::snapshot::StageView`].
    pub stage: Name,
    /// What happened.
    pub line: LogLine,
}

impl Pipeline {
    /// From now on a log of stages and modules is kept for every process whose tensors are watched from now on.
    pub fn log_tensors(&mut self) {
        self.logs_tensors = true;
    }

    /// Blocks of this size and above are listed one by one; of 100 MiB until this is called.
    pub fn list_tensors_from(&mut self, least_bytes: u64) {
        self.least_listed_bytes = Some(least_bytes);
        let known = self.ended.iter_mut().chain(self.processes.values_mut());
        known.filter_map(|process| process.tensors.as_mut()).for_each(|tensors| tensors.list_from(least_bytes));
    }

    /// What these logs have new.
    pub fn take_tensor_logs(&mut self) -> Vec<TensorLog> {
        let alive = self.processes.values_mut();
        let logs = self.ended.iter_mut().chain(alive).filter_map(|process| {
            let rank = process.owner.rank.as_ref().and_then(|rank| rank.rank);
            let tensors = process.tensors.as_mut()?;
            let (lines, missing) = tensors.take_log();
            let named = |line: LogLine| TensorLogLine {
                layer: layer_name(tensors.names(), line.layer),
                stage: stage_name(line.stage),
                line,
            };
            let lines: Vec<TensorLogLine> = lines.into_iter().map(named).collect();
            (!lines.is_empty()).then_some(TensorLog { tgid: process.tgid, rank, missing, lines })
        });
        logs.collect()
    }

    /// Whether a caching allocator of this process has to be asked for its own numbers.
    pub fn wants_statistics(&self, tgid: Tgid) -> bool {
        let tensors = self.processes.get(&tgid).and_then(|process| process.tensors.as_ref());
        tensors.is_some_and(|tensors| tensors.wants_statistics())
    }

    /// Whether a caching allocator of this process reports no trace of its own, so that it needs other probes.
    pub fn lacks_trace(&self, tgid: Tgid) -> bool {
        let tensors = self.processes.get(&tgid).and_then(|process| process.tensors.as_ref());
        tensors.is_some_and(|tensors| tensors.lacks_trace())
    }

    /// Whether the caching allocators of this process trace all that they report, so that they need fewer probes.
    pub fn has_trace(&self, tgid: Tgid) -> bool {
        let tensors = self.processes.get(&tgid).and_then(|process| process.tensors.as_ref());
        tensors.is_some_and(|tensors| tensors.has_trace())
    }

    pub(crate) fn tensor(&mut self, record: &Record) {
        if let Some(event) = decode_tensor(record) {
            self.follow_time(event.time_ns);
            let now_ns = self.now_ns;
            let process = self.process_mut(event.tgid, now_ns);
            process.overhead.count_event(record);
            if process.tensors_ended_ns().is_some() || (process.is_read_only() && !is_rare(&event.what)) {
                return;
            }
            let tensors = process.tensors.get_or_insert_default();
            if let Record::Tensor(tensor) = record {
                tensors.count_copies(tensor.flags);
            }
            if event.what.is_failure() {
                self.settle_statistics(event.tgid, event.time_ns, false);
            }
            let Some(tensors) = self.processes.get_mut(&event.tgid).and_then(|process| process.tensors.as_mut()) else {
                return;
            };
            match tensors.split(&event) {
                Some(parts) => parts.iter().flatten().for_each(|part| self.tensor_event(part)),
                None => self.tensor_event(&event),
            }
        }
    }

    fn tensor_event(&mut self, event: &TensorEvent) {
        if let Some(process) = self.processes.get_mut(&event.tgid) {
            process.place(event);
            if let Some(tensors) = &mut process.tensors {
                tensors.apply(event);
            }
        }
        self.follow_tensors(event);
        self.observe_steps(event.tgid);
        self.note_tensor_oom(event);
        self.observe_simulations(event);
        self.observe_fragments_of(event);
    }

    pub(crate) fn learn_stack(&mut self, tgid: Tgid, id: u64, stack: PythonStack) {
        let now_ns = self.now_ns;
        let process = self.process_mut(tgid, now_ns);
        process.overhead.count_stack(stack.frames.len());
        if process.tensors_ended_ns().is_none() {
            process.tensors.get_or_insert_default().learn(id, stack);
        }
    }

    pub(crate) fn learn_native(&mut self, tgid: Tgid, id: u64, stack: NativeStack) {
        if self.kernel_driver.learn_stack(tgid, id, &stack) {
            return;
        }
        let has_tensors = self.processes.get(&tgid).is_some_and(|process| process.tensors.is_some());
        if has_tensors && !self.has_ended_tensors(tgid) {
            self.tensors_mut(tgid).learn_native(id, stack);
        }
    }

    pub(crate) fn learn_statistics(&mut self, (tgid, allocator): (Tgid, u64), time_ns: u64, words: &Words) {
        if !self.has_ended_tensors(tgid) {
            let is_read_only = self.is_read_only(tgid);
            let tensors = self.tensors_mut(tgid);
            if is_read_only || !tensors.learn_statistics(allocator, time_ns, words) {
                tensors.keep_unsettled(allocator, time_ns, words);
            }
        }
    }

    /// What an allocator had counted when it gave up a request, or when its process ended, is the truth, whatever was seen of its events.
    pub(crate) fn settle_statistics(&mut self, tgid: Tgid, time_ns: u64, ends: bool) {
        let Some(process) = self.processes.get_mut(&tgid) else { return };
        let is_read_only = process.is_read_only();
        let Some(tensors) = &mut process.tensors else { return };
        let Some(numbers) = tensors.take_unsettled(tgid, time_ns) else { return };
        if is_read_only && !ends {
            tensors.learn_numbers(&numbers);
        } else {
            tensors.learn_last(&numbers, ends);
        }
        self.follow_numbers(&numbers);
        self.read_counters(&numbers);
    }

    /// The allocators' counters decide which refusals were survived by a retry.
    fn read_counters(&mut self, numbers: &Numbers) {
        let Some(process) = self.processes.get_mut(&numbers.tgid) else { return };
        let Some(tensors) = &process.tensors else { return };
        let (time_ns, from_start) = (numbers.time_ns, process.from_start);
        for device in &numbers.devices {
            let Some(allocator) = tensors.allocators().get(&device.ordinal) else { continue };
            let counters = &allocator.statistics().counters;
            let (Ok(ooms), Ok(retries)) = (u64::try_from(counters.ooms), u64::try_from(counters.retries)) else {
                continue;
            };
            let reading = FrameworkReading { ooms, retries, time_ns, from_start };
            process.ledger.read_framework(device.ordinal, reading);
        }
    }

    pub(crate) fn learn_books(&mut self, books: &Books) {
        self.follow_time(books.time_ns);
        // What comes after them would not be seen.
        if self.is_read_only(books.tgid) {
            let devices = books.devices.iter().map(|device| (device.ordinal, device.blocks().collect::<Vec<_>>()));
            return self.learn_standing(books.tgid, devices, true);
        }
        if self.watched_tensors(books.tgid).is_some_and(|tensors| tensors.learn_books(books)) {
            self.begin_simulations(books);
            self.observe_fragments_at(books.tgid, books.time_ns);
        }
    }

    /// What is traced is surer than what is read while a program works.
    pub(crate) fn learn_numbers(&mut self, numbers: &Numbers) {
        self.follow_time(numbers.time_ns);
        let Some(process) = self.processes.get_mut(&numbers.tgid).filter(|process| process.is_read_only()) else {
            return;
        };
        process.tensors.get_or_insert_default().learn_numbers(numbers);
        self.follow_numbers(numbers);
        self.read_counters(numbers);
    }

    pub(crate) fn learn_moving_books(&mut self, books: &MovingBooks) {
        self.follow_time(books.time_ns);
        if self.is_read_only(books.tgid) {
            let devices = books.devices.iter().map(|device| (device.ordinal, device.blocks.iter().collect::<Vec<_>>()));
            self.learn_standing(books.tgid, devices, false);
        } else if let Some(tensors) = self.watched_tensors(books.tgid) {
            tensors.learn_moving_books(books);
        }
    }

    /// The blocks of a process of which no event is traced.
    fn learn_standing<'a>(
        &mut self,
        tgid: Tgid,
        devices: impl Iterator<Item = (Ordinal, Vec<&'a BookBlock>)>,
        is_whole: bool,
    ) {
        let Some(tensors) = self.watched_tensors(tgid) else { return };
        for (ordinal, blocks) in devices {
            let allocated = blocks.into_iter().filter(|block| block.state == BookState::ActiveAllocated);
            let blocks = allocated.map(|block| (block.address, block.bytes)).collect();
            tensors.learn_standing(ordinal, &blocks, is_whole);
        }
    }

    pub(crate) fn learn_holdings(&mut self, holdings: Box<Holdings>) {
        self.follow_time(holdings.time_ns);
        if let Some(tensors) = self.watched_tensors(holdings.tgid) {
            tensors.learn_holdings(holdings);
        }
    }

    pub(crate) fn learn_frameworks(&mut self, tgid: Tgid, frameworks: BTreeSet<Framework>) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.frameworks.extend(frameworks);
        }
    }

    pub(crate) fn watch_framework(&mut self, tgid: Tgid, framework: Framework, time_ns: u64) {
        let now_ns = self.now_ns;
        self.process_mut(tgid, now_ns).watch_framework(framework, time_ns);
    }

    pub(crate) fn watch_scratch(&mut self, tgid: Tgid, time_ns: u64) {
        let now_ns = self.now_ns;
        self.process_mut(tgid, now_ns).watch_scratch(time_ns);
    }

    pub(crate) fn learn_arenas(&mut self, books: &ArenaBooks) {
        self.follow_time(books.time_ns);
        let Some(process) = self.processes.get_mut(&books.tgid) else { return };
        process.place_regions(books);
        if process.is_read_only() {
            process.tensors.get_or_insert_default().read_arenas(books);
        } else if let Some(tensors) = self.watched_tensors(books.tgid) {
            tensors.learn_arenas(books);
        }
    }

    /// A framework's arenas in this process, by address, of which their own books would say more than is known.
    pub fn wanted_arenas(&self, tgid: Tgid, framework: Framework) -> Vec<u64> {
        let tensors = self.processes.get(&tgid).and_then(|process| process.tensors.as_ref());
        tensors.map_or_else(Vec::new, |tensors| tensors.arenas().wanted_books(framework))
    }

    pub(crate) fn refuse_books(&mut self, tgid: Tgid, reason: Name) {
        if let Some(tensors) = self.watched_tensors(tgid) {
            tensors.refuse_books(reason);
        }
    }

    /// The tensors of a process that is there, and in which they are watched.
    fn watched_tensors(&mut self, tgid: Tgid) -> Option<&mut TensorLedger> {
        let process = self.processes.get_mut(&tgid)?;
        if process.tensors_ended_ns().is_some() { None } else { process.tensors.as_deref_mut() }
    }

    /// Whether not all blocks of a process are known one by one, and none that were read wait for what happened meanwhile.
    pub fn wants_blocks(&self, tgid: Tgid) -> bool {
        let tensors = self.processes.get(&tgid).and_then(|process| process.tensors.as_ref());
        tensors.is_some_and(|tensors| tensors.wants_blocks())
    }

    /// Whether a reading of its allocators' own books would say more of this process than is known: nothing later than the attach is missing where they
    /// were read once.
    pub fn wants_books(&self, tgid: Tgid) -> bool {
        let tensors = self.processes.get(&tgid).and_then(|process| process.tensors.as_ref());
        tensors.is_some_and(|tensors| tensors.wants_books())
    }

    /// A window in which all events of a process are traced begins or ends.
    pub(crate) fn trace_window(&mut self, tgid: Tgid, time_ns: u64, is_open: bool) {
        self.follow_time(time_ns);
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.trace_window(time_ns, is_open);
        }
    }

    /// From now on more or less of a process is traced.
    pub(crate) fn choose_level(&mut self, choice: LevelChoice) {
        self.follow_time(choice.time_ns);
        // It may have ended meanwhile.
        if let Some(process) = self.processes.get_mut(&choice.tgid) {
            process.choose_level(choice);
        }
    }

    /// The level at which a process is traced, where its price was predicted.
    pub fn level_of(&self, tgid: Tgid) -> Option<LevelChoice> {
        self.processes.get(&tgid).and_then(|process| process.level)
    }

    /// Whether no event of its PyTorch is traced: what its allocators have counted is read.
    pub fn is_read_only(&self, tgid: Tgid) -> bool {
        self.processes.get(&tgid).is_some_and(Process::is_read_only)
    }

    /// Whether nothing of this process was missed: it started after the attach.
    pub fn is_from_start(&self, tgid: Tgid) -> bool {
        self.processes.get(&tgid).is_some_and(|process| process.from_start)
    }

    fn has_ended_tensors(&self, tgid: Tgid) -> bool {
        self.processes.get(&tgid).is_some_and(|process| process.tensors_ended_ns().is_some())
    }

    pub(crate) fn tensors_mut(&mut self, tgid: Tgid) -> &mut TensorLedger {
        let now_ns = self.now_ns;
        self.process_mut(tgid, now_ns).tensors.get_or_insert_default()
    }

    pub(crate) fn watch_tensors(&mut self, tgid: Tgid, missing: &[u16], time_ns: u64) {
        let (now_ns, logs) = (self.now_ns, self.logs_tensors);
        self.process_mut(tgid, now_ns).watch_tensors(missing, time_ns);
        let least_bytes = self.least_listed_bytes;
        let history = self.keeps_history.filter(|(kept, _)| *kept == tgid);
        let tensors = self.tensors_mut(tgid);
        tensors.want_log(logs);
        if let Some(least_bytes) = least_bytes {
            tensors.list_from(least_bytes);
        }
        // A process that is met later begins without one.
        if let Some((_, limit)) = history {
            tensors.keep_history(limit);
        }
    }
}

/// Whether an event is followed at every level: a failure, a range of the program, or counters that begin again.
const fn is_rare(change: &TensorChange) -> bool {
    match change {
        TensorChange::Traced(traced) => matches!(traced.action, TraceAction::OutOfMemory),
        TensorChange::RangeBegins(_)
        | TensorChange::RangeEnds
        | TensorChange::PeaksReset { .. }
        | TensorChange::AccumulatedReset { .. } => true,
        change => change.is_failure(),
    }
}

//! Recorded events and spans of the timeline.

use std::collections::{BTreeMap, VecDeque};

use crate::allocators::threads::{Attribution, Phase};
use crate::attribution::process::Process;
use crate::decode::{Call, TensorChange, TensorEvent};
use crate::features::oom::view::OomView;
use crate::features::samples::ProcessLifetime;
use crate::words::{Name, OUT_OF_MEMORY, Ordinal};

/// Maximum numbers of events and spans; the oldest are dropped.
const KEPT_EVENTS: usize = 1 << 12;
const KEPT_SPANS: usize = 1 << 15;

/// A recorded event.
#[derive(Clone, Debug)]
pub(super) struct TimelineEvent {
    pub(super) time_ns: u64,
    pub(super) life: ProcessLifetime,
    pub(super) failed: bool,
    pub(super) ordinal: Option<Ordinal>,
    pub(super) bytes: u64,
    pub(super) symbol: Option<Name>,
    pub(super) whose: Option<Attribution>,
}

/// Position in a training.
#[derive(Clone, Debug)]
pub(super) enum TrainingPosition {
    Step(u64),
    Phase(Phase),
}

/// All recorded events and spans.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    pub(super) large_bytes: u64,
    pub(super) events: VecDeque<TimelineEvent>,
    pub(super) forgotten_events: u64,
    pub(super) spans: VecDeque<(ProcessLifetime, TrainingPosition, u64, u64)>,
    pub(super) forgotten_spans: u64,
    pub(super) steps: BTreeMap<ProcessLifetime, (u64, u64)>,
    pub(super) phases: BTreeMap<ProcessLifetime, (Phase, u64)>,
}

impl Events {
    pub(crate) const fn new(large_bytes: u64) -> Self {
        Self {
            large_bytes,
            events: VecDeque::new(),
            forgotten_events: 0,
            spans: VecDeque::new(),
            forgotten_spans: 0,
            steps: BTreeMap::new(),
            phases: BTreeMap::new(),
        }
    }

    fn note(&mut self, event: TimelineEvent) {
        if self.events.len() >= KEPT_EVENTS {
            self.events.pop_front();
            self.forgotten_events += 1;
        }
        self.events.push_back(event);
    }

    fn span(&mut self, life: ProcessLifetime, what: TrainingPosition, begun_ns: u64, last_ns: u64) {
        if self.spans.len() >= KEPT_SPANS {
            self.spans.pop_front();
            self.forgotten_spans += 1;
        }
        self.spans.push_back((life, what, begun_ns, last_ns));
    }

    /// Records an event of a process's caching allocators after it was processed.
    pub(crate) fn observe_tensors(&mut self, process: &Process, event: &TensorEvent) {
        let Some(tensors) = &process.tensors else { return };
        let (life, time_ns) = (ProcessLifetime::of(process), event.time_ns);
        let steps = tensors.threads().steps();
        let (known, since_ns) = *self.steps.entry(life).or_insert((steps, time_ns));
        if steps > known {
            self.steps.insert(life, (steps, time_ns));
            self.span(life, TrainingPosition::Step(steps), since_ns, time_ns);
        }
        match event.what {
            TensorChange::Reported { ordinal, address, block_bytes: 1.., .. } => {
                let Some(block) = tensors.attribution().live(ordinal, address) else { return };
                let phase = block.whose.phase;
                let (last, since_ns) = *self.phases.entry(life).or_insert((phase, time_ns));
                if last != phase {
                    self.phases.insert(life, (phase, time_ns));
                    self.span(life, TrainingPosition::Phase(last), since_ns, time_ns);
                }
                if block.bytes >= self.large_bytes {
                    let (bytes, whose) = (block.bytes, Some(block.whose));
                    self.note(TimelineEvent {
                        time_ns,
                        life,
                        failed: false,
                        ordinal: Some(ordinal),
                        bytes,
                        symbol: None,
                        whose,
                    });
                }
            }
            TensorChange::OutOfMemory { .. } | TensorChange::ArenaFails { .. } => {
                let Some(refused) = tensors.refused_by(event) else { return };
                let (ordinal, bytes) = (refused.ordinal, refused.wanted_bytes);
                let whose = tensors.attribution().refused().back().map(|refusal| refusal.whose);
                self.note(TimelineEvent {
                    time_ns,
                    life,
                    failed: true,
                    ordinal: Some(ordinal),
                    bytes,
                    symbol: None,
                    whose,
                });
            }
            _ => {}
        }
    }

    /// Records a failure that a log has, instead of its call.
    pub(crate) fn learn_failure(&mut self, process: &Process, failure: &OomView) {
        self.note(TimelineEvent {
            time_ns: failure.time_ns,
            life: ProcessLifetime::of(process),
            failed: true,
            ordinal: failure.device.map(Ordinal),
            bytes: failure.wanted_bytes,
            symbol: failure.symbol.clone(),
            whose: None,
        });
    }

    /// Records a driver call after it was processed.
    pub(crate) fn observe_call(&mut self, process: &Process, call: &Call) {
        let Some(bytes) = call.action.requested_bytes() else { return };
        let failed = call.status == OUT_OF_MEMORY;
        // For PyTorch every tensor is reported instead.
        let is_large = call.status == 0 && bytes >= self.large_bytes && process.current_tensors().is_none();
        if failed || is_large {
            let (time_ns, life, symbol) = (call.returned_ns, ProcessLifetime::of(process), Some(call.symbol.into()));
            self.note(TimelineEvent { time_ns, life, failed, ordinal: None, bytes, symbol, whose: None });
        }
    }
}

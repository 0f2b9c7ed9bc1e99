//! Simulates a driver and a program of several threads: random histories of overlapping calls over
//! few addresses and handles.
//!
//! Each call is entered, takes effect at one later moment, and returns still later; calls of other
//! threads run in between. The driver hands out an address or handle only while it is free at that
//! moment. The program makes no mistakes: it uses only what a call has returned to it, and frees
//! nothing twice. The memory held at a moment is found by examining every thing that was ever
//! created.
//!
//! Calls that change the meaning of other calls (contexts, pools, graphs) are made while no
//! affected call is running.

use std::collections::BTreeMap;

use memwatch_common::record::CallRecord;

use crate::decode::decode;
use crate::input::LiveAddress;
use crate::ledger::totals::AllocationKind;
use crate::test_calls::*;

use graphs::{Capture, SimulatedGraph};
use pools::{PoolTruth, ProgramPool, SimulatedStream};

/// Number of devices of the simulated machine.
pub(crate) const DEVICES: u32 = 2;

#[path = "contexts.rs"]
mod contexts;
#[path = "effects.rs"]
mod effects;
#[path = "graphs.rs"]
mod graphs;
#[path = "pools.rs"]
mod pools;
#[path = "program.rs"]
mod program;
#[path = "reported.rs"]
mod reported;

const GRANULE: u64 = 0x1000;

/// One decision of the random source: the thread that runs, its action if it is idle, the object,
/// and the size.
pub(crate) type DriverStep = (u8, u8, u8, u16);

/// Bytes by device (`None`: the host) and kind, without zero entries.
pub(crate) type HeldSums = BTreeMap<(Option<u32>, AllocationKind), u64>;

/// What a program may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Threads that call the driver.
    pub(crate) threads: usize,
    /// Whether the program destroys contexts, while no other call runs. It then imports no other
    /// process's memory by address: the driver's documentation does not specify what happens to
    /// that.
    pub(crate) teardown: bool,
    /// Whether handle values are never reused.
    pub(crate) fresh_handles: bool,
    /// Whether the program has pools, streams, graphs and multicast objects: the meaning of a call
    /// on them depends on calls long before.
    pub(crate) stateful: bool,
    /// Family of calls that the program prefers.
    pub(crate) focus: Focus,
}

/// Preferred families of calls. Calls that matter only in combination are too rare in a program
/// that makes all calls equally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Focus {
    Everything,
    Pools,
    Graphs,
    Multicast,
    Contexts,
}

impl Focus {
    pub(crate) const ALL: [Self; 5] = [Self::Everything, Self::Pools, Self::Graphs, Self::Multicast, Self::Contexts];
}

/// A call's record, and the bytes held when it arrives: at least, and at most if frees in flight
/// are included.
#[derive(Clone, Debug)]
pub(crate) struct HistoryMoment {
    pub(crate) record: CallRecord,
    pub(crate) at_least: HeldSums,
    pub(crate) at_most: HeldSums,
    pub(crate) pools: Vec<PoolTruth>,
    /// Counts, only while no call is running: then they are exact.
    pub(crate) counts: Option<SimulatedCounts>,
    /// Contents of the kernel half's allocation map.
    pub(crate) allocation_map: Vec<LiveAddress>,
    /// Whether the allocation map compensates for the loss of this record.
    pub(crate) losable: bool,
}

/// Numbers that are not bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedCounts {
    pub(crate) aliases: usize,
    pub(crate) reservation_bytes: u64,
    pub(crate) modules: usize,
    pub(crate) graph_node_bytes: u64,
    pub(crate) has_graph_memory: bool,
}

/// A thing that is live at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Survivor {
    pub(crate) kind: AllocationKind,
    pub(crate) bytes: u64,
    /// Index of the moment of its allocation.
    pub(crate) since: usize,
}

/// Everything that happened.
#[derive(Clone, Debug)]
pub(crate) struct DriverHistory {
    pub(crate) moments: Vec<HistoryMoment>,
    pub(crate) survivors: Vec<Survivor>,
    pub(crate) torn_down: u64,
    pub(crate) refused: u64,
}

impl DriverHistory {
    /// Formats the calls up to this one for the message of a failed test.
    pub(crate) fn reported(&self, index: usize) -> String {
        let call = |moment: &HistoryMoment| {
            let call = decode(&moment.record).expect("a row of the table");
            format!("\n{} {}..{} {:?} = {}", call.tid.0, call.entered_ns, call.returned_ns, call.action, call.status)
        };
        self.moments[..=index].iter().map(call).collect()
    }
}

/// What a call creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThingKind {
    /// Memory of a kind other than stream-ordered.
    Own(AllocationKind),
    /// Stream-ordered memory, from the current pool if `pool` is `None`.
    Pooled {
        pool: Option<usize>,
        stream: u64,
    },
    ImportedHandle,
    ImportedPointer {
        pool: usize,
    },
    ExternalBuffer,
    OpenedByIpc,
    Multicast,
    Reservation,
    Library,
}

/// What one address or handle refers to, or several: physical memory.
struct DriverThing {
    what: ThingKind,
    /// `None` if it is not memory of the process's own.
    kind: Option<AllocationKind>,
    device: Option<u32>,
    context: Option<u64>,
    pool: Option<usize>,
    bytes: u64,
    since: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Address,
    Ipc,
    Array,
    Registered,
    Handle,
    Range,
    /// Part of a multicast object.
    Bound,
    Reservation,
    Library,
}

/// A reference to a thing.
struct Hold {
    thing: usize,
    space: Space,
    key: u64,
    /// Length of the address range from `key` on.
    length: u64,
    /// Multicast object without which the reference has no effect.
    object: Option<usize>,
    in_driver: bool,
    state: HoldState,
}

/// State of a reference as the program and the kernel half know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldState {
    /// The call that creates the reference has not returned.
    Coming,
    Idle,
    /// A call that needs the reference is running.
    InUse,
    /// A call that ends the reference is running.
    Ending,
    Ended,
}

impl HoldState {
    /// Returns whether the reference counts, excluding those for which a call that ends them was
    /// entered.
    fn is_held(self) -> bool {
        matches!(self, Self::Idle | Self::InUse)
    }

    /// Returns whether the reference counts until a call that ends it has returned.
    fn is_held_or_ending(self) -> bool {
        self.is_held() || self == Self::Ending
    }
}

#[derive(Clone, Debug)]
enum Deed {
    /// Creates a thing, on this device if the call takes one.
    Make(ThingKind, u32),
    /// Adds another reference to a thing.
    Map {
        source: usize,
        address: u64,
        length: u64,
    },
    Retain {
        source: usize,
    },
    /// Opens an open thing once more.
    Reopen {
        source: usize,
    },
    /// Binds physical memory to a multicast object, by a call that takes the device (`named`) or by
    /// one that does not.
    Bind {
        source: usize,
        object: usize,
        offset: u64,
        named: bool,
    },
    /// Unbinds physical memory from a multicast object.
    Unbind {
        bound: usize,
        object: usize,
    },
    End(Vec<usize>),
}

impl Deed {
    /// Returns the references that must stay while the call runs.
    fn needs(&self) -> Vec<usize> {
        match self {
            Self::Make(..) | Self::End(_) => Vec::new(),
            Self::Map { source, .. } | Self::Retain { source } | Self::Reopen { source } => vec![*source],
            Self::Bind { source, object, .. } => vec![*source, *object],
            Self::Unbind { object, .. } => vec![*object],
        }
    }

    fn ends(&self) -> Vec<usize> {
        match self {
            Self::End(holds) => holds.clone(),
            Self::Unbind { bound, .. } => vec![*bound],
            _ => Vec::new(),
        }
    }
}

struct RunningCall {
    deed: Deed,
    entered_ns: u64,
    bytes: u64,
    /// Set at the effect: the status, and the created reference.
    effect: Option<(i32, Option<usize>)>,
}

struct Context {
    handle: u64,
    device: u32,
    alive: bool,
    /// Context that owns the memory allocated in this one: itself, unless it represents a green
    /// context.
    owner: u64,
    /// Green context that it represents.
    green: Option<u64>,
}

#[derive(Default)]
struct SimulatedThread {
    stack: Vec<u64>,
    running: Option<RunningCall>,
}

struct SimulatedWorld {
    habits: Habits,
    now_ns: u64,
    threads: Vec<SimulatedThread>,
    things: Vec<DriverThing>,
    holds: Vec<Hold>,
    contexts: Vec<Context>,
    primary_references: [u32; DEVICES as usize],
    streams: Vec<SimulatedStream>,
    pools: Vec<ProgramPool>,
    /// Current pool of each device.
    current_pools: [usize; DEVICES as usize],
    graphs: Vec<SimulatedGraph>,
    captures: Vec<Capture>,
    last_handle: u64,
    history: DriverHistory,
}

impl SimulatedWorld {
    fn new(habits: Habits) -> Self {
        let context = |device| {
            let handle = 0xc0 + u64::from(device);
            Context { handle, device, alive: true, owner: handle, green: None }
        };
        Self {
            habits,
            now_ns: 1000,
            threads: (0..habits.threads).map(|_| SimulatedThread::default()).collect(),
            things: Vec::new(),
            holds: Vec::new(),
            contexts: (0..DEVICES).map(context).collect(),
            primary_references: [1; DEVICES as usize],
            streams: Vec::new(),
            pools: (0..DEVICES).map(ProgramPool::default_of).collect(),
            current_pools: [0, 1],
            graphs: Vec::new(),
            captures: Vec::new(),
            last_handle: 0,
            history: DriverHistory { moments: Vec::new(), survivors: Vec::new(), torn_down: 0, refused: 0 },
        }
    }
}

/// Runs a program with these habits through these steps, and lets every call return at the end.
pub(crate) fn play(habits: Habits, steps: &[DriverStep]) -> DriverHistory {
    let mut world = SimulatedWorld::new(habits);
    for device in 0..DEVICES {
        world.instant(0, primary_ctx_retain(0xc0 + u64::from(device), device));
    }
    for thread in 0..habits.threads {
        let context = 0xc0 + u64::try_from(thread).expect("few threads") % u64::from(DEVICES);
        world.threads[thread].stack.push(context);
        world.instant(thread, ctx_set_current(context));
    }
    for step in steps {
        world.step(usize::from(step.0) % habits.threads, *step);
    }
    for thread in 0..habits.threads {
        while world.threads[thread].running.is_some() {
            world.step(thread, (0, 0, 0, 1));
        }
    }
    world.finish()
}

impl SimulatedWorld {
    /// Enters a call, makes it take effect, or returns from it, depending on the thread's state.
    fn step(&mut self, thread: usize, (_, choice, pick, bytes): DriverStep) {
        self.now_ns += 1;
        match self.threads[thread].running.take() {
            None => self.enter(thread, choice, usize::from(pick), u64::from(bytes) + 1),
            Some(running) if running.effect.is_none() => {
                let effect = Some(self.effect(thread, &running, bytes % 13 == 0));
                self.threads[thread].running = Some(RunningCall { effect, ..running });
            }
            Some(running) => self.leave(thread, &running),
        }
    }

    fn finish(mut self) -> DriverHistory {
        let survivor = |(index, thing): (usize, &DriverThing)| {
            let (kind, since) = (thing.kind?, thing.since?);
            self.is_held(index, &HoldState::is_held).then_some(Survivor { kind, bytes: thing.bytes, since })
        };
        let survivors = self.things.iter().enumerate().filter_map(survivor).collect();
        self.history.survivors = survivors;
        self.history
    }

    /// Returns whether no call is running.
    fn is_quiet(&self) -> bool {
        self.threads.iter().all(|thread| thread.running.is_none())
    }
}

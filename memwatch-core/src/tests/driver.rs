//! A driver and a program of several threads, simulated: random histories of overlapping calls over few addresses and handles.
//!
//! Each call is entered, has its effect at one later moment, and returns still later; other threads' calls go on between. The driver
//! hands out an address or handle only while it is free at that moment, and the program makes no mistakes: it uses only what a call has
//! returned to it, and gives nothing back twice. What is then held is found by looking at every thing there ever was.
//!
//! Calls that change what other calls mean (contexts, pools, graphs) are made while nothing runs that they matter to.

use std::collections::BTreeMap;

use memwatch_common::record::CallRecord;

use crate::decode::decode;
use crate::input::Held;
use crate::ledger::totals::Kind;
use crate::test_calls::*;

use graphs::{Capture, Graph};
use pools::{Pool, PoolTruth, Stream};

/// Devices of the simulated machine.
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

/// One decision of the random source: which thread goes on, what it does if it is idle, with what, and with how much.
pub(crate) type Step = (u8, u8, u8, u16);

/// Bytes by device (`None`: the host) and kind; what is nothing is left out.
pub(crate) type Sums = BTreeMap<(Option<u32>, Kind), u64>;

/// What a program may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Threads that call the driver.
    pub(crate) threads: usize,
    /// It tears contexts down, while no other call runs. It then sees no other process's memory by address: what becomes of that, the
    /// driver's documents do not say.
    pub(crate) teardown: bool,
    /// A handle value is never used again.
    pub(crate) fresh_handles: bool,
    /// It has pools, streams, graphs and multicast objects: what a call on one of them means depends on calls long before.
    pub(crate) stateful: bool,
    /// What it does most of.
    pub(crate) focus: Focus,
}

/// Families of calls a program may be fond of: the ones that only matter together are too rare in one that does everything.
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

/// A call's record, and what is held when it arrives: at least, and at most where frees in flight are counted in.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) record: CallRecord,
    pub(crate) at_least: Sums,
    pub(crate) at_most: Sums,
    pub(crate) pools: Vec<PoolTruth>,
    /// Reported only while no call is running: then they are exact.
    pub(crate) counts: Option<Counts>,
    /// What the kernel half's allocation map says.
    pub(crate) allocation_map: Vec<Held>,
    /// The allocation map makes up for the loss of this record.
    pub(crate) losable: bool,
}

/// What is counted and not measured in bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) aliases: usize,
    pub(crate) reservation_bytes: u64,
    pub(crate) modules: usize,
    pub(crate) graph_node_bytes: u64,
    pub(crate) has_graph_memory: bool,
}

/// Something that is live in the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Survivor {
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    /// Index of the moment of its allocation.
    pub(crate) since: usize,
}

/// All that happened.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) moments: Vec<Moment>,
    pub(crate) survivors: Vec<Survivor>,
    pub(crate) torn_down: u64,
    pub(crate) refused: u64,
}

impl History {
    /// The calls up to this one, for a failure to be read.
    pub(crate) fn reported(&self, index: usize) -> String {
        let call = |moment: &Moment| {
            let call = decode(&moment.record).expect("a row of the table");
            format!("\n{} {}..{} {:?} = {}", call.tid.0, call.entered_ns, call.returned_ns, call.action, call.status)
        };
        self.moments[..=index].iter().map(call).collect()
    }
}

/// What a call makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Memory of a kind, but for stream-ordered memory.
    Own(Kind),
    /// Stream-ordered memory; without a pool from the current one.
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

/// Whatever is held by one address or handle, or by several: physical memory.
struct Thing {
    what: What,
    /// `None`: no memory of the process's own.
    kind: Option<Kind>,
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
    /// Parts of a multicast object.
    Bound,
    Reservation,
    Library,
}

/// A way in which a thing is held.
struct Hold {
    thing: usize,
    space: Space,
    key: u64,
    /// Addresses it takes from `key` on.
    length: u64,
    /// The multicast object without which it is nothing.
    object: Option<usize>,
    in_driver: bool,
    state: State,
}

/// A hold as the program and the kernel half know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The call that makes it has not returned.
    Coming,
    Idle,
    /// A call that needs it is running.
    InUse,
    /// A call that ends it is running.
    Ending,
    Ended,
}

impl State {
    /// It counts, unless a call that ends it was entered.
    fn is_held(self) -> bool {
        matches!(self, Self::Idle | Self::InUse)
    }

    /// It counts until a call that ends it has returned.
    fn is_held_or_ending(self) -> bool {
        self.is_held() || self == Self::Ending
    }
}

#[derive(Clone, Debug)]
enum Deed {
    /// A new thing, on a device where the call names one.
    Make(What, u32),
    /// One hold more on a thing that is already held.
    Map {
        source: usize,
        address: u64,
        length: u64,
    },
    Retain {
        source: usize,
    },
    /// What is open is opened once more.
    Reopen {
        source: usize,
    },
    /// Physical memory becomes part of a multicast object, by a call that names its device or by one that does not.
    Bind {
        source: usize,
        object: usize,
        offset: u64,
        named: bool,
    },
    /// And is no longer.
    Unbind {
        bound: usize,
        object: usize,
    },
    End(Vec<usize>),
}

impl Deed {
    /// Holds that must stay while it runs.
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

struct Running {
    deed: Deed,
    entered_ns: u64,
    bytes: u64,
    /// Set at the effect: the status, and the hold that came of it.
    effect: Option<(i32, Option<usize>)>,
}

struct Context {
    handle: u64,
    device: u32,
    alive: bool,
    /// The context whose memory is what is allocated in it: itself, unless it stands for a green one.
    owner: u64,
    /// The green context it stands for.
    green: Option<u64>,
}

#[derive(Default)]
struct Thread {
    stack: Vec<u64>,
    running: Option<Running>,
}

struct World {
    habits: Habits,
    now_ns: u64,
    threads: Vec<Thread>,
    things: Vec<Thing>,
    holds: Vec<Hold>,
    contexts: Vec<Context>,
    primary_references: [u32; DEVICES as usize],
    streams: Vec<Stream>,
    pools: Vec<Pool>,
    /// By device.
    current_pools: [usize; DEVICES as usize],
    graphs: Vec<Graph>,
    captures: Vec<Capture>,
    last_handle: u64,
    history: History,
}

impl World {
    fn new(habits: Habits) -> Self {
        let context = |device| {
            let handle = 0xc0 + u64::from(device);
            Context { handle, device, alive: true, owner: handle, green: None }
        };
        Self {
            habits,
            now_ns: 1000,
            threads: (0..habits.threads).map(|_| Thread::default()).collect(),
            things: Vec::new(),
            holds: Vec::new(),
            contexts: (0..DEVICES).map(context).collect(),
            primary_references: [1; DEVICES as usize],
            streams: Vec::new(),
            pools: (0..DEVICES).map(Pool::default_of).collect(),
            current_pools: [0, 1],
            graphs: Vec::new(),
            captures: Vec::new(),
            last_handle: 0,
            history: History { moments: Vec::new(), survivors: Vec::new(), torn_down: 0, refused: 0 },
        }
    }
}

/// Lets a program with these habits take these steps, and every call return in the end.
pub(crate) fn play(habits: Habits, steps: &[Step]) -> History {
    let mut world = World::new(habits);
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

impl World {
    /// The thread enters a call, or its call has its effect, or returns.
    fn step(&mut self, thread: usize, (_, choice, pick, bytes): Step) {
        self.now_ns += 1;
        match self.threads[thread].running.take() {
            None => self.enter(thread, choice, usize::from(pick), u64::from(bytes) + 1),
            Some(running) if running.effect.is_none() => {
                let effect = Some(self.effect(thread, &running, bytes % 13 == 0));
                self.threads[thread].running = Some(Running { effect, ..running });
            }
            Some(running) => self.leave(thread, &running),
        }
    }

    fn finish(mut self) -> History {
        let survivor = |(index, thing): (usize, &Thing)| {
            let (kind, since) = (thing.kind?, thing.since?);
            self.is_held(index, &State::is_held).then_some(Survivor { kind, bytes: thing.bytes, since })
        };
        let survivors = self.things.iter().enumerate().filter_map(survivor).collect();
        self.history.survivors = survivors;
        self.history
    }

    /// Whether no call is running.
    fn is_quiet(&self) -> bool {
        self.threads.iter().all(|thread| thread.running.is_none())
    }
}

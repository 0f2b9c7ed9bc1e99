//! A driver and a program of several threads, simulated: random histories of overlapping calls over few addresses and handles.
//!
//! Each call is entered, has its effect at one later moment, and returns still later; other threads' calls go on between. The driver
//! hands out an address or handle only while it is free at that moment, and the program makes no mistakes: it uses only what a call has
//! returned to it, and gives nothing back twice. What is then held is told by looking at every thing there ever was.

use std::collections::BTreeMap;

use memwatch_common::record::CallRecord;

use crate::ledger::totals::Kind;
use crate::test_calls::*;

/// Devices of the simulated machine.
pub(crate) const DEVICES: u32 = 2;

#[path = "program.rs"]
mod program;

const NO_CONTEXT: i32 = 201;
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
    /// It tears contexts down, while no other call runs.
    pub(crate) teardown: bool,
    /// A handle value is never used again.
    pub(crate) fresh_handles: bool,
}

/// A call's record, and what is held when it arrives: at least, and at most where frees in flight are counted in.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) record: CallRecord,
    pub(crate) at_least: Sums,
    pub(crate) at_most: Sums,
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

/// Memory, held by one address or handle, or by several: physical memory.
struct Thing {
    /// `None`: imported.
    kind: Option<Kind>,
    device: Option<u32>,
    context: Option<u64>,
    bytes: u64,
    since: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Address,
    Array,
    Registered,
    Handle,
    Range,
}

/// A way in which a thing is held.
struct Hold {
    thing: usize,
    space: Space,
    key: u64,
    /// Addresses it takes from `key` on.
    length: u64,
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
    /// A new thing of a kind on a device; `None` imports.
    Make(Option<Kind>, u32),
    /// One hold more on a thing that is already held.
    Map {
        source: usize,
        address: u64,
        length: u64,
    },
    Retain {
        source: usize,
    },
    End(Vec<usize>),
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
    last_handle: u64,
    history: History,
}

/// Lets a program with these habits take these steps, and every call return in the end.
pub(crate) fn play(habits: Habits, steps: &[Step]) -> History {
    let history = History { moments: Vec::new(), survivors: Vec::new(), torn_down: 0, refused: 0 };
    let contexts =
        (0..DEVICES).map(|device| Context { handle: 0xc0 + u64::from(device), device, alive: true }).collect();
    let threads = (0..habits.threads).map(|_| Thread::default()).collect();
    let (things, holds) = (Vec::new(), Vec::new());
    let primary_references = [1; DEVICES as usize];
    let mut world =
        World { habits, now_ns: 1000, threads, things, holds, contexts, primary_references, last_handle: 0, history };
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
            Some(running) => self.leave(thread, running),
        }
    }

    fn finish(mut self) -> History {
        let live = |index: usize| self.holds.iter().any(|hold| hold.thing == index && hold.state.is_held());
        let survivor = |(index, thing): (usize, &Thing)| {
            let (kind, since) = (thing.kind?, thing.since?);
            live(index).then_some(Survivor { kind, bytes: thing.bytes, since })
        };
        let survivors = self.things.iter().enumerate().filter_map(survivor).collect();
        self.history.survivors = survivors;
        self.history
    }

    // What the driver does.

    /// Everything that lives in a context goes.
    fn empty(&mut self, context: u64) {
        for hold in &mut self.holds {
            let thing = &self.things[hold.thing];
            let dies = matches!(thing.kind, Some(Kind::Device | Kind::Managed | Kind::PinnedHost | Kind::Array));
            if dies && thing.context == Some(context) && hold.state.is_held() {
                (hold.in_driver, hold.state) = (false, State::Ended);
                self.history.torn_down += 1;
            }
        }
    }

    /// The status, and the hold that came of it.
    fn effect(&mut self, thread: usize, running: &Running, fails: bool) -> (i32, Option<usize>) {
        if fails {
            return (INVALID_VALUE, None);
        }
        match &running.deed {
            Deed::Make(kind, device) => self.make(thread, *kind, *device, running.bytes),
            Deed::Map { source, address, length } => {
                let taken = |hold: &Hold| {
                    let apart = hold.key + hold.length <= *address || address + length <= hold.key;
                    hold.space == Space::Range && hold.in_driver && !apart
                };
                if self.holds.iter().any(taken) {
                    return (INVALID_VALUE, None);
                }
                (0, Some(self.hold(self.holds[*source].thing, Space::Range, *address, *length)))
            }
            Deed::Retain { source } => {
                let thing = self.holds[*source].thing;
                let same = |hold: &&Hold| hold.thing == thing && hold.space == Space::Handle && hold.in_driver;
                let handle = self.holds.iter().find(same).map(|hold| hold.key);
                match handle.or_else(|| self.free_key(Space::Handle)) {
                    Some(handle) => (0, Some(self.hold(thing, Space::Handle, handle, 0))),
                    None => (OUT_OF_MEMORY, None),
                }
            }
            Deed::End(holds) => {
                for hold in holds {
                    self.holds[*hold].in_driver = false;
                }
                (0, None)
            }
        }
    }

    fn make(&mut self, thread: usize, kind: Option<Kind>, device: u32, bytes: u64) -> (i32, Option<usize>) {
        let (space, needs_context) = match kind {
            None | Some(Kind::Physical | Kind::HostPhysical) => (Space::Handle, false),
            Some(Kind::Array) => (Space::Array, true),
            Some(Kind::Registered) => (Space::Registered, true),
            Some(_) => (Space::Address, true),
        };
        let current = self.threads[thread].stack.last();
        let current = self.contexts.iter().find(|context| Some(&context.handle) == current && context.alive);
        let (context, current_device) = (current.map(|own| own.handle), current.map(|own| own.device));
        if needs_context && context.is_none() {
            return (NO_CONTEXT, None);
        }
        let device = match kind {
            Some(kind) if kind.is_host() => None,
            Some(Kind::Physical) => Some(device),
            _ => current_device,
        };
        let Some(key) = self.free_key(space) else { return (OUT_OF_MEMORY, None) };
        self.things.push(Thing { kind, device, context, bytes, since: None });
        (0, Some(self.hold(self.things.len() - 1, space, key, 0)))
    }

    fn hold(&mut self, thing: usize, space: Space, key: u64, length: u64) -> usize {
        self.holds.push(Hold { thing, space, key, length, in_driver: true, state: State::Coming });
        self.holds.len() - 1
    }

    fn free_key(&mut self, space: Space) -> Option<u64> {
        let taken = |key: &u64| self.holds.iter().any(|hold| hold.space == space && hold.key == *key && hold.in_driver);
        if space == Space::Handle && self.habits.fresh_handles {
            self.last_handle += 1;
            return Some(self.last_handle);
        }
        (1..=4).find(|key| !taken(key))
    }

    // What the kernel half sees.

    fn leave(&mut self, thread: usize, running: Running) {
        let (status, made) = running.effect.unwrap_or_default();
        let key = made.map_or(0, |made| self.holds[made].key);
        let call = self.call(&running, key);
        let asked = matches!(running.deed, Deed::Make(Some(kind), _) if kind != Kind::Registered);
        self.history.refused += u64::from(asked && status != 0);
        if let Some(made) = made {
            self.holds[made].state = State::Idle;
            self.things[self.holds[made].thing].since.get_or_insert(self.history.moments.len());
        }
        match running.deed {
            Deed::Make(..) => {}
            Deed::Map { source, .. } | Deed::Retain { source } => self.holds[source].state = State::Idle,
            Deed::End(holds) => {
                let state = if status == 0 { State::Ended } else { State::Idle };
                for hold in holds {
                    self.holds[hold].state = state;
                }
            }
        }
        let call = if status == 0 { call } else { call.failing(status) };
        self.report(thread, call, running.entered_ns);
    }

    fn call(&self, running: &Running, key: u64) -> TestCall {
        let bytes = running.bytes;
        match &running.deed {
            Deed::Make(None, _) => mem_import(key),
            Deed::Make(Some(kind), device) => match kind {
                Kind::Device => mem_alloc(key, bytes),
                Kind::Managed => mem_alloc_managed(key, bytes),
                Kind::Pool => mem_alloc_async(key, bytes),
                Kind::PinnedHost => mem_host_alloc(key, bytes),
                Kind::Array => array_create(key, bytes),
                Kind::Registered => mem_host_register(key, bytes),
                Kind::Physical => mem_create(key, bytes, (ON_DEVICE, *device)),
                Kind::HostPhysical => mem_create(key, bytes, (ON_HOST, 0)),
                Kind::Graph => panic!("nothing in the model is a graph's"),
            },
            Deed::Map { source, address, length } => mem_map(*address, *length, 0, self.holds[*source].key),
            Deed::Retain { source } => mem_retain(key, self.holds[*source].key + self.holds[*source].length - 1),
            Deed::End(holds) => {
                let (first, last) = (&self.holds[holds[0]], &self.holds[holds[holds.len() - 1]]);
                match (first.space, self.things[first.thing].kind) {
                    (Space::Address, Some(Kind::PinnedHost)) => mem_free_host(first.key),
                    (Space::Address, Some(Kind::Pool)) if bytes.is_multiple_of(2) => mem_free_async(first.key),
                    (Space::Address, _) => mem_free(first.key),
                    (Space::Array, _) => array_destroy(first.key),
                    (Space::Registered, _) => mem_host_unregister(first.key),
                    (Space::Handle, _) => mem_release(first.key),
                    (Space::Range, _) => mem_unmap(first.key, last.key + last.length - first.key),
                }
            }
        }
    }

    /// A call that overlaps nothing that matters to it.
    fn instant(&mut self, thread: usize, call: TestCall) {
        let entered_ns = self.now_ns;
        self.report(thread, call, entered_ns);
    }

    fn report(&mut self, thread: usize, call: TestCall, entered_ns: u64) {
        self.now_ns += 1;
        let tid = TID + u32::try_from(thread).expect("few threads");
        let record = call.thread(tid).at(entered_ns, self.now_ns).0;
        let at_least = self.sums(State::is_held);
        let at_most = self.sums(State::is_held_or_ending);
        self.history.moments.push(Moment { record, at_least, at_most });
    }

    fn sums(&self, counts: impl Fn(State) -> bool) -> Sums {
        let mut sums = Sums::new();
        for (index, thing) in self.things.iter().enumerate() {
            let held = self.holds.iter().any(|hold| hold.thing == index && counts(hold.state));
            if let (Some(kind), true) = (thing.kind, held) {
                *sums.entry((thing.device, kind)).or_insert(0) += thing.bytes;
            }
        }
        sums
    }
}

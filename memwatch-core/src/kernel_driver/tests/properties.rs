//! The state of the kernel driver against a naive tree.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::input::rm::RmCall;
use crate::kernel_driver::KernelDriver;
use crate::kernel_driver::decode::Lies;
use crate::test_calls::rm::*;
use crate::words::Tgid;

#[derive(Clone, Copy, Debug, PartialEq)]
enum NaiveObjectKind {
    Device,
    Memory(u64),
    Import((u32, u32)),
    Other,
}

#[derive(Clone, Copy, Debug)]
struct NaiveObject {
    name: (u32, u32),
    parent: u32,
    thing: NaiveObjectKind,
}

/// Objects in the order of their creation, and the owners of the clients.
#[derive(Default)]
struct NaiveKernelDriver {
    nodes: Vec<NaiveObject>,
    clients: Vec<(u32, u32)>,
}

impl NaiveKernelDriver {
    fn find(&self, name: (u32, u32)) -> Option<NaiveObjectKind> {
        self.nodes.iter().find(|node| node.name == name).map(|node| node.thing)
    }

    fn drop_where(&mut self, gone: impl Fn(&NaiveObject) -> bool) {
        let (gone, kept) = std::mem::take(&mut self.nodes).into_iter().partition(|node| gone(node));
        self.nodes = kept;
        let gone: Vec<NaiveObject> = gone;
        for node in gone {
            let NaiveObjectKind::Memory(bytes) = node.thing else { continue };
            let is_import = |other: &NaiveObject| other.thing == NaiveObjectKind::Import(node.name);
            let Some(place) = self.nodes.iter().position(is_import) else { continue };
            self.nodes[place].thing = NaiveObjectKind::Memory(bytes);
            let heir = self.nodes[place].name;
            let others = self.nodes.iter_mut().filter(|other| other.thing == NaiveObjectKind::Import(node.name));
            others.for_each(|other| other.thing = NaiveObjectKind::Import(heir));
        }
    }

    fn free(&mut self, (client, object): (u32, u32)) {
        let mut names = vec![object];
        loop {
            let below = |node: &&NaiveObject| node.name.0 == client && names.contains(&node.parent);
            let more: Vec<u32> = self.nodes.iter().filter(below).map(|node| node.name.1).collect();
            let more: Vec<u32> = more.into_iter().filter(|name| !names.contains(name)).collect();
            if more.is_empty() {
                break;
            }
            names.extend(more);
        }
        // Freeing a name that is not an object frees nothing, not even its descendants.
        if self.find((client, object)).is_some() {
            self.drop_where(|node| node.name.0 == client && names.contains(&node.name.1));
        }
    }

    fn put(&mut self, tgid: u32, name: (u32, u32), parent: u32, thing: NaiveObjectKind) {
        self.meet(tgid, name.0);
        self.free(name);
        self.nodes.push(NaiveObject { name, parent, thing });
    }

    fn meet(&mut self, tgid: u32, client: u32) {
        if !self.clients.iter().any(|(number, _)| *number == client) {
            self.clients.push((client, tgid));
        }
    }

    fn forget_client(&mut self, client: u32) {
        self.clients.retain(|(number, _)| *number != client);
        self.drop_where(|node| node.name.0 == client);
    }

    fn end(&mut self, tgid: u32) {
        let own: Vec<u32> =
            self.clients.iter().filter(|(_, owner)| *owner == tgid).map(|(number, _)| *number).collect();
        self.clients.retain(|(_, owner)| *owner != tgid);
        self.drop_where(|node| own.contains(&node.name.0));
    }

    fn bytes(&self, tgid: u32) -> u64 {
        let is_own = |client| self.clients.contains(&(client, tgid));
        let own = self.nodes.iter().filter(|node| is_own(node.name.0));
        own.map(|node| if let NaiveObjectKind::Memory(bytes) = node.thing { bytes } else { 0 }).sum()
    }
}

/// A step: an action, the process, client and object, and its parent or source.
type RequestStep = (u8, u32, u32, u32, (u32, u32));

const PAGE: u64 = 4096;

fn client_number(client: u32) -> u32 {
    0xc1d0_0000 + client
}

/// Returns the request of a step, or `None` if the step is a process's exit.
fn request(layout: AllocLayout, (what, _, client_index, object, (other, more)): RequestStep) -> Option<Rm> {
    let number = client_number(client_index);
    let names = (number, other, object);
    let granted = PAGE * u64::from(object + 10 * other + 1);
    Some(match what {
        0 | 1 => client(layout, number),
        2..5 => made(layout, names, 0x80),
        5 => made(layout, names, 0xc2),
        6..14 => video(layout, names, granted - 1, granted),
        14 => video(layout, names, granted, granted).refused(layout, 0x51),
        15..18 => free(number, object),
        18 => free(number, number),
        19..24 => duplicate(names, (client_number(more), other)),
        _ => return None,
    })
}

fn naively(naive: &mut NaiveKernelDriver, (what, tgid, client_index, object, (other, more)): RequestStep) {
    let number = client_number(client_index);
    let name = (number, object);
    let granted = PAGE * u64::from(object + 10 * other + 1);
    match what {
        0 | 1 => {
            naive.forget_client(number);
            naive.meet(tgid, number);
        }
        2..5 => naive.put(tgid, name, other, NaiveObjectKind::Device),
        5 => naive.put(tgid, name, other, NaiveObjectKind::Other),
        6..14 => {
            naive.meet(tgid, number);
            if matches!(naive.find((number, other)), None | Some(NaiveObjectKind::Device)) {
                naive.put(tgid, name, other, NaiveObjectKind::Memory(granted));
            }
        }
        15..18 => naive.free(name),
        18 => naive.forget_client(number),
        19..24 => {
            let source = (client_number(more), other);
            let original = match naive.find(source) {
                Some(NaiveObjectKind::Memory(_)) => Some(source),
                Some(NaiveObjectKind::Import(original)) => Some(original),
                _ => None,
            };
            naive.put(tgid, name, other, NaiveObjectKind::Other);
            let is_there = |name: &(u32, u32)| matches!(naive.find(*name), Some(NaiveObjectKind::Memory(_)));
            if let Some(original) = original.filter(is_there) {
                let node = naive.nodes.last_mut().expect("it was put in last");
                node.thing = NaiveObjectKind::Import(original);
            }
        }
        14 => {}
        24.. => naive.end(tgid),
    }
}

fn steps() -> impl Strategy<Value = Vec<RequestStep>> {
    vec((0_u8..26, 1_u32..4, 0_u32..4, 1_u32..7, (1_u32..7, 0_u32..4)), 0..120)
}

fn apply(ledger: &mut KernelDriver, layout: AllocLayout, place: u64, step: RequestStep) {
    match request(layout, step) {
        Some(rm) => ledger.apply(&RmCall { ..rm.process(step.1).at(10 * place, 10 * place + 5).0 }, None),
        None => ledger.end(Tgid(step.1), 10 * place),
    }
}

fn begun(layout: AllocLayout) -> KernelDriver {
    let mut ledger = KernelDriver::default();
    ledger.learn_version(Some(layout.version.to_owned()));
    ledger
}

/// Returns the video memory summed over objects, and according to the running totals.
fn sums(ledger: &KernelDriver, tgid: u32) -> (u64, u64) {
    let video = ledger.memory(Tgid(tgid)).filter(|(.., memory)| memory.lies == Lies::Video);
    let by_object = video.map(|(.., memory)| memory.granted_bytes).sum();
    (by_object, ledger.ledger_of(Tgid(tgid)).map_or(0, |ledger| ledger.live().map(|(_, bytes)| bytes).sum()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_requests_gives_what_a_naive_tree_gives_in_every_layout(steps in steps()) {
        for layout in LAYOUTS {
            let (mut ledger, mut naive) = (begun(layout), NaiveKernelDriver::default());
            for (place, step) in (1..).zip(&steps) {
                apply(&mut ledger, layout, place, *step);
                naively(&mut naive, *step);
                for tgid in 1..4 {
                    let expected = naive.bytes(tgid);
                    prop_assert_eq!(sums(&ledger, tgid), (expected, expected), "{:?} after {:?}", layout, step);
                }
            }
        }
    }

    #[test]
    fn rm_ledger_resumes_from_serialized_state_at_any_step(
        steps in steps(), place in any::<prop::sample::Index>()
    ) {
        let (mut whole, mut broken) = (begun(NEWEST), begun(NEWEST));
        let at = place.index(steps.len() + 1);
        for (place, step) in (1..).zip(&steps) {
            if place == at {
                let kept = postcard::to_allocvec(&broken).expect("they can be kept");
                broken = postcard::from_bytes(&kept).expect("they are what was kept");
            }
            apply(&mut whole, NEWEST, place as u64, *step);
            apply(&mut broken, NEWEST, place as u64, *step);
        }
        prop_assert_eq!(format!("{whole:?}"), format!("{broken:?}"));
    }

    #[test]
    fn requests_of_any_bytes_never_break_the_ledger(
        records in vec((any::<prop::sample::Index>(), 1_u32..3, vec(any::<u8>(), 0..176), any::<u64>()), 0..60)
    ) {
        let mut ledger = begun(NEWEST);
        for (row, tgid, mut payload, asked_bytes) in records {
            let plan = row.get(memwatch_common::rm::PLANS);
            // The payload starts with a client's handle more often than it would at random.
            payload.splice(0..0, [row.index(3).to_le_bytes()[0], 0, 0xd0, 0xc1]);
            payload.truncate(176);
            let (nr, size) = (plan.nr, plan.size);
            ledger.apply(&RmCall { tgid: Tgid(tgid), nr, size, payload, asked_bytes, ..RmCall::default() }, Some(1 << 40));
        }
        for tgid in 1..3 {
            let (by_object, live) = sums(&ledger, tgid);
            prop_assert_eq!(by_object, live);
        }
    }
}

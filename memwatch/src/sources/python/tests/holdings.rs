//! Names of real PyTorch's tensors on the host. Each storage represents a block of a device.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memwatch_core::input::holdings::{AdviceKind, Cut, Holding, HoldingClass, Holdings};
use memwatch_core::words::Ordinal;
use memwatch_inspect::holdings::{AllocatedBlock, Blocks, InspectOptions, read};
use memwatch_inspect::memory::MemoryAccess;
use serde::Deserialize;

use super::interpreters::StoppingScript;
use super::script;
use crate::sources::python::PythonProcess;

#[derive(Deserialize)]
struct ScriptBlocks {
    /// Address and bytes.
    blocks: Vec<(u64, u64)>,
    tid: u32,
}

/// What the process reports about itself after the reading.
#[derive(Deserialize)]
struct HoldingsTruth {
    /// Address, class, name, shape and element type.
    names: Vec<(u64, HoldingClass, String, Vec<u64>, String)>,
    places: BTreeMap<String, (u64, u64)>,
}

/// Returns the installed Pythons with PyTorch.
pub(super) fn environments() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/torch");
    let installed = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let found: Vec<_> =
        installed.map(|entry| entry.path()).filter(|path| path.join("venv/bin/python").exists()).collect();
    if found.is_empty() {
        eprintln!("SKIPPED: no PyTorch below {}", folder.display());
    }
    found
}

/// A memory whose time limit expires after a number of reads.
struct LimitedMemory<'m, M> {
    memory: &'m M,
    reads: Cell<u32>,
    most_reads: u32,
}

impl<M: MemoryAccess> MemoryAccess for LimitedMemory<'_, M> {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        self.memory.fill(address, into)
    }

    fn spent(&self) -> u32 {
        self.reads.get().saturating_mul(1000) / self.most_reads
    }
}

fn held(environment: &Path) -> (Holdings, HoldingsTruth) {
    held_within(environment, u32::MAX)
}

/// Reads the holdings with at most this number of memory reads.
fn held_within(environment: &Path, most_reads: u32) -> (Holdings, HoldingsTruth) {
    let (program, runtime) = (environment.join("venv/bin/python"), environment.join("runtime"));
    let mut script = StoppingScript::run(&program, &script("held.py"), Some(("LD_LIBRARY_PATH", &runtime)));
    let places: ScriptBlocks = serde_json::from_str(&script.line().expect("a line")).expect("JSON");
    script.wait_for_stop(places.tid);
    let python = PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python");
    let block = |(address, bytes): &(u64, u64)| AllocatedBlock {
        ordinal: Ordinal(0),
        address: *address,
        bytes: *bytes,
        requested_bytes: *bytes,
    };
    let blocks = Blocks::new(places.blocks.iter().map(block).collect());
    let began = std::time::Instant::now();
    let memory = LimitedMemory { memory: python.resolver.memory(), reads: Cell::new(0), most_reads };
    let holdings = read(&memory, Some(python.resolver.layout()), &blocks, &InspectOptions::default());
    let (read, objects, tensors) = (holdings.read_bytes, holdings.objects, holdings.tensors);
    println!("{}: {objects} objects, {tensors} tensors, {read} bytes, {:?}", environment.display(), began.elapsed());
    script.go_on();
    let truth = serde_json::from_str(&script.line().expect("a line")).expect("JSON");
    (holdings, truth)
}

fn all_names(row: &Holding) -> BTreeSet<String> {
    row.name.iter().chain(&row.other_names).cloned().collect()
}

#[test]
fn every_tensor_of_a_training_has_the_name_that_pytorch_gives_it() {
    for environment in environments() {
        let (holdings, truth) = held(&environment);
        assert_eq!((holdings.without_names.as_deref(), holdings.dropped_names), (None, 0));
        let row_at = |address: u64| holdings.rows.iter().find(|row| row.address == address);
        let mut names = BTreeMap::<u64, (HoldingClass, BTreeSet<String>)>::new();
        for (address, class, name, shape, dtype) in &truth.names {
            let row = row_at(*address).unwrap_or_else(|| panic!("{name} is in no block"));
            assert_eq!(row.shape.as_ref(), Some(shape), "{name}");
            assert_eq!(row.dtype.as_ref(), Some(dtype), "{name}");
            names.entry(*address).or_insert_with(|| (*class, BTreeSet::new())).1.insert(name.clone());
        }
        for (address, (class, expected)) in &names {
            let row = row_at(*address).expect("it is there");
            assert_eq!((row.class, &all_names(row)), (*class, expected), "{}", environment.display());
        }
        let classes =
            [HoldingClass::Parameter, HoldingClass::Gradient, HoldingClass::Buffer, HoldingClass::OptimizerState];
        for row in holdings.rows.iter().filter(|row| classes.contains(&row.class)) {
            assert!(names.contains_key(&row.address), "{row:?} has a name that PyTorch does not know");
        }
        assert_eq!(names.values().filter(|(class, _)| *class == HoldingClass::Parameter).count(), 13);
    }
}

#[test]
fn saved_tensors_are_named_by_autograd_node_and_retaining_tensor() {
    for environment in environments() {
        let (holdings, truth) = held(&environment);
        let row = |place: &str| {
            let (address, _) = truth.places[place];
            holdings.rows.iter().find(|row| row.address == address).unwrap_or_else(|| panic!("{place} is in no block"))
        };
        let saved = |place: &str| (row(place).class, row(place).name.as_deref(), row(place).kept_by.as_deref());
        assert_eq!(saved("saved"), (HoldingClass::SavedForBackward, Some("ExpBackward0"), Some("graph")));
        assert_eq!(saved("own function"), (HoldingClass::SavedForBackward, Some("SquaredBackward"), Some("own")));
        assert_eq!((row("cycle").class, row("cycle").name.as_deref()), (HoldingClass::Unreachable, Some("<list>[0]")));
    }
}

#[test]
fn advice_names_what_could_be_held_with_less() {
    for environment in environments() {
        let (holdings, _) = held(&environment);
        let advice = |kind: AdviceKind| holdings.advice.iter().find(|advice| advice.kind == kind);
        let view = advice(AdviceKind::MostlyUnusedStorage).expect("a view keeps a large storage");
        assert_eq!((view.count, view.bytes, view.example.as_str()), (1, 1_200_000, "view"));
        let frozen = advice(AdviceKind::NoGradient).expect("one parameter takes no part");
        assert_eq!((frozen.count, frozen.bytes, frozen.example.as_str()), (1, 4 * 5040, "frozen"));
        assert_eq!(advice(AdviceKind::Unreachable).map(|advice| advice.bytes), Some(4 * 23));
        assert_eq!(advice(AdviceKind::FullPrecisionCopies), None);
    }
}

#[test]
fn holdings_cut_by_the_read_limit_are_partial_and_true() {
    for environment in environments().into_iter().take(1) {
        let mut named = Vec::new();
        for most_reads in [1, 3000, u32::MAX] {
            let (holdings, truth) = held_within(&environment, most_reads);
            let of_pytorch = |row: &Holding| {
                let of_row = truth.names.iter().filter(|(address, ..)| *address == row.address);
                of_row.map(|(_, class, name, ..)| (*class, name.clone())).collect::<Vec<_>>()
            };
            let pytorchs = [HoldingClass::Parameter, HoldingClass::Buffer, HoldingClass::OptimizerState];
            for row in holdings.rows.iter().filter(|row| pytorchs.contains(&row.class)) {
                let name = row.name.clone().expect("such a class has a name");
                assert!(of_pytorch(row).contains(&(row.class, name)), "{most_reads}: {row:?}");
            }
            let is_cut = holdings.cut_by == Some(Cut::Time);
            assert_eq!(holdings.is_partial, is_cut, "{most_reads}: {:?}", holdings.cut_by);
            let count = holdings.rows.iter().filter(|row| row.class.is_named()).count();
            println!("{most_reads} reads: {} objects, {count} named, cut: {is_cut}", holdings.objects);
            named.push((is_cut, count));
        }
        let [(true, 0), (true, some), (false, all)] = named[..] else { panic!("{named:?}") };
        assert!(some < all, "{named:?}");
    }
}

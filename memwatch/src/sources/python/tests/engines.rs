//! KV caches of stand-ins for inference servers, in real interpreters.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use memwatch_core::input::kv_cache::{KvCache, KvCacheDoubt, KvCacheFill};
use memwatch_core::words::Tgid;
use memwatch_inspect::engines::{EngineMemory, EngineReader, SearchBreadth};
use memwatch_inspect::memory::MemoryAccess;
use serde::Deserialize;

use super::interpreters::{StoppingScript, VERSIONS, interpreter};
use super::script;
use crate::sources::python::PythonProcess;

/// A case of `engines.py`.
#[derive(Deserialize)]
struct EngineCase {
    case: String,
    tid: u32,
    truth: Option<PoolTruth>,
    /// Addresses of the objects that a reading passes.
    objects: Vec<u64>,
}

/// What the scheduler itself counts.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct PoolTruth {
    blocks: u64,
    used_blocks: u64,
    free_blocks: u64,
    shared_blocks: u64,
    reusable_blocks: u64,
    empty_blocks: u64,
    running: u64,
    waiting: u64,
}

impl PoolTruth {
    fn of(pool: &KvCache) -> Self {
        let KvCacheFill { blocks, used_blocks, free_blocks, running, waiting } = pool.fill;
        let content = pool.content.unwrap_or_else(|| panic!("{:?}", pool.content_unknown));
        Self {
            blocks,
            used_blocks,
            free_blocks,
            shared_blocks: content.shared_blocks.expect("vLLM counts users"),
            reusable_blocks: content.reusable_blocks,
            empty_blocks: content.empty_blocks,
            running,
            waiting,
        }
    }
}

/// Memory that counts what is read of it.
struct CountedMemory<'m, M> {
    memory: &'m M,
    bytes: Cell<usize>,
}

impl<M: MemoryAccess> MemoryAccess for CountedMemory<'_, M> {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        self.bytes.set(self.bytes.get() + into.len());
        self.memory.fill(address, into)
    }
}

const PAGE_BYTES: u64 = 4096;

/// Pages of a process, read once, with one changed word.
struct ChangedImage<'m, M> {
    memory: &'m M,
    pages: RefCell<BTreeMap<u64, Option<Box<[u8]>>>>,
    change: Cell<(u64, u64)>,
}

impl<M: MemoryAccess> MemoryAccess for ChangedImage<'_, M> {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        let (changed, word) = self.change.get();
        let mut pages = self.pages.borrow_mut();
        let (mut at, mut rest) = (address, into);
        while !rest.is_empty() {
            let offset = at % PAGE_BYTES;
            let page = pages.entry(at - offset).or_insert_with_key(|start| {
                let mut bytes = vec![0; 4096].into_boxed_slice();
                self.memory.fill(*start, &mut bytes).then_some(bytes)
            });
            let Some(page) = page else { return false };
            let here = usize::try_from(PAGE_BYTES - offset).expect("a page").min(rest.len());
            let (part, behind) = rest.split_at_mut(here);
            part.copy_from_slice(&page[usize::try_from(offset).expect("a page")..][..here]);
            for (byte, place) in part.iter_mut().zip(at..) {
                if place.wrapping_sub(changed) < 8 {
                    *byte = word.to_le_bytes()[usize::try_from(place - changed).expect("a word")];
                }
            }
            let Some(next) = at.checked_add(here as u64) else { return behind.is_empty() };
            (at, rest) = (next, behind);
        }
        true
    }
}

/// Returns the addresses of the words of objects, and of the first words that these refer to.
fn words_of(memory: &impl MemoryAccess, objects: &[u64]) -> Vec<u64> {
    let mut words = BTreeSet::new();
    for object in objects {
        for word in (object - 32..object + 400).step_by(8) {
            words.insert(word);
            let target = memory.u64(word).filter(|target| *target > 1 << 16 && target.is_multiple_of(8));
            words.extend(target.into_iter().flat_map(|target| (target..target.saturating_add(96)).step_by(8)));
        }
    }
    words.into_iter().collect()
}

/// Runs the script and calls `check` at each case. Returns the number of cases.
fn each_case(version: &str, mut check: impl FnMut(&EngineCase, &PythonProcess)) -> usize {
    let Some(program) = interpreter(version) else { return 0 };
    let mut script = StoppingScript::run(&program, &script("engines.py"), None);
    let mut cases = 0;
    while let Some(line) = script.line() {
        let case: EngineCase = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        script.wait_for_stop(case.tid);
        let python = PythonProcess::attach(script.tgid()).expect("it is readable").expect("it is Python");
        check(&case, &python);
        cases += 1;
        script.go_on();
    }
    cases
}

fn read(python: &PythonProcess, breadth: SearchBreadth) -> Result<Option<KvCache>, KvCacheDoubt> {
    let (memory, layout) = (python.resolver.memory(), python.resolver.layout());
    let process = EngineMemory { memory, layout, libraries: &[] };
    let reader = EngineReader::find(process, breadth)?;
    reader.map(|reader| reader.read(process, Tgid(7), None)).transpose()
}

#[test]
fn kv_cache_numbers_equal_the_schedulers_own_in_every_python() {
    for version in VERSIONS {
        let mut compared = 0;
        each_case(version, |case, python| {
            let Some(truth) = &case.truth else { return };
            let in_heap = case.case == "frozen";
            if in_heap {
                assert_eq!(read(python, SearchBreadth::Frames), Err(KvCacheDoubt::NoScheduler));
            }
            let began = Instant::now();
            let breadth = if in_heap { SearchBreadth::All } else { SearchBreadth::Frames };
            let pool = read(python, breadth).expect("it is known").expect("it serves");
            println!("{version}, {}: {} blocks in {:?}", case.case, truth.blocks, began.elapsed());
            assert_eq!(PoolTruth::of(&pool), *truth, "{version}: {}", case.case);
            let tensor_blocks = truth.blocks + 1;
            assert_eq!((pool.bytes, pool.block_bytes), (Some(tensor_blocks << 22), Some(4 << 20)), "{}", case.case);
            let asleep = (!in_heap).then_some(case.case == "asleep");
            assert_eq!(pool.asleep, asleep, "{version}: {}", case.case);
            assert_eq!((pool.layers, pool.block_tokens), (Some(4), Some(16)));
            let largest: Vec<_> = pool.largest_requests.iter().map(|one| (one.id.as_str(), one.blocks)).collect();
            assert_eq!(largest, [("long", tensor_blocks / 4 - 1), ("short", 5)], "{}", case.case);
            compared += 1;
        });
        assert!(compared == 0 || compared == 8, "{version}: {compared}");
    }
}

#[test]
fn kv_cache_with_contradictory_objects_is_not_known_and_says_why() {
    for version in ["3.9", "system"] {
        each_case(version, |case, python| {
            let found = read(python, SearchBreadth::All);
            let content = |found: &Result<Option<KvCache>, KvCacheDoubt>| match found {
                Ok(Some(pool)) => pool.content_unknown.clone(),
                _ => panic!("{version}, {}: {found:?}", case.case),
            };
            match case.case.as_str() {
                "more free than there are" | "shorter list" => {
                    assert!(matches!(found, Err(KvCacheDoubt::Contradiction(_))), "{}: {found:?}", case.case);
                }
                "negative users" => assert!(matches!(content(&found), Some(KvCacheDoubt::Contradiction(_)))),
                "huge users" => assert_eq!(content(&found), Some(KvCacheDoubt::Layout("ref_cnt"))),
                "other block class" => assert_eq!(content(&found), Some(KvCacheDoubt::Layout("blocks"))),
                "another count" => assert_eq!(content(&found), Some(KvCacheDoubt::Changed)),
                "too many blocks" => assert_eq!(content(&found), Some(KvCacheDoubt::TooLarge)),
                "circle" => assert_eq!(found, Err(KvCacheDoubt::Layout("block_pool"))),
                "text for a number" => assert_eq!(found, Err(KvCacheDoubt::Layout("num_gpu_blocks"))),
                "no scheduler" => assert_eq!(found, Err(KvCacheDoubt::NoScheduler)),
                "classes of the program" => assert_eq!(found, Ok(None)),
                _ => {}
            }
        });
    }
}

#[test]
fn kv_cache_that_changes_is_read_whole_or_said_to_change() {
    each_case("system", |case, python| {
        if case.case != "moving" {
            return;
        }
        let (memory, layout) = (python.resolver.memory(), python.resolver.layout());
        let process = EngineMemory { memory, layout, libraries: &[] };
        let reader = EngineReader::find(process, SearchBreadth::All).expect("known").expect("a scheduler");
        let mut whole = 0;
        for _ in 0..50 {
            let pool = reader.read(process, Tgid(7), None).expect("its fill is known");
            assert_eq!(pool.fill.used_blocks + pool.fill.free_blocks, pool.fill.blocks);
            assert!((500..=1000).contains(&pool.fill.used_blocks), "{pool:?}");
            match pool.content {
                Some(content) => {
                    assert_eq!(content.reusable_blocks + content.empty_blocks, pool.fill.free_blocks);
                    whole += 1;
                }
                None => assert_eq!(pool.content_unknown, Some(KvCacheDoubt::Changed)),
            }
        }
        println!("{whole} of 50 readings are whole");
    });
}

#[test]
fn further_reading_of_a_kv_cache_takes_a_few_kilobytes() {
    each_case("system", |case, python| {
        if case.case != "dicts" {
            return;
        }
        let memory = CountedMemory { memory: python.resolver.memory(), bytes: Cell::new(0) };
        let process = EngineMemory { memory: &memory, layout: python.resolver.layout(), libraries: &[] };
        let reader = EngineReader::find(process, SearchBreadth::Frames).expect("known").expect("a scheduler");
        memory.bytes.set(0);
        let (began, fill) = (Instant::now(), reader.fill(process).expect("it is known"));
        println!("{} bytes in {:?}", memory.bytes.get(), began.elapsed());
        assert!(memory.bytes.get() < 16 << 10, "{} bytes", memory.bytes.get());
        assert_eq!(Some(fill.used_blocks), case.truth.as_ref().map(|truth| truth.used_blocks));
    });
}

#[test]
fn reading_a_kv_cache_survives_any_changed_word() {
    const READINGS: usize = 600;
    each_case("system", |case, python| {
        if !["dicts", "slots"].contains(&case.case.as_str()) {
            return;
        }
        let memory = python.resolver.memory();
        let image = ChangedImage { memory, pages: RefCell::default(), change: Cell::new((0, 0)) };
        let words = words_of(&image, &case.objects);
        assert!(words.len() > 1000, "{}", words.len());
        let process = EngineMemory { memory: &image, layout: python.resolver.layout(), libraries: &[] };
        let (mut random, mut known) = (0x9e37_79b9_7f4a_7c15_u64, 0);
        for _ in 0..READINGS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let pick = |from: &[u64], random: u64| from[usize::try_from(random % from.len() as u64).expect("small")];
            let word = pick(&words, random >> 8);
            let values = [0, 1, u64::MAX, 1 << 40, 1 << 63, 0x7fff_ffff, pick(&case.objects, random >> 20), word, 4096];
            image.change.set((word, pick(&values, random >> 3)));
            let found = EngineReader::find(process, SearchBreadth::Frames);
            let Ok(Some(reader)) = found else { continue };
            let Ok(pool) = reader.read(process, Tgid(7), None) else { continue };
            assert_eq!(pool.fill.used_blocks + pool.fill.free_blocks, pool.fill.blocks, "{word:x}");
            if let Some(content) = pool.content {
                let all = pool.fill.used_blocks + content.reusable_blocks + content.empty_blocks;
                assert_eq!(all, pool.fill.blocks, "{word:x}");
                known += 1;
            }
        }
        println!("{}: {} words, {known} of {READINGS} readings are known", case.case, words.len());
        assert!(known > READINGS / 10, "{known}");
    });
}

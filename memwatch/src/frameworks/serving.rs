//! Reads the KV cache of an inference server for a process with GPU memory. The scheduler with the
//! pool's books is that process, or with tensor parallelism its parent. Reads only memory: no probe,
//! and the processes keep running.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use memwatch_core::input::kv_cache::{KvCache, KvCacheDoubt};
use memwatch_core::words::Tgid;
use memwatch_inspect::engines::{EngineMemory, EngineReader, SearchBreadth, pool_bytes};
use memwatch_inspect::holdings::Blocks;
use memwatch_inspect::python::layout::CpythonLayout;

use super::pytorch::{NAMES_TIME, StateReader, class_libraries};
use crate::sources::address_space::{AddressSpace, TimedSpace};
use crate::sources::procfs::ProcReader;
use crate::sources::python;

/// Maximum number of children that are searched for a scheduler.
const MOST_CHILDREN: usize = 64;
/// Number of attempts to read the allocators' blocks while they are active.
const TRIES: usize = 3;

/// Returns the KV cache of which this process has the tensors, or which it schedules; `None` if
/// neither it nor its parent or children run a known engine, or this user may not read them.
///
/// # Errors
/// There is an engine, and its pool is not known.
pub(crate) fn kv_cache(tgid: u32, processes: &mut ProcReader) -> Result<Option<KvCache>, KvCacheDoubt> {
    let effort = SearchEffort { breadth: SearchBreadth::All, time: NAMES_TIME };
    KvCacheReader::find(tgid, processes, effort)?.map(|reader| reader.read(NAMES_TIME)).transpose()
}

/// How long a scheduler is searched, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchEffort {
    /// Objects among which it is searched. A search among all takes memory for each of them.
    pub(crate) breadth: SearchBreadth,
    /// Maximum time, for the process and all its relatives.
    pub(crate) time: Duration,
}

/// Reads the KV cache of a process repeatedly.
pub(crate) struct KvCacheReader {
    scheduler: PythonMemory,
    reader: EngineReader,
    /// Bytes of the pool's tensors in the process, if they were found.
    bytes: Option<u64>,
    /// Whether the process has tensors at all.
    has_tensors: bool,
}

impl KvCacheReader {
    /// Finds the scheduler of a process, as [`kv_cache`] does. Only relatives of the same user are
    /// searched.
    ///
    /// # Errors
    /// As [`kv_cache`].
    pub(crate) fn find(
        tgid: u32,
        processes: &mut ProcReader,
        SearchEffort { breadth, time }: SearchEffort,
    ) -> Result<Option<Self>, KvCacheDoubt> {
        let until = Instant::now() + time;
        let Some(own) = PythonMemory::open(tgid) else { return Ok(None) };
        let mut schedulers = vec![(tgid, own.find(SearchBreadth::Frames, until))];
        if !matches!(schedulers[0].1, Ok(Some(_))) {
            let facts = processes.facts(tgid, false).unwrap_or_default();
            let parent = facts.ancestors.first().map(|parent| parent.tgid.0);
            let children = processes.descendants(&BTreeSet::from([tgid]));
            let relatives: Vec<u32> = parent.into_iter().chain(children.into_iter().take(MOST_CHILDREN)).collect();
            for relative in relatives {
                if processes.facts(relative, false).is_none_or(|relative| relative.uid != facts.uid) {
                    continue;
                }
                let found = PythonMemory::open(relative).map(|memory| memory.find(SearchBreadth::Frames, until));
                schedulers.extend(found.map(|found| (relative, found)));
            }
        }
        let in_frames = schedulers.iter().position(|(_, found)| matches!(found, Ok(Some(_))));
        let (scheduler, found) = match in_frames {
            Some(index) => schedulers.swap_remove(index),
            None => (tgid, own.find(breadth, until)),
        };
        let Some(reader) = found? else { return Ok(None) };
        let blocks = own.blocks();
        let has_tensors = blocks.iter().any(|blocks| blocks.iter().next().is_some());
        let bytes = blocks.and_then(|blocks| own.with(until, |process| pool_bytes(process, &blocks, breadth)));
        let scheduler = if scheduler == tgid { Some(own) } else { PythonMemory::open(scheduler) };
        Ok(scheduler.map(|scheduler| Self { scheduler, reader, bytes, has_tensors }))
    }

    /// Reads the pool, for this time at most.
    ///
    /// # Errors
    /// The scheduler is gone, or its numbers contradict each other.
    pub(crate) fn read(&self, time: Duration) -> Result<KvCache, KvCacheDoubt> {
        let tgid = Tgid(self.scheduler.tgid);
        let pool = self.scheduler.with(Instant::now() + time, |process| self.reader.read(process, tgid, self.bytes))?;
        // The configuration has the bytes of each process with tensors, which this one may not be.
        Ok(if self.has_tensors { pool } else { KvCache { bytes: None, ..pool } })
    }
}

/// The memory of a process that runs Python.
struct PythonMemory {
    tgid: u32,
    space: AddressSpace,
    layout: CpythonLayout,
}

impl PythonMemory {
    /// Opens the memory of a process; `None` if it runs no readable Python.
    fn open(tgid: u32) -> Option<Self> {
        let space = AddressSpace::open(tgid).ok()?;
        let layout = python::layout_of(tgid, &space).ok()??;
        Some(Self { tgid, space, layout })
    }

    fn find(&self, breadth: SearchBreadth, until: Instant) -> Result<Option<EngineReader>, KvCacheDoubt> {
        self.with(until, |process| EngineReader::find(process, breadth))
    }

    /// Reads the blocks of PyTorch's allocators.
    fn blocks(&self) -> Option<Blocks> {
        let mut reader = StateReader::open(self.tgid).ok()??;
        for _ in 0..TRIES {
            if let Ok(state) = reader.read() {
                return Some(Blocks::of_allocator_state(&state));
            }
        }
        reader.read_standing().ok().map(|state| Blocks::of_moving(&state))
    }

    fn with<T>(&self, until: Instant, read: impl FnOnce(EngineMemory<'_, TimedSpace<'_>>) -> T) -> T {
        let (libraries, time) = (class_libraries(&self.space), until.saturating_duration_since(Instant::now()));
        read(EngineMemory { memory: &self.space.within(time), layout: &self.layout, libraries: &libraries })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that is killed with the test.
    struct KilledChild(Child);

    impl Drop for KilledChild {
        fn drop(&mut self) {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }

    #[test]
    fn kv_cache_of_a_rank_is_read_from_the_parent_that_schedules() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sources/python/tests/ranks.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(child) = command.spawn() else {
            eprintln!("SKIPPED: no Python on this machine");
            return;
        };
        let mut server = KilledChild(child);
        let output = server.0.stdout.take().expect("a pipe");
        let line = BufReader::new(output).lines().next().expect("a line").expect("text");
        let (scheduler, rank) = (server.0.id(), line.parse::<u32>().expect("a PID"));
        let mut processes = ProcReader::new("/proc");
        let begin = Instant::now();
        for tgid in [scheduler, rank] {
            // A starting interpreter runs no code yet.
            let mut found = kv_cache(tgid, &mut processes);
            while !matches!(found, Ok(Some(_))) && begin.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(10));
                found = kv_cache(tgid, &mut processes);
            }
            let pool = found.expect("it is known").expect("it serves");
            assert_eq!((pool.scheduler, pool.fill.blocks, pool.fill.used_blocks), (Tgid(scheduler), 399, 100));
            assert_eq!((pool.bytes, pool.block_bytes), (None, Some(4 << 20)), "neither has tensors");
        }
        assert_eq!(kv_cache(std::process::id(), &mut processes), Ok(None), "it runs no Python");
    }
}

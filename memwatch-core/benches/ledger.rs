//! Measures how many records a second one core decodes and applies, and the memory of a live
//! allocation.
//!
//! A process with a context and four threads repeatedly frees a random allocation and makes another
//! one, with a constant number of live allocations. Records are read from bytes, as from the ring.
//! Freed addresses are reused in any order; a driver that reuses the latest one first would be
//! kinder to caches. Every round measures all sizes in turn, so that a slow moment of the machine
//! affects all of them. Prints one line of JSON per number of live allocations.

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use memwatch_common::probes::PROBES;
use memwatch_common::record::{CALL_RECORD_BYTES, CallRecord, RecordKind, RingRecord};
use memwatch_core::Pipeline;
use memwatch_core::input::Input;

const TGID: u32 = 100;
const THREADS: u64 = 4;
const CONTEXT: u64 = 0x55aa_0000;
/// Records per round and size, half of them frees.
const RECORDS: usize = 1 << 20;
/// Records that are applied together.
const BATCH: usize = 256;
/// Maximum number of records in one fetch from the ring.
const CHUNK: usize = 1 << 10;
const ADDRESS: u64 = 0x7f00_0000_0000;
/// Smallest distance that the driver leaves between two allocations.
const SPACING: u64 = 512;

/// The program's allocator.
#[path = "../../memwatch/src/cli/large_pages.rs"]
mod large_pages;

use large_pages::LargePages;

/// Counts the bytes that are allocated.
struct CountingAllocator;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

// SAFETY: every call is passed on to the program's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { LargePages.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from `alloc`, which got it from the same allocator.
        unsafe { LargePages.dealloc(pointer, layout) }
    }
}

/// A pipeline with live allocations, and the state of the generator of its calls.
struct BenchProgram {
    pipeline: Pipeline,
    live: Vec<u64>,
    /// Free addresses: an eighth more than there are live ones.
    free: Vec<u64>,
    now_ns: u64,
    random: u64,
    per_record_ns: Vec<f64>,
    bytes_per_live: f64,
}

fn main() {
    let mut sizes = vec![1_000_usize, 100_000, 10_000_000];
    let mut rounds = 9;
    // `--live N` measures one size, `--rounds N` sets the number of rounds. Other arguments are
    // cargo's.
    let words: Vec<String> = std::env::args().collect();
    let number = |name: &str| {
        let place = words.iter().position(|word| word == name)?;
        words.get(place + 1)?.parse::<usize>().ok()
    };
    if let Some(live) = number("--live") {
        sizes = vec![live];
    }
    rounds = number("--rounds").unwrap_or(rounds);
    let mut programs: Vec<BenchProgram> = sizes.into_iter().map(BenchProgram::new).collect();
    for _ in 0..rounds {
        programs.iter_mut().for_each(BenchProgram::measure);
    }
    for program in &mut programs {
        program.per_record_ns.sort_by(f64::total_cmp);
        println!(
            r#"{{"live":{},"min_ns":{:.1},"median_ns":{:.1},"bytes_per_live":{:.1},"copy_ms":{:.3}}}"#,
            program.live.len(),
            program.per_record_ns[0],
            program.per_record_ns[rounds / 2],
            program.bytes_per_live,
            program.copy_ms(rounds)
        );
    }
}

impl BenchProgram {
    fn new(live: usize) -> Self {
        let mut program = Self {
            pipeline: Pipeline::new(false),
            live: Vec::with_capacity(live),
            free: (0_u64..).take(live + live / 8 + 8).map(|place| ADDRESS + place * SPACING).collect(),
            now_ns: 1_000_000_000,
            random: 0x9e37_79b9_7f4a_7c15,
            per_record_ns: Vec::new(),
            bytes_per_live: 0.0,
        };
        program.pipeline.step(Input::Attached { time_ns: 1 });
        let mut bytes = Vec::new();
        program.write(&mut bytes, "cuDevicePrimaryCtxRetain", [0x7fff_0000, 0], CONTEXT);
        for _ in 0..THREADS {
            program.write(&mut bytes, "cuCtxSetCurrent", [CONTEXT, 0], 0);
        }
        feed(&mut program.pipeline, &bytes);
        let before = HELD_BYTES.load(Ordering::Relaxed);
        for _ in 0..live {
            bytes.clear();
            program.allocate(&mut bytes);
            feed(&mut program.pipeline, &bytes);
        }
        let held = HELD_BYTES.load(Ordering::Relaxed) - before;
        program.bytes_per_live =
            f64::from(u32::try_from(held).unwrap_or(u32::MAX)) / f64::from(u32::try_from(live).unwrap_or(1));
        program
    }

    /// Runs one round. The records are written beforehand; only the pipeline's work is timed.
    fn measure(&mut self) {
        let mut bytes = Vec::with_capacity(RECORDS * CALL_RECORD_BYTES);
        for _ in 0..RECORDS / 2 {
            let place = self.place_in(self.live.len());
            let address = self.live.swap_remove(place);
            self.write(&mut bytes, "cuMemFree_v2", [address, 0], 0);
            self.allocate(&mut bytes);
            self.free.push(address);
        }
        let begin = Instant::now();
        for batch in bytes.chunks(CHUNK * CALL_RECORD_BYTES) {
            feed(&mut self.pipeline, batch);
        }
        self.per_record_ns.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(RECORDS).unwrap_or(1)));
        black_box(&self.pipeline);
    }

    /// Returns the shortest time in milliseconds for which a keyframe of a recording blocks the
    /// loop, over some rounds: the state is copied, and a thread writes it.
    fn copy_ms(&self, rounds: usize) -> f64 {
        let copies = (0..rounds).map(|_| {
            let begin = Instant::now();
            let copy = black_box(self.pipeline.clone());
            let taken = begin.elapsed().as_secs_f64() * 1e3;
            drop(copy);
            taken
        });
        copies.min_by(f64::total_cmp).unwrap_or(f64::NAN)
    }

    fn allocate(&mut self, bytes: &mut Vec<u8>) {
        let place = self.place_in(self.free.len());
        let address = self.free.swap_remove(place);
        self.live.push(address);
        let size = SPACING << (self.next_random() % 12);
        self.write(bytes, "cuMemAlloc_v2", [0x7fff_0000, size], address);
    }

    fn write(&mut self, bytes: &mut Vec<u8>, symbol: &str, args: [u64; 2], out: u64) {
        let probe = PROBES.iter().find(|probe| probe.symbol == symbol).expect("a row of the table");
        self.now_ns += 700;
        let tid = TGID + u32::try_from(self.now_ns / 700 % THREADS).unwrap_or(0);
        let record = CallRecord {
            kind: RecordKind::Call as u8,
            probe: probe.id,
            tgid: TGID,
            tid,
            entered_ns: self.now_ns,
            returned_ns: self.now_ns + 600,
            args: [args[0], args[1], 0, 0, 0, 0],
            out: [out, 0],
            ..CallRecord::default()
        };
        let CallRecord { kind, flags, probe, status, tgid, tid, entered_ns, returned_ns, args, out, peek } = record;
        bytes.extend([kind, flags]);
        bytes.extend(probe.to_ne_bytes());
        bytes.extend(status.to_ne_bytes());
        bytes.extend([tgid, tid].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(
            [entered_ns, returned_ns].iter().chain(&args).chain(&out).chain(&peek).flat_map(|word| word.to_ne_bytes()),
        );
    }

    fn place_in(&mut self, length: usize) -> usize {
        usize::try_from(self.next_random()).expect("64-bit machines only") % length
    }

    /// xorshift64.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Applies the records in batches, like the program.
fn feed(pipeline: &mut Pipeline, bytes: &[u8]) {
    let mut batch = Vec::with_capacity(BATCH);
    for record in bytes.chunks(CALL_RECORD_BYTES) {
        if let RingRecord::Call(call) = RingRecord::from_bytes(record).expect("a whole record") {
            batch.push(call);
        }
        if batch.len() == BATCH {
            pipeline.step_calls(&batch);
            batch.clear();
        }
    }
    pipeline.step_calls(&batch);
}

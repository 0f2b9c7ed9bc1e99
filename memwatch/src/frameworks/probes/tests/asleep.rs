//! The reader of the ring: asleep next to a program that makes a record now and then, and behind
//! one that makes records as fast as they are read.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use memwatch_common::record::{Item, RingRecord};
use memwatch_common::tensor::{TENSOR_PROBES, TensorMeaning};

use crate::frameworks::points::TensorPoint;
use crate::frameworks::probes::{TensorProbes, attach};
use crate::sources::kernel::load::{KernelHalf, LoadOptions, may_probe};
use crate::sources::kernel::ring::{Drained, RecordRing};

const RING_BYTES: u32 = 1 << 20;
/// Number of times that a record arrives at about the time when the reader falls asleep.
const ROUNDS: u64 = 2000;
const LIMIT: Duration = Duration::from_secs(20);

/// Probed function. Its argument becomes a word of the record.
#[inline(never)]
extern "C" fn probed(word: u64) -> u64 {
    black_box(word).wrapping_mul(3)
}

/// Probed function of another test, which must not see the records of [`probed`].
#[inline(never)]
extern "C" fn probed_as_well(word: u64) -> u64 {
    black_box(word).wrapping_mul(5)
}

/// Returns the function's offset in this program's file.
fn file_offset(function: extern "C" fn(u64) -> u64) -> u64 {
    let address = function as *const () as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("one's own");
    let offset = maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (range, offset) = (fields.next()?, fields.nth(1)?);
        let (begin, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (begin, end) = (number(begin)?, number(end)?);
        (begin..end).contains(&address).then(|| Some(address - begin + number(offset)?))?
    });
    offset.expect("it is mapped")
}

/// Returns the words of this process's records that have arrived.
fn fetch(ring: &mut RecordRing) -> Vec<u64> {
    let mut words = Vec::new();
    ring.drain(|item| words.extend(word(&item)));
    words
}

/// Returns the word of a record of this process.
fn word(item: &Drained<'_>) -> Option<u64> {
    match item {
        Drained::Item(Ok(Item::Record(RingRecord::Tensor(tensor)))) if tensor.tgid == std::process::id() => {
            Some(tensor.args[0])
        }
        _ => None,
    }
}

/// Probes this function. Returns `None` if probing is not allowed here.
fn reader(function: extern "C" fn(u64) -> u64) -> Option<(KernelHalf, RecordRing, TensorProbes)> {
    may_probe().then(|| {
        let options =
            LoadOptions { all_processes: true, ring_bytes: RING_BYTES, classic_uprobes: false, diagnostics: false };
        let mut kernel = KernelHalf::load(options).expect("the kernel half is loaded");
        let ring = RecordRing::open(&mut kernel.ebpf, RING_BYTES).expect("its ring");
        let row = TENSOR_PROBES.iter().find(|row| row.meaning == TensorMeaning::Reported).expect("there is one");
        let own = NonZeroU32::new(std::process::id()).expect("nobody is 0");
        let point = TensorPoint::new(row, file_offset(function));
        let probes = attach(&mut kernel, Path::new("/proc/self/exe"), own, &[point]).expect("it is attached");
        (kernel, ring, probes)
    })
}

#[tokio::test(flavor = "current_thread")]
async fn ring_drain_leaves_records_that_arrive_meanwhile_for_the_next_poll() {
    let Some((_kernel, mut ring, _probes)) = reader(probed_as_well) else { return };
    black_box(probed_as_well(0));
    for look in 0..100_u64 {
        let mut words = Vec::new();
        ring.drain(|item| {
            if let Some(word) = word(&item) {
                words.push(word);
                // The program makes as many new records as it reads, and one more.
                black_box(probed_as_well(word + 1));
                (word == look && words.len() == 1).then(|| black_box(probed_as_well(word + 1)));
            }
        });
        let expected = usize::try_from(look).expect("few") + 1;
        assert_eq!(words, vec![look; expected]);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn record_arriving_while_the_reader_goes_to_sleep_is_read_or_wakes_it() {
    let Some((_kernel, mut ring, _probes)) = reader(probed) else { return };

    let (go, gone) = channel();
    let program = std::thread::spawn(move || {
        for round in gone {
            // The record arrives before the reader sleeps, while it falls asleep, or afterwards.
            (0..round % 50).for_each(|pause| drop(black_box(vec![pause; 100])));
            black_box(probed(round));
        }
    });
    for round in 0..ROUNDS {
        go.send(round).expect("it listens");
        ring.want_next().expect("the kernel half is informed");
        let mut fetched = fetch(&mut ring);
        while fetched.is_empty() {
            tokio::time::timeout(LIMIT, ring.wake()).await.expect("the record wakes the reader").expect("a ring");
            fetched = fetch(&mut ring);
        }
        assert_eq!(fetched, [round]);
    }
    drop(go);
    program.join().expect("it has ended");
}

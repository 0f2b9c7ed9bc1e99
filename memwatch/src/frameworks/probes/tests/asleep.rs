//! A reader that sleeps, and a program that makes a record now and then.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use memwatch_common::record::{Item, Record};
use memwatch_common::tensor::{TENSOR_PROBES, TensorMeaning};

use crate::frameworks::probes::attach;
use crate::frameworks::pytorch::TensorPoint;
use crate::sources::kernel::load::{Kernel, LoadOptions, may_probe};
use crate::sources::kernel::ring::{Drained, Ring};

const RING_BYTES: u32 = 1 << 20;
/// How many times a record and the reader's falling asleep come at about the same time.
const ROUNDS: u64 = 2000;
const LIMIT: Duration = Duration::from_secs(20);

/// What is probed; with its argument as a word of the record.
#[inline(never)]
extern "C" fn probed(word: u64) -> u64 {
    black_box(word).wrapping_mul(3)
}

/// Where that lies in this program's file.
fn file_offset() -> u64 {
    let address = probed as *const () as u64;
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

/// The words of this process's records that are there now.
fn fetch(ring: &mut Ring) -> Vec<u64> {
    let mut words = Vec::new();
    ring.drain(|item| {
        if let Drained::Item(Ok(Item::Record(Record::Tensor(tensor)))) = item
            && tensor.tgid == std::process::id()
        {
            words.push(tensor.args[0]);
        }
    });
    words
}

#[tokio::test(flavor = "current_thread")]
async fn a_record_that_comes_while_the_reader_falls_asleep_is_fetched_or_wakes_it() {
    if !may_probe() {
        return;
    }
    let options =
        LoadOptions { all_processes: true, ring_bytes: RING_BYTES, classic_uprobes: false, diagnostics: false };
    let mut kernel = Kernel::load(options).expect("the kernel half is loaded");
    let mut ring = Ring::open(&mut kernel.ebpf, RING_BYTES).expect("its ring");
    let row = TENSOR_PROBES.iter().find(|row| row.meaning == TensorMeaning::Reported).expect("there is one");
    let own = NonZeroU32::new(std::process::id()).expect("nobody is 0");
    let point = TensorPoint::new(row, file_offset());
    let probes = attach(&mut kernel, Path::new("/proc/self/exe"), own, &[point]).expect("it is attached");

    let (go, gone) = channel();
    let program = std::thread::spawn(move || {
        for round in gone {
            // Now before the reader sleeps, now while it falls asleep, now afterwards.
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
    drop(probes);
}

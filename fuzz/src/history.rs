//! Converts bytes to a history of calls, process events, readings, losses and ticks, twelve bytes
//! each.
//!
//! Values come from small pools, so that addresses, handles, contexts and devices repeat. The code
//! does not know what a row of the table means: the fuzzer has to find out which argument is an
//! address.

use memwatch_common::loss::Loss;
use memwatch_common::probes::PROBES;
use memwatch_common::record::{CallRecord, ProcessRecord, RecordKind, RingRecord};
use memwatch_core::input::{DeviceFacts, DeviceReading, Input, NvmlState, ProcessFacts, ProcessUse, Sensors};
use memwatch_core::words::{GpuUuid, Tgid};

/// Bytes per step.
const STEP_BYTES: usize = 12;
/// Maximum number of steps. A longer history shows nothing that a shorter one could not show
/// sooner.
const STEPS: usize = 512;
/// Start of the history in nanoseconds of `CLOCK_BOOTTIME`.
const BEGIN_NS: u64 = 1_000_000_000;

/// Sizes in bytes. Like the keys they are below 2^26, so that products, such as pitch times height,
/// and sums over a history stay below 2^64, whichever value the bytes use as a size. No driver
/// grants that much, and above it the ledger's totals are only bounds.
const SIZES: [u64; 8] = [0, 1, 512, 65_536, 2 << 20, 4 << 20, 6 << 20, 1 << 24];
/// First address or handle, and the distance between two.
const KEYS: (u64, u64) = (1 << 25, 2 << 20);

/// Returns the history that the bytes encode.
pub(crate) fn inputs(data: &[u8]) -> Vec<Input> {
    let mut now_ns = BEGIN_NS;
    let begin = Input::Attached { time_ns: now_ns };
    let steps = data.as_chunks::<STEP_BYTES>().0.iter().take(STEPS).map(|step| {
        now_ns += u64::from(step[11]) + 1;
        input(step, now_ns)
    });
    std::iter::once(begin).chain(steps).collect()
}

fn input(step: &[u8; STEP_BYTES], now_ns: u64) -> Input {
    let tgid = u32::from(step[2] >> 6) + 1;
    match step[0] {
        0..=229 => Input::Record(RingRecord::Call(call(step, tgid, now_ns))),
        230..=237 => Input::Record(RingRecord::Process(process_event(step, tgid, now_ns))),
        238..=240 => Input::Process(ProcessFacts {
            tgid,
            start_ns: now_ns.saturating_sub(u64::from(step[3]) << 22),
            target: step[4] % 2 == 1,
            started_under_watch: step[5] % 8 == 1,
            ..ProcessFacts::default()
        }),
        241 => Input::ObservedFrom { tgid: Tgid(tgid), time_ns: now_ns },
        242 => Input::ProcessEnded { tgid: Tgid(tgid), time_ns: now_ns },
        243..=246 => Input::Devices(reading(step, now_ns)),
        247..=248 => Input::Lost {
            tgid: (!step[3].is_multiple_of(4)).then_some(Tgid(tgid)),
            loss: Loss::ALL[usize::from(step[4]) % Loss::ALL.len()],
            count: u64::from(step[5]),
        },
        _ => Input::Tick { time_ns: now_ns + (u64::from(step[3]) << 24) },
    }
}

fn call(step: &[u8; STEP_BYTES], tgid: u32, now_ns: u64) -> CallRecord {
    let probe = &PROBES[usize::from(step[1]) % PROBES.len()];
    let words = StepWords { first: step[3], second: step[4], size: step[5], small: step[6] };
    // Two bits select the source of each word: six arguments, then two out words.
    let roles = u32::from_le_bytes([step[7], step[8], step[9], 0]);
    let word = |index: usize| words.of((roles >> (2 * index)) & 3);
    // Peeked words are shapes and locations: small numbers, one of them also with bits in the upper
    // half.
    let upper = |index: usize| if usize::from(step[9] >> 5 & 3) == index { u64::from(step[9] & 3) << 32 } else { 0 };
    let peeked = |index: usize| u64::from(step[6] >> index & 15) | upper(index);
    let failed = step[10] >= 224;
    CallRecord {
        kind: RecordKind::Call as u8,
        flags: if step[10] % 16 == 15 { step[10] >> 4 & 3 } else { 0 },
        probe: probe.id,
        status: if failed { i32::from(step[10] & 3) + 1 } else { 0 },
        tgid,
        tid: tgid * 10 + u32::from(step[2] & 3),
        entered_ns: now_ns - (u64::from(step[2] >> 2 & 15) << 4),
        returned_ns: now_ns,
        args: std::array::from_fn(word),
        out: if failed { [0; 2] } else { [word(6), word(7)] },
        peek: std::array::from_fn(peeked),
    }
}

/// Values of one step.
struct StepWords {
    first: u8,
    second: u8,
    size: u8,
    small: u8,
}

impl StepWords {
    fn of(&self, role: u32) -> u64 {
        match role {
            0 => key(self.first),
            1 => SIZES[usize::from(self.size) % SIZES.len()],
            2 => key(self.second),
            _ => u64::from(self.small & 3),
        }
    }
}

fn key(number: u8) -> u64 {
    match u64::from(number % 16) {
        0 => 0,
        number => KEYS.0 + number * KEYS.1,
    }
}

fn process_event(step: &[u8; STEP_BYTES], tgid: u32, now_ns: u64) -> ProcessRecord {
    ProcessRecord {
        kind: RecordKind::Process as u8,
        event: step[3] % 8,
        tgid,
        parent_tgid: u32::from(step[4] & 3) + 1,
        time_ns: now_ns,
        start_ns: if step[5] == 0 { 0 } else { now_ns - u64::from(step[5]) },
        ..ProcessRecord::default()
    }
}

/// Returns a reading of one or two GPUs, on which some processes are listed.
fn reading(step: &[u8; STEP_BYTES], now_ns: u64) -> DeviceReading {
    let device = |index: u32| DeviceFacts {
        // The out words of a device's UUID can have this value too.
        uuid: GpuUuid::from_bytes([u8::try_from(index).expect("few devices"); 16]),
        nvml_index: index,
        name: String::new(),
        pci_bus_id: None,
        mig: None,
        total_bytes: Some(1 << 36),
        used_bytes: (step[4] & 1 == 0).then_some(u64::from(step[5]) << 21),
        processes: (step[4] & 2 == 0).then(|| {
            let listed = (1..=4).filter(|tgid| step[6] >> (tgid - 1) & 1 == 1 && tgid % 2 == index % 2);
            let used_bytes = Some(u64::from(step[7]) << 21);
            let mps_client = step[4] & 4 != 0;
            listed.map(|tgid| ProcessUse { tgid: Tgid(tgid), used_bytes, mps_client }).collect()
        }),
        cores: None,
        sensors: Sensors::default(),
    };
    let state = if step[3] % 8 == 7 { NvmlState::Unavailable(String::new()) } else { NvmlState::Ok };
    let devices = if state == NvmlState::Ok { 1 + u32::from(step[3] & 1) } else { 0 };
    DeviceReading {
        begin_ns: now_ns.saturating_sub(u64::from(step[8]) << 4),
        end_ns: now_ns,
        state,
        devices: (0..devices).map(device).collect(),
    }
}

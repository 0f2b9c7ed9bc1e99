//! Compares a single probe at the allocator's calls with the allocator's trace and reports, on the
//! same blocks.

use memwatch_common::record::RingRecord;
use memwatch_common::tensor::{TensorMeaning, TensorRecord};
use memwatch_core::decode::{PendingBlocks, TensorChange, TraceAction, Traced, decode_tensor};

use super::job::{ProbedJob, PythonJob};
use super::{SentEvents, meaning};

/// Blocks of all kinds: those of a training, large ones, ones that another stream uses when they
/// are freed, and ones of a private pool.
const BLOCKS: [&str; 5] = [
    "train(2)",
    "held.append(leaf(70 << 20)); held.append(leaf(1)); held.pop()",
    "other = torch.cuda.Stream(); used = leaf(3 << 20); used.record_stream(other); del used; held.append(leaf(900))",
    "pool = torch.cuda.MemPool()\nwith torch.cuda.use_mem_pool(pool): own = leaf(5 << 20)",
    "del own; held.clear(); torch.cuda.empty_cache(); torch.cuda.synchronize()",
];

pub(super) fn one_probe_shows_what_several_do(job: &mut PythonJob, watched: &mut ProbedJob) {
    let probes = watched.attach_calls(job);
    watched.drain();
    for line in BLOCKS {
        job.ask(&format!("exec({line:?})"));
    }
    let sent = watched.drain();
    watched.take_out(probes);
    let (by_functions, by_calls) = (by_functions(&sent), by_calls(&sent));
    let rare =
        |line: &TraceLine| matches!(line, TraceLine::Traced(TraceAction::SegmentAlloc | TraceAction::SegmentFree, ..));
    assert!(by_calls.len() > 100 && by_calls.iter().filter(|line| rare(line)).count() >= 4, "{}", by_calls.len());
    let apart = by_calls.iter().zip(&by_functions).position(|(calls, functions)| calls != functions);
    let around = |lines: &[TraceLine]| {
        let start = apart.unwrap_or(lines.len()).saturating_sub(4);
        format!("{:?}\n", lines.iter().skip(start).take(8).collect::<Vec<_>>())
    };
    assert_eq!(apart, None, "{} {}", around(&by_functions), around(&by_calls));
    assert_eq!(by_calls.len(), by_functions.len());
    let waited = sent.of(TensorMeaning::Completed).len();
    assert!(waited >= 1, "a block that another stream used goes back later");
}

/// Content of an event that both report.
#[derive(Debug, PartialEq)]
enum TraceLine {
    /// Action, allocator and address. For a grant and for segments also bytes and stream. Whether a
    /// grant is from a private pool.
    Traced(TraceAction, (u64, u64), Option<(u64, u64)>, bool),
    Reported(TensorChange),
}

fn line(what: TensorChange) -> Option<TraceLine> {
    match what {
        TensorChange::Traced(traced) => {
            let Traced { allocator, action, address, bytes, stream, pool, .. } = traced;
            let is_free = matches!(action, TraceAction::FreeRequested | TraceAction::FreeCompleted);
            let is_private = action == TraceAction::Alloc && pool != Some((0, 0));
            Some(TraceLine::Traced(action, (allocator, address), (!is_free).then_some((bytes, stream)), is_private))
        }
        TensorChange::Reported { .. } => Some(TraceLine::Reported(what)),
        _ => None,
    }
}

fn by_functions(sent: &SentEvents) -> Vec<TraceLine> {
    let is_meant = |event: &&TensorRecord| matches!(meaning(event), TensorMeaning::Traced | TensorMeaning::Reported);
    let events = sent.events.iter().filter(is_meant).filter_map(|event| decode_tensor(&RingRecord::Tensor(*event)));
    events.filter_map(|event| line(event.what)).collect()
}

fn by_calls(sent: &SentEvents) -> Vec<TraceLine> {
    let mut pending = PendingBlocks::default();
    let mut lines = Vec::new();
    for event in &sent.events {
        let of_calls = matches!(
            meaning(event),
            TensorMeaning::Granted | TensorMeaning::GivenBack | TensorMeaning::Completed | TensorMeaning::TracedRarely
        );
        let Some(event) = decode_tensor(&RingRecord::Tensor(*event)).filter(|_| of_calls) else { continue };
        match &event.what {
            TensorChange::Block(report) => {
                let parts = report.events(&event, &mut pending, |_, _| Some((1, 0)));
                lines.extend(parts.into_iter().flatten().filter_map(|part| line(part.what)));
            }
            _ => lines.extend(line(event.what)),
        }
    }
    lines
}

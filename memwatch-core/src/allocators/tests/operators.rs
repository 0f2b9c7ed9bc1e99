use crate::allocators::TensorLedger;
use crate::allocators::names::ModuleEntry;
use crate::allocators::places::ModuleSum;
use crate::decode::{ArenaChunkReport, ChunkNamed, StackRef, TensorChange, TensorEvent};
use crate::ledger::{DriverSegment, SegmentLocation};
use crate::words::{Framework, Ordinal, Tgid, Tid};
use memwatch_common::loss::Loss;
use memwatch_common::tensor::chunk_key;

const GPU: Ordinal = Ordinal(0);
const ARENA: u64 = 0x5000;
const FIRST: u64 = 0x10_0000;
const SECOND: u64 = 0x10_1000;
const MAIN: Tid = Tid(1);
const OTHER: Tid = Tid(2);

/// A process with one arena of TensorFlow.
#[derive(Default)]
struct ArenaProcess {
    ledger: TensorLedger,
    now_ns: u64,
}

impl ArenaProcess {
    fn event(&mut self, tid: Tid, what: TensorChange) -> &mut Self {
        self.now_ns += 10;
        let event = TensorEvent::made((Tgid(1), tid), self.now_ns, StackRef::NoPython, what);
        let memory = SegmentLocation::Device(GPU);
        let segment = DriverSegment { address: FIRST, bytes: 1 << 20, memory };
        self.ledger.place(&event, &|_| Some(segment));
        self.ledger.apply(&event);
        self
    }

    fn chunk(&mut self, tid: Tid, (is_grant, address, bytes): (bool, u64, u64)) -> &mut Self {
        self.event(
            tid,
            TensorChange::Chunk(ArenaChunkReport {
                allocator: ARENA,
                framework: Framework::TensorFlow,
                is_grant,
                is_of_stream: false,
                address,
                requested_bytes: bytes - 6,
                bytes,
                counters: None,
            }),
        )
    }

    fn name(&mut self, tid: Tid, address: u64, operator: &str) -> &mut Self {
        let named = ChunkNamed { chunk: chunk_key(ARENA, address), operator: operator.into() };
        self.event(tid, TensorChange::ChunkNamed(named))
    }

    /// Returns each row of the modules that has ever had memory: its operator, its sums, and its
    /// bytes at the overall peak.
    fn modules(&self) -> Vec<(Option<&str>, ModuleSum, u64)> {
        let device = &self.ledger.attribution().devices()[&GPU];
        let row = |(key, module): (_, &ModuleSum)| {
            let operator = match self.ledger.names().module_of(key) {
                ModuleEntry::Operator(name) => Some(&**name),
                _ => None,
            };
            (operator, *module, device.at_peak_bytes(&module.sum))
        };
        device.modules().map(row).collect()
    }

    /// Returns an operator's live bytes, peak bytes, total bytes, bytes at the overall peak, and
    /// number of chunks.
    fn row(&self, operator: Option<&str>) -> Option<[u64; 5]> {
        let (_, module, at_peak) = self.modules().into_iter().find(|(name, ..)| *name == operator)?;
        let sum = module.sum;
        Some([sum.live_bytes, sum.peak_bytes, sum.total_bytes, at_peak, sum.allocations])
    }
}

/// Runs two chunks of one operator and one of another. The names come before the grants or after
/// them.
fn job(is_before: bool) -> ArenaProcess {
    let mut process = ArenaProcess::default();
    process.chunk(MAIN, (true, FIRST + 0x8000, 256)).event(MAIN, TensorChange::RangeEnds);
    for (address, bytes, operator) in
        [(FIRST, 1024, "MatMul"), (SECOND, 512, "AddV2"), (FIRST + 0x2000, 2048, "MatMul")]
    {
        if is_before {
            process.name(MAIN, address, operator);
        }
        process.chunk(MAIN, (true, address, bytes));
        if !is_before {
            process.name(MAIN, address, operator);
        }
        if operator == "AddV2" {
            process.chunk(MAIN, (false, FIRST, 1024));
        }
    }
    process
}

#[test]
fn a_chunk_is_its_operators_whether_the_name_comes_before_it_or_behind() {
    let (before, behind) = (job(true), job(false));
    assert_eq!(before.row(Some("MatMul")), Some([2048, 2048, 3072, 2048, 2]));
    assert_eq!(before.row(Some("AddV2")), Some([512, 512, 512, 512, 1]));
    assert_eq!(before.row(None), Some([256, 256, 256, 256, 1]), "it has no name");
    let all = |process: &ArenaProcess| {
        let rows = process.modules().into_iter().map(|(name, module, _)| {
            let sums = process.row(name).expect("it is one of them");
            let rounding_bytes = module.total_rounding_bytes();
            (name.map(str::to_owned), sums, module.live_by_phase, module.total_by_phase, rounding_bytes)
        });
        rows.collect::<Vec<_>>()
    };
    assert_eq!(all(&before), all(&behind));
    assert_eq!(all(&behind).iter().map(|row| row.4).collect::<Vec<_>>(), [Some(6), Some(12), Some(6)]);
    let has_time =
        |process: &ArenaProcess| process.modules().iter().filter(|(_, module, _)| module.host_duration_ns > 0).count();
    assert_eq!(has_time(&before), has_time(&behind));
    let mut behind = behind;
    behind.chunk(OTHER, (false, FIRST + 0x2000, 2048));
    assert_eq!(behind.row(Some("MatMul")).map(|[live, ..]| live), Some(0), "it is freed where it stands");
}

#[test]
fn names_of_other_threads_and_other_chunks_are_not_taken() {
    let mut process = ArenaProcess::default();
    process.name(OTHER, FIRST, "MatMul").chunk(MAIN, (true, FIRST, 1024));
    process.name(MAIN, SECOND, "AddV2").chunk(MAIN, (true, FIRST + 0x3000, 512));
    process.chunk(MAIN, (true, SECOND, 256));
    assert_eq!(process.modules().len(), 1, "none has one");
    process.name(MAIN, SECOND, "Relu").name(MAIN, SECOND, "Relu");
    assert_eq!(process.row(Some("Relu")), Some([256, 256, 256, 256, 1]), "the last grant has its name, once");
}

#[test]
fn operator_name_pending_at_a_loss_is_dropped() {
    let mut process = ArenaProcess::default();
    process.name(MAIN, FIRST, "MatMul");
    process.ledger.lose(Loss::TensorEventLost, 1);
    process.chunk(MAIN, (true, FIRST, 1024));
    assert_eq!(process.row(None), Some([1024, 1024, 1024, 1024, 1]));
}

#[test]
fn more_names_than_are_distinguished_share_a_row() {
    let mut process = ArenaProcess::default();
    for number in 0..20_000_u64 {
        let address = FIRST + 256 * (number % 16);
        process.name(MAIN, address, &format!("node_{number}")).chunk(MAIN, (true, address, 256));
    }
    let rest =
        process.modules().into_iter().filter(|(name, ..)| name.is_none()).map(|(_, module, _)| module.sum.allocations);
    assert_eq!(rest.sum::<u64>() + process.modules().len() as u64 - 1, 20_000);
    assert!(process.modules().len() < 1 << 14);
}

//! The table of framework probes: one row per probed function around a framework's allocator.
//!
//! Symbols are prefixes of mangled names, since signatures differ between versions. Presence and
//! registers were checked in the wheels of PyTorch 2.1.2, 2.4.1, 2.6.0, 2.8.0 and 2.15.0 for
//! x86-64.

use super::plan::{BlockPlan, EventName, StatisticsRole, TensorPlan, Walk};
use super::pools::ROWS as POOLS;
use super::table::{FrameworkLibrary, ProbePoint, Purpose, TensorMeaning, TensorProbe};

const fn row(
    id: u16,
    (library, purpose): (FrameworkLibrary, Purpose),
    symbol: &'static str,
    meaning: TensorMeaning,
    plan: TensorPlan,
) -> TensorProbe {
    TensorProbe { id, library, symbol, ending: "", point: ProbePoint::Entry, plan, meaning, purpose }
}

/// `tsl::BFCAllocator::AddTraceMe`: called for every chunk that an arena grants or takes back.
/// Exceptions may unwind through its callers, so no return probe is used.
const fn arena(id: u16, library: FrameworkLibrary) -> TensorProbe {
    let plan = REGISTERS.walk(Walk::Chunks).counters();
    let mut probe =
        row(id, (library, Purpose::Arena), "_ZN3tsl12BFCAllocator10AddTraceMeE", TensorMeaning::Chunk, plan);
    probe.ending = "EPKvll";
    probe
}

/// `tsl::BFCAllocator::DumpMemoryLog`: an arena prints its contents, which it does only when it
/// gives up a request.
const fn arena_fails(id: u16, library: FrameworkLibrary) -> TensorProbe {
    let symbol = "_ZN3tsl12BFCAllocator13DumpMemoryLogE";
    row(id, (library, Purpose::Arena), symbol, TensorMeaning::ArenaFails, REGISTERS.walk(Walk::Always))
}

/// A function of ggml's C interface, by its whole name, since other names have the same beginning.
/// No exceptions are known to pass these functions, but no return probe is used anyway.
const fn ggml(id: u16, symbol: &'static str, meaning: TensorMeaning, plan: TensorPlan) -> TensorProbe {
    let mut probe = row(id, (FrameworkLibrary::GgmlBase, Purpose::Buffers), symbol, meaning, plan);
    probe.ending = symbol;
    probe
}

const OPERATORS: (FrameworkLibrary, Purpose) = (FrameworkLibrary::TensorFlow, Purpose::Operators);
const EXECUTIONS: (FrameworkLibrary, Purpose) = (FrameworkLibrary::Xla, Purpose::Phases);
const SCRATCH: (FrameworkLibrary, Purpose) = (FrameworkLibrary::GgmlCuda, Purpose::Buffers);
const ONNX: (FrameworkLibrary, Purpose) = (FrameworkLibrary::OnnxRuntime, Purpose::Arena);

const fn at(point: ProbePoint, mut probe: TensorProbe) -> TensorProbe {
    probe.point = point;
    probe
}

macro_rules! device_allocator {
    ($rest:literal) => {
        concat!("_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator", $rest)
    };
}

const REGISTERS: TensorPlan = TensorPlan::registers();
const REPORTS: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10, Purpose::AllocatorReports);
const FAILURES: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10, Purpose::Allocator);
const TRACE: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::AllocatorTrace);
const CALLS: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::AllocatorCalls);
const ALLOCATOR: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::Allocator);
const UNTIL_TRACE: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::AllocatorUntilTrace);
const WITHOUT_TRACE: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::AllocatorWithoutTrace);
const PHASES: (FrameworkLibrary, Purpose) = (FrameworkLibrary::TorchCpu, Purpose::Phases);
const MODULES: (FrameworkLibrary, Purpose) = (FrameworkLibrary::TorchCpu, Purpose::Modules);
const GRAPHS: (FrameworkLibrary, Purpose) = (FrameworkLibrary::TorchCuda, Purpose::Phases);
const NVTX: (FrameworkLibrary, Purpose) = (FrameworkLibrary::TorchPython, Purpose::Phases);
const PYTHON: (FrameworkLibrary, Purpose) = (FrameworkLibrary::Python, Purpose::Python);

/// The table. Ids are stable because recordings contain them: a removed row keeps its number.
pub const TENSOR_PROBES: &[TensorProbe] = &[
    row(
        1,
        REPORTS,
        "_ZN3c1027reportMemoryUsageToProfilerE",
        TensorMeaning::Reported,
        REGISTERS.walk(Walk::Grants).statistics(StatisticsRole::Offered),
    ),
    row(
        2,
        FAILURES,
        "_ZN3c1027reportOutOfMemoryToProfilerE",
        TensorMeaning::ReportedOutOfMemory,
        REGISTERS.walk(Walk::Always).statistics(StatisticsRole::Offered),
    ),
    row(
        3,
        TRACE,
        device_allocator!("12record_traceE"),
        TensorMeaning::Traced,
        REGISTERS.stack_words().statistics(StatisticsRole::Announced),
    ),
    row(
        4,
        UNTIL_TRACE,
        device_allocator!("6mallocE"),
        TensorMeaning::Requested,
        REGISTERS.statistics(StatisticsRole::Announced),
    ),
    row(5, ALLOCATOR, device_allocator!("11alloc_blockE"), TensorMeaning::SegmentWanted, REGISTERS),
    row(6, ALLOCATOR, device_allocator!("27synchronize_and_free_eventsE"), TensorMeaning::Synchronized, REGISTERS),
    row(
        7,
        WITHOUT_TRACE,
        device_allocator!("10free_blockE"),
        TensorMeaning::BlockFreed,
        REGISTERS.peek(1, 0x48).statistics(StatisticsRole::Announced),
    ),
    row(
        8,
        ALLOCATOR,
        "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator14resetPeakStatsE",
        TensorMeaning::PeaksReset,
        REGISTERS,
    ),
    row(
        9,
        ALLOCATOR,
        "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator21resetAccumulatedStatsE",
        TensorMeaning::AccumulatedReset,
        REGISTERS,
    ),
    at(
        ProbePoint::Calls,
        row(
            10,
            CALLS,
            "_ZN3c1027reportMemoryUsageToProfilerE",
            TensorMeaning::Granted,
            REGISTERS.walk(Walk::Grants).statistics(StatisticsRole::Offered),
        ),
    ),
    at(
        ProbePoint::Calls,
        row(
            11,
            CALLS,
            "_ZN3c1027reportMemoryUsageToProfilerE",
            TensorMeaning::GivenBack,
            REGISTERS.statistics(StatisticsRole::Offered),
        ),
    ),
    at(ProbePoint::Calls, row(12, CALLS, device_allocator!("10free_blockE"), TensorMeaning::Completed, REGISTERS)),
    at(
        ProbePoint::Calls,
        row(13, CALLS, device_allocator!("12record_traceE"), TensorMeaning::TracedRarely, REGISTERS.stack_words()),
    ),
    row(
        20,
        PHASES,
        "_ZN5torch8autograd8profiler25record_function_enter_newE",
        TensorMeaning::RangeBegins,
        REGISTERS.text(EventName::StringInArgument1),
    ),
    row(21, PHASES, "_ZN5torch8autograd8profilerL24record_function_exit_newE", TensorMeaning::RangeEnds, REGISTERS),
    row(
        22,
        PHASES,
        "_ZN5torch8autograd6Engine17evaluate_functionE",
        TensorMeaning::BackwardNode,
        REGISTERS.peek(2, 16),
    ),
    at(
        ProbePoint::Count,
        row(
            23,
            MODULES,
            "_ZN2at15sequence_number17get_and_incrementEv",
            TensorMeaning::SequenceNumber,
            REGISTERS.walk(Walk::Always),
        ),
    ),
    row(24, GRAPHS, "_ZN2at4cuda9CUDAGraph13capture_beginE", TensorMeaning::CaptureBegins, REGISTERS),
    row(25, GRAPHS, "_ZN2at4cuda9CUDAGraph11capture_endE", TensorMeaning::CaptureEnds, REGISTERS),
    row(28, GRAPHS, "_ZN2at4cuda9CUDAGraph15capture_end_preE", TensorMeaning::CaptureEnds, REGISTERS),
    row(26, NVTX, "nvtxRangePushA", TensorMeaning::NvtxPush, REGISTERS.text(EventName::Argument0)),
    row(27, NVTX, "nvtxRangePop", TensorMeaning::NvtxPop, REGISTERS),
    arena(60, FrameworkLibrary::Xla),
    arena(61, FrameworkLibrary::TensorFlow),
    // Probed at the place of row 61, once the location of the name in this build is known. JAX has
    // no operator names.
    row(85, OPERATORS, "", TensorMeaning::ChunkNamed, REGISTERS),
    at(ProbePoint::Calls, row(62, ONNX, "", TensorMeaning::ArenaChunk, REGISTERS.walk(Walk::Chunks))),
    at(ProbePoint::Calls, row(63, ONNX, "", TensorMeaning::ArenaChunkFreed, REGISTERS)),
    ggml(
        64,
        "ggml_backend_buffer_init",
        TensorMeaning::BufferMade,
        REGISTERS.walk(Walk::Grants).block(BlockPlan::BufferMade),
    ),
    ggml(65, "ggml_backend_buffer_set_usage", TensorMeaning::BufferLabelled, REGISTERS.counters()),
    ggml(66, "ggml_backend_buffer_free", TensorMeaning::BufferGoes, REGISTERS.counters()),
    ggml(
        82,
        "ggml_tallocr_alloc",
        TensorMeaning::BufferTensor,
        REGISTERS.block(BlockPlan::BufferTensor { name_bytes: 0 }),
    ),
    at(ProbePoint::Calls, row(86, SCRATCH, "", TensorMeaning::ScratchGrows, REGISTERS.peek(2, 0).walk(Walk::Grants))),
    at(ProbePoint::Calls, row(87, SCRATCH, "", TensorMeaning::ScratchGoes, REGISTERS)),
    // Around each execution of a compiled function; exists in JAX 0.12.
    row(
        83,
        EXECUTIONS,
        "_ZN3tsl21ScopedAllocationTraceC1E",
        TensorMeaning::RangeBegins,
        REGISTERS.text(EventName::ValueInArgument3),
    ),
    row(84, EXECUTIONS, "_ZN3tsl21ScopedAllocationTraceD1E", TensorMeaning::RangeEnds, REGISTERS),
    arena_fails(80, FrameworkLibrary::Xla),
    arena_fails(81, FrameworkLibrary::TensorFlow),
    POOLS[0],
    POOLS[1],
    POOLS[2],
    POOLS[3],
    POOLS[4],
    POOLS[5],
    POOLS[6],
    POOLS[7],
    POOLS[8],
    POOLS[9],
    POOLS[10],
    POOLS[11],
    POOLS[12],
    row(40, PYTHON, "", TensorMeaning::CodeGoes, REGISTERS.forgets()),
];

/// Returns the row with this id.
pub fn tensor_probe(id: u16) -> Option<&'static TensorProbe> {
    TENSOR_PROBES.iter().find(|probe| probe.id == id)
}

#[cfg(test)]
mod tests {
    use super::super::plan::{BlockPlan, CounterPlan, HoldingRegister};
    use super::super::pool_plan::{PoolPlan, PoolShape};
    use super::{ProbePoint, TENSOR_PROBES, TensorPlan, Walk};

    #[test]
    fn every_row_survives_its_cookie() {
        for probe in TENSOR_PROBES {
            for is_return in [false, true] {
                assert_eq!(
                    TensorPlan::from_cookie(probe.plan.cookie(probe.id, is_return)),
                    (probe.id, probe.plan, is_return)
                );
            }
        }
        let (allocator, block) = (HoldingRegister::R13, HoldingRegister::R15);
        let counters = CounterPlan { offset_bytes: 0x560, peak_word: 7 };
        for block in [
            BlockPlan::ChunkGranted { allocator: HoldingRegister::Rbx, counters },
            BlockPlan::ChunkFreed { counters: CounterPlan { peak_word: 6, ..counters } },
            BlockPlan::Reserved {
                allocator: HoldingRegister::Rbp,
                node: HoldingRegister::Rbx,
                counters,
                is_grant: false,
            },
            BlockPlan::Reserved {
                allocator: HoldingRegister::R15,
                node: HoldingRegister::Rax,
                counters: CounterPlan { peak_word: 6, ..counters },
                is_grant: true,
            },
            BlockPlan::BufferMade,
            BlockPlan::BufferTensor { name_bytes: 0x100 },
            BlockPlan::Pool(PoolPlan { shape: PoolShape::ChunkFreed, counter_bytes: 0xff8 }),
            BlockPlan::Pool(PoolPlan { shape: PoolShape::ChunkGranted, counter_bytes: 0x50 }),
            BlockPlan::Granted { allocator, block, offset_bytes: 0x38 },
            BlockPlan::GivenBack { allocator, offset_bytes: 0x208 },
            BlockPlan::Completed { offset_bytes: 0xff8 },
        ] {
            let at_call = TensorPlan::registers().walk(Walk::Grants).at_call(block);
            let cookie = at_call.cookie(10, false);
            assert_eq!(TensorPlan::from_cookie(cookie), (10, at_call, false));
            assert!(BlockPlan::of_cookie(cookie) == block && BlockPlan::is_in(cookie));
        }
        let reserved = BlockPlan::Reserved { allocator, node: HoldingRegister::R14, counters, is_grant: true };
        let cookie = TensorPlan::registers().walk(Walk::Chunks).at_call(reserved).cookie(62, false);
        assert!(!BlockPlan::names_allocator_in(cookie));
        assert!(!BlockPlan::is_in(TensorPlan::registers().cookie(10, true)));
        let of_thread = TensorPlan::registers().walk(Walk::Always).of_thread(1023);
        assert_eq!(TensorPlan::from_cookie(of_thread.cookie(23, false)), (23, of_thread, false));
        for offset_bytes in [0, 0x3ff, 0x400, 0x5b0, 8191] {
            let counters = TensorPlan::registers().walk(Walk::Chunks).counters_at(offset_bytes);
            assert_eq!(TensorPlan::from_cookie(counters.cookie(60, false)), (60, counters, false));
        }
    }

    #[test]
    fn ids_are_unique_and_a_return_has_nothing_to_read_from_registers() {
        for (index, probe) in TENSOR_PROBES.iter().enumerate() {
            assert!(TENSOR_PROBES[..index].iter().all(|other| other.id != probe.id), "{}", probe.symbol);
            if probe.point == ProbePoint::Count {
                let plan = TensorPlan { stack: Walk::Never, ..probe.plan };
                assert_eq!(plan, TensorPlan::registers(), "{}", probe.symbol);
                assert!(probe.plan.stack != Walk::Grants, "{}", probe.symbol);
            }
        }
    }

    #[test]
    fn blocks_and_reported_chunks_have_a_program_of_their_own() {
        let block =
            BlockPlan::Granted { allocator: HoldingRegister::Rbx, block: HoldingRegister::R12, offset_bytes: 0x48 };
        let of_events = [
            TensorPlan::registers().walk(Walk::Grants).at_call(block),
            TensorPlan::registers()
                .at_call(BlockPlan::GivenBack { allocator: HoldingRegister::Rbx, offset_bytes: 0x208 }),
            TensorPlan::registers().at_call(BlockPlan::Completed { offset_bytes: 0x48 }),
            TensorPlan::registers().walk(Walk::Chunks).counters_at(0x50),
        ];
        assert!(of_events.into_iter().all(TensorPlan::is_of_events));
        let others = [
            TensorPlan::registers(),
            // Without a peek for its counters, their location is not known yet.
            TensorPlan::registers().walk(Walk::Chunks).counters(),
            TensorPlan::registers().block(BlockPlan::BufferMade),
        ];
        assert!(!others.into_iter().any(TensorPlan::is_of_events));
    }
}

//! One test per family of rows: how its registers and words are decoded.

use memwatch_common::meaning::LinearKind;
use memwatch_common::probes::PROBES;
use memwatch_common::record::{CallRecord, FLAG_OUT_UNREADABLE, FLAG_PEEK_UNREADABLE};

use super::{Action, DecodeError, Location, Stream, decode};
use crate::test_calls::{self as cuda, OUT_OF_MEMORY, TestCall, call, pair};
use crate::words::{ContextHandle, Ordinal, Tgid, Tid};

/// Bits that a program's registers may have above a 32-bit argument.
const GARBAGE: u64 = 0xdead_beef_0000_0000;

fn action(call: TestCall) -> Action {
    decode(&call.0).expect("the record has a row and its words").action
}

fn array_bytes(call: TestCall) -> u64 {
    match action(call) {
        Action::CreateArray { handle: 0xa0, estimated_bytes } => estimated_bytes,
        other => panic!("not the array: {other:?}"),
    }
}

#[test]
fn a_call_keeps_its_caller_times_status_and_name() {
    let record = cuda::mem_free(0x1000).process(7).thread(8).at(20, 30).failing(4);
    let call = decode(&record.0).expect("the row exists");
    assert_eq!((call.tgid, call.tid, call.symbol, call.status), (Tgid(7), Tid(8), "cuMemFree_v2", 4));
    assert_eq!((call.entered_ns, call.returned_ns), (20, 30));
}

#[test]
fn a_linear_grant_is_the_out_word_and_the_size_argument() {
    let kinds = [
        ("cuMemAlloc_v2", LinearKind::Device),
        ("cuMemAllocManaged", LinearKind::Managed),
        ("cuMemAllocHost_v2", LinearKind::PinnedHost),
        ("cuMemHostAlloc", LinearKind::PinnedHost),
    ];
    for (symbol, kind) in kinds {
        let granted = call(symbol, [0x7fff_0000, 4096]).out([0xd000, 0]);
        assert_eq!(action(granted), Action::Allocate { kind, address: 0xd000, bytes: 4096 }, "{symbol}");
    }
}

#[test]
fn pitched_allocation_is_pitch_by_height_and_a_refused_one_is_by_width() {
    let pitched = call("cuMemAllocPitch_v2", [0x7fff_0000, 0x7fff_0008, 100, 10, 4]).out([0xd000, 512]);
    let granted = Action::Allocate { kind: LinearKind::Device, address: 0xd000, bytes: 5120 };
    assert_eq!(action(pitched), granted);
    assert_eq!(action(pitched.failing(OUT_OF_MEMORY)).requested_bytes(), Some(1000));
}

#[test]
fn a_size_that_overflows_is_the_largest_number_and_no_panic() {
    let pitched = call("cuMemAllocPitch_v2", [0, 0, 1, u64::MAX, 4]).out([0xd000, u64::MAX]);
    assert_eq!(action(pitched).requested_bytes(), Some(u64::MAX));
    let array = call("cuArray3DCreate_v2", [0, 0]).out([0xa0, 0]).peek([u64::MAX, u64::MAX, u64::MAX, pair(0x20, 4)]);
    assert!(array_bytes(array) >= u64::MAX / 8);
}

#[test]
fn frees_decode_to_an_address_for_linear_and_host_memory() {
    assert_eq!(action(cuda::mem_free(0xd000)), Action::Free { address: 0xd000 });
    assert_eq!(action(cuda::mem_free_host(0x1000)), Action::FreeHost { address: 0x1000 });
}

#[test]
fn a_registered_range_is_its_first_two_arguments() {
    assert_eq!(action(cuda::mem_host_register(0x1000, 64)), Action::RegisterHost { address: 0x1000, bytes: 64 });
    assert_eq!(action(cuda::mem_host_unregister(0x1000)), Action::UnregisterHost { address: 0x1000 });
}

#[test]
fn a_stream_ordered_grant_names_its_pool_only_where_the_program_did() {
    for symbol in ["cuMemAllocAsync", "cuMemAllocAsync_ptsz"] {
        let granted = call(symbol, [0x7fff_0000, 64, 0x57]).out([0xd000, 0]);
        let stream = Stream::Handle(0x57);
        let expected = Action::AllocateFromPool { address: 0xd000, bytes: 64, pool: None, stream };
        assert_eq!(action(granted), expected, "{symbol}");
    }
    for symbol in ["cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"] {
        let granted = call(symbol, [0x7fff_0000, 64, 0x9001, 0x57]).out([0xd000, 0]);
        let stream = Stream::Handle(0x57);
        let expected = Action::AllocateFromPool { address: 0xd000, bytes: 64, pool: Some(0x9001), stream };
        assert_eq!(action(granted), expected, "{symbol}");
    }
}

#[test]
fn stream_zero_is_the_legacy_stream_except_for_ptsz_functions() {
    for (symbol, handle, stream) in [
        ("cuMemFreeAsync", 0, Stream::Legacy),
        ("cuMemFreeAsync", 1, Stream::Legacy),
        ("cuMemFreeAsync", 2, Stream::OfThread),
        ("cuMemFreeAsync_ptsz", 0, Stream::OfThread),
        ("cuMemFreeAsync_ptsz", 1, Stream::Legacy),
        ("cuMemFreeAsync_ptsz", 0x57, Stream::Handle(0x57)),
    ] {
        let expected = Action::FreeAsync { address: 0xd000, stream };
        assert_eq!(action(call(symbol, [0xd000, handle])), expected, "{symbol} {handle}");
    }
}

#[test]
fn every_row_of_the_table_has_an_action_of_its_own_family() {
    for probe in PROBES {
        let record = call(probe.symbol, [1, 2, 3, 4, 5, 6]).out([7, 8]).peek([10, 0, 0, 0, 0]);
        let is_pop = matches!(action(record), Action::PopContext);
        assert_eq!(is_pop, probe.symbol == "cuCtxPopCurrent_v2", "{} is not decoded", probe.symbol);
    }
}

#[test]
fn physical_location_decodes_device_host_and_unknown() {
    let locations = [
        ((1, 3), Location::Device(Ordinal(3))),
        ((2, 0), Location::Host),
        ((3, 1), Location::Host),
        ((4, 0), Location::Host),
        // A locality domain: the device in the low byte, the domain in the next.
        ((6, 0x0502), Location::Device(Ordinal(2))),
        ((0, 0), Location::Unknown),
        ((5, 0), Location::Unknown),
        ((7, 1), Location::Unknown),
    ];
    for (words, location) in locations {
        let expected = Action::CreatePhysical { handle: 0x40, bytes: 2 << 20, location };
        assert_eq!(action(cuda::mem_create(0x40, 2 << 20, words)), expected, "location {words:?}");
    }
}

#[test]
fn an_unreadable_location_is_unknown_and_not_device_zero() {
    let created = cuda::mem_create(0x40, 64, (1, 0)).flagged(FLAG_PEEK_UNREADABLE);
    assert_eq!(action(created), Action::CreatePhysical { handle: 0x40, bytes: 64, location: Location::Unknown });
}

#[test]
fn handle_and_mapping_arguments_follow_cuda_h() {
    assert_eq!(action(cuda::mem_release(0x40)), Action::ReleasePhysical { handle: 0x40 });
    assert_eq!(action(cuda::mem_retain(0x40, 0xd000)), Action::RetainPhysical { handle: 0x40, address: 0xd000 });
    assert_eq!(action(cuda::mem_import(0x40)), Action::ImportPhysical { handle: 0x40, file: None });
    assert_eq!(action(cuda::mem_map(0xd000, 64, 32, 0x40)), Action::Map { address: 0xd000, bytes: 64, handle: 0x40 });
    assert_eq!(action(cuda::mem_unmap(0xd000, 64)), Action::Unmap { address: 0xd000, bytes: 64 });
    let opened = call("cuIpcOpenMemHandle_v2", [0x7fff_0000, 1]).out([0xd000, 0]);
    assert_eq!(action(opened.peek([7, 8])), Action::OpenAlias { address: 0xd000, digest: Some([7, 8]) });
    let unreadable = Action::OpenAlias { address: 0xd000, digest: None };
    assert_eq!(action(opened.flagged(FLAG_PEEK_UNREADABLE)), unreadable);
    assert_eq!(action(call("cuIpcCloseMemHandle", [0xd000])), Action::CloseAlias { address: 0xd000 });
}

#[test]
fn a_flat_array_is_width_times_height_times_channels() {
    let flat = |height, format, channels| {
        call("cuArrayCreate_v2", [0, 0]).out([0xa0, 0]).peek([100, height, pair(format, channels)])
    };
    assert_eq!(array_bytes(flat(0, 0x01, 1)), 100, "one-dimensional: no height");
    assert_eq!(array_bytes(flat(10, 0x01, 4)), 4_000, "bytes");
    assert_eq!(array_bytes(flat(10, 0x10, 2)), 4_000, "half floats");
    assert_eq!(array_bytes(flat(10, 0x20, 4)), 16_000, "floats");
    assert_eq!(array_bytes(flat(10, 0xc5, 4)), 8_000, "normalised 16 bit");
}

#[test]
fn a_solid_array_has_a_depth_and_a_mipmapped_one_a_third_more() {
    let shape = [64, 32, 3, pair(0x20, 1), 0];
    let solid = call("cuArray3DCreate_v2", [0, 0]).out([0xa0, 0]).peek(shape);
    assert_eq!(array_bytes(solid), 64 * 32 * 3 * 4);
    let mipmapped = |levels| call("cuMipmappedArrayCreate", [0, 0, levels]).out([0xa0, 0]).peek(shape);
    assert_eq!(array_bytes(mipmapped(GARBAGE | 7)), 64 * 32 * 4 * 4);
    assert_eq!(array_bytes(mipmapped(GARBAGE | 1)), 64 * 32 * 3 * 4, "one level is the array itself");
}

#[test]
fn sparse_and_deferred_arrays_come_without_memory() {
    let solid = |flags| call("cuArray3DCreate_v2", [0, 0]).out([0xa0, 0]).peek([64, 64, 0, pair(1, 1), flags]);
    assert_eq!(array_bytes(solid(0x40)), 0, "sparse");
    assert_eq!(array_bytes(solid(0x80)), 0, "deferred mapping");
    assert_eq!(array_bytes(solid(0x01 | GARBAGE)), 64 * 64, "layered, with what lies behind the descriptor");
}

#[test]
fn block_compressed_array_element_size_ignores_channels() {
    let flat =
        |format, channels| call("cuArrayCreate_v2", [0, 0]).out([0xa0, 0]).peek([64, 64, pair(format, channels)]);
    for (format, channels) in [(0x91, 4), (0x92, 4), (0x97, 1), (0x98, 1)] {
        assert_eq!(array_bytes(flat(format, channels)), 64 * 64 / 2, "format {format:#x}");
    }
    for (format, channels) in [(0x93, 4), (0x96, 4), (0x99, 2), (0x9c, 3), (0x9e, 4)] {
        assert_eq!(array_bytes(flat(format, channels)), 64 * 64, "format {format:#x}");
    }
}

#[test]
fn both_array_destroys_name_a_handle() {
    for symbol in ["cuArrayDestroy", "cuMipmappedArrayDestroy"] {
        assert_eq!(action(call(symbol, [0xa0])), Action::DestroyArray { handle: 0xa0 }, "{symbol}");
    }
}

#[test]
fn each_version_of_context_creation_has_its_device_elsewhere() {
    let created = Action::CreateContext { context: ContextHandle(0xc0), device: Ordinal(2) };
    let device = GARBAGE | 2;
    let versions = [
        call("cuCtxCreate_v2", [0, 9, device, 9, 9, 9]),
        call("cuCtxCreate_v3", [0, 9, 9, 9, device, 9]),
        call("cuCtxCreate_v4", [0, 9, 9, device, 9, 9]),
    ];
    for version in versions {
        assert_eq!(action(version.out([0xc0, 0])), created, "{:?}", version.0);
    }
}

#[test]
fn a_device_argument_is_32_bits_wide_and_signed() {
    let retained = call("cuDevicePrimaryCtxRetain", [0, GARBAGE | 1]).out([0xc0, 0]);
    assert_eq!(action(retained), Action::RetainPrimary { context: ContextHandle(0xc0), device: Ordinal(1) });
    let released = call("cuDevicePrimaryCtxRelease_v2", [GARBAGE | 1]);
    assert_eq!(action(released), Action::ReleasePrimary { device: Ordinal(1) });
    let reset = call("cuDevicePrimaryCtxReset_v2", [GARBAGE | 0xffff_ffff]);
    assert_eq!(action(reset), Action::ResetPrimary { device: Ordinal(-1) });
}

#[test]
fn ctx_set_current_null_clears_the_context() {
    let context = ContextHandle(0xc0);
    assert_eq!(action(cuda::ctx_set_current(0xc0)), Action::SetContext { context: Some(context) });
    assert_eq!(action(cuda::ctx_set_current(0)), Action::SetContext { context: None });
    assert_eq!(action(cuda::ctx_push(0xc0)), Action::PushContext { context });
    assert_eq!(action(cuda::ctx_pop(0xc0)), Action::PopContext);
    assert_eq!(action(cuda::ctx_destroy(0xc0)), Action::DestroyContext { context });
}

#[test]
fn a_uuid_keeps_the_order_of_its_bytes_in_memory() {
    let bytes: [u8; 16] = std::array::from_fn(|index| u8::try_from(index).expect("sixteen is small"));
    let word = |half: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[8 * half + index]));
    for symbol in ["cuDeviceGetUuid", "cuDeviceGetUuid_v2"] {
        let asked = call(symbol, [0x7fff_0000, GARBAGE | 1]).out([word(0), word(1)]);
        assert_eq!(action(asked), Action::DeviceUuid { device: Ordinal(1), uuid: bytes }, "{symbol}");
    }
}

#[test]
fn a_record_of_no_row_is_an_error_with_its_number() {
    let record = |probe| CallRecord { probe, ..CallRecord::default() };
    let after_the_last = u16::try_from(PROBES.len()).expect("a short table") + 1;
    for probe in [0, after_the_last, u16::MAX] {
        assert_eq!(decode(&record(probe)), Err(DecodeError::UnknownProbe(probe)));
    }
}

#[test]
fn unreadable_result_is_an_error_only_for_a_successful_call() {
    let lost = cuda::mem_alloc(0, 4096).flagged(FLAG_OUT_UNREADABLE);
    assert!(matches!(decode(&lost.0), Err(DecodeError::ResultUnreadable(probe)) if probe.symbol == "cuMemAlloc_v2"));
    assert_eq!(action(lost.failing(OUT_OF_MEMORY)).requested_bytes(), Some(4096));
    let popped = cuda::ctx_pop(0).flagged(FLAG_OUT_UNREADABLE);
    assert_eq!(action(popped), Action::PopContext, "what was popped does not matter");
    let node = |kind| call("cuGraphAddNode", [0, 1, 0, 0, 4]).peek([kind, 0, 7, 0, 0]).flagged(FLAG_OUT_UNREADABLE);
    assert_eq!(action(node(11)), Action::AddFreeNode { graph: 1, address: 7 }, "only allocation nodes have a result");
    assert!(matches!(decode(&node(10).0), Err(DecodeError::ResultUnreadable(probe)) if probe.plan.is_tolerant()));
}

#[test]
fn only_allocations_say_what_they_asked_for() {
    for probe in PROBES {
        let asks = probe.symbol.contains("Alloc") && !["Retain", "Node"].iter().any(|word| probe.symbol.contains(word))
            || probe.symbol.ends_with("Create_v2") && probe.symbol.contains("Array")
            || matches!(probe.symbol, "cuMemCreate" | "cuMipmappedArrayCreate");
        let asked = action(call(probe.symbol, [1, 1, 1, 1, 1, 1])).requested_bytes().is_some();
        assert_eq!(asked, asks, "{}", probe.symbol);
    }
}

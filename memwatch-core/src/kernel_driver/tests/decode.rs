use super::*;
use crate::test_calls::rm::{LAYOUTS, NEWEST, Rm, client, free, made, mapped, memory, named, pinned, video};
use crate::words::Tid;
use memwatch_common::rm::{PAYLOAD_BYTES, PLANS};
use proptest::collection::vec;
use proptest::prelude::*;

const CLIENT: u32 = 0xc1d0_001b;
const DEVICE: u32 = 0x5c00_0002;
const NAMES: (u32, u32, u32) = (CLIENT, DEVICE, 0x5c00_000e);
const NEWEST_BRANCH: Option<u32> = Some(580);
const MIB: u64 = 1 << 20;

fn read(rm: &Rm) -> Result<RmEvent, RmViolation> {
    decode(&rm.0, NEWEST_BRANCH)
}

fn granted(asked: u64, granted: u64) -> RmEvent {
    let key = ObjectKey { client: CLIENT, object: NAMES.2 };
    let (lies, asked_bytes) = (Lies::Video, Some(asked));
    let new = New::Memory(GrantedMemory { lies, asked_bytes, granted_bytes: granted, coherency_1: false });
    RmEvent::Made { key, parent: DEVICE, new }
}

#[test]
fn all_layouts_of_an_allocation_read_alike_where_the_version_is_known() {
    for layout in LAYOUTS {
        let branch = layout.version.split('.').next().and_then(|branch| branch.parse().ok());
        let call = video(layout, NAMES, 4_325_376, 6 * MIB);
        assert_eq!(decode(&call.0, branch), Ok(granted(4_325_376, 6 * MIB)), "{layout:?}");
        let call = call.refused(layout, 0x51);
        let parent = ObjectKey { client: CLIENT, object: DEVICE };
        let refused = RmEvent::Refused { parent, lies: Lies::Video, asked_bytes: Some(4_325_376) };
        assert_eq!(decode(&call.0, branch), Ok(refused), "{layout:?}");
    }
}

#[test]
fn where_the_version_is_not_known_both_places_of_a_status_must_be_zero() {
    let [oldest, with_flags, ..] = LAYOUTS;
    assert_eq!(decode(&video(oldest, NAMES, 1, 4096).0, None), Ok(granted(1, 4096)));
    assert_eq!(decode(&video(with_flags, NAMES, 1, 4096).0, None), Ok(RmEvent::Nothing));
}

#[test]
fn rm_failed_answer_or_status_has_no_effect() {
    let mut failed = video(NEWEST, NAMES, MIB, MIB);
    failed.0.answer = -1;
    assert_eq!(read(&failed), Ok(RmEvent::Nothing));
    assert_eq!(read(&video(NEWEST, NAMES, MIB, MIB).refused(NEWEST, 0x1f)), Ok(RmEvent::Nothing));
    assert_eq!(read(&free(CLIENT, 1).word(12, 0x1f)), Ok(RmEvent::Nothing));
}

#[test]
fn rm_request_of_unknown_size_or_unreadable_params_is_refused() {
    for size in [0, 24, 47, 49, 56, 160, 192] {
        assert_eq!(read(&Rm::new(0x2b, size)), Err(RmViolation::Layout), "{size}");
    }
    for size in [160, 176, 192] {
        assert_eq!(read(&Rm::new(0x4a, size)), Err(RmViolation::Layout), "{size}");
    }
    let mut unread = video(NEWEST, NAMES, MIB, MIB);
    unread.0.flags = FLAG_PARAMS_UNREADABLE;
    assert_eq!(read(&unread), Err(RmViolation::Unreadable));
    unread.0.flags = FLAG_ARGUMENT_UNREADABLE;
    assert_eq!(read(&unread), Err(RmViolation::Unreadable));
    let mut addresses = mapped((CLIENT, 1), 0, 1);
    addresses.0.flags = FLAG_ARGUMENT_UNREADABLE;
    assert_eq!(read(&addresses), Ok(RmEvent::Nothing), "the sum needs no addresses");
}

#[test]
fn sizes_that_no_driver_gives_are_refused() {
    for (asked, granted) in [(0, 4096), (4097, 4096), (1, 0), (1, 4095), (1, 6000)] {
        assert_eq!(read(&video(NEWEST, NAMES, asked, granted)), Err(RmViolation::Size), "{asked} {granted}");
    }
    let mut unread = video(NEWEST, NAMES, 0, 4096);
    unread.0.flags = FLAG_ASKED_UNREADABLE;
    assert!(read(&unread).is_ok(), "what was asked for is not known, and is not 0");
}

#[test]
fn rm_invalid_client_and_unknown_location_are_refused() {
    assert_eq!(read(&video(NEWEST, (0x5c00_0001, DEVICE, 1), MIB, MIB)), Err(RmViolation::Client));
    assert_eq!(read(&client(NEWEST, 7)), Err(RmViolation::Client));
    assert!(read(&client(NEWEST, 0xc1df_ffff)).is_ok() && read(&client(NEWEST, 0xe010_0001)).is_ok());
    assert_eq!(read(&memory(NEWEST, NAMES, 0x40, (1, 4096), 2 << 25)), Err(RmViolation::Location));
}

#[test]
fn memory_is_where_its_class_and_its_attributes_say() {
    let lies = |rm: &Rm| match read(rm) {
        Ok(RmEvent::Made { new: New::Memory(granted), .. }) => Some((granted.lies, granted.granted_bytes)),
        _ => None,
    };
    assert_eq!(lies(&memory(NEWEST, NAMES, 0x40, (1, 4096), 1 << 25)), Some((Lies::DriverHost, 4096)));
    assert_eq!(lies(&memory(NEWEST, NAMES, 0x3e, (1, 4096), 0x2a80_0000)), Some((Lies::DriverHost, 4096)));
    assert_eq!(lies(&pinned(NAMES, 81_920)), Some((Lies::PinnedHost, 81_920)));
    let by_alloc = made(NEWEST, NAMES, 0x71).bytes(PARAMS_OFFSET + 24, &8191_u64.to_le_bytes());
    assert_eq!(lies(&by_alloc), Some((Lies::PinnedHost, 8192)));
    let addresses = video(NEWEST, NAMES, 1 << 40, 1 << 40).param(8, VIRTUAL);
    assert_eq!(lies(&addresses), None, "addresses are no memory");
    let pools = memory(NEWEST, NAMES, 0x40, (1, 4096), 0x3180_0000);
    assert!(matches!(
        read(&pools),
        Ok(RmEvent::Made { new: New::Memory(GrantedMemory { coherency_1: true, .. }), .. })
    ));
}

#[test]
fn the_heap_control_allocates_pins_and_frees() {
    let heap = |function| Rm::new(0x4a, 184).word(0, CLIENT).word(4, DEVICE).word(8, function);
    let allocated = heap(2).word(44, NAMES.2).word(56, 0x1180_0000).long(88, 2 * MIB);
    let Ok(RmEvent::Made { key, new: New::Memory(granted), .. }) = read(&allocated) else { panic!("it is memory") };
    assert_eq!((key.object, granted.lies, granted.asked_bytes), (NAMES.2, Lies::Video, None));
    assert_eq!(granted.granted_bytes, 2 * MIB);
    let freed = RmEvent::Freed(ObjectKey { client: CLIENT, object: NAMES.2 });
    assert_eq!(read(&heap(3).word(44, NAMES.2)), Ok(freed));
    let pinned = heap(27).word(40, NAMES.2).long(72, 4095);
    assert!(matches!(read(&pinned), Ok(RmEvent::Made { new: New::Memory(_), .. })));
    assert_eq!(read(&heap(14)), Ok(RmEvent::Nothing));
}

#[test]
fn a_gpu_is_named_in_sixteen_bytes_or_in_letters() {
    let uuid = GpuUuid::from_bytes([0xab; 16]);
    let key = ObjectKey { client: CLIENT, object: 0x5c00_0003 };
    let event = RmEvent::Named { key, uuid: uuid.clone() };
    assert_eq!(read(&named(CLIENT, 0x5c00_0003, [0xab; 16])), Ok(event.clone()));
    let text = named(CLIENT, 0x5c00_0003, [0; 16]).param(4, 0).bytes(PARAMS_OFFSET + 12, uuid.as_str().as_bytes());
    assert_eq!(read(&text), Ok(event));
    assert_eq!(read(&named(CLIENT, 1, [0; 16])), Ok(RmEvent::Nothing), "zeros name nothing");
    assert_eq!(read(&named(CLIENT, 1, [0xff; 16]).param(4, 0)), Ok(RmEvent::Nothing), "that is no text");
}

proptest! {
    #[test]
    fn rm_decode_never_panics_on_arbitrary_records(
        nr: u8, size: u16, row in any::<prop::sample::Index>(), keeps: bool, flags: u8, answer in -1_i32..=0,
        payload in vec(any::<u8>(), 0..=PAYLOAD_BYTES), asked_bytes: u64, branch in proptest::option::of(0_u32..700),
    ) {
        let row = row.get(PLANS);
        let (nr, size) = if keeps { (row.nr, row.size) } else { (nr, size) };
        let call = RmCall { tid: Tid(1), nr, size, flags, answer, payload, asked_bytes, ..RmCall::default() };
        let event = decode(&call, branch);
        if plan(nr, size).is_none() {
            prop_assert_eq!(event, Err(RmViolation::Layout));
        } else if let Ok(RmEvent::Made { new: New::Memory(granted), .. }) = event {
            prop_assert!(granted.granted_bytes > 0 && granted.asked_bytes.is_none_or(|asked| asked <= granted.granted_bytes));
        }
    }
}

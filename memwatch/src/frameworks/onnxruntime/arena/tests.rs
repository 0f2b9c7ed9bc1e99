use super::*;

fn function(code: &[u8]) -> DecodedFunction {
    let location = FunctionLocation { address: 0x1000, file_offset: 0x400, size_bytes: code.len() as u64 };
    let instructions = Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).into_iter().collect();
    DecodedFunction { location, code: code.to_vec(), instructions }
}

/// `mov %rbx,%rdi; call FIND; test %rax,%rax; je +0x44`.
const ASKS: [u8; 13] = [0x48, 0x89, 0xdf, 0xe8, 0xf8, 0x0f, 0, 0, 0x48, 0x85, 0xc0, 0x74, 0x44];
/// Target of that call.
const FIND: u64 = 0x2000;

#[test]
fn a_chunk_is_seen_at_the_branch_behind_each_call_that_looks_for_it() {
    let counters = CounterLayout::new(0x560, [0, 4, 7, 8]).expect("it is possible");
    let points = grants(&function(&ASKS), FIND, counters).expect("one call");
    let block = BlockPlan::ChunkGranted { allocator: HoldingRegister::Rbx, counters: counters.plan() };
    assert_eq!((points.len(), points[0].file_offset, points[0].plan.block), (1, 0x40b, block));
    assert!(!points[0].is_return());
    // Version 1.23 stores the result in between.
    let stores = [&ASKS[..8], &[0x48, 0x89, 0x44, 0x24, 0x18], &ASKS[8..]].concat();
    assert_eq!(grants(&function(&stores), FIND, counters).expect("one call")[0].file_offset, 0x410);
}

#[test]
fn calls_that_are_not_as_expected_are_refused() {
    let counters = CounterLayout::new(0x560, [0, 4, 7, 8]).expect("it is possible");
    let refused = |code: &[u8]| assert!(grants(&function(code), FIND, counters).is_none(), "{code:x?}");
    // Without the arena in a preserved register, without the test, and with another branch.
    refused(&[&[0x48, 0x8b, 0x3b], &ASKS[3..]].concat());
    refused(&[&ASKS[..8], &[0x48, 0x89, 0xc3], &ASKS[11..]].concat());
    refused(&[&ASKS[..11], &[0x7f, 0x44]].concat());
    refused(&[0xc3]);
    for length in 0..ASKS.len() {
        let _no_panic = grants(&function(&ASKS[..length]), FIND, counters);
    }
}

/// `movdqu OFFSET(%rbx),%xmm0`.
fn copies(offset: u32) -> Vec<u8> {
    [&[0xf3, 0x0f, 0x6f, 0x83][..], &offset.to_le_bytes()].concat()
}

#[test]
fn how_many_words_are_counted_says_where_the_peak_is() {
    let ten: Vec<u8> = (0..5).flat_map(|row| copies(0x560 + 16 * row)).collect();
    assert_eq!(counters(&function(&ten)), CounterLayout::new(0x560, [0, 4, 7, 8]));
    // Eight counters, and `mov 0x5a8(%rbx),%rax`.
    let eight: Vec<u8> = (0..4).flat_map(|row| copies(0x568 + 16 * row)).collect();
    let nine = [&eight[..], &[0x48, 0x8b, 0x83, 0xa8, 0x05, 0, 0]].concat();
    assert_eq!(counters(&function(&nine)), CounterLayout::new(0x568, [0, 4, 6, 7]));
    assert_eq!(counters(&function(&eight)), None, "no build has eight");
    let gap: Vec<u8> = (0..5).flat_map(|row| copies(0x560 + 24 * row)).collect();
    assert_eq!(counters(&function(&gap)), None);
}

#[test]
fn the_size_of_an_element_is_what_its_inverse_says() {
    let code = [
        &[0x4d, 0x8b, 0xa1, 0x38, 0x05, 0, 0][..], // mov 0x538(%r9),%r12
        &[0x48, 0xb8],
        &0x8e38_e38e_38e3_8e39_u64.to_le_bytes(), // movabs, %rax
        &[0x49, 0x8b, 0x99, 0x40, 0x05, 0, 0],    // mov 0x540(%r9),%rbx
        &[0x4c, 0x29, 0xe3],                      // sub %r12,%rbx
        &[0x48, 0xc1, 0xfb, 0x03],                // sar $3,%rbx
        &[0x48, 0x0f, 0xaf, 0xd8],                // imul %rax,%rbx
    ]
    .concat();
    assert_eq!(function(&code).vector(), Some((0x538, 72)));
    let mut other = code.clone();
    other[20] = 0x48;
    assert_eq!(function(&other).vector(), None, "the end lies behind the beginning");
    assert_eq!(function(&code[..code.len() - 4]).vector(), None);
    assert_eq!((inverse_of(0x8e38_e38e_38e3_8e39), inverse_of(4)), (Some(9), None));
}

#[test]
fn onnx_region_offset_is_the_first_addition_before_the_call() {
    // add $0x520,%rdi; call
    let code = [0x48, 0x81, 0xc7, 0x20, 0x05, 0, 0, 0xe8, 0, 0, 0, 0];
    assert_eq!(regions(&function(&code)), Some(0x520));
    assert_eq!(regions(&function(&code[..7])), None);
}

/// Instructions of `Reserve` in 1.31.1: `lea 0x5b0(%rbx),%rdi`, a new node, and the counters.
const RESERVES: &[&[u8]] = &[
    &[0x48, 0x8d, 0xbb, 0xb0, 0x05, 0, 0],
    &[0xe8, 0x96, 0x1f, 0x2b, 0xff],
    &[0x48, 0xc7, 0, 0, 0, 0, 0],
    &[0x49, 0x89, 0xc6],                   // mov %rax,%r14
    &[0x48, 0x89, 0x68, 0x08],             // mov %rbp,0x8(%rax)
    &[0x4c, 0x89, 0x60, 0x10],             // mov %r12,0x10(%rax)
    &[0x0f, 0x11, 0x83, 0x80, 0x05, 0, 0], // movups %xmm0,0x580(%rbx)
    &[0x49, 0x0f, 0x42, 0xc4],
    &[0x0f, 0x11, 0x8b, 0x60, 0x05, 0, 0],       // movups %xmm1,0x560(%rbx)
    &[0x48, 0x89, 0x83, 0xa0, 0x05, 0, 0],       // mov %rax,0x5a0(%rbx)
    &[0x4c, 0x01, 0xa3, 0x90, 0x05, 0, 0],       // add %r12,0x590(%rbx)
    &[0x48, 0x83, 0x3d, 0x60, 0xf7, 0xf6, 0, 0], // cmpq $0,(%rip)
    &[0x48, 0x89, 0x83, 0x98, 0x05, 0, 0],       // mov %rax,0x598(%rbx)
    &[0x74, 0x08],
];
/// Instructions of `Free`.
const GIVES_BACK: &[&[u8]] = &[
    &[0x48, 0x8d, 0xbd, 0xb0, 0x05, 0, 0], // lea 0x5b0(%rbp),%rdi
    &[0xe8, 0xec, 0x3a, 0xff, 0xff],
    &[0x48, 0x89, 0xc3], // mov %rax,%rbx
    &[0x48, 0x85, 0xc0],
    &[0x0f, 0x84, 0xf0, 0, 0, 0],
    &[0xff, 0x50, 0x28],
    &[0x48, 0x8b, 0x43, 0x10],             // mov 0x10(%rbx),%rax
    &[0x48, 0x8b, 0xb5, 0xb8, 0x05, 0, 0], // mov 0x5b8(%rbp),%rsi
    &[0x31, 0xd2],
    &[0x48, 0x29, 0x85, 0x80, 0x05, 0, 0], // sub %rax,0x580(%rbp)
];

#[test]
fn onnx_reserved_memory_is_probed_where_registers_hold_node_and_arena() {
    let layout = CounterLayout::new(0x560, [0, 4, 7, 8]).expect("it is possible");
    let counters = layout.plan();
    let reserved = Reserved::of(&function(&RESERVES.concat()), &function(&GIVES_BACK.concat()), layout);
    let reserved = reserved.expect("it is as expected");
    assert_eq!(reserved.map, 0x5b0);
    let [granted, given_back] = reserved.points;
    let plan =
        BlockPlan::Reserved { allocator: HoldingRegister::Rbx, node: HoldingRegister::R14, counters, is_grant: true };
    let behind_all = RESERVES[..RESERVES.len() - 1].concat().len() as u64;
    assert_eq!((granted.file_offset, granted.plan.block), (0x400 + behind_all, plan));
    let plan =
        BlockPlan::Reserved { allocator: HoldingRegister::Rbp, node: HoldingRegister::Rbx, counters, is_grant: false };
    let before_last = GIVES_BACK[..GIVES_BACK.len() - 1].concat().len() as u64;
    assert_eq!((given_back.file_offset, given_back.plan.block), (0x400 + before_last, plan));
}

#[test]
fn onnx_reserved_memory_is_not_probed_if_an_instruction_differs() {
    let layout = CounterLayout::new(0x560, [0, 4, 7, 8]).expect("it is possible");
    let (reserve, free) = (RESERVES.concat(), GIVES_BACK.concat());
    let of = |reserve: &[u8], free: &[u8]| Reserved::of(&function(reserve), &function(free), layout);
    // Leaves out one of the necessary instructions: the map, the node's words, a counter.
    for (without, what) in
        [(0, "map"), (3, "copy"), (4, "address"), (5, "size"), (8, "count"), (12, "peak"), (13, "end")]
    {
        let parts: Vec<&[u8]> =
            RESERVES.iter().enumerate().filter(|(at, _)| *at != without).map(|(_, part)| *part).collect();
        assert!(of(&parts.concat(), &free).is_none(), "{what}");
    }
    for (without, what) in [(0, "map"), (2, "copy"), (9, "counter")] {
        let parts: Vec<&[u8]> =
            GIVES_BACK.iter().enumerate().filter(|(at, _)| *at != without).map(|(_, part)| *part).collect();
        assert!(of(&reserve, &parts.concat()).is_none(), "{what}");
    }
    for length in 0..reserve.len() {
        let _no_panic = of(&reserve[..length], &free);
    }
}

use super::*;

fn function(code: &[u8]) -> Function {
    let location = FunctionLocation { address: 0x1000, file_offset: 0x400, size_bytes: code.len() as u64 };
    let instructions = Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE).into_iter().collect();
    Function { location, code: code.to_vec(), instructions }
}

/// `mov %rbx,%rdi; call FIND; test %rax,%rax; je +0x44`.
const ASKS: [u8; 13] = [0x48, 0x89, 0xdf, 0xe8, 0xf8, 0x0f, 0, 0, 0x48, 0x85, 0xc0, 0x74, 0x44];
/// Where that call leads.
const FIND: u64 = 0x2000;

#[test]
fn a_chunk_is_seen_at_the_branch_behind_each_call_that_looks_for_it() {
    let counters = CounterLayout::new(0x560, [0, 4, 7, 8]).expect("it is possible");
    let points = grants(&function(&ASKS), FIND, counters).expect("one call");
    let block = BlockPlan::ChunkGranted { allocator: Held::Rbx, counters: counters.plan() };
    assert_eq!((points.len(), points[0].file_offset, points[0].plan.block), (1, 0x40b, block));
    assert!(!points[0].is_return());
    // As 1.23 does: it is stored in between.
    let stores = [&ASKS[..8], &[0x48, 0x89, 0x44, 0x24, 0x18], &ASKS[8..]].concat();
    assert_eq!(grants(&function(&stores), FIND, counters).expect("one call")[0].file_offset, 0x410);
}

#[test]
fn calls_that_are_not_as_expected_are_refused() {
    let counters = CounterLayout::new(0x560, [0, 4, 7, 8]).expect("it is possible");
    let refused = |code: &[u8]| assert!(grants(&function(code), FIND, counters).is_none(), "{code:x?}");
    // Without the arena in a register that is kept, without the test, and with another branch.
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
    // Eight, and `mov 0x5a8(%rbx),%rax`.
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
fn regions_are_what_is_looked_at_first() {
    // add $0x520,%rdi; call
    let code = [0x48, 0x81, 0xc7, 0x20, 0x05, 0, 0, 0xe8, 0, 0, 0, 0];
    assert_eq!(regions(&function(&code)), Some(0x520));
    assert_eq!(regions(&function(&code[..7])), None);
}

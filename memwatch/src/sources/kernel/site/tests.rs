use super::*;

const ADDRESS: u64 = 0x12_3450;
const NEWEST: KernelVersion = KernelVersion { major: 6, minor: 18 };

/// `cmp dword [rip+0x1000], 0x22446688`: the first instruction of most driver exports.
const CMP: [u8; 10] = [0x81, 0x3d, 0x00, 0x10, 0x00, 0x00, 0x88, 0x66, 0x44, 0x22];
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const PUSH_RBP: [u8; 1] = [0x55];
const MOV_RBP_RSP: [u8; 3] = [0x48, 0x89, 0xe5];
const POP_RBP_RET: [u8; 2] = [0x5d, 0xc3];
const RET: [u8; 1] = [0xc3];

fn site_of(parts: &[&[u8]]) -> AttachOffset {
    select(&parts.concat(), ADDRESS, InstructionSet::X86_64, NEWEST)
}

fn reason_of(parts: &[&[u8]]) -> SiteReason {
    let site = site_of(parts);
    assert!(!site.emulated, "a fallback is never called emulated: {site:?}");
    assert_eq!(site.offset_in_function, 0, "a fallback is the entry: {site:?}");
    site.reason
}

fn assert_moved(parts: &[&[u8]], offset: u64, instructions: usize, text: &str) {
    let expected = AttachOffset {
        offset_in_function: offset,
        reason: SiteReason::MovedPast { instructions },
        instruction: text.to_owned(),
        emulated: true,
    };
    assert_eq!(site_of(parts), expected);
}

#[test]
fn attach_offset_may_follow_argument_writes_if_arguments_are_unused() {
    // `mov (%rdi),%rdi; add $16,%rdi; jmp …`: the end of a range in PyTorch.
    let code = [0x48, 0x8b, 0x3f, 0x48, 0x83, 0xc7, 0x10, 0xe9, 0xa4, 0xc7, 0xad, 0x0b];
    let site = select(&code, ADDRESS, InstructionSet::X86_64, NEWEST);
    assert_eq!((site.offset_in_function, site.reason), (0, SiteReason::ArgumentWritten));
    let site = select_without_arguments(&code, ADDRESS, InstructionSet::X86_64, NEWEST);
    assert_eq!((site.offset_in_function, site.reason), (7, SiteReason::MovedPast { instructions: 2 }));
}

#[test]
fn a_rip_relative_compare_is_skipped_for_the_branch_after_it() {
    // The shape of drivers 470 to 595: cmp; je; push rbp; mov rbp, rsp; pop rbp; ret.
    assert_moved(&[&CMP, &[0x74, 0x10], &PUSH_RBP, &MOV_RBP_RSP, &POP_RBP_RET], 10, 1, "je");
    // The same with a 32-bit branch offset.
    assert_moved(&[&CMP, &[0x0f, 0x85, 0x00, 0x02, 0x00, 0x00], &RET], 10, 1, "jne");
}

#[test]
fn an_emulated_entry_is_kept() {
    // The shape of driver 580.
    for (first, text) in [
        (&[0x55][..], "push rbp"),
        (&[0x41, 0x57], "push r15"),
        (&[0x90], "nop"),
        (&[0xe9, 0x00, 0x10, 0x00, 0x00], "jmp"),
        (&[0xeb, 0x20], "jmp"),
        (&[0xe8, 0x00, 0x10, 0x00, 0x00], "call"),
        (&[0x0f, 0x1f, 0x44, 0x00, 0x00], "nop"),
        (&[0x66, 0x90], "nop"),
    ] {
        let site = site_of(&[first, &RET]);
        assert_eq!(site.reason, SiteReason::EntryEmulated, "{text}");
        assert_eq!((site.offset_in_function, site.emulated), (0, true), "{text}");
        assert_eq!(site.instruction, text);
    }
}

#[test]
fn the_landing_pad_of_indirect_branch_tracking_is_skipped() {
    assert_moved(&[&ENDBR64, &PUSH_RBP, &POP_RBP_RET], 4, 1, "push rbp");
    assert_moved(&[&ENDBR64, &CMP, &[0x74, 0x01], &PUSH_RBP, &RET], 14, 2, "je");
}

#[test]
fn scratch_registers_and_own_counters_may_be_written_before_the_site() {
    let mov_eax_edi = &[0x89, 0xf8][..];
    let xor_r10d = &[0x45, 0x31, 0xd2];
    let inc_rip = &[0xff, 0x05, 0x00, 0x10, 0x00, 0x00];
    let lock_inc_rip = &[0xf0, 0xff, 0x05, 0x00, 0x10, 0x00, 0x00];
    let load_rax_from_rdi = &[0x48, 0x8b, 0x07];
    for before in [mov_eax_edi, xor_r10d, inc_rip, lock_inc_rip, load_rax_from_rdi] {
        assert_moved(&[before, &PUSH_RBP, &POP_RBP_RET], before.len() as u64, 1, "push rbp");
    }
}

#[test]
fn a_written_stack_pointer_or_stack_keeps_the_entry() {
    for first in [
        &[0x48, 0x83, 0xec, 0x18][..],   // sub rsp, 0x18
        &[0x48, 0x81, 0xec, 0, 1, 0, 0], // sub rsp, 0x100
        &[0x48, 0x8d, 0x64, 0x24, 0xf8], // lea rsp, [rsp-8]
        &[0x6a, 0x01],                   // push 1: not emulated
        &[0xff, 0x35, 0, 0x10, 0, 0],    // push qword [rip+0x1000]
        &[0xc8, 0x10, 0, 0],             // enter 0x10, 0
        &[0x58],                         // pop rax
        &[0x48, 0x89, 0x04, 0x24],       // mov [rsp], rax: over the return address
        &[0x48, 0x89, 0x7c, 0x24, 0x08], // mov [rsp+8], rdi: over a stack argument
    ] {
        assert_eq!(reason_of(&[first, &PUSH_RBP, &RET]), SiteReason::StackWritten, "{first:x?}");
    }
}

#[test]
fn a_written_argument_register_keeps_the_entry() {
    for first in [
        &[0xbf, 0x01, 0, 0, 0][..], // mov edi, 1
        &[0x31, 0xf6],              // xor esi, esi
        &[0x48, 0x89, 0xc2],        // mov rdx, rax
        &[0xb1, 0x03],              // mov cl, 3: a part of the register is enough
        &[0x41, 0x89, 0xc0],        // mov r8d, eax
        &[0x4d, 0x31, 0xc9],        // xor r9, r9
        &[0x48, 0x0f, 0x44, 0xf8],  // cmove rdi, rax: a conditional write counts as well
        &[0x48, 0xff, 0xc6],        // inc rsi
        &[0x48, 0x87, 0xfe],        // xchg rsi, rdi
        &[0x0f, 0xa2],              // cpuid
        &[0xf3, 0xaa],              // rep stosb
    ] {
        assert_eq!(reason_of(&[first, &PUSH_RBP, &RET]), SiteReason::ArgumentWritten, "{first:x?}");
    }
}

#[test]
fn memory_written_through_a_register_keeps_the_entry() {
    let store_through_rdi = &[0x48, 0xc7, 0x07, 0, 0, 0, 0];
    let store_through_rax = &[0x89, 0x08];
    for first in [&store_through_rdi[..], store_through_rax] {
        assert_eq!(reason_of(&[first, &PUSH_RBP, &RET]), SiteReason::MemoryWritten);
    }
}

#[test]
fn control_flow_that_is_not_emulated_ends_the_search() {
    let load_rax = &[0x48, 0x8b, 0x05, 0, 0x10, 0, 0];
    for first in [
        &[load_rax, &[0xff, 0xe0][..]].concat()[..], // mov rax, [rip+x]; jmp rax
        &[0xff, 0x25, 0, 0x10, 0, 0],                // jmp [rip+x]
        &[0xff, 0xd0],                               // call rax
        &[0x0f, 0x0b],                               // ud2
        &[0xcc],                                     // int3
        &[0x0f, 0x05],                               // syscall
        &[0xe3, 0x02],                               // jrcxz
        &[0x66, 0xe9, 0, 0, 0, 0],                   // the kernel refuses prefixed branches
        &RET,
    ] {
        let reason = reason_of(&[first, &PUSH_RBP, &POP_RBP_RET]);
        assert_eq!(reason, SiteReason::NoEmulatedInstruction, "{first:x?}");
    }
}

#[test]
fn an_entry_block_without_end_keeps_the_entry() {
    let long = [0x89, 0xf8].repeat(MAX_SKIPPED + 1); // mov eax, edi
    assert_eq!(reason_of(&[&long, &PUSH_RBP, &RET]), SiteReason::NoEmulatedInstruction);
}

#[test]
fn a_branch_back_into_the_prologue_keeps_the_entry() {
    // cmp (10 bytes); je +0; mov eax, edi; <branch at 14>; ret
    let head = [&CMP[..], &[0x74, 0x00], &[0x89, 0xf8]].concat();
    for (branch, from) in [
        (&[0xeb, 0xfa][..], 14),               // jmp to the site itself
        (&[0x75, 0xf0], 14),                   // jne to the entry
        (&[0x75, 0xf3], 14),                   // jne into the middle of the cmp
        (&[0xe8, 0xf7, 0xff, 0xff, 0xff], 14), // call of the site
        (&[0x0f, 0x85, 0xf6, 0xff, 0xff, 0xff], 14),
    ] {
        assert_eq!(reason_of(&[&head, branch, &RET]), SiteReason::BranchIntoPrologue { from }, "{branch:x?}");
    }
    // The chosen branch itself loops back to the compare.
    assert_eq!(reason_of(&[&CMP, &[0x74, 0xf4], &RET]), SiteReason::BranchIntoPrologue { from: 10 });
}

#[test]
fn branches_elsewhere_and_recursion_do_not_matter() {
    let loop_after_site = &[0x75, 0xfe]; // jne to itself
    assert_moved(&[&CMP, &[0x74, 0x02], loop_after_site, &RET], 10, 1, "je");
    let recursive_call = &[0xe8, 0xef, 0xff, 0xff, 0xff];
    assert_moved(&[&CMP, &[0x74, 0x05], recursive_call, &RET], 10, 1, "je");
}

#[test]
fn code_that_cannot_be_decoded_keeps_the_entry() {
    assert_eq!(reason_of(&[&[0x06]]), SiteReason::Undecodable { at: 0 });
    assert_eq!(reason_of(&[&CMP[..6]]), SiteReason::Undecodable { at: 0 });
    assert_eq!(reason_of(&[&CMP, &[0x74]]), SiteReason::Undecodable { at: 10 });
    let invalid_after_site = &[0x06, 0xc3][..];
    assert_eq!(reason_of(&[&CMP, &[0x74, 0x01], invalid_after_site]), SiteReason::Undecodable { at: 12 });
    assert_eq!(reason_of(&[]), SiteReason::CodeUnknown);
}

#[test]
fn attach_offset_emulation_depends_on_the_kernel_version() {
    let nop5 = &[0x0f, 0x1f, 0x44, 0x00, 0x00][..];
    let odd_nop = &[0x0f, 0x1f, 0x43, 0x00][..]; // nop [rbx+0]: not in the kernel's table
    for (code, major, minor, emulated) in [
        (nop5, 6, 15, false),
        (nop5, 6, 16, true),
        (odd_nop, 6, 18, false),
        (odd_nop, 6, 19, true),
        (odd_nop, 7, 0, true),
        (&PUSH_RBP, 4, 18, false),
        (&PUSH_RBP, 5, 0, true),
        (&[0xf3, 0x90], 6, 18, false),                                  // pause
        (&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], 6, 18, false), // refused: segment prefix
    ] {
        let kernel = KernelVersion { major, minor };
        let site = select(&[code, &RET].concat(), ADDRESS, InstructionSet::X86_64, kernel);
        assert_eq!(site.emulated, emulated, "{code:x?} on {kernel:?}: {site:?}");
    }
}

#[test]
fn a_multi_byte_nop_before_the_push_is_passed_on_older_kernels() {
    let nop5 = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    let code = [&nop5[..], &PUSH_RBP, &POP_RBP_RET].concat();
    let kernel = KernelVersion { major: 5, minor: 15 };
    let site = select(&code, ADDRESS, InstructionSet::X86_64, kernel);
    assert_eq!((site.offset_in_function, site.instruction.as_str()), (5, "push rbp"));
}

#[test]
fn other_machines_keep_the_entry_and_name_no_instruction() {
    for machine in [InstructionSet::Aarch64, InstructionSet::Other(243)] {
        let site = select(&[0x55, 0xc3], ADDRESS, machine, NEWEST);
        assert_eq!(site.reason, SiteReason::UnsupportedMachine);
        assert_eq!((site.offset_in_function, site.instruction.as_str()), (0, ""));
    }
}

#[test]
fn no_bytes_at_any_address_make_it_panic() {
    // A deterministic walk through pseudo-random code (xorshift).
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..20_000 {
        let word = next();
        let length = usize::try_from(word % 40).expect("below 40");
        let code: Vec<u8> = (0..length).map(|_| next().to_le_bytes()[3]).collect();
        for address in [0, u64::MAX - 3, next()] {
            let site = select(&code, address, InstructionSet::X86_64, NEWEST);
            assert!(site.offset_in_function <= length as u64, "{code:x?}: {site:?}");
        }
    }
}

#[test]
fn release_strings_are_read_as_far_as_they_matter() {
    for (release, expected) in [
        ("6.18.44-fc-v470\n", Some((6, 18))),
        ("5.15.0-105-generic", Some((5, 15))),
        ("7.0", Some((7, 0))),
        ("6.19-rc1", Some((6, 19))),
        ("6", None),
        ("", None),
        ("next", None),
        ("99999999999.1", None),
    ] {
        let version = KernelVersion::from_release(release).map(|v| (v.major, v.minor));
        assert_eq!(version, expected, "{release:?}");
    }
}

#[test]
fn every_reason_reads_as_a_clause() {
    for (reason, text) in [
        (SiteReason::MovedPast { instructions: 1 }, "moved past 1 instruction"),
        (SiteReason::MovedPast { instructions: 2 }, "moved past 2 instructions"),
        (SiteReason::BranchIntoPrologue { from: 0x2c }, "the branch at +0x2c returns into the entry block"),
        (SiteReason::Undecodable { at: 3 }, "the code at +0x3 cannot be decoded"),
    ] {
        assert_eq!(reason.to_string(), text);
    }
}

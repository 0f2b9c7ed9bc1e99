//! Checks that every call passes the chosen instruction exactly once.
//!
//! A linear decode of the whole function searches for a direct branch back to the entry block.

use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};

use super::SiteReason;

/// Checks that no branch of the function leads into its first `site + 1` bytes.
///
/// A call of the function's own entry is allowed, since it is a new call. A jump to it is not,
/// because the kernel would see a second call on the same stack frame. If the probes are at the
/// entry there is nothing to check.
pub(super) fn reached_once(code: &[u8], address: u64, site: u64) -> Result<(), SiteReason> {
    if site == 0 {
        return Ok(());
    }
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    while decoder.can_decode() {
        let from = decoder.position() as u64;
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(SiteReason::Undecodable { at: from });
        }
        let Some(target) = direct_target(&instruction) else {
            continue;
        };
        let into_function = target.wrapping_sub(address);
        let is_recursion = into_function == 0 && instruction.is_call_near();
        if into_function <= site && !is_recursion {
            return Err(SiteReason::BranchIntoPrologue { from });
        }
    }
    Ok(())
}

fn direct_target(instruction: &Instruction) -> Option<u64> {
    matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
        .then(|| instruction.near_branch_target())
}

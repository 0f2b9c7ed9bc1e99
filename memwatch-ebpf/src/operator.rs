//! Reads the operator for which an arena grants a chunk, from an annotation of the thread. A second
//! program at the same probe.

use core::ffi::c_void;

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use memwatch_common::capture::CaptureKernel;
use memwatch_common::loss::Loss;
use memwatch_common::record::RecordKind;
use memwatch_common::tensor::{
    CHUNK_GRANTED, FLAG_TEXT_CUT, LONGEST_OPERATOR_BYTES, OperatorPlan, TEXT_BYTES, TextRecord, chunk_key,
};

use crate::kernel::Bpf;
use crate::{tensor, variable};

/// Probe at the entry of `AddTraceMe`. `instruction` is the address of its first instruction.
/// Without a name no record is sent.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a text is 72 bytes long")]
pub(crate) fn on_enter(cookie: u64, args: &[u64; 6], instruction: u64) {
    if args[1] & u64::from(u32::MAX) != CHUNK_GRANTED {
        return;
    }
    let thread = Bpf.thread();
    if !tensor::is_wanted(cookie, thread.tgid) {
        return;
    }
    let (probe, plan) = OperatorPlan::from_cookie(cookie);
    let index = instruction.wrapping_add_signed(plan.distance_bytes.into());
    let Some(bytes) = variable::word(thread, index, plan.offset_bytes) else { return };
    if bytes == 0 || bytes > LONGEST_OPERATOR_BYTES {
        return;
    }
    let Some(name) = variable::word(thread, index, plan.offset_bytes + 8) else { return };
    let Some(mut entry) = Bpf::reserve::<TextRecord>() else {
        Bpf.lose(thread.tgid, Loss::TensorEventLost);
        return;
    };
    let record = entry.write(TextRecord {
        kind: RecordKind::Text as u8,
        flags: 0,
        probe,
        tid: thread.tid,
        tgid: thread.tgid,
        chunk: chunk_key(args[0], args[3]),
        time_ns: Bpf.now_ns(),
        text: [0; TEXT_BYTES],
    });
    // The end of a path is more specific than its beginning.
    let (mut from, mut length) = (name, bytes);
    if length > TEXT_BYTES as u64 {
        record.flags = FLAG_TEXT_CUT;
        from = name.wrapping_add(bytes - TEXT_BYTES as u64);
        length = TEXT_BYTES as u64;
    }
    // SAFETY: the helper writes at most as many bytes as the text has, and checks the user address itself.
    let failed =
        unsafe { bpf_probe_read_user(record.text.as_mut_ptr().cast::<c_void>(), length as u32, from as *const c_void) };
    if failed == 0 { Bpf::submit(entry) } else { entry.discard(BPF_RB_NO_WAKEUP.into()) }
}

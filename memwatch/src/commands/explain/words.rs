//! Sentences on parts of used memory, and advice on saving it.

use memwatch_core::kernel_driver::labels::{MemoryPurpose, Sure};
use memwatch_core::kernel_driver::trust::LedgerTrust;
use memwatch_core::snapshot::{ExplainedUse, PartView, ProcessView, RemainderView, Snapshot, Summand};
use memwatch_core::words::GpuUuid;

use crate::render::explained::name_of;
use crate::render::format::{bytes, count, printable, signed_bytes};
use crate::render::sentences;

/// Minimum size of a part that gets advice, in bytes.
const WORTH_ADVICE_BYTES: u64 = 32 << 20;

/// Sentence on a process without any request to the kernel driver.
pub(super) const UNSEEN: &str = "no request to the kernel driver was seen";

/// Returns the name of a confidence level.
pub(super) const fn sure(sure: Sure) -> &'static str {
    match sure {
        Sure::High => "high",
        Sure::Medium => "medium",
        Sure::Low => "low",
    }
}

/// Formats `context`, `local memory, 1,952 bytes per thread`, `inherited from PID 419`.
pub(super) fn part(part: &PartView) -> String {
    let name = name_of(part.label, part.owner.as_deref());
    match (part.bytes_per_thread, part.left_by) {
        (Some(bytes), _) => format!("{name}, {} bytes per thread", count(bytes)),
        (None, Some(tgid)) => format!("{name} from PID {}", tgid.0),
        (None, None) => name,
    }
}

/// Formats `used 1.14 GiB = context 518.0 MiB + PyTorch 440.0 MiB + pre-existing 0.5 GiB`; the
/// summands add up to what NVML charges.
pub(super) fn sum(own: &ExplainedUse) -> Option<String> {
    let used = own.used_bytes?;
    let mut parts: Vec<_> = own
        .summands()
        .iter()
        .map(|summand| format!("{} {}", name_of(summand.label, summand.owner), bytes(summand.bytes)))
        .collect();
    let older = own.older_bytes.filter(|older| *older > 0);
    parts.extend(older.map(|older| format!("pre-existing {}", bytes(older))));
    let signed = |name: &str, value: i64| (value != 0).then(|| format!("{name} {}", signed_bytes(value)));
    parts.extend(signed("unexplained", own.difference_bytes.unwrap_or(0)));
    let since = own.since_reading_bytes().and_then(i64::checked_neg);
    parts.extend(signed("changed since NVML was read", since.unwrap_or(0)));
    let parts = if parts.is_empty() { "nothing".to_owned() } else { parts.join(" + ") };
    Some(format!("used {} = {parts}", bytes(used)))
}

/// Describes a process without any request to the kernel driver, with a sentence for each GPU: the
/// process makes none, or its library's requests cannot be probed.
pub(super) fn unseen(snapshot: &Snapshot, process: &ProcessView) -> Vec<String> {
    let charged = process.gpus.iter().filter_map(|own| Some((own.uuid.as_ref(), own.used_bytes?)));
    let sentence = |(uuid, used): (Option<&GpuUuid>, u64)| {
        format!("GPU {}  used {}: {UNSEEN}", sentences::gpu_number(snapshot, uuid), bytes(used))
    };
    let charged: Vec<String> = charged.map(sentence).collect();
    if charged.is_empty() { vec![UNSEEN.to_owned()] } else { charged }
}

/// Describes why the requests do not explain the used memory, or not yet; `None` if they do.
pub(super) fn doubt(own: &ExplainedUse, from_start: bool, version: Option<&str>) -> Option<String> {
    let Some(refused) = (match own.trust {
        LedgerTrust::Trusted => return None,
        LedgerTrust::Refused(reason) => Some(reason.sentence().to_owned()),
        LedgerTrust::Unknown => Some(match version {
            Some(version) => {
                format!("its requests to the kernel driver {} have layouts not known here", printable(version))
            }
            None => "the kernel driver's version cannot be read: /sys/module/nvidia/version".to_owned(),
        }),
        LedgerTrust::Settling => None,
    }) else {
        return Some(settling(own, from_start));
    };
    Some(format!("no explanation: {refused}; memwatch ps shows what calls of the driver attribute"))
}

fn settling(own: &ExplainedUse, from_start: bool) -> String {
    if !from_start {
        let older = own.older_bytes.map(|older| format!(" ({})", bytes(older))).unwrap_or_default();
        return format!(
            "no explanation: it started before memwatch came, and what it had then{older} is one sum; an agent that runs before it, or memwatch run, sees all of it"
        );
    }
    match own.difference_bytes {
        Some(difference) if difference != 0 => {
            format!("no explanation yet: NVML charges {} beyond the kernel driver's books", signed_bytes(difference))
        }
        _ => "no explanation yet: NVML has to agree twice, a second apart, while nothing is allocated".to_owned(),
    }
}

/// Describes memory in use that is charged to no process.
pub(super) fn uncharged(remainder: &RemainderView) -> String {
    let why = if remainder.has_managed {
        "managed pages and the kernel driver"
    } else {
        "the kernel driver: page tables, channels"
    };
    format!("{} of it is charged to no process ({why})", signed_bytes(remainder.bytes))
}

/// Advice on saving memory of a part.
struct PartAdvice {
    /// Label of the part, and its owner if it matters.
    of: (MemoryPurpose, Option<&'static str>),
    /// The advice.
    text: &'static str,
}

const ADVICE: [PartAdvice; 7] = [
    PartAdvice {
        of: (MemoryPurpose::LocalMemory, None),
        text: "a kernel needs that much stack per thread, or cudaDeviceSetLimit(cudaLimitStackSize) set it; it stays until the context ends: a smaller limit, or a kernel that spills less, saves it",
    },
    PartAdvice {
        of: (MemoryPurpose::Stream, None),
        text: "the first torch.cuda.Stream makes a pool of 32 streams: a program that needs none saves it",
    },
    PartAdvice {
        of: (MemoryPurpose::Code, None),
        text: "CUDA_MODULE_LOADING=LAZY loads a kernel's code when it is first used",
    },
    PartAdvice {
        of: (MemoryPurpose::Requested, Some("cuBLAS")),
        text: "CUBLAS_WORKSPACE_CONFIG sets the workspace of each handle, such as :4096:8 for 32 MiB",
    },
    PartAdvice {
        of: (MemoryPurpose::Requested, Some("NCCL")),
        text: "NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS make NCCL's buffers smaller",
    },
    PartAdvice {
        of: (MemoryPurpose::Inherited, None),
        text: "another process made it, and freed it or ended while this one had it imported: NVML charges it here until this one closes it",
    },
    PartAdvice {
        of: (MemoryPurpose::Pool, None),
        text: "cudaMemPoolTrimTo gives back what a pool keeps; its release threshold says how much that is",
    },
];

/// Returns advice on each large part that has any.
pub(super) fn advice(own: &ExplainedUse) -> Vec<String> {
    let large = own.summands().into_iter().filter(|summand| summand.bytes >= WORTH_ADVICE_BYTES);
    let advised = |summand: Summand<'_>| {
        let fits = |advice: &&PartAdvice| {
            advice.of.0 == summand.label && advice.of.1.is_none_or(|owner| summand.owner == Some(owner))
        };
        let advice = ADVICE.iter().find(fits)?;
        Some(format!("{} {}: {}", name_of(summand.label, summand.owner), bytes(summand.bytes), advice.text))
    };
    large.filter_map(advised).collect()
}

#[cfg(test)]
mod tests {
    use memwatch_core::kernel_driver::trust::Reason;
    use memwatch_core::snapshot::ColumnsView;

    use memwatch_core::words::Tgid;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(label: MemoryPurpose, owner: Option<&str>, mib: u64) -> PartView {
        let (owner, bytes) = (owner.map(str::to_owned), mib * MIB);
        PartView {
            label,
            owner,
            function: None,
            bytes,
            objects: 1,
            sure: Sure::High,
            bytes_per_thread: None,
            left_by: None,
        }
    }

    fn own(parts: Vec<PartView>, used_mib: u64) -> ExplainedUse {
        let live_bytes = parts.iter().map(|part| part.bytes).sum();
        ExplainedUse {
            uuid: None,
            trust: LedgerTrust::Trusted,
            used_bytes: Some(used_mib * MIB),
            live_bytes,
            older_bytes: Some(0),
            difference_bytes: Some(0),
            parts,
            columns: ColumnsView::default(),
            pieces: Vec::new(),
        }
    }

    #[test]
    fn explain_summands_equal_the_nvml_charge_despite_later_changes() {
        let parts = || vec![of(MemoryPurpose::Context, None, 518), of(MemoryPurpose::Requested, Some("PyTorch"), 64)];
        assert_eq!(sum(&own(parts(), 582)).as_deref(), Some("used 582.0 MiB = context 518.0 MiB + PyTorch 64.0 MiB"));
        let late =
            ExplainedUse { older_bytes: Some(100 * MIB), difference_bytes: Some(-(2 << 20)), ..own(parts(), 680) };
        let text =
            "used 680.0 MiB = context 518.0 MiB + PyTorch 64.0 MiB + pre-existing 100.0 MiB + unexplained -2.0 MiB";
        assert_eq!(sum(&late).as_deref(), Some(text));
        let text = "used 518.0 MiB = context 518.0 MiB + PyTorch 64.0 MiB + changed since NVML was read -64.0 MiB";
        assert_eq!(sum(&own(parts(), 518)).as_deref(), Some(text));
    }

    #[test]
    fn explain_states_why_a_sum_is_not_trusted() {
        let with = |trust| doubt(&ExplainedUse { trust, ..own(Vec::new(), 0) }, true, Some("600.1"));
        assert_eq!(with(LedgerTrust::Trusted), None);
        let layout = with(LedgerTrust::Refused(Reason::Layout)).expect("a reason");
        assert!(layout.contains("a size that no known version"), "{layout}");
        assert!(with(LedgerTrust::Unknown).is_some_and(|text| text.contains("600.1")));
        assert!(with(LedgerTrust::Settling).is_some_and(|text| text.contains("twice")));
        let late = doubt(&ExplainedUse { trust: LedgerTrust::Settling, ..own(Vec::new(), 5) }, false, None);
        assert!(late.is_some_and(|text| text.contains("started before memwatch")));
    }

    #[test]
    fn explain_names_local_bytes_per_thread_and_the_pid_inherited_from() {
        let inherited = PartView { left_by: Some(Tgid(419)), ..of(MemoryPurpose::Inherited, None, 256) };
        assert_eq!(part(&inherited), "inherited from PID 419");
        let local = of(MemoryPurpose::LocalMemory, None, 504);
        assert_eq!(part(&local), "local memory");
        assert_eq!(part(&PartView { bytes_per_thread: Some(1952), ..local }), "local memory, 1,952 bytes per thread");
    }

    #[test]
    fn explain_gives_advice_for_large_parts_only() {
        let some = own(vec![of(MemoryPurpose::Stream, None, 70), of(MemoryPurpose::Requested, Some("NCCL"), 102)], 172);
        assert_eq!(advice(&some).len(), 2);
        assert_eq!(
            advice(&own(vec![of(MemoryPurpose::Stream, None, 4), of(MemoryPurpose::Context, None, 518)], 522)).len(),
            0
        );
    }
}

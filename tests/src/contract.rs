//! The JSON contract as a list of paths in a report with their types.

use serde_json::Value;

use crate::report::ReportLine;

/// Types of the contract.
#[derive(Clone, Copy, Debug)]
enum Is {
    Text,
    TextOrNull,
    Flag,
    Number,
    NumberOrNull,
    SignedOrNull,
    Object,
    ObjectOrNull,
    Array,
    Null,
}

impl Is {
    fn holds(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::TextOrNull => value.is_string() || value.is_null(),
            Self::Flag => value.is_boolean(),
            Self::Number => value.is_u64(),
            Self::NumberOrNull => value.is_u64() || value.is_null(),
            Self::SignedOrNull => value.is_i64() || value.is_null(),
            Self::Object => value.is_object(),
            Self::ObjectOrNull => value.is_object() || value.is_null(),
            Self::Array => value.is_array(),
            Self::Null => value.is_null(),
        }
    }
}

/// Paths in every report.
const CONTRACT: &[(&str, Is)] = &[
    ("/schema", Is::Text),
    ("/version", Is::Text),
    ("/host", Is::Text),
    ("/time", Is::Text),
    ("/complete", Is::Flag),
    ("/losses", Is::Object),
    ("/losses/ring_full", Is::Number),
    ("/from_agent", Is::Flag),
    ("/coverage/libraries/0/path", Is::Text),
    ("/coverage/libraries/0/build_id", Is::TextOrNull),
    ("/coverage/libraries/0/probes_attached", Is::Number),
    ("/coverage/libraries/0/probes_refused", Is::Array),
    ("/coverage/libraries/0/newer_functions", Is::Array),
    ("/coverage/libraries/0/in_use", Is::Flag),
    ("/coverage/libraries_over_limit", Is::Number),
    ("/coverage/libraries/0/gap_ns", Is::NumberOrNull),
    ("/coverage/discovery", Is::Text),
    ("/coverage/nvml", Is::Text),
    ("/data/hidden", Is::ObjectOrNull),
    ("/data/gpus/0/uuid", Is::Text),
    ("/data/gpus/0/nvml_index", Is::Number),
    ("/data/gpus/0/name", Is::Text),
    ("/data/gpus/0/pci_bus_id", Is::TextOrNull),
    ("/data/gpus/0/mig", Is::ObjectOrNull),
    ("/data/gpus/0/total_bytes", Is::NumberOrNull),
    ("/data/gpus/0/used_bytes", Is::NumberOrNull),
    ("/data/gpus/0/driver_allocated_bytes", Is::Number),
    ("/data/gpus/0/unattributed_bytes", Is::SignedOrNull),
    ("/data/processes/0/pid", Is::Number),
    ("/data/processes/0/start_time", Is::Text),
    ("/data/processes/0/comm", Is::Text),
    ("/data/processes/0/command", Is::Text),
    ("/data/processes/0/user", Is::Text),
    ("/data/processes/0/container", Is::TextOrNull),
    ("/data/processes/0/mps_client", Is::Flag),
    ("/data/processes/0/observed_since", Is::Text),
    ("/data/processes/0/exact", Is::Flag),
    ("/data/processes/0/main_thread_ended", Is::Flag),
    ("/data/processes/0/peaks_since", Is::TextOrNull),
    ("/data/processes/0/overhead", Is::ObjectOrNull),
    ("/data/processes/0/gpus/0/uuid", Is::Text),
    ("/data/processes/0/gpus/0/used_bytes", Is::NumberOrNull),
    ("/data/processes/0/gpus/0/driver_allocated_bytes", Is::Number),
    ("/data/processes/0/gpus/0/peak_bytes", Is::Number),
    ("/data/processes/0/gpus/0/preexisting_bytes", Is::NumberOrNull),
    ("/data/processes/0/gpus/0/unattributed_bytes", Is::SignedOrNull),
    ("/data/processes/0/gpus/0/allocations", Is::Number),
    ("/data/processes/0/gpus/0/frees", Is::Number),
    ("/data/processes/0/gpus/0/failed_allocations", Is::Number),
    ("/data/processes/0/gpus/0/kinds/device", Is::Object),
    ("/data/processes/0/gpus/0/kinds/pool", Is::Object),
    ("/data/processes/0/gpus/0/kinds/physical", Is::Object),
    ("/data/processes/0/gpus/0/kinds/managed", Is::Object),
    ("/data/processes/0/gpus/0/kinds/array", Is::Object),
    ("/data/processes/0/host/pinned_live_bytes", Is::Number),
    ("/data/processes/0/host/registered_live_bytes", Is::Number),
    ("/data/processes/0/tensor", Is::Null),
    ("/data/processes/0/left_behind", Is::Null),
];

/// Paths in a report after memory of these kinds was seen.
const CONTRACT_OF_KINDS: &[(&str, Is)] = &[
    ("/data/processes/0/gpus/0/kinds/device/driver_allocated_bytes", Is::Number),
    ("/data/processes/0/gpus/0/kinds/device/peak_bytes", Is::Number),
    ("/data/processes/0/gpus/0/kinds/pool/driver_allocated_bytes", Is::Number),
    ("/data/processes/0/gpus/0/kinds/pool/backed_bytes", Is::NumberOrNull),
];

fn assert_keeps(contract: &[(&str, Is)], report: &ReportLine) {
    for (place, is) in contract {
        let value = report.json().pointer(place).unwrap_or_else(|| panic!("no {place} in {report:#?}"));
        assert!(is.holds(value), "{place} is {value}, not {is:?}");
    }
}

/// Number of leading entries of [`CONTRACT`] that belong to the envelope of every command.
const ENVELOPE: usize = 7;

/// Asserts that a report has the envelope of every command.
///
/// # Panics
/// When a field is missing or has another type.
pub fn assert_envelope(report: &ReportLine) {
    assert_keeps(&CONTRACT[..ENVELOPE], report);
}

/// Asserts that a report of a watch, of `ps` or of `run` keeps the contract. It must have at least
/// one GPU and one process on it.
///
/// # Panics
/// When a field is missing or has another type.
pub fn assert_kept(report: &ReportLine) {
    assert_keeps(CONTRACT, report);
}

/// Asserts that a report keeps the contract, and that of a process whose linear and pool memory was
/// seen.
///
/// # Panics
/// When a field is missing or has another type.
pub fn assert_kept_with_kinds(report: &ReportLine) {
    assert_keeps(CONTRACT, report);
    assert_keeps(CONTRACT_OF_KINDS, report);
}

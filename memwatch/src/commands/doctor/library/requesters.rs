//! Checks of driver libraries other than libcuda that request memory from the kernel driver:
//! whether their requests can be probed.

use memwatch_common::probes::When;
use memwatch_core::input::KernelCalls;
use serde::Serialize;

use crate::commands::doctor::check::{Check, CheckState, Topic};
use crate::sources::kernel::attach::plan;
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::{LibraryFile, LibraryScan, REQUESTERS};

/// A library file that makes requests.
#[derive(Debug, Serialize)]
pub(crate) struct RequesterReport {
    /// Path of the file.
    pub(crate) path: String,
    /// Whether its requests can be probed.
    pub(crate) kernel_calls: KernelCalls,
}

/// Examines all such files on the machine and in its processes.
pub(super) fn examine(scan: LibraryScan, version: KernelVersion) -> Vec<RequesterReport> {
    let found = scan.with_stems(&REQUESTERS).without_named().scan_all();
    found.files.iter().map(|file| report(file, version)).collect()
}

fn report(file: &LibraryFile, version: KernelVersion) -> RequesterReport {
    let kernel_calls = match plan(file, version, (&[], When::Always)) {
        Ok(plan) => plan.stubs.map_or_else(|refused| refused, |stubs| KernelCalls::Probed { stubs: stubs.len() }),
        Err(error) => KernelCalls::Refused { reason: chain(&error) },
    };
    RequesterReport { path: file.display.clone(), kernel_calls }
}

/// Judges the result for the processes that use the file.
pub(super) fn judge(report: &RequesterReport) -> Check {
    let (state, words) = match &report.kernel_calls {
        KernelCalls::Probed { stubs } => {
            (CheckState::Ok, format!("requests to the kernel driver found at {}", super::count(*stubs, "stub")))
        }
        KernelCalls::None => (CheckState::Ok, "makes no requests to the kernel driver".to_owned()),
        KernelCalls::Refused { reason } => {
            (CheckState::Degraded, format!("requests to the kernel driver are not seen: {reason}"))
        }
    };
    Check::new(Topic::Driver, "graphics and video", state, format!("{}: {words}", report.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_states_why_requests_of_a_library_are_not_seen() {
        let of = |kernel_calls| judge(&RequesterReport { path: "/lib/libnvidia-glcore.so.1".to_owned(), kernel_calls });
        let fine = of(KernelCalls::Probed { stubs: 1 });
        assert_eq!(
            (fine.state, &*fine.fact),
            (CheckState::Ok, "/lib/libnvidia-glcore.so.1: requests to the kernel driver found at 1 stub")
        );
        let refused = of(KernelCalls::Refused { reason: "it calls ioctl without a stub".to_owned() });
        assert_eq!(refused.state, CheckState::Degraded);
        assert!(refused.fact.ends_with("are not seen: it calls ioctl without a stub"), "{}", refused.fact);
    }
}

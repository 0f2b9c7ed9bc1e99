//! Attaches probes to single processes, for functions that are called too often to be probed in
//! all.

use std::num::NonZeroU32;

use memwatch_common::probes::When;

use crate::backends::library_watch::LibraryWatch;
use crate::sources::kernel::attach::{ProcessProbes, attach_to_process, detach};
use crate::sources::kernel::load::KernelHalf;
use crate::sources::library_look::NewFile;

/// Attaches the probes for the situation `when` to a process; failures are only logged. Returns
/// `None` until a scan has found the functions; the caller tries again.
pub(super) fn put_in(
    kernel: &mut KernelHalf,
    libraries: &mut LibraryWatch,
    tgid: u32,
    when: When,
) -> Option<Vec<ProcessProbes>> {
    let Some(scope) = NonZeroU32::new(tgid) else { return Some(Vec::new()) };
    let mut probes = Vec::new();
    for NewFile { file, plan } in libraries.functions_of(tgid, when)? {
        match attach_to_process(kernel, (&file, &plan), scope) {
            Ok(attached) => probes.push(attached),
            Err(error) => log::warn!("process {tgid}: cannot attach probes for {when:?}: {}: {error}", file.display),
        }
    }
    log::info!("process {tgid}: probes attached for {when:?}");
    Some(probes)
}

/// Detaches the probes.
pub(super) fn take_out(kernel: &mut KernelHalf, tgid: u32, probes: Vec<ProcessProbes>) {
    for probes in probes {
        if let Err(error) = detach(kernel, probes) {
            log::warn!("process {tgid}: cannot detach probes: {error}");
        }
    }
}

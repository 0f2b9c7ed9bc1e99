//! Probes the functions that return a thread's context and device, for a short time, in processes
//! that use several GPUs.
//!
//! Programs call these functions constantly, but one result per thread is enough. It is needed
//! after a late attach, if memwatch has not seen a thread choose its context.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memwatch_common::probes::When;
use memwatch_core::Pipeline;
use memwatch_core::attribution::device::UnplacedThreads;

use super::process_probes::{put_in, take_out};
use crate::backends::ProbesOnDemand;
use crate::backends::library_watch::LibraryWatch;
use crate::sources::kernel::attach::ProcessProbes;
use crate::sources::kernel::load::KernelHalf;

/// Maximum time of the probes in a process. A thread that has not called such a function by then
/// may never do so.
const LONGEST: Duration = Duration::from_secs(5);
/// Pause before the next attempt after one without result.
const REST: Duration = Duration::from_secs(60);

/// The processes with probes, and earlier ones that are still undecided.
#[derive(Debug, Default)]
pub(super) struct ContextProbes {
    asked: BTreeMap<u32, ContextProbeState>,
}

#[derive(Debug)]
struct ContextProbeState {
    /// Reason for the probes.
    state: UnplacedThreads,
    /// Attached probes; empty once detached.
    probes: Vec<ProcessProbes>,
    /// When the probes are detached; after that, when they may be attached again.
    until: Instant,
}

impl ProbesOnDemand for ContextProbes {
    /// Returns when probes are to be detached or may be attached again.
    fn due(&self, now: Instant) -> Option<Instant> {
        let is_due = |asked: &&ContextProbeState| !asked.probes.is_empty() || asked.until > now;
        self.asked.values().filter(is_due).map(|asked| asked.until).min()
    }

    /// Probes processes with a thread of unknown device, until [`LONGEST`] has passed.
    fn update(&mut self, kernel: &mut KernelHalf, libraries: &mut LibraryWatch, pipeline: &Pipeline) {
        let unplaced: BTreeMap<u32, UnplacedThreads> =
            pipeline.state.unplaced().map(|(tgid, why)| (tgid.0, why)).collect();
        let settled: Vec<u32> = self.asked.keys().filter(|tgid| !unplaced.contains_key(tgid)).copied().collect();
        for tgid in settled {
            if let Some(asked) = self.asked.remove(&tgid) {
                take_out(kernel, tgid, asked.probes);
            }
        }
        let now = Instant::now();
        for (tgid, state) in unplaced {
            match self.asked.get_mut(&tgid) {
                Some(asked) if !asked.probes.is_empty() => {
                    if asked.state != state {
                        (asked.state, asked.until) = (state, now + LONGEST);
                    } else if now >= asked.until {
                        take_out(kernel, tgid, std::mem::take(&mut asked.probes));
                        asked.until = now + REST;
                    }
                }
                // A process that was idle while probed may be probed again as soon as it is active.
                Some(asked) if state == UnplacedThreads::Quiet || (asked.state == state && now < asked.until) => {}
                _ => {
                    let Some(probes) = put_in(kernel, libraries, tgid, When::DeviceUnknown) else { continue };
                    let until = now + if probes.is_empty() { REST } else { LONGEST };
                    self.asked.insert(tgid, ContextProbeState { state, probes, until });
                }
            }
        }
    }
}

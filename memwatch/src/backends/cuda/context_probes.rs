//! The functions that programs ask for their context and device, probed for a short while in a process on several GPUs.
//!
//! Programs call them constantly, and the driver's answer is only wanted once per thread: where memwatch came late, and has not seen
//! a thread choose its context.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memwatch_common::probes::When;
use memwatch_core::Pipeline;
use memwatch_core::attribution::device::Unplaced;

use super::process_probes::{put_in, take_out};
use crate::backends::ProbesOnDemand;
use crate::backends::library_watch::LibraryWatch;
use crate::sources::kernel::attach::ProcessProbes;
use crate::sources::kernel::load::Kernel;

/// How long a process is asked at most: a thread that has not asked for its device in this time may never do so.
const LONGEST: Duration = Duration::from_secs(5);
/// How long it is left alone after it gave no result.
const REST: Duration = Duration::from_secs(60);

/// The processes that are asked, and the ones that were and are still in doubt.
#[derive(Debug, Default)]
pub(super) struct ContextProbes {
    asked: BTreeMap<u32, Asked>,
}

#[derive(Debug)]
struct Asked {
    /// Why.
    state: Unplaced,
    /// Empty once they are out again.
    probes: Vec<ProcessProbes>,
    /// When they come out; afterwards, when they may be put in again.
    until: Instant,
}

impl ProbesOnDemand for ContextProbes {
    /// When probes come out, or may be put in again.
    fn due(&self, now: Instant) -> Option<Instant> {
        let is_due = |asked: &&Asked| !asked.probes.is_empty() || asked.until > now;
        self.asked.values().filter(is_due).map(|asked| asked.until).min()
    }

    /// The reason is a thread whose device is not known, until the process has been asked for long enough.
    fn update(&mut self, kernel: &mut Kernel, libraries: &mut LibraryWatch, pipeline: &Pipeline) {
        let unplaced: BTreeMap<u32, Unplaced> = pipeline.unplaced().map(|(tgid, why)| (tgid.0, why)).collect();
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
                // A process that was asked while it was quiet may be asked again as soon as it is not.
                Some(asked) if state == Unplaced::Quiet || (asked.state == state && now < asked.until) => {}
                _ => {
                    let Some(probes) = put_in(kernel, libraries, tgid, When::DeviceUnknown) else { continue };
                    let until = now + if probes.is_empty() { REST } else { LONGEST };
                    self.asked.insert(tgid, Asked { state, probes, until });
                }
            }
        }
    }
}

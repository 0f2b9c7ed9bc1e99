//! How many tensor events a process has before any is traced: what a level will cost it is known from that.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use memwatch_common::tensor::TensorMeaning;
use memwatch_core::attribution::price::per_second;

use super::look::FoundLibrary;
use crate::frameworks::probes::{self as tensor_probes, TensorProbes};
use crate::sources::kernel::load::Kernel;

/// How long events are counted.
const COUNTED: Duration = Duration::from_millis(200);

/// A process whose tensor events are counted, and its libraries that wait for the result.
pub(super) struct Counting {
    begun: Instant,
    probes: TensorProbes,
    pub(super) waiting: Vec<FoundLibrary>,
}

impl Counting {
    /// Begins with the library that reports tensors; `None` where they cannot be counted.
    pub(super) fn begin(kernel: &mut Kernel, found: &FoundLibrary) -> Option<Self> {
        let points = found.points.as_ref().ok();
        let reports = points.and_then(|all| all.iter().find(|point| point.row.meaning == TensorMeaning::Reported));
        let (point, tgid) = (reports?, NonZeroU32::new(found.tgid)?);
        match tensor_probes::begin_count(kernel, &found.file.path(), tgid, point) {
            Ok(probes) => Some(Self { begun: Instant::now(), probes, waiting: Vec::new() }),
            Err(error) => {
                log::warn!("process {tgid}: its tensor events are not counted: {error}");
                None
            }
        }
    }

    /// Whether it was counted for long enough.
    pub(super) fn is_over(&self) -> bool {
        self.begun.elapsed() >= COUNTED
    }

    /// Takes the probe out. Returns the libraries that waited, and how many events there were per second; `None` where the process has ended.
    pub(super) fn end(self, kernel: &mut Kernel, tgid: u32) -> (Vec<FoundLibrary>, Option<u64>) {
        let counted = tensor_probes::counted(kernel, tgid);
        let elapsed_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if let Err(error) = tensor_probes::detach(kernel, self.probes) {
            log::warn!("process {tgid} keeps a probe that it does not need: {error}");
        }
        let counted = counted.and_then(|count| tensor_probes::forget_count(kernel, tgid).map(|()| count));
        let count = counted.inspect_err(|error| log::warn!("process {tgid}: {error}")).ok().flatten();
        (self.waiting, count.map(|count| per_second(count, elapsed_ns)))
    }
}

//! Python lines: configures which stacks of a process the kernel half walks, and with which
//! offsets.

use std::num::NonZeroU32;
use std::time::Instant;

use memwatch_common::python::{PythonLayout, STACKS_OF_RARE};
use memwatch_common::tensor::{TENSOR_PROBES, TensorMeaning};

use super::{Python, TensorTracing, log_failure};
use crate::frameworks::points::TensorPoint;
use crate::frameworks::probes as tensor_probes;
use crate::frameworks::probes::TensorProbes;
use crate::frameworks::watch::TensorLevel;
use crate::sources::kernel::load::KernelHalf;
use crate::sources::python::{PythonError, PythonProcess};

impl TensorTracing {
    /// Detects the Python of a process with PyTorch, if Python lines are wanted. Where no lines are
    /// traced at the moment, they are still wanted for failed allocations.
    pub(super) fn meet(&mut self, kernel: &mut KernelHalf, tgid: u32) {
        if self.torch.level() >= TensorLevel::Lines && self.torch.level_of(tgid) >= TensorLevel::Read {
            match self.processes.get(&tgid).map(|process| &process.python) {
                Some(Python::Found { .. }) => self.choose_stacks(kernel, tgid),
                _ => self.meet_python(kernel, tgid),
            }
        }
    }

    pub(in crate::watch::session) fn meet_python(&mut self, kernel: &mut KernelHalf, tgid: u32) {
        let large_bytes = self.large_bytes;
        let python = match PythonProcess::attach(tgid) {
            Ok(Some(python)) => {
                log::info!("process {tgid}: Python {} of {}", python.version(), python.display());
                let reported = PythonLayout { stacks: self.torch.stacks_of(tgid), ..python.layout() };
                // The probe must precede the layout, so that no code object whose address was
                // reported is freed unnoticed.
                let probes = watch_code(kernel, tgid, &python);
                log_failure(tgid, tensor_probes::set_layout(kernel, tgid, &reported));
                if reported.stacks != STACKS_OF_RARE {
                    log_failure(tgid, tensor_probes::want_copies(kernel, tgid, large_bytes));
                }
                Python::Found { python: Box::new(python), probes, reported }
            }
            Ok(None) => {
                log_failure(tgid, tensor_probes::want_copies(kernel, tgid, large_bytes));
                Python::Without
            }
            Err(PythonError::Idle) => Python::Idle(Instant::now()),
            Err(error) => {
                log::warn!("process {tgid}: Python lines are unknown: {error}");
                Python::Without
            }
        };
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.python = python;
        }
    }

    /// Sets which stacks are taken: fewer where no modules are traced, and only those of failures
    /// where no lines are traced.
    pub(super) fn choose_stacks(&mut self, kernel: &mut KernelHalf, tgid: u32) {
        let stacks = self.torch.stacks_of(tgid);
        let copies = match self.torch.level_of(tgid) {
            TensorLevel::Lines | TensorLevel::Modules => tensor_probes::want_copies(kernel, tgid, self.large_bytes),
            TensorLevel::Off | TensorLevel::Read | TensorLevel::Blocks => tensor_probes::forget_copies(kernel, tgid),
        };
        log_failure(tgid, copies);
        if let Some(process) = self.processes.get_mut(&tgid)
            && let Python::Found { reported, .. } = &mut process.python
        {
            reported.stacks = stacks;
            log_failure(tgid, tensor_probes::set_layout(kernel, tgid, reported));
        }
    }
}

/// Probes the destruction of code objects, since their addresses may be reused.
fn watch_code(kernel: &mut KernelHalf, tgid: u32, python: &PythonProcess) -> Option<TensorProbes> {
    let place = python.code_dealloc()?;
    let row = TENSOR_PROBES.iter().find(|row| row.meaning == TensorMeaning::CodeGoes)?;
    let points = [TensorPoint::new(row, place.file_offset)];
    match tensor_probes::attach(kernel, &place.path(), NonZeroU32::new(tgid)?, &points) {
        Ok(probes) => Some(probes),
        Err(error) => {
            log::warn!(
                "process {tgid}: {}: cannot probe the freeing of code objects, so some Python lines may be wrong: {error}",
                place.display
            );
            None
        }
    }
}

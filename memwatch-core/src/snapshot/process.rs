//! Derived properties of a process's view.

use super::{ExplainedUse, HostView, ProcessGpuView, ProcessView, build};
use crate::kernel_driver::trust::LedgerTrust;
use crate::words::GpuUuid;

impl ProcessView {
    /// Returns the kernel driver's explanation of the bytes that NVML charges to the process on a
    /// GPU; `None` if the explanation is not trusted.
    pub fn explained_on(&self, uuid: Option<&GpuUuid>) -> Option<&ExplainedUse> {
        let all = self.explained.iter().flat_map(|explained| &explained.gpus);
        all.filter(|own| own.trust == LedgerTrust::Trusted).find(|own| own.uuid.as_ref() == uuid)
    }

    /// Returns what identifies the process and its owner, without its memory.
    #[must_use]
    pub fn identity(&self) -> Self {
        Self {
            target: false,
            gpus: Vec::new(),
            imports: Vec::new(),
            failures: Vec::new(),
            kv_cache: None,
            tensors: None,
            explained: None,
            left_behind: None,
            ..self.clone()
        }
    }

    /// Returns whether the process has used GPU memory, or may have.
    pub fn has_touched_gpu(&self) -> bool {
        !self.gpus.is_empty()
            || self.host != HostView::default()
            || self.unknown_frees > 0
            || !self.failures.is_empty()
            || !self.exact
    }

    /// Returns whether the process's calls may not be traced, so that its numbers mean nothing.
    pub fn is_unprobed(&self) -> bool {
        self.losses.contains_key(build::UNPROBED)
    }
}

impl ProcessGpuView {
    /// Returns the live bytes that NVML does not contradict.
    pub const fn confirmed_live_bytes(&self) -> u64 {
        self.live_bytes.saturating_sub(self.unconfirmed_bytes)
    }

    /// Returns the attributed bytes that NVML does not contradict.
    pub const fn confirmed_bytes(&self) -> u64 {
        self.attributed_bytes.saturating_sub(self.unconfirmed_bytes)
    }
}

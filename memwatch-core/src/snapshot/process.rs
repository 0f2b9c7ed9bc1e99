//! What follows from a process's numbers.

use super::{ExplainedUse, HostView, ProcessGpuView, ProcessView, build};
use crate::kernel_driver::trust::Trust;
use crate::words::GpuUuid;

impl ProcessView {
    /// What the kernel driver's books explain of what NVML charges it on a GPU; `None` where they are not believed.
    pub fn explained_on(&self, uuid: Option<&GpuUuid>) -> Option<&ExplainedUse> {
        let all = self.explained.iter().flat_map(|explained| &explained.gpus);
        all.filter(|own| own.trust == Trust::Trusted).find(|own| own.uuid.as_ref() == uuid)
    }

    /// Whether it ever had anything to do with GPU memory, or may have had.
    pub fn has_touched_gpu(&self) -> bool {
        !self.gpus.is_empty()
            || self.host != HostView::default()
            || self.unknown_frees > 0
            || !self.failures.is_empty()
            || !self.exact
    }

    /// Whether it is not known that its calls are seen: what they would say is no number then.
    pub fn is_unprobed(&self) -> bool {
        self.losses.contains_key(build::UNPROBED)
    }
}

impl ProcessGpuView {
    /// Of its live bytes what NVML does not contradict.
    pub const fn confirmed_live_bytes(&self) -> u64 {
        self.live_bytes.saturating_sub(self.unconfirmed_bytes)
    }

    /// Of the bytes that are attributed to it what NVML does not contradict.
    pub const fn confirmed_bytes(&self) -> u64 {
        self.attributed_bytes.saturating_sub(self.unconfirmed_bytes)
    }
}

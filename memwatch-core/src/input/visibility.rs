//! GPU visibility of a process: which GPUs it sees, and in which order.

use serde::{Deserialize, Serialize};

/// Settings that decide the GPUs of a process and their order: its environment at the start of its
/// image.
///
/// Variables that a program sets itself before its first CUDA call are not included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuVisibility {
    /// Value of `CUDA_VISIBLE_DEVICES`.
    pub visible_devices: Option<String>,
    /// Value of `CUDA_DEVICE_ORDER`.
    pub device_order: Option<String>,
    /// Whether the process runs outside any container or job that may hide GPUs, so that numbers in
    /// `visible_devices` refer to all GPUs of the machine.
    pub sees_machine: bool,
}

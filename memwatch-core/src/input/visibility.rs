//! Which GPUs a process sees, and in which order.

use serde::{Deserialize, Serialize};

/// What decides under which numbers a process sees which GPUs: its environment when its image was started.
///
/// A program that sets these variables itself before its first CUDA call is not shown here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuVisibility {
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible_devices: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub device_order: Option<String>,
    /// It runs beside the machine's first process and not in a container or a job that may hide GPUs from it: numbers in
    /// `visible_devices` are of all the machine's GPUs.
    pub sees_machine: bool,
}

//! Buffers of a program with ggml: memory of each device by usage.

use serde::{Deserialize, Serialize};

use crate::decode::BufferUsage;
use crate::words::{Framework, GpuUuid};

/// All known buffers of a process. Their bytes are part of the driver's allocations and are not
/// added to other totals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuffersView {
    /// Framework of the buffers.
    pub framework: Framework,
    /// Whether all buffers are known for certain.
    pub exact: bool,
    /// Whether there may be further buffers from before the session: ggml keeps no list of them.
    pub older_unknown: bool,
    /// Whether the pool for temporaries is traced. If it is not, its memory is in no buffer.
    pub scratch_traced: bool,
    /// Number of buffers with memory that was freed without an event.
    pub out_of_step: u64,
    /// Buffers by device; only devices on which a buffer was created during the session.
    pub devices: Vec<DeviceBuffersView>,
}

/// Buffers of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceBuffersView {
    /// The process's own number of the device.
    pub device: i32,
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Number of buffers; `None` if there may be unknown ones.
    pub buffers: Option<u64>,
    /// Bytes of the buffers; `None` if there may be unknown ones.
    pub bytes_in_use: Option<u64>,
    /// Peak of the buffers' bytes; `None` if there may be unknown ones.
    pub peak_bytes_in_use: Option<u64>,
    /// Total number of buffers created; `None` if there may be unknown ones.
    pub num_buffers: Option<u64>,
    /// Number of known buffers.
    pub known_buffers: u64,
    /// Bytes of the known buffers.
    pub known_bytes: u64,
    /// Peak of the known buffers' bytes.
    pub known_peak_bytes: u64,
    /// Known buffers by usage; empty usages are left out.
    pub usages: Vec<UsageView>,
    /// Number of named tensors placed in the buffers; `None` if there are none.
    pub num_tensors: Option<u64>,
    /// The largest of these tensors, largest first.
    pub tensors: Vec<BufferTensorView>,
}

/// A tensor in a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferTensorView {
    /// Name in the program.
    pub name: String,
    /// Usage of the tensor's buffer.
    pub usage: BufferUsage,
    /// Size in bytes, with alignment.
    pub bytes: u64,
}

/// Known buffers of one usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageView {
    /// Usage.
    pub usage: BufferUsage,
    /// Number of buffers.
    pub buffers: u64,
    /// Bytes of the buffers.
    pub bytes: u64,
}

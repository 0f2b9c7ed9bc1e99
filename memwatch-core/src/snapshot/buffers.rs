//! The buffers of a program with ggml: what each device has of them, by what they are for.

use serde::{Deserialize, Serialize};

use crate::decode::BufferUsage;
use crate::words::{Framework, GpuUuid};

/// All buffers of a process that are known. They are the driver's allocations, and added to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuffersView {
    /// Whose they are.
    pub framework: Framework,
    /// All that there are are known, and what is known of them is sure.
    pub exact: bool,
    /// There may be others, from before the watch: nobody keeps a list of them.
    pub older_unknown: bool,
    /// How many buffers' memory was given back without an event of theirs.
    pub out_of_step: u64,
    /// By device: the ones where a buffer was made since memwatch watches.
    pub devices: Vec<DeviceBuffersView>,
}

/// The same of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceBuffersView {
    /// The process's own number of the device.
    pub device: i32,
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// How many buffers the program has; `None` where there may be others than the known ones. So with the next three.
    pub buffers: Option<u64>,
    /// What they have, in bytes.
    pub bytes_in_use: Option<u64>,
    /// The most of that.
    pub peak_bytes_in_use: Option<u64>,
    /// How many were made in all.
    pub num_buffers: Option<u64>,
    /// How many are known.
    pub known_buffers: u64,
    /// What those have, in bytes.
    pub known_bytes: u64,
    /// The most that known buffers had together.
    pub known_peak_bytes: u64,
    /// The known ones by what they are for; a use that none of them has is not there.
    pub usages: Vec<UsageView>,
    /// How many tensors were given places in these, by name; `None` where none was.
    pub num_tensors: Option<u64>,
    /// The largest of them, the largest first.
    pub tensors: Vec<BufferTensorView>,
}

/// A tensor in a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferTensorView {
    /// What the program calls it.
    pub name: String,
    /// What its buffer is for.
    pub usage: BufferUsage,
    /// Its bytes, with what it is aligned by.
    pub bytes: u64,
}

/// Known buffers for one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageView {
    /// What for.
    pub usage: BufferUsage,
    /// How many.
    pub buffers: u64,
    /// What they have, in bytes.
    pub bytes: u64,
}

//! Views of ggml's buffers: memory of each device by usage.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use super::{Buffers, DeviceBuffers, GgmlTensor};
use crate::decode::BufferUsage;
use crate::words::{Framework, GpuUuid, Ordinal};

/// Maximum number of listed tensors: models have hundreds to thousands.
const LISTED: usize = 100;

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

/// Returns the buffers of a process, if its ggml is probed; `uuid` returns the GPU of a device.
pub(crate) fn buffers(buffers: &Buffers, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Option<BuffersView> {
    let exact = buffers.is_exact();
    let device = |(ordinal, device): (&Ordinal, &DeviceBuffers)| {
        with_tensors(view(device, exact, (ordinal.0, uuid(*ordinal))), buffers.tensors_on(*ordinal).collect())
    };
    buffers.is_watched().then(|| BuffersView {
        framework: Framework::Ggml,
        exact,
        older_unknown: buffers.has_older(),
        scratch_traced: buffers.has_scratch(),
        out_of_step: buffers.out_of_step(),
        devices: buffers.devices().iter().map(device).collect(),
    })
}

fn view(known: &DeviceBuffers, are_all: bool, (device, uuid): (i32, Option<GpuUuid>)) -> DeviceBuffersView {
    let of_all = |number: u64| are_all.then_some(number);
    let usages = known.usages().iter();
    DeviceBuffersView {
        device,
        uuid,
        buffers: of_all(known.buffers()),
        bytes_in_use: of_all(known.bytes()),
        peak_bytes_in_use: of_all(known.peak_bytes()),
        num_buffers: of_all(known.made()),
        known_buffers: known.buffers(),
        known_bytes: known.bytes(),
        known_peak_bytes: known.peak_bytes(),
        usages: usages
            .map(|(usage, sum)| UsageView { usage: *usage, buffers: sum.buffers, bytes: sum.bytes })
            .collect(),
        num_tensors: None,
        tensors: Vec::new(),
    }
}

fn with_tensors(view: DeviceBuffersView, mut all: Vec<GgmlTensor<'_>>) -> DeviceBuffersView {
    all.sort_unstable_by_key(|tensor| (Reverse(tensor.bytes), tensor.name));
    let listed = all.iter().take(LISTED);
    DeviceBuffersView {
        num_tensors: (!all.is_empty()).then_some(all.len() as u64),
        tensors: listed
            .map(|tensor| BufferTensorView { name: tensor.name.to_owned(), usage: tensor.usage, bytes: tensor.bytes })
            .collect(),
        ..view
    }
}

//! Builds the views of ggml's buffers.

use std::cmp::Reverse;

use crate::allocators::ggml::{Buffers, DeviceBuffers, GgmlTensor};
use crate::snapshot::{BufferTensorView, BuffersView, DeviceBuffersView, UsageView};
use crate::words::{Framework, GpuUuid, Ordinal};

/// Maximum number of listed tensors: models have hundreds to thousands.
const LISTED: usize = 100;

/// Returns the buffers of a process, if its ggml is probed; `uuid` returns the GPU of a device.
pub(super) fn buffers(buffers: &Buffers, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Option<BuffersView> {
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

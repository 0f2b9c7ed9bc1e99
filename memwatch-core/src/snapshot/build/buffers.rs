//! What is known of ggml's buffers, for the snapshot.

use crate::allocators::ggml::{Buffers, DeviceBuffers};
use crate::snapshot::{BuffersView, DeviceBuffersView, UsageView};
use crate::words::{Framework, GpuUuid, Ordinal};

/// The buffers of one process, where its ggml is watched; `uuid` names the GPU behind a device.
pub(super) fn buffers(buffers: &Buffers, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Option<BuffersView> {
    let exact = buffers.is_exact();
    let device = |(ordinal, device): (&Ordinal, &DeviceBuffers)| view(device, exact, (ordinal.0, uuid(*ordinal)));
    buffers.is_watched().then(|| BuffersView {
        framework: Framework::Ggml,
        exact,
        older_unknown: buffers.has_older(),
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
    }
}

//! Text output of buffers, by usage.

use memwatch_core::snapshot::{BuffersView, DeviceBuffersView, ProcessView, Snapshot};
use memwatch_core::words::Framework;

use crate::printable::printable;
use crate::render::format::{UNKNOWN, bytes, count, plural};
use crate::render::sentences;
use crate::render::text::grid::{Align, TextGrid};

/// Maximum number of tensors listed.
const TENSORS: usize = 10;

/// Returns the heading of a device; `None` if no buffer was made since the attach.
pub(super) fn heading(
    snapshot: &Snapshot,
    process: &ProcessView,
    framework: Framework,
    device: Option<&DeviceBuffersView>,
) -> String {
    let framework = framework.title();
    let whose = format!("PID {}  {}", process.tgid.0, sentences::short_command(process));
    let Some(device) = device else { return format!("{whose}  {framework}  no buffer was made since the attach") };
    let gpu = sentences::gpu_number(snapshot, device.uuid.as_ref());
    let numbers = match (device.bytes_in_use, device.peak_bytes_in_use) {
        (Some(in_use), Some(peak)) => format!("in use {}  peak {}", bytes(in_use), bytes(peak)),
        _ => format!("in use at least {}", bytes(device.known_bytes)),
    };
    format!("{whose}  GPU {gpu}  {framework}  {numbers}")
}

/// Returns the buffers of each usage, and their total.
pub(super) fn numbers(device: &DeviceBuffersView) -> TextGrid {
    let columns = [("USE", Align::Left), ("BUFFERS", Align::Right), ("SIZE", Align::Right), ("BYTES", Align::Right)];
    let mut grid = TextGrid::new(&columns);
    let mut push = |title: &str, buffers: Option<u64>, size: u64| {
        let buffers = buffers.map_or_else(String::new, count);
        grid.push(vec![title.to_owned(), buffers, bytes(size), size.to_string()]);
    };
    for sum in &device.usages {
        push(sum.usage.name(), Some(sum.buffers), sum.bytes);
    }
    let are_all = device.buffers.is_some();
    push(if are_all { "all" } else { "known" }, Some(device.known_buffers), device.known_bytes);
    push(if are_all { "peak" } else { "peak of the known" }, None, device.known_peak_bytes);
    grid
}

/// Returns the largest tensors.
pub(super) fn tensors(device: &DeviceBuffersView) -> Option<TextGrid> {
    let columns = [("TENSOR", Align::Left), ("USE", Align::Left), ("SIZE", Align::Right), ("BYTES", Align::Right)];
    let mut grid = TextGrid::new(&columns);
    for tensor in device.tensors.iter().take(TENSORS) {
        let name = printable(&tensor.name).into_owned();
        grid.push(vec![name, tensor.usage.name().to_owned(), bytes(tensor.bytes), tensor.bytes.to_string()]);
    }
    (!device.tensors.is_empty()).then_some(grid)
}

/// Returns a sentence on the number of tensors that are not listed, and how to list them.
pub(super) fn more_tensors(device: &DeviceBuffersView) -> Option<String> {
    let more = device.num_tensors.and_then(|all| all.checked_sub(TENSORS as u64)).filter(|more| *more > 0)?;
    let largest = device.tensors.len();
    let listed =
        if device.num_tensors == Some(largest as u64) { "all".to_owned() } else { format!("the {largest} largest") };
    Some(format!("{}: {listed} with --json", plural(more, "more tensor", "more tensors")))
}

/// Returns the number of buffers made so far.
pub(super) fn made(device: &DeviceBuffersView) -> Option<String> {
    device.num_buffers.map(|made| format!("{} made so far", plural(made, "buffer", "buffers")))
}

/// Returns sentences on why the numbers may be inexact.
pub(super) fn doubts(buffers: &BuffersView) -> Vec<String> {
    let mut doubts = Vec::new();
    if buffers.older_unknown {
        doubts.push(format!("{UNKNOWN} {}", sentences::older_buffers(buffers.framework)));
    }
    if !buffers.scratch_traced {
        doubts.push("the pool for temporaries is not traced: its memory is in none of these numbers".to_owned());
    }
    if buffers.out_of_step > 0 {
        let gone = plural(buffers.out_of_step, "buffer", "buffers");
        doubts.push(format!("{gone} went without an event: in no sum of exact numbers"));
    }
    if !buffers.exact && !buffers.older_unknown && buffers.out_of_step == 0 {
        doubts.push("events or calls of the driver were lost: there may be other buffers".to_owned());
    }
    doubts
}

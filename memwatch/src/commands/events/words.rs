//! One sentence on each event.

use memwatch_core::features::left_behind::view::LeftBehindChangeView;
use memwatch_core::features::oom::view::OomView;

use crate::commands::oom::forecast::change;
use crate::commands::oom::text::summary;
use crate::render::format::{bytes, duration, printable};
use crate::render::sentences::{left_behind, short_command};
use crate::render::wall_clock::WallClock;
use crate::watch::events::{ForecastEvent, MachineEvent, failed};

/// Returns what has happened, without time, process id and user.
pub(crate) fn what(event: &MachineEvent, clock: &WallClock) -> String {
    let text = match event {
        MachineEvent::OutOfMemory(oom) => of_failure(oom),
        MachineEvent::Forecast(event) => of_forecast(event),
        MachineEvent::LeftBehind(change) => of_left_behind(change, clock),
    };
    printable(&text).into_owned()
}

/// Formats `python3 train.py: requested 2.00 GiB, 409.6 MiB free; the process ended 1.2 s after it`.
fn of_failure(oom: &OomView) -> String {
    match failed(oom) {
        Some(process) => format!("{}: {}", short_command(process), summary(oom)),
        None => summary(oom),
    }
}

/// Formats `critical: runs out in 2 s to 8 s (92.0 % sure); … (before: none)`.
fn of_forecast(event: &ForecastEvent) -> String {
    let text = change(&event.change).text;
    let place = format!("GPU {}  ", event.change.gpu.number);
    text.strip_prefix(&place).map(str::to_owned).unwrap_or(text)
}

/// Formats `python3 train.py, which ended at 14:02:11: NVML still charges it 646.0 MiB: PID 453, …`.
fn of_left_behind(change: &LeftBehindChangeView, clock: &WallClock) -> String {
    let ended = clock.moment(change.ended_ns, change.time_ns);
    let name = format!("{}, which ended at {ended}", short_command(&change.process));
    if change.is_gone {
        let sum: u64 = change.gpus.iter().map(|own| own.used_bytes).sum();
        let later = duration(change.time_ns.saturating_sub(change.ended_ns));
        return format!("{name}: its {} are free {later} after its end", bytes(sum));
    }
    let of = |(number, used_bytes): (&str, u64)| {
        let text = left_behind::sentence(used_bytes, number, (&change.forked, change.is_exit_seen));
        text.strip_prefix(&format!("GPU {number}  ")).map(str::to_owned).unwrap_or(text)
    };
    let parts: Vec<String> = change.gpus.iter().map(|own| of((&own.number, own.used_bytes))).collect();
    format!("{name}: {}", parts.join("; "))
}

//! Sentences on forecasts: when the memory of a GPU runs out, what drives it, and what would help.

use memwatch_core::features::forecast::view::{ForecastChangeView, GpuForecastView, OutlookView, ProcessForecastView};
use memwatch_core::features::leak::view::LeakView;

use crate::render::Tone;
use crate::render::format::{bytes, duration, percent_of_one, rate_per_minute};
use crate::render::places;
use crate::render::sentences::Sentence;

/// Maximum number of growing lines that are named.
const NAMED: usize = 3;
/// Minimum size of free pieces that are worth joining, as a share of the needed bytes.
const PIECES: f64 = 0.1;

/// Whether there is growth to report.
pub(crate) fn is_growing(outlook: &OutlookView) -> bool {
    !["none", "unknown"].contains(&&*outlook.level)
}

/// Returns the tone of a level.
fn tone(level: &str) -> Tone {
    match level {
        "critical" | "high" => Tone::Bad,
        "medium" => Tone::Warning,
        _ => Tone::Plain,
    }
}

/// Formats `GPU 0  critical: runs out in 2 s to 8 s (92.0 % sure); 754.0 MiB of 800.0 MiB needed,
/// growing by 8.0 MiB a second (7.9 to 8.5)`.
pub(crate) fn of_gpu(gpu: &GpuForecastView) -> Sentence {
    let OutlookView { level, needed_bytes, .. } = &gpu.outlook;
    let of = gpu.total_bytes.map_or_else(String::new, |total| format!(" of {}", bytes(total)));
    let (end, growth) = (ending(&gpu.outlook), growing(&gpu.outlook));
    let text = format!("GPU {}  {level}: {end}{}{of} needed, {growth}", gpu.number, bytes(*needed_bytes));
    Sentence::new(tone(level), text)
}

/// Formats `PID 1234  python train.py: needs 254.0 MiB, growing by 8.0 MiB a second (7.9 to 8.5)`.
pub(crate) fn of_process(process: &ProcessForecastView) -> Sentence {
    let outlook = &process.outlook;
    let (program, arguments) = process.command.split_once(' ').unwrap_or((&process.command, ""));
    let program = program.rsplit('/').next().unwrap_or(program);
    let name = format!("{program} {arguments}");
    let (end, needed) = (ending(outlook), bytes(outlook.needed_bytes));
    let text = format!("  PID {}  {}: {end}needs {needed}, {}", process.tgid.0, name.trim(), growing(outlook));
    Sentence::new(Tone::Plain, text)
}

/// Formats when memory runs out; empty if no end is predicted.
fn ending(outlook: &OutlookView) -> String {
    let Some(end) = &outlook.end else { return String::new() };
    match &end.range {
        Some(range) => format!(
            "runs out in {} to {} ({} sure); ",
            seconds(range.earliest_seconds),
            seconds(range.latest_seconds),
            percent_of_one(range.confidence)
        ),
        None => format!("{} away if it goes on so, further than was ever measured; ", seconds(end.seconds)),
    }
}

fn growing(outlook: &OutlookView) -> String {
    match &outlook.growth {
        None => "too little data for a verdict".to_owned(),
        Some(growth) if growth.grows => format!(
            "growing by {} a second ({} to {}, in {} windows)",
            rate(growth.bytes_per_second),
            rate(growth.low_bytes_per_second),
            rate(growth.high_bytes_per_second),
            growth.windows
        ),
        Some(_) => "not growing".to_owned(),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate of growth, shown to a tenth")]
fn rate(bytes_per_second: f64) -> String {
    bytes(bytes_per_second.max(0.0).round() as u64)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and shown to a second")]
pub(crate) fn seconds(seconds: f64) -> String {
    duration((seconds.max(0.0) * 1e9) as u64)
}

/// Formats a change as one line.
pub(crate) fn change(change: &ForecastChangeView) -> Sentence {
    let gpu = of_gpu(&change.gpu);
    match (&change.before, change.threshold_percent) {
        (_, Some(percent)) => {
            Sentence::new(Tone::Warning, format!("{percent} % of GPU {} needed; {}", change.gpu.number, gpu.text))
        }
        (Some(before), None) => Sentence::new(gpu.tone, format!("{} (before: {before})", gpu.text)),
        (None, None) => gpu,
    }
}

/// Returns sentences on what drives the growth, and on settings of the program that would help;
/// empty without growth.
pub(crate) fn advice(process: &ProcessForecastView) -> Vec<String> {
    if !is_growing(&process.outlook) {
        return Vec::new();
    }
    let mut advice: Vec<String> = process.growing.iter().take(NAMED).map(line).collect();
    if let Some(cache) = &process.cache
        && !cache.is_expandable
        && lossy(cache.split_bytes) >= PIECES * lossy(process.outlook.needed_bytes)
    {
        advice.push(format!(
            "{} lie free in pieces between blocks in use, the largest {}: with which setting fewer would says memwatch simulate",
            bytes(cache.split_bytes),
            bytes(cache.largest_free_bytes)
        ));
    }
    if process.command.contains("vllm") {
        advice.push("vLLM: --max-num-seqs and --max-model-len bound what requests need, --gpu-memory-utilization what it takes in all".to_owned());
    }
    if advice.is_empty() {
        advice.push("no line of it grows by itself: what a step needs grows, as with longer sequences or larger batches; a bound on these, or activation checkpointing, would hold it".to_owned());
    }
    advice
}

fn line(leak: &LeakView) -> String {
    let rate = rate_per_minute(leak.bytes_per_minute);
    match places::leak(leak) {
        Some(site) => format!(
            "{site} keeps {rate}: what it makes is held by something that lives on, such as a list, a cache without a bound, or a loss with its graph (.item() or .detach() cuts that)"
        ),
        None => format!("what it has of the driver grows by {rate}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a part needs no sixteen digits")]
const fn lossy(bytes: u64) -> f64 {
    bytes as f64
}

//! The GPU lines at the top of the screen: usage by origin, and sensors.

use std::collections::BTreeSet;

use memwatch_core::input::{NvmlState, Sensors};
use memwatch_core::snapshot::{GpuView, ProcessGpuView, ProcessView, Snapshot};
use ratatui::text::{Line, Span};

use super::FrameInput;
use super::look::{Fill, TerminalLook};
use crate::render::Tone;
use crate::render::format::{count, fit, known, percent, plural, printable, wrap};
use crate::render::sentences::place;
use crate::render::tui::parts::beyond_driver;
use crate::render::tui::size::{giga, giga_unit, signed_giga};
use crate::render::tui::state::ProcessKey;

/// Minimum width of a bar.
const SHORTEST_BAR: usize = 8;
/// Minimum size for showing memory that belongs to no process. Smaller amounts would be shown as
/// 0.01 GiB or less.
const SHOWN_BYTES: u64 = 10 << 20;
/// Temperatures from which a GPU is warm ([`WARM`]) and hot ([`HOT`]), in degrees Celsius.
const WARM: u32 = 80;
const HOT: u32 = 90;

/// A part of a GPU's memory.
struct BarSection {
    fill: Fill,
    bytes: Option<u64>,
    text: String,
}

/// Returns the lines of the page's GPUs, at most `most`. The last line counts omitted GPUs.
pub(crate) fn lines(
    shown: &FrameInput,
    process: Option<&ProcessView>,
    width: usize,
    most: usize,
) -> Vec<Line<'static>> {
    let snapshot = shown.snapshot;
    let look = shown.look;
    if most == 0 {
        return Vec::new();
    }
    if let Some(text) = without(snapshot) {
        let lines = wrap(&text, width).into_iter().take(most);
        return lines.map(|line| Line::from(look.span(Tone::Warning, line))).collect();
    }
    let gpus = of_page(snapshot, process);
    let legends = gpus.len() * 2 <= most && gpus.len() <= 4;
    let fitting = if gpus.len() <= most { gpus.len() } else { most - 1 };
    let mut lines = Vec::new();
    for gpu in gpus.iter().take(fitting) {
        let pieces = pieces(snapshot, gpu, process, look.ascii);
        lines.push(bar_line(look, gpu, &pieces, width));
        if legends {
            lines.push(legend(look, &pieces, width));
        }
    }
    if fitting < gpus.len() {
        let left = u64::try_from(gpus.len() - fitting).unwrap_or(u64::MAX);
        lines.push(Line::from(look.span(Tone::Faint, plural(left, "more GPU", "more GPUs"))));
    }
    lines
}

/// Returns why no GPU is shown.
fn without(snapshot: &Snapshot) -> Option<String> {
    match &snapshot.nvml {
        NvmlState::Starting => Some("Waiting for NVML.".to_owned()),
        NvmlState::Unavailable(reason) => Some(format!("No NVML: {}", printable(reason))),
        NvmlState::Ok if snapshot.gpus.is_empty() => Some("NVML lists no GPU.".to_owned()),
        NvmlState::Ok => None,
    }
}

/// Returns all GPUs, or those of the page's process.
pub(crate) fn of_page<'a>(snapshot: &'a Snapshot, process: Option<&ProcessView>) -> Vec<&'a GpuView> {
    let gpus = process.iter().flat_map(|process| &process.gpus);
    let uuids: BTreeSet<_> = gpus.filter_map(|gpu| gpu.uuid.as_ref()).collect();
    let all = snapshot.gpus.iter();
    all.filter(|gpu| uuids.is_empty() || uuids.contains(&gpu.uuid)).collect()
}

fn bar_line(look: TerminalLook, gpu: &GpuView, pieces: &[BarSection], width: usize) -> Line<'static> {
    let name = gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name);
    let name = fit(&printable(name), width / 4, look.mark()).into_owned();
    let used = gpu.used_bytes;
    let tone = used.map_or(Tone::Plain, |used| TerminalLook::load(used, gpu.total_bytes));
    let left = vec![
        look.span(Tone::Heading, format!("GPU {} ", place(gpu))),
        Span::raw(format!("{name}  ")),
        look.span(Tone::Heading, known(used, giga)),
        Span::raw(format!("/{} {} ", known(gpu.total_bytes, giga), giga_unit())),
    ];
    let mut right = Vec::new();
    if let Some((used, total)) = used.zip(gpu.total_bytes) {
        right.push(look.span(tone, format!(" {}", percent(used, total))));
    }
    right.extend(sensors(look, gpu.sensors));
    let wide = |spans: &[Span]| spans.iter().map(Span::width).sum::<usize>();
    let room = width.saturating_sub(wide(&left) + 2);
    while wide(&right) + SHORTEST_BAR > room && right.pop().is_some() {}
    let (open, close) = if look.ascii { ("[", "]") } else { ("▕", "▏") };
    let mut line = Line::from(left);
    if room >= SHORTEST_BAR {
        line.push_span(look.span(Tone::Faint, open));
        let parts: Vec<_> = pieces.iter().filter_map(|piece| Some((piece.fill, piece.bytes?))).collect();
        let used_parts: Vec<_> = parts.into_iter().filter(|(fill, _)| *fill != Fill::Free).collect();
        let whole = gpu.total_bytes.or(used).unwrap_or(gpu.live_bytes);
        line.spans.extend(look.bar(&used_parts, whole, room - wide(&right)));
        line.push_span(look.span(Tone::Faint, close));
    }
    line.spans.extend(right);
    line
}

/// Returns the sensor values that NVML reports.
fn sensors(look: TerminalLook, sensors: Sensors) -> Vec<Span<'static>> {
    let Sensors { utilization_percent, temperature_celsius, power_milliwatts, power_limit_milliwatts } = sensors;
    let mut spans = Vec::new();
    spans.extend(utilization_percent.map(|percent| Span::raw(format!("  util {percent} %"))));
    spans.extend(temperature_celsius.map(|celsius| {
        let tone = match celsius {
            HOT.. => Tone::Bad,
            WARM.. => Tone::Warning,
            _ => Tone::Plain,
        };
        look.span(tone, format!("  {celsius} {}", if look.ascii { "C" } else { "°C" }))
    }));
    spans.extend(power_milliwatts.map(|draw| {
        let limit = power_limit_milliwatts.map_or_else(String::new, |limit| format!("/{}", limit / 1000));
        Span::raw(format!("  {}{limit} W", draw / 1000))
    }));
    spans
}

fn legend(look: TerminalLook, pieces: &[BarSection], width: usize) -> Line<'static> {
    let mut line = Line::raw(" ");
    for piece in pieces {
        let entry = look.legend(piece.fill, &piece.text);
        let wide: usize = entry.iter().map(Span::width).sum();
        if line.width() + 1 + wide > width {
            break;
        }
        line.push_span(Span::raw(" "));
        line.spans.extend(entry);
        line.push_span(Span::raw(" "));
    }
    line
}

/// Splits a GPU's memory: by origin for all processes, or into the page's process and the others.
fn pieces(snapshot: &Snapshot, gpu: &GpuView, process: Option<&ProcessView>, ascii: bool) -> Vec<BarSection> {
    let mut pieces = match process.and_then(|process| this_and_others(snapshot, gpu, process)) {
        Some(pieces) => pieces,
        None => by_origin(snapshot, gpu, ascii),
    };
    if let Some(free) = gpu.total_bytes.zip(gpu.used_bytes).and_then(|(total, used)| total.checked_sub(used)) {
        pieces.push(BarSection { fill: Fill::Free, bytes: Some(free), text: format!("free {}", giga(free)) });
    }
    pieces
}

/// Splits used memory by NVML's numbers only, because they are consistent with each other. Returns
/// `None` if NVML has no number for the process.
fn this_and_others(snapshot: &Snapshot, gpu: &GpuView, process: &ProcessView) -> Option<Vec<BarSection>> {
    let on_it = |row: &&ProcessGpuView| row.uuid.as_ref() == Some(&gpu.uuid);
    let own = process.gpus.iter().find(on_it)?.used_bytes?;
    let is_other = |other: &&ProcessView| ProcessKey::of(other) != ProcessKey::of(process) && other.ended_ns.is_none();
    let rows = snapshot.processes.iter().filter(is_other).filter_map(|other| other.gpus.iter().find(on_it));
    let shown: Vec<Option<u64>> = rows.map(|row| row.used_bytes).collect();
    let hidden = snapshot.hidden.iter().flat_map(|hidden| &hidden.gpus);
    let hidden: Vec<_> = hidden.filter(|row| row.uuid.as_ref() == Some(&gpu.uuid)).collect();
    let hidden_processes: u64 = hidden.iter().map(|row| row.processes).sum();
    let number = gpu.unwatched_processes? + hidden_processes + u64::try_from(shown.len()).unwrap_or(u64::MAX);
    let known = shown.into_iter().chain(hidden.iter().map(|row| row.used_bytes)).chain([gpu.unwatched_bytes]);
    let others: Option<u64> = known.sum();
    let mut pieces = vec![BarSection { fill: Fill::Own, bytes: Some(own), text: format!("this {}", giga(own)) }];
    if number > 0 {
        let text = format!("other processes {} ({})", others.map_or_else(|| "-".to_owned(), giga), count(number));
        pieces.push(BarSection { fill: Fill::Others, bytes: others, text });
    }
    let rest = others.zip(gpu.used_bytes).and_then(|(others, used)| used.checked_sub(own)?.checked_sub(others));
    if let Some(rest) = rest.filter(|rest| *rest >= SHOWN_BYTES) {
        let text = format!("of no process {}", giga(rest));
        pieces.push(BarSection { fill: Fill::Unattributed, bytes: Some(rest), text });
    }
    Some(pieces)
}

/// Splits used memory into attributed, pre-existing and unattributed bytes, all as of NVML's last
/// reading.
fn by_origin(snapshot: &Snapshot, gpu: &GpuView, ascii: bool) -> Vec<BarSection> {
    let attributed = gpu.attributed_bytes;
    let text = format!("attributed {}", giga(attributed));
    let mut pieces = vec![BarSection { fill: Fill::Own, bytes: Some(attributed), text }];
    let Some(left) = gpu.unattributed_bytes else { return pieces };
    let rows = snapshot.processes.iter().filter(|process| process.ended_ns.is_none()).flat_map(|process| &process.gpus);
    let rows: Vec<_> = rows.filter(|row| row.uuid.as_ref() == Some(&gpu.uuid)).collect();
    let before: u64 = rows.iter().filter_map(|row| row.preexisting_bytes).sum();
    let (before, rest) = beyond_driver(left, Some(before));
    if let Some(bytes) = before {
        let with_context = rows.iter().any(|row| row.preexisting_includes_context);
        let sign = match (with_context, ascii) {
            (false, _) => "",
            (true, false) => "≤",
            (true, true) => "<=",
        };
        let text = format!("pre-existing {sign}{}", giga(bytes));
        pieces.push(BarSection { fill: Fill::PreExisting, bytes: Some(bytes), text });
    }
    let text = format!("unattributed {}", signed_giga(rest));
    pieces.push(BarSection { fill: Fill::Unattributed, bytes: u64::try_from(rest).ok(), text });
    pieces
}

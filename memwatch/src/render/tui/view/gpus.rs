//! The GPUs at the top of the screen.

use std::collections::BTreeSet;

use memwatch_core::snapshot::{GpuView, Snapshot};
use ratatui::text::{Line, Span};

use super::look::{Fill, Look, ends};
use super::{Page, Shown, State};
use crate::render::Tone;
use crate::render::format::{bytes, known, percent, plural, signed_bytes};
use crate::render::sentences::{gpu_name, place};
use crate::render::tui::state::ProcessKey;

/// Lines of a GPU with its own bar and legend.
const TALL: usize = 3;
/// Columns of the numbers beside a short bar.
const BESIDE: usize = 63;

/// The GPUs of the page in at most so many lines; the last line says how many are left out.
pub(crate) fn lines(state: &State, shown: &Shown, width: usize, most: usize) -> Vec<Line<'static>> {
    let gpus = of_page(state, shown.snapshot);
    if gpus.len() * TALL <= most && gpus.len() <= 2 {
        return gpus.iter().flat_map(|gpu| tall(gpu, shown.look, width)).collect();
    }
    let fitting = if gpus.len() <= most { gpus.len() } else { most.saturating_sub(1) };
    let mut lines: Vec<_> = gpus.iter().take(fitting).map(|gpu| short(gpu, shown.look, width)).collect();
    if fitting < gpus.len() && most > 0 {
        let left = u64::try_from(gpus.len() - fitting).unwrap_or(u64::MAX);
        lines.push(Line::from(shown.look.span(Tone::Faint, plural(left, "more GPU", "more GPUs"))));
    }
    lines
}

/// All GPUs, or the ones that the process of the page is on.
fn of_page<'a>(state: &State, snapshot: &'a Snapshot) -> Vec<&'a GpuView> {
    let on_page = |key| match state.page() {
        Page::List => false,
        Page::Blocks => true,
        Page::Process(open) => open == key,
    };
    let processes = snapshot.processes.iter().filter(|process| on_page(ProcessKey::of(process)));
    let uuids: BTreeSet<_> = processes.flat_map(|process| &process.gpus).filter_map(|gpu| gpu.uuid.as_ref()).collect();
    snapshot.gpus.iter().filter(|gpu| uuids.is_empty() || uuids.contains(&gpu.uuid)).collect()
}

fn tall(gpu: &GpuView, look: Look, width: usize) -> Vec<Line<'static>> {
    let number = look.span(Tone::Heading, format!("GPU {}", place(gpu)));
    let name = look.span(Tone::Faint, format!("  {}", gpu_name(gpu)));
    let share = gpu.used_bytes.zip(gpu.total_bytes).map(|(used, total)| format!("  {}", percent(used, total)));
    let used = vec![
        Span::raw("used "),
        look.span(Tone::Heading, known(gpu.used_bytes, bytes)),
        Span::raw(format!(" of {}{}", known(gpu.total_bytes, bytes), share.unwrap_or_default())),
    ];
    let mut legend = look.legend(Fill::Live, &format!("live {}", bytes(gpu.live_bytes)));
    legend.extend(look.legend(Fill::Unexplained, &unattributed(gpu)));
    if let Some(others) = gpu.unwatched_processes.filter(|others| *others > 0) {
        let text = format!("{} not watched", plural(others, "process", "processes"));
        legend.push(look.span(Tone::Warning, text));
    }
    vec![ends(vec![number, name], used, width), Line::from(bar(gpu, look, width)), Line::from(legend)]
}

fn unattributed(gpu: &GpuView) -> String {
    format!("unattributed {}", known(gpu.unattributed_bytes, signed_bytes))
}

fn short(gpu: &GpuView, look: Look, width: usize) -> Line<'static> {
    let number = format!("GPU {:<2} ", place(gpu));
    let room = width.saturating_sub(BESIDE + number.len());
    let mut spans = vec![look.span(Tone::Heading, number)];
    spans.extend(bar(gpu, look, room));
    let gap = if room > 0 { " " } else { "" };
    spans.push(Span::raw(format!("{gap}{:>10}", known(gpu.used_bytes, bytes))));
    spans.push(look.span(Tone::Faint, format!(" of {:<9} live ", known(gpu.total_bytes, bytes))));
    spans.push(Span::raw(format!("{:<10}", bytes(gpu.live_bytes))));
    spans.push(look.span(Tone::Faint, " unattributed "));
    spans.push(Span::raw(known(gpu.unattributed_bytes, signed_bytes)));
    Line::from(spans)
}

fn bar(gpu: &GpuView, look: Look, columns: usize) -> Vec<Span<'static>> {
    let unattributed = gpu.unattributed_bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
    let whole = gpu.total_bytes.or(gpu.used_bytes).unwrap_or(gpu.live_bytes);
    look.bar(&[(Fill::Live, gpu.live_bytes), (Fill::Unexplained, unattributed)], whole, columns)
}

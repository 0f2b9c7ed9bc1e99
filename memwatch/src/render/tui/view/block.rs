//! One process in full.

use memwatch_core::snapshot::{ProcessGpuView, ProcessView};
use ratatui::text::{Line, Span};

use super::look::{Fill, Look, ends};
use super::{Page, Shown, State, tensors};
use crate::render::Tone;
use crate::render::format::{bytes, count, fit, known, plural, printable, rate, signed_bytes};
use crate::render::order::by_holding;
use crate::render::owners;
use crate::render::sentences::{self, KINDS, MANAGED};
use crate::render::tui::state::ProcessKey;

/// How many refused allocations are listed.
const LISTED_FAILURES: usize = 3;
/// More processes one below the other nobody reads; the list has them all.
const MOST_BLOCKS: usize = 50;
/// Width of a number's column.
const COLUMN: usize = 13;
/// Width of the column before the numbers.
const LABEL: usize = 7;
/// The widest history worth reading.
const HISTORY: usize = 60;

/// The lines of the page's processes.
pub(crate) fn lines(state: &State, shown: &Shown, width: usize) -> Vec<Line<'static>> {
    let on_page = |process: &&ProcessView| match state.page() {
        Page::Process(open) => open == ProcessKey::of(process),
        Page::Blocks | Page::List => true,
    };
    let processes: Vec<_> = by_holding(shown.snapshot).into_iter().filter(on_page).collect();
    if processes.is_empty() {
        return vec![Line::raw("Nothing to show yet: waiting for the first CUDA call.")];
    }
    let mut lines = Vec::new();
    for process in processes.iter().take(MOST_BLOCKS) {
        lines.extend(Block { state, shown, process, width }.lines());
        lines.push(Line::default());
    }
    if let Some(left) = processes.len().checked_sub(MOST_BLOCKS).filter(|left| *left > 0) {
        lines.push(Line::raw(format!("and {left} more: Esc shows all processes")));
    }
    lines
}

struct Block<'a> {
    state: &'a State,
    shown: &'a Shown<'a>,
    process: &'a ProcessView,
    width: usize,
}

impl Block<'_> {
    fn look(&self) -> Look {
        self.shown.look
    }

    fn lines(&self) -> Vec<Line<'static>> {
        let Shown { snapshot, clock, look } = *self.shown;
        let mut lines = vec![self.title()];
        lines.extend(self.owner());
        if self.process.gpus.is_empty() {
            lines.push(Line::from(look.span(Tone::Faint, "no GPU memory has been allocated yet")));
        } else {
            lines.push(self.heads());
        }
        for gpu in &self.process.gpus {
            lines.extend(self.gpu(gpu));
        }
        lines.extend(tensors::lines(look, snapshot, self.process, self.width));
        let earlier = self.process.failures.len().saturating_sub(LISTED_FAILURES);
        let failures = self.process.failures[earlier..].iter().rev();
        let failures = failures.map(|failure| sentences::failure(snapshot, failure, clock));
        lines.extend(failures.map(|failure| look.sentence(&failure, self.width)));
        lines.extend(self.calls());
        if let Some(host) = sentences::host(&self.process.host) {
            let label = look.span(Tone::Faint, format!("{:<LABEL$}", "host"));
            let note = look.span(Tone::Faint, "  page-locked, in no GPU's sum");
            lines.push(Line::from(vec![label, Span::raw(host), note]));
        }
        let remarks = sentences::remarks(snapshot, self.process, clock);
        lines.extend(remarks.iter().map(|remark| look.sentence(remark, self.width)));
        lines
    }

    fn title(&self) -> Line<'static> {
        let (look, process) = (self.look(), self.process);
        let user = process.user.as_deref().map(|user| format!("  {}", printable(user))).unwrap_or_default();
        let left = vec![
            look.span(Tone::Heading, format!("PID {}", process.tgid.0)),
            look.span(Tone::Faint, format!("{user}  ")),
            look.span(Tone::Heading, sentences::short_command(process)),
        ];
        let time = |time_ns| self.shown.clock.time_of_day(time_ns);
        let right = match process.ended_ns {
            Some(ended_ns) => look.span(Tone::Warning, format!("ended {}", time(ended_ns))),
            None if process.from_start => look.span(Tone::Good, "seen from its start"),
            None => look.span(Tone::Faint, format!("seen since {}", time(process.observed_since_ns))),
        };
        ends(left, vec![right], self.width)
    }

    fn owner(&self) -> Option<Line<'static>> {
        let details = owners::details(self.process);
        let text = details.join(if self.look().ascii { " - " } else { " · " });
        (!details.is_empty()).then(|| Line::from(self.look().span(Tone::Plain, fit(&text, self.width, ""))))
    }

    fn heads(&self) -> Line<'static> {
        let mut line = " ".repeat(LABEL);
        for head in ["used", "live", "peak", "before attach", "unattributed"] {
            line.extend([format!("{head:>COLUMN$}"), "  ".to_owned()]);
        }
        Line::from(self.look().span(Tone::Faint, fit(line.trim_end(), self.width, "")))
    }

    fn gpu(&self, gpu: &ProcessGpuView) -> Vec<Line<'static>> {
        let look = self.look();
        let number = sentences::gpu_number(self.shown.snapshot, gpu.uuid.as_ref());
        let mut numbers = vec![look.span(Tone::Heading, format!("{:<LABEL$}", format!("GPU {number}")))];
        for (tone, text) in [
            (Tone::Heading, known(gpu.used_bytes, bytes)),
            (Tone::Heading, bytes(gpu.live_bytes)),
            (Tone::Plain, bytes(gpu.peak_bytes)),
            (Tone::Plain, sentences::preexisting(gpu, look.ascii)),
            (Tone::Plain, known(gpu.unattributed_bytes, signed_bytes)),
        ] {
            numbers.push(look.span(tone, format!("{text:>COLUMN$}  ")));
        }
        vec![Line::from(numbers), Line::from(self.kinds_bar(gpu)), Line::from(self.legend(gpu)), self.history(gpu)]
    }

    /// Live bytes by kind, as far as the peak.
    fn kinds_bar(&self, gpu: &ProcessGpuView) -> Vec<Span<'static>> {
        let pieces: Vec<_> = KINDS
            .iter()
            .filter(|name| **name != MANAGED)
            .filter_map(|name| Some((Fill::Kind(name), gpu.kinds.get(*name)?.live_bytes)))
            .collect();
        self.look().bar(&pieces, gpu.peak_bytes, self.width)
    }

    fn legend(&self, gpu: &ProcessGpuView) -> Vec<Span<'static>> {
        let look = self.look();
        let mut spans = Vec::new();
        for name in KINDS {
            let Some(kind) = gpu.kinds.get(name).filter(|kind| kind.live_bytes > 0) else { continue };
            let about = if kind.estimated { "~" } else { "" };
            let text = format!("{name} {about}{}", bytes(kind.live_bytes));
            if name == MANAGED {
                spans.push(look.span(Tone::Faint, "apart: "));
                spans.push(Span::raw(text));
            } else {
                spans.extend(look.legend(Fill::Kind(name), &text));
            }
        }
        if spans.is_empty() { vec![look.span(Tone::Faint, "nothing is live")] } else { spans }
    }

    fn history(&self, gpu: &ProcessGpuView) -> Line<'static> {
        let look = self.look();
        let mut line = Line::from(look.span(Tone::Faint, format!("{:<LABEL$}", "live")));
        if let Some(history) = self.state.history(ProcessKey::of(self.process), gpu.uuid.as_ref()) {
            let room = self.width.saturating_sub(LABEL).min(HISTORY);
            line.push_span(look.sparkline(history.iter().copied(), gpu.peak_bytes, room));
        }
        line
    }

    /// The calls on each GPU; the rates are the process's.
    fn calls(&self) -> Vec<Line<'static>> {
        let (look, process) = (self.look(), self.process);
        let several = process.gpus.len() > 1;
        let mut lines = Vec::new();
        for gpu in &process.gpus {
            let number = sentences::gpu_number(self.shown.snapshot, gpu.uuid.as_ref());
            let label = if several { format!("GPU {number}") } else { "calls".to_owned() };
            let allocations = plural(gpu.allocations, "allocation", "allocations");
            let frees = plural(gpu.frees, "free", "frees");
            let mut line = Line::from(look.span(Tone::Faint, format!("{label:<LABEL$}")));
            line.push_span(Span::raw(format!("{allocations}, {frees}")));
            if gpu.failed_allocations > 0 {
                line.push_span(look.span(Tone::Bad, format!(", {} refused", count(gpu.failed_allocations))));
            }
            lines.push(line);
        }
        let rates = [("allocations", process.allocations_per_second), ("frees", process.frees_per_second)];
        let rates = rates.map(|(what, now)| format!("{} {what}/s", known(now, rate))).join(", ");
        if process.ended_ns.is_none() {
            let label = look.span(Tone::Faint, format!("{:<LABEL$}", "now"));
            lines.push(Line::from(vec![label, Span::raw(rates)]));
        }
        lines
    }
}

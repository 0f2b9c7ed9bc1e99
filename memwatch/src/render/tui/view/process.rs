//! The page of one process: identity, numbers and warnings.

use memwatch_core::snapshot::{AllocatorView, ExplainedUse, ProcessGpuView, ProcessView};
use ratatui::text::{Line, Span};

use super::look::TerminalLook;
use super::{FrameInput, ViewState};
use crate::render::Tone;
use crate::render::format::{self, count, fit, known, percent, printable, rate};
use crate::render::sentences;
use crate::render::tui::history::steps;
use crate::render::tui::outlook::GrowthPace;
use crate::render::tui::parts::beyond_driver;
use crate::render::tui::size::{giga, seconds, signed_giga, size, time};
use crate::render::tui::state::ProcessKey;
use crate::render::tui::tables::at_most;
use crate::render::tui::words::{short_command, short_path};
use crate::render::{explained, holdings, kv_cache, owners};

/// Width of the numbers in columns. The area to the right is free for a graph.
pub(crate) const NUMBERS: u16 = 36;
/// Screen width from which the title shows the user.
const USER_WIDTH: usize = 100;
/// Minimum size of a named part of used memory, in bytes. Smaller parts would round to 0.00 GiB.
const SHOWN_PART_BYTES: u64 = 6 << 20;
/// Maximum number of GPU rows.
const GPUS: usize = 8;

/// `memwatch  PID 26148  python3 train.py  root  up 1m09s  step 215 (3.1/s)`.
pub(crate) fn title(state: &ViewState, shown: &FrameInput, process: &ProcessView, width: usize) -> Line<'static> {
    let look = shown.look;
    let mut facts = Vec::new();
    if let Some(user) = process.user.as_deref().filter(|_| width >= USER_WIDTH) {
        facts.push(look.span(Tone::Faint, format!("  {}", printable(user))));
    }
    let until_ns = process.ended_ns.unwrap_or(shown.snapshot.time_ns);
    if let Some(start_ns) = process.start_ns {
        let word = if process.ended_ns.is_some() { "ran" } else { "up" };
        facts.push(look.span(Tone::Faint, format!("  {word} {}", time(seconds(start_ns, until_ns)))));
    }
    if let Some(steps) = steps(process) {
        let rate = state.histories.steps_per_second(ProcessKey::of(process));
        let rate = rate.map_or_else(String::new, |now| format!(" ({}/s)", self::rate(now)));
        facts.push(look.span(Tone::Faint, format!("  step {}{rate}", count(steps))));
    }
    if let Some(ended_ns) = process.ended_ns {
        facts.push(look.span(Tone::Warning, format!("  ended {}", shown.clock.time_of_day(ended_ns))));
    }
    let left =
        vec![look.span(Tone::Heading, "memwatch"), look.span(Tone::Heading, format!("  PID {}", process.tgid.0))];
    let clock = super::clock(state, shown);
    let taken: usize = left.iter().chain(&facts).chain([&clock]).map(Span::width).sum();
    let command = short_command(process);
    let command = fit(&command, width.saturating_sub(taken + 3), look.mark()).into_owned();
    let spans = left.into_iter().chain([look.span(Tone::Heading, format!("  {command}"))]).chain(facts);
    look.ends(spans.collect(), vec![clock], width)
}

/// Returns the owner of the process, if known.
pub(crate) fn owner(shown: &FrameInput, process: &ProcessView, width: usize) -> Option<Line<'static>> {
    let details = owners::details(process);
    let text = details.join(if shown.look.ascii { " - " } else { " · " });
    (!details.is_empty()).then(|| Line::from(shown.look.span(Tone::Plain, fit(&text, width, shown.look.mark()))))
}

/// `holds optimizer state 949 MiB · parameters 474 MiB`: live objects by class; `None` if they were
/// not read.
pub(crate) fn held(shown: &FrameInput, process: &ProcessView, width: usize) -> Option<Line<'static>> {
    let look = shown.look;
    let view = shown.outlooks.holdings(process).filter(|view| !view.classes.is_empty())?;
    let between = if look.ascii { " - " } else { " · " };
    let later = Some(holdings::later_bytes(view)).filter(|bytes| *bytes > 0);
    let later = later.map(|bytes| {
        let since = shown.clock.time_of_day(view.read_ns);
        format!("{between}since {since} {} more", size(bytes))
    });
    let text = holdings::classes(view, size, between) + &later.unwrap_or_default();
    let text = fit(&text, width.saturating_sub(6), look.mark()).into_owned();
    Some(Line::from(vec![look.span(Tone::Faint, "holds "), Span::raw(text)]))
}

/// `KV cache  56.92 GiB  32 layers, 29,141 blocks of 2.0 MiB: 1.0 % used by 8 requests (0 waiting) ·
/// …`; `None` if the process serves no requests.
pub(crate) fn kv_cache(look: TerminalLook, process: &ProcessView, width: usize) -> Option<Line<'static>> {
    let text = kv_cache::last(process)?;
    let text = if look.ascii { text.replace(" · ", " - ") } else { text };
    Some(Line::raw(fit(&text, width, look.mark()).into_owned()))
}

/// Returns a warning of a leak or of running out of memory; `None` without one.
pub(crate) fn warning(
    state: &ViewState,
    shown: &FrameInput,
    process: &ProcessView,
    width: usize,
) -> Option<Line<'static>> {
    let pace = GrowthPace { steps_per_second: state.histories.steps_per_second(ProcessKey::of(process)) };
    let (tone, text) = shown.outlooks.warning(process, pace)?;
    let look = shown.look;
    let mark = if look.ascii { "!" } else { "⚠" };
    let whole = format!("{mark} {text}");
    let text = if format::width(&whole) <= width { whole } else { format!("{mark} {}", short_path(&text)) };
    Some(Line::from(look.span(tone, fit(&text, width, look.mark()))))
}

/// Returns the numbers of the process: one row per number, or one row per GPU if it uses several.
pub(crate) fn numbers(shown: &FrameInput, process: &ProcessView, width: usize) -> Vec<Line<'static>> {
    let look = shown.look;
    match process.gpus.as_slice() {
        [] => vec![Line::raw("This process has not used GPU memory since memwatch attached.")],
        [gpu] => ProcessGpuNumbers { look, process, gpu }.lines(width),
        several => {
            let heads = ["USED", "DRIVER", "PEAK", "RESERVED", "ALLOCATED"].map(|head| format!("{head:>12}"));
            let heads = format!("{:<6}{}", "GPU", heads.concat());
            let mut lines = vec![Line::from(look.span(Tone::Faint, fit(&heads, width, "")))];
            for gpu in several.iter().take(GPUS) {
                lines.push(
                    ProcessGpuNumbers { look, process, gpu }
                        .row(&sentences::gpu_number(shown.snapshot, gpu.uuid.as_ref())),
                );
            }
            if let Some(left) = several.len().checked_sub(GPUS).filter(|left| *left > 0) {
                lines.push(Line::raw(format!("and {left} more GPUs")));
            }
            lines
        }
    }
}

/// The numbers of a process on one GPU.
struct ProcessGpuNumbers<'a> {
    look: TerminalLook,
    process: &'a ProcessView,
    gpu: &'a ProcessGpuView,
}

/// `used = context 0.51 + PyTorch 24.20 + other 0.02`, from the kernel driver's allocation map;
/// `None` until it has been compared with NVML.
fn sum_of_parts(own: &ExplainedUse) -> Option<String> {
    let (large, rest) = explained::parts_of(own, SHOWN_PART_BYTES)?;
    let mut parts: Vec<_> = large.into_iter().map(|(name, bytes)| format!("{name} {}", giga(bytes))).collect();
    if rest != 0 {
        parts.push(format!("other {}", signed_giga(rest)));
    }
    Some(format!("used = {}", parts.join(" + ")))
}

impl ProcessGpuNumbers<'_> {
    fn allocators(&self) -> Vec<&AllocatorView> {
        let all = self.process.tensors.iter().flat_map(|tensors| &tensors.allocators);
        all.filter(|own| own.uuid == self.gpu.uuid).collect()
    }

    /// Sums a number over the PyTorch allocators on the GPU; `None` if any of them lacks it.
    fn pytorch(&self, number: impl Fn(&AllocatorView) -> Option<u64>) -> Option<u64> {
        let own = self.allocators();
        if own.is_empty() { None } else { own.into_iter().map(number).sum() }
    }

    fn peak(&self, key: &str) -> Option<u64> {
        self.pytorch(|own| u64::try_from(own.statistic(key)?).ok())
    }

    fn row(&self, number: &str) -> Line<'static> {
        let numbers = [
            self.gpu.used_bytes,
            Some(self.gpu.live_bytes),
            Some(self.gpu.peak_bytes),
            self.pytorch(|own| own.reserved_bytes),
            self.pytorch(|own| own.allocated_bytes),
        ];
        let numbers = numbers.map(|bytes| format!("{:>12}", known(bytes, size)));
        Line::raw(format!("{number:<6}{}", numbers.concat()))
    }

    fn lines(&self, width: usize) -> Vec<Line<'static>> {
        let look = self.look;
        let mut lines = vec![Line::from(look.span(Tone::Faint, format!("{:<12}{:>10}{:>12}", "", "NOW", "PEAK")))];
        let mut row = |name: &str, now: Option<u64>, peak: Option<u64>| {
            let peak = peak.map(size).unwrap_or_default();
            lines.push(Line::from(vec![
                Span::raw(format!("{name:<12}")),
                look.span(Tone::Heading, format!("{:>10}", known(now, size))),
                Span::raw(format!("{peak:>12}")),
            ]));
        };
        let gpu = self.gpu;
        row("used", gpu.used_bytes, None);
        row("driver", Some(gpu.live_bytes), Some(gpu.peak_bytes));
        if !self.allocators().is_empty() {
            row("reserved", self.pytorch(|own| own.reserved_bytes), self.peak("reserved_bytes.all.peak"));
            row("allocated", self.pytorch(|own| own.allocated_bytes), self.peak("allocated_bytes.all.peak"));
            row("cached", self.pytorch(|own| own.cached_bytes), None);
        }
        if let Some((sum, share)) = self.sum() {
            let text = if format::width(&sum) + format::width(&share) <= width { sum + &share } else { sum };
            lines.push(Line::from(look.span(Tone::Plain, fit(&text, width, look.mark()))));
        }
        lines
    }

    /// Returns the parts of the used bytes, all as of NVML's last reading: `used = PyTorch 28.31 +
    /// other libraries 0.06 + unattributed 0.53`.
    ///
    /// The second string is the attributed share, for screens that are wide enough.
    fn sum(&self) -> Option<(String, String)> {
        let gpu = self.gpu;
        if let Some(held) = gpu.checkpointed_bytes {
            let text = format!("checkpointed: {} are in host memory and not on the GPU", size(held));
            return Some((text, String::new()));
        }
        if let Some(explained) = self.process.explained_on(gpu.uuid.as_ref()).and_then(sum_of_parts) {
            return Some((explained, String::new()));
        }
        let (used, left) = (gpu.used_bytes?, gpu.unattributed_bytes?);
        let changed_ns = self.process.driver_changed_ns;
        let reserved = self.pytorch(|own| own.reserved_bytes.filter(|_| own.is_as_new_as(changed_ns)));
        let mut parts = Vec::new();
        let before = gpu.preexisting_bytes;
        match reserved {
            // Memory that PyTorch allocated before the attach is in its own number, but in no
            // traced driver call.
            Some(reserved) if before != Some(0) => {
                let rest = i128::from(used) - i128::from(reserved);
                parts.push(format!("PyTorch {}", giga(reserved)));
                let rest = i64::try_from(rest).unwrap_or(i64::MAX);
                parts.push(format!("other libraries, context and code {}", signed_giga(rest)));
                return Some((format!("used = {}", parts.join(" + ")), String::new()));
            }
            Some(reserved) => {
                let others = gpu.live_bytes.checked_sub(reserved);
                match others.and_then(|others| Some((others, gpu.attributed_bytes.checked_sub(others)?))) {
                    Some((others, pytorch)) => {
                        parts.push(format!("PyTorch {}", giga(pytorch)));
                        parts.push(format!("other libraries {}", giga(others)));
                    }
                    None => parts.push(format!("driver {}", giga(gpu.attributed_bytes))),
                }
            }
            None => parts.push(format!("driver {}", giga(gpu.attributed_bytes))),
        }
        let (before, rest) = beyond_driver(left, before);
        if let Some(bytes) = before {
            let at_most = at_most(gpu, self.look.ascii);
            parts.push(format!("pre-existing {at_most}{}", giga(bytes)));
        }
        parts.push(format!("unattributed {}", signed_giga(rest)));
        let attributed = percent(gpu.attributed_bytes.min(used), used);
        Some((format!("used = {}", parts.join(" + ")), format!(" (attributed {attributed})")))
    }
}

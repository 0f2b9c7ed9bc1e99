//! What a PyTorch program's memory is for: below the GPUs of its process.

use memwatch_core::snapshot::{DevicePlacesView, ProcessView, Snapshot, SumView};
use ratatui::text::{Line, Span};

use super::look::{Fill, Look};
use crate::render::Tone;
use crate::render::format::{bytes, count, fit, plural};
use crate::render::places;
use crate::render::sentences;

/// The stages in the order of the bar.
const STAGES: [&str; 6] = ["forward", "backward", "optimizer", "outside", "preexisting", "not_known"];
/// So many lines of Python, and so many layers, are listed; `memwatch sites` and `memwatch layers` have all.
const ROWS: usize = 5;
/// Width of the column before the numbers.
const LABEL: usize = 7;
/// Width of a number's column.
const COLUMN: usize = 11;

/// The lines of a process; none where nothing of PyTorch was seen.
pub(crate) fn lines(look: Look, snapshot: &Snapshot, process: &ProcessView, width: usize) -> Vec<Line<'static>> {
    let Some(tensors) = &process.tensors else { return Vec::new() };
    let seen =
        tensors.places.devices.iter().filter(|device| device.allocated_bytes > 0 || device.total.allocations > 0);
    seen.flat_map(|device| {
        let number = sentences::gpu_number(snapshot, device.uuid.as_ref());
        Device { look, device, width }.lines(&number, tensors.places.steps)
    })
    .collect()
}

struct Device<'a> {
    look: Look,
    device: &'a DevicePlacesView,
    width: usize,
}

impl Device<'_> {
    fn lines(&self, number: &str, steps: Option<u64>) -> Vec<Line<'static>> {
        let Self { look, device, .. } = *self;
        let facts = format!(
            "PyTorch on GPU {number}: tensors hold {}, at most {}; {} came, {} went{}",
            bytes(device.allocated_bytes),
            bytes(device.total.peak_bytes.max(device.allocated_bytes)),
            count(device.total.allocations),
            count(device.total.frees),
            steps.map_or_else(String::new, |steps| format!(", {}", plural(steps, "step", "steps"))),
        );
        let mut lines = vec![Line::from(look.span(Tone::Heading, fit(&facts, self.width, look.mark()).into_owned()))];
        lines.extend(self.stages());
        let sites = device.sites.iter().map(|site| (&site.sum, places::site(site)));
        lines.extend(self.list("lines", sites));
        let layers = device.layers.iter().map(|layer| {
            let class = layer.class.as_deref().unwrap_or_default();
            (&layer.sum, format!("{}  {}", places::layer(layer), crate::render::format::printable(class)))
        });
        lines.extend(self.list("layers", layers));
        lines
    }

    /// A bar of the stages' live bytes, and what its pieces are.
    fn stages(&self) -> Vec<Line<'static>> {
        let mut pieces: Vec<(Fill, u64)> = Vec::new();
        let mut legend: Vec<Span<'static>> = Vec::new();
        for name in STAGES {
            let live_bytes =
                self.device.stages.iter().filter(|stage| stage.stage == name).map(|stage| stage.sum.live_bytes).sum();
            if live_bytes > 0 {
                pieces.push((Fill::Stage(name), live_bytes));
                let text = format!("{} {}", places::stage_name(name), bytes(live_bytes));
                legend.extend(self.look.legend(Fill::Stage(name), &text));
            }
        }
        if pieces.is_empty() {
            return Vec::new();
        }
        let most = self.device.total.peak_bytes.max(self.device.allocated_bytes);
        vec![Line::from(self.look.bar(&pieces, most, self.width)), Line::from(legend)]
    }

    /// The places with most live bytes.
    fn list<'s>(&self, title: &str, places: impl Iterator<Item = (&'s SumView, String)>) -> Vec<Line<'static>> {
        let shown = places.filter(|(sum, _)| sum.live_bytes > 0).take(ROWS);
        let row = |(index, (sum, name)): (usize, (&SumView, String))| {
            let label = if index == 0 { title } else { "" };
            let room = self.width.saturating_sub(LABEL + COLUMN + 2);
            Line::from(vec![
                self.look.span(Tone::Faint, format!("{label:<LABEL$}")),
                Span::raw(format!("{:>COLUMN$}  ", bytes(sum.live_bytes))),
                Span::raw(fit(&name, room, self.look.mark()).into_owned()),
            ])
        };
        shown.enumerate().map(row).collect()
    }
}

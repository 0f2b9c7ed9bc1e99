//! The Lines, Modules and Phases tabs: PyTorch memory attributed to code.

use memwatch_core::snapshot::{
    DeviceAttributionView, FrameView, ModuleView, PhaseBytesView, ProcessView, SiteView, StackView, SumView,
};
use memwatch_core::words::Name;

use super::TableInput;
use crate::render::Tone;
use crate::render::format::{count, printable, ratio};
use crate::render::places;
use crate::render::sentences::{self, level};
use crate::render::tui::grid::{GridCell, GridColumn, GridRow, ScreenGrid, SortKey};
use crate::render::tui::outlook::GrowthPace;
use crate::render::tui::size::{growth, size};
use crate::render::tui::state::RowKey;
use crate::render::tui::words::short_path;

/// Screen width from which files are shown with their directories.
const WIDE: usize = 120;
/// Maximum number of stacks shown for a line.
const STACKS: usize = 5;

/// Common parts of the tabs: the devices, and the columns in front of a row's name.
struct AttributionTab<'a> {
    facts: &'a TableInput<'a>,
    process: &'a ProcessView,
}

impl<'a> AttributionTab<'a> {
    fn devices(&self) -> &'a [DeviceAttributionView] {
        self.process.tensors.as_ref().map_or(&[], |tensors| &tensors.attribution.devices)
    }

    /// Returns the heading and the value of the first column: live bytes, or the bytes at the peak
    /// if the process has ended.
    fn now(&self) -> (&'static str, fn(&SumView) -> u64) {
        match self.process.ended_ns {
            None => ("NOW", |sum| sum.live_bytes),
            Some(_) => ("AT PEAK", |sum| sum.at_peak_bytes),
        }
    }

    /// Returns the common columns followed by the tab's own.
    fn columns(&self, own: &[GridColumn]) -> Vec<GridColumn> {
        let gpu = (self.devices().len() > 1).then_some(GridColumn::number("GPU", 4));
        let first = [GridColumn::number(self.now().0, 10), GridColumn::number("%", 4), GridColumn::number("PEAK", 10)];
        let counts = [GridColumn::number("COUNT", 9)];
        gpu.into_iter().chain(first).chain(counts).chain(own.iter().copied()).collect()
    }

    /// Returns the cells of the common columns.
    fn cells(&self, device: &DeviceAttributionView, sum: &SumView, is_counted: bool) -> Vec<GridCell> {
        let now = self.now().1;
        // If small blocks of a line are sampled, its live bytes are an estimate, and the other
        // numbers cover only the blocks that have a line.
        let (about, at_least) = match (sum.is_lower_bound(), self.facts.ascii) {
            (false, _) => ("", ""),
            (true, false) => ("≈", "≥"),
            (true, true) => ("~", ">="),
        };
        let (bytes, mark) = match (sum.sampled_live, self.process.ended_ns) {
            (Some(estimate), None) => (estimate.bytes, about),
            (None, None) => (now(sum), ""),
            (_, Some(_)) => (now(sum), at_least),
        };
        let percent = 100.0 * ratio(bytes, now(&device.total));
        let gpu = (self.devices().len() > 1)
            .then(|| GridCell::text(sentences::gpu_number(self.facts.snapshot, device.uuid.as_ref())));
        let blocks = sum.allocations.saturating_sub(sum.frees);
        let blocks = if is_counted {
            GridCell::number(blocks, format!("{at_least}{}", count(blocks)))
        } else {
            GridCell::unknown()
        };
        let own = [
            GridCell::number(bytes, format!("{mark}{}", size(bytes))).in_tone(Tone::Heading),
            GridCell::real(percent, format!("{percent:.0}")),
            GridCell::number(sum.peak_bytes, format!("{at_least}{}", size(sum.peak_bytes))),
            blocks,
        ];
        gpu.into_iter().chain(own).collect()
    }

    fn grid(&self, own: &[GridColumn], rows: Vec<(Vec<GridCell>, RowKey)>) -> ScreenGrid {
        let mut rows: Vec<GridRow> =
            rows.into_iter().map(|(cells, key)| GridRow { key, cells, tone: Tone::Plain, branch: None }).collect();
        if rows.iter().all(|row| row.cells.iter().all(is_nothing)) {
            rows.clear();
        }
        let mut grid = ScreenGrid { columns: self.columns(own), rows, natural: self.now().0, empty: self.empty() };
        grid.sort(grid.natural, false);
        grid
    }

    /// Returns why the table is empty.
    fn empty(&self) -> String {
        let tgid = self.process.tgid.0;
        if self.process.tensors.is_some() {
            "PyTorch has nothing allocated on a GPU.".to_owned()
        } else if let Some(text) = self.process.level.as_ref().and_then(level::lowered) {
            text
        } else if self.process.target {
            "No PyTorch allocation in this process since memwatch attached.".to_owned()
        } else {
            format!("PyTorch is not traced in this process. To trace it: sudo memwatch --pid {tgid}")
        }
    }
}

/// Returns why a tab on PyTorch memory is empty.
pub(crate) fn nothing(facts: &TableInput, process: &ProcessView) -> String {
    AttributionTab { facts, process }.empty()
}

/// Returns whether a cell carries no information: any text, or a number of 0.
fn is_nothing(cell: &GridCell) -> bool {
    !matches!(cell.order, SortKey::Number(number) if number > 0.0)
}

fn device_key(device: &DeviceAttributionView, place: &str) -> RowKey {
    RowKey::Place(format!("{}/{place}", device.device))
}

fn site_key(device: &DeviceAttributionView, site: &SiteView) -> RowKey {
    let SiteView { kind, file, line, function, held, .. } = site;
    device_key(device, &format!("{kind}/{file:?}/{line:?}/{function:?}/{held:?}"))
}

/// Builds the table by source line.
pub(crate) fn lines(facts: &TableInput, process: &ProcessView, pace: GrowthPace) -> ScreenGrid {
    let table = AttributionTab { facts, process };
    // Growth of sampled lines is a lower bound.
    let title = match (pace.steps_per_second.is_some(), facts.ascii, level::is_sampled(process)) {
        (true, false, false) => "Δ/STEP",
        (true, true, false) => "+/STEP",
        (false, false, false) => "Δ/MIN",
        (false, true, false) => "+/MIN",
        (true, false, true) => "≥Δ/STEP",
        (true, true, true) => ">=+/STEP",
        (false, false, true) => "≥Δ/MIN",
        (false, true, true) => ">=+/MIN",
    };
    let has_growth = facts.outlooks.leaks(process).is_some();
    let grows = has_growth.then_some(GridColumn::number(title, 9));
    let own: Vec<GridColumn> = grows.into_iter().chain([GridColumn::words("LINE", 0)]).collect();
    let mut rows = Vec::new();
    for device in table.devices() {
        for site in &device.sites {
            let mut cells = table.cells(device, &site.sum, places::is_traced(&site.kind));
            if has_growth {
                cells.push(growth_cell(facts.outlooks.growth(process, site, device.uuid.as_ref()), pace));
            }
            let name = places::site_and_library(site);
            cells.push(GridCell::text(if facts.width < WIDE { short_path(&name) } else { name }));
            rows.push((cells, site_key(device, site)));
        }
    }
    table.grid(&own, rows)
}

fn growth_cell(bytes_per_minute: Option<f64>, pace: GrowthPace) -> GridCell {
    let Some(bytes) = bytes_per_minute.map(|bytes| pace.of(bytes)) else { return GridCell::unknown() };
    let cell = GridCell::real(bytes, growth(bytes));
    if bytes >= 1.0 { cell.in_tone(Tone::Warning) } else { cell }
}

/// Builds the table by module.
pub(crate) fn modules(facts: &TableInput, process: &ProcessView) -> ScreenGrid {
    let table = AttributionTab { facts, process };
    let own = [GridColumn::words("MODULE", 0)];
    let mut rows = Vec::new();
    for device in table.devices() {
        for module in &device.modules {
            let mut cells = table.cells(device, &module.sum, places::is_traced(&module.kind));
            let class = module.class.as_deref().map(|class| format!("  {}", printable(class))).unwrap_or_default();
            cells.push(GridCell::text(format!("{}{class}", places::module(module))));
            rows.push((cells, module_key(device, module)));
        }
    }
    table.grid(&own, rows)
}

fn module_key(device: &DeviceAttributionView, module: &ModuleView) -> RowKey {
    device_key(device, &format!("{}/{:?}/{:?}", module.kind, module.model, module.name))
}

/// Builds the table by phase of a step, followed by the ranges that the program opened.
pub(crate) fn phases(facts: &TableInput, process: &ProcessView) -> ScreenGrid {
    let table = AttributionTab { facts, process };
    let own = [GridColumn::words("PHASE", 0)];
    let mut rows = Vec::new();
    for device in table.devices() {
        for phase in &device.phases {
            let mut cells = table.cells(device, &phase.sum, places::is_traced(&phase.phase));
            let name = places::phase(phase);
            cells.push(GridCell::text(name.clone()));
            rows.push((cells, device_key(device, &name)));
        }
        for range in device.ranges.iter().filter(|range| range.name.is_some()) {
            let mut cells = table.cells(device, &range.sum, true);
            let name = format!("range {}", places::range(range));
            cells.push(GridCell::text(name.clone()));
            rows.push((cells, device_key(device, &name)));
        }
    }
    table.grid(&own, rows)
}

/// Returns the stacks of a line, those with the most memory first.
pub(crate) fn stacks(process: &ProcessView, place: &str) -> Vec<String> {
    let devices = process.tensors.iter().flat_map(|tensors| &tensors.attribution.devices);
    let mut lines = Vec::new();
    for device in devices {
        let is_it = |site: &&SiteView| site_key(device, site) == RowKey::Place(place.to_owned());
        let Some(site) = device.sites.iter().find(is_it) else { continue };
        let through = |stack: &&StackView| stack.frames.iter().any(|frame| is_frame_of(frame, site));
        for stack in device.stacks.iter().filter(through).take(STACKS) {
            lines.extend(stack_lines(stack));
        }
    }
    if lines.is_empty() {
        lines.push("No stack is kept for this line: only those with most memory are.".to_owned());
    }
    lines
}

fn is_frame_of(frame: &FrameView, site: &SiteView) -> bool {
    site.line.is_some() && (&frame.file, frame.line) == (&site.file, site.line)
}

fn stack_lines(stack: &StackView) -> Vec<String> {
    let mut lines = vec![format!("{} now, {} at most", size(stack.sum.live_bytes), size(stack.sum.peak_bytes))];
    match stack.native.as_ref().filter(|_| stack.frames.is_empty()) {
        Some(native) => lines.extend(native.frames.iter().filter_map(places::frame).map(|frame| format!("  {frame}"))),
        None => lines.extend(stack.frames.iter().map(|frame| {
            let file = printable(frame.file.as_deref().unwrap_or("?"));
            let line = frame.line.map_or_else(String::new, |line| format!(":{line}"));
            let module = frame.module.as_deref().map(|module| format!("  ({})", printable(module)));
            let function = printable(frame.function.as_deref().unwrap_or("?"));
            format!("  {file}{line} {function}{}", module.unwrap_or_default())
        })),
    }
    if stack.truncated {
        lines.push("  and more frames, which are not kept".to_owned());
    }
    lines.push(String::new());
    lines
}

/// Returns the bytes of a module in each phase.
pub(crate) fn module(process: &ProcessView, place: &str) -> Vec<String> {
    let devices = process.tensors.iter().flat_map(|tensors| &tensors.attribution.devices);
    let all = devices.flat_map(|device| device.modules.iter().map(move |module| (device, module)));
    let is_it = |(device, module): &(&DeviceAttributionView, &ModuleView)| {
        module_key(device, module) == RowKey::Place(place.to_owned())
    };
    let Some((_, module)) = all.into_iter().find(is_it) else { return Vec::new() };
    let row = |(phase, bytes): (&Name, &PhaseBytesView)| {
        let total = size(bytes.total_bytes);
        format!("{:>10} now  {total:>10} in all  {}", size(bytes.live_bytes), places::phase_name(phase))
    };
    module.phases.iter().map(row).collect()
}

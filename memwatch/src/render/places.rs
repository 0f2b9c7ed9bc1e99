//! Names for attribution rows: phases, modules, call sites and ranges, as shown on screens.

use memwatch_core::features::leak::view::LeakView;
use memwatch_core::snapshot::{
    LibraryLineView, MergedFrameView, ModuleView, PhaseView, PlaceNameView, RangeView, SiteView, Snapshot, SumView,
    WhoseView,
};
use memwatch_core::stack::native::file_name;

use super::format::printable;

/// A list of attributed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttributionList {
    /// By line of Python code.
    Sites,
    /// By phase of a training step.
    Phases,
    /// By module.
    Modules,
}

/// Stack frames to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FrameDetail {
    /// The program's line and the library line that it calls.
    #[default]
    Lines,
    /// All Python frames.
    Python,
    /// Python and native frames.
    Native,
}

/// Options of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttributionQuery {
    /// The requested list.
    pub(crate) which: AttributionList,
    /// Maximum number of rows.
    pub(crate) top: usize,
    /// Frames to show for the stacks with the most memory.
    pub(crate) frames: FrameDetail,
}

/// `backward`, `backward (recomputed)`, `forward (captured)`.
pub(crate) fn phase(view: &PhaseView) -> String {
    let name = phase_name(&view.phase);
    match (view.recomputed, view.captured) {
        (false, false) => name.to_owned(),
        (true, false) => format!("{name} (recomputed)"),
        (false, true) => format!("{name} (captured)"),
        (true, true) => format!("{name} (recomputed, captured)"),
    }
}

/// Returns the name of a phase.
pub(crate) fn phase_name(name: &str) -> &str {
    match name {
        "not_known" => "(unknown)",
        "preexisting" => "(pre-existing)",
        "untraced" => UNTRACED,
        name => name,
    }
}

/// Returns a module's name in its model, or the model's class for the model itself.
pub(crate) fn module(view: &ModuleView) -> String {
    match (&*view.kind, view.name.as_deref()) {
        ("module", Some("")) => format!("{} (itself)", printable(view.model.as_deref().unwrap_or_default())),
        ("module" | "operator", Some(name)) => printable(name).into_owned(),
        ("module", None) => "(name not found)".to_owned(),
        ("none", _) => "(no module)".to_owned(),
        (kind, _) => row_without_name(kind),
    }
}

/// Returns the name of a call site: `train.py:12 main`, `backward of train.py:12 main`.
pub(crate) fn site(view: &SiteView) -> String {
    let file = printable(view.file.as_deref().unwrap_or_default());
    let line = view.line.map_or_else(String::new, |line| format!(":{line}"));
    let place = format!("{file}{line} {}", printable(view.function.as_deref().unwrap_or_default()));
    match &*view.kind {
        "line" => place,
        "backward_of" => format!("backward of {place}"),
        "native" => format!("{}  {file}", printable(view.function.as_deref().unwrap_or_default())),
        "no_python" => "(no Python: a thread of PyTorch's own)".to_owned(),
        kind => match &view.held {
            Some(held) => held_as(kind, &held.text()),
            None => row_without_name(kind),
        },
    }
}

/// Returns whether the blocks of a row were traced. Other rows hold blocks of which only the
/// existence is known.
pub(crate) fn is_traced(kind: &str) -> bool {
    !matches!(kind, "preexisting" | "untraced")
}

/// Name of the row for blocks allocated while tracing was off.
const UNTRACED: &str = "(allocated while not traced)";
/// Returns the name of a call site with the line of a package or of torch that it called:
/// `train.py:12 main in torch/_utils.py:203 _rebuild_tensor`. If there are several such lines, only
/// one with more than half of the memory is named.
pub(crate) fn site_and_library(view: &SiteView) -> String {
    let place = site(view);
    let lines = &view.library_lines;
    let by: [fn(&LibraryLineView) -> u64; 3] =
        [|line| line.live_bytes, |line| line.at_peak_bytes, |line| line.total_bytes];
    let Some(by) = by.into_iter().find(|by| lines.iter().any(|line| by(line) > 0)) else { return place };
    let all = lines.iter().map(by).fold(0, u64::saturating_add);
    let Some(most) = lines.iter().max_by_key(|line| by(line)).filter(|line| line.kind == "line") else { return place };
    match (lines.len(), library_line(most)) {
        (1, Some(library)) => format!("{place} in {library}"),
        (_, Some(library)) if by(most) > all / 2 => format!("{place} mostly in {library}"),
        _ => format!("{place} in {} library lines", lines.iter().filter(|line| line.kind == "line").count()),
    }
}

/// Returns a package's line: `torch/_utils.py:203 _rebuild_tensor`; `None` for a row without a
/// file.
pub(crate) fn library_line(view: &LibraryLineView) -> Option<String> {
    let file = printable(below_packages(view.file.as_deref()?)).into_owned();
    let line = view.line.map_or_else(String::new, |line| format!(":{line}"));
    Some(format!("{file}{line} {}", printable(view.function.as_deref().unwrap_or_default())))
}

/// Returns a library's path relative to the directory that contains its package.
fn below_packages(path: &str) -> &str {
    let folders = ["/site-packages/", "/dist-packages/"];
    let installed = folders.iter().find_map(|folder| path.split_once(folder)).map(|(_, below)| below);
    let torch = || path.find("/torch/").map(|place| &path[place + 1..]);
    installed.or_else(torch).unwrap_or(path)
}

/// `(pre-existing) parameters h.*.attn.weight`.
fn held_as(kind: &str, name: &str) -> String {
    format!("{} {}", row_without_name(kind), printable(name))
}

/// Formats a Python or native frame; `None` for a frame of the interpreter.
pub(crate) fn frame(view: &MergedFrameView) -> Option<String> {
    let file = printable(view.file.as_deref().unwrap_or("?"));
    let function = view.name.as_deref().map(printable);
    match &*view.kind {
        "interpreter" => None,
        "python" => {
            let line = view.line.map_or_else(String::new, |line| format!(":{line}"));
            Some(format!("{file}{line} {}", function.unwrap_or("?".into())))
        }
        _ => {
            let address = || format!("{:#x}", view.address.unwrap_or_default()).into();
            Some(format!("{}  {}", function.unwrap_or_else(address), file_name(&file)))
        }
    }
}

/// Returns why a native stack is incomplete.
pub(crate) fn native_end(end: &str) -> &str {
    match end {
        "copy_ends" => "more of the stack was not copied",
        "no_information" => "no unwind information",
        "unreadable" => "the file with the code cannot be read",
        "contradictory" => "the stack is inconsistent",
        "too_many_frames" => "there are too many",
        "differing" => "allocations here have different ones",
        "over_budget" => "left out to keep the program fast",
        "lost" => "no room for the copy",
        other => other,
    }
}

/// Returns the name of a range.
pub(crate) fn range(view: &RangeView) -> String {
    match (&*view.kind, &view.name) {
        ("range", Some(name)) => printable(name).into_owned(),
        ("none", _) => "(in no range)".to_owned(),
        (kind, _) => row_without_name(kind),
    }
}

fn row_without_name(kind: &str) -> String {
    match kind {
        "rest" => "(all others)",
        "preexisting" => "(pre-existing)",
        "untraced" => UNTRACED,
        "not_known" => "(unknown)",
        "not_asked" => "(stacks were not requested)",
        "differing" => "allocations here have different ones",
        "over_budget" => "(unknown: left out to keep the program fast)",
        "unreadable" => "(unknown: the stack could not be read)",
        "not_sampled" => "(below 1 MiB and not sampled: part of the sums marked ≈)",
        "missing" => "(unknown: the stack did not arrive)",
        other => return printable(other).into_owned(),
    }
    .to_owned()
}

/// Returns the name of a call site or a module of any kind.
pub(crate) fn place(view: &PlaceNameView) -> String {
    match (&*view.kind, view.name.as_deref().map(printable)) {
        ("backward_of", Some(name)) => format!("backward of {name}"),
        (kind @ ("preexisting" | "untraced"), Some(name)) => held_as(kind, &name),
        (_, Some(name)) => name.into_owned(),
        ("none", None) => "(no module)".to_owned(),
        ("no_python", None) => "(no Python: a thread of PyTorch's own)".to_owned(),
        ("pending", None) => "(freed, still used by a stream)".to_owned(),
        (kind, None) => row_without_name(kind),
    }
}

/// Returns the line of a leak, or a description of a leak without a line; `None` if neither is
/// known.
pub(crate) fn leak(leak: &LeakView) -> Option<String> {
    match &*leak.level {
        "allocated" => return Some("all tensors, new and without a line yet".to_owned()),
        "reserved" => return Some("free memory in PyTorch's cache".to_owned()),
        _ => {}
    }
    let LeakView { kind, file, line, function, held, .. } = leak.clone();
    Some(site(&SiteView {
        kind: kind?,
        file,
        line,
        function,
        held,
        library_lines: Vec::new(),
        sum: SumView::default(),
    }))
}

/// `forward, step 12, Net layers.0.fc1 Linear, train.py:12 main`.
pub(crate) fn whose(view: &WhoseView) -> String {
    let phase = Some(phase_name(&view.phase)).filter(|phase| *phase != "outside").map(ToOwned::to_owned);
    let step = (view.step > 0).then(|| format!("step {}", view.step));
    let mut parts: Vec<String> = phase.into_iter().chain(step).collect();
    let names = [&view.module, &view.site].map(|place| place.name.as_ref().map(|name| printable(name).into_owned()));
    parts.extend(names.into_iter().flatten());
    if let (Some(place), Some(library)) = (parts.last_mut().filter(|_| view.site.name.is_some()), &view.library) {
        *place = format!("{place} in {}", printable(below_packages(library)));
    }
    if view.site.name.is_none() {
        parts.push(row_without_name(&view.site.kind));
    }
    parts.join(", ")
}

/// Returns whether every PyTorch process of a snapshot has ended. The peak is more useful then than
/// the memory left at exit.
pub(crate) fn all_ended(snapshot: &Snapshot) -> bool {
    let mut with_torch = snapshot.processes.iter().filter(|process| process.tensors.is_some()).peekable();
    with_torch.peek().is_some() && with_torch.all(|process| process.ended_ns.is_some())
}

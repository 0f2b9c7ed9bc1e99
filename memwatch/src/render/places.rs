//! Words for places of tensors: what a row of stages, layers, lines or phases is called on a screen.

use memwatch_core::features::leak::view::LeakView;
use memwatch_core::snapshot::{
    LayerView, LibraryLineView, MergedFrameView, PhaseView, PlaceNameView, SiteView, Snapshot, StageView, SumView,
    WhoseView,
};
use memwatch_core::stack::native::file_name;

use super::format::printable;

/// Which list is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// By line of Python.
    Sites,
    /// By stage of a training step.
    Stages,
    /// By module.
    Layers,
}

/// Which frames of stacks are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Frames {
    /// The program's line and that of the library behind it.
    #[default]
    Lines,
    /// All of Python.
    Python,
    /// And of machine code.
    Native,
}

/// What of a list is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The list.
    pub(crate) which: Places,
    /// So many rows at most.
    pub(crate) top: usize,
    /// Also the stacks that hold most.
    pub(crate) frames: Frames,
}

/// `backward`, `backward (recomputed)`, `forward (captured)`.
pub(crate) fn stage(view: &StageView) -> String {
    let name = stage_name(&view.stage);
    match (view.recomputed, view.captured) {
        (false, false) => name.to_owned(),
        (true, false) => format!("{name} (recomputed)"),
        (false, true) => format!("{name} (captured)"),
        (true, true) => format!("{name} (recomputed, captured)"),
    }
}

/// A stage's name.
pub(crate) fn stage_name(name: &str) -> &str {
    match name {
        "not_known" => "(unknown)",
        "preexisting" => "(pre-existing)",
        "untraced" => UNTRACED,
        name => name,
    }
}

/// A module's name in its model; the model itself by its class.
pub(crate) fn layer(view: &LayerView) -> String {
    match (&*view.kind, view.name.as_deref()) {
        ("module", Some("")) => format!("{} (itself)", printable(view.model.as_deref().unwrap_or_default())),
        ("module" | "operator", Some(name)) => printable(name).into_owned(),
        ("module", None) => "(name not found)".to_owned(),
        ("none", _) => "(no module)".to_owned(),
        (kind, _) => row_without_name(kind),
    }
}

/// `train.py:12 main`, and `backward of` it.
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

/// Whether blocks of a row were seen to come: of the others nothing is known but that they are there.
pub(crate) fn is_traced(kind: &str) -> bool {
    !matches!(kind, "preexisting" | "untraced")
}

/// What the row is called of what was allocated while nothing was traced.
const UNTRACED: &str = "(while not traced)";
/// The same with the line of a package or of torch that it called: `train.py:12 main in torch/_utils.py:203 _rebuild_tensor`; of several, the one
/// that has more than all others together.
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

/// A line of a package: `torch/_utils.py:203 _rebuild_tensor`; `None` for a row that is none.
pub(crate) fn library_line(view: &LibraryLineView) -> Option<String> {
    let file = printable(below_packages(view.file.as_deref()?)).into_owned();
    let line = view.line.map_or_else(String::new, |line| format!(":{line}"));
    Some(format!("{file}{line} {}", printable(view.function.as_deref().unwrap_or_default())))
}

/// A library's path below the folder of packages that it begins with.
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

/// A frame of Python or of native code; `None` for one of the interpreter's own.
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

/// Why a native stack is shorter than the thread's.
pub(crate) fn native_end(end: &str) -> &str {
    match end {
        "copy_ends" => "more of the stack was not copied",
        "no_information" => "nothing says who called this",
        "unreadable" => "the file with the code cannot be read",
        "contradictory" => "the stack contradicts itself",
        "too_many_frames" => "there are too many",
        "differing" => "allocations here have different ones",
        "over_budget" => "left out to keep the program fast",
        "lost" => "no room for the copy",
        other => other,
    }
}

/// The range's name.
pub(crate) fn phase(view: &PhaseView) -> String {
    match (&*view.kind, &view.name) {
        ("phase", Some(name)) => printable(name).into_owned(),
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
        "not_asked" => "(stacks are not asked for)",
        "differing" => "allocations here have different ones",
        "over_budget" => "(unknown: left out to keep the program fast)",
        "unreadable" => "(unknown: the stack could not be read)",
        "not_sampled" => "(below 1 MiB and not sampled: part of the sums marked ≈)",
        "missing" => "(unknown: the stack did not arrive)",
        other => return printable(other).into_owned(),
    }
    .to_owned()
}

/// A line or a layer by its name, whatever it is.
pub(crate) fn place(view: &PlaceNameView) -> String {
    match (&*view.kind, view.name.as_deref().map(printable)) {
        ("backward_of", Some(name)) => format!("backward of {name}"),
        (kind @ ("preexisting" | "untraced"), Some(name)) => held_as(kind, &name),
        (_, Some(name)) => name.into_owned(),
        ("none", None) => "(no module)".to_owned(),
        ("no_python", None) => "(no Python: a thread of PyTorch's own)".to_owned(),
        ("pending", None) => "(given back, used by a stream still)".to_owned(),
        (kind, None) => row_without_name(kind),
    }
}

/// The line of a place that grows, or what grows without one; `None` where neither is known.
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
    let stage = Some(stage_name(&view.stage)).filter(|stage| *stage != "outside").map(ToOwned::to_owned);
    let step = (view.step > 0).then(|| format!("step {}", view.step));
    let mut parts: Vec<String> = stage.into_iter().chain(step).collect();
    let names = [&view.layer, &view.site].map(|place| place.name.as_ref().map(|name| printable(name).into_owned()));
    parts.extend(names.into_iter().flatten());
    if let (Some(place), Some(library)) = (parts.last_mut().filter(|_| view.site.name.is_some()), &view.library) {
        *place = format!("{place} in {}", printable(below_packages(library)));
    }
    if view.site.name.is_none() {
        parts.push(row_without_name(&view.site.kind));
    }
    parts.join(", ")
}

/// Whether every PyTorch process of a snapshot has ended: what was left at its exit says little, what it held at its peak much.
pub(crate) fn all_ended(snapshot: &Snapshot) -> bool {
    let mut with_torch = snapshot.processes.iter().filter(|process| process.tensors.is_some()).peekable();
    with_torch.peek().is_some() && with_torch.all(|process| process.ended_ns.is_some())
}

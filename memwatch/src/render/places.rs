//! Words for places of tensors: what a row of stages, layers, lines or phases is called on a screen.

use memwatch_core::features::leak::view::LeakView;
use memwatch_core::snapshot::{
    LayerView, MergedFrameView, PhaseView, PlaceNameView, SiteView, Snapshot, StageView, SumView, WhoseView,
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

/// What of a list is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The list.
    pub(crate) which: Places,
    /// So many rows at most.
    pub(crate) top: usize,
    /// Also the stacks that hold most, with native frames.
    pub(crate) native: bool,
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
            Some(held) => preexisting(&held.text()),
            None => row_without_name(kind),
        },
    }
}

/// `(pre-existing) parameters h.*.attn.weight`.
fn preexisting(name: &str) -> String {
    format!("{} {}", row_without_name("preexisting"), printable(name))
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
        ("preexisting", Some(name)) => preexisting(&name),
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
    Some(site(&SiteView { kind: kind?, file, line, function, held, sum: SumView::default() }))
}

/// `forward, step 12, Net layers.0.fc1 Linear, train.py:12 main`.
pub(crate) fn whose(view: &WhoseView) -> String {
    let stage = Some(stage_name(&view.stage)).filter(|stage| *stage != "outside").map(ToOwned::to_owned);
    let step = (view.step > 0).then(|| format!("step {}", view.step));
    let mut parts: Vec<String> = stage.into_iter().chain(step).collect();
    let names = [&view.layer, &view.site].map(|place| place.name.as_ref().map(|name| printable(name).into_owned()));
    parts.extend(names.into_iter().flatten());
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

//! Builds the frames of stacks with native frames.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::snapshot::{FrameView, HistoryFrame, MergedFrameView, NativeView};
use crate::stack::native::{MergedFrame, NativeFrame, NativeRole, NativeStack, merge};
use crate::stack::{PythonFrame, PythonStack, StackTable};
use crate::words::Name;

/// Maximum number of frames.
const FRAMES: usize = 256;

/// Returns the numbers of native stacks by how they end, and of missing ones by cause.
pub(super) fn ends(stacks: &StackTable) -> BTreeMap<Name, u64> {
    let missing = stacks.missing_copies();
    let missing = [("over_budget", missing.over_budget), ("lost", missing.lost)];
    let ends = stacks.ends().iter().map(|(end, count)| (end.name(), *count));
    ends.chain(missing).filter(|(_, count)| *count > 0).map(|(name, count)| (name.into(), count)).collect()
}

/// Returns a Python stack merged with its native stack, or the native stack alone.
pub(super) fn native_view(python: Option<&PythonStack>, native: &NativeStack) -> NativeView {
    let nothing = PythonStack::default();
    let merged = merge(python.unwrap_or(&nothing), native);
    let is_too_long = merged.frames.len() > FRAMES;
    NativeView {
        frames: merged.frames.iter().take(FRAMES).map(view).collect(),
        end: Name::Borrowed(native.end.name()),
        cut: merged.cut.or(is_too_long.then_some(FRAMES)).map(|cut| cut.min(FRAMES)),
        mismatched: merged.mismatched,
    }
}

pub(super) fn frame(frame: &PythonFrame) -> FrameView {
    let code = frame.code.as_ref();
    FrameView {
        file: code.map(|code| code.file.to_string()),
        line: code.and_then(|code| code.line),
        function: code.map(|code| code.function.to_string()),
        module: frame.module.as_ref().map(|module| module.class.to_string()),
    }
}

fn view(merged: &MergedFrame<'_>) -> MergedFrameView {
    match merged {
        MergedFrame::Python(python) => {
            let frame = frame(python);
            MergedFrameView {
                kind: Name::Borrowed("python"),
                file: frame.file,
                line: frame.line,
                name: frame.function.clone(),
                function: frame.function,
                address: None,
                module: frame.module,
            }
        }
        MergedFrame::Native(native) => MergedFrameView {
            kind: Name::Borrowed(if native.role == NativeRole::Code { "native" } else { "interpreter" }),
            file: Some(native.library.to_string()),
            line: None,
            function: native.function.as_ref().map(ToString::to_string),
            name: native.name.as_ref().map(ToString::to_string),
            address: Some(native.address),
            module: None,
        },
    }
}

/// Returns a native frame as PyTorch formats one with an unknown line (torch/csrc/profiler/unwind,
/// with `TORCH_SYMBOLIZE_MODE=dladdr`): `??` if it has no name, and its address in the file instead
/// of a line.
pub(super) fn history_frame(native: &NativeFrame) -> HistoryFrame {
    HistoryFrame {
        name: native.function.clone().unwrap_or_else(|| "??".into()),
        file: Arc::clone(&native.library),
        line: u32::try_from(native.address).unwrap_or(0),
    }
}

//! The help page.

use ratatui::text::{Line, Span};

use super::look::TerminalLook;
use crate::render::Tone;
use crate::render::tui::keys;

/// Definitions of the terms on the screen.
const WORDS: [(&str, &str); 9] = [
    ("used", "memory of the process on the GPU, as NVML reports it"),
    ("driver", "allocated by driver calls (cuMemAlloc and others)"),
    ("reserved", "PyTorch's part of that: torch.cuda.memory_reserved()"),
    ("allocated", "in tensors: torch.cuda.memory_allocated()"),
    ("cached", "reserved - allocated"),
    ("other libraries", "driver - reserved: workspaces of cuBLAS, NCCL buffers"),
    ("pre-existing", "allocated before memwatch attached"),
    ("unattributed", "the rest of used: CUDA context, code"),
    ("count", "allocations that are not freed"),
];

/// Returns the lines of the page. They fit a screen of 80x24.
pub(crate) fn lines(look: TerminalLook) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(look.span(Tone::Faint, "Keys"))];
    for [(left, does), (right, does_right)] in keys::HELP {
        lines.push(Line::from(vec![
            look.span(Tone::Heading, format!("  {left:<14}")),
            Span::raw(format!("{does:<24}")),
            look.span(Tone::Heading, format!("{right:<10}")),
            Span::raw(does_right),
        ]));
    }
    lines.push(Line::from(look.span(Tone::Faint, "Mouse")));
    lines.push(Line::raw("  wheel: move   click: select a row, a tab   click again: open"));
    lines.push(Line::from(look.span(Tone::Faint, "Words")));
    let word = |(word, meaning): (&'static str, &'static str)| {
        Line::from(vec![look.span(Tone::Heading, format!("  {word:<17}")), Span::raw(meaning)])
    };
    lines.extend(WORDS.map(word));
    lines
}

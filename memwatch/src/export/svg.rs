//! A flame graph as SVG, drawn by inferno. Frames can be clicked and searched in a browser.

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use super::{CallPathProfile, EXPORTER, ExportError, ProfileWeight, folded};

/// Writes one weight of all parts. The same profile always gives the same picture.
///
/// # Errors
/// If the graph would be empty.
pub(crate) fn write(profile: &CallPathProfile, weight: ProfileWeight) -> Result<Vec<u8>, ExportError> {
    let stacks = folded::write(profile, weight);
    if stacks.is_empty() {
        return Err(ExportError::Empty(weight.name()));
    }
    let title = match &profile.parts[..] {
        [part] => part.name(),
        parts => format!("{} GPUs of processes", parts.len()),
    };
    let mut options = Options::default();
    options.title = title;
    options.subtitle = Some(format!("GPU memory: {}", weight.amount(profile.total(weight))));
    options.count_name = if weight == ProfileWeight::Count { "allocations".into() } else { "bytes".into() };
    options.name_type = "Frame:".into();
    options.notes = EXPORTER.into();
    options.colors = Palette::Basic(BasicPalette::Mem);
    options.deterministic = true;
    options.text_truncate_direction = TextTruncateDirection::Right;
    let mut picture = Vec::new();
    from_lines(&mut options, stacks.lines(), &mut picture)?;
    Ok(with_dark_mode(picture))
}

/// Colours for dark mode, which the browser selects. Any style sheet overrides presentation
/// attributes.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) { svg { background: #16181d; } \
rect[fill=\"url(#background)\"] { fill: #16181d; } #title, #subtitle, #details, #search, #unzoom, #matched { fill: #e6e6e6; } \
#frames text { fill: #10131a; } }</style>";

fn with_dark_mode(picture: Vec<u8>) -> Vec<u8> {
    let Ok(text) = String::from_utf8(picture) else { return Vec::new() };
    // The style comes last, so that it overrides the other style sheets.
    match text.rfind("</svg>") {
        Some(end) => format!("{}{DARK}{}", &text[..end], &text[end..]).into_bytes(),
        None => text.into_bytes(),
    }
}

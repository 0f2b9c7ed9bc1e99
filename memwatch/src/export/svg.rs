//! A flame graph as a picture, drawn by inferno: frames can be clicked and searched in a browser.

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use super::{EXPORTER, ExportError, Profile, Weight, folded};

/// One weight of all parts; the same profile gives the same picture.
///
/// # Errors
/// When there is nothing to draw.
pub(crate) fn write(profile: &Profile, weight: Weight) -> Result<Vec<u8>, ExportError> {
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
    options.count_name = if weight == Weight::Count { "allocations".into() } else { "bytes".into() };
    options.name_type = "Frame:".into();
    options.notes = EXPORTER.into();
    options.colors = Palette::Basic(BasicPalette::Mem);
    options.deterministic = true;
    options.text_truncate_direction = TextTruncateDirection::Right;
    let mut picture = Vec::new();
    from_lines(&mut options, stacks.lines(), &mut picture)?;
    Ok(with_dark_mode(picture))
}

/// Colours for readers whose system is dark: a browser chooses when it shows the picture. Presentation attributes yield to any style sheet.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) { svg { background: #16181d; } \
rect[fill=\"url(#background)\"] { fill: #16181d; } #title, #subtitle, #details, #search, #unzoom, #matched { fill: #e6e6e6; } \
#frames text { fill: #10131a; } }</style>";

fn with_dark_mode(picture: Vec<u8>) -> Vec<u8> {
    let Ok(text) = String::from_utf8(picture) else { return Vec::new() };
    // Behind all other style sheets, so that it is the last word.
    match text.rfind("</svg>") {
        Some(end) => format!("{}{DARK}{}", &text[..end], &text[end..]).into_bytes(),
        None => text.into_bytes(),
    }
}

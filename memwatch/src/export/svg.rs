//! A flame graph as SVG, drawn by inferno. Frames can be clicked and searched in a browser.

use std::collections::BTreeSet;

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use super::{CallPathProfile, EXPORTER, ExportError, ProfilePart, ProfileWeight, folded};
use crate::render::format::plural;

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
        parts => title_of_several(parts),
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

/// Formats `2 processes`, or `2 processes on 3 GPUs`.
fn title_of_several(parts: &[ProfilePart]) -> String {
    let processes: BTreeSet<u32> = parts.iter().map(|part| part.tgid).collect();
    let gpus: BTreeSet<&str> = parts.iter().map(|part| &*part.gpu).collect();
    let counted = |count: usize, one, more| plural(u64::try_from(count).unwrap_or(u64::MAX), one, more);
    let processes = counted(processes.len(), "process", "processes");
    if gpus.len() == 1 { processes } else { format!("{processes} on {}", counted(gpus.len(), "GPU", "GPUs")) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flame_graph_title_counts_processes_and_gpus() {
        let part = |tgid, gpu: &str| ProfilePart { tgid, gpu: gpu.to_owned(), ..ProfilePart::default() };
        assert_eq!(title_of_several(&[part(1, "0"), part(2, "0")]), "2 processes");
        assert_eq!(title_of_several(&[part(1, "0"), part(1, "1")]), "1 process on 2 GPUs");
    }
}

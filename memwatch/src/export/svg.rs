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
    Ok(picture)
}

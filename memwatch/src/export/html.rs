//! A flame graph as a self-contained HTML page: script and style are inline, and nothing is loaded
//! from a network.

use std::collections::HashMap;
use std::io;

use serde::Serialize;

use super::{CallPathProfile, EXPORTER, ProfileFrame, ProfilePart, ProfileWeight};
use crate::printable::write_json;

/// HTML template. The data replaces [`HOLE`].
const PAGE: &str = include_str!("flame.html");
/// Placeholder, which occurs once in the template.
const HOLE: &str = "\"DATA\"";

#[derive(Serialize)]
struct FlamePageData<'a> {
    exporter: &'static str,
    weights: [WeightName; ProfileWeight::ALL.len()],
    /// Index of the initial weight.
    weight: usize,
    parts: Vec<PartData>,
    frames: Vec<FrameData<'a>>,
}

#[derive(Serialize)]
struct WeightName {
    name: &'static str,
    is_bytes: bool,
}

#[derive(Serialize)]
struct PartData {
    name: String,
    unplaced_bytes: i64,
    samples: Vec<SampleData>,
}

/// Frames, outermost first, by index, and the weights.
#[derive(Serialize)]
struct SampleData(Vec<usize>, [u64; ProfileWeight::ALL.len()]);

/// Name and location.
#[derive(Serialize)]
struct FrameData<'a>(&'a str, String);

/// Writes the page with all weights of all parts. `weight` is shown initially.
///
/// # Errors
/// If the serializer fails.
pub(crate) fn write(profile: &CallPathProfile, weight: ProfileWeight) -> io::Result<Vec<u8>> {
    let mut list: Vec<&ProfileFrame> = Vec::new();
    let mut numbers: HashMap<&ProfileFrame, usize> = HashMap::new();
    let mut number = |frame| {
        *numbers.entry(frame).or_insert_with(|| {
            list.push(frame);
            list.len() - 1
        })
    };
    let mut parts = Vec::new();
    for part in &profile.parts {
        let ProfilePart { samples, unplaced_bytes, .. } = part;
        let samples = samples.iter().map(|sample| {
            SampleData(sample.frames.iter().map(&mut number).collect(), ProfileWeight::all_of(&sample.sum))
        });
        parts.push(PartData { name: part.name(), unplaced_bytes: *unplaced_bytes, samples: samples.collect() });
    }
    let data = FlamePageData {
        exporter: EXPORTER,
        weights: ProfileWeight::ALL
            .map(|weight| WeightName { name: weight.name(), is_bytes: weight != ProfileWeight::Count }),
        weight: ProfileWeight::ALL.iter().position(|one| *one == weight).unwrap_or(0),
        parts,
        frames: list.into_iter().map(|frame| FrameData(&frame.name, frame.place())).collect(),
    };
    let mut json = Vec::new();
    write_json(&mut json, &data)?;
    let json = String::from_utf8(json).map_err(io::Error::other)?;
    // JSON contains `<` only within strings. The HTML parser ends a script at the first `</script`.
    Ok(PAGE.replacen(HOLE, &json.replace('<', "\\u003c"), 1).into_bytes())
}

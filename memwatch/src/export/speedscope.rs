//! JSON of speedscope (<https://www.speedscope.app/file-format-schema.json>): one profile per part
//! and weight.

use std::collections::HashMap;
use std::io;

use serde::Serialize;

use super::{CallPathProfile, EXPORTER, ProfileFrame, ProfilePart, ProfileWeight};
use crate::printable::write_json;

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: String,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    shared: SharedFrames<'a>,
    profiles: Vec<SpeedscopeProfile>,
}

#[derive(Serialize)]
struct SharedFrames<'a> {
    frames: Vec<SharedFrame<'a>>,
}

#[derive(Serialize)]
struct SharedFrame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
struct SpeedscopeProfile {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: u64,
    #[serde(rename = "endValue")]
    end: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Writes all weights of all parts. The profile of the first part with `weight` is shown initially.
///
/// # Errors
/// If the serializer fails.
pub(crate) fn write(profile: &CallPathProfile, weight: ProfileWeight) -> io::Result<Vec<u8>> {
    let mut frames = FrameTable::default();
    let mut profiles = Vec::new();
    let mut active = 0;
    for (number, part) in profile.parts.iter().enumerate() {
        for one in ProfileWeight::ALL {
            if number == 0 && one == weight {
                active = profiles.len();
            }
            profiles.push(sampled(part, one, &mut frames));
        }
    }
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: EXPORTER,
        name: profile.parts.first().map_or_else(String::new, ProfilePart::name),
        active,
        shared: SharedFrames { frames: frames.list },
        profiles,
    };
    let mut bytes = Vec::new();
    write_json(&mut bytes, &file)?;
    Ok(bytes)
}

fn sampled<'a>(part: &'a ProfilePart, weight: ProfileWeight, frames: &mut FrameTable<'a>) -> SpeedscopeProfile {
    let used = part.samples.iter().filter(|sample| weight.of(&sample.sum) > 0);
    let (samples, weights): (Vec<Vec<usize>>, Vec<u64>) = used
        .map(|sample| (sample.frames.iter().map(|frame| frames.index(frame)).collect(), weight.of(&sample.sum)))
        .unzip();
    SpeedscopeProfile {
        kind: "sampled",
        name: format!("{}, {}", weight.name(), part.name()),
        unit: if weight == ProfileWeight::Count { "none" } else { "bytes" },
        start: 0,
        end: weights.iter().fold(0, |sum, weight| sum.saturating_add(*weight)),
        samples,
        weights,
    }
}

/// Deduplicated frames.
#[derive(Default)]
struct FrameTable<'a> {
    list: Vec<SharedFrame<'a>>,
    index: HashMap<&'a ProfileFrame, usize>,
}

impl<'a> FrameTable<'a> {
    fn index(&mut self, frame: &'a ProfileFrame) -> usize {
        *self.index.entry(frame).or_insert_with(|| {
            let ProfileFrame { name, file, line } = frame;
            self.list.push(SharedFrame { name, file: file.as_deref(), line: *line });
            self.list.len() - 1
        })
    }
}

//! `memwatch diff`: what a later run holds more or less than an earlier one, from their recordings.

use std::io;

use memwatch_core::difference::{Difference, Pair, Side, difference};

use crate::args::{Common, Diff, Growth};
use crate::exit::{Exit, Failure};
use crate::output::{style, unless_closed};
use crate::past::Recording;
use crate::recorded;
use crate::sinks::{json, table};
use crate::tensor_report::Scene;

/// Reads both, and tells.
///
/// # Errors
/// When a recording cannot be read, or the report cannot be written.
pub(crate) fn run(args: &Diff, common: &Common) -> Result<Exit, Failure> {
    let [before, after] = [&args.before, &args.after];
    let earlier = recorded::play(&Recording::whole(before), |_| {})?.snapshot();
    let replay = recorded::play(&Recording::whole(after), |_| {})?;
    let (later, scene) = (replay.snapshot(), Scene::of(&replay));
    let difference = difference(&earlier, &later, args.by.side(), args.by_function);
    let files = [before.as_path(), after.as_path()];
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        json::diff::write(&mut out, (&difference, files, [&earlier, &later]), scene.origin())
    } else {
        let runs = (files, [&earlier, &later]);
        table::diff::write(&mut out, (&difference, args.top), runs, &scene.clock, &style(common, false))
    })?;
    let has_grown = args.fail_on.is_some_and(|limit| has_grown(&difference, limit));
    Ok(if has_grown { Exit::Found } else { Exit::Ok })
}

/// Where there was nothing before, anything is too much.
fn has_grown(difference: &Difference, limit: Growth) -> bool {
    let is_too_much = |pair: &Pair| match limit {
        Growth::Bytes(bytes) => u64::try_from(pair.change(Side::Peak)).is_ok_and(|change| change > bytes),
        Growth::Part(part) => pair.growth(Side::Peak).map_or(pair.change(Side::Peak) > 0, |growth| growth > part),
    };
    is_too_much(&difference.driver) || is_too_much(&difference.tensors)
}

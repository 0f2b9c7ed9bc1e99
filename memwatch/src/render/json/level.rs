//! How much of a process's PyTorch is traced, in JSON.

use memwatch_core::input::LevelChoice;
use serde::Serialize;

use super::overhead::seconds;

/// The level, and the prices that it was chosen by: predicted, in seconds of one processor per second.
#[derive(Serialize)]
pub(super) struct LevelJson {
    asked: &'static str,
    chosen: &'static str,
    since: String,
    tensor_events_per_second: u64,
    predicted_seconds_per_second_asked: f64,
    predicted_seconds_per_second: f64,
    /// `null` where there is no limit.
    budget_seconds_per_second: Option<f64>,
}

/// The `tensor_level` field of a process; `since` is when it was chosen.
pub(super) fn json(choice: &LevelChoice, since: String) -> LevelJson {
    LevelJson {
        asked: choice.asked.name(),
        chosen: choice.chosen.name(),
        since,
        tensor_events_per_second: choice.events_per_second,
        predicted_seconds_per_second_asked: seconds(choice.asked_ns_per_second),
        predicted_seconds_per_second: seconds(choice.chosen_ns_per_second),
        budget_seconds_per_second: choice.budget_ns_per_second.map(seconds),
    }
}

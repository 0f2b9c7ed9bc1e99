//! Output for people and programs. Each output format renders a snapshot and computes only its
//! presentation.

pub(crate) mod json;
pub(crate) mod output;
pub(crate) mod places;
pub(crate) mod summary;
pub(crate) mod text;
pub(crate) mod tui;
pub(crate) mod wall_clock;

pub(crate) mod causes;
pub(crate) mod contradictions;
pub(crate) mod explained;
pub(crate) mod failures;
pub(crate) mod format;
pub(crate) mod holdings;
pub(crate) mod kv_cache;
pub(crate) mod order;
pub(crate) mod owners;
pub(crate) mod sentences;
pub(crate) mod units;

#[cfg(test)]
pub(crate) mod fixture;

/// Severity of a piece of text. Each output format has its own style for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Ordinary text.
    Plain,
    /// Heading.
    Heading,
    /// Secondary text.
    Faint,
    /// Good state.
    Good,
    /// Warning: a number may be incomplete.
    Warning,
    /// Error.
    Bad,
}

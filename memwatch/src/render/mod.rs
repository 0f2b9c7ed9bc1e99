//! What people and programs get to see: each sink renders a snapshot and computes nothing but its form.

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
pub(crate) mod order;
pub(crate) mod owners;
pub(crate) mod sentences;
pub(crate) mod units;

#[cfg(test)]
pub(crate) mod fixture;

/// How much a piece of text matters; each sink has its own look for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Ordinary text.
    Plain,
    /// A title.
    Heading,
    /// What is read last.
    Faint,
    /// All is well.
    Good,
    /// A number is not the whole truth.
    Warning,
    /// Something failed.
    Bad,
}

//! What people and programs get to see: each sink renders a snapshot and computes nothing but its form.

pub(crate) mod export;
pub(crate) mod filter;
pub(crate) mod forecast;
pub(crate) mod fragments;
pub(crate) mod json;
pub(crate) mod layout;
pub(crate) mod leaks;
pub(crate) mod mem_trace;
pub(crate) mod oom;
pub(crate) mod parquet;
pub(crate) mod perfetto;
pub(crate) mod pickle;
pub(crate) mod places;
pub(crate) mod plot;
pub(crate) mod recording;
pub(crate) mod selection;
pub(crate) mod simulations;
pub(crate) mod summary;
pub(crate) mod table;
pub(crate) mod tui;
pub(crate) mod wall_clock;

pub(crate) mod format;
mod order;
mod owners;
pub(crate) mod sentences;
mod status;

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

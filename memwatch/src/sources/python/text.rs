//! Python's strings on their way to a screen.

use std::sync::Arc;

use memwatch_inspect::memory::Memory;
use memwatch_inspect::python::layout::TextLayout;
pub(super) use memwatch_inspect::python::text::text;

use crate::printable::printable;

/// The string at an address, such that nothing in it steers a terminal; `None` where none is.
pub(super) fn shown(memory: &impl Memory, layout: TextLayout, address: u64) -> Option<Arc<str>> {
    text(memory, layout, address).map(|text| printable(&text).into())
}

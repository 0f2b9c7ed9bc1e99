//! Reads Python strings for display.

use std::sync::Arc;

use memwatch_inspect::memory::MemoryAccess;
use memwatch_inspect::python::layout::TextLayout;
pub(super) use memwatch_inspect::python::text::text;

use crate::printable::printable;

/// Reads the string at an address and escapes terminal control characters; `None` if there is none.
pub(super) fn shown(memory: &impl MemoryAccess, layout: TextLayout, address: u64) -> Option<Arc<str>> {
    text(memory, layout, address).map(|text| printable(&text).into())
}

//! PyTorch in a process: its libraries, their probed functions, and readers of its allocators'
//! state.

mod allocator_state;
mod calls;
mod holdings;
mod known_builds;
mod numbers;
mod price;
mod remembered_names;

pub(crate) use allocator_state::{StateReadError, StateReader};
pub(crate) use calls::allocator_points;
pub(crate) use holdings::{HoldingsReader, NAMES_TIME};
pub(crate) use numbers::{RecordPosition, RestingNumbers};
pub(crate) use price::{AllocatorCounter, events, rates};

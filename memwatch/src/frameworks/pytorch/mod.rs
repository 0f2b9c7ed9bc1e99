//! PyTorch in a process: its libraries, their probed functions, and readers of its allocators'
//! state.

mod allocator_state;
mod calls;
mod counter;
mod holdings;
mod known_builds;
mod look;
mod numbers;
mod points;
mod price;
mod remembered_names;
mod request;
mod symbols;
mod watch;

pub(crate) use allocator_state::{StateReadError, StateReader};
pub(crate) use holdings::{HoldingsReader, NAMES_TIME};
pub(crate) use memwatch_core::input::{StackSelection, TensorLevel};
pub(crate) use numbers::{RecordPosition, RestingNumbers};
pub(crate) use points::points;
pub(crate) use price::{events, rates};
pub(crate) use request::TensorRequest;
pub(crate) use symbols::{SymbolName, TensorPoint, symbols};
pub(crate) use watch::{Arrival, TorchWatch};

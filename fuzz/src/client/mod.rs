//! What agent and client say to each other, compiled from where it lies.

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/client/protocol.rs"]
pub(crate) mod protocol;

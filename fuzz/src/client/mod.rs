//! Protocol between agent and client, compiled from its place in memwatch.

#[allow(dead_code, unreachable_pub, reason = "the program uses what the targets do not")]
#[path = "../../../memwatch/src/client/protocol/mod.rs"]
pub(crate) mod protocol;

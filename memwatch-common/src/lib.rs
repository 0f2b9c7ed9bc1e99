//! Types shared by memwatch's kernel half and user half: the probe table, the capture plan, the
//! records and the losses.
//!
//! No dependency, no feature, no allocation: the same code runs inside the kernel and in the tests.
#![no_std]
#![forbid(unsafe_code)]

pub mod allocation_map;
pub mod arming;
pub mod capture;
pub mod loss;
pub mod meaning;
pub mod native;
pub mod plan;
pub mod probes;
pub mod python;
pub mod record;
pub mod rm;
pub mod shares;
pub mod tensor;

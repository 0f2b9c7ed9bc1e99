//! Sources of external data. Each source converts its data into [`memwatch_core::input::Input`].

pub(crate) mod address_space;
pub(crate) mod binary;
mod build_id;
pub(crate) mod cgroup;
pub(crate) mod classes;
pub(crate) mod clock;
pub(crate) mod containers;
pub(crate) mod driver_version;
pub(crate) mod free_memory;
pub(crate) mod grpc;
pub(crate) mod kernel;
pub(crate) mod library;
pub(crate) mod library_look;
pub(crate) mod library_sweep;
pub(crate) mod login_users;
pub(crate) mod mappings;
pub(crate) mod namespace;
pub(crate) mod native;
pub(crate) mod own;
pub(crate) mod owner_queues;
pub(crate) mod pieces;
pub(crate) mod presence;
pub(crate) mod process_handle;
pub(crate) mod procfs;
pub(crate) mod prometheus;
pub(crate) mod python;
pub(crate) mod servers;

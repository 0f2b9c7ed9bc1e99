//! Owners of processes, and users who mean harm.

mod containers;
mod hostile;
mod hostile_hang;
mod owners;

//! The agent: clients, metrics, page, history, alerts, restarts.

mod alertmanager;
mod clients;
mod deploy;
mod events;
mod fleet;
mod flight_recorder;
mod history;
mod otlp;
mod page;
mod prometheus;
mod service;
mod soak;
mod survive;
mod tls;
mod watches;

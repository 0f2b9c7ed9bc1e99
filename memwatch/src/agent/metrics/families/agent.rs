//! Families about the agent itself.

use super::{MetricFamily, NONE, counter, gauge};

/// Number of dropped events.
pub(crate) const AGENT_DROPPED: MetricFamily = counter(
    "memwatch_agent_events_dropped",
    "",
    &["reason"],
    "Events dropped before they were counted: allocations and frees may be missing in the counters.",
);
/// Number of functions with probes.
pub(crate) const AGENT_PROBES: MetricFamily = gauge(
    "memwatch_agent_probes_attached",
    "",
    &["library"],
    "Functions with probes, by driver library; beyond 32 libraries the rest is other.",
);
/// Number of failed probe attachments.
pub(crate) const AGENT_PROBE_FAILURES: MetricFamily = counter(
    "memwatch_agent_probe_failures",
    "",
    &["reason"],
    "Driver libraries that got no probes (library_refused), and functions whose probe could not be attached (function_refused). A function that an older driver does not have is not counted.",
);
/// Number of processes that use a GPU.
pub(crate) const AGENT_PROCESSES: MetricFamily =
    gauge("memwatch_agent_tracked_processes", "", NONE, "Living processes that use a GPU, or have called its driver.");
/// Number of pairs of workload and GPU without series of their own.
pub(crate) const AGENT_SUPPRESSED: MetricFamily = gauge(
    "memwatch_agent_series_suppressed",
    "",
    NONE,
    "Pairs of workload and GPU beyond the 200 with series of their own: they are summed under workload_kind other.",
);
/// Whether the history is being written.
pub(crate) const AGENT_HISTORY_UP: MetricFamily = gauge(
    "memwatch_agent_history_up",
    "",
    NONE,
    "1 while the agent writes its history, 0 while it cannot, as on a full disk; absent without --history.",
);
/// Whether the session survives a kill of the agent.
pub(crate) const AGENT_SURVIVES: MetricFamily = gauge(
    "memwatch_agent_survives",
    "",
    NONE,
    "1 if the next agent resumes the session after this agent is killed; 0 if the session ends with this agent: without a bpf file system, on Linux before 6.6, or if the journal cannot be written.",
);
/// Number of failed attempts to write the history.
pub(crate) const AGENT_HISTORY_FAILURES: MetricFamily = counter(
    "memwatch_agent_history_failures",
    "",
    NONE,
    "Failed attempts to write or begin the history; the next attempt follows after 10 s. Absent without --history.",
);
/// Beginning of the history.
pub(crate) const AGENT_HISTORY_OLDEST: MetricFamily =
    gauge("memwatch_agent_history_oldest_timestamp_seconds", "seconds", NONE, "Time at which the history begins.");
/// Number of events beyond their user's share.
pub(crate) const AGENT_EVENTS_LEFT_OUT: MetricFamily =
    counter("memwatch_agent_events_left_out", "", NONE, "Failures that exceed their user's share of events.");
/// Readings of the flight recorder.
pub(crate) const AGENT_READINGS: MetricFamily = counter(
    "memwatch_agent_flight_recorder_readings",
    "",
    &["result"],
    "Readings of a process's tensors by name: read, or failed because the process could not be read. Absent with --flight-recorder off.",
);
/// Failures without a reading.
pub(crate) const AGENT_READINGS_LEFT_OUT: MetricFamily = counter(
    "memwatch_agent_flight_recorder_left_out",
    "",
    NONE,
    "Failures after which nothing was read, because their process or user had used up its share.",
);
/// Cost of the flight recorder.
pub(crate) const AGENT_READINGS_CPU: MetricFamily = counter(
    "memwatch_agent_flight_recorder_processor_seconds",
    "seconds",
    NONE,
    "Processor time of these readings, which the agent's own does not include.",
);
/// Whether OTLP pushes succeed.
pub(crate) const AGENT_PUSH_UP: MetricFamily = gauge(
    "memwatch_agent_otlp_up",
    "",
    NONE,
    "1 if the last OTLP push was accepted, 0 if it failed; absent without --otlp and before the first push.",
);
/// Number of failed OTLP pushes.
pub(crate) const AGENT_PUSH_FAILURES: MetricFamily = counter(
    "memwatch_agent_otlp_failures",
    "",
    NONE,
    "Pushes by OTLP that failed, or of which the receiver rejected a part; the next one follows after --otlp-interval. Absent without --otlp.",
);
/// Number of contradictory reports.
pub(crate) const AGENT_CONTRADICTIONS: MetricFamily = counter(
    "memwatch_agent_contradictions",
    "",
    &["check"],
    "Reports of the agent that contradicted themselves, by what was checked: each is a fault of memwatch, counted once for as long as it lasts.",
);
/// Time of the snapshot.
pub(crate) const AGENT_SNAPSHOT: MetricFamily = gauge(
    "memwatch_agent_snapshot_timestamp_seconds",
    "seconds",
    NONE,
    "Time of the numbers of workloads and GPUs, in seconds since 1970.",
);
/// Time to collect the snapshot.
pub(crate) const AGENT_COLLECT: MetricFamily = gauge(
    "memwatch_agent_collect_duration_seconds",
    "seconds",
    NONE,
    "Time to collect the numbers of workloads and GPUs.",
);
/// Processor time of the agent.
pub(crate) const OWN_CPU: MetricFamily =
    counter("process_cpu_seconds", "seconds", NONE, "Processor time that the agent has used, in user and kernel mode.");
/// Resident memory of the agent.
pub(crate) const OWN_RESIDENT: MetricFamily =
    gauge("process_resident_memory_bytes", "bytes", NONE, "Resident memory of the agent.");
/// Address space of the agent.
pub(crate) const OWN_VIRTUAL: MetricFamily =
    gauge("process_virtual_memory_bytes", "bytes", NONE, "Address space of the agent.");
/// Start time of the agent.
pub(crate) const OWN_START: MetricFamily =
    gauge("process_start_time_seconds", "seconds", NONE, "When the agent was started, in seconds since 1970.");
/// Number of open files of the agent.
pub(crate) const OWN_FILES: MetricFamily = gauge("process_open_fds", "", NONE, "Open files of the agent.");
/// Maximum number of open files of the agent.
pub(crate) const OWN_FILES_LIMIT: MetricFamily =
    gauge("process_max_fds", "", NONE, "Files that the agent may have open.");

//! Definitions of every metric of the agent: name, type, unit, labels and help text. The module
//! contains only data, in the order of the exposition; `cargo xtask docs` reads it as well.

#[path = "families/agent.rs"]
mod agent;

pub(crate) use self::agent::*;

/// A metric family.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MetricFamily {
    /// Name without the suffix `_total` of a counter or `_info` of an info metric.
    pub(crate) name: &'static str,
    /// Metric type.
    pub(crate) kind: MetricKind,
    /// `bytes` or `seconds`, with which the name ends; empty if the metric counts things.
    pub(crate) unit: &'static str,
    /// Label names of the series, in order.
    pub(crate) labels: &'static [&'static str],
    /// Help text, one sentence.
    pub(crate) help: &'static str,
}

/// Metric type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// A value that can go up and down.
    Gauge,
    /// A value that only grows, except for restarts from 0.
    Counter,
    /// Info metric: the facts are in the labels, and the value is always 1.
    Facts,
}

impl MetricKind {
    /// Returns the suffix of a series name.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Gauge => "",
            Self::Counter => "_total",
            Self::Facts => "_info",
        }
    }
}

const NONE: &[&str] = &[];
const GPU: &[&str] = &["gpu", "uuid"];
const WORKLOAD: &[&str] = &["gpu", "uuid", "workload_kind", "namespace", "pod", "container", "slurm_job", "unit"];
const WORKLOAD_KIND: &[&str] =
    &["gpu", "uuid", "workload_kind", "namespace", "pod", "container", "slurm_job", "unit", "kind"];
const WORKLOAD_PART_LABELS: &[&str] =
    &["gpu", "uuid", "workload_kind", "namespace", "pod", "container", "slurm_job", "unit", "part"];
const WORKLOAD_ERROR: &[&str] =
    &["gpu", "uuid", "workload_kind", "namespace", "pod", "container", "slurm_job", "unit", "error"];
const LEFT_BEHIND: &[&str] = &["gpu", "uuid", "pid", "comm", "kept_by_pid"];
const PROCESS: &[&str] = &["gpu", "uuid", "pid", "comm"];

const fn gauge(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricFamily {
    MetricFamily { name, kind: MetricKind::Gauge, unit, labels, help }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricFamily {
    MetricFamily { name, kind: MetricKind::Counter, unit, labels, help }
}

/// Build of the agent.
pub(crate) const BUILD: MetricFamily = MetricFamily {
    name: "memwatch_build",
    kind: MetricKind::Facts,
    unit: "",
    labels: &["version", "revision"],
    help: "Build of the running agent.",
};
/// Constant properties of a GPU.
pub(crate) const GPU_FACTS: MetricFamily = MetricFamily {
    name: "memwatch_gpu",
    kind: MetricKind::Facts,
    unit: "",
    labels: &["gpu", "uuid", "UUID", "pci_bus_id", "model", "mig_profile", "driver_version"],
    help: "A GPU or MIG instance. UUID repeats uuid, so that series of DCGM can be joined.",
};
/// Whether NVML lists the GPU.
pub(crate) const GPU_UP: MetricFamily = gauge(
    "memwatch_gpu_up",
    "",
    GPU,
    "1 if NVML lists the GPU; 0 if NVML no longer lists it or does not answer. The GPU's other series are absent then.",
);
/// Total memory of a GPU.
pub(crate) const GPU_LIMIT: MetricFamily =
    gauge("memwatch_gpu_memory_limit_bytes", "bytes", GPU, "Memory of the GPU, as NVML reports it.");
/// Used memory of a GPU.
pub(crate) const GPU_USED: MetricFamily = gauge(
    "memwatch_gpu_memory_used_bytes",
    "bytes",
    GPU,
    "Memory in use on the GPU by all processes and the driver, as NVML reports it.",
);
/// Used memory without a traced allocation.
pub(crate) const GPU_UNATTRIBUTED: MetricFamily = gauge(
    "memwatch_gpu_memory_unattributed_bytes",
    "bytes",
    GPU,
    "Used memory without a traced allocation: contexts, code, caches of the driver, memory allocated before the agent attached \
     (memwatch_workload_memory_preexisting_bytes has that part). Never rounded to 0: a little below 0 \
     where NVML and the calls were read at slightly different moments.",
);
/// Memory charged to processes that have ended.
pub(crate) const GPU_LEFT_BEHIND: MetricFamily = gauge(
    "memwatch_gpu_memory_left_behind_bytes",
    "bytes",
    LEFT_BEHIND,
    "Memory that NVML charges to a process that has ended. The process kept_by_pid (one of them if several are \
     named) has the ended process's driver files open; the memory is freed when that process exits. The 16 largest; part of memwatch_gpu_memory_used_bytes.",
);
/// GPU utilisation.
pub(crate) const GPU_UTILIZATION: MetricFamily = gauge(
    "memwatch_gpu_utilization_ratio",
    "",
    GPU,
    "Part of NVML's last sample period in which a kernel ran on the GPU, 0 to 1; absent where NVML does not report it.",
);
/// Predicted seconds until the GPU's memory is full.
pub(crate) const GPU_SECONDS_TO_FULL: MetricFamily = gauge(
    "memwatch_gpu_seconds_to_full",
    "",
    GPU,
    "Seconds until the GPU's memory is full if its use keeps growing as it does, by a straight line; absent where it does not grow, and in the \
     first twelve seconds of the processes that are on it now.",
);
/// Used memory of a workload, from NVML.
pub(crate) const WORKLOAD_DRIVER: MetricFamily = gauge(
    "memwatch_workload_memory_used_bytes",
    "bytes",
    WORKLOAD,
    "Memory that NVML charges to the workload's processes; absent where NVML reports none.",
);
/// Live driver allocations of a workload.
pub(crate) const WORKLOAD_LIVE: MetricFamily = gauge(
    "memwatch_workload_memory_driver_allocated_bytes",
    "bytes",
    WORKLOAD_KIND,
    "Bytes that traced driver calls have allocated and not freed, by kind. Managed and pinned memory is not part of the \
     GPU's memory.",
);
/// Used memory of a workload by purpose.
pub(crate) const WORKLOAD_PARTS: MetricFamily = gauge(
    "memwatch_workload_memory_used_part_bytes",
    "bytes",
    WORKLOAD_PART_LABELS,
    "What memwatch_workload_memory_used_bytes is for: context, local_memory, stream, code, pool, requested (by the program and its libraries), \
     inherited, driver, preexisting. Only of processes whose requests to the kernel driver add up to what NVML charges.",
);
/// Peak of a workload's live bytes.
pub(crate) const WORKLOAD_PEAK: MetricFamily = gauge(
    "memwatch_workload_memory_peak_bytes",
    "bytes",
    WORKLOAD,
    "Maximum of the allocated bytes on the GPU since the workload or the agent started, sampled every second.",
);
/// Memory that a workload held before the attach.
pub(crate) const WORKLOAD_PREEXISTING: MetricFamily = gauge(
    "memwatch_workload_memory_preexisting_bytes",
    "bytes",
    WORKLOAD,
    "Memory that the workload's processes held when the agent attached; absent while unknown.",
);
/// Growth rate of a workload.
pub(crate) const WORKLOAD_GROWTH: MetricFamily = gauge(
    "memwatch_workload_growth_bytes_per_second",
    "",
    WORKLOAD,
    "Growth of the workload's allocated bytes on the GPU, in bytes per second; absent where they do not grow, before there is enough data, \
     and for workloads beyond the first 512 at a time.",
);
/// Number of living processes of a workload.
pub(crate) const WORKLOAD_PROCESSES: MetricFamily = gauge(
    "memwatch_workload_processes",
    "",
    WORKLOAD,
    "Living processes of the workload, the same on each of its GPUs; 0 for up to five minutes after the last has ended.",
);
/// Number of allocations.
pub(crate) const WORKLOAD_ALLOCATIONS: MetricFamily =
    counter("memwatch_workload_allocations", "", WORKLOAD_KIND, "Successful allocations.");
/// Number of frees.
pub(crate) const WORKLOAD_FREES: MetricFamily = counter(
    "memwatch_workload_frees",
    "",
    WORKLOAD_KIND,
    "Frees of allocations, by a call or by the end of a context or process.",
);
/// Bytes of allocations.
pub(crate) const WORKLOAD_ALLOCATED: MetricFamily =
    counter("memwatch_workload_allocated_bytes", "bytes", WORKLOAD_KIND, "Bytes requested by successful allocations.");
/// Bytes of frees.
pub(crate) const WORKLOAD_FREED: MetricFamily =
    counter("memwatch_workload_freed_bytes", "bytes", WORKLOAD_KIND, "Requested bytes of freed allocations.");
/// Number of failed allocation calls.
pub(crate) const WORKLOAD_FAILURES: MetricFamily = counter(
    "memwatch_workload_allocation_failures",
    "",
    WORKLOAD_ERROR,
    "Failed calls, by the driver's error. An allocator retries after some of them: memwatch_workload_oom_events has the failures.",
);
/// Number of out-of-memory failures.
pub(crate) const WORKLOAD_OOM: MetricFamily = counter(
    "memwatch_workload_oom_events",
    "",
    WORKLOAD,
    "Allocations that failed for want of memory: out-of-memory errors of PyTorch, and refused calls of the driver without a retry that was granted within a \
     second. Also of processes that have ended.",
);
/// Number of allocations that succeeded on a retry.
pub(crate) const WORKLOAD_RETRIES: MetricFamily = counter(
    "memwatch_workload_allocation_retries",
    "",
    WORKLOAD,
    "Allocations that were refused and granted when they were retried, as PyTorch's allocator does with an emptied cache: no failure. Also of processes that \
     have ended.",
);
/// Time of the last out-of-memory failure.
pub(crate) const WORKLOAD_LAST_OOM: MetricFamily = gauge(
    "memwatch_workload_last_oom_timestamp_seconds",
    "seconds",
    WORKLOAD,
    "Time of the last out-of-memory failure, in seconds since 1970; absent before the first.",
);
/// Bytes of tensors in PyTorch's caching allocators.
pub(crate) const FRAMEWORK_ALLOCATED: MetricFamily = gauge(
    "memwatch_workload_framework_allocated_bytes",
    "bytes",
    WORKLOAD,
    "Bytes of tensors by PyTorch's caching allocators in the workload's living processes, read from their memory every 5 s; within what the driver \
     has allocated, and absent where they have none or cannot be read.",
);
/// Bytes that PyTorch's caching allocators have reserved.
pub(crate) const FRAMEWORK_RESERVED: MetricFamily = gauge(
    "memwatch_workload_framework_reserved_bytes",
    "bytes",
    WORKLOAD,
    "Bytes that PyTorch's caching allocators have reserved from the driver, read like framework_allocated_bytes.",
);
/// Bytes of active blocks in PyTorch's caching allocators.
pub(crate) const FRAMEWORK_ACTIVE: MetricFamily = gauge(
    "memwatch_workload_framework_active_bytes",
    "bytes",
    WORKLOAD,
    "Bytes of blocks that are in use or wait for another stream, read like framework_allocated_bytes.",
);
/// Bytes of free blocks that cannot be returned to the driver.
pub(crate) const FRAMEWORK_INACTIVE_SPLIT: MetricFamily = gauge(
    "memwatch_workload_framework_inactive_split_bytes",
    "bytes",
    WORKLOAD,
    "Bytes of free blocks that cannot be returned to the driver because other blocks of their segment are in use, read like framework_allocated_bytes.",
);
/// Number of times that PyTorch emptied its cache to retry an allocation.
pub(crate) const FRAMEWORK_RETRIES: MetricFamily = gauge(
    "memwatch_workload_framework_alloc_retries",
    "",
    WORKLOAD,
    "How often PyTorch has emptied its cache to try an allocation again, in the workload's living processes; it falls when one of them ends.",
);
/// Number of out-of-memory errors in PyTorch.
pub(crate) const FRAMEWORK_OOMS: MetricFamily = gauge(
    "memwatch_workload_framework_ooms",
    "",
    WORKLOAD,
    "Out-of-memory errors of PyTorch in the workload's living processes; it falls when one of them ends.",
);
/// Size of KV caches.
pub(crate) const KV_CACHE_SIZE: MetricFamily = gauge(
    "memwatch_workload_kv_cache_size_bytes",
    "bytes",
    WORKLOAD,
    "Bytes of the KV cache blocks that requests can use, in the workload's living inference servers (vLLM, SGLang), read from their memory; within what \
     the driver has allocated, and absent where they have none or it is not known.",
);
/// Used part of KV caches.
pub(crate) const KV_CACHE_USED: MetricFamily = gauge(
    "memwatch_workload_kv_cache_used_bytes",
    "bytes",
    WORKLOAD,
    "Bytes of the KV cache blocks in use by requests, read like kv_cache_size_bytes.",
);
/// Reusable part of KV caches.
pub(crate) const KV_CACHE_REUSABLE: MetricFamily = gauge(
    "memwatch_workload_kv_cache_reusable_bytes",
    "bytes",
    WORKLOAD,
    "Bytes of the KV cache blocks of no request that have a prefix which a later request can reuse, read like kv_cache_size_bytes.",
);
/// Running requests of inference servers.
pub(crate) const KV_CACHE_RUNNING: MetricFamily = gauge(
    "memwatch_workload_kv_cache_running_requests",
    "",
    WORKLOAD,
    "Requests that run and have KV cache blocks, read like kv_cache_size_bytes.",
);
/// Waiting requests of inference servers.
pub(crate) const KV_CACHE_WAITING: MetricFamily = gauge(
    "memwatch_workload_kv_cache_waiting_requests",
    "",
    WORKLOAD,
    "Requests that wait to run, read like kv_cache_size_bytes.",
);
/// Used memory of a process, from NVML.
pub(crate) const PROCESS_DRIVER: MetricFamily = gauge(
    "memwatch_process_memory_used_bytes",
    "bytes",
    PROCESS,
    "Memory that NVML charges to a process. Only with --process-metrics, for the largest.",
);
/// Live driver allocations of a process.
pub(crate) const PROCESS_LIVE: MetricFamily = gauge(
    "memwatch_process_memory_driver_allocated_bytes",
    "bytes",
    PROCESS,
    "Bytes that traced driver calls of a process have allocated and not freed. Only with --process-metrics, for the largest.",
);
/// All families in the order of the exposition.
#[allow(dead_code, reason = "the agent writes them one by one; tests and the document go through all")]
pub(crate) const ALL: [&MetricFamily; 61] = [
    &BUILD,
    &GPU_FACTS,
    &GPU_UP,
    &GPU_LIMIT,
    &GPU_USED,
    &GPU_UNATTRIBUTED,
    &GPU_LEFT_BEHIND,
    &GPU_UTILIZATION,
    &GPU_SECONDS_TO_FULL,
    &WORKLOAD_DRIVER,
    &WORKLOAD_LIVE,
    &WORKLOAD_PARTS,
    &WORKLOAD_PEAK,
    &WORKLOAD_PREEXISTING,
    &WORKLOAD_GROWTH,
    &WORKLOAD_PROCESSES,
    &WORKLOAD_ALLOCATIONS,
    &WORKLOAD_FREES,
    &WORKLOAD_ALLOCATED,
    &WORKLOAD_FREED,
    &WORKLOAD_FAILURES,
    &WORKLOAD_OOM,
    &WORKLOAD_RETRIES,
    &WORKLOAD_LAST_OOM,
    &FRAMEWORK_ALLOCATED,
    &FRAMEWORK_RESERVED,
    &FRAMEWORK_ACTIVE,
    &FRAMEWORK_INACTIVE_SPLIT,
    &FRAMEWORK_RETRIES,
    &FRAMEWORK_OOMS,
    &KV_CACHE_SIZE,
    &KV_CACHE_USED,
    &KV_CACHE_REUSABLE,
    &KV_CACHE_RUNNING,
    &KV_CACHE_WAITING,
    &PROCESS_DRIVER,
    &PROCESS_LIVE,
    &AGENT_DROPPED,
    &AGENT_PROBES,
    &AGENT_PROBE_FAILURES,
    &AGENT_PROCESSES,
    &AGENT_SUPPRESSED,
    &AGENT_HISTORY_UP,
    &AGENT_HISTORY_FAILURES,
    &AGENT_HISTORY_OLDEST,
    &AGENT_EVENTS_LEFT_OUT,
    &AGENT_READINGS,
    &AGENT_READINGS_LEFT_OUT,
    &AGENT_READINGS_CPU,
    &AGENT_SURVIVES,
    &AGENT_PUSH_UP,
    &AGENT_PUSH_FAILURES,
    &AGENT_CONTRADICTIONS,
    &AGENT_SNAPSHOT,
    &AGENT_COLLECT,
    &OWN_CPU,
    &OWN_RESIDENT,
    &OWN_VIRTUAL,
    &OWN_START,
    &OWN_FILES,
    &OWN_FILES_LIMIT,
];

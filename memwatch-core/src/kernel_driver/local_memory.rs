//! Local memory of a context, in bytes per GPU thread. The driver reserves it for as many threads
//! as can be resident at once, whatever kernel runs.

use crate::input::Cores;

/// Interpretation of NVML's numbers for GPUs of one compute capability.
struct Architecture {
    capability: (i32, i32),
    /// Cores per multiprocessor, as NVML counts them.
    cores: u32,
    /// Maximum resident threads per multiprocessor (CUDA programming guide, compute capabilities).
    threads: u32,
}

/// Architectures for which requests of multiprocessors × threads × bytes were observed. On an H100
/// with driver 580.159.04: 412.5 MiB = 132 × 2048 × 1600 and 503.25 MiB = 132 × 2048 × 1952.
/// Nothing is reported for other architectures.
const MEASURED: [Architecture; 1] = [Architecture { capability: (9, 0), cores: 128, threads: 2048 }];

/// Smallest local memory of a thread, bytes.
const LEAST_BYTES: u64 = 256;

/// Returns the bytes per thread of a request for local memory; `None` if the GPU's thread count is
/// unknown, or the request is not a whole number of bytes per thread.
pub fn bytes_per_thread(cores: Cores, asked_bytes: u64) -> Option<u64> {
    let architecture = MEASURED.iter().find(|row| row.capability == cores.capability)?;
    let threads = u64::from(cores.count / architecture.cores) * u64::from(architecture.threads);
    let bytes = asked_bytes.checked_div(threads)?;
    (bytes >= LEAST_BYTES && bytes * threads == asked_bytes && cores.count.is_multiple_of(architecture.cores))
        .then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: Cores = Cores { count: 132 * 128, capability: (9, 0) };

    #[test]
    fn h100_local_memory_is_a_whole_number_of_bytes_per_thread() {
        assert_eq!(bytes_per_thread(H100, 432_537_600), Some(1600));
        assert_eq!(bytes_per_thread(H100, 527_695_872), Some(1952));
    }

    #[test]
    fn local_memory_per_thread_is_none_for_odd_sizes_and_unknown_gpus() {
        assert_eq!(bytes_per_thread(H100, 414 << 20), None, "as it is granted");
        assert_eq!(bytes_per_thread(H100, 132 * 2048 * 255), None);
        assert_eq!(bytes_per_thread(Cores { capability: (8, 0), ..H100 }, 432_537_600), None);
        assert_eq!(bytes_per_thread(Cores { count: 132 * 128 + 1, ..H100 }, 432_537_600), None);
        assert_eq!(bytes_per_thread(Cores { count: 0, ..H100 }, 432_537_600), None);
    }
}

//! Clocks of the program.

/// Returns `CLOCK_BOOTTIME` in nanoseconds, the clock of the kernel half's records.
pub(crate) fn boottime_ns() -> u64 {
    u64::try_from(read(libc::CLOCK_BOOTTIME)).unwrap_or(0)
}

/// Returns the processor time of the calling thread in nanoseconds.
pub(crate) fn thread_ns() -> u64 {
    u64::try_from(read(libc::CLOCK_THREAD_CPUTIME_ID)).unwrap_or(0)
}

/// Returns the processor time of this process in nanoseconds.
pub(crate) fn process_ns() -> u64 {
    u64::try_from(read(libc::CLOCK_PROCESS_CPUTIME_ID)).unwrap_or(0)
}

/// Returns the offset from `CLOCK_BOOTTIME` to nanoseconds since 1970.
pub(crate) fn boottime_to_unix_ns() -> i128 {
    read(libc::CLOCK_REALTIME) - read(libc::CLOCK_BOOTTIME)
}

/// Returns the kernel's id of this start of the machine; `None` if `/proc` has none.
pub(crate) fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

fn read(clock: libc::clockid_t) -> i128 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec; all these clocks exist on every kernel that memwatch runs
    // on.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

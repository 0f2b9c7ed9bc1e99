//! Resource use of the agent itself, read from `/proc/self` (proc(5)). The metric names are those
//! of all Prometheus client libraries.

use std::fs;

/// Resource use of this process. Values are `None` if `/proc` cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct OwnUse {
    /// Processor time in user and kernel mode, all threads.
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    /// Start time: `CLOCK_BOOTTIME`, nanoseconds.
    pub(super) start_ns: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) open_files_limit: Option<u64>,
}

impl OwnUse {
    /// Reads the resource use.
    pub(crate) fn read() -> Self {
        // SAFETY: sysconf has no preconditions.
        let [tick, page] = [libc::_SC_CLK_TCK, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let (tick, page) =
            (u64::try_from(tick).ok().filter(|tick| *tick > 0).unwrap_or(100), u64::try_from(page).unwrap_or(4096));
        Self {
            open_files: fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1) as u64),
            open_files_limit: parse_limit(&limits),
            ..parse_stat(&stat, tick, page)
        }
    }
}

/// Parses `/proc/self/stat`. Fields are counted from the last `)`, because the process name in
/// front of it may contain any character.
fn parse_stat(stat: &str, ticks_per_second: u64, page_bytes: u64) -> OwnUse {
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace().collect();
    // The first of these fields is number 3 in proc(5).
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    #[expect(clippy::cast_precision_loss, reason = "2^53 ticks are millions of years")]
    let seconds = |ticks: u64| ticks as f64 / ticks_per_second as f64;
    OwnUse {
        cpu_seconds: field(14).zip(field(15)).map(|(user, system)| seconds(user + system)),
        start_ns: field(22).map(|ticks| ticks.saturating_mul(1_000_000_000 / ticks_per_second)),
        virtual_bytes: field(23),
        resident_bytes: field(24).map(|pages| pages * page_bytes),
        ..OwnUse::default()
    }
}

fn parse_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_says_what_it_takes() {
        let stat = "7 (a) S (b) S 1 7 7 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 1 0 1234 8192 3 18446744073709551615";
        let parsed = parse_stat(stat, 100, 4096);
        assert_eq!((parsed.cpu_seconds, parsed.start_ns), (Some(2.0), Some(12_340_000_000)));
        assert_eq!((parsed.virtual_bytes, parsed.resident_bytes), (Some(8192), Some(3 * 4096)));
        assert_eq!(parse_stat("7 (a", 100, 4096), OwnUse::default());
        assert_eq!(parse_limit("Max processes 1 2 p\nMax open files            1024   4096   files\n"), Some(1024));
        let own = OwnUse::read();
        assert!(own.resident_bytes > Some(1 << 20) && own.open_files >= Some(3), "{own:?}");
    }
}

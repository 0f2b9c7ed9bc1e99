//! Parsers of `/proc/PID/stat` and `/proc/PID/status` (proc_pid_stat(5), proc_pid_status(5)).

/// The fields of `/proc/PID/stat` that memwatch needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcStat {
    pub(super) comm: String,
    /// Whether the main thread has exited and waits to be reaped, or for other threads to exit.
    pub(super) ended: bool,
    /// Number of threads, including the main thread.
    pub(super) threads: u32,
    pub(super) parent_tgid: u32,
    pub(super) start_ticks: u64,
    /// Resident set in pages.
    pub(super) resident_pages: u64,
}

impl ProcStat {
    /// Parses the file. The name may contain spaces and parentheses, so fields are counted from the
    /// last `)`.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let name_end = bytes.iter().rposition(|byte| *byte == b')')?;
        let name_start = bytes[..name_end].iter().position(|byte| *byte == b'(')? + 1;
        let fields = std::str::from_utf8(&bytes[name_end + 1..]).ok()?;
        let mut fields = fields.split_ascii_whitespace();
        // Field 3 (state) is the first after the name. Field 4 is the parent, 20 the number of
        // threads, 22 the start, and 24 the resident set.
        let ended = matches!(fields.next()?, "Z" | "X");
        let parent_tgid = fields.next()?.parse().ok()?;
        let threads = fields.nth(15)?.parse().ok()?;
        let start_ticks = fields.nth(1)?.parse().ok()?;
        let resident_pages = fields.nth(1)?.parse().ok()?;
        let comm = unescaped(&bytes[name_start..name_end]);
        Some(Self { comm, ended, threads, parent_tgid, start_ticks, resident_pages })
    }

    /// Whether all threads of the process have exited.
    pub(super) fn is_over(&self) -> bool {
        self.ended && self.threads <= 1
    }
}

/// The fields of `/proc/PID/status` that memwatch needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcStatus {
    /// Real user id. The owner of the directory in `/proc` is not used, since it is root for a
    /// process that may not be dumped.
    pub(super) uid: Option<u32>,
    /// Process number in the innermost pid namespace, if different from that in `/proc`.
    pub(super) inner_tgid: Option<u32>,
}

impl ProcStatus {
    /// Parses the file. The name is escaped in it, so that it cannot fake another field.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let mut status = Self::default();
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("Uid:") => status.uid = words.next().and_then(|uid| uid.parse().ok()),
                Some("NSpid:") => status.inner_tgid = words.skip(1).last().and_then(|tgid| tgid.parse().ok()),
                _ => {}
            }
        }
        status
    }
}

/// Decodes a name as written in `stat` and `status`, which escape line feeds and backslashes
/// (fs/proc/array.c, `proc_task_name`).
fn unescaped(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    if !text.contains('\\') {
        return text.into_owned();
    }
    let mut plain = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, letters.as_str().chars().next()) {
            ('\\', Some(next @ ('n' | '\\'))) => {
                plain.push(if next == 'n' { '\n' } else { '\\' });
                letters.next();
            }
            _ => plain.push(letter),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{ProcStat, ProcStatus};

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let line = b"7 (a) S 1 (b) S 42 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 1234 1000 10 18446744073709551615";
        let stat = ProcStat {
            comm: "a) S 1 (b".into(),
            ended: false,
            threads: 1,
            parent_tgid: 42,
            start_ticks: 1234,
            resident_pages: 10,
        };
        assert_eq!(ProcStat::parse(line), Some(stat));
        for broken in ["", "7 (x", "7 (x) S", "7 (x) S a b c", ")", ")("] {
            assert_eq!(ProcStat::parse(broken.as_bytes()), None, "{broken:?}");
        }
    }

    #[test]
    fn proc_stat_state_distinguishes_ended_from_running_processes() {
        let line = |state| {
            format!("7 (x) {state} 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 1234 1000 10 18446744073709551615")
        };
        let ended = |state| ProcStat::parse(line(state).as_bytes()).expect("it is whole").ended;
        assert_eq!(["R", "S", "D", "T", "Z", "X"].map(ended), [false, false, false, false, true, true]);
    }

    #[test]
    fn proc_stat_process_with_ended_leader_is_over_with_its_last_thread() {
        let line = |threads| {
            format!("7 (x) Z 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 {threads} 0 1234 1000 10 18446744073709551615")
        };
        let is_over = |threads: u32| ProcStat::parse(line(threads).as_bytes()).expect("it is whole").is_over();
        assert_eq!([0, 1, 2, 30].map(is_over), [true, true, false, false]);
    }

    #[test]
    fn an_escaped_name_is_the_name_itself() {
        let line = b"7 (a\\nb\\\\n\\x) S 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 12 1000 10 18446744073709551615";
        assert_eq!(ProcStat::parse(line).map(|stat| stat.comm).as_deref(), Some("a\nb\\n\\x"));
    }

    #[test]
    fn proc_status_has_the_real_uid_and_the_innermost_pid() {
        let status = |text: &str| ProcStatus::parse(text.as_bytes());
        let whole = "Name:\tUid:\\n\nUmask:\t0022\nNSpid:\t4711\t12\t1\nUid:\t1000\t0\t0\t0\n";
        assert_eq!(status(whole), ProcStatus { uid: Some(1000), inner_tgid: Some(1) });
        assert_eq!(status("Uid:\t0\t0\t0\t0\nNSpid:\t4711\n"), ProcStatus { uid: Some(0), inner_tgid: None });
        assert_eq!(status("Uid:\nNSpid:\n"), ProcStatus::default());
        assert_eq!(status("Uid:\t4294967296\nNSpid:\t1\t-1"), ProcStatus::default());
        assert_eq!(ProcStatus::parse(b"\xff\nUid:\t7\n"), ProcStatus { uid: Some(7), inner_tgid: None });
    }
}

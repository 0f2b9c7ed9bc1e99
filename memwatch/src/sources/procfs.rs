//! What `/proc` says of a process. Names and command lines are data of strangers: bounded, and valid UTF-8 before they leave here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memwatch_core::input::{GpuVisibility, ProcessFacts};

/// The longest command line kept, in bytes.
const COMMAND_BYTES: usize = 4096;
/// An environment of so many bytes is not looked at.
const ENVIRONMENT_BYTES: u64 = 1 << 20;

/// Reads processes below a root: `/proc`, or a made-up one in tests.
#[derive(Debug)]
pub(crate) struct ProcReader {
    root: PathBuf,
    ns_per_tick: u64,
    users: BTreeMap<u32, Option<String>>,
}

/// The fields of `/proc/PID/stat` that memwatch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent_tgid: u32,
    start_ticks: u64,
}

impl ProcReader {
    /// A reader of the tree at `root`.
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        // SAFETY: sysconf has no preconditions.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        let ticks = u64::try_from(ticks).ok().filter(|ticks| *ticks > 0).unwrap_or(100);
        Self { root: root.into(), ns_per_tick: 1_000_000_000 / ticks, users: BTreeMap::new() }
    }

    /// What is known of a process; `None` if there is none, or it is gone.
    pub(crate) fn facts(&mut self, tgid: u32, target: bool) -> Option<ProcessFacts> {
        let directory = self.root.join(tgid.to_string());
        let stat = self.stat(tgid)?;
        let comm = fs::read(directory.join("comm")).ok()?;
        let mut command = fs::read(directory.join("cmdline")).unwrap_or_default();
        command.truncate(COMMAND_BYTES);
        while command.last() == Some(&0) {
            command.pop();
        }
        for byte in &mut command {
            if *byte == 0 {
                *byte = b' ';
            }
        }
        let user = fs::metadata(&directory).ok().map(|metadata| metadata.uid());
        Some(ProcessFacts {
            tgid,
            start_ns: stat.start_ticks.saturating_mul(self.ns_per_tick),
            comm: String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned(),
            command: String::from_utf8_lossy(&command).into_owned(),
            user: user.map(|uid| self.user(uid)),
            target,
            started_under_watch: false,
            visibility: self.visibility(&directory),
            ..ProcessFacts::default()
        })
    }

    /// Two variables of the environment, and nothing else of it; `None` where it cannot be read as a whole.
    fn visibility(&self, directory: &Path) -> Option<GpuVisibility> {
        let mut environment = Vec::new();
        File::open(directory.join("environ")).ok()?.take(ENVIRONMENT_BYTES).read_to_end(&mut environment).ok()?;
        if environment.len() as u64 == ENVIRONMENT_BYTES {
            return None;
        }
        // As getenv(3): the first of its name counts.
        let value = |name: &str| {
            let mut values =
                environment.split(|byte| *byte == 0).filter_map(|entry| entry.strip_prefix(name.as_bytes()));
            values.find_map(|rest| rest.strip_prefix(b"=")).map(|value| String::from_utf8_lossy(value).into_owned())
        };
        Some(GpuVisibility {
            visible_devices: value("CUDA_VISIBLE_DEVICES"),
            device_order: value("CUDA_DEVICE_ORDER"),
            sees_machine: self.sees_machine(directory),
        })
    }

    /// Whether nothing hides GPUs from the process: it has the mounts of the machine's first process (memwatch's own, where that one's
    /// cannot be seen), and is in no Slurm job, whose device rules need no mounts.
    fn sees_machine(&self, directory: &Path) -> bool {
        let mounts = |directory: PathBuf| fs::read_link(directory.join("ns/mnt"));
        let machine = mounts(self.root.join("1")).or_else(|_| mounts(self.root.join("self")));
        let in_job = fs::read_to_string(directory.join("cgroup")).map(|groups| groups.contains("slurm"));
        let same = matches!((mounts(directory.to_owned()), machine), (Ok(own), Ok(machine)) if own == machine);
        same && matches!(in_job, Ok(false))
    }

    /// Whether the process exists.
    pub(crate) fn exists(&self, tgid: u32) -> bool {
        self.root.join(tgid.to_string()).is_dir()
    }

    /// All living descendants of the given processes, without those themselves.
    pub(crate) fn descendants(&self, of: &BTreeSet<u32>) -> BTreeSet<u32> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for tgid in self.all() {
            if let Some(stat) = self.stat(tgid) {
                children.entry(stat.parent_tgid).or_default().push(tgid);
            }
        }
        let mut found = BTreeSet::new();
        let mut open: Vec<u32> = of.iter().copied().collect();
        while let Some(tgid) = open.pop() {
            for child in children.get(&tgid).into_iter().flatten() {
                if !of.contains(child) && found.insert(*child) {
                    open.push(*child);
                }
            }
        }
        found
    }

    fn all(&self) -> impl Iterator<Item = u32> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    fn stat(&self, tgid: u32) -> Option<Stat> {
        parse_stat(&fs::read(self.root.join(tgid.to_string()).join("stat")).ok()?)
    }

    fn user(&mut self, uid: u32) -> String {
        self.users.entry(uid).or_insert_with(|| user_name(uid)).clone().unwrap_or_else(|| uid.to_string())
    }
}

/// The name may hold spaces and parentheses, so fields are counted from the last `)` (proc(5)).
fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let after_name = bytes.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(bytes.get(after_name..)?).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    // Field 3 (state) is the first after the name; 4 is the parent, 22 the start.
    let parent_tgid = fields.nth(1)?.parse().ok()?;
    let start_ticks = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent_tgid, start_ticks })
}

fn user_name(uid: u32) -> Option<String> {
    // SAFETY: an all-zero passwd is a valid value to be overwritten.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut buffer = vec![0; 4096];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are to live locals, and the length is the buffer's.
    let status = unsafe { libc::getpwuid_r(uid, &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    if status != 0 || found.is_null() {
        return None;
    }
    // SAFETY: a found entry's name is a C string inside `buffer`, which is alive.
    let name = unsafe { std::ffi::CStr::from_ptr(entry.pw_name) };
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::{GpuVisibility, ProcReader, Stat, parse_stat};
    use std::collections::BTreeSet;
    use std::fs;

    fn line(name: &str, parent: u32, start: u64) -> String {
        format!("7 ({name}) S {parent} 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 {start} 1000 10 18446744073709551615")
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = parse_stat(line("a) S 1 (b", 42, 1234).as_bytes());
        assert_eq!(stat, Some(Stat { parent_tgid: 42, start_ticks: 1234 }));
        for broken in ["", "7 (x", "7 (x) S", "7 (x) S a b c"] {
            assert_eq!(parse_stat(broken.as_bytes()), None, "{broken:?}");
        }
    }

    #[test]
    fn hostile_names_and_long_command_lines_become_bounded_valid_text() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let directory = root.path().join("7");
        fs::create_dir(&directory).expect("a made-up process");
        fs::write(directory.join("stat"), line("x", 1, 200)).expect("stat");
        fs::write(directory.join("comm"), b"\x1b[31m\xff\n").expect("comm");
        fs::write(directory.join("cmdline"), vec![b'a'; 100_000]).expect("cmdline");
        let facts = ProcReader::new(root.path()).facts(7, true).expect("the process is there");
        assert_eq!(facts.comm, "\u{1b}[31m\u{fffd}");
        assert_eq!(facts.command.len(), 4096);
        assert_eq!(facts.start_ns, 2_000_000_000);
    }

    #[test]
    fn descendants_are_found_over_generations_and_strangers_are_not() {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (tgid, parent) in [(10, 1), (11, 10), (12, 11), (20, 1)] {
            let directory = root.path().join(tgid.to_string());
            fs::create_dir(&directory).expect("a made-up process");
            fs::write(directory.join("stat"), line("x", parent, 1)).expect("stat");
        }
        let reader = ProcReader::new(root.path());
        assert_eq!(reader.descendants(&BTreeSet::from([10])), BTreeSet::from([11, 12]));
        assert!(reader.exists(20) && !reader.exists(21));
    }

    /// A made-up process with this environment, beside a first one, in a job's control group or another.
    fn seeing(environment: &[u8], mounts: &str, group: &str) -> Option<GpuVisibility> {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (tgid, mounts) in [("1", "mnt:[1]"), ("7", mounts)] {
            let directory = root.path().join(tgid);
            fs::create_dir_all(directory.join("ns")).expect("a made-up process");
            std::os::unix::fs::symlink(mounts, directory.join("ns/mnt")).expect("its mounts");
        }
        let directory = root.path().join("7");
        fs::write(directory.join("environ"), environment).expect("environ");
        fs::write(directory.join("cgroup"), group).expect("cgroup");
        ProcReader::new(root.path()).visibility(&directory)
    }

    #[test]
    fn the_first_of_two_variables_counts_and_longer_names_do_not() {
        let environment = b"CUDA_VISIBLE_DEVICES_X=5\0XCUDA_VISIBLE_DEVICES=6\0CUDA_VISIBLE_DEVICES=1,0\0SECRET=s\0CUDA_VISIBLE_DEVICES=2\0";
        let seen = seeing(environment, "mnt:[1]", "0::/user.slice\n").expect("it can be read");
        assert_eq!((seen.visible_devices.as_deref(), seen.device_order), (Some("1,0"), None));
        let seen =
            seeing(b"CUDA_DEVICE_ORDER=PCI_BUS_ID\0CUDA_VISIBLE_DEVICES=\0", "mnt:[1]", "").expect("it can be read");
        assert_eq!((seen.visible_devices.as_deref(), seen.device_order.as_deref()), (Some(""), Some("PCI_BUS_ID")));
        assert_eq!(seeing(&vec![b'a'; 1 << 20], "mnt:[1]", ""), None);
    }

    #[test]
    fn other_mounts_or_a_slurm_job_may_hide_gpus() {
        let sees_machine = |mounts, group| seeing(b"", mounts, group).expect("it can be read").sees_machine;
        assert!(sees_machine("mnt:[1]", "0::/user.slice\n"));
        assert!(!sees_machine("mnt:[2]", "0::/user.slice\n"));
        assert!(!sees_machine("mnt:[1]", "0::/system.slice/slurmstepd.scope/job_7/step_0\n"));
    }
}

//! What `/proc` says of a process. Names and command lines are data of strangers: bounded, and valid UTF-8 before they leave here. The crate procfs
//! reads such files to their end, whatever a process has put into them.

mod environment;
mod pace;
mod stat;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use memwatch_common::record::ProcessRecord;
use memwatch_core::input::{GpuVisibility, ProcessFacts};
use memwatch_core::owner::Ancestor;
use memwatch_core::words::Tgid;

use environment::Variables;
use pace::{Later, Pace};
use stat::{Stat, Status};
use words::{ENVIRONMENT_BYTES, Words, WordsReader};

use super::login_users::login_user;

/// The longest name read, in bytes: kernel threads have longer ones than `TASK_COMM_LEN`.
const COMM_BYTES: usize = 64;
/// So much of `/proc/PID/cgroup` is read: a path for each hierarchy there may be.
const CGROUPS_BYTES: usize = 1 << 16;
/// The other tables of `/proc/PID` are a page or two.
const TABLE_BYTES: usize = 1 << 16;
/// So many generations of ancestors are reported.
const ANCESTORS: usize = 32;
/// Without it there is no process.
const FIRST_PROCESS: u32 = 1;

/// Reads processes below a root: `/proc`, or a made-up one in tests.
#[derive(Debug)]
pub(crate) struct ProcReader {
    root: PathBuf,
    ns_per_tick: u64,
    page_bytes: u64,
    users: BTreeMap<u32, Option<String>>,
    words: WordsReader,
    pace: Pace,
}

impl ProcReader {
    /// A reader of the tree at `root`.
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        // SAFETY: sysconf has no preconditions.
        let [ticks, page] = [libc::_SC_CLK_TCK, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
        let positive = |value: libc::c_long| u64::try_from(value).ok().filter(|value| *value > 0);
        let ns_per_tick = 1_000_000_000 / positive(ticks).unwrap_or(100);
        let (page_bytes, users) = (positive(page).unwrap_or(4096), BTreeMap::new());
        Self { root: root.into(), ns_per_tick, page_bytes, users, words: WordsReader::new(), pace: Pace::default() }
    }

    /// What is known of a process; `None` if there is none, or it is gone.
    pub(crate) fn facts(&mut self, tgid: u32, target: bool) -> Option<ProcessFacts> {
        let directory = self.directory(tgid);
        let stat = self.stat(tgid)?;
        let comm = beginning(&directory.join("comm"), COMM_BYTES)?;
        let main_thread_ended = stat.ended && !stat.is_over();
        // Who is over has no memory for them to be in.
        let words = (!stat.is_over()).then(|| self.words.read(tgid, directory.clone(), main_thread_ended));
        let Words { command_line, environment } = words.unwrap_or_default();
        let command = command(command_line);
        let status = beginning(&directory.join("status"), TABLE_BYTES).unwrap_or_default();
        let status = Status::parse(&status);
        let cgroups = self.groups(tgid, &stat);
        let environ = environment.as_deref().filter(|environ| environ.len() < ENVIRONMENT_BYTES);
        let variables = environ.map(Variables::parse);
        let visible = variables.as_ref().and_then(Variables::of_visibility);
        let visibility = visible.map(|[visible_devices, device_order]| GpuVisibility {
            visible_devices,
            device_order,
            sees_machine: self.sees_machine(&directory, cgroups.as_deref()),
        });
        Some(ProcessFacts {
            tgid,
            start_ns: stat.start_ticks.saturating_mul(self.ns_per_tick),
            comm: String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned(),
            command,
            user: status.uid.map(|uid| self.user(uid)),
            uid: status.uid,
            login_uid: status.uid.map(login_user),
            inner_tgid: status.inner_tgid,
            ancestors: self.ancestors(&stat),
            environment: variables.map(|variables| variables.of_owner()).unwrap_or_default(),
            cgroups,
            target,
            started_under_watch: false,
            visibility,
            main_thread_ended,
        })
    }

    /// Whose a process is now, the user's name, and when it began, as [`ProcessFacts`] has them.
    pub(crate) fn user_now(&mut self, tgid: u32) -> Option<(u32, String, u64)> {
        let status = beginning(&self.directory(tgid).join("status"), TABLE_BYTES)?;
        let (uid, stat) = (Status::parse(&status).uid?, self.stat(tgid)?);
        Some((uid, self.user(uid), stat.start_ticks.saturating_mul(self.ns_per_tick)))
    }

    /// Whether a process has a file of this name open, whatever folder it is in.
    pub(crate) fn has_open(&self, tgid: u32, name: &str) -> bool {
        let files = fs::read_dir(self.directory(tgid).join("fd")).into_iter().flatten().flatten();
        let mut paths = files.filter_map(|file| fs::read_link(file.path()).ok());
        paths.any(|path| is_called(&path.to_string_lossy(), name))
    }

    /// Whether there is time to read one more process of this user in full as it is met; else it is put off.
    pub(crate) fn may_read(&mut self, tgid: u32, uid: u32) -> bool {
        let login_user = login_user(uid);
        let may_read = self.pace.allows(login_user, Instant::now());
        if !may_read {
            self.pace.put_off(Later { tgid, login_user });
        }
        may_read
    }

    /// The processes put off that live, and that there is time for now.
    pub(crate) fn put_off(&mut self) -> Vec<u32> {
        let Self { pace, root, .. } = self;
        pace.due(|tgid| root.join(tgid.to_string()).exists(), Instant::now())
    }

    /// Some of the processes whose command line and environment could not be read in time, and can be read now.
    pub(crate) fn readable_again(&mut self) -> Vec<u32> {
        self.words.again()
    }

    /// What a record of the kernel half says of a process that `/proc` has no more; its command line and its environment are gone.
    pub(crate) fn facts_of_gone(
        &mut self,
        record: &ProcessRecord,
        cgroups: Option<String>,
        target: bool,
    ) -> ProcessFacts {
        ProcessFacts {
            tgid: record.tgid,
            start_ns: record.start_ns,
            comm: String::from_utf8_lossy(record.comm()).into_owned(),
            user: Some(self.user(record.uid)),
            uid: Some(record.uid),
            login_uid: Some(login_user(record.uid)),
            cgroups,
            target,
            ..ProcessFacts::default()
        }
    }

    /// The control groups of a process, as the kernel writes them; `None` if it has ended, or none are reported.
    pub(crate) fn cgroups(&self, tgid: u32) -> Option<String> {
        let stat = self.stat(tgid)?;
        self.groups(tgid, &stat)
    }

    fn groups(&self, tgid: u32, stat: &Stat) -> Option<String> {
        let mut text = beginning(&self.directory(tgid).join("cgroup"), CGROUPS_BYTES)?;
        if text.len() == CGROUPS_BYTES {
            // A line that is cut would be another group's.
            text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
        }
        // Who has ended is in the roots of v1's hierarchies, and where it was only in the unified one (kernel/cgroup/cgroup.c, `proc_cgroup_show`).
        let reports = |line: &&[u8]| !stat.ended || (line.starts_with(b"0::") && *line != b"0::/\n");
        let lines = text.split_inclusive(|byte| *byte == b'\n').filter(reports);
        let reported = lines.map(String::from_utf8_lossy).collect::<String>();
        (!stat.ended || !reported.is_empty()).then_some(reported)
    }

    /// Parent, parent's parent and so on, without the machine's first process, as they are now.
    fn ancestors(&self, of: &Stat) -> Vec<Ancestor> {
        let mut ancestors = Vec::new();
        let (mut tgid, mut start_ticks) = (of.parent_tgid, of.start_ticks);
        while tgid > FIRST_PROCESS && ancestors.len() < ANCESTORS {
            // A number that was given to a younger process meanwhile.
            let Some(stat) = self.stat(tgid).filter(|stat| stat.start_ticks <= start_ticks) else { break };
            ancestors.push(Ancestor { tgid: Tgid(tgid), comm: stat.comm });
            (tgid, start_ticks) = (stat.parent_tgid, stat.start_ticks);
        }
        ancestors
    }

    /// Whether nothing hides GPUs from the process: it has the mounts of the machine's first process (memwatch's own, where that one's
    /// cannot be seen), and is in no Slurm job, whose device rules need no mounts.
    fn sees_machine(&self, directory: &Path, cgroups: Option<&str>) -> bool {
        let mounts = |directory: PathBuf| fs::read_link(directory.join("ns/mnt"));
        let outside_jobs = cgroups.is_some_and(|cgroups| !cgroups.contains("slurm"));
        if !outside_jobs {
            return false;
        }
        let machine = mounts(self.directory(FIRST_PROCESS)).or_else(|_| mounts(self.root.join("self")));
        matches!((mounts(directory.to_owned()), machine), (Ok(own), Ok(machine)) if own == machine)
    }

    /// The resident set of a process that began at this time, in bytes; `None` where it has ended, or its number is another's.
    pub(crate) fn resident_bytes(&self, tgid: u32, start_ns: u64) -> Option<u64> {
        let stat = self.stat(tgid).filter(|stat| stat.start_ticks.saturating_mul(self.ns_per_tick) == start_ns)?;
        (!stat.ended).then(|| stat.resident_pages.saturating_mul(self.page_bytes))
    }

    /// Whether the process exists.
    pub(crate) fn exists(&self, tgid: u32) -> bool {
        self.directory(tgid).is_dir()
    }

    /// Whether the process has ended, though its number is still taken.
    pub(crate) fn is_over(&self, tgid: u32) -> bool {
        self.stat(tgid).is_none_or(|stat| stat.is_over())
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

    /// The numbers of all processes, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> + use<> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    fn stat(&self, tgid: u32) -> Option<Stat> {
        Stat::parse(&beginning(&self.directory(tgid).join("stat"), TABLE_BYTES)?)
    }

    fn directory(&self, tgid: u32) -> PathBuf {
        self.root.join(tgid.to_string())
    }

    fn user(&mut self, uid: u32) -> String {
        self.users.entry(uid).or_insert_with(|| user_name(uid)).clone().unwrap_or_else(|| uid.to_string())
    }
}

/// At most so many bytes of a file; `None` where it cannot be read.
fn beginning(path: &Path, limit: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(limit.min(TABLE_BYTES / 16));
    File::open(path).ok()?.take(limit as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// `/dev/nvidia-uvm`, and `/memfd:nvidia-uvm (deleted)`, are called `nvidia-uvm`.
fn is_called(path: &str, name: &str) -> bool {
    let last = path.strip_suffix(" (deleted)").unwrap_or(path).rsplit('/').next().unwrap_or(path);
    last.strip_prefix("memfd:").unwrap_or(last) == name
}

/// Arguments are separated by zero bytes (proc_pid_cmdline(5)).
fn command(mut cmdline: Vec<u8>) -> String {
    while cmdline.last() == Some(&0) {
        cmdline.pop();
    }
    for byte in cmdline.iter_mut().filter(|byte| **byte == 0) {
        *byte = b' ';
    }
    String::from_utf8_lossy(&cmdline).into_owned()
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
mod tests;

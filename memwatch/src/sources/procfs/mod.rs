//! Reads `/proc`. Names and command lines are data of other users: their length is bounded, and
//! this module returns them as valid UTF-8. The crate procfs would read such files without a bound.

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
use pace::ReadPace;
use stat::{ProcStat, ProcStatus};
use words::{ENVIRONMENT_BYTES, ProcessWords, WordsReader};

use super::login_users::login_user;

/// Maximum length of a name in bytes. Names of kernel threads exceed `TASK_COMM_LEN`.
const COMM_BYTES: usize = 64;
/// Maximum number of bytes read of `/proc/PID/cgroup`, which has a path per hierarchy.
const CGROUPS_BYTES: usize = 1 << 16;
/// Maximum number of bytes read of other files of `/proc/PID`, which are a page or two long.
const TABLE_BYTES: usize = 1 << 16;
/// Maximum number of reported ancestors.
const ANCESTORS: usize = 32;
/// The first process of the machine, which always exists.
const FIRST_PROCESS: u32 = 1;

/// Reads processes below a root directory: `/proc`, or a copy in tests.
#[derive(Debug)]
pub(crate) struct ProcReader {
    root: PathBuf,
    ns_per_tick: u64,
    page_bytes: u64,
    users: BTreeMap<u32, Option<String>>,
    words: WordsReader,
    pace: ReadPace,
}

/// User and name of a process at one moment; all as in [`ProcessFacts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    pub(crate) uid: u32,
    pub(crate) user: String,
    pub(crate) comm: String,
    /// Tells a process from a later one with the same number.
    pub(crate) start_ns: u64,
}

impl ProcReader {
    /// Creates a reader of the tree at `root`.
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        // SAFETY: sysconf has no preconditions.
        let [ticks, page] = [libc::_SC_CLK_TCK, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
        let positive = |value: libc::c_long| u64::try_from(value).ok().filter(|value| *value > 0);
        let ns_per_tick = 1_000_000_000 / positive(ticks).unwrap_or(100);
        let (page_bytes, users) = (positive(page).unwrap_or(4096), BTreeMap::new());
        Self { root: root.into(), ns_per_tick, page_bytes, users, words: WordsReader::new(), pace: ReadPace::default() }
    }

    /// Returns the facts of a process; `None` if it does not exist.
    pub(crate) fn facts(&mut self, tgid: u32, target: bool) -> Option<ProcessFacts> {
        let directory = self.directory(tgid);
        let stat = self.stat(tgid)?;
        let comm = beginning(&directory.join("comm"), COMM_BYTES)?;
        let main_thread_ended = stat.ended && !stat.is_over();
        // The command line and the environment are in the memory of the process, which an exited
        // process does not have.
        let words = (!stat.is_over()).then(|| self.words.read(tgid, directory.clone(), main_thread_ended));
        let ProcessWords { command_line, environment } = words.unwrap_or_default();
        let command = command(command_line);
        let status = beginning(&directory.join("status"), TABLE_BYTES).unwrap_or_default();
        let status = ProcStatus::parse(&status);
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

    /// Returns what a running process may have changed, without reading its memory.
    pub(crate) fn identity(&mut self, tgid: u32) -> Option<ProcessIdentity> {
        let status = beginning(&self.directory(tgid).join("status"), TABLE_BYTES)?;
        let (uid, stat) = (ProcStatus::parse(&status).uid?, self.stat(tgid)?);
        let start_ns = stat.start_ticks.saturating_mul(self.ns_per_tick);
        Some(ProcessIdentity { uid, user: self.user(uid), comm: stat.comm, start_ns })
    }

    /// Whether a process has a file with this name open, in any directory.
    pub(crate) fn has_open(&self, tgid: u32, name: &str) -> bool {
        let files = fs::read_dir(self.directory(tgid).join("fd")).into_iter().flatten().flatten();
        let mut paths = files.filter_map(|file| fs::read_link(file.path()).ok());
        paths.any(|path| is_called(&path.to_string_lossy(), name))
    }

    /// Whether another new process of this user may be read in full at the moment. If not, the
    /// process is deferred.
    pub(crate) fn may_read(&mut self, tgid: u32, uid: u32) -> bool {
        let login_user = login_user(uid);
        let may_read = self.pace.allows(login_user, Instant::now());
        if !may_read {
            self.pace.put_off(login_user, tgid);
        }
        may_read
    }

    /// Takes the deferred processes that are alive and may be read at the moment.
    pub(crate) fn put_off(&mut self) -> Vec<u32> {
        let Self { pace, root, .. } = self;
        pace.due(|tgid| root.join(tgid.to_string()).exists(), Instant::now())
    }

    /// Takes some of the processes whose command line and environment could not be read in time and
    /// may be readable by now.
    pub(crate) fn readable_again(&mut self) -> Vec<u32> {
        self.words.again()
    }

    /// Returns the facts of an exited process from a record of the kernel half, without command
    /// line and environment.
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

    /// Returns the control groups of a process, in the kernel's format; `None` if it has exited or
    /// reports none.
    pub(crate) fn cgroups(&self, tgid: u32) -> Option<String> {
        let stat = self.stat(tgid)?;
        self.groups(tgid, &stat)
    }

    fn groups(&self, tgid: u32, stat: &ProcStat) -> Option<String> {
        let mut text = beginning(&self.directory(tgid).join("cgroup"), CGROUPS_BYTES)?;
        if text.len() == CGROUPS_BYTES {
            // A truncated line would name a different group.
            text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
        }
        // In v1 hierarchies an exited process is in the root; only the unified hierarchy keeps its
        // group (kernel/cgroup/cgroup.c, `proc_cgroup_show`).
        let reports = |line: &&[u8]| !stat.ended || (line.starts_with(b"0::") && *line != b"0::/\n");
        let lines = text.split_inclusive(|byte| *byte == b'\n').filter(reports);
        let reported = lines.map(String::from_utf8_lossy).collect::<String>();
        (!stat.ended || !reported.is_empty()).then_some(reported)
    }

    /// Returns the current ancestors from the parent upwards, without the machine's first process.
    fn ancestors(&self, of: &ProcStat) -> Vec<Ancestor> {
        let mut ancestors = Vec::new();
        let (mut tgid, mut start_ticks) = (of.parent_tgid, of.start_ticks);
        while tgid > FIRST_PROCESS && ancestors.len() < ANCESTORS {
            // A younger process has reused the number.
            let Some(stat) = self.stat(tgid).filter(|stat| stat.start_ticks <= start_ticks) else { break };
            ancestors.push(Ancestor { tgid: Tgid(tgid), comm: stat.comm });
            (tgid, start_ticks) = (stat.parent_tgid, stat.start_ticks);
        }
        ancestors
    }

    /// Whether the process sees all GPUs: it has the mounts of the machine's first process (or
    /// memwatch's own, if those are unreadable), and it is in no Slurm job, since the device rules
    /// of a job work without mounts.
    fn sees_machine(&self, directory: &Path, cgroups: Option<&str>) -> bool {
        let mounts = |directory: PathBuf| fs::read_link(directory.join("ns/mnt"));
        let outside_jobs = cgroups.is_some_and(|cgroups| !cgroups.contains("slurm"));
        if !outside_jobs {
            return false;
        }
        let machine = mounts(self.directory(FIRST_PROCESS)).or_else(|_| mounts(self.root.join("self")));
        matches!((mounts(directory.to_owned()), machine), (Ok(own), Ok(machine)) if own == machine)
    }

    /// Returns the resident set in bytes of a process with this start time; `None` if the process
    /// has exited or its number was reused.
    pub(crate) fn resident_bytes(&self, tgid: u32, start_ns: u64) -> Option<u64> {
        let stat = self.stat(tgid).filter(|stat| stat.start_ticks.saturating_mul(self.ns_per_tick) == start_ns)?;
        (!stat.ended).then(|| stat.resident_pages.saturating_mul(self.page_bytes))
    }

    /// Whether the process exists.
    pub(crate) fn exists(&self, tgid: u32) -> bool {
        self.directory(tgid).is_dir()
    }

    /// Whether the process has exited, even if its number is not free yet.
    pub(crate) fn is_over(&self, tgid: u32) -> bool {
        self.stat(tgid).is_none_or(|stat| stat.is_over())
    }

    /// Returns all living descendants of the given processes, without these processes themselves.
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

    /// Returns the numbers of all processes, unordered.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> + use<> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
    }

    fn stat(&self, tgid: u32) -> Option<ProcStat> {
        ProcStat::parse(&beginning(&self.directory(tgid).join("stat"), TABLE_BYTES)?)
    }

    fn directory(&self, tgid: u32) -> PathBuf {
        self.root.join(tgid.to_string())
    }

    fn user(&mut self, uid: u32) -> String {
        self.users.entry(uid).or_insert_with(|| user_name(uid)).clone().unwrap_or_else(|| uid.to_string())
    }
}

/// Reads at most `limit` bytes of a file; `None` if it is unreadable.
fn beginning(path: &Path, limit: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(limit.min(TABLE_BYTES / 16));
    File::open(path).ok()?.take(limit as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Whether a path leads to a file with this name. `/dev/nvidia-uvm` and `/memfd:nvidia-uvm
/// (deleted)` both have the name `nvidia-uvm`.
fn is_called(path: &str, name: &str) -> bool {
    let last = path.strip_suffix(" (deleted)").unwrap_or(path).rsplit('/').next().unwrap_or(path);
    last.strip_prefix("memfd:").unwrap_or(last) == name
}

/// Joins the arguments with spaces. In the file they are separated by zero bytes
/// (proc_pid_cmdline(5)).
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
    // SAFETY: an all-zero passwd is valid, and is overwritten.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut buffer = vec![0; 4096];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers point to live locals, and the length is that of the buffer.
    let status = unsafe { libc::getpwuid_r(uid, &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
    if status != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the name of a found entry is a C string inside `buffer`, which is alive.
    let name = unsafe { std::ffi::CStr::from_ptr(entry.pw_name) };
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;

//! Data that the kernel half needs to divide its tables into shares: the login user of each user
//! id, and the entries that user space has removed.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{MapData, MapError};
use aya::programs::{ProgramError, RawTracePoint};
use memwatch_common::shares::{NOBODY, SharedTable};

use crate::sources::login_users::{self, Subordinates, login_user};

/// Program that counts the entries that user space has removed.
pub(super) const GIVE_BACK: &str = "mw_give_back";

/// `BPF_PROG_TEST_RUN` of include/uapi/linux/bpf.h, the only way to run a raw tracepoint program on
/// demand (Linux 5.10).
const PROG_TEST_RUN: libc::c_int = 10;

/// `struct { … } test` of `union bpf_attr`, as in Linux 5.15.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
}

/// Why the shares of the tables cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShareError {
    /// The embedded object lacks a map or a program.
    #[error("memwatch was built with a kernel half that has no {0}")]
    Missing(&'static str),
    /// The map of users has the wrong type.
    #[error("the kernel half's list of users cannot be used")]
    List(#[from] MapError),
    /// The program is not loaded.
    #[error("the kernel half's program {GIVE_BACK} cannot be used")]
    Program(#[from] ProgramError),
    /// No descriptor is left.
    #[error("the kernel half's program {GIVE_BACK} cannot be kept open")]
    Descriptor(#[source] std::io::Error),
}

/// Gives table entries back to their owners' shares after user space has removed them.
#[derive(Debug)]
pub(crate) struct GiveBack(OwnedFd);

impl GiveBack {
    /// Opens the program of the loaded kernel half.
    ///
    /// # Errors
    /// The kernel half is of another build, or no descriptor is left.
    pub(crate) fn open(ebpf: &Ebpf) -> Result<Self, ShareError> {
        let program: Option<&RawTracePoint> = ebpf.program(GIVE_BACK).and_then(|found| found.try_into().ok());
        let program = program.ok_or(ShareError::Missing(GIVE_BACK))?;
        Ok(Self(program.fd()?.as_fd().try_clone_to_owned().map_err(ShareError::Descriptor)?))
    }

    /// Gives back this number of entries of a table to an owner.
    pub(crate) fn give(&self, table: SharedTable, owner: u32, entries: u64) {
        if owner == NOBODY || entries == 0 {
            return;
        }
        let arguments = [u64::from(table as u32), owner.into(), entries];
        let mut run = TestRun {
            prog_fd: u32::try_from(self.0.as_raw_fd()).unwrap_or(u32::MAX),
            ctx_size_in: u32::try_from(size_of_val(&arguments)).unwrap_or(0),
            ctx_in: arguments.as_ptr().expose_provenance() as u64,
            ..TestRun::default()
        };
        // SAFETY: the attributes contain a program and its three arguments, which the kernel
        // copies.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, &raw mut run, size_of::<TestRun>()) };
        if answer < 0 {
            log::warn!("{entries} entries stay counted for user {owner}: {}", std::io::Error::last_os_error());
        }
    }

    /// Gives back one entry to each of these owners. An owner may occur several times.
    pub(crate) fn give_all(&self, table: SharedTable, owners: impl Iterator<Item = u32>) {
        let mut entries = BTreeMap::<u32, u64>::new();
        owners.for_each(|owner| *entries.entry(owner).or_default() += 1);
        for (owner, entries) in entries {
            self.give(table, owner, entries);
        }
    }
}

/// The kernel half's map from user ids to login users.
pub(crate) struct LoginUsers {
    list: LpmTrie<MapData, u32, u32>,
    /// Entries of the map: a user id and the number of its significant bits, and the login user.
    put_in: BTreeMap<(u32, u32), u32>,
    seen: Subordinates,
}

impl LoginUsers {
    /// Opens the map of the loaded kernel half, and fills it with the current users.
    pub(super) fn open(ebpf: &mut Ebpf) -> Result<Self, ShareError> {
        const LIST: &str = "LOGIN_USERS";
        let list = ebpf.take_map(LIST).ok_or(ShareError::Missing(LIST))?;
        let mut users = Self { list: LpmTrie::try_from(list)?, put_in: BTreeMap::new(), seen: Subordinates::default() };
        users.refresh();
        Ok(users)
    }

    /// Updates the map if the subordinate ids have changed.
    pub(crate) fn refresh(&mut self) {
        let Some(now) = login_users::changed(&self.seen) else { return };
        let wanted: BTreeMap<(u32, u32), u32> = now
            .segments()
            .into_iter()
            .flat_map(|(first, last, owner)| blocks(first, last).into_iter().map(move |block| (block, owner)))
            .collect();
        self.seen = now;
        let (list, put_in) = (&mut self.list, &mut self.put_in);
        put_in.retain(|&(first, bits), owner| {
            let stays = wanted.get(&(first, bits)) == Some(owner);
            if !stays {
                // The entry may already be absent.
                let _ = list.remove(&Key::new(bits, first.to_be()));
            }
            stays
        });
        for ((first, bits), owner) in wanted {
            if put_in.contains_key(&(first, bits)) {
                continue;
            }
            match list.insert(&Key::new(bits, first.to_be()), &owner, 0) {
                Ok(()) => drop(put_in.insert((first, bits), owner)),
                Err(error) => return log::warn!("some subordinate ids count as separate users: {error}"),
            }
        }
    }
}

/// Splits a range of ids into blocks that share a bit prefix. Returns the first id and the number
/// of bits of each.
fn blocks(first: u32, last: u32) -> Vec<(u32, u32)> {
    let mut blocks = Vec::new();
    let (mut next, end) = (u64::from(first), u64::from(last) + 1);
    while next < end {
        let aligned = if next == 0 { 32 } else { next.trailing_zeros().min(32) };
        let fitting = (end - next).ilog2();
        let size = aligned.min(fitting);
        blocks.push((u32::try_from(next).unwrap_or(u32::MAX), 32 - size));
        next += 1 << size;
    }
    blocks
}

/// Returns the processes of an owner, according to `proc`.
pub(super) fn processes_of(owner: u32, proc: &Path) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(proc) else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|tgid| user_of(&proc.join(tgid.to_string())).map(login_user) == Some(owner)).collect()
}

/// Returns the real user id of a process. For a process that may not be dumped, the directory
/// belongs to root, so its status is read.
fn user_of(process: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    let uid = std::fs::metadata(process).ok()?.uid();
    if uid != 0 {
        return Some(uid);
    }
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_a_range_and_nothing_else() {
        for (first, last) in [(100_000, 165_535), (0, u32::MAX), (7, 7), (1, 6), (u32::MAX - 2, u32::MAX)] {
            let mut next = u64::from(first);
            for (start, bits) in blocks(first, last) {
                assert_eq!(u64::from(start), next, "{first} to {last}");
                let size = 1_u64 << (32 - bits);
                assert!(next.is_multiple_of(size), "{start} has {bits} bits");
                next += size;
            }
            assert_eq!(next, u64::from(last) + 1);
        }
        assert!(blocks(100_000, 165_535).len() <= 16);
    }

    #[test]
    fn this_process_is_among_its_owners() {
        // SAFETY: getuid has no preconditions.
        let owner = login_user(unsafe { libc::getuid() });
        assert!(processes_of(owner, Path::new("/proc")).contains(&std::process::id()));
        assert_eq!(processes_of(owner, Path::new("/nowhere")), [] as [u32; 0]);
    }
}

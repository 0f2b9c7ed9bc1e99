//! Derives the maximum number of tracked live allocations from the memory limit of memwatch's own
//! control group.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Memory of an agent without any tracked allocation, including the kernel half's maps and
/// temporary peaks, in bytes.
const OWN_BYTES: u64 = 120 << 20;
/// Memory of one live allocation in bytes: about 96 in the kernel half's allocation map, 70 in the
/// ledger, and up to 230 temporarily while the whole state is written to the journal or read from
/// it.
const ENTRY_BYTES: u64 = 400;
const MOST: u32 = 1 << 20;
/// Minimum, used even if the limit is below what a start needs.
const LEAST: u32 = 1 << 15;

static ROOM: LazyLock<u32> = LazyLock::new(|| room_in(memory_limit(Path::new("/proc/self"))));

/// Returns how many allocations of all processes may be live at once so that memwatch stays within
/// its memory limit.
pub(crate) fn room() -> u32 {
    *ROOM
}

/// Returns the memory in bytes that the limit leaves beside an agent without any tracked allocation;
/// `None` without a limit.
pub(crate) fn rest_bytes() -> Option<u64> {
    memory_limit(Path::new("/proc/self")).map(|limit_bytes| limit_bytes.saturating_sub(OWN_BYTES))
}

fn room_in(limit_bytes: Option<u64>) -> u32 {
    let Some(limit_bytes) = limit_bytes else { return MOST };
    u32::try_from(limit_bytes.saturating_sub(OWN_BYTES) / ENTRY_BYTES).unwrap_or(MOST).clamp(LEAST, MOST)
}

/// Returns the lowest limit of a process's group and its ancestors, in bytes, from the cgroup
/// version that limits memory.
fn memory_limit(process: &Path) -> Option<u64> {
    let read = |name| fs::read_to_string(process.join(name)).unwrap_or_default();
    let (groups, mounts) = (read("cgroup"), read("mountinfo"));
    let limits = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (file_system, file) = match controllers {
            "" => ("cgroup2", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => ("cgroup", "memory.limit_in_bytes"),
            _ => return None,
        };
        lowest(&folder(&mounts, file_system, path)?, file)
    });
    limits.min()
}

/// Returns mount point and directory of a group. A mount may show only a part of the tree.
fn folder(mounts: &str, file_system: &str, path: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut back = back.split(' ');
        let (kind, options) = (back.next()?, back.nth(1)?);
        let has_memory = kind == "cgroup2" || options.split(',').any(|option| option == "memory");
        let (root, point) = front.split(' ').nth(3).zip(front.split(' ').nth(4))?;
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        (kind == file_system && has_memory).then(|| (PathBuf::from(point), Path::new(point).join(below)))
    })
}

/// Returns the lowest number in these files, from the group's directory up to the mount. `max`
/// means no limit, as does the maximum of version 1.
fn lowest((point, folder): &(PathBuf, PathBuf), file: &str) -> Option<u64> {
    let above = folder.ancestors().take_while(|group| group.starts_with(point));
    let limits = above.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok());
    limits.min().filter(|limit_bytes| *limit_bytes < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_above_a_group_counts_in_both_versions() {
        let tree = tempfile::tempdir().expect("a folder");
        let at = |path: &str| tree.path().join(path);
        let write = |path: &str, text: &str| {
            fs::create_dir_all(at(path).parent().expect("it is below one")).expect("it is ours");
            fs::write(at(path), text).expect("it is ours");
        };
        write("proc/cgroup", "5:cpu,memory:/batch/job\n1:name=systemd:/init\n0::/user/agent\n");
        let point = |name: &str| at(name).display().to_string();
        let mounts = format!(
            "30 1 0:1 / {} rw - cgroup cgroup rw,cpu,memory\n31 1 0:2 / {} rw - cgroup2 cgroup2 rw\n",
            point("v1"),
            point("v2")
        );
        write("proc/mountinfo", &mounts);
        let limit = || memory_limit(&at("proc"));
        assert_eq!(limit(), None, "no such files");
        write("v1/batch/job/memory.limit_in_bytes", "9223372036854771712\n");
        write("v2/user/agent/memory.max", "max\n");
        assert_eq!(limit(), None);
        write("v2/user/memory.max", "1073741824\n");
        assert_eq!(limit(), Some(1 << 30));
        write("v1/batch/memory.limit_in_bytes", "536870912\n");
        assert_eq!(limit(), Some(512 << 20));
        // In a container the mount begins at the container's own group.
        write("proc/mountinfo", &format!("31 1 0:2 /user {} rw - cgroup2 cgroup2 rw\n", point("v2/user")));
        assert_eq!(limit(), Some(1 << 30));
    }

    #[test]
    fn what_may_be_listed_follows_from_the_limit() {
        assert_eq!(room_in(None), MOST);
        assert_eq!(room_in(Some(1 << 40)), MOST);
        assert_eq!(room_in(Some(256 << 20)), 356_515);
        assert_eq!(room_in(Some(64 << 20)), LEAST);
    }
}

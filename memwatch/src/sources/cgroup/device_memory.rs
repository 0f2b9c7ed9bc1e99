//! Reads `dmem.current`: the kernel's accounting of device memory (cgroup-v2.rst, "DMEM"; Linux
//! 6.14). The amdgpu and xe drivers charge to it; no known version of NVIDIA's driver does.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use memwatch_core::owner::CgroupMemory;

const CONTROLLER: &str = "dmem";
const FILE: &str = "dmem.current";
/// Maximum bytes read of a file, which has a line for each region of each device.
const FILE_BYTES: u64 = 1 << 14;
/// Maximum length of a region's name; longer ones are skipped.
const REGION_BYTES: usize = 256;
/// Maximum number of groups read at a time.
const GROUPS: usize = 4096;

/// A cgroup v2 tree with the dmem controller.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    root: PathBuf,
}

impl DeviceMemory {
    /// Opens the tree mounted here, if it has the controller.
    pub(super) fn open(root: &Path) -> Option<Self> {
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).ok()?;
        let has = controllers.split_ascii_whitespace().any(|name| name == CONTROLLER);
        has.then(|| Self { root: root.to_owned() })
    }

    /// Returns the device memory of these groups. A group without accounting is charged to its
    /// nearest ancestor with accounting; then the ancestor's memory is returned.
    pub(super) fn of<'a>(&self, groups: impl Iterator<Item = &'a str>) -> Vec<CgroupMemory> {
        let mut read = BTreeSet::new();
        let mut all = Vec::new();
        for group in groups.take(GROUPS) {
            let Some((group, text)) = self.nearest(group) else { continue };
            if read.insert(group) {
                all.extend(parse(&text).map(|(region, current_bytes)| CgroupMemory {
                    cgroup: group.to_owned(),
                    region: region.to_owned(),
                    current_bytes,
                }));
            }
        }
        all
    }

    /// Returns the nearest group with accounting and its file's contents. The root group has none.
    fn nearest<'a>(&self, group: &'a str) -> Option<(&'a str, String)> {
        let mut group = group;
        // A path with `..` is outside the mounted tree.
        if group.split('/').any(|part| part == "..") {
            return None;
        }
        loop {
            let below = group.strip_prefix('/').filter(|below| !below.is_empty())?;
            if let Ok(file) = File::open(self.root.join(below).join(FILE)) {
                let mut text = String::new();
                file.take(FILE_BYTES).read_to_string(&mut text).ok()?;
                return Some((group, text));
            }
            group = group.rsplit_once('/')?.0;
        }
    }
}

/// Parses lines of `REGION BYTES`; incomplete or invalid lines are skipped.
fn parse(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.split_inclusive('\n').filter_map(|line| {
        let (region, bytes) = line.strip_suffix('\n')?.rsplit_once(' ')?;
        let region = Some(region).filter(|region| (1..=REGION_BYTES).contains(&region.len()))?;
        Some((region, bytes.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(memory: &[CgroupMemory]) -> Vec<(&str, &str, u64)> {
        memory.iter().map(|memory| (&*memory.cgroup, &*memory.region, memory.current_bytes)).collect()
    }

    #[test]
    fn the_kernels_format_is_read_line_by_line() {
        let example = "drm/0000:03:00.0/vram0 12550144\ndrm/0000:03:00.0/stolen 8650752\n";
        let regions = [("drm/0000:03:00.0/vram0", 12_550_144), ("drm/0000:03:00.0/stolen", 8_650_752)];
        assert_eq!(parse(example).collect::<Vec<_>>(), regions);
        let odd = "a b 1\nmax max\nx -1\ny 18446744073709551616\n 5\nz 2 \n\nw 0\ncut 12";
        assert_eq!(parse(odd).collect::<Vec<_>>(), [("a b", 1), ("w", 0)]);
    }

    #[test]
    fn dmem_charge_belongs_to_the_nearest_cgroup_with_an_account() {
        let root = tempfile::tempdir().expect("a temporary directory");
        assert!(DeviceMemory::open(root.path()).is_none());
        fs::write(root.path().join("cgroup.controllers"), "cpuset memory\n").expect("a made-up tree");
        assert!(DeviceMemory::open(root.path()).is_none());
        fs::write(root.path().join("cgroup.controllers"), "cpuset memory dmem pids\n").expect("a made-up tree");
        fs::create_dir_all(root.path().join("pods/one/main")).expect("a made-up group");
        fs::create_dir_all(root.path().join("other")).expect("a made-up group");
        fs::write(root.path().join("pods/one").join(FILE), "drm/card 7\n").expect("a made-up account");
        fs::write(root.path().join(FILE), "drm/card 99\n").expect("a made-up account");
        let memory = DeviceMemory::open(root.path()).expect("the tree has the controller");
        let found = memory.of(["/pods/one/main", "/pods/one", "/other", "/", "/gone", "/../x", "relative"].into_iter());
        assert_eq!(held(&found), [("/pods/one", "drm/card", 7)]);
    }

    #[test]
    fn this_kernels_accounts_are_read() {
        let Some(memory) = crate::sources::cgroup::ControlGroups::open().device_memory else {
            eprintln!("skipped: this kernel keeps no account of device memory (no dmem in cgroup.controllers)");
            return;
        };
        let own = fs::read_to_string("/proc/self/cgroup").expect("there are control groups");
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).expect("there is a unified group");
        assert!(memory.of([own].into_iter()).iter().all(|memory| !memory.region.is_empty()));
    }
}

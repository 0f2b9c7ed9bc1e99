use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{ControlGroups, REMEMBERED};

/// A group in the machine's own tree. It is removed when it is dropped.
struct RealGroup(PathBuf);

impl RealGroup {
    fn new(groups: &ControlGroups, name: &str) -> Option<Self> {
        let Some(mount) = &groups.unified else {
            eprintln!("skipped: no tree of cgroup v2 is mounted here");
            return None;
        };
        let path = mount.point.join(format!("{name}-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&path) {
            eprintln!("skipped: no control group can be made: {error}");
            return None;
        }
        Some(Self(path))
    }

    fn id(&self) -> u64 {
        fs::metadata(&self.0).expect("the group is there").ino()
    }

    fn stated(&self) -> String {
        let name = Path::new(self.0.file_name().expect("it has a name"));
        format!("0::/{}\n", name.display())
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn may_open_handles(groups: &ControlGroups) -> bool {
    let root = groups.unified.as_ref().map(|mount| (mount, fs::metadata(&mount.point).expect("it is mounted").ino()));
    let denied = root.and_then(|(mount, id)| mount.path_of(id).err());
    if let Some(error) = &denied {
        eprintln!("skipped: groups cannot be found by their ids: {error}");
    }
    denied.is_none()
}

#[test]
fn an_id_is_the_path_of_its_group_until_that_is_removed() {
    let groups = ControlGroups::open();
    let Some(group) = RealGroup::new(&groups, "memwatch test of ids") else { return };
    if !may_open_handles(&groups) {
        return;
    }
    let (id, stated) = (group.id(), group.stated());
    assert_eq!(groups.of_gone(id), Some(stated));
    drop(group);
    assert_eq!(groups.of_gone(id), None);
}

#[test]
fn a_removed_group_is_remembered_from_a_process_that_was_in_it() {
    let mut groups = ControlGroups::open();
    let Some(group) = RealGroup::new(&groups, "memwatch-test-of-memory") else { return };
    let (id, stated) = (group.id(), group.stated());
    groups.note(id, &format!("4:memory:/elsewhere\n{stated}"));
    drop(group);
    assert_eq!(groups.of_gone(id), Some(stated));
}

#[test]
fn root_cgroup_of_an_ended_process_is_known_only_without_v1_hierarchies() {
    let mut groups = ControlGroups::open();
    let Some(mount) = &groups.unified else { return eprintln!("skipped: no tree of cgroup v2 is mounted here") };
    let root = fs::metadata(&mount.point).expect("it is mounted").ino();
    if !may_open_handles(&groups) {
        return;
    }
    groups.has_v1 = true;
    assert_eq!(groups.of_gone(root), None);
    groups.has_v1 = false;
    assert_eq!(groups.of_gone(root).as_deref(), Some("0::/\n"));
}

#[test]
fn remembered_cgroups_are_bounded_and_evict_the_oldest() {
    let mut groups = ControlGroups::open();
    groups.unified = None;
    for id in 1..=REMEMBERED as u64 + 2 {
        groups.note(id, &format!("0::/{id} (deleted)\n"));
    }
    assert_eq!((groups.of_gone(2), groups.of_gone(3).as_deref()), (None, Some("0::/3\n")));
    groups.note(0, "0::/none\n");
    groups.note(9999, "4:memory:/v1\n");
    assert_eq!((groups.of_gone(0), groups.of_gone(9999)), (None, None));
    assert_eq!((groups.known.len(), groups.oldest.len()), (REMEMBERED, REMEMBERED));
}

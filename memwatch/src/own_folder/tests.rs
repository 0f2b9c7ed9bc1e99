//! Folders that other users can change are refused, and links are not followed.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

use super::*;

const ALICE: u32 = 64_001;

/// Returns whether the test may change the owner of folders.
fn may_give_away() -> bool {
    let is_root = own_uid() == 0;
    if !is_root {
        eprintln!("SKIPPED: only root can make a folder of another user");
    }
    is_root
}

fn folder_with(parent: &Path, name: &str, mode: u32) -> PathBuf {
    let path = parent.join(name);
    fs::create_dir(&path).expect("it is ours");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
    path
}

fn refusal(folder: &OwnFolder, name: &str) -> String {
    folder.folder(OsStr::new(name)).expect_err("it is not ours alone").to_string()
}

#[test]
fn nothing_is_removed_where_a_link_leads() {
    let parent = tempfile::tempdir().expect("a folder");
    let victim = folder_with(parent.path(), "victim", 0o700);
    fs::create_dir_all(victim.join("deep/er")).expect("it is ours");
    fs::write(victim.join("deep/er/key"), "precious").expect("it is ours");
    let own = folder_with(parent.path(), "own", 0o700);
    fs::create_dir_all(own.join("a/b")).expect("it is ours");
    fs::write(own.join("a/b/file"), "").expect("it is ours");
    symlink(&victim, own.join("link")).expect("it is ours");
    symlink(&victim, own.join("a/link")).expect("it is ours");
    symlink("nowhere", own.join("a/b/broken")).expect("it is ours");
    let folder = OwnFolder::open_unchecked(&own).expect("it is there");
    folder.clear().expect("all of it is ours");
    assert_eq!(folder.names().expect("it is there"), Vec::<OsString>::new());
    assert_eq!(fs::read(victim.join("deep/er/key")).expect("it is there"), b"precious");
    folder.remove(OsStr::new("absent")).expect("that is no error");
    for name in ["..", ".", "a/b", ""] {
        assert!(folder.remove(OsStr::new(name)).is_err() || name.is_empty(), "{name}");
    }
    assert!(victim.is_dir());
}

#[test]
fn own_folder_rejects_links_and_directories_of_other_users() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = OwnFolder::open_unchecked(parent.path()).expect("it is there");
    folder_with(parent.path(), "open", 0o777);
    folder_with(parent.path(), "sticky", 0o1777);
    symlink("open", parent.path().join("link")).expect("it is ours");
    assert_eq!(refusal(&folder, "open"), "can be changed by others");
    assert_eq!(refusal(&folder, "sticky"), "can be changed by others");
    assert!(folder.made(OsStr::new("link")).is_err(), "a link is not followed");
    assert_eq!(folder.made(OsStr::new("new")).expect("it is made").names().expect("empty"), Vec::<OsString>::new());
    if !may_give_away() {
        return;
    }
    let alices = folder_with(parent.path(), "alices", 0o700);
    chown(&alices, Some(ALICE), None).expect("root may");
    let group = folder_with(parent.path(), "group", 0o775);
    chown(&group, None, Some(ALICE)).expect("root may");
    fs::set_permissions(&group, Permissions::from_mode(0o775)).expect("root may");
    assert_eq!(refusal(&folder, "alices"), "is owned by user 64001");
    assert_eq!(refusal(&folder, "group"), "can be changed by group 64001");
    fs::write(alices.join("file"), "").expect("root may");
    assert!(folder.remove(OsStr::new("alices")).is_err() && alices.join("file").exists());
}

#[test]
fn own_folder_rejects_a_path_that_others_can_change() {
    let parent = tempfile::tempdir().expect("a folder");
    let below = |name: &str| parent.path().join(name);
    fs::create_dir_all(below("a/b")).expect("it is ours");
    symlink(below("a"), below("link")).expect("it is ours");
    check_way(&below("link/b/../b")).expect("all of it is ours");
    assert!(check_way(&below("a/absent")).is_err());
    symlink("loop", below("loop")).expect("it is ours");
    assert!(check_way(&below("loop")).is_err());
    if !may_give_away() {
        return;
    }
    let refused = |name: &str| {
        let (path, error) = check_way(&below(name)).expect_err("others can change it");
        format!("{} {error}", path.strip_prefix(parent.path()).expect("it is below").display())
    };
    lchown(below("link"), Some(ALICE), None).expect("root may");
    assert_eq!(refused("link/b"), "link is a symlink owned by user 64001");
    chown(below("a"), Some(ALICE), None).expect("root may");
    assert_eq!(refused("a/b"), "a is owned by user 64001");
    // Through a link of root's to one of Alice's.
    symlink("link", below("second")).expect("it is ours");
    assert_eq!(refused("second/b"), "link is a symlink owned by user 64001");
    chown(below("a"), Some(0), Some(USERS)).expect("root may");
    fs::set_permissions(below("a"), Permissions::from_mode(0o775)).expect("root may");
    assert_eq!(refused("a/b"), "a can be changed by group 100");
    fs::set_permissions(below("a"), Permissions::from_mode(0o1775)).expect("root may");
    check_way(&below("a/b")).expect("what is root's in it stays");
}

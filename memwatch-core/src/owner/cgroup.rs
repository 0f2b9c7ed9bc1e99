//! Parses `/proc/PID/cgroup` and selects the path that identifies the owner of a process.
//!
//! cgroup v2 has one line, `0::/path`; v1 has one per hierarchy, `4:memory:/path`; hybrid machines
//! have both (cgroups(7)). A manager may use only some hierarchies and leave a process in its
//! parent's group in the others.

use super::path::PathOwner;

/// Maximum number of lines read: Linux has 13 v1 controllers, and there are a few named
/// hierarchies.
const LINES: usize = 64;
/// Maximum path length that the kernel writes (`PATH_MAX`), bytes.
const PATH_BYTES: usize = 4096;
/// Suffix of the path of a removed v2 group, added by the kernel.
const REMOVED: &str = " (deleted)";

/// Combined result of all lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CgroupPaths {
    /// Path that shows most of the owner.
    pub(super) path: Option<String>,
    /// Parsed result of that path. A missing container, pod or job is added from another path,
    /// because a process belongs to all its groups.
    pub(super) place: PathOwner,
}

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CgroupLine<'a> {
    /// Preference of the hierarchy among paths that show equally much; 0 is best.
    order: u8,
    path: &'a str,
}

impl CgroupPaths {
    /// Parses the whole text.
    pub(super) fn of(text: &str) -> Self {
        let mut seen: Vec<(CgroupLine<'_>, PathOwner)> = Vec::new();
        for line in text.split('\n').take(LINES).filter_map(CgroupLine::of) {
            match seen.iter_mut().find(|(known, _)| known.path == line.path) {
                Some((known, _)) => known.order = known.order.min(line.order),
                None => seen.push((line, PathOwner::of(line.path))),
            }
        }
        let rank = |line: &CgroupLine<'_>, place: &PathOwner| (place.weight(), line.path != "/", u8::MAX - line.order);
        seen.sort_by(|(line, place), (other, other_place)| {
            rank(other, other_place).cmp(&rank(line, place)).then_with(|| line.path.cmp(other.path))
        });
        let path = seen.first().map(|(line, _)| line.path.to_owned());
        let mut places = seen.into_iter().map(|(_, place)| place);
        let Some(mut place) = places.next() else { return Self::default() };
        places.for_each(|other| place.add(other));
        Self { path, place }
    }
}

impl<'a> CgroupLine<'a> {
    /// Parses `ID:CONTROLLERS:PATH`; the path may contain colons.
    fn of(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let order = match controllers {
            "" if id == "0" => 0,
            "name=systemd" => 1,
            "memory" => 2,
            "cpu" | "cpu,cpuacct" | "cpuacct,cpu" => 3,
            _ => 4,
        };
        let path = if order == 0 { path.strip_suffix(REMOVED).unwrap_or(path) } else { path };
        (path.starts_with('/') && path.len() <= PATH_BYTES).then_some(Self { order, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Option<String> {
        CgroupPaths::of(text).path
    }

    #[test]
    fn cgroup_path_with_most_owner_detail_wins_in_any_line_order() {
        let id = "17db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1a";
        let docker = format!("/docker/{id}");
        let lines =
            [format!("0::{docker}"), "4:memory:/session/x".into(), "1:name=systemd:/system.slice/a.service".into()];
        for turn in 0..3 {
            let mut lines = lines.clone();
            lines.rotate_left(turn);
            assert_eq!(path(&lines.join("\n")).as_ref(), Some(&docker), "{lines:?}");
        }
        assert_eq!(
            path("4:memory:/session/x\n1:name=systemd:/a.slice/b.service\n0::/").as_deref(),
            Some("/a.slice/b.service")
        );
        assert_eq!(path("4:memory:/session/x\n0::/").as_deref(), Some("/session/x"));
        assert_eq!(path("4:memory:/\n0::/\n").as_deref(), Some("/"));
    }

    #[test]
    fn cgroup_path_ties_prefer_unified_then_systemd_then_memory() {
        assert_eq!(path("5:pids:/e\n3:cpu,cpuacct:/d\n4:memory:/c\n1:name=systemd:/b\n0::/a").as_deref(), Some("/a"));
        assert_eq!(path("5:pids:/e\n3:cpu,cpuacct:/d\n4:memory:/c\n1:name=systemd:/b\n0::/").as_deref(), Some("/b"));
        assert_eq!(path("5:pids:/e\n3:cpu,cpuacct:/d\n4:memory:/c").as_deref(), Some("/c"));
        assert_eq!(path("5:pids:/e\n3:cpu,cpuacct:/d").as_deref(), Some("/d"));
        assert_eq!(path("5:pids:/e\n3:blkio:/d").as_deref(), Some("/d"));
    }

    #[test]
    fn a_removed_group_is_known_by_its_name() {
        assert_eq!(path("0::/a.slice/b.service (deleted)").as_deref(), Some("/a.slice/b.service"));
        assert_eq!(path("4:memory:/a (deleted)").as_deref(), Some("/a (deleted)"));
    }

    #[test]
    fn cgroup_lines_that_are_invalid_or_too_long_are_skipped() {
        for text in ["", "\n\n", "0", "0:", "0::", "0::relative", "a/b"] {
            assert_eq!(CgroupPaths::of(text), CgroupPaths::default(), "{text:?}");
        }
        let long = format!("0::/{}\n1:cpu:/short", "x".repeat(PATH_BYTES));
        assert_eq!(path(&long).as_deref(), Some("/short"));
        assert_eq!(path("0::/with:colons:in:it").as_deref(), Some("/with:colons:in:it"));
    }
}

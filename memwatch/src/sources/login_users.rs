//! Maps user ids to login users: each subordinate id (subuid(5)) is assigned to a user. A user has
//! 65,536 subordinate ids, so a share per id would be useless.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// File with a line `user:first:count` per range. The user is a name or a number.
const SUBORDINATE: &str = "/etc/subuid";
const NAMES: &str = "/etc/passwd";
/// Maximum number of bytes read of each file: enough for a line for each of 20,000 users.
const MOST_BYTES: u64 = 2 << 20;
/// Time for which the content is used before the files are checked again.
const FRESH: Duration = Duration::from_secs(10);

/// Maximum number of ranges passed to the kernel half, where each takes about ten entries.
const MOST_RANGES: usize = 8192;

static READ: RwLock<Option<SubuidReading>> = RwLock::new(None);

/// Content of the files at one moment.
#[derive(Debug)]
struct SubuidReading {
    looked: Instant,
    /// Identity, size and time of change of the file with subordinate ids.
    state: Option<FileStamp>,
    users: Subordinates,
}

/// Ranges of subordinate ids with their user, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subordinates(Arc<[(Range<u32>, u32)]>);

/// Returns the login user of this id, which is the id itself if it is not subordinate.
pub(crate) fn login_user(uid: u32) -> u32 {
    with_users(|users| users.login_user(uid))
}

/// Returns the current ranges if they differ from `seen`.
pub(crate) fn changed(seen: &Subordinates) -> Option<Subordinates> {
    with_users(|users| (users != seen).then(|| users.clone()))
}

fn with_users<R>(look: impl FnOnce(&Subordinates) -> R) -> R {
    // Any thread that finds the reading outdated reads the files again. A panic leaves it
    // consistent.
    if let Some(reading) = &*READ.read().unwrap_or_else(PoisonError::into_inner)
        && reading.looked.elapsed() < FRESH
    {
        return look(&reading.users);
    }
    let mut read = READ.write().unwrap_or_else(PoisonError::into_inner);
    let state = std::fs::metadata(SUBORDINATE).ok().map(|found| state(&found));
    let unchanged = read.take().filter(|before| before.state == state).map(|before| before.users);
    let users = unchanged.unwrap_or_else(|| Subordinates::parse(&text(SUBORDINATE), &text(NAMES)));
    look(&read.insert(SubuidReading { looked: Instant::now(), state, users }).users)
}

/// Returns the content of a file of root, empty if unreadable.
fn text(path: &str) -> String {
    let mut text = Vec::new();
    // A part read before an error is still useful.
    let _ = File::open(path).map(|file| file.take(MOST_BYTES).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

/// Identity of a file's content: device, inode, size in bytes, and the time of change in seconds
/// and nanoseconds.
type FileStamp = (u64, u64, u64, i64, i64);

fn state(found: &Metadata) -> FileStamp {
    (found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec())
}

impl Subordinates {
    /// Parses the ranges. Invalid lines are ignored. A name missing in `/etc/passwd`, such as one
    /// of a directory service, is represented by its first id, so that all its ids still have one
    /// owner.
    fn parse(subordinate: &str, names: &str) -> Self {
        let number = |name: &str| -> Option<u32> {
            let is_it = |line: &&str| line.split(':').next() == Some(name);
            names.lines().find(is_it)?.split(':').nth(2)?.parse().ok()
        };
        let mut first_of = BTreeMap::new();
        let mut ranges: Vec<_> = subordinate
            .lines()
            .filter_map(|line| {
                let mut parts = line.split(':');
                let user = parts.next()?;
                let (first, count): (u32, u32) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
                let stands_for = *first_of.entry(user).or_insert(first);
                let owner = user.parse().ok().or_else(|| number(user)).unwrap_or(stands_for);
                Some((first..first.checked_add(count)?, owner))
            })
            .collect();
        ranges.sort_unstable_by_key(|(range, owner)| (range.start, range.end, *owner));
        Self(ranges.into())
    }

    /// Returns the ranges without overlaps: first id, last id and user. Their number is limited by
    /// the space in the kernel half.
    pub(crate) fn segments(&self) -> Vec<(u32, u32, u32)> {
        let kept = &self.0[..self.0.len().min(MOST_RANGES)];
        let ends = kept.iter().flat_map(|(range, _)| [range.start, range.end]);
        let bounds: Vec<u32> = ends.collect::<BTreeSet<u32>>().into_iter().collect();
        let stretches = bounds.windows(2).filter_map(|pair| {
            let [first, end] = *pair else { return None };
            Some((first, end - 1, self.owner_of(first)?))
        });
        stretches.collect()
    }

    fn login_user(&self, uid: u32) -> u32 {
        self.owner_of(uid).unwrap_or(uid)
    }

    fn owner_of(&self, uid: u32) -> Option<u32> {
        let below = self.0.partition_point(|(range, _)| range.start <= uid);
        // An administrator may have created overlapping ranges; the one that starts last applies.
        let own = self.0[..below].iter().rev().find(|(range, _)| range.contains(&uid));
        own.map(|(_, owner)| *owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES_HERE: &str = "root:x:0:0::/root:/bin/sh\nalice:x:1001:1002::/home/alice:/bin/sh\nal:x:7:7::/:/bin/sh\n";

    #[test]
    fn subordinate_ids_are_their_users() {
        let text = "alice:100000:65536\n1002:165536:65536\n# a remark\nbroken:1\nnobody-knows:300000:10\nnobody-knows:400000:10\nalice:500000:1\n";
        let users = Subordinates::parse(text, NAMES_HERE);
        let owners = [
            (1001, 1001),
            (99_999, 99_999),
            (100_000, 1001),
            (165_535, 1001),
            (165_536, 1002),
            (231_071, 1002),
            (231_072, 231_072),
            (300_009, 300_000),
            (400_000, 300_000),
            (500_000, 1001),
            (500_001, 500_001),
            (0, 0),
        ];
        for (uid, owner) in owners {
            assert_eq!(users.login_user(uid), owner, "{uid}");
        }
    }

    #[test]
    fn subordinate_ids_that_are_invalid_are_ignored() {
        let users = Subordinates::parse("a:4294967295:2\n:1:1\nb:-1:5\nc:5:\n1:10:0\n", "");
        assert_eq!(*users.0, [(1..2, 1), (10..10, 1)]);
        assert_eq!(users.login_user(10), 10);
    }

    #[test]
    fn subordinate_uid_segments_map_each_id_to_its_login_user() {
        let text = "1:100:50\n2:120:10\n3:149:20\n4:500:1\n5:600:0\n";
        let users = Subordinates::parse(text, "");
        let segments = users.segments();
        assert_eq!(
            segments,
            [(100, 119, 1), (120, 129, 2), (130, 148, 1), (149, 149, 3), (150, 168, 3), (500, 500, 4)]
        );
        for uid in 90..700 {
            let found = segments.iter().find(|(first, last, _)| (*first..=*last).contains(&uid));
            assert_eq!(found.map_or(uid, |(.., owner)| *owner), users.login_user(uid));
        }
    }

    #[test]
    fn this_user_has_an_owner_at_once_and_again() {
        // SAFETY: geteuid has no preconditions.
        let uid = unsafe { libc::geteuid() };
        assert_eq!(login_user(uid), login_user(uid));
        assert_eq!(login_user(0), 0);
    }
}

//! Memory shared between processes: finds the exporting process of an import by the handle or file
//! passed between them.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::decode::Action;
use crate::ledger::ProcessLedger;
use crate::ledger::alias::SharedOrigin;
use crate::words::Tgid;

/// Maximum number of stored exports.
const OFFERS_KEPT: usize = 65_536;
/// Number of exports that stay if too many are stored.
const OFFERS_LEFT: usize = OFFERS_KEPT / 8 * 7;

/// Key passed from the exporting to the importing process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Token {
    /// Digest of a 64-byte handle (`CUipcMemHandle`, `CUmemPoolPtrExportData`).
    Handle([u64; 2]),
    /// An open file, whatever its descriptor number.
    File(u64),
}

impl Token {
    /// Returns the key that a call imports, if any.
    const fn imported(action: &Action) -> Option<Self> {
        match *action {
            Action::OpenAlias { digest: Some(digest), .. } | Action::ImportAddress { digest: Some(digest), .. } => {
                Some(Self::Handle(digest))
            }
            Action::ImportPhysical { file: Some(file), .. } => Some(Self::File(file)),
            _ => None,
        }
    }
}

/// Keys of a user's exports, with the time since when the process has the memory.
type OffersByProcess = BTreeMap<Tgid, Vec<(u64, Token)>>;

/// Exports of all processes, by key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sharing {
    offers: HashMap<Token, SharedOrigin>,
}

impl Sharing {
    /// Returns the origin of the memory that a call imports, if its export was seen.
    pub fn origin_of(&self, action: &Action) -> Option<SharedOrigin> {
        self.offers.get(&Token::imported(action)?).copied()
    }

    /// Stores the export made by a successful call, if the call exports memory.
    pub fn note(&mut self, tgid: Tgid, action: &Action, ledger: &ProcessLedger) {
        let (token, shared) = match *action {
            Action::ExportAddress { address, digest: Some(digest) } => {
                (Token::Handle(digest), ledger.shared_address(address))
            }
            Action::ExportPhysical { handle, file: Some(file) } => (Token::File(file), ledger.shared_physical(handle)),
            _ => return,
        };
        match shared {
            Some((object, bytes)) => {
                self.offers.insert(token, SharedOrigin { tgid, object, bytes });
            }
            // The exported memory is older than the attach. An entry with this key belongs to an
            // earlier file.
            None => {
                self.offers.remove(&token);
            }
        }
    }

    /// Whether [`Self::clean`] has to be called before the next export.
    pub fn is_full(&self) -> bool {
        self.offers.len() >= OFFERS_KEPT
    }

    /// Drops exports of freed memory. If too many remain, drops those of the oldest memory: first of
    /// the users with most exports, and of each user first of the processes with most.
    pub fn clean(&mut self, still_held: impl Fn(&SharedOrigin) -> bool, user_of: impl Fn(Tgid) -> Option<u32>) {
        self.offers.retain(|_, origin| still_held(origin));
        if !self.is_full() {
            return;
        }
        let mut users: BTreeMap<Option<u32>, OffersByProcess> = BTreeMap::new();
        for (token, origin) in &self.offers {
            let own = users.entry(user_of(origin.tgid)).or_default().entry(origin.tgid).or_default();
            own.push((origin.object.since_ns(), *token));
        }
        let of_user = |processes: &OffersByProcess| processes.values().map(Vec::len).sum();
        let most_of_user = equal_share(users.values().map(of_user), OFFERS_LEFT);
        for processes in users.into_values() {
            let most = equal_share(processes.values().map(Vec::len), most_of_user);
            for mut own in processes.into_values() {
                own.sort_unstable();
                let surplus = own.len().saturating_sub(most);
                for (_, token) in &own[..surplus] {
                    self.offers.remove(token);
                }
            }
        }
    }
}

/// Returns the number that each may keep so that all together keep at most `all`. Those with fewer
/// keep what they have.
fn equal_share(counts: impl Iterator<Item = usize>, all: usize) -> usize {
    let mut counts: Vec<usize> = counts.collect();
    counts.sort_unstable();
    let (mut left, mut others) = (all, counts.len());
    for count in counts {
        let share = left / others;
        if count > share {
            return share;
        }
        (left, others) = (left - count, others - 1);
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::alias::SharedObject;

    /// Returns exports of one object each, with this number for each process; the first object is
    /// the oldest.
    fn offered(counts: &[(u32, u64)]) -> Sharing {
        let mut sharing = Sharing::default();
        for (tgid, count) in counts {
            for granted_ns in 0..*count {
                let object = SharedObject::Address { address: 0xd0, granted_ns };
                let token = Token::Handle([u64::from(*tgid), granted_ns]);
                sharing.offers.insert(token, SharedOrigin { tgid: Tgid(*tgid), object, bytes: 1 });
            }
        }
        sharing
    }

    /// Returns how many exports of a process are stored, and the age of its oldest one.
    fn stored(sharing: &Sharing, tgid: u32) -> (usize, Option<u64>) {
        let own = || sharing.offers.values().filter(|origin| origin.tgid == Tgid(tgid));
        (own().count(), own().map(|origin| origin.object.since_ns()).min())
    }

    #[test]
    fn too_many_exports_drop_the_oldest_of_the_process_with_most() {
        let mut sharing = offered(&[(1, 3), (2, 65_530), (3, 3)]);
        assert!(sharing.is_full());
        sharing.clean(|_| true, |_| Some(1000));
        assert_eq!((stored(&sharing, 1), stored(&sharing, 3)), ((3, Some(0)), (3, Some(0))));
        assert_eq!(stored(&sharing, 2), (OFFERS_LEFT - 6, Some(65_530 - (OFFERS_LEFT as u64 - 6))));
    }

    #[test]
    fn user_with_many_processes_displaces_no_exports_of_another() {
        let many = (10..30).map(|tgid| (tgid, 2_000));
        let counts: Vec<(u32, u64)> = many.chain([(1, 25_536)]).collect();
        let mut sharing = offered(&counts);
        sharing.clean(|_| true, |tgid| Some(u32::from(tgid == Tgid(1))));
        assert_eq!((stored(&sharing, 1).0, stored(&sharing, 10).0), (25_536, (OFFERS_LEFT - 25_536) / 20));
        sharing.clean(|origin| origin.tgid != Tgid(1), |_| None);
        assert_eq!((stored(&sharing, 1).0, stored(&sharing, 10).0), (0, (OFFERS_LEFT - 25_536) / 20));
    }

    #[test]
    fn equal_share_gives_what_some_do_not_need_to_the_others() {
        let share = |counts: &[usize], all| equal_share(counts.iter().copied(), all);
        assert_eq!((share(&[1, 9, 9], 11), share(&[9, 2], 4), share(&[5, 6], 11)), (5, 2, usize::MAX));
        assert_eq!((share(&[], 3), share(&[7], 0)), (usize::MAX, 0));
    }
}

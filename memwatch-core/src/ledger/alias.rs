//! Other owners' memory that a process sees: 0 bytes of its own, and whose they are where that is known.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::words::Tgid;

/// Where shared memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The process that offered it.
    pub tgid: Tgid,
    /// What it offered.
    pub object: SharedObject,
    /// Its size in bytes, as the offering process requested it.
    pub bytes: u64,
}

/// What a process can offer to others: distinguished from whatever gets the same address or handle later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedObject {
    /// What was granted at an address at a time (`CLOCK_BOOTTIME`, nanoseconds).
    Address {
        /// The address.
        address: u64,
        /// The grant's return.
        granted_ns: u64,
    },
    /// Physical memory, by the ledger's own number for it.
    Physical {
        /// The number.
        id: u64,
        /// Since when: `CLOCK_BOOTTIME`, nanoseconds.
        created_ns: u64,
    },
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Alias {
    /// Opens less closes.
    opened: u32,
    origin: Option<Origin>,
}

/// All addresses of a process that are another owner's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Aliases {
    by_address: HashMap<u64, Alias>,
}

impl Aliases {
    /// Opened once more.
    pub fn open(&mut self, address: u64, origin: Option<Origin>) {
        let alias = self.by_address.entry(address).or_default();
        alias.opened += 1;
        alias.origin = origin.or(alias.origin);
    }

    /// Closed once more; false where it was never seen open.
    pub fn close(&mut self, address: u64) -> bool {
        let Some(alias) = self.by_address.get_mut(&address) else { return false };
        alias.opened = alias.opened.saturating_sub(1);
        if alias.opened == 0 {
            self.by_address.remove(&address);
        }
        true
    }

    /// How many are open now.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Those whose owner is known.
    pub fn origins(&self) -> impl Iterator<Item = Origin> {
        self.by_address.values().filter_map(|alias| alias.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::{Aliases, Origin, SharedObject};
    use crate::words::Tgid;

    #[test]
    fn an_alias_is_closed_as_often_as_it_was_opened() {
        let origin = Origin { tgid: Tgid(7), object: SharedObject::Physical { id: 1, created_ns: 5 }, bytes: 64 };
        let mut aliases = Aliases::default();
        aliases.open(1, Some(origin));
        aliases.open(1, None);
        assert!(aliases.close(1));
        assert_eq!(aliases.origins().collect::<Vec<_>>(), [origin], "opened twice, closed once");
        assert!(aliases.close(1));
        assert!(aliases.is_empty());
        assert!(!aliases.close(1), "older than the attach");
    }
}

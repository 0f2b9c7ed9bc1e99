//! Memory of other processes that a process has opened. It counts 0 bytes for this process; its
//! owner is recorded if known.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::words::Tgid;

/// Origin of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedOrigin {
    /// Process that offered the memory.
    pub tgid: Tgid,
    /// Object offered.
    pub object: SharedObject,
    /// Size in bytes, as requested by the offering process.
    pub bytes: u64,
}

/// An object that a process can offer to others, distinct from later objects at the same address or
/// handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedObject {
    /// An allocation at an address, with its grant time.
    Address {
        /// The address.
        address: u64,
        /// Return time of the grant: `CLOCK_BOOTTIME`, nanoseconds.
        granted_ns: u64,
    },
    /// Physical memory, by the ledger's identifier.
    Physical {
        /// Identifier in the ledger.
        id: u64,
        /// Creation time: `CLOCK_BOOTTIME`, nanoseconds.
        created_ns: u64,
    },
}

impl SharedObject {
    /// Returns when the process got the memory: `CLOCK_BOOTTIME`, nanoseconds.
    pub const fn since_ns(self) -> u64 {
        match self {
            Self::Address { granted_ns: since_ns, .. } | Self::Physical { created_ns: since_ns, .. } => since_ns,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Alias {
    /// Number of opens minus closes.
    opened: u32,
    origin: Option<SharedOrigin>,
}

/// All addresses of a process that are another owner's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Aliases {
    by_address: HashMap<u64, Alias>,
}

impl Aliases {
    /// Counts an open of an address.
    pub fn open(&mut self, address: u64, origin: Option<SharedOrigin>) {
        let alias = self.by_address.entry(address).or_default();
        alias.opened += 1;
        alias.origin = origin.or(alias.origin);
    }

    /// Counts a close of an address; returns false if no open was seen.
    pub fn close(&mut self, address: u64) -> bool {
        let Some(alias) = self.by_address.get_mut(&address) else { return false };
        alias.opened = alias.opened.saturating_sub(1);
        if alias.opened == 0 {
            self.by_address.remove(&address);
        }
        true
    }

    /// Number of open addresses.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Returns whether no address is open.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Iterates over the known origins of open memory.
    pub fn origins(&self) -> impl Iterator<Item = SharedOrigin> {
        self.by_address.values().filter_map(|alias| alias.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::{Aliases, SharedObject, SharedOrigin};
    use crate::words::Tgid;

    #[test]
    fn an_alias_is_closed_as_often_as_it_was_opened() {
        let origin = SharedOrigin { tgid: Tgid(7), object: SharedObject::Physical { id: 1, created_ns: 5 }, bytes: 64 };
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

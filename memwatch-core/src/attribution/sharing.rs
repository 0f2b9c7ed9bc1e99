//! Memory shared between processes: finds the exporting process of an import by the handle or file
//! passed between them.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::decode::Action;
use crate::ledger::ProcessLedger;
use crate::ledger::alias::SharedOrigin;
use crate::words::Tgid;

/// Maximum number of stored exports.
const OFFERS_KEPT: usize = 65_536;

/// Key passed from the exporting to the importing process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
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

    /// Drops exports of freed memory, and all exports if too many remain.
    pub fn clean(&mut self, still_held: impl Fn(&SharedOrigin) -> bool) {
        self.offers.retain(|_, origin| still_held(origin));
        if self.is_full() {
            self.offers.clear();
        }
    }
}

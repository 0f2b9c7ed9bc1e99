//! Memory that one process offers and another sees: whose it is, matched by what passes between them.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::decode::Action;
use crate::ledger::ProcessLedger;
use crate::ledger::alias::Origin;
use crate::words::Tgid;

/// How many offers are remembered at most.
const OFFERS_KEPT: usize = 65_536;

/// What passes from the one process to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Token {
    /// The digest of a 64-byte handle (`CUipcMemHandle`, `CUmemPoolPtrExportData`).
    Handle([u64; 2]),
    /// An open file, under whatever descriptor.
    File(u64),
}

impl Token {
    /// What a call brings in from another process, if it does.
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

/// What all processes have offered so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sharing {
    offers: HashMap<Token, Origin>,
}

impl Sharing {
    /// Whose memory a call brings in, if that was seen being offered.
    pub fn origin_of(&self, action: &Action) -> Option<Origin> {
        self.offers.get(&Token::imported(action)?).copied()
    }

    /// Remembers what a successful call of a process offers.
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
                self.offers.insert(token, Origin { tgid, object, bytes });
            }
            // What it offers is older than our attach, and a file may have been another's before.
            None => {
                self.offers.remove(&token);
            }
        }
    }

    /// Whether old offers have to go.
    pub fn is_full(&self) -> bool {
        self.offers.len() >= OFFERS_KEPT
    }

    /// Forgets offers of what is gone; of those still there only as many as are kept.
    pub fn clean(&mut self, still_held: impl Fn(&Origin) -> bool) {
        self.offers.retain(|_, origin| still_held(origin));
        if self.is_full() {
            self.offers.clear();
        }
    }
}

//! Losses of all processes together, and those whose process is not known, or not yet.

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;
use serde::{Deserialize, Serialize};

use super::process::Process;
use crate::words::{Tgid, by_name};

/// Lost records of the whole machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Losses {
    #[serde(with = "by_name::losses")]
    all: BTreeMap<Loss, u64>,
    /// Losses without a known process, and until when they were counted.
    #[serde(with = "by_name::losses")]
    ownerless: BTreeMap<Loss, u64>,
    ownerless_ns: u64,
    /// Of processes not heard of yet.
    #[serde(with = "by_name::losses_by_process")]
    early: BTreeMap<Tgid, BTreeMap<Loss, u64>>,
}

impl Losses {
    /// Counts losses of anybody.
    pub fn count(&mut self, loss: Loss, count: u64) {
        *self.all.entry(loss).or_insert(0) += count;
    }

    /// Keeps losses of a process for when it is heard of.
    pub fn keep_for(&mut self, tgid: Tgid, loss: Loss, count: u64) {
        *self.early.entry(tgid).or_default().entry(loss).or_insert(0) += count;
    }

    /// Keeps losses that may be of any process that runs at `now_ns`.
    pub fn keep_for_everybody(&mut self, loss: Loss, count: u64, now_ns: u64) {
        *self.ownerless.entry(loss).or_insert(0) += count;
        self.ownerless_ns = now_ns;
    }

    /// Charges a process just heard of with what was lost of it before.
    pub fn settle(&mut self, process: &mut Process) {
        for (loss, count) in self.early.remove(&process.tgid).unwrap_or_default() {
            process.lose(loss, count);
        }
        let started_later = process.facts.as_ref().is_some_and(|facts| facts.start_ns > self.ownerless_ns);
        if !started_later {
            self.ownerless.iter().for_each(|(loss, count)| process.lose(*loss, *count));
        }
    }

    /// All of them by cause; empty where nothing was ever lost.
    pub fn all(&self) -> &BTreeMap<Loss, u64> {
        &self.all
    }
}

//! The files of an agent's history that a report reads.

use std::path::PathBuf;

use anyhow::bail;

use crate::client::protocol::HistoryFiles;
use crate::render::format::plural;
use crate::watch::joined::{RecordingFile, by_boot};
use crate::watch::recording::segments::complete_files;
use crate::watch::replay::{ReplayRequest, have_some_of};

/// How often the list of files is read again if the agent began a new file meanwhile.
const TRIES: usize = 4;

/// The part of a history that covers a period.
pub(crate) struct HistoryPart {
    /// Files of one start of the machine, oldest first.
    pub(crate) files: Vec<RecordingFile>,
    /// What a user should know of the rest.
    pub(crate) notes: Vec<String>,
}

impl HistoryPart {
    /// Opens the files since the machine's last start, or those of an earlier one if the period ends
    /// there.
    ///
    /// # Errors
    /// There is no readable file.
    pub(crate) fn of(kept: &HistoryFiles, request: ReplayRequest) -> anyhow::Result<Self> {
        let (mut boots, foreign) = opened(kept);
        let mut notes = Vec::new();
        if foreign > 0 {
            let files = plural(foreign as u64, "file", "files");
            notes.push(format!("another version of memwatch wrote {files} of the history, which it can read"));
        }
        let is_asked_for_end = request.window.until.is_some();
        let covering = boots.iter().position(|files| have_some_of(files, request));
        let asked = covering.filter(|_| is_asked_for_end).unwrap_or(0);
        if asked >= boots.len() {
            bail!("the agent's history has no readable file");
        }
        if asked > 0 {
            notes.push("the requested time is before the machine's last start".to_owned());
        }
        Ok(Self { files: boots.swap_remove(asked), notes })
    }
}

/// Opens all files. The agent may begin a new one meanwhile, so that the list is old.
fn opened(kept: &HistoryFiles) -> (Vec<Vec<RecordingFile>>, usize) {
    let mut list = listed(kept);
    for _ in 0..TRIES {
        let opened = by_boot(&list);
        let now = listed(kept);
        if now.iter().rev().nth(1) == list.iter().rev().nth(1) {
            return opened;
        }
        list = now;
    }
    by_boot(&list)
}

/// Returns the names of all files, oldest first.
fn listed(kept: &HistoryFiles) -> Vec<PathBuf> {
    // A client may read the files but not the directory.
    let complete = complete_files(&kept.file).unwrap_or_else(|_| {
        let mut named: Vec<PathBuf> = kept.previous.iter().chain(&kept.older).cloned().collect();
        named.reverse();
        named
    });
    complete.into_iter().chain([kept.file.clone()]).collect()
}

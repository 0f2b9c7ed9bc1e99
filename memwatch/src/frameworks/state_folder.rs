//! The directory in which memwatch stores what it learned about builds of frameworks for later runs.

use std::path::PathBuf;

/// The agent's state directory, unless systemd sets another (systemd.exec(5), `StateDirectory=`).
const FOLDER: &str = "/var/lib/memwatch";
const FOLDER_VARIABLE: &str = "STATE_DIRECTORY";

/// Returns the agent's state directory, if this process is the agent or root.
pub(crate) fn state_folder() -> Option<PathBuf> {
    if let Some(folders) = std::env::var_os(FOLDER_VARIABLE) {
        // The variable may list several directories; the first is the state directory.
        return folders.to_str()?.split(':').next().map(PathBuf::from);
    }
    // SAFETY: geteuid has no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    is_root.then(|| FOLDER.into())
}

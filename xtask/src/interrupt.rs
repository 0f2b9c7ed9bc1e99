//! Ctrl-C and its relatives, turned into a flag, so that a task can clean up after itself.

use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};

static ARRIVED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    ARRIVED.store(true, Ordering::Relaxed);
}

/// From here on SIGINT, SIGTERM and SIGHUP no longer end xtask; [`arrived`] reports them.
///
/// Programs that xtask starts are not affected: a handler does not survive an exec.
///
/// # Errors
/// When the kernel refuses a handler.
pub(crate) fn watch() -> Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        let previous = unsafe { libc::signal(signal, note as *const () as libc::sighandler_t) };
        if previous == libc::SIG_ERR {
            bail!("cannot catch signal {signal}: {}", std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Whether one of the signals came since [`watch`].
pub(crate) fn arrived() -> bool {
    ARRIVED.load(Ordering::Relaxed)
}

//! Turns SIGINT, SIGTERM and SIGHUP into a flag, so that a task can clean up.

use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};

static ARRIVED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    ARRIVED.store(true, Ordering::Relaxed);
}

/// Catches SIGINT, SIGTERM and SIGHUP from here on: they no longer end xtask, and [`arrived`]
/// reports them.
///
/// Programs that xtask starts are not affected, since handlers are reset on exec.
///
/// # Errors
/// The kernel refuses a handler.
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

/// Whether one of the signals arrived since [`watch`].
pub(crate) fn arrived() -> bool {
    ARRIVED.load(Ordering::Relaxed)
}

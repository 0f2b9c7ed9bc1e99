//! Waiting for what must happen, and no longer than that makes sense.

use std::time::{Duration, Instant};

/// How long a test waits for something that must happen, before it fails.
pub const TIMEOUT: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(20);

/// Waits for something that must happen: asks for it until it is there.
///
/// # Panics
/// When it does not happen.
pub fn until<T>(what: &str, mut happens: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    while begin.elapsed() < TIMEOUT {
        if let Some(found) = happens() {
            return found;
        }
        std::thread::sleep(POLL);
    }
    panic!("not in all this time: {what}")
}

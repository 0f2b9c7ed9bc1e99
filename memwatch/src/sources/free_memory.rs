//! Returns freed memory to the kernel. A reading of another process's objects needs a hundred
//! megabytes for a moment, in a thread of its own. The C library would keep them for that thread's
//! successors, beside those of the threads that run at the same time.

/// Returns this process's freed memory to the kernel.
pub(crate) fn release() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) has no precondition, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the resident bytes of this process: the second number of `/proc/self/statm`, in pages.
    fn resident_bytes() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").expect("it is there");
        let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
        pages * 4096
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn small_pieces_that_a_thread_has_freed_go_back_to_the_kernel() {
        const PIECES: usize = 4096;
        let work = || {
            let pieces: Vec<Box<[u8]>> = (0..PIECES).map(|_| vec![1; 16 << 10].into()).collect();
            let kept: Vec<Box<[u8]>> = (0..64).map(|_| vec![1; 64].into()).collect();
            drop(pieces);
            kept
        };
        let before = resident_bytes();
        let _kept = std::thread::spawn(work).join().expect("it ends");
        release();
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < (PIECES as u64 * (16 << 10)) / 4, "{grown} bytes");
    }
}

//! Raises the limit of open files. The usual soft limit is 1,024, and each probed library needs
//! one.

use std::io;

/// Raises the soft limit to the hard limit. The agent starts no program that would inherit it.
pub(super) fn raise_limit() {
    if let Err(error) = raise() {
        log::warn!("the limit on open files stays as it is: {error}");
    }
}

fn raise() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live `rlimit`.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the pointer is to an initialized `rlimit`.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn open_file_limit_is_raised_to_its_hard_limit() {
        super::raise().expect("everybody may");
        let limits = std::fs::read_to_string("/proc/self/limits").expect("proc(5)");
        let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("proc(5)");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[3], words[4]);
    }
}

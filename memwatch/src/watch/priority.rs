//! Scheduling priority of the thread that reads records, for machines with more busy threads than
//! processors.
//!
//! At normal priority that thread waits behind all busy threads, up to a second with 25 of them
//! (measured). In a second, 200,000 calls fill a ring of 16 MiB: records would be lost although
//! there is enough processor time to read them.

use std::io;

/// Nice value of the reading thread, which has to run at once and never runs for long. With 25 busy
/// threads on two processors it gets up to 40 % of one processor. The range is -20 to 19; `auditd`,
/// with a similar task, uses -4.
const NICE: i32 = -10;
/// Nice value while clients wait for a resumed session. With -10 among 25 busy threads per
/// processor, resuming takes twice as long.
const BEGINS: i32 = -20;

/// High priority of the calling thread during the start.
#[must_use]
#[derive(Debug)]
pub(crate) struct Beginning {
    is_before_all: bool,
}

impl Beginning {
    /// Ends the start and sets the priority of [`read_before_others`].
    pub(crate) fn end(self) {
        if self.is_before_all {
            // SAFETY: setpriority has no memory preconditions; 0 is the calling thread in Linux.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
        }
    }
}

/// Gives this thread the highest priority until the end of the start, under the same conditions as
/// [`read_before_others`].
pub(crate) fn begin_before_all() -> Beginning {
    Beginning { is_before_all: come_before(BEGINS) }
}

/// Raises the priority of this thread. Threads and programs that it starts have normal priority.
///
/// A priority set from outside is kept. The default priority is kept if the process lacks the right
/// to change it (`CAP_SYS_NICE` or `RLIMIT_NICE`); records lost because of that are counted like
/// all records that do not fit in the ring.
pub(crate) fn read_before_others() {
    come_before(NICE);
}

/// Sets the nice value. Returns whether the priority was changed.
fn come_before(nice: i32) -> bool {
    // SAFETY: both have no preconditions; 0 is the calling thread in Linux.
    let (given, policy) = unsafe { (libc::getpriority(libc::PRIO_PROCESS, 0), libc::sched_getscheduler(0)) };
    if given != 0 || policy != libc::SCHED_OTHER {
        return false;
    }
    // The flag for children is set first, so that no child ever starts with the raised priority.
    // SAFETY: setpriority has no memory preconditions; 0 is the calling thread in Linux.
    reset_in_children().is_ok() && unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } == 0
}

/// Makes threads and processes started by this thread begin with a nice value of 0 if the thread's
/// own value is lower (sched(7), "Reset scheduling policy for child processes").
fn reset_in_children() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter outlives the call; 0 is the calling thread.
    let set =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK, &raw const parameter) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn nice_of_this_thread() -> i32 {
        // SAFETY: getpriority has no preconditions.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    fn nice_of_a_program() -> String {
        let output = Command::new("nice").output().expect("nice(1) is installed everywhere");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    #[test]
    fn reader_priority_applies_to_its_thread_only_and_is_not_inherited() {
        let before = nice_of_this_thread();
        let (own, thread, program) = std::thread::spawn(|| {
            read_before_others();
            (nice_of_this_thread(), std::thread::spawn(nice_of_this_thread).join(), nice_of_a_program())
        })
        .join()
        .expect("it has not panicked");
        // SAFETY: geteuid has no preconditions.
        let expected = if before == 0 && unsafe { libc::geteuid() } == 0 { NICE } else { before };
        assert_eq!(own, expected);
        assert_eq!(thread.expect("it has not panicked"), before.max(0));
        assert_eq!(program, before.max(0).to_string());
        assert_eq!(nice_of_this_thread(), before, "it is of one thread");
    }

    #[test]
    fn startup_priority_is_highest_until_it_ends() {
        let before = nice_of_this_thread();
        // SAFETY: geteuid has no preconditions.
        let may = before == 0 && unsafe { libc::geteuid() } == 0;
        let (begins, opens, reads) = std::thread::spawn(|| {
            let beginning = begin_before_all();
            let begins = nice_of_this_thread();
            read_before_others();
            let opens = nice_of_this_thread();
            beginning.end();
            (begins, opens, nice_of_this_thread())
        })
        .join()
        .expect("it has not panicked");
        let (first, then) = if may { (BEGINS, NICE) } else { (before, before) };
        assert_eq!((begins, opens, reads), (first, first, then));
    }

    #[test]
    fn priority_set_by_the_user_is_kept() {
        let own = std::thread::spawn(|| {
            // SAFETY: setpriority has no memory preconditions.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) }, 0, "everybody may be nicer");
            read_before_others();
            begin_before_all().end();
            nice_of_this_thread()
        });
        assert_eq!(own.join().expect("it has not panicked"), 19);
    }
}

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// Descriptor to which the signal handler writes a byte for each signal.
static HANDLED: AtomicI32 = AtomicI32::new(-1);
/// Serializes the tests, since there is only one handler.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

extern "C" fn handle(_number: i32) {
    // SAFETY: write is async-signal-safe, and the byte is a constant.
    unsafe { libc::write(HANDLED.load(Ordering::Relaxed), b"x".as_ptr().cast(), 1) };
}

/// Installs a handler for SIGUSR1 that interrupts system calls instead of restarting them. The
/// returned descriptor reads a byte for each handled signal.
fn interrupting() -> OwnedFd {
    let (read, write) = pipe().unwrap_or_else(|failure| panic!("{failure:?}"));
    HANDLED.store(std::os::fd::IntoRawFd::into_raw_fd(write), Ordering::Relaxed);
    // SAFETY: an all-zero sigaction is one without flags, so without SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as extern "C" fn(i32) as usize;
    // SAFETY: the handler calls nothing but write.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) }, 0);
    read
}

fn wait_for_byte(handled: &OwnedFd) {
    let mut byte = 0_u8;
    // SAFETY: the buffer is one byte, and the descriptor is open.
    let got = uninterrupted(|| unsafe { libc::read(raw(handled), (&raw mut byte).cast(), 1) });
    assert_eq!(got.expect("it can be read"), 1);
}

/// Waits until a thread sleeps in the kernel.
fn until_asleep(stat: &str) {
    let begun = Instant::now();
    while !fs::read_to_string(stat).is_ok_and(|text| text.contains(") S ")) {
        assert!(begun.elapsed() < TIMEOUT, "{stat}");
        std::thread::sleep(POLL);
    }
}

#[test]
fn a_signal_does_not_let_a_held_command_go() {
    let _only = ONE_AT_A_TIME.lock();
    let handled = interrupting();
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    let line = format!("cat '{}' > '{}'", place("released").display(), place("seen").display());
    let words = ["sh".into(), "-c".into(), line.into()];
    let held = hold(&words).unwrap_or_else(|failure| panic!("{failure:?}"));
    let tgid = held.tgid;
    for _ in 0..3 {
        until_asleep(&format!("/proc/{tgid}/stat"));
        // SAFETY: a plain system call; the process is ours and was not waited for.
        assert_eq!(unsafe { libc::kill(tgid.cast_signed(), libc::SIGUSR1) }, 0);
        wait_for_byte(&handled);
    }
    fs::write(place("released"), "yes").expect("the directory is ours");
    let mut running = held.release();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let exit = runtime.block_on(running.wait()).unwrap_or_else(|failure| panic!("{failure:?}"));
    assert_eq!(exit, Exit::Command(0), "it ran before it was released");
    assert_eq!(fs::read_to_string(place("seen")).expect("it has run"), "yes");
}

#[test]
fn a_signal_does_not_lose_the_commands_number() {
    let _only = ONE_AT_A_TIME.lock();
    let handled = interrupting();
    let (read, write) = pipe().unwrap_or_else(|failure| panic!("{failure:?}"));
    let (sender, receiver) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        // SAFETY: neither function has preconditions.
        let this = unsafe { (libc::pthread_self(), libc::gettid()) };
        sender.send(this).expect("the test waits for it");
        read_tgid(&read)
    });
    let (thread, tid) = receiver.recv().expect("it says");
    until_asleep(&format!("/proc/self/task/{tid}/stat"));
    // SAFETY: the thread is not joined yet.
    assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
    wait_for_byte(&handled);
    until_asleep(&format!("/proc/self/task/{tid}/stat"));
    let number = 4711_u32.to_ne_bytes();
    // SAFETY: the buffer is four bytes, and the descriptor is open.
    assert_eq!(unsafe { libc::write(raw(&write), number.as_ptr().cast(), number.len()) }, 4);
    assert_eq!(reader.join().expect("it does not panic").unwrap_or_else(|failure| panic!("{failure:?}")), 4711);
}

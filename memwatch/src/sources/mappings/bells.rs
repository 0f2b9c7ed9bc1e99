//! Wakes a sleeping reader when any process maps a library: a second perf event per CPU. Its output
//! is paused while the reader is awake.
//!
//! A wake-up for every record would cost each mapping of every process 7 µs. These events signal
//! only the first mapping after a pause: the woken reader pauses them all, which costs the kernel
//! one memory write each.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use perf_event::events::Software;
use perf_event::{Builder, Sampler};
use tokio::io::unix::AsyncFd;

/// Size of a ring buffer. A record with the longest path fits.
const RING_BYTES: usize = 8 << 10;
/// `PERF_EVENT_IOC_PAUSE_OUTPUT`, `_IOW('$', 9, __u32)` in `linux/perf_event.h` (Linux 4.7).
const PAUSE_OUTPUT: libc::Ioctl = 0x4004_2409;
/// Number of epoll events fetched at once; which events fired does not matter.
const AT_ONCE: usize = 64;

/// A wake-up event for each CPU.
pub(super) struct Bells {
    bells: Vec<Sampler>,
    /// Ready when an event has fired: an epoll instance.
    heard: Arc<AsyncFd<OwnedFd>>,
    /// Whether the events are enabled.
    is_on: bool,
}

impl Bells {
    /// Opens paused events for these CPUs. Must be called before the events with the records are
    /// opened: the kernel serves the newest event first, so that a mapping is recorded before it
    /// wakes the reader.
    ///
    /// # Errors
    /// The kernel refuses the events or memory for their ring buffers, or there is no tokio
    /// runtime.
    pub(super) fn open(processors: &[u32]) -> io::Result<Self> {
        tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        // SAFETY: epoll_create1 has no preconditions.
        let poll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if poll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let poll = unsafe { OwnedFd::from_raw_fd(poll) };
        let bells = processors.iter().map(|processor| {
            let mut builder = Builder::new(Software::DUMMY);
            builder.any_pid().one_cpu(usize::try_from(*processor).map_err(io::Error::other)?);
            let bell = builder.mmap(true).wakeup_watermark(1).build()?.sampled(RING_BYTES)?;
            pause(&bell, true)?;
            // Edge-triggered: a mapping before the pause must not wake the reader repeatedly.
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(), u64: 0 };
            // SAFETY: both descriptors are open, and the event is read during the call only.
            match unsafe { libc::epoll_ctl(poll.as_raw_fd(), libc::EPOLL_CTL_ADD, bell.as_raw_fd(), &raw mut event) } {
                0 => Ok(bell),
                _ => Err(io::Error::last_os_error()),
            }
        });
        let mut bells: Vec<Sampler> = bells.collect::<io::Result<_>>()?;
        bells.iter_mut().try_for_each(|bell| bell.as_counter_mut().enable())?;
        // SAFETY: the descriptor stays open and unchanged while it is registered.
        let heard = unsafe { AsyncFd::register(poll) }?;
        Ok(Self { bells, heard: Arc::new(heard), is_on: false })
    }

    /// Makes the next mapping wake the reader.
    pub(super) fn want_next(&mut self) {
        if std::mem::replace(&mut self.is_on, true) {
            return;
        }
        for bell in &mut self.bells {
            // A full ring buffer would not fire.
            while bell.next_record().is_some() {}
            if let Err(error) = pause(bell, false) {
                log::warn!("cannot enable the wake-up for new libraries: {error}");
            }
        }
    }

    /// Pauses all events.
    pub(super) fn hush(&mut self) {
        if !std::mem::take(&mut self.is_on) {
            return;
        }
        for bell in &self.bells {
            // An event that cannot be paused wakes only a reader that is awake already.
            let _ = pause(bell, true);
        }
    }

    /// Completes when an event fires.
    pub(super) fn rings(&self) -> impl Future<Output = ()> + use<> {
        let heard = Arc::clone(&self.heard);
        async move {
            match heard.readable().await {
                Ok(mut ready) => {
                    forget_rung(heard.get_ref());
                    ready.clear_ready();
                }
                // The runtime is about to end.
                Err(_) => std::future::pending().await,
            }
        }
    }
}

/// Fetches the fired events; the epoll instance becomes ready again only after that.
fn forget_rung(poll: &OwnedFd) {
    let mut rung = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
    let room = i32::try_from(rung.len()).unwrap_or(1);
    // SAFETY: the buffer has space for as many events as the call's limit.
    while unsafe { libc::epoll_wait(poll.as_raw_fd(), rung.as_mut_ptr(), room, 0) } == room {}
}

fn pause(bell: &Sampler, is_paused: bool) -> io::Result<()> {
    // SAFETY: the descriptor is that of a perf event, and the argument is a number.
    match unsafe { libc::ioctl(bell.as_raw_fd(), PAUSE_OUTPUT, libc::c_ulong::from(is_paused)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

//! What wakes a sleeping reader when anybody maps a library: a second event per processor, whose output is paused while the reader is awake.
//!
//! A wake-up with every record would cost each mapping of every process 7 µs. These are for the first mapping after a pause: whoever hears it pauses
//! them all, which takes the kernel a write to memory each.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use perf_event::events::Software;
use perf_event::{Builder, Sampler};
use tokio::io::unix::AsyncFd;

/// A record with the longest path fits.
const RING_BYTES: usize = 8 << 10;
/// `PERF_EVENT_IOC_PAUSE_OUTPUT`, `_IOW('$', 9, __u32)` in `linux/perf_event.h` (Linux 4.7).
const PAUSE_OUTPUT: libc::Ioctl = 0x4004_2409;
/// So many are taken from the kernel at once; which of them have rung does not matter.
const AT_ONCE: usize = 64;

/// A bell for each processor.
pub(super) struct Bells {
    bells: Vec<Sampler>,
    /// Ready when one of them has rung: an epoll instance.
    heard: Arc<AsyncFd<OwnedFd>>,
    /// They ring at all.
    is_on: bool,
}

impl Bells {
    /// Silent ones for these processors. To be made before the events whose records are read: the kernel serves the newest event first, so that a
    /// mapping is recorded before it rings.
    ///
    /// # Errors
    /// The kernel refuses the events, or memory for their rings; or there is no tokio runtime.
    pub(super) fn open(processors: &[u32]) -> io::Result<Self> {
        tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        // SAFETY: it has no preconditions.
        let poll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if poll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else's.
        let poll = unsafe { OwnedFd::from_raw_fd(poll) };
        let bells = processors.iter().map(|processor| {
            let mut builder = Builder::new(Software::DUMMY);
            builder.any_pid().one_cpu(usize::try_from(*processor).map_err(io::Error::other)?);
            let bell = builder.mmap(true).wakeup_watermark(1).build()?.sampled(RING_BYTES)?;
            pause(&bell, true)?;
            // Edges alone: a mapping before the pause must not be heard again and again.
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(), u64: 0 };
            // SAFETY: both descriptors are open, and the event is read during the call alone.
            match unsafe { libc::epoll_ctl(poll.as_raw_fd(), libc::EPOLL_CTL_ADD, bell.as_raw_fd(), &raw mut event) } {
                0 => Ok(bell),
                _ => Err(io::Error::last_os_error()),
            }
        });
        let mut bells: Vec<Sampler> = bells.collect::<io::Result<_>>()?;
        bells.iter_mut().try_for_each(|bell| bell.as_counter_mut().enable())?;
        // SAFETY: the descriptor stays open, and the same, for as long as it is registered.
        let heard = unsafe { AsyncFd::register(poll) }?;
        Ok(Self { bells, heard: Arc::new(heard), is_on: false })
    }

    /// The next mapping rings.
    pub(super) fn want_next(&mut self) {
        if std::mem::replace(&mut self.is_on, true) {
            return;
        }
        for bell in &mut self.bells {
            // A full ring would stay silent.
            while bell.next_record().is_some() {}
            if let Err(error) = pause(bell, false) {
                log::warn!("new libraries are looked for later than usual: {error}");
            }
        }
    }

    /// None rings any more.
    pub(super) fn hush(&mut self) {
        if !std::mem::take(&mut self.is_on) {
            return;
        }
        for bell in &self.bells {
            // One that goes on ringing wakes somebody who is awake.
            let _ = pause(bell, true);
        }
    }

    /// Completes when one rings.
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

/// Takes from the kernel which bells have rung: only then is it ready again with the next one.
fn forget_rung(poll: &OwnedFd) {
    let mut rung = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
    let room = i32::try_from(rung.len()).unwrap_or(1);
    // SAFETY: the buffer holds as many events as the call is given as its limit.
    while unsafe { libc::epoll_wait(poll.as_raw_fd(), rung.as_mut_ptr(), room, 0) } == room {}
}

fn pause(bell: &Sampler, is_paused: bool) -> io::Result<()> {
    // SAFETY: the descriptor is an event's, and the argument a number.
    match unsafe { libc::ioctl(bell.as_raw_fd(), PAUSE_OUTPUT, libc::c_ulong::from(is_paused)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

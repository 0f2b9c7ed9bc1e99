//! Names of containers, which the machine's container runtimes know.

use std::io;
use std::task::{Context, Poll};

use super::Collector;
use crate::sources::containers::{RuntimeMessage, RuntimeNames, RuntimeSockets};
use crate::watch::session::parts::SessionParts;

/// Requests names of the containers that have none.
pub(super) struct ContainerNameLookup {
    names: RuntimeNames,
    answer: Option<RuntimeMessage>,
}

impl ContainerNameLookup {
    /// Starts the thread that asks the runtimes.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(sockets: &RuntimeSockets) -> io::Result<Self> {
        Ok(Self { names: RuntimeNames::start(sockets)?, answer: None })
    }
}

impl Collector for ContainerNameLookup {
    fn collect(&mut self, parts: &mut SessionParts) {
        self.names.want(parts.sink.state().names());
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.names.poll_recv(context) {
            Poll::Ready(Some(received)) => {
                self.answer = Some(received);
                Poll::Ready(())
            }
            // The thread has ended.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn take_answer(&mut self, parts: &mut SessionParts) {
        let answer = self.answer.take();
        if let Some(input) = answer.and_then(|answer| self.names.take(answer, parts.sink.state().names())) {
            parts.sink.step(input);
        }
    }

    fn is_settled(&self, parts: &SessionParts) -> bool {
        self.names.want(parts.sink.state().names());
        self.names.is_settled()
    }
}

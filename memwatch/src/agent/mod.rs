//! `memwatch agent`: one watch on everybody for as long as the machine runs, and those who may ask it.
//!
//! One task owns the watch; all others get snapshots through [`SnapshotSource`].

mod http;
mod metrics;
mod publish;

use std::net::TcpListener;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use self::publish::{AgentState, Publisher, Requests, SnapshotSource};
use crate::args::{Agent, Common};
use crate::exit::{Exit, Failure};
use crate::session::Session;

/// How often the watch looks at itself even if nobody asks: peaks of workloads are sums at one moment.
const TICK: Duration = Duration::from_secs(1);

/// `memwatch agent`, until it is told to end.
pub(crate) fn run(agent: &Agent, common: &Common) -> Result<Exit, Failure> {
    let listener =
        agent.listen.map(|address| TcpListener::bind(address).with_context(|| format!("cannot listen on {address}")));
    let listener = listener.transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from)?;
    runtime.block_on(async {
        let mut session = Session::open(&crate::run::everybody(common))?;
        let (source, requests) = SnapshotSource::new();
        if let Some(listener) = listener {
            listener.set_nonblocking(true).map_err(anyhow::Error::from)?;
            let listener = tokio::net::TcpListener::from_std(listener).map_err(anyhow::Error::from)?;
            tokio::spawn(http::serve(listener, source.clone(), agent.process_metrics.0));
        }
        drive(&mut session, requests).await?;
        drop(source);
        Ok(Exit::Ok)
    })
}

/// The loop of the agent: records, readings, libraries, questions and signals, until one of the last ends it.
///
/// SIGHUP is ignored: there is no configuration to read again, and a terminal that closes must not end a service.
async fn drive(session: &mut Session, mut requests: Requests) -> Result<(), Failure> {
    let mut publisher = Publisher::default();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let listen = |kind| signal(kind).map_err(anyhow::Error::from);
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let mut hangup = listen(SignalKind::hangup())?;
    loop {
        tokio::select! {
            () = session.advance() => {}
            Some(reply) = requests.recv() => {
                // Whoever asked may have gone.
                let _ = reply.send(publisher.fresh(session, AgentState::default()));
            }
            _ = ticks.tick() => {
                publisher.renew(session, AgentState::default());
            }
            _ = hangup.recv() => {}
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
        }
    }
}

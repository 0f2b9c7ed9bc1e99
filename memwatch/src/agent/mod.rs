//! `memwatch agent`: one watch on everybody for as long as the machine runs, and those who may ask it.
//!
//! One task owns the watch; all others get snapshots through [`publish::SnapshotSource`]. docs/agent.md is for those who run it.

pub(crate) mod args;
mod conversation;
mod credentials;
mod descriptors;
mod directory;
pub(crate) mod history;
mod http;
mod memory;
pub(crate) mod metrics;
mod notify;
mod privileges;
pub(crate) mod publish;
mod push;
mod read_only;
mod socket;
mod survival;
mod trail;
pub(crate) mod web;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use self::conversation::{Reception, TIMEOUT};
use self::history::History;
use self::http::Serving;
use self::http::tls::Certificate;
use self::memory::Trim;
use self::notify::Notifier;
use self::privileges::Capabilities;
use self::publish::{AgentState, Publisher, Question, Requests, SnapshotSource};
use self::push::receiver::Receiver;
use self::push::{Pusher, Pushes};
use self::socket::{AccessPolicy, CONNECTION_LIMIT, OpenSocket};
use self::web::access::{Exposure, PageAccess};
use crate::agent::args::{Agent, Insecure};
use crate::backends::readings::DeviceLibrary;
use crate::exit::{Exit, Failure};
use crate::options::Common;
use crate::sources::kernel::load;
use crate::watch::priority::{Beginning, begin_before_all};
use crate::watch::session::{Session, SessionOptions};

/// The version of NVIDIA's kernel module, where it is loaded (the kernel's `MODULE_VERSION`).
const DRIVER_VERSION: &str = "/sys/module/nvidia/version";

/// How often the watch looks at itself even if nobody asks: peaks of workloads are sums at one moment.
const TICK: Duration = Duration::from_secs(1);

/// For so long it comes before all others, where nobody asks it sooner.
const BEGINNING: Duration = Duration::from_secs(1);

/// How often what PyTorch has counted is read from the memory of each process.
const COUNTERS: Duration = Duration::from_secs(5);

/// `memwatch agent`, until it is stopped.
///
/// What takes more privilege than watching is done first; then the rest is given up, before there is a second thread.
pub(crate) fn run(agent: &Agent, common: &Common) -> Result<Exit, Failure> {
    if agent.left.uninstall {
        return survival::uninstall(agent);
    }
    // An agent that is started again under load answers soon.
    let beginning = Some((begin_before_all(), Instant::now()));
    take_room();
    let mut options = options(agent, common);
    let notifier = Notifier::of_this_process();
    let receiver = pusher(agent)?;
    let listener = bind(agent)?;
    let address = listener.as_ref().map(TcpListener::local_addr).transpose().map_err(anyhow::Error::from)?;
    let certificate = certificate(agent)?;
    let page = PageAccess::new(address, exposure(agent));
    let group = credentials::group_number(credentials::GROUP);
    let socket = OpenSocket::open(&agent.socket, group).map_err(|error| Failure::from_socket(error, &agent.socket))?;
    let mut history = History::prepare(agent, group)?;
    options.survival = survival::prepare(agent, options.classic_uprobes);
    let lacking = restrict(agent, &options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from)?;
    let ended = runtime.block_on(async {
        let signals = Signals::listen().map_err(anyhow::Error::from)?;
        let mut session = Session::open(&options)?;
        survival::report(&session);
        if let Some(history) = &mut history {
            history.begin(&mut session);
        }
        session.pipeline_mut().watch_growth();
        if let Some(sentence) = lacking {
            eprintln!("memwatch: {sentence}");
        }
        let (source, requests) = SnapshotSource::new();
        let access = AccessPolicy::new(CONNECTION_LIMIT);
        let writer = Arc::default();
        let reception = Reception {
            source: source.clone(),
            access: access.clone(),
            group,
            timeouts: TIMEOUT,
            writer,
            page: Arc::clone(&page),
        };
        tokio::spawn(reception.serve(socket.listener().map_err(anyhow::Error::from)?));
        if let Some(listener) = listener {
            serve_http(listener, (source.clone(), page), agent, certificate)?;
        }
        let pushes = receiver.map(|pusher| begin(pusher, source));
        notifier.ready();
        eprintln!("memwatch: watching this machine, answering on {}", agent.socket.display());
        let keeps = agent.left.keep;
        let publisher = Publisher::after(history.as_ref().and_then(History::earlier));
        let agent = Loop { session, history, publisher, notifier, access, pushes, beginning, trim: Trim::default() };
        // As a task: to wake what `block_on` runs itself, tokio writes into a pipe of its own and reads it, fifty times a second.
        tokio::spawn(agent.live(requests, signals, keeps)).await.map_err(anyhow::Error::from)?;
        Ok(Exit::Ok)
    });
    // A thread may be at work for a client that nobody will answer any more.
    runtime.shutdown_background();
    ended
}

/// What this process may take of the machine.
fn take_room() {
    memory::give_back();
    descriptors::raise_limit();
}

/// How everybody is watched.
fn options(agent: &Agent, common: &Common) -> SessionOptions {
    let mut options = crate::watch::subject::everybody(common);
    options.rests_without_processes = true;
    options.counters_every = Some(COUNTERS);
    if agent.no_nvml {
        options.device_library = DeviceLibrary::Off;
    }
    options
}

/// Where HTTP will be served, if it is to be.
fn bind(agent: &Agent) -> anyhow::Result<Option<TcpListener>> {
    let bind = |address| TcpListener::bind(address).with_context(|| format!("HTTP cannot be served on {address}"));
    agent.listen.map(bind).transpose()
}

/// Serves HTTP from now on, and says where: the port may be the system's choice.
fn serve_http(
    listener: TcpListener,
    (source, page): (SnapshotSource, Arc<PageAccess>),
    agent: &Agent,
    certificate: Option<Arc<Certificate>>,
) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let serving = Serving::new(agent.process_metrics.0, !agent.no_nvml).through(certificate);
    tokio::spawn(http::serve(tokio::net::TcpListener::from_std(listener)?, (source, page), serving));
    eprintln!("memwatch: serving metrics on {scheme}://{address}/metrics");
    eprintln!("memwatch: for the page, type: memwatch web");
    Ok(())
}

/// What it is served with, where that is TLS.
fn certificate(agent: &Agent) -> Result<Option<Arc<Certificate>>, Failure> {
    let files = agent.transport.files();
    let certificate = files.map(|(certificate, key)| Certificate::load(certificate, key)).transpose();
    certificate.map_err(|why| Failure::new(Exit::Error, why))
}

/// Who gets to the page.
fn exposure(agent: &Agent) -> Exposure {
    match (agent.transport.files(), agent.transport.insecure) {
        (Some(_), _) => Exposure::Encrypted,
        (None, Some(Insecure::Page)) => Exposure::Readable,
        (None, _) => Exposure::Loopback,
    }
}

/// Who pushes metrics, if somebody is to get them. Files are read before the right to do so is given up.
fn pusher(agent: &Agent) -> Result<Option<Pusher>, Failure> {
    let receiver = Receiver::named(&agent.otlp).map_err(|why| Failure::new(Exit::Error, why))?;
    let every = agent.otlp.otlp_interval;
    Ok(receiver.map(|receiver| Pusher::new(receiver, every, agent.process_metrics.0)))
}

/// Pushes from now on; how that goes.
fn begin(pusher: Pusher, source: SnapshotSource) -> Arc<Pushes> {
    let state = pusher.pushes();
    tokio::spawn(pusher.push(source));
    state
}

/// The driver's version; empty where none is loaded.
fn driver_version() -> String {
    std::fs::read_to_string(DRIVER_VERSION).unwrap_or_default().trim().to_owned()
}

/// Keeps what it writes to, and no more of root's files. Whoever has set it up in mounts of its own has done that already.
fn confine(agent: &Agent) {
    let socket = survival::socket_of(agent);
    let folders = [socket.parent().map(Path::to_owned), agent.history.clone(), Some(agent.left.bpffs.clone())];
    let writable: Vec<_> = folders.into_iter().flatten().filter_map(|folder| folder.canonicalize().ok()).collect();
    match read_only::confine(&writable) {
        Ok(is_confined) => log::debug!("file systems are read-only: {is_confined}"),
        Err(error) => eprintln!("memwatch: root's files stay as they are to this agent, and not read-only: {error}"),
    }
}

/// Gives up what watching does not take; says what of that was not there in the first place.
fn restrict(agent: &Agent, options: &SessionOptions) -> Result<Option<String>, Failure> {
    confine(agent);
    let needed = Capabilities::needed(load::takes_sys_admin(options.classic_uprobes));
    let lacking = privileges::keep_only(needed).context("privileges cannot be given up")?;
    Ok(privileges::cost_of(lacking))
}

/// The one task that owns the watch.
struct Loop {
    session: Session,
    history: Option<History>,
    publisher: Publisher,
    notifier: Notifier,
    access: Arc<AccessPolicy>,
    pushes: Option<Arc<Pushes>>,
    /// Until it has answered, or nobody asks.
    beginning: Option<(Beginning, Instant)>,
    trim: Trim,
}

impl Loop {
    /// Until the agent is to end; then leaves what is to stay.
    async fn live(mut self, requests: Requests, signals: Signals, keeps: bool) {
        self.turn(requests, signals).await;
        self.notifier.stopping();
        if let Some(history) = &self.history {
            history.end(&mut self.session);
        }
        survival::end(&mut self.session, keeps);
    }

    /// Records, readings, libraries, questions and signals, until one of the last ends it.
    ///
    /// The signs of life come from here and nowhere else: a loop that hangs gives none.
    async fn turn(&mut self, mut requests: Requests, mut signals: Signals) {
        let mut ticks = interval(self.notifier.longest_pause().map_or(TICK, |pause| pause.min(TICK)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.session.advance() => {}
                Some(question) = requests.recv() => {
                    self.answer(question);
                    self.has_begun(Duration::ZERO);
                }
                _ = ticks.tick() => {
                    // A snapshot of thousands of processes is made when somebody asks.
                    self.session.tick();
                    self.has_begun(BEGINNING);
                    if let Some(history) = &mut self.history {
                        history.tend(&mut self.session);
                    }
                    self.publisher.tend(self.session.pipeline_mut());
                    self.trim.tend();
                    self.notifier.alive();
                    self.notifier.status(status(self.session.extent(), self.access.state().clients));
                }
                () = signals.end() => return,
            }
        }
    }

    /// It comes before all others no more, where it has done so for this long.
    fn has_begun(&mut self, long: Duration) {
        if let Some((beginning, _)) = self.beginning.take_if(|(_, since)| since.elapsed() >= long) {
            beginning.end();
        }
    }
}

impl Loop {
    /// Whoever asked may have gone.
    fn answer(&mut self, question: Question) {
        let Self { session, history, publisher, access, pushes, .. } = self;
        let state = AgentState {
            history: history.as_ref().map(History::state),
            survives: session.survives(),
            pushes: pushes.as_deref().map(Pushes::state),
            ..access.state()
        };
        match question {
            Question::Latest(reply) => {
                let _ = reply.send(publisher.fresh(session, state));
            }
            Question::History(reply) => {
                let _ = reply.send(history.as_ref().map(History::kept));
            }
            Question::Outlook(reply) => {
                let _ = reply.send(publisher.outlook(session));
            }
            Question::Trail(reply) => {
                let _ = reply.send(publisher.trail());
            }
            Question::ResetPeaks(tgid, viewer, reply) => {
                let now = publisher.fresh(session, state);
                let _ = reply.send(Publisher::reset_peaks(session, &now, (tgid, viewer)));
            }
        }
    }
}

/// `12 processes on 2 GPUs, 1 client`.
fn status((processes, gpus): (usize, usize), clients: u64) -> String {
    let plural = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    let clients = usize::try_from(clients).unwrap_or(usize::MAX);
    format!(
        "{} on {}, {}",
        plural(processes, "process", "processes"),
        plural(gpus, "GPU", "GPUs"),
        plural(clients, "client", "clients"),
    )
}

impl Failure {
    /// The socket could not be made.
    fn from_socket(error: anyhow::Error, path: &Path) -> Self {
        let denied = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
        if denied.into_iter().any(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied) {
            let elsewhere = format!("or let it listen elsewhere than on {}: --socket PATH", path.display());
            let advice = format!("{}\n{elsewhere}", crate::exit::permission_advice());
            return Self { exit: Exit::NotPermitted, error, advice: Some(advice) };
        }
        error.into()
    }
}

/// SIGINT and SIGTERM end the agent. SIGHUP is ignored: there is nothing to read again, and a terminal that closes is no end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn end(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                _ = self.hangup.recv() => {}
            }
        }
    }
}

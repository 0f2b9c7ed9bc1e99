//! `memwatch agent`: a permanent session for the whole machine, and the servers that clients use.
//!
//! One task owns the session; all others get snapshots through [`publish::SnapshotSource`].
//! docs/operate/agent.md is the user's guide.

pub(crate) mod args;
mod conversation;
mod credentials;
mod descriptors;
mod directory;
pub(crate) mod events;
pub(crate) mod flight_recorder;
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
pub(crate) mod watches;
pub(crate) mod web;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use self::conversation::{Reception, TIMEOUT};
use self::events::{AgentEvents, EventForms};
use self::flight_recorder::FlightRecorder;
use self::history::AgentHistory;
use self::http::Serving;
use self::http::tls::Certificate;
use self::memory::Trim;
use self::notify::Notifier;
use self::privileges::Capabilities;
use self::publish::{AgentState, Publisher, PublisherRequest, PublisherRequests, SnapshotSource};
use self::push::receiver::Receiver;
use self::push::{Pusher, Pushes};
use self::socket::{AccessPolicy, CONNECTION_LIMIT, OpenSocket};
use self::watches::Watches;
use self::web::access::{Exposure, PageAccess};
use crate::agent::args::{AgentArgs, Insecure};
use crate::backends::readings::DeviceLibrary;
use crate::exit::{Exit, ExitFailure};
use crate::options::CommonArgs;
use crate::sources::kernel::load;
use crate::watch::priority::{Beginning, begin_before_all};
use crate::watch::session::{Session, SessionOptions};

/// File with the version of NVIDIA's kernel module, if loaded (the kernel's `MODULE_VERSION`).
const DRIVER_VERSION: &str = "/sys/module/nvidia/version";

/// Interval of internal updates without a request: the peaks of a workload are sums at one moment.
const TICK: Duration = Duration::from_secs(1);

/// Time for which the agent runs at high priority after its start, unless a request arrives
/// earlier.
const BEGINNING: Duration = Duration::from_secs(1);

/// Interval for reading PyTorch's counters from the memory of each process.
const COUNTERS: Duration = Duration::from_secs(5);

/// Runs `memwatch agent` until it is stopped.
///
/// Steps that need more privileges than the session come first. The extra privileges are then
/// dropped, before a second thread exists.
pub(crate) fn run(agent: &AgentArgs, forms: EventForms, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    if agent.left.uninstall {
        return survival::uninstall(agent);
    }
    // High priority lets a restarted agent answer soon under load.
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
    let socket = open_socket(agent, group)?;
    let mut history = AgentHistory::prepare(agent, group)?;
    options.survival = survival::prepare(agent, options.classic_uprobes);
    let lacking = restrict(agent, &options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from)?;
    let ended = runtime.block_on(async {
        let signals = AgentSignals::listen().map_err(anyhow::Error::from)?;
        let mut session = Session::open(&options)?;
        survival::report(&session);
        if let Some(history) = &mut history {
            history.begin(&mut session);
        }
        let events = begin_events(agent, forms, &mut session);
        report_lacking(lacking.as_deref());
        let watches = Watches::new(common);
        let recorder = FlightRecorder::begin(agent.flight_recorder, &watches, &session);
        let (source, requests) = SnapshotSource::new();
        let access = AccessPolicy::new(CONNECTION_LIMIT);
        let reception = Reception {
            source: source.clone(),
            access: access.clone(),
            group,
            timeouts: TIMEOUT,
            writer: Arc::default(),
            page: Arc::clone(&page),
            watches: Arc::clone(&watches),
        };
        tokio::spawn(reception.serve(socket.listener().map_err(anyhow::Error::from)?));
        if let Some(listener) = listener {
            serve_http(listener, (source.clone(), page), agent, certificate)?;
        }
        let pushes = receiver.map(|pusher| begin(pusher, source));
        notifier.ready();
        eprintln!("memwatch: watching this machine, answering on {}", agent.socket.display());
        let publisher = Publisher::after(history.as_ref().and_then(AgentHistory::earlier));
        let trim = Trim::default();
        let turns = Loop { session, history, events, recorder, publisher, notifier, access, pushes, beginning, trim };
        // In a task: to wake the future of `block_on` tokio writes to its own pipe each time.
        tokio::spawn(turns.live(requests, signals, agent.left.keep)).await.map_err(anyhow::Error::from)?;
        Ok(Exit::Ok)
    });
    // A thread may still be working for a client that gets no answer.
    runtime.shutdown_background();
    ended
}

/// Prints which privileges are missing.
fn report_lacking(lacking: Option<&str>) {
    if let Some(sentence) = lacking {
        eprintln!("memwatch: {sentence}");
    }
}

/// Turns the detectors on that run without a client, and begins to report events.
fn begin_events(agent: &AgentArgs, forms: EventForms, session: &mut Session) -> AgentEvents {
    session.pipeline_mut().watch_growth();
    AgentEvents::begin(&agent.events, forms, session)
}

/// Opens the socket for clients.
fn open_socket(agent: &AgentArgs, group: Option<u32>) -> Result<OpenSocket, ExitFailure> {
    OpenSocket::open(&agent.socket, group).map_err(|error| ExitFailure::from_socket(error, &agent.socket))
}

/// Applies the resource settings of this process.
fn take_room() {
    memory::give_back();
    descriptors::raise_limit();
}

/// Returns the options of the machine-wide session.
fn options(agent: &AgentArgs, common: &CommonArgs) -> SessionOptions {
    let mut options = crate::watch::subject::everybody(common);
    options.rests_without_processes = true;
    options.counters_every = Some(COUNTERS);
    if agent.no_nvml {
        options.device_library = DeviceLibrary::Off;
    }
    options
}

/// Binds the HTTP address, if one is configured.
fn bind(agent: &AgentArgs) -> anyhow::Result<Option<TcpListener>> {
    let bind = |address| TcpListener::bind(address).with_context(|| format!("HTTP cannot be served on {address}"));
    agent.listen.map(bind).transpose()
}

/// Starts the HTTP server, and prints its address, whose port the system may have chosen.
fn serve_http(
    listener: TcpListener,
    (source, page): (SnapshotSource, Arc<PageAccess>),
    agent: &AgentArgs,
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

/// Loads the TLS certificate, if one is configured.
fn certificate(agent: &AgentArgs) -> Result<Option<Arc<Certificate>>, ExitFailure> {
    let files = agent.transport.files();
    let certificate = files.map(|(certificate, key)| Certificate::load(certificate, key)).transpose();
    certificate.map_err(|why| ExitFailure::new(Exit::Error, why))
}

/// Returns how the page may be reached.
fn exposure(agent: &AgentArgs) -> Exposure {
    match (agent.transport.files(), agent.transport.insecure) {
        (Some(_), _) => Exposure::Encrypted,
        (None, Some(Insecure::Page)) => Exposure::Readable,
        (None, _) => Exposure::Loopback,
    }
}

/// Creates the metrics push, if configured. Its files are read before the privilege to read them is
/// dropped.
fn pusher(agent: &AgentArgs) -> Result<Option<Pusher>, ExitFailure> {
    let receiver = Receiver::named(&agent.otlp).map_err(|why| ExitFailure::new(Exit::Error, why))?;
    let every = agent.otlp.otlp_interval;
    Ok(receiver.map(|receiver| Pusher::new(receiver, every, agent.process_metrics.0)))
}

/// Starts pushing. Returns the state of the pushes.
fn begin(pusher: Pusher, source: SnapshotSource) -> Arc<Pushes> {
    let state = pusher.pushes();
    tokio::spawn(pusher.push(source));
    state
}

/// Returns the version of the driver, empty if none is loaded.
fn driver_version() -> String {
    std::fs::read_to_string(DRIVER_VERSION).unwrap_or_default().trim().to_owned()
}

/// Makes all file systems read-only except the agent's output directories. A service manager with
/// private mounts has already done so.
fn confine(agent: &AgentArgs) {
    let socket = survival::socket_of(agent);
    let folders = [socket.parent().map(Path::to_owned), agent.history.clone(), Some(agent.left.bpffs.clone())];
    let writable: Vec<_> = folders.into_iter().flatten().filter_map(|folder| folder.canonicalize().ok()).collect();
    match read_only::confine(&writable) {
        Ok(is_confined) => log::debug!("file systems are read-only: {is_confined}"),
        Err(error) => eprintln!("memwatch: cannot make the file systems read-only for this agent: {error}"),
    }
}

/// Drops privileges that the session does not need. Returns a sentence about needed privileges that
/// are missing.
fn restrict(agent: &AgentArgs, options: &SessionOptions) -> Result<Option<String>, ExitFailure> {
    confine(agent);
    let needed = Capabilities::needed(load::takes_sys_admin(options.classic_uprobes));
    let lacking = privileges::keep_only(needed).context("privileges cannot be given up")?;
    Ok(privileges::cost_of(lacking))
}

/// The task that owns the session.
struct Loop {
    session: Session,
    history: Option<AgentHistory>,
    events: AgentEvents,
    recorder: Option<FlightRecorder>,
    publisher: Publisher,
    notifier: Notifier,
    access: Arc<AccessPolicy>,
    pushes: Option<Arc<Pushes>>,
    /// High priority, until the first answer or a timeout.
    beginning: Option<(Beginning, Instant)>,
    trim: Trim,
}

impl Loop {
    /// Runs until the agent is stopped, then leaves or removes the state for the next agent.
    async fn live(mut self, requests: PublisherRequests, signals: AgentSignals, keeps: bool) {
        self.turn(requests, signals).await;
        self.notifier.stopping();
        if let Some(history) = &self.history {
            history.end(&mut self.session);
        }
        survival::end(&mut self.session, keeps);
    }

    /// Handles records, readings, libraries and requests until a signal arrives.
    ///
    /// Watchdog messages are sent only here, so that a hung loop sends none.
    async fn turn(&mut self, mut requests: PublisherRequests, mut signals: AgentSignals) {
        let mut ticks = interval(self.notifier.longest_pause().map_or(TICK, |pause| pause.min(TICK)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.session.advance() => {
                    if let Some(recorder) = &mut self.recorder {
                        recorder.notice(&self.session);
                    }
                }
                Some(question) = requests.recv() => {
                    self.answer(question);
                    self.has_begun(Duration::ZERO);
                }
                _ = ticks.tick() => {
                    // A tick makes no snapshot, which is expensive with thousands of processes.
                    self.session.tick();
                    self.has_begun(BEGINNING);
                    if let Some(history) = &mut self.history {
                        history.tend(&mut self.session);
                    }
                    if let Some(recorder) = &mut self.recorder {
                        recorder.tend(&mut self.session);
                    }
                    self.events.tend(&mut self.session);
                    self.publisher.tend(self.session.pipeline_mut());
                    self.trim.tend();
                    self.notifier.alive();
                    self.notifier.status(status(self.session.extent(), self.access.state().clients));
                }
                () = signals.end() => return,
            }
        }
    }

    /// Ends the high priority if it has lasted for at least `long`.
    fn has_begun(&mut self, long: Duration) {
        if let Some((beginning, _)) = self.beginning.take_if(|(_, since)| since.elapsed() >= long) {
            beginning.end();
        }
    }
}

impl Loop {
    /// Answers a request. The client may have left by now.
    fn answer(&mut self, question: PublisherRequest) {
        let Self { session, history, events, recorder, publisher, access, pushes, .. } = self;
        let state = AgentState {
            history: history.as_ref().map(AgentHistory::state),
            survives: session.survives(),
            events_left_out: events.left_out(),
            flight_recorder: recorder.as_ref().map(FlightRecorder::state),
            pushes: pushes.as_deref().map(Pushes::state),
            ..access.state()
        };
        match question {
            PublisherRequest::Latest(reply) => {
                let _ = reply.send(publisher.fresh(session, state));
            }
            PublisherRequest::History(reply) => {
                let _ = reply.send(history.as_ref().map(AgentHistory::kept));
            }
            PublisherRequest::Outlook(reply) => {
                let _ = reply.send(publisher.outlook(session));
            }
            PublisherRequest::Events(viewer, reply) => {
                let _ = reply.send(events.subscribe(viewer, session));
            }
            PublisherRequest::Trail(reply) => {
                let _ = reply.send(publisher.trail());
            }
            PublisherRequest::ResetPeaks(tgid, viewer, reply) => {
                let now = publisher.fresh(session, state);
                let _ = reply.send(Publisher::reset_peaks(session, &now, (tgid, viewer)));
            }
        }
    }
}

/// Formats the status line: `12 processes on 2 GPUs, 1 client`.
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

impl ExitFailure {
    /// Failure to create the socket.
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

/// Signals of the agent. SIGINT and SIGTERM end it. SIGHUP is ignored: there is no configuration to
/// reload, and closing a terminal does not end the agent.
struct AgentSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl AgentSignals {
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

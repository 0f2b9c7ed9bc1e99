//! Full screen view of the fleet, refreshed periodically.

mod state;
mod view;

use std::time::Duration;

use jiff::Zoned;
use ratatui::crossterm::event::Event as TerminalEvent;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use self::state::FleetScreenState;
use self::view::{FleetScreenContent, draw};
use super::ask::{self, FleetQuestion, FleetReport};
use crate::exit::{Exit, ExitFailure};
use crate::render::tui::keys::{self, KeyCommand};
use crate::render::tui::terminal::FullScreen;
use crate::render::tui::view::TerminalLook;
use crate::render::tui::{ScreenEvent, spawn_keys};
use crate::sources::prometheus::{Manner, PrometheusClient, PrometheusServer, Trouble};
use crate::watch::signals::TerminationSignals;

/// Server, interval and appearance.
pub(super) struct FleetScreenOptions {
    pub(super) server: PrometheusServer,
    pub(super) manner: Manner,
    pub(super) interval: Duration,
    pub(super) look: TerminalLook,
}

/// A query in flight.
type QueryInFlight = JoinHandle<(PrometheusClient, Result<FleetReport, Trouble>)>;

/// A question with its answer.
struct Answered {
    question: FleetQuestion,
    report: FleetReport,
    time: (String, f64),
}

struct FleetScreen {
    options: FleetScreenOptions,
    terminal: FullScreen,
    state: FleetScreenState,
    /// The last answer of each page.
    answered: Vec<Answered>,
    trouble: Option<String>,
    /// The client while no query is in flight.
    client: Option<PrometheusClient>,
    asked: Option<(FleetQuestion, QueryInFlight)>,
    due: Instant,
}

/// Shows the screen until the user quits; the first report is already there.
///
/// # Errors
/// Those of the terminal.
pub(super) async fn run(
    options: FleetScreenOptions,
    client: PrometheusClient,
    (question, report): (FleetQuestion, FleetReport),
) -> Result<Exit, ExitFailure> {
    let mut signals = TerminationSignals::listen()?;
    let terminal = FullScreen::enter().map_err(anyhow::Error::from)?;
    let (sender, mut events) = mpsc::channel(64);
    spawn_keys(sender);
    let state = FleetScreenState::new(&question);
    let due = Instant::now() + options.interval;
    let mut fleet = FleetScreen {
        options,
        terminal,
        state,
        answered: Vec::new(),
        trouble: None,
        client: Some(client),
        asked: None,
        due,
    };
    fleet.keep(question, report);
    fleet.redraw()?;
    loop {
        fleet.ask_where_due();
        let due = fleet.due;
        let may_wait = fleet.asked.is_none() && !fleet.state.is_paused();
        tokio::select! {
            event = events.recv() => match event {
                Some(event) if fleet.handle(&event) => {}
                _ => return Ok(Exit::Ok),
            },
            answer = answer(&mut fleet.asked) => fleet.take(answer),
            () = sleep_until(due), if may_wait => {}
            _ = signals.any() => return Ok(Exit::Ok),
        }
        fleet.redraw()?;
    }
}

/// Waits for the query in flight; never returns if there is none.
async fn answer(
    asked: &mut Option<(FleetQuestion, QueryInFlight)>,
) -> Option<(PrometheusClient, Result<FleetReport, Trouble>)> {
    match asked {
        Some((_, task)) => task.await.ok(),
        None => std::future::pending().await,
    }
}

impl FleetScreen {
    /// Sends a query if one is due, or if the question has changed.
    fn ask_where_due(&mut self) {
        let question = self.state.question();
        let is_asked = self.asked.as_ref().is_some_and(|(asked, _)| *asked == question);
        let is_due = self.asked.is_none() && !self.state.is_paused() && Instant::now() >= self.due;
        if is_asked || (self.present(&question).is_some() && !is_due) {
            return;
        }
        // After an error, waits for the next interval.
        if self.trouble.is_some() && self.asked.is_none() && Instant::now() < self.due {
            return;
        }
        if let Some((_, task)) = self.asked.take() {
            task.abort();
        }
        let (server, manner) = (self.options.server.clone(), self.options.manner.clone());
        let url = server.url();
        let mut client = self.client.take().unwrap_or_else(|| PrometheusClient::new(server, manner));
        let asks = question.clone();
        let task = tokio::spawn(async move {
            let answer = ask::report(&mut client, url, &asks).await;
            (client, answer)
        });
        self.asked = Some((question, task));
        self.due = Instant::now() + self.options.interval;
    }

    fn take(&mut self, answer: Option<(PrometheusClient, Result<FleetReport, Trouble>)>) {
        let asked = self.asked.take();
        let (Some((question, _)), Some((client, answer))) = (asked, answer) else { return };
        self.client = Some(client);
        match answer {
            Ok(report) => {
                self.trouble = None;
                self.keep(question, report);
            }
            Err(Trouble { what, fix }) => self.trouble = Some(format!("{what}  {}", fix.unwrap_or_default())),
        }
    }

    /// Stores an answer. Keeps only the last one for each kind of rows.
    fn keep(&mut self, question: FleetQuestion, report: FleetReport) {
        let now = Zoned::now();
        let time = (now.strftime("%H:%M:%S").to_string(), super::now());
        self.answered.retain(|answered| answered.question.by != question.by);
        self.answered.push(Answered { question, report, time });
    }

    fn present(&self, question: &FleetQuestion) -> Option<&Answered> {
        self.answered.iter().find(|answered| answered.question == *question)
    }

    /// Handles an input event; returns false to quit.
    fn handle(&mut self, event: &ScreenEvent) -> bool {
        let event = match event {
            ScreenEvent::Continued => {
                self.terminal.resume();
                TerminalEvent::Resize(0, 0)
            }
            ScreenEvent::Terminal(event) => event.clone(),
        };
        match keys::command(&event, false) {
            Some(KeyCommand::Quit) => return false,
            Some(KeyCommand::Suspend) => self.terminal.suspend(),
            Some(KeyCommand::Redraw) => self.terminal.repaint(),
            Some(KeyCommand::Mouse) => {
                let on = self.terminal.toggle_mouse();
                self.state.notify(if on { "mouse on: click, wheel" } else { "mouse off: it selects text" });
            }
            Some(KeyCommand::View(step)) => {
                let question = self.state.question();
                let rows = self.answered.iter().find(|answered| answered.question == question);
                let before = self.state.question();
                self.state.take(step, rows.map(|answered| &answered.report.rows));
                if self.state.question() != before {
                    // The new question has not failed yet.
                    self.trouble = None;
                }
            }
            Some(KeyCommand::ResetPeaks) => self.state.notify("r has no function here: ? lists the keys"),
            Some(KeyCommand::Unknown(key)) => {
                self.state.notify(format!("{key} has no function here: ? lists the keys"));
            }
            Some(KeyCommand::Resize) | None => {}
        }
        true
    }

    fn redraw(&mut self) -> Result<(), ExitFailure> {
        let question = self.state.question();
        let present = self.answered.iter().find(|answered| answered.question == question);
        let answered = present.or(self.answered.last());
        let url = self.options.server.url();
        let shown = FleetScreenContent {
            report: answered.map(|answered| &answered.report),
            is_present: present.is_some(),
            time: answered.map_or(("", 0.0), |answered| (answered.time.0.as_str(), answered.time.1)),
            trouble: self.trouble.as_deref(),
            url: &url,
            look: self.options.look,
        };
        let state = &mut self.state;
        Ok(self.terminal.draw(|frame| draw(frame, state, &shown)).map_err(anyhow::Error::from)?)
    }
}

//! Full screen view of the fleet, refreshed periodically.

mod state;
mod view;

use std::time::Duration;

use jiff::Zoned;
use ratatui::crossterm::event::Event as TerminalEvent;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use self::state::State;
use self::view::{Shown, draw};
use super::ask::{self, Question, Report};
use crate::exit::{Exit, Failure};
use crate::render::tui::keys::{self, Command};
use crate::render::tui::terminal::FullScreen;
use crate::render::tui::view::Look;
use crate::render::tui::{Event, spawn_keys};
use crate::sources::prometheus::{Client, Manner, Server, Trouble};
use crate::watch::signals::Signals;

/// Server, interval and appearance.
pub(super) struct Options {
    pub(super) server: Server,
    pub(super) manner: Manner,
    pub(super) interval: Duration,
    pub(super) look: Look,
}

/// A query in flight.
type Asked = JoinHandle<(Client, Result<Report, Trouble>)>;

/// A question with its answer.
struct Answered {
    question: Question,
    report: Report,
    time: (String, f64),
}

struct Fleet {
    options: Options,
    terminal: FullScreen,
    state: State,
    /// The last answer of each page.
    answered: Vec<Answered>,
    trouble: Option<String>,
    /// The client while no query is in flight.
    client: Option<Client>,
    asked: Option<(Question, Asked)>,
    due: Instant,
}

/// Shows the screen until the user quits; the first report is already there.
///
/// # Errors
/// Those of the terminal.
pub(super) async fn run(
    options: Options,
    client: Client,
    (question, report): (Question, Report),
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let terminal = FullScreen::enter().map_err(anyhow::Error::from)?;
    let (sender, mut events) = mpsc::channel(64);
    spawn_keys(sender);
    let state = State::new(&question);
    let due = Instant::now() + options.interval;
    let mut fleet =
        Fleet { options, terminal, state, answered: Vec::new(), trouble: None, client: Some(client), asked: None, due };
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
async fn answer(asked: &mut Option<(Question, Asked)>) -> Option<(Client, Result<Report, Trouble>)> {
    match asked {
        Some((_, task)) => task.await.ok(),
        None => std::future::pending().await,
    }
}

impl Fleet {
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
        let mut client = self.client.take().unwrap_or_else(|| Client::new(server, manner));
        let asks = question.clone();
        let task = tokio::spawn(async move {
            let answer = ask::report(&mut client, url, &asks).await;
            (client, answer)
        });
        self.asked = Some((question, task));
        self.due = Instant::now() + self.options.interval;
    }

    fn take(&mut self, answer: Option<(Client, Result<Report, Trouble>)>) {
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
    fn keep(&mut self, question: Question, report: Report) {
        let now = Zoned::now();
        let time = (now.strftime("%H:%M:%S").to_string(), super::now());
        self.answered.retain(|answered| answered.question.by != question.by);
        self.answered.push(Answered { question, report, time });
    }

    fn present(&self, question: &Question) -> Option<&Answered> {
        self.answered.iter().find(|answered| answered.question == *question)
    }

    /// Handles an input event; returns false to quit.
    fn handle(&mut self, event: &Event) -> bool {
        let event = match event {
            Event::Continued => {
                self.terminal.resume();
                TerminalEvent::Resize(0, 0)
            }
            Event::Terminal(event) => event.clone(),
        };
        match keys::command(&event, false) {
            Some(Command::Quit) => return false,
            Some(Command::Suspend) => self.terminal.suspend(),
            Some(Command::Redraw) => self.terminal.repaint(),
            Some(Command::Mouse) => {
                let on = self.terminal.toggle_mouse();
                self.state.notify(if on { "mouse on: click, wheel" } else { "mouse off: it selects text" });
            }
            Some(Command::View(step)) => {
                let question = self.state.question();
                let rows = self.answered.iter().find(|answered| answered.question == question);
                let before = self.state.question();
                self.state.take(step, rows.map(|answered| &answered.report.rows));
                if self.state.question() != before {
                    // The new question has not failed yet.
                    self.trouble = None;
                }
            }
            Some(Command::ResetPeaks) => self.state.notify("r has no function here: ? lists the keys"),
            Some(Command::Unknown(key)) => self.state.notify(format!("{key} has no function here: ? lists the keys")),
            Some(Command::Resize) | None => {}
        }
        true
    }

    fn redraw(&mut self) -> Result<(), Failure> {
        let question = self.state.question();
        let present = self.answered.iter().find(|answered| answered.question == question);
        let answered = present.or(self.answered.last());
        let url = self.options.server.url();
        let shown = Shown {
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

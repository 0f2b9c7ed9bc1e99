//! Actions on a failure or a forecast change: a user's command and a webhook. Neither delays the
//! session.

mod hook;

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Uri, client};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Time limit of a webhook.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of actions in progress. More changes than that only happen if something is very
/// wrong, and are dropped.
const UNDER_WAY: usize = 16;

/// Requested actions.
#[derive(Clone, Debug)]
pub(crate) struct AlertActions {
    /// Command run by the shell, with the change on its standard input.
    pub(crate) exec: Option<String>,
    /// Time limit of the command.
    pub(crate) exec_timeout: Duration,
    /// URL that the change is posted to.
    pub(crate) webhook: Option<String>,
    /// Names of the two options, for messages.
    pub(crate) options: [&'static str; 2],
}

/// Actions in progress.
#[derive(Debug)]
pub(crate) struct Alerts {
    request: AlertActions,
    under_way: JoinSet<()>,
}

impl Alerts {
    /// Starts with no action in progress.
    pub(crate) fn new(request: AlertActions) -> Self {
        Self { request, under_way: JoinSet::new() }
    }

    /// Whether any action is requested.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.request.exec.is_some() || self.request.webhook.is_some()
    }

    /// Starts all requested actions with this line of JSON.
    pub(crate) fn raise(&mut self, json: &[u8]) {
        while self.under_way.try_join_next().is_some() {}
        if self.under_way.len() >= UNDER_WAY {
            eprintln!("memwatch: {UNDER_WAY} commands or posts are still running; this change is not sent");
            return;
        }
        let AlertActions { exec, exec_timeout, webhook, options: [exec_option, webhook_option] } = self.request.clone();
        if let Some(line) = exec {
            let json = json.to_vec();
            self.under_way.spawn(async move {
                if let Err(why) = execute(&line, exec_timeout, &json).await {
                    eprintln!("memwatch: {exec_option} {line:?}: {why}");
                }
            });
        }
        if let Some(url) = webhook {
            let json = json.to_vec();
            self.under_way.spawn(async move {
                let posted = timeout(TIMEOUT, post(&url, json)).await;
                if let Err(why) = posted.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs()))) {
                    eprintln!("memwatch: {webhook_option} {url}: {why}");
                }
            });
        }
    }

    /// Waits for all actions; each has a time limit.
    pub(crate) async fn finish(mut self) {
        while self.under_way.join_next().await.is_some() {}
    }
}

/// Runs a command with a time limit.
async fn execute(line: &str, limit: Duration, json: &[u8]) -> Result<(), String> {
    match hook::execute(line, sleep(limit), json).await {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(format!("it ended with {status}")),
        Ok(None) => {
            Err(format!("it did not exit within {} s and was killed with its child processes", limit.as_secs_f64()))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Posts to a URL of plain HTTP.
async fn post(url: &str, json: Vec<u8>) -> Result<(), String> {
    let uri: Uri = url.parse().map_err(|error| format!("not a URL: {error}"))?;
    let host = uri.host().ok_or("the URL has no host")?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let stream = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(80)));
    let stream = stream.await.map_err(|error| format!("no connection: {error}"))?;
    let (mut sender, connection) =
        client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let authority = uri.authority().map_or(host.as_str(), |authority| authority.as_str());
    let request = Request::post(path).header(HOST, authority).header(CONTENT_TYPE, "application/json");
    let request = request.body(Full::new(Bytes::from(json))).map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(|error| error.to_string());
    connection.abort();
    let status = answer?.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use super::{execute, post};

    fn block<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(future)
    }

    #[test]
    fn a_command_reads_the_change_and_its_failure_is_stated() {
        let long = Duration::from_secs(60);
        assert_eq!(block(execute("test \"$(cat)\" = '{}'", long, b"{}\n")), Ok(()));
        assert_eq!(block(execute("true", long, &vec![b'x'; 1 << 20])), Ok(()), "it need not read");
        let why = block(execute("exit 7", long, b"{}")).expect_err("it failed");
        assert!(why.contains("exit status: 7"), "{why}");
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        let begun = Instant::now();
        let why = block(execute("exec sleep 600", Duration::from_millis(50), b"")).expect_err("it is late");
        assert!(why.contains("was killed") && begun.elapsed() < Duration::from_secs(300), "{why}");
    }

    /// Answers one request with this status line, and returns the request.
    fn server(status: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/hook?a=b", listener.local_addr().expect("it is bound"));
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            let (mut request, mut part) = (String::new(), [0; 4096]);
            while !request.ends_with("{\"level\":1}") {
                let read = stream.read(&mut part).expect("a request");
                request.push_str(&String::from_utf8_lossy(&part[..read]));
            }
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").expect("it listens");
            request
        });
        (url, thread)
    }

    #[test]
    fn oom_alert_posts_to_a_url_and_reports_a_refusal() {
        let (url, thread) = server("204 No Content");
        assert_eq!(block(post(&url, b"{\"level\":1}".to_vec())), Ok(()));
        let request = thread.join().expect("it has answered");
        assert!(request.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{request}");
        assert!(
            request.contains("content-type: application/json\r\n") && request.contains("host: 127.0.0.1:"),
            "{request}"
        );
        let (url, _) = server("503 Service Unavailable");
        let why = block(post(&url, b"{\"level\":1}".to_vec())).expect_err("it refuses");
        assert!(why.contains("503"), "{why}");
        assert!(block(post("http://127.0.0.1:1/", Vec::new())).expect_err("nobody is there").contains("no connection"));
    }
}

//! Asking a Prometheus, or what speaks its HTTP API (VictoriaMetrics, Thanos, Mimir): one expression at a time, now.
//!
//! <https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries>, plain HTTP only.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Request, Uri, client};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A longer answer is not read: a quarter of a million series fit.
const LONGEST_ANSWER_BYTES: usize = 256 << 20;

/// The server to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    authority: String,
    host: String,
    port: u16,
    /// What stands before `/api/v1`.
    prefix: String,
}

/// One series of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Series {
    /// Its labels, without the metric's name.
    pub(crate) labels: BTreeMap<String, String>,
    /// Its value now.
    pub(crate) value: f64,
}

/// How to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Headers that the server wants, such as Mimir's tenant.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Each expression has so long to be answered.
    pub(crate) timeout: Duration,
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "resultType")]
    kind: String,
    result: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

impl Server {
    /// The server at an address such as `http://prometheus:9090` or `http://mimir/prometheus`.
    ///
    /// # Errors
    /// A sentence, for what is no such address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Ok(uri) = text.parse::<Uri>() else { return Err(no_address(text)) };
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(format!(
                    "{text}: memwatch asks over plain HTTP only: name an http:// address, such as that of a port forward or of a proxy beside it"
                ));
            }
            _ => return Err(no_address(text)),
        }
        let authority = uri.authority().ok_or_else(|| no_address(text))?.as_str().to_owned();
        if authority.contains('@') {
            return Err(
                "a name and password do not belong into the address: use --header 'Authorization: Basic …'".to_owned()
            );
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { authority, host, port: uri.port_u16().unwrap_or(80), prefix })
    }

    /// As it is written.
    pub(crate) fn url(&self) -> String {
        format!("http://{}{}", self.authority, self.prefix)
    }

    /// The series that an expression has now.
    ///
    /// # Errors
    /// A sentence: nobody answers, or it is no Prometheus, or it refuses the expression.
    pub(crate) async fn query(&self, expression: &str, manner: &Manner) -> Result<Vec<Series>, String> {
        let Ok(asked) = timeout(manner.timeout, self.ask(expression, manner)).await else {
            return Err(format!("no answer within {} s; --timeout gives it longer", manner.timeout.as_secs_f64()));
        };
        let (status, body) = asked?;
        let answer: Answer = serde_json::from_slice(&body).map_err(|error| {
            format!("it answered {status}, and not as Prometheus's API does ({error}): is the path right?")
        })?;
        if answer.status != "success" {
            return Err(format!("it refused {expression}: {}", answer.error));
        }
        let data = answer.data.filter(|data| data.kind == "vector");
        let samples = data.ok_or_else(|| format!("its answer to {expression} is no list of series"))?.result;
        Ok(samples.into_iter().filter_map(Sample::series).collect())
    }

    async fn ask(&self, expression: &str, manner: &Manner) -> Result<(hyper::StatusCode, Bytes), String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port));
        let stream = stream.await.map_err(|error| format!("no connection: {error}"))?;
        let (mut sender, connection) =
            client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let connection = tokio::spawn(connection);
        let mut request = Request::post(format!("{}/api/v1/query", self.prefix))
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        for (name, value) in &manner.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(format!("query={}", encoded(expression)))));
        let request = request.map_err(|error| error.to_string())?;
        let answer = sender.send_request(request).await.map_err(|error| format!("no answer: {error}"))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER_BYTES).collect().await;
        connection.abort();
        let body = body.map_err(|error| format!("its answer to {expression} cannot be read: {error}"))?;
        Ok((status, body.to_bytes()))
    }
}

impl Sample {
    /// `None` for what is no number.
    fn series(self) -> Option<Series> {
        let Self { metric: mut labels, value: (_, value) } = self;
        labels.remove("__name__");
        // Prometheus's NaN says that there is no value.
        value.parse().ok().filter(|value: &f64| !value.is_nan()).map(|value| Series { labels, value })
    }
}

fn no_address(text: &str) -> String {
    format!("{text}: an address is http://HOST:PORT, with the path before /api/v1 where there is one")
}

/// As a form has it: what is no letter or digit, byte by byte.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(byte.into());
        } else {
            // A String takes any text.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    fn block<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(future)
    }

    /// Answers one request with this body; the server, and the request once it was asked.
    fn answering(status: &'static str, body: &'static str) -> (Server, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/prefix/", listener.local_addr().expect("it is bound"));
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            let (mut request, mut part) = (String::new(), [0; 4096]);
            while !request.contains("query=") {
                let read = stream.read(&mut part).expect("a request");
                request.push_str(&String::from_utf8_lossy(&part[..read]));
            }
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).expect("it listens");
            request
        });
        (Server::parse(&url).expect("an address"), thread)
    }

    fn manner() -> Manner {
        let tenant = (HeaderName::from_static("x-scope-orgid"), HeaderValue::from_static("7"));
        Manner { headers: vec![tenant], timeout: Duration::from_secs(60) }
    }

    #[test]
    fn a_vector_is_read_and_what_is_no_number_is_left_out() {
        let body = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"__name__":"up","instance":"a:1"},"value":[1.5,"2.5e3"]},
            {"metric":{},"value":[1.5,"NaN"]}]}}"#;
        let (server, thread) = answering("200 OK", body);
        let series = block(server.query("up{a=\"b\"} + 1", &manner())).expect("it answers");
        let labels = BTreeMap::from([("instance".to_owned(), "a:1".to_owned())]);
        assert_eq!(series, [Series { labels, value: 2_500.0 }]);
        let request = thread.join().expect("it has answered");
        assert!(request.starts_with("POST /prefix/api/v1/query HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("x-scope-orgid: 7\r\n") && request.contains("query=up%7Ba%3D%22b%22%7D%20%2B%201"));
    }

    #[test]
    fn who_is_no_prometheus_or_refuses_is_named_with_its_answer() {
        let refusal = r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#;
        for (status, body, expected) in [
            ("400 Bad Request", refusal, "parse error"),
            ("404 Not Found", "<html>", "404 Not Found"),
            ("200 OK", r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#, "no list of series"),
        ] {
            let (server, thread) = answering(status, body);
            let why = block(server.query("up", &manner())).expect_err("it is no answer");
            assert!(why.contains(expected), "{why}");
            drop(thread.join());
        }
        let nobody = Server::parse("http://127.0.0.1:1").expect("an address");
        assert!(block(nobody.query("up", &manner())).expect_err("nobody").contains("no connection"));
    }

    #[test]
    fn an_address_is_plain_http() {
        let server = Server::parse("http://[::1]:9090/prometheus/").expect("an address");
        assert_eq!(
            (server.host.as_str(), server.port, server.url().as_str()),
            ("::1", 9090, "http://[::1]:9090/prometheus")
        );
        for (text, sentence) in [
            ("https://a", "plain HTTP only"),
            ("prometheus:9090", "http://HOST:PORT"),
            ("http://", "http://HOST:PORT"),
            ("http://a:b@c", "--header"),
        ] {
            assert!(Server::parse(text).expect_err("no address").contains(sentence), "{text}");
        }
    }
}

//! Client of Prometheus, or of a server with its HTTP API (VictoriaMetrics, Thanos, Mimir): instant queries.
//!
//! <https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries>

mod answer;
mod connection;

use std::fmt::Write as _;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, LOCATION};
use hyper::{Request, Response, StatusCode};
use tokio::time::timeout;

use self::answer::Reply;
pub(crate) use self::answer::{AnswerRequest, PrometheusAnswer, PrometheusSeries};
use self::connection::PrometheusConnection;
use super::servers::{Address, NoAddress};
pub(crate) use super::servers::{Authorities, Trouble};

/// Maximum size of an answer. A thousand series take less than 1 MB.
const LONGEST_ANSWER_BYTES: usize = 32 << 20;
/// Maximum length of an invalid answer that is printed, in characters.
const SHOWN: usize = 120;

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrometheusServer {
    address: Address,
    /// Path before `/api/v1`.
    prefix: String,
}

/// Options of queries.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    /// Additional headers, such as Mimir's tenant.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Time limit per query.
    pub(crate) timeout: Duration,
    /// Trusted certificate authorities; `None` for an address without TLS.
    pub(crate) authorities: Option<Authorities>,
}

impl PrometheusServer {
    /// Parses an address such as `https://prometheus:9090` or `http://mimir/prometheus`.
    ///
    /// # Errors
    /// A sentence, if the text is not such an address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let address = Address::parse(text).map_err(|why| {
            let why = match why {
                NoAddress::Other => "an address is http://HOST:PORT or https://HOST, followed by the path before /api/v1 if there is one",
                NoAddress::Secret => {
                    "the address must not contain a user name and password: use --header-file with 'Authorization: Basic …'"
                }
            };
            why.to_owned()
        })?;
        let prefix = address.path.strip_suffix("/api/v1").unwrap_or(&address.path).to_owned();
        Ok(Self { address, prefix })
    }

    /// Returns the address as text.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.address.root(), self.prefix)
    }

    /// Whether it uses TLS.
    pub(crate) const fn is_https(&self) -> bool {
        self.address.is_https
    }
}

/// Client that sends queries over one connection.
pub(crate) struct PrometheusClient {
    server: PrometheusServer,
    manner: Manner,
    connection: Option<PrometheusConnection>,
}

/// Size of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Length {
    /// Size of the body, in bytes.
    pub(crate) bytes: usize,
}

impl PrometheusClient {
    /// Creates a client without a connection.
    pub(crate) const fn new(server: PrometheusServer, manner: Manner) -> Self {
        Self { server, manner, connection: None }
    }

    /// Evaluates an expression at the current time.
    ///
    /// # Errors
    /// There is no answer, the server is not a Prometheus, or it refuses the expression.
    pub(crate) async fn query(
        &mut self,
        expression: &str,
        wanted: AnswerRequest<'_>,
    ) -> Result<(PrometheusAnswer, Length), Trouble> {
        let limit = self.manner.timeout;
        let Ok(asked) = timeout(limit, self.ask(expression)).await else {
            self.connection = None;
            return Err(Trouble::new(
                format!("no answer within {} s to {expression}", limit.as_secs_f64()),
                "Raise --timeout, or install the recording rules of deploy/prometheus/rules.yaml, which answer faster.",
            ));
        };
        let (head, body) = asked?;
        let length = Length { bytes: body.len() };
        match answer::read(&body, wanted) {
            Ok(Reply::Answer(answer)) => Ok((answer, length)),
            Ok(Reply::Refused(why)) => {
                let refused = Trouble::bare(format!("it refuses {expression}: {why}"));
                Err(self.by_status(&head, &body).unwrap_or(refused))
            }
            Err(why) => Err(self.by_status(&head, &body).unwrap_or_else(|| {
                let status = head.status();
                Trouble::new(
                    format!("it answers {status}, and not as Prometheus's API does ({why}): {}", beginning(&body)),
                    "Is the path right? /api/v1/query is below it: Mimir's is /prometheus, that of a cluster of VictoriaMetrics \
                     /select/0/prometheus.",
                )
            })),
        }
    }

    /// Returns the reason of a failed query, from its status and its body.
    fn by_status(&self, head: &Response<()>, body: &[u8]) -> Option<Trouble> {
        let status = head.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Some(Trouble::new(
                format!("it answers {status}"),
                "Pass credentials with --header-file FILE, for example a line 'Authorization: Bearer TOKEN'.",
            ));
        }
        if status.is_redirection() {
            let to = head.headers().get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("another place");
            return Some(Trouble::new(
                format!("it answers {status}, to {to}"),
                "Use the address that it redirects to. For a login page, pass credentials with --header-file.",
            ));
        }
        let is_tls_only = !self.server.address.is_https && String::from_utf8_lossy(body).contains("HTTPS server");
        is_tls_only.then(|| Trouble::new("it speaks TLS", "The address begins with https://"))
    }

    async fn ask(&mut self, expression: &str) -> Result<(Response<()>, Bytes), Trouble> {
        let answer = match self.connection.take() {
            // The server may have closed the idle connection, which is not an error.
            Some(open) => match self.send(open, expression).await {
                Ok(answer) => answer,
                Err(_) => self.send(self.open().await?, expression).await?,
            },
            None => self.send(self.open().await?, expression).await?,
        };
        let (answer, connection) = answer;
        let (head, body) = answer.into_parts();
        let too_long = || {
            let most = LONGEST_ANSWER_BYTES >> 20;
            let what = format!("its answer to {expression} is longer than {most} MiB");
            Trouble::new(what, "Ask for fewer rows with -n, or for a part of the fleet with --match.")
        };
        if body.size_hint().lower() > LONGEST_ANSWER_BYTES as u64 {
            return Err(too_long());
        }
        let body = Limited::new(body, LONGEST_ANSWER_BYTES).collect().await.map_err(|error| {
            let broken = || Trouble::bare(format!("its answer to {expression} is incomplete: {error}"));
            if error.is::<LengthLimitError>() { too_long() } else { broken() }
        })?;
        self.connection = Some(connection);
        Ok((Response::from_parts(head, ()), body.to_bytes()))
    }

    async fn open(&self) -> Result<PrometheusConnection, Trouble> {
        PrometheusConnection::open(&self.server, self.manner.authorities.as_ref()).await
    }

    async fn send(
        &self,
        mut to: PrometheusConnection,
        expression: &str,
    ) -> Result<(Response<Incoming>, PrometheusConnection), Trouble> {
        let mut request = Request::post(format!("{}/api/v1/query", self.server.prefix))
            .header(HOST, &self.server.address.authority)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        for (name, value) in &self.manner.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::from(format!("query={}", encoded(expression)))));
        let request = request.map_err(|error| Trouble::bare(error.to_string()))?;
        match to.sender.send_request(request).await {
            Ok(answer) => Ok((answer, to)),
            Err(error) => Err(Trouble::new(
                format!("it accepts the connection but does not speak HTTP: {error}"),
                "Is something else at this port? Where it speaks TLS, the address begins with https://",
            )),
        }
    }
}

/// Returns the beginning of a body, on one line.
fn beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body.get(..4 * SHOWN).unwrap_or(body)).into_owned();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() { "nothing".to_owned() } else { text.chars().take(SHOWN).collect() }
}

/// Form encoding: percent-encodes every byte except letters and digits.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            encoded.push(byte.into());
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests;

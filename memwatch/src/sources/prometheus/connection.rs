//! A connection to a server, reused for all requests.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;

use super::PrometheusServer;
use crate::sources::servers::{Authorities, Trouble, connect};

/// An open connection, closed when this is dropped.
pub(super) struct PrometheusConnection {
    pub(super) sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<hyper::Result<()>>,
}

impl Drop for PrometheusConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl PrometheusConnection {
    /// Connects to a server.
    pub(super) async fn open(server: &PrometheusServer, authorities: Option<&Authorities>) -> Result<Self, Trouble> {
        let stream = connect(&server.address, authorities, b"http/1.1").await?;
        let opened = handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(|error| Trouble::bare(format!("no connection: {error}")))?;
        Ok(Self { sender, driver: tokio::spawn(connection) })
    }
}

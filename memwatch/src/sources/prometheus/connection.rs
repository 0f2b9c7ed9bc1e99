//! A connection to a server, in the clear or through TLS, which stays open from question to question.

use std::path::Path;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{Server, Trouble};

/// Who signs what TLS believes.
#[derive(Clone)]
pub(crate) struct Authorities(TlsConnector);

impl std::fmt::Debug for Authorities {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Authorities")
    }
}

impl Authorities {
    /// The ones that this machine believes, and those in a file of PEM certificates.
    ///
    /// # Errors
    /// A sentence, when there is none, or the file cannot be read.
    pub(crate) fn load(file: Option<&Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        // Some of a machine's may be unreadable or broken: the others count.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(file) = file {
            let name = file.display();
            let read = CertificateDer::pem_file_iter(file).map_err(|error| format!("{name}: {error}"))?;
            let before = roots.len();
            for certificate in read {
                let added = certificate.map_err(|error| format!("{name}: {error}"));
                roots.add(added?).map_err(|error| format!("{name}: {error}"))?;
            }
            if roots.len() == before {
                return Err(format!(
                    "{name}: it has no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----"
                ));
            }
        }
        if roots.is_empty() {
            return Err("this machine has no certificates of authorities: install ca-certificates, or name a file with --ca-file".to_owned());
        }
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(client))))
    }
}

/// An open connection. It ends with its owner.
pub(super) struct Connection {
    pub(super) sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<hyper::Result<()>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects.
    pub(super) async fn open(server: &Server, authorities: Option<&Authorities>) -> Result<Self, Trouble> {
        let stream = TcpStream::connect((server.host.as_str(), server.port)).await.map_err(|error| {
            Trouble::new(
                format!("no connection: {error}"),
                "Is it the right address, and may this machine reach it? A port forward or a tunnel gives an address here.",
            )
        })?;
        let Some(Authorities(connector)) = authorities else { return Self::over(stream).await };
        let name = ServerName::try_from(server.host.clone()).map_err(|_name| {
            Trouble::new("TLS needs a name or an address to check", "Write the address with its host's name.")
        })?;
        let stream = connector.connect(name, stream).await.map_err(|error| {
            Trouble::new(
                format!("no connection by TLS: {error}"),
                "An authority of your own belongs into --ca-file FILE; where the server has no TLS, the address begins with http://",
            )
        })?;
        Self::over(stream).await
    }

    async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Self, Trouble> {
        let opened = handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(|error| Trouble::bare(format!("no connection: {error}")))?;
        Ok(Self { sender, driver: tokio::spawn(connection) })
    }
}

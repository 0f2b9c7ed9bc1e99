//! TCP and TLS connections to external servers: addresses, certificate authorities and streams.

use std::path::Path;
use std::sync::Arc;

use hyper::Uri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Whether it uses TLS.
    pub(crate) is_https: bool,
    /// Host and port as typed.
    pub(crate) authority: String,
    /// Host name or address, without brackets.
    pub(crate) host: String,
    /// Port as typed, or the default.
    pub(crate) port: u16,
    /// Path without a trailing slash; may be empty.
    pub(crate) path: String,
}

/// Why a text is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAddress {
    /// The text starts neither with `http://` nor with `https://`.
    Other,
    /// The text contains a user name or password, which would be printed.
    Secret,
}

impl Address {
    /// Parses an address.
    ///
    /// # Errors
    /// The text is not an address.
    pub(crate) fn parse(text: &str) -> Result<Self, NoAddress> {
        let Ok(uri) = text.parse::<Uri>() else { return Err(NoAddress::Other) };
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(NoAddress::Other),
        };
        let authority = uri.authority().ok_or(NoAddress::Other)?.as_str().to_owned();
        if authority.contains('@') {
            return Err(NoAddress::Secret);
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(Self { is_https, authority, host, port, path: uri.path().trim_end_matches('/').to_owned() })
    }

    /// Returns the address as text, without the path.
    pub(crate) fn root(&self) -> String {
        let scheme = if self.is_https { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Description of the failure.
    pub(crate) what: String,
    /// Advice, if there is any.
    pub(crate) fix: Option<String>,
}

impl Trouble {
    /// Creates an error with advice.
    pub(crate) fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: Some(fix.into()) }
    }

    /// Creates an error without advice.
    pub(crate) fn bare(what: impl Into<String>) -> Self {
        Self { what: what.into(), fix: None }
    }
}

/// Trusted certificate authorities.
#[derive(Clone)]
pub(crate) struct Authorities {
    connector: TlsConnector,
    option: &'static str,
}

impl std::fmt::Debug for Authorities {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Authorities")
    }
}

impl Authorities {
    /// Loads the authorities trusted by this machine, and those in a file of PEM certificates,
    /// which was given by `option`.
    ///
    /// # Errors
    /// A sentence: there are no authorities, or the file cannot be read.
    pub(crate) fn load(file: Option<&Path>, option: &'static str) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        // Unreadable or broken certificates of the machine are skipped.
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
            return Err(format!(
                "this machine has no certificates of authorities: install ca-certificates, or name a file with {option}"
            ));
        }
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self { connector: TlsConnector::from(Arc::new(client)), option })
    }
}

/// Stream to a server.
pub(crate) trait ServerStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ServerStream for T {}

/// Connects to a server, with TLS if `authorities` are given. `protocol` is the ALPN name of the
/// protocol.
///
/// # Errors
/// The connection or the TLS handshake failed.
pub(crate) async fn connect(
    server: &Address,
    authorities: Option<&Authorities>,
    protocol: &[u8],
) -> Result<Box<dyn ServerStream>, Trouble> {
    let stream = TcpStream::connect((server.host.as_str(), server.port)).await.map_err(|error| {
        Trouble::new(
            format!("no connection: {error}"),
            "Check the address, and whether this machine can reach it. If not, use a port forward or a tunnel.",
        )
    })?;
    let Some(Authorities { connector, option }) = authorities else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(server.host.clone()).map_err(|_name| {
        Trouble::new("TLS needs a host name or IP address to verify", "Use the server's host name in the address.")
    })?;
    let stream = connector.with_alpn(vec![protocol.to_owned()]).connect(name, stream).await.map_err(|error| {
        Trouble::new(
            format!("no connection by TLS: {error}"),
            format!(
                "For a private certificate authority, pass {option} FILE. If the server does not use TLS, the address starts with http://"
            ),
        )
    })?;
    Ok(Box::new(stream))
}

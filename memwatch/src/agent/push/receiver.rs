//! The receiver of the pushes: URL, protocol and headers.

use std::fmt;

use hyper::header::{HeaderName, HeaderValue};

use super::args::{Otlp, Protocol};
use crate::options::headers;
use crate::sources::servers::{Address, Authorities};

/// A receiver and the settings for reaching it.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    pub(super) address: Address,
    pub(super) protocol: Protocol,
    /// Request path.
    pub(super) path: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) authorities: Option<Authorities>,
}

impl Receiver {
    /// Creates the receiver named by the options, if any. Files are read immediately, because the
    /// agent may drop the permission to read them.
    ///
    /// # Errors
    /// If a file cannot be read or has invalid contents. The error is a sentence.
    pub(crate) fn named(otlp: &Otlp) -> Result<Option<Self>, String> {
        let Some(address) = otlp.otlp.clone() else { return Ok(None) };
        let (protocol, path) = otlp.target(&address)?;
        let file = otlp.otlp_header_file.as_deref();
        let headers = file.map(|file| headers::of_file(file, "--otlp-header-file")).transpose()?.unwrap_or_default();
        let option = "--otlp-ca-file";
        let load = || {
            let file = otlp.otlp_ca_file.as_deref();
            Authorities::load(file, option).map_err(|why| format!("{option}: {why}"))
        };
        let authorities = address.is_https.then(load).transpose()?;
        Ok(Some(Self { address, protocol, path, headers, authorities }))
    }
}

impl fmt::Display for Receiver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Protocol::Http => write!(out, "{}{}", self.address.root(), self.path),
            Protocol::Grpc => write!(out, "{} (gRPC)", self.address.root()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::args::address;
    use super::*;

    /// Returns the receiver at a URL.
    pub(in crate::agent::push) fn named(url: &str, protocol: Option<Protocol>) -> Result<Option<Receiver>, String> {
        let otlp = Some(address(url)?);
        Receiver::named(&Otlp { otlp, otlp_protocol: protocol, ..Otlp::default() })
    }

    #[test]
    fn the_port_says_which_protocol_is_spoken_unless_it_is_named() {
        for (url, protocol, expected) in [
            ("http://localhost:4318", None, "http://localhost:4318/v1/metrics"),
            ("http://localhost:4318/", None, "http://localhost:4318/v1/metrics"),
            ("http://h/otlp", None, "http://h/otlp/v1/metrics"),
            ("http://h/otlp/v1/metrics", None, "http://h/otlp/v1/metrics"),
            ("http://[::1]:4317", None, "http://[::1]:4317 (gRPC)"),
            ("http://h:9000/", Some(Protocol::Grpc), "http://h:9000 (gRPC)"),
            ("http://h:4317", Some(Protocol::Http), "http://h:4317/v1/metrics"),
        ] {
            let receiver = named(url, protocol).expect("an address").expect("it was named");
            assert_eq!(receiver.to_string(), expected, "{url}");
        }
        assert!(Receiver::named(&Otlp::default()).expect("nothing is wrong").is_none());
    }

    #[test]
    fn otlp_receiver_url_errors_state_the_accepted_form() {
        for (url, why) in [
            ("localhost:4318", "an address is http://HOST:4318"),
            ("ftp://h", "an address is http://HOST:4318"),
            ("http://", "an address is http://HOST:4318"),
            ("http://me:secret@h:4318", "--otlp-header-file"),
            ("http://h:4317/v1/metrics", "leave it out, or choose --otlp-protocol http"),
        ] {
            let error = named(url, None).expect_err(url);
            assert!(error.contains(why) && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_its_option() {
        let nowhere = Some("/nowhere".into());
        let otlp = |url: &str| Otlp { otlp: Some(address(url).expect("an address")), ..Otlp::default() };
        let error =
            Receiver::named(&Otlp { otlp_header_file: nowhere.clone(), ..otlp("http://h") }).expect_err("no file");
        assert!(error.starts_with("--otlp-header-file /nowhere: "), "{error}");
        let error = Receiver::named(&Otlp { otlp_ca_file: nowhere, ..otlp("https://h") }).expect_err("no file");
        assert!(error.starts_with("--otlp-ca-file: /nowhere: "), "{error}");
    }
}

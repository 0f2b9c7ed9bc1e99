//! Self-signed certificates for servers on loopback.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::cannot_run;

/// Paths of a certificate and its key in PEM.
#[derive(Clone, Debug)]
pub struct TestCertificate {
    /// Self-signed certificate.
    pub certificate: PathBuf,
    /// Key of the certificate.
    pub key: PathBuf,
}

/// Creates a certificate for 127.0.0.1 and localhost with openssl, as files of this name in a
/// folder. Ignores the test if openssl is not installed.
///
/// # Panics
/// When openssl fails.
pub fn self_signed(folder: &Path, name: &str) -> TestCertificate {
    let [certificate, key] = ["pem", "key"].map(|suffix| folder.join(format!("{name}.{suffix}")));
    let mut openssl = Command::new("openssl");
    openssl.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split(' '));
    openssl.args(["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(status) = openssl.status() else {
        cannot_run("openssl is not installed: apt-get install openssl");
    };
    assert!(status.success(), "openssl makes a certificate: {status}");
    TestCertificate { certificate, key }
}

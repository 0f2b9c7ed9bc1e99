//! TLS with a certificate and a key from two files. The files are read again when they change.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Minimum interval between checks of the files.
const LOOKED_AT: Duration = Duration::from_secs(1);
/// ALPN protocol.
const PROTOCOL: &[u8] = b"http/1.1";

/// Modification times and lengths of the files. A difference means that they have changed.
type Stamp = [Option<(SystemTime, u64)>; 2];

/// A certificate with its key, loaded from files.
pub(in crate::agent) struct Certificate {
    files: [PathBuf; 2],
    state: Mutex<CertificateState>,
}

struct CertificateState {
    acceptor: TlsAcceptor,
    stamp: Stamp,
    looked: Instant,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Certificate").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Certificate {
    /// Loads a certificate chain and its key.
    ///
    /// # Errors
    /// If a file is not valid. The sentence names the file.
    pub(in crate::agent) fn load(certificate: &Path, key: &Path) -> Result<Arc<Self>, String> {
        let files = [certificate.to_owned(), key.to_owned()];
        let stamp = stamp(&files);
        let state = Mutex::new(CertificateState { acceptor: acceptor(&files)?, stamp, looked: Instant::now() });
        Ok(Arc::new(Self { files, state }))
    }

    /// Returns the acceptor for the next connection. Changed files are loaded again; if they are
    /// invalid, the previous certificate stays in use.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor_after(LOOKED_AT)
    }

    fn acceptor_after(&self, pause: Duration) -> TlsAcceptor {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= pause {
            state.looked = Instant::now();
            let now = stamp(&self.files);
            if now != state.stamp {
                state.stamp = now;
                match acceptor(&self.files) {
                    Ok(acceptor) => {
                        state.acceptor = acceptor;
                        eprintln!("memwatch: serving with the new certificate of {}", self.files[0].display());
                    }
                    Err(why) => eprintln!("memwatch: {why}. The previous certificate stays in use"),
                }
            }
        }
        state.acceptor.clone()
    }
}

fn stamp(files: &[PathBuf; 2]) -> Stamp {
    files.each_ref().map(|file| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    })
}

fn acceptor([certificate, key]: &[PathBuf; 2]) -> Result<TlsAcceptor, String> {
    let wrong = |option: &str, file: &Path, why: String| format!("{option} {}: {why}", file.display());
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| wrong("--tls-cert", certificate, pem_words(&error)))?;
    if chain.is_empty() {
        let why = "it has no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----";
        return Err(wrong("--tls-cert", certificate, why.to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| {
        let why = match error {
            PemError::NoItemsFound => {
                "it has no private key in PEM without a password, which begins with -----BEGIN PRIVATE KEY-----"
                    .to_owned()
            }
            error => pem_words(&error),
        };
        wrong("--tls-key", key, why)
    })?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, private);
    let mut config = config.map_err(|error| {
        wrong("--tls-cert", certificate, format!("it does not match --tls-key {}: {error}", key.display()))
    })?;
    config.alpn_protocols = vec![PROTOCOL.to_owned()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn pem_words(error: &PemError) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        error => format!("not a PEM file: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Command, Stdio};

    use super::*;

    /// Creates a certificate and its key; false if openssl is not installed.
    fn make(files: &[PathBuf; 2]) -> bool {
        let mut openssl = Command::new("openssl");
        openssl
            .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost".split(' '));
        openssl.arg("-out").arg(&files[0]).arg("-keyout").arg(&files[1]).stderr(Stdio::null()).stdout(Stdio::null());
        openssl.status().is_ok_and(|status| status.success())
    }

    #[test]
    fn tls_wrong_files_are_rejected_by_name_and_replaced_ones_are_reloaded() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = |name: &str| folder.path().join(name);
        let (ours, other) = ([path("ours.pem"), path("ours.key")], [path("other.pem"), path("other.key")]);
        if !make(&ours) || !make(&other) {
            eprintln!("SKIPPED: openssl is not installed: apt-get install openssl");
            return;
        }
        let why = |certificate: &Path, key: &Path| Certificate::load(certificate, key).expect_err("it is wrong");
        let nothing = why(&path("nothing"), &ours[1]);
        assert!(nothing.starts_with("--tls-cert ") && nothing.contains("nothing: No such file"), "{nothing}");
        let swapped = why(&ours[1], &ours[0]);
        assert!(swapped.contains("ours.key: it has no certificate in PEM"), "{swapped}");
        let no_key = why(&ours[0], &ours[0]);
        assert!(no_key.starts_with("--tls-key ") && no_key.contains("ours.pem: it has no private key"), "{no_key}");
        let mixed = why(&ours[0], &other[1]);
        assert!(mixed.contains("ours.pem: it does not match --tls-key") && mixed.contains("other.key"), "{mixed}");

        let certificate = Certificate::load(&ours[0], &ours[1]).expect("they go together");
        let served = || certificate.acceptor_after(Duration::ZERO).config().clone();
        let first = served();
        assert!(Arc::ptr_eq(&first, &served()), "nothing has changed");
        fs::write(&ours[0], "half").expect("it is ours");
        assert!(Arc::ptr_eq(&first, &served()), "what is wrong is not taken");
        for (from, to) in other.iter().zip(&ours) {
            fs::copy(from, to).expect("both are ours");
        }
        assert!(!Arc::ptr_eq(&first, &served()), "what goes together is");
    }
}

//! Version of NVIDIA's loaded kernel driver. It determines the layout of requests to the driver,
//! independent of the libraries.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memwatch_core::input::Input;

/// File with the version of the module.
const FILE: &str = "/sys/module/nvidia/version";
/// Environment variable that replaces the path of that file, for a simulated driver.
const FILE_VARIABLE: &str = "MEMWATCH_DRIVER_VERSION_FILE";
/// Interval of checks. Replacing the module takes longer.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum length of a version in bytes.
const MOST_BYTES: u64 = 64;

/// The version that was last reported.
#[derive(Debug)]
pub(crate) struct DriverVersion {
    file: PathBuf,
    reported: Option<String>,
    is_reported: bool,
    looked: Option<Instant>,
}

impl DriverVersion {
    /// Creates the state without a reported version.
    pub(crate) fn new() -> Self {
        Self::of(std::env::var_os(FILE_VARIABLE).map_or_else(|| FILE.into(), PathBuf::from))
    }

    fn of(file: PathBuf) -> Self {
        Self { file, reported: None, is_reported: false, looked: None }
    }

    /// Returns the version if it has changed since it was last reported. Checks at intervals.
    pub(crate) fn news(&mut self) -> Option<Input> {
        if self.looked.is_some_and(|looked| looked.elapsed() < EVERY) {
            return None;
        }
        self.looked = Some(Instant::now());
        self.look()
    }

    fn look(&mut self) -> Option<Input> {
        let version = self.read();
        if std::mem::replace(&mut self.is_reported, true) && self.reported == version {
            return None;
        }
        self.reported.clone_from(&version);
        Some(Input::KernelDriver { version })
    }

    /// Reads the version; `None` if the module is not loaded.
    fn read(&self) -> Option<String> {
        let mut text = String::new();
        File::open(&self.file).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
        let text = text.trim();
        let is_version = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_version.then(|| text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use memwatch_core::input::Input;
    use tempfile::TempDir;

    use super::DriverVersion;

    #[test]
    fn a_version_is_reported_first_and_whenever_it_has_changed() {
        let directory = TempDir::with_prefix("memwatch-test-").expect("a directory");
        let file = directory.path().join("version");
        let mut version = DriverVersion::of(file.clone());
        let mut looks = || [version.look(), version.look()];
        let news = |version: Option<&str>| {
            let version = version.map(str::to_owned);
            [Some(Input::KernelDriver { version }), None]
        };
        assert_eq!(looks(), news(None));
        for (text, is_version) in [("580.159.04\n", true), ("not a\u{1b}version\n", false), ("595.45.04", true)] {
            std::fs::write(&file, text).expect("written");
            assert_eq!(looks(), news(is_version.then_some(text.trim())));
        }
        std::fs::remove_file(&file).expect("removed");
        assert_eq!(looks(), news(None));
    }
}

//! Finds driver libraries as they appear and puts probes on each once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memwatch_core::input::LibraryCoverage;

use super::kernel::attach::attach;
use super::kernel::load::Kernel;
use super::kernel::site::KernelVersion;
use super::library::{Discovery, FileIdentity, LibraryScan};

/// How long a process without a library is looked at often, and how often then and later.
const EAGER: Duration = Duration::from_secs(60);
const EAGER_EVERY: Duration = Duration::from_millis(20);
const PATIENT_EVERY: Duration = Duration::from_millis(500);
/// How often the whole machine is scanned for library files.
const MACHINE_EVERY: Duration = Duration::from_secs(2);

/// A library that got its probes just now.
pub(crate) struct NewLibrary {
    /// The processes that had it mapped already: what they did before is not known.
    pub(crate) mapped_by: Vec<u32>,
}

/// All library files met so far.
pub(crate) struct LibraryWatch {
    scan: LibraryScan,
    version: KernelVersion,
    met: Vec<(FileIdentity, LibraryCoverage)>,
    /// Processes to be looked at until they have mapped a library.
    expected: BTreeMap<u32, Expectation>,
    last_machine_scan: Option<Instant>,
}

struct Expectation {
    since: Instant,
    last_look: Option<Instant>,
}

impl LibraryWatch {
    /// Nothing met yet.
    pub(crate) fn new(scan: LibraryScan, version: KernelVersion) -> Self {
        Self { scan, version, met: Vec::new(), expected: BTreeMap::new(), last_machine_scan: None }
    }

    /// A process that may map a library at any moment.
    pub(crate) fn expect(&mut self, tgid: u32) {
        self.expected.entry(tgid).or_insert_with(|| Expectation { since: Instant::now(), last_look: None });
    }

    /// Probes the files in the host's usual places and those the user named, before anybody maps them.
    pub(crate) fn attach_host(&mut self, kernel: &mut Kernel) -> Vec<NewLibrary> {
        let found = self.scan.scan_host();
        self.attach_new(kernel, &found)
    }

    /// Probes every file that any process of the machine has mapped, if the last such scan is old enough.
    pub(crate) fn attach_machine(&mut self, kernel: &mut Kernel) -> Vec<NewLibrary> {
        if self.last_machine_scan.is_some_and(|last| last.elapsed() < MACHINE_EVERY) {
            return Vec::new();
        }
        self.last_machine_scan = Some(Instant::now());
        let found = self.scan.scan_all();
        self.attach_new(kernel, &found)
    }

    /// Looks at the expected processes that are due, and probes what they have mapped.
    pub(crate) fn attach_expected(&mut self, kernel: &mut Kernel) -> Vec<NewLibrary> {
        let mut new = Vec::new();
        let due: Vec<u32> = self.expected.iter().filter(|(_, look)| look.is_due()).map(|(tgid, _)| *tgid).collect();
        for tgid in due {
            let found = self.scan.scan_process(tgid);
            if found.files.is_empty() && found.left_out.is_empty() && found.processes > 0 {
                if let Some(expectation) = self.expected.get_mut(&tgid) {
                    expectation.last_look = Some(Instant::now());
                }
                continue;
            }
            self.expected.remove(&tgid);
            new.extend(self.attach_new(kernel, &found));
        }
        new
    }

    /// Whether this process has not been seen mapping a library.
    pub(crate) fn is_expected(&self, tgid: u32) -> bool {
        self.expected.contains_key(&tgid)
    }

    /// Every file met, probed or not.
    pub(crate) fn coverage(&self) -> Vec<LibraryCoverage> {
        self.met.iter().map(|(_, coverage)| coverage.clone()).collect()
    }

    /// The processes that have any library mapped now.
    pub(crate) fn users(&self) -> BTreeSet<u32> {
        self.scan.scan_all().files.into_iter().flat_map(|file| file.mapped_by).collect()
    }

    fn attach_new(&mut self, kernel: &mut Kernel, found: &Discovery) -> Vec<NewLibrary> {
        let mut new = Vec::new();
        for file in &found.files {
            if self.met.iter().any(|(identity, _)| identity.is_same_file(&file.identity)) {
                continue;
            }
            let coverage = attach(kernel, file, self.version);
            log::info!("{}: {} probes attached", coverage.path, coverage.probes_attached);
            self.met.push((file.identity.clone(), coverage));
            new.push(NewLibrary { mapped_by: file.mapped_by.clone() });
        }
        new
    }
}

impl Expectation {
    fn is_due(&self) -> bool {
        let every = if self.since.elapsed() < EAGER { EAGER_EVERY } else { PATIENT_EVERY };
        self.last_look.is_none_or(|last| last.elapsed() >= every)
    }
}

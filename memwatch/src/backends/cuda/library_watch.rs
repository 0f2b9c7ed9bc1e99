//! Finds driver libraries as they appear and puts probes on each once.
//!
//! The kernel's records of mappings name each process that maps one; where it gives none, the processes are looked through
//! every two seconds instead. A slow sweep finds what either has missed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memwatch_core::input::LibraryCoverage;

use crate::sources::clock;
use crate::sources::kernel::attach::{attach, chain};
use crate::sources::kernel::load::Kernel;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::{Discovery, FileIdentity, LeftOut, LeftOutReason, LibraryFile, LibraryScan};
use crate::sources::library_sweep::{Among, Sweeper, Swept};
use crate::sources::mappings::{MappedInode, MappingRecords, NewMapping};

/// Where nothing reports mappings: how long a process without a library is looked at often, and how often then and later.
const EAGER: Duration = Duration::from_secs(60);
const EAGER_EVERY: Duration = Duration::from_millis(20);
const PATIENT_EVERY: Duration = Duration::from_millis(500);
/// How often the processes are looked through without mapping records, and with them.
const SWEEP_ALONE: Duration = Duration::from_secs(2);
const SWEEP_BESIDE_RECORDS: Duration = Duration::from_secs(30);

/// How new libraries are found.
pub(crate) enum LibrarySource {
    /// By the kernel's records of mappings.
    Records(MappingRecords),
    /// By looking through the processes now and then, because there are no such records.
    Polling,
}

/// A process that had mapped a library before its probes were there: what it did until then is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latecomer {
    /// The process.
    pub(crate) tgid: u32,
    /// Since when its calls are seen: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) since_ns: u64,
}

/// All library files met so far.
pub(crate) struct LibraryWatch {
    scan: LibraryScan,
    version: KernelVersion,
    source: LibrarySource,
    sweeper: Sweeper,
    /// When the last sweep that was taken in began: `CLOCK_BOOTTIME`, nanoseconds.
    swept_ns: u64,
    met: Vec<Met>,
    /// Mappings fetched and not looked at yet.
    mapped: Vec<NewMapping>,
    /// Files with the name that get no probes, by path.
    left_out: BTreeMap<String, LeftOutReason>,
    /// The file behind each inode that a mapping record has named.
    inodes: BTreeMap<MappedInode, usize>,
    /// Processes to be looked at until they have mapped a library.
    expected: BTreeMap<u32, Expectation>,
    /// Processes that were seen to map a library; some may have ended.
    users: BTreeSet<u32>,
    changed: bool,
}

struct Met {
    identity: FileIdentity,
    coverage: LibraryCoverage,
    /// When its last probe was in place: `CLOCK_BOOTTIME`, nanoseconds.
    attached_ns: u64,
}

struct Expectation {
    since: Instant,
    last_look: Option<Instant>,
}

impl LibraryWatch {
    /// Nothing met yet.
    ///
    /// # Errors
    /// The system has no thread to give for the sweeps.
    pub(crate) fn new(scan: LibraryScan, version: KernelVersion, source: LibrarySource) -> std::io::Result<Self> {
        let every = match source {
            LibrarySource::Records(_) => SWEEP_BESIDE_RECORDS,
            LibrarySource::Polling => SWEEP_ALONE,
        };
        Ok(Self {
            sweeper: Sweeper::start(scan.clone(), every)?,
            scan,
            version,
            source,
            swept_ns: 0,
            met: Vec::new(),
            mapped: Vec::new(),
            left_out: BTreeMap::new(),
            inodes: BTreeMap::new(),
            expected: BTreeMap::new(),
            users: BTreeSet::new(),
            // That there is none is news, too.
            changed: true,
        })
    }

    /// How new libraries are found, by its name in JSON.
    pub(crate) fn source_name(&self) -> &'static str {
        match self.source {
            LibrarySource::Records(_) => "mapping_records",
            LibrarySource::Polling => "polling",
        }
    }

    /// A process that may map a library at any moment.
    pub(crate) fn expect(&mut self, tgid: u32) {
        self.expected.entry(tgid).or_insert_with(|| Expectation { since: Instant::now(), last_look: None });
    }

    /// A process has ended.
    pub(crate) fn forget(&mut self, tgid: u32) {
        self.expected.remove(&tgid);
        self.users.remove(&tgid);
    }

    /// Probes the files in the host's usual places and those the user named, before anybody maps them.
    pub(crate) fn attach_host(&mut self, kernel: &mut Kernel) {
        let found = self.scan.scan_host();
        self.take_in(kernel, &found, None);
    }

    /// Probes every file that any process of the machine has mapped. It takes a while: later, sweeps do that beside the loop.
    pub(crate) fn attach_machine(&mut self, kernel: &mut Kernel) {
        self.swept_ns = clock::boottime_ns();
        let found = self.scan.scan_all();
        self.take_in(kernel, &found, None);
    }

    /// Looks at the expected processes that are due, and probes what they have mapped.
    pub(crate) fn attach_expected(&mut self, kernel: &mut Kernel) -> Vec<Latecomer> {
        let mut late = Vec::new();
        let reported = matches!(self.source, LibrarySource::Records(_));
        let due = self.expected.iter().filter(|(_, look)| look.is_due(reported));
        for tgid in due.map(|(tgid, _)| *tgid).collect::<Vec<u32>>() {
            let found = self.scan.scan_process(tgid);
            if found.files.is_empty() && found.left_out.is_empty() && found.processes > 0 {
                if let Some(expectation) = self.expected.get_mut(&tgid) {
                    expectation.last_look = Some(Instant::now());
                }
                continue;
            }
            self.expected.remove(&tgid);
            late.extend(self.take_in(kernel, &found, None));
        }
        late
    }

    /// Fetches the kernel's records of mappings. Those of forks come in another ring: drained after this and before
    /// [`Self::attach_mapped`], it says whose children the processes are that have mapped something.
    pub(crate) fn fetch_mapped(&mut self) {
        let LibrarySource::Records(records) = &mut self.source else { return };
        let new = records.take();
        if new.incomplete {
            log::info!("mapping records were lost: looking through the processes");
            self.sweeper.hurry();
        }
        self.mapped.extend(new.libraries);
    }

    /// Probes what was fetched, of the processes that are `wanted`.
    pub(crate) fn attach_mapped(&mut self, kernel: &mut Kernel, wanted: impl Fn(u32) -> bool) -> Vec<Latecomer> {
        let mut late = Vec::new();
        for mapping in std::mem::take(&mut self.mapped).into_iter().filter(|mapping| wanted(mapping.tgid)) {
            self.expected.remove(&mapping.tgid);
            self.users.insert(mapping.tgid);
            match self.inodes.get(&mapping.inode) {
                Some(&known) if mapping.time_ns >= self.met[known].attached_ns => {}
                Some(&known) => late.push(Latecomer { tgid: mapping.tgid, since_ns: self.met[known].attached_ns }),
                None => late.extend(self.take_in_mapping(kernel, mapping)),
            }
        }
        late
    }

    /// Takes in what a sweep has found since the last call, and orders the next where it is due.
    pub(crate) fn attach_swept(&mut self, kernel: &mut Kernel, among: impl FnOnce() -> Among) -> Vec<Latecomer> {
        let mut late = Vec::new();
        if let Some(Swept { begun_ns, found }) = self.sweeper.result() {
            let users = self.users.clone();
            late = self.take_in(kernel, &found, None);
            if !late.is_empty() {
                self.sweeper.hurry();
            }
            // Who mapped a file between the sweep that found it and its probes stands in the next sweep only.
            for file in &found.files {
                let met = self.met.iter().find(|met| met.identity.is_same_file(&file.identity));
                let since_ns = met.map_or(0, |met| met.attached_ns);
                let unheard = file.mapped_by.iter().filter(|tgid| !users.contains(tgid));
                let unheard = unheard.filter(|_| since_ns > self.swept_ns && since_ns < begun_ns);
                late.extend(unheard.map(|&tgid| Latecomer { tgid, since_ns }));
            }
            self.swept_ns = begun_ns;
            self.users = found.files.iter().flat_map(|file| file.mapped_by.iter().copied()).collect();
        }
        if self.sweeper.is_due() {
            self.sweeper.order(among());
        }
        late
    }

    /// Whether this process has not been seen mapping a library.
    pub(crate) fn is_expected(&self, tgid: u32) -> bool {
        self.expected.contains_key(&tgid)
    }

    /// Every file met, probed or not, if that has changed since the last call.
    pub(crate) fn new_coverage(&mut self) -> Option<Vec<LibraryCoverage>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let left_out = self.left_out.iter().map(|(path, reason)| LibraryCoverage {
            path: path.clone(),
            error: Some(reason.to_string()),
            ..LibraryCoverage::default()
        });
        Some(self.met.iter().map(|met| met.coverage.clone()).chain(left_out).collect())
    }

    /// The processes that were last seen with a library mapped; some may have ended since.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.users.iter().copied().collect()
    }

    /// The files that a process has mapped now.
    pub(crate) fn files_of(&self, tgid: u32) -> Vec<LibraryFile> {
        self.scan.scan_process(tgid).files
    }

    /// The kernel that the probes are chosen for.
    pub(crate) fn version(&self) -> KernelVersion {
        self.version
    }

    /// Whether a process has a library mapped now.
    pub(crate) fn is_user(&mut self, tgid: u32) -> bool {
        let uses = !self.scan.scan_process(tgid).files.is_empty();
        if !uses {
            self.users.remove(&tgid);
        }
        uses
    }

    /// Probes the file behind a mapping of an inode that was not seen before.
    fn take_in_mapping(&mut self, kernel: &mut Kernel, mapping: NewMapping) -> Vec<Latecomer> {
        let found = self.scan.scan_process(mapping.tgid);
        let mut late = self.take_in(kernel, &found, Some(mapping.time_ns));
        let named = |met: &Met| {
            let same = |file: &LibraryFile| file.identity.is_same_file(&met.identity);
            found.files.iter().any(|file| same(file) && file.identity.inode() == mapping.inode.number)
        };
        if let Some(known) = self.met.iter().position(named) {
            self.inodes.insert(mapping.inode, known);
            let since_ns = self.met[known].attached_ns;
            if mapping.time_ns < since_ns && late.is_empty() {
                late.push(Latecomer { tgid: mapping.tgid, since_ns });
            }
        }
        late
    }

    /// Probes the files that are new; `mapped_ns` says when the first process mapped them, if that is known.
    fn take_in(&mut self, kernel: &mut Kernel, found: &Discovery, mapped_ns: Option<u64>) -> Vec<Latecomer> {
        let mut late = Vec::new();
        for file in &found.files {
            self.users.extend(&file.mapped_by);
            if self.met.iter().any(|met| met.identity.is_same_file(&file.identity)) {
                continue;
            }
            let mut coverage = attach(kernel, file, self.version);
            let attached_ns = clock::boottime_ns();
            if coverage.probes_attached > 0 {
                coverage.gap_ns = mapped_ns.map(|mapped_ns| attached_ns.saturating_sub(mapped_ns));
            }
            log::info!("{}: {} probes attached", coverage.path, coverage.probes_attached);
            self.met.push(Met { identity: file.identity.clone(), coverage, attached_ns });
            self.changed = true;
            late.extend(file.mapped_by.iter().map(|&tgid| Latecomer { tgid, since_ns: attached_ns }));
        }
        for left_out in found.left_out.iter().filter(|left_out| left_out.concerns_somebody()) {
            let LeftOut { display, reason, .. } = left_out;
            self.changed |= self.left_out.insert(display.clone(), *reason) != Some(*reason);
        }
        late
    }
}

impl Expectation {
    /// With mapping records one look is enough: it finds what was mapped before they began.
    fn is_due(&self, reported: bool) -> bool {
        let every = if self.since.elapsed() < EAGER { EAGER_EVERY } else { PATIENT_EVERY };
        self.last_look.is_none_or(|last| !reported && last.elapsed() >= every)
    }
}

/// Begins with the kernel's mapping records where it gives them; `polls` does without.
pub(crate) fn library_source(polls: bool) -> LibrarySource {
    if polls {
        return LibrarySource::Polling;
    }
    match MappingRecords::open() {
        Ok(records) => LibrarySource::Records(records),
        Err(error) => {
            log::warn!("the kernel gives no mapping records ({}): looking for libraries every 2 s", chain(&error));
            LibrarySource::Polling
        }
    }
}

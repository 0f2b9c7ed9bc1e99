//! Finds driver libraries as processes map them, and attaches probes to each library once.
//!
//! The kernel's mapping records name each process that maps a library. Without such records, all
//! processes are scanned every two seconds. A slow sweep finds what either has missed. Files that a
//! process may load are probed before it maps them. All files are read on other threads
//! (`library_look`), and the number of accepted files is limited.

mod changes;
mod files;
mod intake;
mod left_out;
mod loaders;
mod proof;
mod sweeps;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memwatch_common::probes::When;
use memwatch_core::input::LibraryCoverage;

use crate::sources::clock;
use crate::sources::kernel::attach::{LibraryProbes, attach};
use crate::sources::kernel::load::KernelHalf;
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::LibraryScan;
use crate::sources::library::limits::FileOwner;
use crate::sources::library_look::{LibraryQuery, LibraryRequest, Lookers, Looking, NewFile, new_files, owner_of};
use crate::sources::library_sweep::{Among, ProcessListing, Sweep, Sweeper};
use crate::sources::mappings::{MappedInode, MappingRecords, NewMapping};
use crate::sources::owner_queues::OwnerQueries;
use files::{Files, Met};
use left_out::LeftOutFiles;
use loaders::Loaders;
use proof::Proofs;

/// Polling of a process without a library if there are no mapping records: every [`EAGER_EVERY`]
/// during the first [`EAGER`], then every [`PATIENT_EVERY`].
const EAGER: Duration = Duration::from_secs(60);
const EAGER_EVERY: Duration = Duration::from_millis(20);
const PATIENT_EVERY: Duration = Duration::from_millis(500);
/// Interval of the sweep over all processes without mapping records, and with them.
const SWEEP_ALONE: Duration = Duration::from_secs(2);
const SWEEP_BESIDE_RECORDS: Duration = Duration::from_secs(30);
/// How long the start of a session waits for the files that the targets' loaders may find; a
/// network file system may not answer.
const LOADERS_WAIT: Duration = Duration::from_secs(1);
/// How long the start of a session waits for the files of all processes. Later results are handled
/// as they arrive.
const MACHINE_WAIT: Duration = Duration::from_secs(10);

/// How new libraries are found.
pub(crate) enum LibrarySource {
    /// The kernel's mapping records.
    Records(MappingRecords),
    /// Periodic scans of all processes, without mapping records.
    Polling,
}

/// A process that mapped a library before its probes were attached. Its earlier calls are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LateAttach {
    /// Process id.
    pub(crate) tgid: u32,
    /// When its calls became visible: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) since_ns: u64,
}

/// All driver libraries found so far, and the scans that find more.
pub(crate) struct LibraryWatch {
    scan: LibraryScan,
    version: KernelVersion,
    source: LibrarySource,
    sweeper: Sweeper,
    /// The running sweep.
    sweep: Option<Sweep>,
    lookers: Lookers,
    /// When the last completed sweep began: `CLOCK_BOOTTIME`, nanoseconds.
    swept_ns: u64,
    files: Files,
    /// Mapping records that have been fetched but not handled.
    mapped: Vec<NewMapping>,
    /// Processes with a pending scan.
    pending: BTreeMap<u32, PendingScan>,
    loaders: Loaders,
    /// Probes on the kernel-driver requests of the driver's other libraries, kept for the whole
    /// session.
    requesters: Vec<LibraryProbes>,
    /// Processes that have mapped a library that CUDA programs map before the driver library, since
    /// the last call of [`Self::take_heralded`].
    heralded: BTreeSet<u32>,
    left_out: LeftOutFiles,
    proofs: Proofs,
    /// Functions to be probed in single processes; `None` until the scan is done.
    wanted: BTreeMap<(u32, When), Option<Vec<NewFile>>>,
    /// Processes that are polled until they map a library.
    expected: BTreeMap<u32, Expectation>,
    /// Pending and cached answers of whether a process maps a library.
    mappings: OwnerQueries<bool>,
}

/// A process with a pending scan.
#[derive(Default)]
struct PendingScan {
    owner: Option<FileOwner>,
    /// Mapping records that caused the scan.
    mappings: Vec<NewMapping>,
    /// Mapping records that arrived after the scan was queued.
    again: Vec<NewMapping>,
}

struct Expectation {
    since: Instant,
    last_look: Option<Instant>,
}

impl LibraryWatch {
    /// Starts without any file.
    ///
    /// # Errors
    /// The threads for sweeps and scans cannot be spawned.
    pub(crate) fn new(scan: LibraryScan, version: KernelVersion, source: LibrarySource) -> std::io::Result<Self> {
        let every = match source {
            LibrarySource::Records(_) => SWEEP_BESIDE_RECORDS,
            LibrarySource::Polling => SWEEP_ALONE,
        };
        let mut files = Files::default();
        // The empty list is reported, too.
        files.touch();
        let lookers = Lookers::new(&scan, version);
        Ok(Self {
            sweeper: Sweeper::start(every, lookers.notifier())?,
            sweep: None,
            lookers,
            scan,
            version,
            source,
            swept_ns: 0,
            files,
            mapped: Vec::new(),
            pending: BTreeMap::new(),
            loaders: Loaders::default(),
            requesters: Vec::new(),
            heralded: BTreeSet::new(),
            left_out: LeftOutFiles::default(),
            proofs: Proofs::default(),
            wanted: BTreeMap::new(),
            expected: BTreeMap::new(),
            mappings: OwnerQueries::new("mappings"),
        })
    }

    /// Returns the JSON name of how new libraries are found.
    pub(crate) fn source_name(&self) -> &'static str {
        match self.source {
            LibrarySource::Records(_) => "mapping_records",
            LibrarySource::Polling => "polling",
        }
    }

    /// Polls a process that may map a library at any moment.
    pub(crate) fn expect(&mut self, tgid: u32) {
        self.expected.entry(tgid).or_insert_with(|| Expectation { since: Instant::now(), last_look: None });
    }

    /// Handles exec: the program's loader may find files that are not probed yet.
    pub(crate) fn expect_program(&mut self, tgid: u32) {
        self.proofs.forget(tgid);
        self.expect(tgid);
        self.loaders.want(tgid);
        self.order_loaders();
    }

    /// Forgets a process that has exited.
    pub(crate) fn forget(&mut self, tgid: u32) {
        self.expected.remove(&tgid);
        self.wanted.retain(|(wanted, _), _| *wanted != tgid);
        self.loaders.forget(tgid);
        self.left_out.forget(tgid);
        self.proofs.forget(tgid);
        self.files.forget_user(tgid);
    }

    /// Probes the files in the host's usual directories and those the user named, before any
    /// process maps them.
    pub(crate) fn attach_host(&mut self, kernel: &mut KernelHalf) {
        let found = self.scan.scan_host();
        for NewFile { file, plan } in
            new_files(&found, &self.files.identities(), (self.version, (self.scan.probes(), When::Always)))
        {
            let (coverage, probes) = attach(kernel, &file, plan.as_ref());
            let mut met = Met::new(file.identity, (coverage, probes), clock::boottime_ns(), None);
            met.is_usual = true;
            self.files.insert(met);
        }
        self.note_left_out(&found);
        self.order(LibraryQuery::Requesters(None));
    }

    /// Probes the files that these processes map, and those their loaders may find. Waits for the
    /// scans, up to the limits above.
    pub(crate) fn attach_processes(&mut self, kernel: &mut KernelHalf, tgids: &BTreeSet<u32>) {
        let ProcessListing { begun_ns, of_owners } =
            ProcessListing::now(Among::Processes(tgids.iter().copied().collect()));
        let parts = of_owners.len();
        for (owner, tgids) in of_owners {
            for tgid in &tgids {
                if let Some(expectation) = self.expected.get_mut(tgid) {
                    expectation.last_look = Some(Instant::now());
                }
            }
            self.order(LibraryQuery::Part(begun_ns, owner, tgids));
        }
        self.wait_for(kernel, (parts, MACHINE_WAIT), |looking| looking == Looking::Part(begun_ns));
        for &tgid in tgids {
            self.order(LibraryQuery::Loader(tgid));
        }
        self.wait_for(kernel, (tgids.len(), LOADERS_WAIT), |looking| matches!(looking, Looking::Loader(_)));
    }

    /// Probes the files that the loader of a program may find, before memwatch starts the program.
    pub(crate) fn attach_program(&mut self, kernel: &mut KernelHalf, program: &Path) {
        let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        self.order(LibraryQuery::Program(on_path(program), path.into_encoded_bytes()));
        self.wait_for(kernel, (1, LOADERS_WAIT), |looking| looking == Looking::Program);
    }

    fn wait_for(
        &mut self,
        kernel: &mut KernelHalf,
        (mut answers, longest): (usize, Duration),
        is_one: impl Fn(Looking) -> bool,
    ) {
        let end = Instant::now() + longest;
        while answers > 0
            && let Some(looked) = self.lookers.wait(end.saturating_duration_since(Instant::now()))
        {
            answers -= usize::from(is_one(looked.subject));
            self.take_in_look(kernel, looked);
        }
    }

    /// Queues scans of the expected processes that are due.
    pub(crate) fn look_at_expected(&mut self) {
        let reported = matches!(self.source, LibrarySource::Records(_));
        let now = Instant::now();
        let is_due = |look: &Expectation| look.due(reported, now).is_some_and(|due| due <= now);
        let due = self.expected.iter().filter(|(tgid, look)| is_due(look) && !self.pending.contains_key(tgid));
        for tgid in due.map(|(tgid, _)| *tgid).collect::<Vec<u32>>() {
            if let Some(expectation) = self.expected.get_mut(&tgid) {
                expectation.last_look = Some(Instant::now());
            }
            self.pending.insert(tgid, PendingScan::default());
            self.order(LibraryQuery::Mapped(tgid));
        }
        self.order_loaders();
    }

    /// Fetches the kernel's mapping records. Returns whether one is of interest. Fork records come
    /// through another ring: drain it after this and before [`Self::look_at_mapped`], so that the
    /// parents of the mapping processes are known.
    pub(crate) fn fetch_mapped(&mut self) -> bool {
        let LibrarySource::Records(records) = &mut self.source else { return false };
        let new = records.take();
        let is_of_interest = !new.libraries.is_empty() || !new.heralds.is_empty() || !new.requesters.is_empty();
        if new.incomplete {
            log::info!("mapping records were lost; scanning all processes");
            self.sweeper.hurry();
        }
        self.mapped.extend(new.libraries);
        self.heralded.extend(&new.heralds);
        self.loaders.note(new.heralds);
        self.loaders.note(new.requesters);
        is_of_interest
    }

    /// Returns the processes that are about to use CUDA, by the libraries they have mapped since
    /// the last call.
    pub(crate) fn take_heralded(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.heralded)
    }

    /// Queues scans of the `wanted` processes that have mapped unknown files. Returns the processes
    /// that mapped a known file before its probes were attached.
    pub(crate) fn look_at_mapped(&mut self, wanted: impl Fn(u32) -> bool) -> Vec<LateAttach> {
        let mut late = Vec::new();
        for mapping in std::mem::take(&mut self.mapped).into_iter().filter(|mapping| wanted(mapping.tgid)) {
            let Some(met) = self.files.behind(&mapping.inode) else {
                self.look_at(mapping);
                continue;
            };
            self.expected.remove(&mapping.tgid);
            if mapping.time_ns < met.attached_ns {
                late.push(LateAttach { tgid: mapping.tgid, since_ns: met.attached_ns });
            }
            let identity = met.identity.clone();
            self.files.note_user(&identity, mapping.tgid, mapping.time_ns);
            // A CUDA process may load graphics libraries next.
            self.loaders.note(vec![mapping.tgid]);
        }
        self.loaders.keep_wanted(wanted);
        self.order_loaders();
        late
    }

    /// Queues a scan for the file of a mapping record, unless its owner has too many files.
    fn look_at(&mut self, mapping: NewMapping) {
        if let Some(pending) = self.pending.get_mut(&mapping.tgid) {
            pending.again.push(mapping);
            return;
        }
        // The process has exited.
        let Some(owner) = owner_of(mapping.tgid) else { return };
        let looked_at = self.pending.values().filter_map(|pending| pending.owner);
        if !self.files.has_room(owner, looked_at) {
            // The process has mapped a library that will not be probed.
            self.expected.remove(&mapping.tgid);
            self.refuse(mapping.inode);
            return;
        }
        let pending = PendingScan { owner: Some(owner), mappings: vec![mapping], again: Vec::new() };
        self.pending.insert(mapping.tgid, pending);
        self.order(LibraryQuery::Mapped(mapping.tgid));
    }

    /// Refuses a file beyond the limit. Some counted files may be unused: a sweep removes those and
    /// finds this file again.
    fn refuse(&mut self, inode: MappedInode) {
        self.files.refuse(inode);
        if self.files.has_idle() {
            self.sweeper.hurry();
        }
    }

    fn order(&self, subject: LibraryQuery) {
        let known = match &subject {
            LibraryQuery::Loader(tgid) => self.files.known_to(owner_of(*tgid)),
            _ => self.files.identities(),
        };
        self.lookers.order(LibraryRequest { subject, known });
    }

    fn order_loaders(&mut self) {
        if let Some(tgid) = self.loaders.next(owner_of) {
            self.order(LibraryQuery::Loader(tgid));
        }
    }

    /// Returns when there is work that no event announces.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let reported = matches!(self.source, LibrarySource::Records(_));
        let unheard = match &self.source {
            LibrarySource::Records(records) if !records.wakes() => Some(now),
            _ => (!self.mapped.is_empty() || !self.heralded.is_empty()).then_some(now),
        };
        let expected = self.expected.iter().filter(|(tgid, _)| !self.pending.contains_key(tgid));
        let expected = expected.filter_map(|(_, look)| look.due(reported, now)).min();
        let sweep = self.sweeper.due(self.sweep.as_ref());
        [unheard, expected, sweep, self.loaders.due(now)].into_iter().flatten().min()
    }

    /// Makes the next mapping of a library, by any process, complete [`Self::rings`].
    pub(crate) fn want_next_mapping(&mut self) {
        if let LibrarySource::Records(records) = &mut self.source {
            records.want_next();
        }
    }

    /// Stops wake-ups by mappings, since the caller polls.
    pub(crate) fn hush(&mut self) {
        if let LibrarySource::Records(records) = &mut self.source {
            records.hush();
        }
    }

    /// Completes when a process has mapped a library, if [`Self::want_next_mapping`] was called.
    pub(crate) fn rings(&self) -> impl Future<Output = ()> + use<> {
        let rings = match &self.source {
            LibrarySource::Records(records) => Some(records.rings()),
            LibrarySource::Polling => None,
        };
        async move {
            match rings {
                Some(rings) => rings.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Completes when a scan or a sweep has ended. Cancel safe.
    pub(crate) fn news(&self) -> impl Future<Output = ()> + use<> {
        self.lookers.news()
    }

    /// Probes the new files of the completed scans. Returns the processes that had mapped one
    /// before.
    pub(crate) fn attach_looked(&mut self, kernel: &mut KernelHalf) -> Vec<LateAttach> {
        let mut late = Vec::new();
        while let Some(looked) = self.lookers.take() {
            late.extend(self.take_in_look(kernel, looked));
        }
        late
    }

    /// Whether the process has not been seen mapping a library.
    pub(crate) fn is_expected(&self, tgid: u32) -> bool {
        self.expected.contains_key(&tgid)
    }

    /// Returns every file found, probed or not, and the number of refused ones, if that has changed
    /// since the last call.
    pub(crate) fn new_coverage(&mut self) -> Option<(Vec<LibraryCoverage>, u64)> {
        let mut libraries = self.files.new_coverage()?;
        libraries.extend(self.left_out.coverage());
        Some((libraries, self.files.refused()))
    }

    /// Returns the processes last seen with a library mapped. Some may have exited since.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.files.users().into_iter().collect()
    }

    /// Returns the functions of a process's mapped files that are probed in the situation `when`.
    /// The first call queues a scan; the result is `None` until the scan is done.
    pub(crate) fn functions_of(&mut self, tgid: u32, when: When) -> Option<Vec<NewFile>> {
        match self.wanted.entry((tgid, when)) {
            Entry::Occupied(mut wanted) => {
                let found = wanted.get_mut().take()?;
                wanted.remove();
                Some(found)
            }
            Entry::Vacant(wanted) => {
                wanted.insert(None);
                self.order(LibraryQuery::Functions(tgid, when));
                None
            }
        }
    }

    /// Whether a process maps a library now.
    pub(crate) fn is_user(&mut self, tgid: u32) -> bool {
        let Some(owner) = owner_of(tgid) else { return false };
        let scan = self.scan.clone();
        // While the answer is pending, assumes that nothing has changed since the library was last
        // seen.
        let uses = self.mappings.ask(owner, tgid, move || scan.is_mapped_by(tgid)).unwrap_or(true);
        if !uses {
            self.files.forget_user(tgid);
        }
        uses
    }
}

/// Returns the path of a program's file as a shell would find it.
fn on_path(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file());
    found.unwrap_or_else(|| program.to_owned())
}

impl Expectation {
    /// Returns when the next poll is due. With mapping records one poll is enough: it finds what
    /// was mapped before the records began.
    fn due(&self, reported: bool, now: Instant) -> Option<Instant> {
        let every = if now.duration_since(self.since) < EAGER { EAGER_EVERY } else { PATIENT_EVERY };
        match self.last_look {
            None => Some(now),
            Some(_) if reported => None,
            Some(last) => Some(last + every),
        }
    }
}

/// Opens the kernel's mapping records if available. `polls` disables them.
pub(crate) fn library_source(polls: bool) -> LibrarySource {
    if polls {
        return LibrarySource::Polling;
    }
    match MappingRecords::open() {
        Ok(records) => LibrarySource::Records(records),
        Err(error) => {
            log::warn!("no mapping records from the kernel ({}); scanning for libraries every 2 s", chain(&error));
            LibrarySource::Polling
        }
    }
}

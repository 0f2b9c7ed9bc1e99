//! Finds driver libraries as they appear and puts probes on each once.
//!
//! The kernel's records of mappings name each process that maps one; where it gives none, the processes are looked through
//! every two seconds instead. A slow sweep finds what either has missed. Files that a process may load are probed before it does. All reading is done
//! by other threads (`library_look`); how much is taken in has limits.

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
use crate::sources::kernel::load::Kernel;
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::LibraryScan;
use crate::sources::library::limits::Owner;
use crate::sources::library_look::{Lookers, Looking, NewFile, Order, Subject, new_files, owner_of};
use crate::sources::library_sweep::{Among, Listed, Sweep, Sweeper};
use crate::sources::mappings::{MappedInode, MappingRecords, NewMapping};
use crate::sources::owner_queues::Asking;
use files::{Files, Met};
use left_out::LeftOutFiles;
use loaders::Loaders;
use proof::Proofs;

/// Where nothing reports mappings: how long a process without a library is looked at often, and how often then and later.
const EAGER: Duration = Duration::from_secs(60);
const EAGER_EVERY: Duration = Duration::from_millis(20);
const PATIENT_EVERY: Duration = Duration::from_millis(500);
/// How often the processes are looked through without mapping records, and with them.
const SWEEP_ALONE: Duration = Duration::from_secs(2);
const SWEEP_BESIDE_RECORDS: Duration = Duration::from_secs(30);
/// How long the files are waited for that the loaders of targets may find, when a watch begins; a network file system may not answer.
const LOADERS_WAIT: Duration = Duration::from_secs(1);
/// How long the files of all processes are waited for then: what comes later is taken in as it comes.
const MACHINE_WAIT: Duration = Duration::from_secs(10);

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
    /// The one that goes on.
    sweep: Option<Sweep>,
    lookers: Lookers,
    /// When the last sweep that was taken in began: `CLOCK_BOOTTIME`, nanoseconds.
    swept_ns: u64,
    files: Files,
    /// Mappings fetched and not looked at yet.
    mapped: Vec<NewMapping>,
    /// Processes that are being looked at.
    pending: BTreeMap<u32, Pending>,
    loaders: Loaders,
    /// Probes at the requests of the driver's other libraries, for as long as the watch lasts.
    requesters: Vec<LibraryProbes>,
    /// Processes that have mapped what programs with CUDA map before the driver library, since the last call of [`Self::take_heralded`].
    heralded: BTreeSet<u32>,
    left_out: LeftOutFiles,
    proofs: Proofs,
    /// Where the functions are that are to be probed in single processes: nothing until a thread has looked.
    wanted: BTreeMap<(u32, When), Option<Vec<NewFile>>>,
    /// Processes to be looked at until they have mapped a library.
    expected: BTreeMap<u32, Expectation>,
    /// Whether a process has a library mapped.
    mappings: Asking<bool>,
}

/// A process that is being looked at.
#[derive(Default)]
struct Pending {
    owner: Option<Owner>,
    /// The mappings that are behind it.
    mappings: Vec<NewMapping>,
    /// Others have come since the look was ordered.
    again: Vec<NewMapping>,
}

struct Expectation {
    since: Instant,
    last_look: Option<Instant>,
}

impl LibraryWatch {
    /// Nothing met yet.
    ///
    /// # Errors
    /// The system has no thread to give for the sweeps and looks.
    pub(crate) fn new(scan: LibraryScan, version: KernelVersion, source: LibrarySource) -> std::io::Result<Self> {
        let every = match source {
            LibrarySource::Records(_) => SWEEP_BESIDE_RECORDS,
            LibrarySource::Polling => SWEEP_ALONE,
        };
        let mut files = Files::default();
        // That there is none is news, too.
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
            mappings: Asking::new("mappings"),
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

    /// A process has a program whose loader may find other files than the ones that are probed.
    pub(crate) fn expect_program(&mut self, tgid: u32) {
        self.proofs.forget(tgid);
        self.expect(tgid);
        self.loaders.want(tgid);
        self.order_loaders();
    }

    /// A process has ended.
    pub(crate) fn forget(&mut self, tgid: u32) {
        self.expected.remove(&tgid);
        self.wanted.retain(|(wanted, _), _| *wanted != tgid);
        self.loaders.forget(tgid);
        self.left_out.forget(tgid);
        self.proofs.forget(tgid);
        self.files.forget_user(tgid);
    }

    /// Probes the files in the host's usual places and those the user named, before anybody maps them.
    pub(crate) fn attach_host(&mut self, kernel: &mut Kernel) {
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
        self.order(Subject::Requesters(None));
    }

    /// Probes what these processes have mapped, and what their loaders may find. It takes a while, as above.
    pub(crate) fn attach_processes(&mut self, kernel: &mut Kernel, tgids: &BTreeSet<u32>) {
        let Listed { begun_ns, of_owners } = Listed::now(Among::Processes(tgids.iter().copied().collect()));
        let parts = of_owners.len();
        for (owner, tgids) in of_owners {
            for tgid in &tgids {
                if let Some(expectation) = self.expected.get_mut(tgid) {
                    expectation.last_look = Some(Instant::now());
                }
            }
            self.order(Subject::Part(begun_ns, owner, tgids));
        }
        self.wait_for(kernel, (parts, MACHINE_WAIT), |looking| looking == Looking::Part(begun_ns));
        for &tgid in tgids {
            self.order(Subject::Loader(tgid));
        }
        self.wait_for(kernel, (tgids.len(), LOADERS_WAIT), |looking| matches!(looking, Looking::Loader(_)));
    }

    /// Probes what the loader of a program may find that is about to be started from here.
    pub(crate) fn attach_program(&mut self, kernel: &mut Kernel, program: &Path) {
        let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        self.order(Subject::Program(on_path(program), path.into_encoded_bytes()));
        self.wait_for(kernel, (1, LOADERS_WAIT), |looking| looking == Looking::Program);
    }

    fn wait_for(
        &mut self,
        kernel: &mut Kernel,
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

    /// Has the expected processes looked at that are due.
    pub(crate) fn look_at_expected(&mut self) {
        let reported = matches!(self.source, LibrarySource::Records(_));
        let now = Instant::now();
        let is_due = |look: &Expectation| look.due(reported, now).is_some_and(|due| due <= now);
        let due = self.expected.iter().filter(|(tgid, look)| is_due(look) && !self.pending.contains_key(tgid));
        for tgid in due.map(|(tgid, _)| *tgid).collect::<Vec<u32>>() {
            if let Some(expectation) = self.expected.get_mut(&tgid) {
                expectation.last_look = Some(Instant::now());
            }
            self.pending.insert(tgid, Pending::default());
            self.order(Subject::Mapped(tgid));
        }
        self.order_loaders();
    }

    /// Fetches the kernel's records of mappings, and says whether one is of interest. Those of forks come in another ring: drained after this and before
    /// [`Self::look_at_mapped`], it says whose children the processes are that have mapped something.
    pub(crate) fn fetch_mapped(&mut self) -> bool {
        let LibrarySource::Records(records) = &mut self.source else { return false };
        let new = records.take();
        let is_of_interest = !new.libraries.is_empty() || !new.heralds.is_empty() || !new.requesters.is_empty();
        if new.incomplete {
            log::info!("mapping records were lost: looking through the processes");
            self.sweeper.hurry();
        }
        self.mapped.extend(new.libraries);
        self.heralded.extend(&new.heralds);
        self.loaders.note(new.heralds);
        self.loaders.note(new.requesters);
        is_of_interest
    }

    /// The processes that are about to use CUDA, by what they have mapped since the last call.
    pub(crate) fn take_heralded(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.heralded)
    }

    /// Has those processes looked at that are `wanted` and have mapped what was not met before. Returns the ones that have mapped a file that was met,
    /// before it had its probes.
    pub(crate) fn look_at_mapped(&mut self, wanted: impl Fn(u32) -> bool) -> Vec<Latecomer> {
        let mut late = Vec::new();
        for mapping in std::mem::take(&mut self.mapped).into_iter().filter(|mapping| wanted(mapping.tgid)) {
            let Some(met) = self.files.behind(&mapping.inode) else {
                self.look_at(mapping);
                continue;
            };
            self.expected.remove(&mapping.tgid);
            if mapping.time_ns < met.attached_ns {
                late.push(Latecomer { tgid: mapping.tgid, since_ns: met.attached_ns });
            }
            let identity = met.identity.clone();
            self.files.note_user(&identity, mapping.tgid, mapping.time_ns);
            // Who uses CUDA may go on to draw.
            self.loaders.note(vec![mapping.tgid]);
        }
        self.loaders.keep_wanted(wanted);
        self.order_loaders();
        late
    }

    /// Has the file behind a mapping looked at, unless its owner has too many.
    fn look_at(&mut self, mapping: NewMapping) {
        if let Some(pending) = self.pending.get_mut(&mapping.tgid) {
            pending.again.push(mapping);
            return;
        }
        // It has ended.
        let Some(owner) = owner_of(mapping.tgid) else { return };
        let looked_at = self.pending.values().filter_map(|pending| pending.owner);
        if !self.files.has_room(owner, looked_at) {
            // It has mapped what is not probed.
            self.expected.remove(&mapping.tgid);
            self.refuse(mapping.inode);
            return;
        }
        let pending = Pending { owner: Some(owner), mappings: vec![mapping], again: Vec::new() };
        self.pending.insert(mapping.tgid, pending);
        self.order(Subject::Mapped(mapping.tgid));
    }

    /// A file is one too many. Some that are counted may be gone: a sweep takes those out, and finds this one again.
    fn refuse(&mut self, inode: MappedInode) {
        self.files.refuse(inode);
        if self.files.has_idle() {
            self.sweeper.hurry();
        }
    }

    fn order(&self, subject: Subject) {
        let known = match &subject {
            Subject::Loader(tgid) => self.files.known_to(owner_of(*tgid)),
            _ => self.files.identities(),
        };
        self.lookers.order(Order { subject, known });
    }

    fn order_loaders(&mut self) {
        if let Some(tgid) = self.loaders.next(owner_of) {
            self.order(Subject::Loader(tgid));
        }
    }

    /// When there is something to do of which nobody will report that it is.
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

    /// From now on the next mapping of a library, by anybody, completes [`Self::rings`].
    pub(crate) fn want_next_mapping(&mut self) {
        if let LibrarySource::Records(records) = &mut self.source {
            records.want_next();
        }
    }

    /// Mappings are fetched in a rhythm from now on: nobody has to report one.
    pub(crate) fn hush(&mut self) {
        if let LibrarySource::Records(records) = &mut self.source {
            records.hush();
        }
    }

    /// Completes when somebody has mapped a library, where that is wanted.
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

    /// Completes when a look or a sweep has ended. Dropped while it waits, it has taken nothing.
    pub(crate) fn news(&self) -> impl Future<Output = ()> + use<> {
        self.lookers.news()
    }

    /// Probes the new files of the looks that have ended. Returns the processes that had mapped one before.
    pub(crate) fn attach_looked(&mut self, kernel: &mut Kernel) -> Vec<Latecomer> {
        let mut late = Vec::new();
        while let Some(looked) = self.lookers.take() {
            late.extend(self.take_in_look(kernel, looked));
        }
        late
    }

    /// Whether this process has not been seen mapping a library.
    pub(crate) fn is_expected(&self, tgid: u32) -> bool {
        self.expected.contains_key(&tgid)
    }

    /// Every file met, probed or not, and how many were refused, if that has changed since the last call.
    pub(crate) fn new_coverage(&mut self) -> Option<(Vec<LibraryCoverage>, u64)> {
        let mut libraries = self.files.new_coverage()?;
        libraries.extend(self.left_out.coverage());
        Some((libraries, self.files.refused()))
    }

    /// The processes that were last seen with a library mapped; some may have ended since.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.files.users().into_iter().collect()
    }

    /// Where the files that a process has mapped have the functions that are probed at such times. The first time it is asked a thread looks, and there is
    /// nothing until that has.
    pub(crate) fn functions_of(&mut self, tgid: u32, when: When) -> Option<Vec<NewFile>> {
        match self.wanted.entry((tgid, when)) {
            Entry::Occupied(mut wanted) => {
                let found = wanted.get_mut().take()?;
                wanted.remove();
                Some(found)
            }
            Entry::Vacant(wanted) => {
                wanted.insert(None);
                self.order(Subject::Functions(tgid, when));
                None
            }
        }
    }

    /// Whether a process has a library mapped now.
    pub(crate) fn is_user(&mut self, tgid: u32) -> bool {
        let Some(owner) = owner_of(tgid) else { return false };
        let scan = self.scan.clone();
        // Where it holds its mappings nothing else is known than what was seen last.
        let uses = self.mappings.ask(owner, tgid, move || scan.is_mapped_by(tgid)).unwrap_or(true);
        if !uses {
            self.files.forget_user(tgid);
        }
        uses
    }
}

/// The file of a program as a shell finds it.
fn on_path(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file());
    found.unwrap_or_else(|| program.to_owned())
}

impl Expectation {
    /// When it is looked at next. With mapping records one look is enough: it finds what was mapped before they began.
    fn due(&self, reported: bool, now: Instant) -> Option<Instant> {
        let every = if now.duration_since(self.since) < EAGER { EAGER_EVERY } else { PATIENT_EVERY };
        match self.last_look {
            None => Some(now),
            Some(_) if reported => None,
            Some(last) => Some(last + every),
        }
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

//! Sums of blocks by site, call path, stage, layer and phase, on each device: each list adds up to what the allocator has granted.
//!
//! An event costs one entry in a map and six additions. What each place had at the device's peak is kept exactly without copying: see [`Sum`].

mod books;
mod drawn;
mod floor;
mod live;
mod phase;
mod renamed;
mod sum;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use crate::allocators::Block;
use crate::allocators::durations::Spent;
use crate::allocators::names::{LayerKey, LibraryKey, PhaseKey, SiteKey};
use crate::allocators::threads::{Attribution, Evidence, Stage};
use crate::words::Ordinal;

pub use self::drawn::Drawn;
pub use self::live::LiveBlock;
pub use self::phase::PhaseSum;
pub(super) use self::renamed::Granted;
pub use self::sum::Sum;

use self::floor::Floors;
use self::live::Live;

/// How many call paths have sums of their own on a device; what comes after shares one for each stage.
const CALL_PATHS: usize = 1 << 16;
/// How many refused allocations are remembered.
const REFUSED: usize = 16;
/// A stage, and how blocks came to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StageRow {
    /// The stage.
    pub stage: Stage,
    /// See [`Attribution::recomputed`].
    pub recomputed: bool,
    /// See [`Attribution::captured`].
    pub captured: bool,
}

impl StageRow {
    const COUNT: usize = Stage::ALL.len() * 4;

    /// That of a block.
    pub const fn of(whose: &Attribution) -> Self {
        Self { stage: whose.stage, recomputed: whose.recomputed, captured: whose.captured }
    }

    const fn index(self) -> usize {
        (self.stage as usize) * 4 + (self.recomputed as usize) * 2 + self.captured as usize
    }
}

/// The way to a block: its stack where it has one, else its site says why not; and the stage, since one stack may be in several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallPath {
    /// The stack's number.
    pub stack: Option<u64>,
    /// The site.
    pub site: SiteKey,
    /// The line of a library that was called from there.
    pub library: LibraryKey,
    /// The stage.
    pub row: StageRow,
}

impl CallPath {
    /// That of a block.
    const fn of(whose: &Attribution) -> Self {
        Self { stack: whose.stack, site: whose.site, library: whose.library, row: StageRow::of(whose) }
    }

    /// The one that all share for which there is no room.
    const fn of_the_rest(self) -> Self {
        Self { stack: None, site: SiteKey::REST, library: LibraryKey::NONE, ..self }
    }
}

/// A layer's sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSum {
    /// In all.
    pub sum: Sum,
    /// Live bytes by the stage they were allocated in, in the order of [`Stage::ALL`].
    pub live_by_stage: [u64; Stage::ALL.len()],
    /// Bytes allocated since the attach, likewise.
    pub total_by_stage: [u64; Stage::ALL.len()],
    /// How long threads were at work for it by the host's clock, nanoseconds.
    pub host_duration_ns: u64,
    /// What was rounded up of its blocks since the attach, in bytes.
    rounding_bytes: u64,
    /// Of how many of them that is not known.
    unrounded: u64,
}

impl LayerSum {
    /// What was rounded up of its blocks since the attach, in bytes; `None` where it is not known of all of them, or there were none.
    pub fn total_rounding_bytes(&self) -> Option<u64> {
        (self.unrounded == 0 && self.sum.allocations > 0).then_some(self.rounding_bytes)
    }
}

/// The sums of one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DevicePlaces {
    /// All that was there before the watch is known by now, or there was nothing: what else is of no known event came while none was traced.
    is_watched: bool,
    total: Sum,
    /// What the allocator itself reported last.
    allocated_bytes: u64,
    /// How many times `total` was higher than ever before.
    epoch: u64,
    sites: Vec<Sum>,
    /// Of the sites that have blocks with a stack by a draw.
    drawn: BTreeMap<SiteKey, Drawn>,
    /// Of each site, in windows of time.
    floors: Floors,
    /// The same in windows of a step.
    step_floors: Floors,
    layers: Vec<LayerSum>,
    stages: Vec<Sum>,
    /// The first is for what is in no phase, the next for the rest.
    phases: Vec<PhaseSum>,
    call_paths: HashMap<CallPath, Sum, RandomState>,
}

/// An allocation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The device.
    pub ordinal: Ordinal,
    /// What was wanted, rounded, in bytes.
    pub wanted_bytes: u64,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Whose.
    pub whose: Attribution,
}

/// The sums of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Places {
    devices: BTreeMap<Ordinal, DevicePlaces>,
    /// The process began under the watch: nothing is older.
    is_from_start: bool,
    /// Blocks that the last reading of moving allocators has not found.
    #[serde(skip)]
    missed: BTreeSet<(Ordinal, u64)>,
    live: Live,
    refused: VecDeque<Refusal>,
}

impl Places {
    /// The device's allocator has granted so much; `before_bytes` is what it had granted before the event that says so.
    pub(super) fn observe(&mut self, ordinal: Ordinal, before_bytes: u64, allocated_bytes: u64) {
        let before = if self.is_from_start { &UNTRACED } else { &BEFORE_ATTACH };
        let device = self.devices.entry(ordinal).or_insert_with(|| DevicePlaces::with(before, before_bytes));
        device.allocated_bytes = allocated_bytes;
        // What came while nothing was traced and has gone since is counted no more as soon as that shows.
        let excess_bytes = device.total.live_bytes.saturating_sub(before_bytes);
        if excess_bytes > 0 && device.live_bytes(SiteKey::UNTRACED) > 0 {
            device.change(&UNTRACED, Step::Forget(excess_bytes));
        }
    }

    /// A block was granted.
    pub(super) fn grant(&mut self, block: &Block, whose: Attribution) {
        let live = LiveBlock {
            ordinal: block.ordinal,
            address: block.address,
            bytes: block.block_bytes,
            granted_ns: block.time_ns,
            tid: block.tid,
            whose,
            is_drawn: block.is_drawn,
        };
        // Two live blocks have no address in common: the free of the one before did not arrive.
        if let Some(gone) = self.live.insert(live) {
            self.device(gone.ordinal).lose(&gone, Step::Free(gone.bytes, None));
        }
        let device = self.device(block.ordinal);
        device.change(&whose, Step::Grant(block.block_bytes));
        if block.is_drawn {
            device.drawn.entry(whose.site).or_default().grant(block.block_bytes);
        }
        at(&mut device.layers, whose.layer.0 as usize).round(block.block_bytes, block.requested_bytes);
    }

    /// A layer has had this of a thread's time.
    pub(super) fn spend(&mut self, spent: Spent) {
        let layer = at(&mut self.device(spent.ordinal).layers, spent.layer.0 as usize);
        layer.host_duration_ns = layer.host_duration_ns.saturating_add(spent.time_ns);
    }

    /// A block that the program has.
    pub fn live(&self, ordinal: Ordinal, address: u64) -> Option<&LiveBlock> {
        self.live.get(ordinal, address)
    }

    /// All blocks that the program has, of which the beginning was seen, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = &LiveBlock> {
        self.live.all()
    }

    /// A block was given back, and is the answer: one never seen is older than the watch, or came while no event was traced.
    pub(super) fn free(&mut self, ordinal: Ordinal, address: u64, block_bytes: u64, time_ns: u64) -> Option<LiveBlock> {
        let (gone, is_from_start) = (self.live.remove(ordinal, address), self.is_from_start);
        if let Some(block) = gone {
            // Of one that is older than the watch, that is not known.
            let age_ns = (block.granted_ns > 0).then(|| time_ns.saturating_sub(block.granted_ns));
            self.device(ordinal).lose(&block, Step::Free(block.bytes, age_ns));
        } else {
            let device = self.device(ordinal);
            let untraced_bytes = device.live_bytes(SiteKey::UNTRACED);
            let is_untraced = is_from_start || (untraced_bytes > 0 && untraced_bytes >= block_bytes);
            let unseen = if is_untraced { &UNTRACED } else { &BEFORE_ATTACH };
            device.change(unseen, Step::Free(block_bytes, None));
        }
        gone
    }

    /// An allocation failed.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        if self.refused.len() >= REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back(refusal);
    }

    /// Peaks begin again at what is live.
    pub(super) fn reset_peaks(&mut self) {
        self.devices.values_mut().for_each(DevicePlaces::reset_peaks);
    }

    /// A window ends, and the next one begins: see [`DevicePlaces::floor_bytes`].
    pub(super) fn close_window(&mut self) {
        self.devices.values_mut().for_each(|device| device.floors.close());
    }

    /// A window of steps ends, and the next one begins: see [`DevicePlaces::step_floor_bytes`].
    pub(super) fn close_step_window(&mut self) {
        self.devices.values_mut().for_each(|device| device.step_floors.close());
    }

    /// Blocks of this size in bytes and above are listed one by one.
    pub(super) fn list_from(&mut self, least_bytes: u64) {
        self.live.list_from(least_bytes);
    }

    /// By device.
    pub const fn devices(&self) -> &BTreeMap<Ordinal, DevicePlaces> {
        &self.devices
    }

    /// The large blocks that are live, by device and address.
    pub fn large(&self) -> impl Iterator<Item = &LiveBlock> {
        self.live.large()
    }

    /// The last allocations that failed, oldest first.
    pub const fn refused(&self) -> &VecDeque<Refusal> {
        &self.refused
    }

    fn device(&mut self, ordinal: Ordinal) -> &mut DevicePlaces {
        self.devices.entry(ordinal).or_default()
    }
}

/// What happens to every sum of a block.
#[derive(Clone, Copy)]
enum Step {
    Grant(u64),
    Adopt(u64),
    Free(u64, Option<u64>),
    /// It is not there, and never was.
    Forget(u64),
}

impl Step {
    /// The same, taking no more than this.
    fn at_most(self, bytes: u64) -> Self {
        match self {
            Self::Free(gone_bytes, age_ns) => Self::Free(gone_bytes.min(bytes), age_ns),
            Self::Forget(gone_bytes) => Self::Forget(gone_bytes.min(bytes)),
            step => step,
        }
    }

    fn take(self, sum: &mut Sum, epoch: u64) {
        match self {
            Self::Grant(bytes) => sum.grant(bytes, epoch),
            Self::Adopt(bytes) => sum.adopt(bytes, epoch),
            Self::Free(bytes, age_ns) => sum.free(bytes, age_ns, epoch),
            Self::Forget(bytes) => sum.forget(bytes, epoch),
        }
    }
}

const BEFORE_ATTACH: Attribution = Attribution {
    stage: Stage::BeforeAttach,
    by: Evidence::Nothing,
    recomputed: false,
    captured: false,
    site: SiteKey::BEFORE_ATTACH,
    library: LibraryKey::NONE,
    layer: LayerKey::BEFORE_ATTACH,
    phase: None,
    phase_of: None,
    stack: None,
    step: 0,
};

const UNTRACED: Attribution =
    Attribution { stage: Stage::Untraced, site: SiteKey::UNTRACED, layer: LayerKey::UNTRACED, ..BEFORE_ATTACH };

impl DevicePlaces {
    /// It has so much of which no event is known.
    fn with(unseen: &Attribution, bytes: u64) -> Self {
        let mut device = Self::default();
        if bytes > 0 {
            device.change(unseen, Step::Adopt(bytes));
        }
        device
    }

    /// Does this to every sum of a block. No more goes than the line has: what goes beyond it was counted in no row, and rows add up to the total.
    fn change(&mut self, whose: &Attribution, step: Step) {
        let step = step.at_most(self.live_bytes(whose.site));
        let epoch = self.epoch;
        let row = StageRow::of(whose);
        let phase = phase_index(whose.phase);
        let site = at(&mut self.sites, whose.site.0 as usize);
        let before_bytes = site.live_bytes;
        step.take(site, epoch);
        let after_bytes = site.live_bytes;
        for floors in [&mut self.floors, &mut self.step_floors] {
            floors.change(whose.site.0 as usize, before_bytes, after_bytes);
        }
        step.take(at_stage(&mut self.stages, row), epoch);
        step.take(&mut at(&mut self.phases, phase).sum, epoch);
        step.take(self.call_path(CallPath::of(whose)), epoch);
        let layer = at(&mut self.layers, whose.layer.0 as usize);
        step.take(&mut layer.sum, epoch);
        let stage = whose.stage as usize;
        match step {
            Step::Grant(bytes) => {
                layer.live_by_stage[stage] = layer.live_by_stage[stage].saturating_add(bytes);
                layer.total_by_stage[stage] = layer.total_by_stage[stage].saturating_add(bytes);
            }
            Step::Adopt(bytes) => layer.live_by_stage[stage] = layer.live_by_stage[stage].saturating_add(bytes),
            Step::Free(bytes, _) | Step::Forget(bytes) => {
                layer.live_by_stage[stage] = layer.live_by_stage[stage].saturating_sub(bytes);
            }
        }
        let peak_bytes = self.total.peak_bytes;
        step.take(&mut self.total, epoch);
        if self.total.peak_bytes > peak_bytes {
            self.epoch += 1;
        }
    }

    /// A block goes.
    fn lose(&mut self, block: &LiveBlock, step: Step) {
        self.change(&block.whose, step);
        if let Some(drawn) = self.drawn.get_mut(&block.whose.site).filter(|_| block.is_drawn) {
            drawn.free(block.bytes);
        }
    }

    fn call_path(&mut self, call_path: CallPath) -> &mut Sum {
        let has_room = self.call_paths.len() < CALL_PATHS || self.call_paths.contains_key(&call_path);
        let call_path = if has_room { call_path } else { call_path.of_the_rest() };
        self.call_paths.entry(call_path).or_default()
    }

    fn reset_peaks(&mut self) {
        let layers = self.layers.iter_mut().map(|layer| &mut layer.sum);
        let phases = self.phases.iter_mut().map(|phase| &mut phase.sum);
        let lists = self.sites.iter_mut().chain(&mut self.stages).chain(phases).chain(layers);
        lists.chain(self.call_paths.values_mut()).for_each(Sum::reset_peak);
        self.total.reset_peak();
        self.epoch += 1;
    }

    /// What a site had at the least in the last window that was closed, in bytes.
    pub fn floor_bytes(&self, site: SiteKey) -> u64 {
        self.floors.of_closed(site.0 as usize, self.live_bytes(site))
    }

    /// What a site had at the least in the last window of steps that was closed, in bytes.
    pub fn step_floor_bytes(&self, site: SiteKey) -> u64 {
        self.step_floors.of_closed(site.0 as usize, self.live_bytes(site))
    }

    fn live_bytes(&self, site: SiteKey) -> u64 {
        self.sites.get(site.0 as usize).map_or(0, |sum| sum.live_bytes)
    }

    /// All blocks together.
    pub const fn total(&self) -> &Sum {
        &self.total
    }

    /// What the allocator itself says that it has granted now, in bytes.
    pub const fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// What of that is in no place, since events were lost; below 0 where frees were. 0 where none was.
    pub fn unplaced_bytes(&self) -> i64 {
        let difference = i128::from(self.allocated_bytes) - i128::from(self.total.live_bytes);
        i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
    }

    /// A place's live bytes when this device's were highest.
    pub fn at_peak_bytes(&self, sum: &Sum) -> u64 {
        sum.at_peak_bytes(self.epoch)
    }

    /// By site.
    pub fn sites(&self) -> impl Iterator<Item = (SiteKey, &Sum)> {
        keyed(&self.sites).map(|(index, sum)| (SiteKey(index), sum)).filter(|(_, sum)| sum.is_used())
    }

    /// What a site's blocks stand for that have their stack by a draw; `None` where it has none.
    pub fn drawn(&self, site: SiteKey) -> Option<&Drawn> {
        self.drawn.get(&site)
    }

    /// By layer.
    pub fn layers(&self) -> impl Iterator<Item = (LayerKey, &LayerSum)> {
        keyed(&self.layers).map(|(index, layer)| (LayerKey(index), layer)).filter(|(_, layer)| layer.sum.is_used())
    }

    /// By stage, recomputed and captured blocks apart.
    pub fn stages(&self) -> impl Iterator<Item = (StageRow, &Sum)> {
        let rows = Stage::ALL.into_iter().flat_map(|stage| {
            [(false, false), (false, true), (true, false), (true, true)].map(|(recomputed, captured)| StageRow {
                stage,
                recomputed,
                captured,
            })
        });
        rows.zip(&self.stages).filter(|(_, sum)| sum.is_used())
    }

    /// By phase; `None` for what is in none.
    pub fn phases(&self) -> impl Iterator<Item = (Option<PhaseKey>, &PhaseSum)> {
        keyed(&self.phases)
            .map(|(index, phase)| (index.checked_sub(1).map(PhaseKey), phase))
            .filter(|(_, phase)| phase.sum.is_used())
    }

    /// By the way to the block, in no order.
    pub fn call_paths(&self) -> impl Iterator<Item = (CallPath, &Sum)> {
        self.call_paths.iter().map(|(call_path, sum)| (*call_path, sum))
    }
}

fn keyed<T>(list: &[T]) -> impl Iterator<Item = (u32, &T)> {
    (0..).zip(list)
}

fn at<T: Clone + Default>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

fn phase_index(phase: Option<PhaseKey>) -> usize {
    phase.map_or(0, |phase| phase.0 as usize + 1)
}

fn at_stage(stages: &mut Vec<Sum>, row: StageRow) -> &mut Sum {
    if stages.is_empty() {
        stages.resize(StageRow::COUNT, Sum::default());
    }
    &mut stages[row.index()]
}

#[cfg(test)]
mod tests;

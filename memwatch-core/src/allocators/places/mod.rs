//! Sums of blocks per device by call site, call path, phase, module and range. Each list adds up to
//! the allocated total.
//!
//! An event costs one map entry and six additions. The bytes of each call site at the device's peak
//! are kept exactly, without copying: see [`BlockSum`].

mod allocator_state;
mod drawn;
mod floor;
mod live;
mod range;
mod renamed;
mod sum;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use crate::allocators::TensorBlock;
use crate::allocators::durations::Spent;
use crate::allocators::names::{LibraryKey, ModuleKey, RangeKey, SiteKey};
use crate::allocators::threads::{Attribution, Phase, PhaseEvidence};
use crate::words::Ordinal;

pub use self::drawn::SampledBlocks;
pub use self::live::LiveBlock;
pub use self::range::RangeSum;
pub(super) use self::renamed::GrantInProgress;
pub use self::sum::BlockSum;

use self::floor::Floors;
use self::live::LiveBlocks;

/// Maximum number of call paths with own sums per device. Further ones share one sum per phase.
const CALL_PATHS: usize = 1 << 16;
/// Number of refused allocations kept.
const REFUSED: usize = 16;
/// A phase, split by recomputation and graph capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PhaseRow {
    /// Phase of the training step.
    pub phase: Phase,
    /// See [`Attribution::recomputed`].
    pub recomputed: bool,
    /// See [`Attribution::captured`].
    pub captured: bool,
}

impl PhaseRow {
    const COUNT: usize = Phase::ALL.len() * 4;

    /// Returns the row of a block.
    pub const fn of(whose: &Attribution) -> Self {
        Self { phase: whose.phase, recomputed: whose.recomputed, captured: whose.captured }
    }

    const fn index(self) -> usize {
        (self.phase as usize) * 4 + (self.recomputed as usize) * 2 + self.captured as usize
    }
}

/// Stack of a block, or a call site that says why there is none; and the phase of the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallPath {
    /// Number of the stack.
    pub stack: Option<u64>,
    /// Call site.
    pub site: SiteKey,
    /// Library line called from the call site.
    pub library: LibraryKey,
    /// Phase row.
    pub row: PhaseRow,
}

impl CallPath {
    /// Returns the call path of a block.
    const fn of(whose: &Attribution) -> Self {
        Self { stack: whose.stack, site: whose.site, library: whose.library, row: PhaseRow::of(whose) }
    }

    /// Returns the path shared by all that exceed the limit.
    const fn of_the_rest(self) -> Self {
        Self { stack: None, site: SiteKey::REST, library: LibraryKey::NONE, ..self }
    }
}

/// Sums of a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleSum {
    /// Sum over all phases.
    pub sum: BlockSum,
    /// Live bytes by allocating phase, in the order of [`Phase::ALL`].
    pub live_by_phase: [u64; Phase::ALL.len()],
    /// Bytes allocated since the attach by phase, in the order of [`Phase::ALL`].
    pub total_by_phase: [u64; Phase::ALL.len()],
    /// Host time that threads spent in the module, nanoseconds.
    pub host_duration_ns: u64,
    /// Bytes added by rounding to the module's blocks since the attach.
    rounding_bytes: u64,
    /// Number of blocks of unknown requested size.
    unrounded: u64,
}

impl ModuleSum {
    /// Returns the bytes added by rounding; `None` if there are no blocks, or if the requested size of
    /// one is unknown.
    pub fn total_rounding_bytes(&self) -> Option<u64> {
        (self.unrounded == 0 && self.sum.allocations > 0).then_some(self.rounding_bytes)
    }
}

/// Sums of one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeviceAttribution {
    /// All blocks from before the attach are known, or there were none. Blocks without an event
    /// were thus allocated while nothing was traced.
    is_watched: bool,
    total: BlockSum,
    /// Bytes allocated, as the allocator last reported.
    allocated_bytes: u64,
    /// Number of new peaks of `total`.
    epoch: u64,
    sites: Vec<BlockSum>,
    /// Sampled blocks of call sites that have any.
    drawn: BTreeMap<SiteKey, SampledBlocks>,
    /// Minimum of each call site per time window.
    floors: Floors,
    /// Minimum of each call site per step window.
    step_floors: Floors,
    modules: Vec<ModuleSum>,
    phases: Vec<BlockSum>,
    /// Sums by range. Row 0 is for blocks in no range, row 1 for the rest.
    ranges: Vec<RangeSum>,
    call_paths: HashMap<CallPath, BlockSum, RandomState>,
}

/// A failed allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedBlock {
    /// Device of the allocation.
    pub ordinal: Ordinal,
    /// Requested size in bytes, rounded.
    pub wanted_bytes: u64,
    /// Time of the failure: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Attribution of the request.
    pub whose: Attribution,
}

/// Sums of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CodeAttribution {
    devices: BTreeMap<Ordinal, DeviceAttribution>,
    /// The process started during the session, so no block is older.
    is_from_start: bool,
    /// Blocks missing from the last reading made while the allocators were running.
    #[serde(skip)]
    missed: BTreeSet<(Ordinal, u64)>,
    live: LiveBlocks,
    refused: VecDeque<RefusedBlock>,
}

impl CodeAttribution {
    /// Records the bytes a device's allocator has allocated; `before_bytes` excludes the event.
    pub(super) fn observe(&mut self, ordinal: Ordinal, before_bytes: u64, allocated_bytes: u64) {
        let before = if self.is_from_start { &UNTRACED } else { &BEFORE_ATTACH };
        let device = self.devices.entry(ordinal).or_insert_with(|| DeviceAttribution::with(before, before_bytes));
        device.allocated_bytes = allocated_bytes;
        // Untraced blocks that were freed unseen are dropped as soon as the totals show it.
        let excess_bytes = device.total.live_bytes.saturating_sub(before_bytes);
        if excess_bytes > 0 && device.live_bytes(SiteKey::UNTRACED) > 0 {
            device.change(&UNTRACED, SumChange::Forget(excess_bytes));
        }
    }

    /// Adds an allocated block.
    pub(super) fn grant(&mut self, block: &TensorBlock, whose: Attribution) {
        let live = LiveBlock {
            ordinal: block.ordinal,
            address: block.address,
            bytes: block.block_bytes,
            granted_ns: block.time_ns,
            tid: block.tid,
            whose,
            is_sampled: block.is_sampled,
        };
        // Two live blocks cannot share an address: the free of the previous one was lost.
        if let Some(gone) = self.live.insert(live) {
            self.device(gone.ordinal).lose(&gone, SumChange::Free(gone.bytes, None));
        }
        let device = self.device(block.ordinal);
        device.change(&whose, SumChange::Grant(block.block_bytes));
        if block.is_sampled {
            device.drawn.entry(whose.site).or_default().grant(block.block_bytes);
        }
        at(&mut device.modules, whose.module.0 as usize).round(block.block_bytes, block.requested_bytes);
    }

    /// Adds host time spent in a module.
    pub(super) fn spend(&mut self, spent: Spent) {
        let module = at(&mut self.device(spent.ordinal).modules, spent.module.0 as usize);
        module.host_duration_ns = module.host_duration_ns.saturating_add(spent.time_ns);
    }

    /// Returns the live block at this address.
    pub fn live(&self, ordinal: Ordinal, address: u64) -> Option<&LiveBlock> {
        self.live.get(ordinal, address)
    }

    /// Returns all live blocks that are known individually, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = &LiveBlock> {
        self.live.all()
    }

    /// Frees a block and returns it if it is known individually. Others were allocated before the
    /// attach or untraced.
    pub(super) fn free(&mut self, ordinal: Ordinal, address: u64, block_bytes: u64, time_ns: u64) -> Option<LiveBlock> {
        let (gone, is_from_start) = (self.live.remove(ordinal, address), self.is_from_start);
        if let Some(block) = gone {
            // The age of a block from before the attach is unknown.
            let age_ns = (block.granted_ns > 0).then(|| time_ns.saturating_sub(block.granted_ns));
            self.device(ordinal).lose(&block, SumChange::Free(block.bytes, age_ns));
        } else {
            let device = self.device(ordinal);
            let untraced_bytes = device.live_bytes(SiteKey::UNTRACED);
            let is_untraced = is_from_start || (untraced_bytes > 0 && untraced_bytes >= block_bytes);
            let unseen = if is_untraced { &UNTRACED } else { &BEFORE_ATTACH };
            device.change(unseen, SumChange::Free(block_bytes, None));
        }
        gone
    }

    /// Records a failed allocation.
    pub(super) fn refuse(&mut self, refusal: RefusedBlock) {
        if self.refused.len() >= REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back(refusal);
    }

    /// Resets the peaks to the live bytes.
    pub(super) fn reset_peaks(&mut self) {
        self.devices.values_mut().for_each(DeviceAttribution::reset_peaks);
    }

    /// Closes the window and opens the next one: see [`DeviceAttribution::floor_bytes`].
    pub(super) fn close_window(&mut self) {
        self.devices.values_mut().for_each(|device| device.floors.close());
    }

    /// Closes the step window and opens the next one: see [`DeviceAttribution::step_floor_bytes`].
    pub(super) fn close_step_window(&mut self) {
        self.devices.values_mut().for_each(|device| device.step_floors.close());
    }

    /// Sets the minimum size in bytes of blocks listed individually.
    pub(super) fn list_from(&mut self, least_bytes: u64) {
        self.live.list_from(least_bytes);
    }

    /// Returns the sums by device.
    pub const fn devices(&self) -> &BTreeMap<Ordinal, DeviceAttribution> {
        &self.devices
    }

    /// Returns the large live blocks, by device and address.
    pub fn large(&self) -> impl Iterator<Item = &LiveBlock> {
        self.live.large()
    }

    /// Returns the last failed allocations, oldest first.
    pub const fn refused(&self) -> &VecDeque<RefusedBlock> {
        &self.refused
    }

    fn device(&mut self, ordinal: Ordinal) -> &mut DeviceAttribution {
        self.devices.entry(ordinal).or_default()
    }
}

/// A change that applies to every sum of a block.
#[derive(Clone, Copy)]
enum SumChange {
    Grant(u64),
    Adopt(u64),
    Free(u64, Option<u64>),
    /// The memory turned out not to exist.
    Forget(u64),
}

impl SumChange {
    /// Limits the bytes that are removed.
    fn at_most(self, bytes: u64) -> Self {
        match self {
            Self::Free(gone_bytes, age_ns) => Self::Free(gone_bytes.min(bytes), age_ns),
            Self::Forget(gone_bytes) => Self::Forget(gone_bytes.min(bytes)),
            step => step,
        }
    }

    fn take(self, sum: &mut BlockSum, epoch: u64) {
        match self {
            Self::Grant(bytes) => sum.grant(bytes, epoch),
            Self::Adopt(bytes) => sum.adopt(bytes, epoch),
            Self::Free(bytes, age_ns) => sum.free(bytes, age_ns, epoch),
            Self::Forget(bytes) => sum.forget(bytes, epoch),
        }
    }
}

const BEFORE_ATTACH: Attribution = Attribution {
    phase: Phase::BeforeAttach,
    by: PhaseEvidence::Nothing,
    recomputed: false,
    captured: false,
    site: SiteKey::BEFORE_ATTACH,
    library: LibraryKey::NONE,
    module: ModuleKey::BEFORE_ATTACH,
    range: None,
    range_of: None,
    stack: None,
    step: 0,
};

const UNTRACED: Attribution =
    Attribution { phase: Phase::Untraced, site: SiteKey::UNTRACED, module: ModuleKey::UNTRACED, ..BEFORE_ATTACH };

impl DeviceAttribution {
    /// Creates the sums of a device with this many bytes without an event.
    fn with(unseen: &Attribution, bytes: u64) -> Self {
        let mut device = Self::default();
        if bytes > 0 {
            device.change(unseen, SumChange::Adopt(bytes));
        }
        device
    }

    /// Applies a change to every sum of a block. Removes at most the live bytes of the call site,
    /// since any excess is in no row and rows must add up to the total.
    fn change(&mut self, whose: &Attribution, step: SumChange) {
        let step = step.at_most(self.live_bytes(whose.site));
        let epoch = self.epoch;
        let row = PhaseRow::of(whose);
        let range = range_index(whose.range);
        let site = at(&mut self.sites, whose.site.0 as usize);
        let before_bytes = site.live_bytes;
        step.take(site, epoch);
        let after_bytes = site.live_bytes;
        for floors in [&mut self.floors, &mut self.step_floors] {
            floors.change(whose.site.0 as usize, before_bytes, after_bytes);
        }
        step.take(at_phase(&mut self.phases, row), epoch);
        step.take(&mut at(&mut self.ranges, range).sum, epoch);
        step.take(self.call_path(CallPath::of(whose)), epoch);
        let module = at(&mut self.modules, whose.module.0 as usize);
        step.take(&mut module.sum, epoch);
        let phase = whose.phase as usize;
        match step {
            SumChange::Grant(bytes) => {
                module.live_by_phase[phase] = module.live_by_phase[phase].saturating_add(bytes);
                module.total_by_phase[phase] = module.total_by_phase[phase].saturating_add(bytes);
            }
            SumChange::Adopt(bytes) => module.live_by_phase[phase] = module.live_by_phase[phase].saturating_add(bytes),
            SumChange::Free(bytes, _) | SumChange::Forget(bytes) => {
                module.live_by_phase[phase] = module.live_by_phase[phase].saturating_sub(bytes);
            }
        }
        let peak_bytes = self.total.peak_bytes;
        step.take(&mut self.total, epoch);
        if self.total.peak_bytes > peak_bytes {
            self.epoch += 1;
        }
    }

    /// Removes a block.
    fn lose(&mut self, block: &LiveBlock, step: SumChange) {
        self.change(&block.whose, step);
        if let Some(drawn) = self.drawn.get_mut(&block.whose.site).filter(|_| block.is_sampled) {
            drawn.free(block.bytes);
        }
    }

    fn call_path(&mut self, call_path: CallPath) -> &mut BlockSum {
        let has_room = self.call_paths.len() < CALL_PATHS || self.call_paths.contains_key(&call_path);
        let call_path = if has_room { call_path } else { call_path.of_the_rest() };
        self.call_paths.entry(call_path).or_default()
    }

    fn reset_peaks(&mut self) {
        let modules = self.modules.iter_mut().map(|module| &mut module.sum);
        let ranges = self.ranges.iter_mut().map(|range| &mut range.sum);
        let lists = self.sites.iter_mut().chain(&mut self.phases).chain(ranges).chain(modules);
        lists.chain(self.call_paths.values_mut()).for_each(BlockSum::reset_peak);
        self.total.reset_peak();
        self.epoch += 1;
    }

    /// Returns the minimum of a call site in the last closed window, in bytes.
    pub fn floor_bytes(&self, site: SiteKey) -> u64 {
        self.floors.of_closed(site.0 as usize, self.live_bytes(site))
    }

    /// Returns the minimum of a call site in the last closed step window, in bytes.
    pub fn step_floor_bytes(&self, site: SiteKey) -> u64 {
        self.step_floors.of_closed(site.0 as usize, self.live_bytes(site))
    }

    fn live_bytes(&self, site: SiteKey) -> u64 {
        self.sites.get(site.0 as usize).map_or(0, |sum| sum.live_bytes)
    }

    /// Returns the sum over all blocks.
    pub const fn total(&self) -> &BlockSum {
        &self.total
    }

    /// Returns the bytes allocated, as the allocator reports them.
    pub const fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// Returns the allocated bytes in no row because events were lost; negative if frees were lost.
    pub fn unplaced_bytes(&self) -> i64 {
        let difference = i128::from(self.allocated_bytes) - i128::from(self.total.live_bytes);
        i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
    }

    /// Returns the live bytes of a sum at the device's peak.
    pub fn at_peak_bytes(&self, sum: &BlockSum) -> u64 {
        sum.at_peak_bytes(self.epoch)
    }

    /// Returns the sums by call site.
    pub fn sites(&self) -> impl Iterator<Item = (SiteKey, &BlockSum)> {
        keyed(&self.sites).map(|(index, sum)| (SiteKey(index), sum)).filter(|(_, sum)| sum.is_used())
    }

    /// Returns the estimate from sampled blocks of a call site; `None` if it has none.
    pub fn drawn(&self, site: SiteKey) -> Option<&SampledBlocks> {
        self.drawn.get(&site)
    }

    /// Returns the sums by module.
    pub fn modules(&self) -> impl Iterator<Item = (ModuleKey, &ModuleSum)> {
        keyed(&self.modules)
            .map(|(index, module)| (ModuleKey(index), module))
            .filter(|(_, module)| module.sum.is_used())
    }

    /// Returns the sums by phase, with recomputed and captured blocks separate.
    pub fn phases(&self) -> impl Iterator<Item = (PhaseRow, &BlockSum)> {
        let rows = Phase::ALL.into_iter().flat_map(|phase| {
            [(false, false), (false, true), (true, false), (true, true)].map(|(recomputed, captured)| PhaseRow {
                phase,
                recomputed,
                captured,
            })
        });
        rows.zip(&self.phases).filter(|(_, sum)| sum.is_used())
    }

    /// Returns the sums by range; `None` is the row for blocks in no range.
    pub fn ranges(&self) -> impl Iterator<Item = (Option<RangeKey>, &RangeSum)> {
        keyed(&self.ranges)
            .map(|(index, range)| (index.checked_sub(1).map(RangeKey), range))
            .filter(|(_, range)| range.sum.is_used())
    }

    /// Returns the sums by call path, in no order.
    pub fn call_paths(&self) -> impl Iterator<Item = (CallPath, &BlockSum)> {
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

fn range_index(range: Option<RangeKey>) -> usize {
    range.map_or(0, |range| range.0 as usize + 1)
}

fn at_phase(phases: &mut Vec<BlockSum>, row: PhaseRow) -> &mut BlockSum {
    if phases.is_empty() {
        phases.resize(PhaseRow::COUNT, BlockSum::default());
    }
    &mut phases[row.index()]
}

#[cfg(test)]
mod tests;

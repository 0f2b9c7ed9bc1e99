//! Builds the views of caching allocators.

use crate::allocators::TensorLedger;
use crate::allocators::pytorch::{Base, DeviceAllocator, Doubt, NamedNumber, StatFamily, StatScope};
use crate::snapshot::{AllocatorView, StatisticView};
use crate::words::{GpuUuid, Name, Ordinal};

/// Returns the allocators of a process; `uuid` returns the GPU of a device.
pub(super) fn allocators(ledger: &TensorLedger, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Vec<AllocatorView> {
    ledger.allocators().iter().map(|(ordinal, device)| view(device, *ordinal, uuid(*ordinal))).collect()
}

fn view(device: &DeviceAllocator, ordinal: Ordinal, uuid: Option<GpuUuid>) -> AllocatorView {
    let reported = device.reported();
    let current = |family| {
        let known = device.number(family, StatScope::All, "current")?.known()?;
        u64::try_from(known).ok()
    };
    let rounding = current(StatFamily::ActiveBytes).zip(current(StatFamily::RequestedBytes));
    let rounding_bytes = rounding.map(|(active, requested)| active.saturating_sub(requested));
    let inactive_split_bytes = current(StatFamily::InactiveSplitBytes);
    let (counted_from, readout_ns) = match device.base() {
        Base::None => ("unknown", None),
        Base::Start => ("start", None),
        Base::Read(time_ns) => ("readout", Some(time_ns)),
    };
    AllocatorView {
        device: ordinal.0,
        uuid,
        allocated_bytes: reported.map(|now| now.allocated_bytes),
        reserved_bytes: current(StatFamily::ReservedBytes).or(reported.map(|now| now.reserved_bytes)),
        cached_bytes: current(StatFamily::ReservedBytes)
            .or(reported.map(|now| now.reserved_bytes))
            .zip(reported)
            .map(|(reserved, now)| reserved.saturating_sub(now.allocated_bytes)),
        peak_cached_bytes: device.peak_cached_bytes(),
        peaks_begun_ns: device.peaks_begun_ns(),
        preexisting_bytes: device.preexisting_bytes(),
        known_block_bytes: device.memory().allocated_bytes(),
        rounding_bytes,
        inactive_split_bytes,
        waste_bytes: rounding_bytes.zip(inactive_split_bytes).map(|(rounding, splits)| rounding + splits),
        cache_hits: device.hits(),
        cache_misses: device.misses(),
        hit_rate: ratio(device.hits(), device.hits() + device.misses()),
        observed_by: device.observed_by().into(),
        counted_from: counted_from.into(),
        readout_ns,
        out_of_step: device.out_of_step(),
        refused_readouts: device.refused_readouts(),
        statistics: device.numbers().into_iter().map(statistic).collect(),
    }
}

fn statistic((key, trust): NamedNumber) -> (Name, StatisticView) {
    let reason = trust.doubt.map(|doubt: Doubt| doubt.name().into());
    (key, StatisticView { value: trust.known(), certainty: trust.certainty(), reason })
}

/// Returns a ratio, 0 to 1; `None` if `whole` is 0.
#[allow(clippy::cast_precision_loss, reason = "the screen shows three digits")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

//! Settings to try, each a column of the table.

/// How the memory is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// No limit.
    None,
    /// The program limits itself to 1.25 times its peak of reserved memory; garbage collection
    /// starts at a share of that.
    Above,
    /// The program limits itself to the middle between its peaks of allocated and reserved memory.
    Between,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocatorSetting {
    /// Name in the table.
    pub(super) title: &'static str,
    /// Value of `PYTORCH_CUDA_ALLOC_CONF`.
    pub(super) conf: &'static str,
    /// Memory limit.
    pub(super) limit: Limit,
    /// The only version that supports the setting; empty if all do.
    pub(super) only: &'static str,
}

const fn setting(title: &'static str, conf: &'static str, limit: Limit) -> AllocatorSetting {
    AllocatorSetting { title, conf, limit, only: "" }
}

/// Columns; the first is the setting of the recorded run.
pub(super) const SETTINGS: &[AllocatorSetting] = &[
    setting("default", "", Limit::None),
    setting("expandable segments", "expandable_segments:True", Limit::None),
    setting("split ≤ 32 MiB", "max_split_size_mb:32", Limit::None),
    setting("divisions 4", "roundup_power2_divisions:4", Limit::None),
    AllocatorSetting { only: "2.15.0", ..setting("segments 33 MiB", "large_segment_size_mb:33", Limit::None) },
    setting("collection 0.5", "garbage_collection_threshold:0.5", Limit::Above),
    setting("limited", "", Limit::Between),
    setting("limited, expandable", "expandable_segments:True", Limit::Between),
    setting("limited, split, collection", "max_split_size_mb:32,garbage_collection_threshold:0.5", Limit::Between),
];

/// Peaks of the recorded run, over all devices, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedPeaks {
    /// Allocated bytes.
    pub(super) allocated_bytes: u64,
    /// Reserved bytes.
    pub(super) reserved_bytes: u64,
}

impl AllocatorSetting {
    /// Returns the memory limit, in bytes.
    const fn limit_bytes(&self, taken: RecordedPeaks) -> Option<u64> {
        let between = u64::midpoint(taken.allocated_bytes, taken.reserved_bytes);
        match self.limit {
            Limit::None => None,
            Limit::Above => Some(taken.reserved_bytes / 4 * 5),
            Limit::Between => Some(between),
        }
    }

    /// Returns the share of the device that the program limits itself to, as text.
    #[expect(clippy::cast_precision_loss, reason = "six digits are typed")]
    pub(super) fn fraction(&self, taken: RecordedPeaks, total_bytes: u64) -> Option<String> {
        let limit_bytes = self.limit_bytes(taken)?;
        Some(format!("{:.6}", limit_bytes as f64 / total_bytes as f64))
    }

    /// Returns the setting for `memwatch simulate`.
    pub(super) fn simulated(&self, fraction: Option<&str>) -> String {
        let limit = fraction.map(|fraction| format!("per_process_memory_fraction:{fraction}"));
        let parts = [Some(self.conf.to_owned()).filter(|conf| !conf.is_empty()), limit];
        parts.into_iter().flatten().collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_part_of_the_device_beside_the_setting() {
        let taken = RecordedPeaks { allocated_bytes: 100, reserved_bytes: 200 };
        let of = |title: &str| SETTINGS.iter().find(|setting| setting.title == title).copied().unwrap();
        assert_eq!(of("limited").fraction(taken, 1000).as_deref(), Some("0.150000"));
        assert_eq!(of("divisions 4").fraction(taken, 1000), None);
        let collected = of("collection 0.5");
        let fraction = collected.fraction(taken, 1000);
        assert_eq!(
            collected.simulated(fraction.as_deref()),
            "garbage_collection_threshold:0.5,per_process_memory_fraction:0.250000"
        );
        assert_eq!(of("default").simulated(None), "");
    }
}

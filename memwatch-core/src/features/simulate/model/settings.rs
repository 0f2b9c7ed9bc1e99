//! Parses `PYTORCH_CUDA_ALLOC_CONF`, limited to the settings that affect memory use.

use std::fmt;

use thiserror::Error;

use super::meter::Capacity;

/// `kMinBlockSize`: sizes are multiples of it, and no remainder is smaller.
pub(super) const LEAST_BYTES: u64 = 512;
/// `kSmallBuffer`: size of a segment of the small pool, and granule of larger segments.
pub const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// `kLargeBuffer`: size of a segment that requests below [`super::caching::OWN_SEGMENT_BYTES`] share.
pub const LARGE_SEGMENT_BYTES: u64 = 20 << 20;

const MIB: u64 = 1 << 20;
/// Number of size intervals, by the highest bit from 1 MiB to 64 GiB, with separate divisions.
const INTERVALS: usize = 16;
/// Settings without effect on memory use.
const WITHOUT_EFFECT: [&str; 6] = [
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
];

/// Settings of PyTorch's allocator.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `expandable_segments`.
    pub expandable_segments: bool,
    /// `max_split_size_mb`, in bytes.
    pub max_split_bytes: Option<u64>,
    /// `max_non_split_rounding_mb`, in bytes.
    pub max_non_split_rounding_bytes: Option<u64>,
    /// `large_segment_size_mb`, in bytes (2.15).
    pub large_segment_bytes: u64,
    /// `garbage_collection_threshold`; 0 for none.
    pub collection_threshold: f64,
    /// `per_process_memory_fraction` (2.15), or the argument of
    /// `torch.cuda.set_per_process_memory_fraction`.
    pub memory_fraction: Option<f64>,
    /// `roundup_power2_divisions`, by the highest bit of the size.
    pub roundup_divisions: [u64; INTERVALS],
}

/// Error in a settings string.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// Unknown setting.
    #[error("unknown allocator setting {0}; supported: {KNOWN}")]
    Unknown(String),
    /// Invalid value.
    #[error("{key} must be {wanted}, not {value}")]
    Value {
        /// Name of the setting.
        key: &'static str,
        /// Accepted values.
        wanted: &'static str,
        /// Given value.
        value: String,
    },
    /// A size below the size of large segments.
    #[error("{key}:{mib} is smaller than large_segment_size_mb:{large_mib}, which PyTorch rejects")]
    BelowLargeSegment {
        /// Name of the setting.
        key: &'static str,
        /// Given value in MiB.
        mib: u64,
        /// Minimum value in MiB.
        large_mib: u64,
    },
    /// A backend without a model.
    #[error("backend:{0} cannot be simulated; only backend:native can")]
    Backend(String),
}

const KNOWN: &str = "expandable_segments, max_split_size_mb, max_non_split_rounding_mb, garbage_collection_threshold, \
                     roundup_power2_divisions, large_segment_size_mb and per_process_memory_fraction";

impl Default for Settings {
    fn default() -> Self {
        Self {
            expandable_segments: false,
            max_split_bytes: None,
            max_non_split_rounding_bytes: None,
            large_segment_bytes: LARGE_SEGMENT_BYTES,
            collection_threshold: 0.0,
            memory_fraction: None,
            roundup_divisions: [0; INTERVALS],
        }
    }
}

impl Settings {
    /// Parses the value of `PYTORCH_CUDA_ALLOC_CONF`; an empty string gives PyTorch's defaults.
    ///
    /// # Errors
    /// Returns an error for an unknown setting or an invalid value.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        let mut settings = Self::default();
        let mut rest = text;
        while !rest.is_empty() {
            let (part, others) = cut_part(rest);
            rest = others;
            let (key, value) = part.split_once(':').ok_or_else(|| SettingsError::Unknown(part.to_owned()))?;
            settings.set(key.trim(), value.trim())?;
        }
        settings.check()?;
        Ok(settings)
    }

    /// Rejects combinations of valid values that PyTorch rejects.
    fn check(&self) -> Result<(), SettingsError> {
        let large = self.large_segment_bytes;
        let sizes = [
            ("max_split_size_mb", self.max_split_bytes),
            ("max_non_split_rounding_mb", self.max_non_split_rounding_bytes),
        ];
        let is_short = |size: &u64| *size < large;
        if let Some((key, short)) = sizes.into_iter().find_map(|(key, size)| Some((key, size.filter(is_short)?))) {
            return Err(SettingsError::BelowLargeSegment { key, mib: short / MIB, large_mib: large / MIB });
        }
        if self.expandable_segments && !large.is_multiple_of(SMALL_SEGMENT_BYTES) {
            // The driver's mapping granularity.
            let wanted = "an even number with expandable_segments:True";
            return Err(wrong("large_segment_size_mb", wanted, &(large / MIB).to_string()));
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingsError> {
        match key {
            "expandable_segments" => {
                let flag = [("True", true), ("False", false)].into_iter().find(|(word, _)| *word == value);
                self.expandable_segments = flag.ok_or_else(|| wrong("expandable_segments", "True or False", value))?.1;
            }
            // PyTorch rejects smaller values; versions without `large_segment_size_mb` reject 20,
            // too.
            "max_split_size_mb" => {
                self.max_split_bytes = Some(mib("max_split_size_mb", "an integer of at least 20", value, 20)?);
            }
            "max_non_split_rounding_mb" => {
                let wanted = "an integer of at least 20";
                self.max_non_split_rounding_bytes = Some(mib("max_non_split_rounding_mb", wanted, value, 20)?);
            }
            "large_segment_size_mb" => {
                self.large_segment_bytes = mib("large_segment_size_mb", "an integer above 10", value, 11)?;
            }
            "garbage_collection_threshold" => {
                let part = part(value).filter(|part| *part < 1.0);
                self.collection_threshold =
                    part.ok_or_else(|| wrong("garbage_collection_threshold", "a number between 0 and 1", value))?;
            }
            "per_process_memory_fraction" => {
                let part = part(value);
                let wanted = "a number above 0 and at most 1";
                self.memory_fraction = Some(part.ok_or_else(|| wrong("per_process_memory_fraction", wanted, value))?);
            }
            "roundup_power2_divisions" => self.roundup_divisions = divisions(value)?,
            "backend" if value != "native" => return Err(SettingsError::Backend(value.to_owned())),
            "backend" => {}
            other if WITHOUT_EFFECT.contains(&other) => {}
            other => return Err(SettingsError::Unknown(other.to_owned())),
        }
        Ok(())
    }

    /// Returns a size as the allocator rounds it, in bytes.
    pub(super) fn rounded(&self, bytes: u64) -> u64 {
        if bytes < LEAST_BYTES {
            return LEAST_BYTES;
        }
        let interval = (bytes.ilog2() as usize).saturating_sub(20).min(INTERVALS - 1);
        let divisions = self.roundup_divisions[interval];
        if divisions <= 1 || bytes <= LEAST_BYTES.saturating_mul(divisions) {
            return bytes.next_multiple_of(LEAST_BYTES);
        }
        let step = (1_u64 << bytes.ilog2()) >> divisions.ilog2();
        bytes.next_multiple_of(step.max(1))
    }

    /// Returns the limit in bytes by which an unsplit block may exceed the requested size.
    pub(super) fn loose_bytes(&self) -> u64 {
        self.max_non_split_rounding_bytes.unwrap_or(self.large_segment_bytes)
    }

    /// Returns the limit that the program has set itself, in bytes.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as PyTorch"
    )]
    pub(super) fn allowed_bytes(&self, capacity: Capacity) -> Option<u64> {
        self.memory_fraction.map(|fraction| (fraction * capacity.total_bytes as f64) as u64)
    }
}

/// Formats the settings as the user would set them; empty for PyTorch's defaults.
impl fmt::Display for Settings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        let mut words = Vec::new();
        if self.expandable_segments {
            words.push("expandable_segments:True".to_owned());
        }
        let sizes = [
            ("max_split_size_mb", self.max_split_bytes),
            ("max_non_split_rounding_mb", self.max_non_split_rounding_bytes),
            ("large_segment_size_mb", Some(self.large_segment_bytes).filter(|size| *size != usual.large_segment_bytes)),
        ];
        words.extend(sizes.into_iter().filter_map(|(key, size)| Some(format!("{key}:{}", size? / MIB))));
        if self.collection_threshold > 0.0 {
            words.push(format!("garbage_collection_threshold:{}", self.collection_threshold));
        }
        words.extend(self.memory_fraction.map(|part| format!("per_process_memory_fraction:{part}")));
        match self.roundup_divisions {
            all if all == usual.roundup_divisions => {}
            [first, rest @ ..] if rest.iter().all(|other| *other == first) => {
                words.push(format!("roundup_power2_divisions:{first}"));
            }
            all => {
                let each = all.iter().enumerate().map(|(index, own)| format!("{}:{own}", 1_u64 << index));
                words.push(format!("roundup_power2_divisions:[{}]", each.collect::<Vec<_>>().join(",")));
            }
        }
        out.write_str(&words.join(","))
    }
}

/// Splits off the first setting of a list; commas within brackets do not separate settings.
fn cut_part(text: &str) -> (&str, &str) {
    let mut depth = 0_i32;
    for (position, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth <= 0 => return (&text[..position], &text[position + 1..]),
            _ => {}
        }
    }
    (text, "")
}

fn mib(key: &'static str, wanted: &'static str, value: &str, least: u64) -> Result<u64, SettingsError> {
    let number = value.parse::<u64>().ok().filter(|number| *number >= least);
    number.and_then(|number| number.checked_mul(MIB)).ok_or_else(|| wrong(key, wanted, value))
}

fn part(value: &str) -> Option<f64> {
    value.parse::<f64>().ok().filter(|part| *part > 0.0 && *part <= 1.0)
}

/// Parses `4`, or `[256:1,512:2,>:4]`. The list has sizes in MiB; the first entry also applies to
/// all smaller sizes, and `>` to all larger ones.
fn divisions(value: &str) -> Result<[u64; INTERVALS], SettingsError> {
    let refused = || wrong("roundup_power2_divisions", "a power of two, or a list such as [256:1,512:2,>:4]", value);
    let count = |text: &str| {
        let number = text.trim().parse::<u64>().ok();
        number.filter(|number| *number <= 1 || number.is_power_of_two()).ok_or_else(refused)
    };
    let Some(list) = value.strip_prefix('[').and_then(|list| list.strip_suffix(']')) else {
        return Ok([count(value)?; INTERVALS]);
    };
    let (mut all, mut before) = ([0; INTERVALS], None);
    for entry in list.split(',') {
        let (size, number) = entry.split_once(':').ok_or_else(refused)?;
        let number = count(number)?;
        let from = before.map_or(0, |before| before + 1);
        if size.trim() == ">" {
            all.iter_mut().skip(from).for_each(|own| *own = number);
            continue;
        }
        let size = size.trim().parse::<u64>().ok().filter(|size| size.is_power_of_two()).ok_or_else(refused)?;
        let index = (size.ilog2() as usize).min(INTERVALS - 1);
        if before.is_none() {
            all[..index].fill(number);
        }
        all[index] = number;
        before = Some(index);
    }
    Ok(all)
}

fn wrong(key: &'static str, wanted: &'static str, value: &str) -> SettingsError {
    SettingsError::Value { key, wanted, value: value.to_owned() }
}

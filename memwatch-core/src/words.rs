//! Newtypes of the dictionary: a tgid is no tid, an ordinal is no NVML index, and a GPU is its UUID.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// Process id in the initial pid namespace. Screens call it PID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Tgid(pub u32);

/// Thread id in the initial pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u32);

/// A device number inside one process (`CUdevice`): it follows `CUDA_VISIBLE_DEVICES` and is not an NVML index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(pub i32);

/// A `CUcontext` value of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextHandle(pub u64);

/// From a call's entry to its return: `CLOCK_BOOTTIME`, nanoseconds. Its effect happened somewhere between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Entry.
    pub entered_ns: u64,
    /// Return.
    pub returned_ns: u64,
}

/// A GPU's identity as NVML writes it, such as `GPU-8f3c…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuUuid(Arc<str>);

impl GpuUuid {
    /// The UUID as NVML's `nvmlDeviceGetUUID` spells it.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The UUID from the sixteen bytes of `cuDeviceGetUuid`, in NVML's spelling.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        use fmt::Write as _;
        let mut text = String::from("GPU-");
        for (index, byte) in bytes.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            write!(text, "{byte:02x}").expect("a String takes any text");
        }
        Self(text.into())
    }

    /// The UUID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Serialize for GpuUuid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::GpuUuid;

    #[test]
    fn a_uuid_from_the_driver_is_spelt_as_nvml_spells_it() {
        let bytes = std::array::from_fn(|index| u8::try_from(index).expect("sixteen is small"));
        assert_eq!(GpuUuid::from_bytes(bytes).as_str(), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}

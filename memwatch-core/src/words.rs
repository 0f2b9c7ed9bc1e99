//! Newtypes for identifiers that must not be confused: process and thread ids, device ordinals and
//! NVML indices, UUIDs.

pub(crate) mod by_name;
mod cause;
mod framework;
pub mod json;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::cause::CauseKind;
pub use self::framework::Framework;

/// A word from memwatch's own tables; owned if it was received over a socket.
pub type Name = Cow<'static, str>;

/// Status of a driver call that found no memory: `CUDA_ERROR_OUT_OF_MEMORY` in cuda.h.
pub const OUT_OF_MEMORY: i32 = 2;

/// Name of a driver function in the probe table.
pub type Symbol = &'static str;

/// Adds two numbers, ignoring an unknown one; `None` if both are unknown.
pub fn sum_of_known(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    match (first, second) {
        (Some(first), Some(second)) => Some(first.saturating_add(second)),
        (one, other) => one.or(other),
    }
}

/// Process id in the initial pid namespace. Screens call it PID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tgid(pub u32);

/// Thread id in the initial pid namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tid(pub u32);

/// Device number within one process (`CUdevice`). It depends on `CUDA_VISIBLE_DEVICES` and is not
/// an NVML index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ordinal(pub i32);

/// Value of a `CUcontext` in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContextHandle(pub u64);

/// Time from a call's entry to its return: `CLOCK_BOOTTIME`, nanoseconds. Its effect happened at
/// some time in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSpan {
    /// Entry time.
    pub entered_ns: u64,
    /// Return time.
    pub returned_ns: u64,
}

/// UUID of a GPU as NVML writes it, such as `GPU-8f3c…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuUuid(Arc<str>);

impl GpuUuid {
    /// Creates a UUID from text in the format of NVML's `nvmlDeviceGetUUID`.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Creates a UUID from the sixteen bytes of `cuDeviceGetUuid`, in NVML's format.
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

    /// Returns whether this UUID has these sixteen bytes, regardless of its prefix: NVML writes
    /// `GPU-…` for a GPU and `MIG-…` for a MIG instance.
    pub fn spells(&self, bytes: [u8; 16]) -> bool {
        let bare = |uuid: &Self| uuid.0.split_once('-').map(|(_, bare)| bare.to_ascii_lowercase());
        bare(self) == bare(&Self::from_bytes(bytes))
    }

    /// Returns the UUID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// PCI address of a GPU: domain, bus and device of its PCI bus id. The function is always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
}

impl PciAddress {
    /// Parses `00000000:3B:00.0`, as NVML writes it, or `0000:3b:00.0`, as `cuDeviceGetPCIBusId`
    /// does.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (domain, bus, place) = (parts.next()?, parts.next()?, parts.next()?);
        let (device, _function) = place.split_once('.')?;
        if parts.next().is_some() {
            return None;
        }
        Some(Self {
            domain: u32::from_str_radix(domain, 16).ok()?,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok()?,
        })
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

impl<'de> Deserialize<'de> for GpuUuid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(&String::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use super::{GpuUuid, PciAddress};

    #[test]
    fn a_uuid_from_the_driver_is_spelt_as_nvml_spells_it() {
        let bytes = std::array::from_fn(|index| u8::try_from(index).expect("sixteen is small"));
        assert_eq!(GpuUuid::from_bytes(bytes).as_str(), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn an_instance_has_the_bytes_of_its_uuid_under_another_prefix() {
        let bytes = [0xab; 16];
        assert!(GpuUuid::new("MIG-ABABABAB-abab-abab-abab-abababababab").spells(bytes));
        assert!(GpuUuid::from_bytes(bytes).spells(bytes));
        assert!(!GpuUuid::new("MIG-abababab-abab-abab-abab-abababababac").spells(bytes));
        assert!(!GpuUuid::new("MIG-GPU-abababab-abab-abab-abab-abababababab/1/0").spells(bytes));
    }

    #[test]
    fn a_pci_address_is_the_same_in_nvmls_and_in_cudas_spelling() {
        assert_eq!(PciAddress::parse("00000000:3B:00.0"), PciAddress::parse("0000:3b:00.0"));
        assert_ne!(PciAddress::parse("0001:3b:00.0"), PciAddress::parse("0000:3b:00.0"));
        for broken in ["", "3b:00.0", "0000:3b:00", "0000:3b:zz.0", "0000:3b:00.0:1", "0000:13b:00.0"] {
            assert_eq!(PciAddress::parse(broken), None, "{broken:?}");
        }
    }
}

//! Newtypes of the dictionary: a tgid is no tid, an ordinal is no NVML index, and a GPU is its UUID.

pub(crate) mod by_name;
mod framework;
pub mod json;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::framework::Framework;

/// A word of memwatch's own lists; owned where it came over a socket.
pub type Name = Cow<'static, str>;

/// The name of a function in a table of memwatch's.
pub type Symbol = &'static str;

/// What is known of two numbers together; `None` where nothing is known of either.
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

/// A device number inside one process (`CUdevice`): it follows `CUDA_VISIBLE_DEVICES` and is not an NVML index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ordinal(pub i32);

/// A `CUcontext` value of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContextHandle(pub u64);

/// From a call's entry to its return: `CLOCK_BOOTTIME`, nanoseconds. Its effect happened somewhere between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Whether this is the spelling of these sixteen bytes, whatever it is the UUID of: NVML writes `GPU-…` for a GPU and `MIG-…`
    /// for an instance of one.
    pub fn spells(&self, bytes: [u8; 16]) -> bool {
        let bare = |uuid: &Self| uuid.0.split_once('-').map(|(_, bare)| bare.to_ascii_lowercase());
        bare(self) == bare(&Self::from_bytes(bytes))
    }

    /// The UUID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where a GPU sits: the domain, bus and device of its PCI bus id. The function is always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
}

impl PciAddress {
    /// Reads `00000000:3B:00.0`, as NVML writes it, or `0000:3b:00.0`, as `cuDeviceGetPCIBusId` does.
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

//! Reads the simulated GPU's ledger: what every simulated process really holds, to compare
//! memwatch's reports with.
//!
//! The layout is that of `tests/gpusim/driver/ledger.h`, version 4. Every number is at a fixed
//! offset in the machine's byte order. Only living processes are returned: the driver empties a
//! slot when its process exits, and this reader skips slots whose process was killed or replaced by
//! exec.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};

const MAGIC: u64 = u64::from_le_bytes(*b"GPUSIM01");
const VERSION: u32 = 4;
const DEVICES: usize = 8;
const SLOTS: usize = 256;
const TOTAL_BYTES_OFFSET: usize = 24;
const UUID_OFFSET: usize = 88;
const MIG_OFFSET: usize = 284;
const HEADER_BYTES: usize = 512;
const PROCESS_BYTES: usize = 2216;
const DEVICE_OFFSET: usize = 104;
const DEVICE_BYTES: usize = 264;
const BALANCE_OFFSET: usize = 40;
const BALANCE_BYTES: usize = 32;

/// An open ledger file. Every query reads the file again.
#[derive(Debug)]
pub struct Ledger {
    file: File,
}

/// Bytes of one kind of memory, and its numbers of allocations and explicit frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Live bytes.
    pub live_bytes: u64,
    /// Maximum of `live_bytes` so far.
    pub peak_live_bytes: u64,
    /// Successful allocation calls.
    pub allocations: u64,
    /// Successful explicit frees. Memory that was freed with its context is not counted.
    pub frees: u64,
}

/// One process's memory on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Used bytes as NVML reports them: contexts and backed device memory, in 2 MiB granules.
    pub used_bytes: u64,
    /// Part of `used_bytes` that belongs to contexts.
    pub context_bytes: u64,
    /// Live contexts. NVML lists the process while it has one.
    pub contexts: u64,
    /// Sum of the live bytes of `device`, `pool_used`, `physical` and `array`.
    pub owned_live_bytes: u64,
    /// Maximum of `owned_live_bytes` so far.
    pub peak_owned_bytes: u64,
    /// Linear and pitched memory, as requested.
    pub device: Balance,
    /// Live stream-ordered allocations, as requested.
    pub pool_used: Balance,
    /// Device memory that the pools hold, used or not.
    pub pool_backed: Balance,
    /// `cuMemCreate` on the device; live until the handle and all mappings are gone.
    pub physical: Balance,
    /// Managed memory: virtual, not part of `used_bytes`.
    pub managed: Balance,
    /// Arrays and mipmapped arrays: the texels, without padding.
    pub array: Balance,
    /// Memory that backs the allocations of launched graphs.
    pub graph: Balance,
}

/// One process's slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessEntry {
    /// Process id in the process's own pid namespace.
    pub tgid: i32,
    /// Start of the process in clock ticks after boot, as in `/proc/<tgid>/stat`.
    pub start_time_ticks: u64,
    /// Bytes of pinned host memory.
    pub pinned_host_bytes: u64,
    /// Bytes of registered host memory.
    pub registered_host_bytes: u64,
    /// Bytes of `cuMemCreate` and pool memory whose location is the host.
    pub physical_host_bytes: u64,
    /// Successful allocation calls of all kinds.
    pub allocations: u64,
    /// Successful explicit frees of all kinds.
    pub frees: u64,
    /// Allocation calls that returned an error.
    pub failures: u64,
    /// Whether a checkpoint has moved the process's memory off the devices.
    pub suspended: bool,
    /// Entries by device index, numbered as NVML does.
    pub devices: Vec<DeviceEntry>,
    stack_start: u64,
}

impl Ledger {
    /// Opens a ledger that a simulated process or the simulated NVML has created.
    ///
    /// # Errors
    /// When the file cannot be read or is not a ledger of the version that this reader supports.
    pub fn open(path: impl AsRef<Path>) -> anyhow::Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).with_context(|| format!("opening the ledger {}", path.display()))?;
        let ledger = Self { file };
        let header = ledger.header().with_context(|| format!("reading the ledger {}", path.display()))?;
        let known = header.u64(0) == MAGIC
            && header.u32(8) == VERSION
            && header.u32(16) as usize == SLOTS
            && header.u32(20) as usize == PROCESS_BYTES;
        ensure!(known, "{} is no ledger of version {VERSION}", path.display());
        Ok(ledger)
    }

    /// Returns the number of devices of the simulated machine.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn device_count(&self) -> anyhow::Result<usize> {
        Ok(self.header()?.u32(12) as usize)
    }

    /// Returns the memory of a device in bytes.
    ///
    /// # Errors
    /// When the file cannot be read or there is no such device.
    pub fn total_bytes(&self, ordinal: usize) -> anyhow::Result<u64> {
        self.check(ordinal)?;
        Ok(self.header()?.u64(TOTAL_BYTES_OFFSET + 8 * ordinal))
    }

    /// Returns the UUID of a device in NVML's form, `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, or
    /// `MIG-…` for an instance.
    ///
    /// # Errors
    /// When the file cannot be read or there is no such device.
    pub fn uuid(&self, ordinal: usize) -> anyhow::Result<String> {
        self.check(ordinal)?;
        let header = self.header()?;
        let start = UUID_OFFSET + 16 * ordinal;
        let mut text = String::from(if header.u32(MIG_OFFSET) == 1 { "MIG-" } else { "GPU-" });
        for (index, byte) in header.0[start..start + 16].iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(text, "{dash}{byte:02x}")?;
        }
        Ok(text)
    }

    /// Returns the living processes that have a slot, in slot order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn processes(&self) -> anyhow::Result<Vec<ProcessEntry>> {
        let devices = self.device_count()?;
        let mut slots = vec![0; SLOTS * PROCESS_BYTES];
        self.file.read_exact_at(&mut slots, HEADER_BYTES as u64)?;
        let entries =
            slots.as_chunks::<PROCESS_BYTES>().0.iter().map(|slot| ProcessEntry::parse(&Bytes(slot.to_vec()), devices));
        Ok(entries.filter(|entry| entry.tgid != 0 && entry.is_alive()).collect())
    }

    /// Returns the entry of a living process, or `None` if it has no slot or the file cannot be
    /// read.
    pub fn process(&self, tgid: u32) -> Option<ProcessEntry> {
        let tgid = i32::try_from(tgid).ok()?;
        self.processes().ok()?.into_iter().find(|entry| entry.tgid == tgid)
    }

    /// Returns the used bytes of a device over all living processes, as NVML reports them.
    ///
    /// # Errors
    /// When the file cannot be read or there is no such device.
    pub fn device_used_bytes(&self, ordinal: usize) -> anyhow::Result<u64> {
        self.check(ordinal)?;
        let processes = self.processes()?;
        Ok(processes.iter().filter(|entry| !entry.suspended).map(|entry| entry.devices[ordinal].used_bytes).sum())
    }

    fn header(&self) -> anyhow::Result<Bytes> {
        let mut header = vec![0; HEADER_BYTES];
        self.file.read_exact_at(&mut header, 0)?;
        Ok(Bytes(header))
    }

    fn check(&self, ordinal: usize) -> anyhow::Result<()> {
        let devices = self.device_count()?.min(DEVICES);
        ensure!(ordinal < devices, "device {ordinal} of {devices} does not exist");
        Ok(())
    }
}

impl ProcessEntry {
    fn parse(slot: &Bytes, devices: usize) -> Self {
        Self {
            tgid: slot.u32(0).cast_signed(),
            start_time_ticks: slot.u64(8),
            stack_start: slot.u64(16),
            pinned_host_bytes: slot.u64(32),
            registered_host_bytes: slot.u64(40),
            physical_host_bytes: slot.u64(48),
            allocations: slot.u64(56),
            frees: slot.u64(64),
            failures: slot.u64(72),
            suspended: slot.u64(80) != 0,
            devices: (0..devices.min(DEVICES)).map(|ordinal| DeviceEntry::parse(slot, ordinal)).collect(),
        }
    }

    /// Returns whether the process is alive, by the driver's criteria: not a zombie, same start
    /// time, same stack address. A new stack address means that the process called exec.
    fn is_alive(&self) -> bool {
        let Ok(status) = fs::read_to_string(format!("/proc/{}/stat", self.tgid)) else {
            return false;
        };
        let Some((_, fields)) = status.rsplit_once(')') else {
            return false;
        };
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let ended = matches!(fields.first(), Some(&("Z" | "X"))) && number(17) <= 1;
        let replaced = self.stack_start != 0 && number(25) != 0 && number(25) != self.stack_start;
        !ended && !replaced && number(19) == self.start_time_ticks
    }
}

impl DeviceEntry {
    fn parse(slot: &Bytes, ordinal: usize) -> Self {
        let start = DEVICE_OFFSET + DEVICE_BYTES * ordinal;
        let balance = |kind: usize| Balance::parse(slot, start + BALANCE_OFFSET + BALANCE_BYTES * kind);
        Self {
            used_bytes: slot.u64(start),
            context_bytes: slot.u64(start + 8),
            contexts: slot.u64(start + 16),
            owned_live_bytes: slot.u64(start + 24),
            peak_owned_bytes: slot.u64(start + 32),
            device: balance(0),
            pool_used: balance(1),
            pool_backed: balance(2),
            physical: balance(3),
            managed: balance(4),
            array: balance(5),
            graph: balance(6),
        }
    }
}

impl Balance {
    fn parse(slot: &Bytes, start: usize) -> Self {
        Self {
            live_bytes: slot.u64(start),
            peak_live_bytes: slot.u64(start + 8),
            allocations: slot.u64(start + 16),
            frees: slot.u64(start + 24),
        }
    }
}

/// Part of the file, long enough for the offsets of its layout.
struct Bytes(Vec<u8>);

impl Bytes {
    fn u32(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.field(offset))
    }

    fn u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.field(offset))
    }

    fn field<const LENGTH: usize>(&self, offset: usize) -> [u8; LENGTH] {
        *self.0[offset..].first_chunk().expect("the layout's offsets lie inside its piece of the file")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a ledger of two devices with a slot of the test's own process on device 1.
    fn ledger_with_one_process() -> anyhow::Result<(tempfile::NamedTempFile, Ledger)> {
        let mut bytes = vec![0_u8; HEADER_BYTES + SLOTS * PROCESS_BYTES];
        let mut put = |offset: usize, value: u64, length: usize| {
            bytes[offset..offset + length].copy_from_slice(&value.to_ne_bytes()[..length]);
        };
        put(0, MAGIC, 8);
        put(8, u64::from(VERSION), 4);
        put(12, 2, 4);
        put(16, SLOTS as u64, 4);
        put(20, PROCESS_BYTES as u64, 4);
        put(UUID_OFFSET + 16, 0xa1, 1);
        let slot = HEADER_BYTES + PROCESS_BYTES * 3;
        let start_ticks = start_time_ticks(std::process::id())?;
        put(slot, u64::from(std::process::id()), 4);
        put(slot + 8, start_ticks, 8);
        let device = slot + DEVICE_OFFSET + DEVICE_BYTES;
        put(device, 4096, 8);
        put(device + BALANCE_OFFSET + 3 * BALANCE_BYTES, 1024, 8);
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), &bytes)?;
        let ledger = Ledger::open(file.path())?;
        Ok((file, ledger))
    }

    fn start_time_ticks(tgid: u32) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{tgid}/stat"))?;
        let fields = status.rsplit_once(')').context("no command")?.1;
        fields.split_whitespace().nth(19).context("no start time")?.parse().context("start time")
    }

    #[test]
    fn a_living_process_is_found_with_its_numbers_on_the_right_device() -> anyhow::Result<()> {
        let (_file, ledger) = ledger_with_one_process()?;
        let entry = ledger.process(std::process::id()).context("the slot is found")?;
        assert_eq!(entry.devices[1].physical.live_bytes, 1024);
        assert_eq!(entry.devices[0], DeviceEntry::default());
        assert_eq!(ledger.device_used_bytes(1)?, 4096);
        Ok(())
    }

    #[test]
    fn a_uuid_has_the_form_that_nvml_gives_it() -> anyhow::Result<()> {
        let (_file, ledger) = ledger_with_one_process()?;
        assert_eq!(ledger.uuid(1)?, "GPU-a1000000-0000-0000-0000-000000000000");
        assert!(ledger.uuid(2).is_err());
        Ok(())
    }

    #[test]
    fn a_file_of_another_kind_is_refused() -> anyhow::Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), [0; HEADER_BYTES])?;
        assert!(Ledger::open(file.path()).is_err());
        Ok(())
    }
}

//! Counters of the driver memory that a policy uses, and the memory available to it.

/// Driver memory available to one allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Memory of the device, in bytes.
    pub total_bytes: u64,
    /// Bytes that the allocator may use: without the context and other processes.
    pub available_bytes: u64,
}

impl Default for Capacity {
    /// A device of unknown size refuses nothing.
    fn default() -> Self {
        Self { total_bytes: 1 << 40, available_bytes: u64::MAX }
    }
}

/// Memory and calls of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Available memory.
    pub capacity: Capacity,
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
    /// Peak of the reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Maximum bytes allocated by the program while the reserved bytes were at their peak.
    pub allocated_at_peak_bytes: u64,
    /// Bytes allocated by the program, as the policy rounds them.
    pub allocated_bytes: u64,
    /// Peak of the allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Calls that allocated driver memory.
    pub driver_allocations: u64,
    /// Calls that freed driver memory.
    pub driver_frees: u64,
    /// Requests that the driver refused and the policy repeated after emptying its cache.
    pub retries: u64,
}

impl Meter {
    /// Resets the counters; the current bytes become the peaks.
    pub const fn begin(&mut self) {
        (self.driver_allocations, self.driver_frees, self.retries) = (0, 0, 0);
        (self.peak_reserved_bytes, self.allocated_at_peak_bytes) = (self.reserved_bytes, self.allocated_bytes);
        self.peak_allocated_bytes = self.allocated_bytes;
    }

    /// Allocates driver memory; returns `false` if too little is available.
    pub const fn take(&mut self, bytes: u64) -> bool {
        let Some(reserved_bytes) = self.reserved_bytes.checked_add(bytes) else { return false };
        if reserved_bytes > self.capacity.available_bytes {
            return false;
        }
        self.reserved_bytes = reserved_bytes;
        self.driver_allocations += 1;
        if self.reserved_bytes > self.peak_reserved_bytes {
            self.peak_reserved_bytes = self.reserved_bytes;
            self.allocated_at_peak_bytes = self.allocated_bytes;
        }
        true
    }

    /// Frees driver memory.
    pub const fn part(&mut self, bytes: u64) {
        self.reserved_bytes -= bytes;
        self.driver_frees += 1;
    }

    /// Counts bytes allocated by the program.
    pub const fn grant(&mut self, bytes: u64) {
        self.allocated_bytes += bytes;
        if self.allocated_bytes > self.peak_allocated_bytes {
            self.peak_allocated_bytes = self.allocated_bytes;
        }
        if self.reserved_bytes == self.peak_reserved_bytes && self.allocated_bytes > self.allocated_at_peak_bytes {
            self.allocated_at_peak_bytes = self.allocated_bytes;
        }
    }

    /// Counts bytes freed by the program.
    pub const fn give_back(&mut self, bytes: u64) {
        self.allocated_bytes -= bytes;
    }
}

//! What a policy has of the driver, and how much there is.

/// How much the driver has for one allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// All memory of the device, in bytes.
    pub total_bytes: u64,
    /// What of it the allocator may have: the rest is the context's and others'.
    pub available_bytes: u64,
}

impl Default for Capacity {
    /// A device whose size is not known refuses nothing.
    fn default() -> Self {
        Self { total_bytes: 1 << 40, available_bytes: u64::MAX }
    }
}

/// What a policy has and has done, in bytes and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// How much there is.
    pub capacity: Capacity,
    /// What it has of the driver now.
    pub reserved_bytes: u64,
    /// The most it had.
    pub peak_reserved_bytes: u64,
    /// What the program had of it then.
    pub allocated_at_peak_bytes: u64,
    /// What the program has now, as the policy rounds.
    pub allocated_bytes: u64,
    /// The most it had.
    pub peak_allocated_bytes: u64,
    /// Calls that took memory of the driver.
    pub driver_allocations: u64,
    /// Calls that gave it back.
    pub driver_frees: u64,
    /// The driver refused, and was asked again after the cache was given back.
    pub retries: u64,
}

impl Meter {
    /// What was done so far does not count, and what there is now is the most there was.
    pub const fn begin(&mut self) {
        (self.driver_allocations, self.driver_frees, self.retries) = (0, 0, 0);
        (self.peak_reserved_bytes, self.allocated_at_peak_bytes) = (self.reserved_bytes, self.allocated_bytes);
        self.peak_allocated_bytes = self.allocated_bytes;
    }

    /// Takes memory of the driver; `false` where it has not so much.
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

    /// Gives it back.
    pub const fn part(&mut self, bytes: u64) {
        self.reserved_bytes -= bytes;
        self.driver_frees += 1;
    }

    /// The program has more.
    pub const fn grant(&mut self, bytes: u64) {
        self.allocated_bytes += bytes;
        if self.allocated_bytes > self.peak_allocated_bytes {
            self.peak_allocated_bytes = self.allocated_bytes;
        }
        if self.reserved_bytes == self.peak_reserved_bytes && self.allocated_bytes > self.allocated_at_peak_bytes {
            self.allocated_at_peak_bytes = self.allocated_bytes;
        }
    }

    /// The program has less.
    pub const fn give_back(&mut self, bytes: u64) {
        self.allocated_bytes -= bytes;
    }
}

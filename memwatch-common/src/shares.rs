//! Shares of kernel tables per owner. Every user can create processes, threads and allocations, but
//! no user may use up the entries of another.
//!
//! An owner may take an entry while at least as many entries are free as it already has, so a table
//! is never full for the next owner. Root has a reserved part of each table.

/// Owner of entries that user space has inserted and that count for no user. No user has this number.
pub const NOBODY: u32 = u32::MAX;
/// Represents all owners without an entry of their own, when the table of owners is full.
pub const OTHERS: u32 = u32::MAX - 1;

/// The user with a reserved part of each table.
const ROOT: u32 = 0;
/// Divisor that gives the part of a table that is reserved for root.
const ROOTS_PART: u64 = 16;

/// A table of the kernel half that traced processes fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SharedTable {
    /// Calls in flight, by thread.
    Calls = 0,
    /// Requests to the kernel driver in flight, by thread.
    Requests = 1,
    /// Processes whose exec and exit are reported.
    Processes = 2,
    /// Losses by process and kind.
    Losses = 3,
    /// Live allocations by process and address.
    Addresses = 4,
    /// Sums of the live allocations, by process.
    AllocationMaps = 5,
    /// Requests to the kernel driver that wait for space in the ring.
    Waiting = 6,
    /// State of threads whose stacks are walked.
    Threads = 7,
    /// Python code objects whose addresses were sent.
    Codes = 8,
    /// Budgets of processes whose stacks are copied at requests to the kernel driver.
    RequestCopies = 9,
}

impl SharedTable {
    /// All tables, in the order of their numbers.
    pub const ALL: [Self; TABLES] = [
        Self::Calls,
        Self::Requests,
        Self::Processes,
        Self::Losses,
        Self::Addresses,
        Self::AllocationMaps,
        Self::Waiting,
        Self::Threads,
        Self::Codes,
        Self::RequestCopies,
    ];

    /// Returns the number of entries.
    pub const fn entries(self) -> u32 {
        match self {
            Self::Calls | Self::Requests | Self::Losses | Self::Threads => 1 << 14,
            Self::Processes | Self::AllocationMaps | Self::Codes => 1 << 16,
            Self::Addresses => 1 << 20,
            Self::Waiting => 1 << 11,
            Self::RequestCopies => 1 << 12,
        }
    }

    /// Whether the table outlives the process that loaded it.
    pub const fn is_pinned(self) -> bool {
        !matches!(self, Self::Threads | Self::Codes | Self::RequestCopies)
    }
}

/// Number of tables.
pub const TABLES: usize = 10;

/// Numbers of taken entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TakenEntries {
    /// Number of taken entries, by [`SharedTable`].
    pub of: [u64; TABLES],
}

/// Loss counter of one process, or of all processes of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LossCount {
    /// Number of lost records.
    pub count: u64,
    /// Owner whose share the entry counts for.
    pub owner: u64,
}

/// Whether an owner with `own` of the `all` taken entries may take one more entry of a table of
/// this size.
#[inline(always)]
pub const fn may_take(entries: u64, owner: u32, own: u64, all: u64) -> bool {
    let free = entries.saturating_sub(all);
    let roots_part = entries / ROOTS_PART;
    // Counts lag a little when many threads take entries at the same time. A count that has wrapped
    // around is no reason to refuse.
    if owner == ROOT { free > 0 && own < free + roots_part } else { own + roots_part < free }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES: u64 = 16_384;

    /// Takes entries for this owner until one is refused. Returns their number.
    fn greed(owner: u32, all: &mut u64) -> u64 {
        let mut own = 0;
        while may_take(ENTRIES, owner, own, *all) {
            own += 1;
            *all += 1;
        }
        own
    }

    #[test]
    fn a_table_is_never_full_for_the_next_owner() {
        let mut all = 0;
        let taken = [1, 2, 3, 4, 5, 6, 7, 8].map(|owner| greed(owner, &mut all));
        assert_eq!(taken, [7680, 3840, 1920, 960, 480, 240, 120, 60]);
        assert!(greed(0, &mut all) >= ENTRIES / ROOTS_PART, "root's part is root's");
        assert!(all <= ENTRIES);
    }

    #[test]
    fn root_leaves_room_for_users() {
        let mut all = 0;
        assert_eq!(greed(0, &mut all), u64::midpoint(ENTRIES, ENTRIES / ROOTS_PART));
        assert!(greed(1, &mut all) > ENTRIES / 8);
        assert!(all < ENTRIES);
    }

    #[test]
    fn full_share_table_admits_no_owner() {
        for owner in [0, 1] {
            assert!(!may_take(ENTRIES, owner, 0, ENTRIES));
            assert!(!may_take(ENTRIES, owner, 0, ENTRIES + 5), "counted twice, it is full still");
        }
        assert!(may_take(ENTRIES, 1, 0, 0) && !may_take(ENTRIES, 1, ENTRIES, 0));
    }

    #[test]
    fn every_table_has_its_own_number() {
        for (number, table) in (0u32..).zip(SharedTable::ALL) {
            assert_eq!(table as u32, number);
        }
    }
}

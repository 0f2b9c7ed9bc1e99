//! Every way a record can go missing or be incomplete, each with a name and a counter.

/// Why the ledger may not know everything about a process.
///
/// The numbers are the keys of the kernel's counters: they are stable, a removed cause keeps its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Loss {
    /// The ring buffer was full when a record was ready: its effect is unknown.
    RingFull = 0,
    /// The table of calls in flight was full at a call's entry: the call's record was never made.
    InFlightFull = 1,
    /// A thread was inside more watched calls than [`crate::capture::NESTING`]: the innermost left no record.
    NestedTooDeep = 2,
    /// An out-pointer could not be read when the call returned: the record came without its result.
    OutUnreadable = 3,
    /// A struct argument could not be read, neither at entry nor at return.
    PeekUnreadable = 4,
    /// A call returned that was not seen entering, of a thread that was seen before.
    ReturnWithoutEntry = 5,
    /// A thread ended inside a watched call while its process went on.
    ThreadEndedInCall = 6,
    /// A record arrived that this version cannot decode.
    UndecodableRecord = 7,
    /// The table of known processes was full: the exit of one may go unnoticed.
    ProcessTableFull = 8,
    /// The ring buffer was full when a tensor event was ready: the allocator's own statistics take its place, its site is unknown.
    TensorEventLost = 9,
    /// The ring buffer was full when a new Python stack was ready: the events that name it have no site until it is sent again.
    StackLost = 10,
    /// A record of an ioctl to the kernel driver went missing: the ring or the table of those in flight was full, or a thread ended inside one.
    RmRecordLost = 11,
    /// What an ioctl to the kernel driver was given or gave back could not be read.
    RmUnreadable = 12,
    /// An ioctl to the kernel driver has a size that no known version of it has.
    RmLayout = 13,
    /// Another version's kernel half made it while no agent read: whose it is and no more can be read of it.
    OtherVersion = 14,
    /// The driver library of a process was replaced or removed while it runs, and cannot be opened to be probed: its calls are not seen.
    LibraryUnreadable = 15,
    /// There was no room for more allocations of its user's: it has been counted and is not listed.
    Unlisted = 16,
}

impl Loss {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::RingFull,
        Self::InFlightFull,
        Self::NestedTooDeep,
        Self::OutUnreadable,
        Self::PeekUnreadable,
        Self::ReturnWithoutEntry,
        Self::ThreadEndedInCall,
        Self::UndecodableRecord,
        Self::ProcessTableFull,
        Self::TensorEventLost,
        Self::StackLost,
        Self::RmRecordLost,
        Self::RmUnreadable,
        Self::RmLayout,
        Self::OtherVersion,
        Self::LibraryUnreadable,
        Self::Unlisted,
    ];

    /// The cause with this number, as it stands in the kernel's counters.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Whether it touches the tensors of a process alone: its driver allocations are complete all the same.
    pub const fn is_of_tensors(self) -> bool {
        matches!(self, Self::TensorEventLost | Self::StackLost)
    }

    /// Whether it touches what the kernel driver was asked for alone: the calls of libcuda are complete all the same.
    pub const fn is_of_kernel_driver(self) -> bool {
        matches!(self, Self::RmRecordLost | Self::RmUnreadable | Self::RmLayout)
    }

    /// The name in JSON and on screen.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::InFlightFull => "in_flight_full",
            Self::NestedTooDeep => "nested_too_deep",
            Self::OutUnreadable => "out_unreadable",
            Self::PeekUnreadable => "peek_unreadable",
            Self::ReturnWithoutEntry => "return_without_entry",
            Self::ThreadEndedInCall => "thread_ended_in_call",
            Self::UndecodableRecord => "undecodable_record",
            Self::ProcessTableFull => "process_table_full",
            Self::TensorEventLost => "tensor_event_lost",
            Self::StackLost => "stack_lost",
            Self::RmRecordLost => "rm_record_lost",
            Self::RmUnreadable => "rm_unreadable",
            Self::RmLayout => "rm_layout",
            Self::OtherVersion => "other_version",
            Self::LibraryUnreadable => "library_unreadable",
            Self::Unlisted => "unlisted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Loss;

    #[test]
    fn every_loss_is_found_by_its_own_number() {
        for (number, loss) in (0u32..).zip(Loss::ALL) {
            assert_eq!(loss as u32, number);
            assert_eq!(Loss::from_number(number), Some(loss));
        }
        assert_eq!(Loss::from_number(99), None);
    }
}

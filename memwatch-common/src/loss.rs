//! Causes of lost or incomplete records, each with a name and a counter.

/// Reason why the ledger may be incomplete for a process.
///
/// The numbers are the keys of the kernel's counters. They are stable: a removed cause keeps its
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Loss {
    /// The ring buffer was full when a record was ready: the effect of the call is unknown.
    RingFull = 0,
    /// The table of calls in flight was full at a call's entry: the call has no record.
    InFlightFull = 1,
    /// A thread was in more traced calls than [`crate::capture::NESTING`]: the innermost has no
    /// record.
    NestedTooDeep = 2,
    /// An out-pointer could not be read when the call returned: the record came without its result.
    OutUnreadable = 3,
    /// A struct argument could be read neither at entry nor at return.
    PeekUnreadable = 4,
    /// A call returned without a recorded entry, in a thread that was seen before.
    ReturnWithoutEntry = 5,
    /// A thread exited inside a traced call while its process continued.
    ThreadEndedInCall = 6,
    /// A record arrived that this version cannot decode.
    UndecodableRecord = 7,
    /// The table of known processes was full: the exit of a process may go unnoticed.
    ProcessTableFull = 8,
    /// The ring buffer was full when a tensor event was ready: the allocator's own statistics
    /// replace it, and its call site is unknown.
    TensorEventLost = 9,
    /// The ring buffer was full when a new Python stack was ready: events that refer to it have no
    /// call site until it is sent again.
    StackLost = 10,
    /// A record of an ioctl to the kernel driver was lost: the ring or the table of ioctls in
    /// flight was full, or a thread exited inside an ioctl.
    RmRecordLost = 11,
    /// The request or the result of an ioctl to the kernel driver could not be read.
    RmUnreadable = 12,
    /// An ioctl to the kernel driver has a size that no known version of the driver uses.
    RmLayout = 13,
    /// Another version's kernel half made the record while no agent was reading: only its process
    /// can be read.
    OtherVersion = 14,
    /// The driver library of a running process was replaced or removed and cannot be opened for
    /// probing: the process's calls are not seen.
    LibraryUnreadable = 15,
    /// The ledgers had no capacity for another allocation of the user: the call is counted here and
    /// its allocation is not listed.
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

    /// Returns the cause with this number in the kernel's counters.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Whether the loss affects only a process's tensors: its driver allocations are still
    /// complete.
    pub const fn is_of_tensors(self) -> bool {
        matches!(self, Self::TensorEventLost | Self::StackLost)
    }

    /// Whether the loss affects only requests to the kernel driver: the calls of libcuda are still
    /// complete.
    pub const fn is_of_kernel_driver(self) -> bool {
        matches!(self, Self::RmRecordLost | Self::RmUnreadable | Self::RmLayout)
    }

    /// Returns the name in JSON and on screen.
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

//! Where the members of kernel structs are, from the running kernel's BTF.
//!
//! Layout of the format: Documentation/bpf/btf.rst of the kernel. Only what finds a named struct's named member is here.

/// BTF could not answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BtfError {
    /// Not BTF, or cut short.
    #[error("the kernel's BTF is malformed at byte {0}")]
    Malformed(usize),
    /// No such struct or member.
    #[error("the kernel's BTF has no member {member} in struct {structure}")]
    NoMember {
        /// The struct.
        structure: &'static str,
        /// The member.
        member: &'static str,
    },
}

const MAGIC: u16 = 0xEB9F;
const KIND_STRUCT: u32 = 4;

/// A parsed header over the raw bytes.
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Btf<'a> {
    /// Reads the header.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let word = |at: usize| u32_at(bytes, at).and_then(|word| usize::try_from(word).ok());
        let magic = bytes.get(..2).map(|magic| u16::from_le_bytes([magic[0], magic[1]]));
        if magic != Some(MAGIC) {
            return Err(BtfError::Malformed(0));
        }
        let section = |offset_at: usize| {
            let start = word(4)?.checked_add(word(offset_at)?)?;
            bytes.get(start..start.checked_add(word(offset_at + 4)?)?)
        };
        let types = section(8).ok_or(BtfError::Malformed(8))?;
        let strings = section(16).ok_or(BtfError::Malformed(16))?;
        Ok(Self { types, strings })
    }

    /// The offset of a member in bytes, searching anonymous members of no depth: the members memwatch needs are direct ones.
    pub(crate) fn member_offset_bytes(&self, structure: &'static str, member: &'static str) -> Result<u32, BtfError> {
        let mut at = 0;
        while at < self.types.len() {
            let (kind, count, name) = self.header(at).ok_or(BtfError::Malformed(at))?;
            let body = at + 12;
            let found = (kind == KIND_STRUCT && self.is_named(name, structure))
                .then(|| self.find_member(body, count, member))
                .flatten();
            if let Some(offset) = found {
                return Ok(offset);
            }
            at = body + body_bytes(kind, count).ok_or(BtfError::Malformed(at))?;
        }
        Err(BtfError::NoMember { structure, member })
    }

    fn header(&self, at: usize) -> Option<(u32, usize, u32)> {
        let info = u32_at(self.types, at + 4)?;
        Some(((info >> 24) & 0x1F, usize::try_from(info & 0xFFFF).ok()?, u32_at(self.types, at)?))
    }

    fn find_member(&self, body: usize, count: usize, member: &str) -> Option<u32> {
        (0..count).map(|index| body + index * 12).find_map(|at| {
            let named = self.is_named(u32_at(self.types, at)?, member);
            // With bit-fields in the struct the upper byte is a width; the members asked for are whole bytes either way.
            named.then(|| u32_at(self.types, at + 8).map(|bits| (bits & 0x00FF_FFFF) / 8))?
        })
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let Ok(start) = usize::try_from(offset) else { return false };
        let Some(rest) = self.strings.get(start..) else { return false };
        rest.strip_prefix(name.as_bytes()).is_some_and(|tail| tail.first() == Some(&0))
    }
}

/// Bytes after a type's twelve-byte header, by kind (include/uapi/linux/btf.h).
fn body_bytes(kind: u32, count: usize) -> Option<usize> {
    match kind {
        1 | 14 | 17 => Some(4),
        2 | 7 | 8 | 9 | 10 | 11 | 12 | 16 | 18 => Some(0),
        3 => Some(12),
        4 | 5 | 15 | 19 => Some(count * 12),
        6 | 13 => Some(count * 8),
        _ => None,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{Btf, BtfError};

    #[test]
    fn members_of_the_running_kernels_task_are_found() {
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            eprintln!("skipped: this kernel has no BTF in /sys/kernel/btf/vmlinux");
            return;
        };
        let btf = Btf::parse(&bytes).expect("a kernel's BTF parses");
        let tgid = btf.member_offset_bytes("task_struct", "tgid").expect("a task has a tgid");
        assert!(tgid > 0 && tgid.is_multiple_of(4));
        assert!(btf.member_offset_bytes("signal_struct", "live").is_ok());
        let missing = btf.member_offset_bytes("task_struct", "no_such_member");
        assert_eq!(missing, Err(BtfError::NoMember { structure: "task_struct", member: "no_such_member" }));
    }

    #[test]
    fn bytes_that_are_no_btf_are_an_error() {
        assert_eq!(Btf::parse(b"").err(), Some(BtfError::Malformed(0)));
        assert_eq!(Btf::parse(&[0x9F, 0xEB, 1, 0, 24, 0, 0, 0]).err(), Some(BtfError::Malformed(8)));
    }
}

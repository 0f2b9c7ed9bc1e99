//! Finds the offsets of members of kernel structs in the running kernel's BTF.
//!
//! Format: Documentation/bpf/btf.rst of the kernel. Only the look-up of a named member of a named
//! struct is implemented. A type of a kind unknown here is skipped: by the kernel's own table of
//! kinds if it has one, else by searching for the next sequence of types with valid names.

/// Why a member is not found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum BtfError {
    /// The data is not BTF, or truncated.
    #[error("the kernel's BTF is malformed at byte {0}")]
    Malformed(usize),
    /// A type of a kind of unknown size, without recognisable types after it.
    #[error("the kernel's BTF has a type of unknown kind {kind} at byte {at}, and its end cannot be found")]
    UnknownKind {
        /// Number of the kind.
        kind: u32,
        /// Offset in the type section.
        at: usize,
    },
    /// The struct or member does not exist.
    #[error("the kernel's BTF has no member {member} in struct {structure}")]
    NoMember {
        /// Name of the struct.
        structure: &'static str,
        /// Name of the member.
        member: &'static str,
    },
}

const MAGIC: u16 = 0xEB9F;
const KIND_STRUCT: u32 = 4;

/// Size of a type's header in bytes: name, info, and size or type.
const HEADER_BYTES: usize = 12;
/// Size of a BTF header that includes the position of the table of kinds (`struct btf_header`,
/// layout_off and layout_len).
const HEADER_WITH_LAYOUT_BYTES: u32 = 32;
/// Size of an entry of that table in bytes (`struct btf_layout`).
const LAYOUT_ROW_BYTES: usize = 4;

/// How far after a type of unknown kind the next type is searched, in bytes.
const SEARCHED_BYTES: usize = 64 << 10;
/// Number of consecutive types with valid names that identify a sequence of types.
const TYPES_IN_A_ROW: usize = 32;

/// BTF data, divided into its sections.
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// The kernel's own table of sizes by kind; empty if it has none.
    layout: &'a [u8],
}

impl<'a> Btf<'a> {
    /// Parses the header.
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
        let has_layout = u32_at(bytes, 4).is_some_and(|header_bytes| header_bytes >= HEADER_WITH_LAYOUT_BYTES);
        let layout = section(24).filter(|_| has_layout).unwrap_or_default();
        Ok(Self { types, strings, layout })
    }

    /// Returns the offset of a member in bytes. Anonymous members are not searched: all members
    /// memwatch needs are direct ones.
    pub(crate) fn member_offset_bytes(&self, structure: &'static str, member: &'static str) -> Result<u32, BtfError> {
        let mut at = 0;
        while at < self.types.len() {
            let (kind, count, name) = self.header(at).ok_or(BtfError::Malformed(at))?;
            let found = (kind == KIND_STRUCT && self.is_named(name, structure))
                .then(|| self.find_member(at + HEADER_BYTES, count, member))
                .flatten();
            if let Some(offset) = found {
                return Ok(offset);
            }
            at = self.after(at, kind, count).ok_or(BtfError::UnknownKind { kind, at })?;
        }
        Err(BtfError::NoMember { structure, member })
    }

    /// Returns kind, number of elements and name of the type at an offset. The upper bits of both
    /// numbers were 0 in formats without a meaning for them.
    fn header(&self, at: usize) -> Option<(u32, usize, u32)> {
        let info = u32_at(self.types, at + 4)?;
        Some(((info >> 24) & 0x7F, usize::try_from(info & 0x00FF_FFFF).ok()?, u32_at(self.types, at)?))
    }

    /// Returns the offset of the next type.
    fn after(&self, at: usize, kind: u32, count: usize) -> Option<usize> {
        let body = at + HEADER_BYTES;
        if let Some(bytes) = body_bytes(kind, count).or_else(|| self.body_bytes_by_layout(kind, count)) {
            return Some(body + bytes);
        }
        let end = self.types.len().min(body + SEARCHED_BYTES);
        (body..end).step_by(4).find(|&at| self.are_types(at))
    }

    fn body_bytes_by_layout(&self, kind: u32, count: usize) -> Option<usize> {
        let start = usize::try_from(kind).ok()?.checked_mul(LAYOUT_ROW_BYTES)?;
        let row = self.layout.get(start..start + LAYOUT_ROW_BYTES)?;
        Some(usize::from(row[0]) + count * usize::from(row[1]))
    }

    /// Whether a sequence of types begins at an offset: the next [`TYPES_IN_A_ROW`] types, or all
    /// until the end, are of known kinds and their names begin where a string begins.
    fn are_types(&self, mut at: usize) -> bool {
        for _ in 0..TYPES_IN_A_ROW {
            if at == self.types.len() {
                return true;
            }
            let Some((kind, count, name)) = self.header(at) else { return false };
            let Some(bytes) = body_bytes(kind, count).filter(|_| self.is_name(name)) else { return false };
            at += HEADER_BYTES + bytes;
        }
        true
    }

    /// Whether a string begins at an offset; 0 is the empty string.
    fn is_name(&self, offset: u32) -> bool {
        let before = usize::try_from(offset).ok().and_then(|offset| offset.checked_sub(1));
        before.is_none_or(|before| self.strings.get(before) == Some(&0) && before + 1 < self.strings.len())
    }

    fn find_member(&self, body: usize, count: usize, member: &str) -> Option<u32> {
        (0..count).map(|index| body + index * 12).find_map(|at| {
            let named = self.is_named(u32_at(self.types, at)?, member);
            // If the struct has bit-fields, the upper byte is a width; the members needed are whole
            // bytes in either case.
            named.then(|| u32_at(self.types, at + 8).map(|bits| (bits & 0x00FF_FFFF) / 8))?
        })
    }

    fn is_named(&self, offset: u32, name: &str) -> bool {
        let Ok(start) = usize::try_from(offset) else { return false };
        let Some(rest) = self.strings.get(start..) else { return false };
        rest.strip_prefix(name.as_bytes()).is_some_and(|tail| tail.first() == Some(&0))
    }
}

/// Returns the size of a type's body after the twelve-byte header, by kind
/// (include/uapi/linux/btf.h).
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

    /// A kind unknown to the table. Its body has two words, and three for each element.
    const NEWER_KIND: u32 = 77;

    /// Builder of BTF test data.
    struct Made {
        types: Vec<u8>,
        strings: Vec<u8>,
        layout: Vec<u8>,
    }

    impl Made {
        fn new() -> Self {
            Self { types: Vec::new(), strings: vec![0], layout: Vec::new() }
        }

        fn name(&mut self, name: &str) -> u32 {
            let offset = u32::try_from(self.strings.len()).expect("short");
            self.strings.extend(name.bytes().chain([0]));
            offset
        }

        fn words(mut self, words: &[u32]) -> Self {
            self.types.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            self
        }

        fn structure(mut self, name: &str, members: &[(&str, u32)]) -> Self {
            let count = u32::try_from(members.len()).expect("few");
            let name = self.name(name);
            let members: Vec<[u32; 3]> = members.iter().map(|(of, bits)| [self.name(of), 1, *bits]).collect();
            self.words(&[name, 4 << 24 | count, 64]).words(members.as_flattened())
        }

        fn newer(mut self, elements: u32) -> Self {
            let name = self.name("something_new");
            // These words are neither valid names nor kinds.
            let body: Vec<u32> = (0..2 + 3 * elements).map(|word| 0x7FFF_0000 | word).collect();
            self.words(&[name, NEWER_KIND << 24 | elements, 8]).words(&body)
        }

        fn with_layout(mut self) -> Self {
            self.layout = vec![0; usize::try_from(NEWER_KIND).expect("small") * 4];
            self.layout.extend([8, 12, 0, 0]);
            self
        }

        fn bytes(&self) -> Vec<u8> {
            let length = |section: &[u8]| u32::try_from(section.len()).expect("short");
            let header_bytes = if self.layout.is_empty() { 24 } else { 32 };
            let (types, strings) = (length(&self.types), length(&self.strings));
            let words = [0x0001_EB9F, header_bytes, 0, types, types, strings, types + strings, length(&self.layout)];
            let header: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let header = &header[..usize::try_from(header_bytes).expect("small")];
            [header, &self.types, &self.strings, &self.layout].concat()
        }
    }

    fn offset_in(made: &Made) -> Result<u32, BtfError> {
        Btf::parse(&made.bytes()).expect("a header").member_offset_bytes("task_struct", "tgid")
    }

    fn with_task(made: Made) -> Made {
        made.structure("list_head", &[("next", 0), ("prev", 64)])
            .structure("task_struct", &[("pid", 32), ("tgid", 320)])
    }

    #[test]
    fn btf_newer_kind_is_skipped_by_the_kind_layout_table() {
        for elements in [0, 1, 100] {
            // No recognisable types follow, so only the table of kinds can help.
            let made = with_task(Made::new().newer(elements)).words(&[u32::MAX; 3]).with_layout();
            assert_eq!(offset_in(&made), Ok(40));
        }
    }

    #[test]
    fn a_kind_newer_than_the_table_is_skipped_without_a_table_of_kinds() {
        for elements in [0, 1, 100] {
            let one = with_task(Made::new().structure("first", &[("member", 0)]).newer(elements));
            let two_in_a_row = with_task(Made::new().newer(elements).newer(elements));
            assert_eq!((offset_in(&one), offset_in(&two_in_a_row)), (Ok(40), Ok(40)));
        }
    }

    #[test]
    fn btf_unknown_kind_ends_the_search_with_a_reason() {
        let made = with_task(Made::new()).newer(1).words(&[u32::MAX; 3]);
        assert_eq!(offset_in(&made), Ok(40));
        let btf = made.bytes();
        let absent = Btf::parse(&btf).expect("a header").member_offset_bytes("signal_struct", "live");
        let error = absent.expect_err("it is not there");
        assert!(matches!(error, BtfError::UnknownKind { kind: NEWER_KIND, .. }), "{error}");
        assert!(error.to_string().contains("unknown kind 77"), "{error}");
    }

    #[test]
    fn damaged_btf_never_panics() {
        for made in [with_task(Made::new().newer(3)), with_task(Made::new().newer(3)).with_layout()] {
            let bytes = made.bytes();
            for length in 0..bytes.len() {
                if let Ok(btf) = Btf::parse(&bytes[..length]) {
                    let _ = btf.member_offset_bytes("task_struct", "tgid");
                }
            }
            for index in 0..bytes.len() {
                for value in [0, 0x7F, 0xFF] {
                    let mut damaged = bytes.clone();
                    damaged[index] = value;
                    if let Ok(btf) = Btf::parse(&damaged) {
                        let _ = btf.member_offset_bytes("task_struct", "tgid");
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_btf_are_an_error() {
        assert_eq!(Btf::parse(b"").err(), Some(BtfError::Malformed(0)));
        assert_eq!(Btf::parse(&[0x9F, 0xEB, 1, 0, 24, 0, 0, 0]).err(), Some(BtfError::Malformed(8)));
    }
}

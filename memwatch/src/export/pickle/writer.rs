//! Writer for Python's pickle format, protocol 4, limited to what PyTorch's viewer reads.
//!
//! The opcodes are from CPython's Lib/pickletools.py, restricted to those in `unpickle` of
//! torch/utils/viz/MemoryViz.js. The viewer does not support integers of more than 64 bits. It
//! passes the items of one `APPENDS` as arguments of one call, which limits their number.

use std::collections::HashMap;
use std::io;

const PROTO: u8 = 0x80;
const PROTOCOL: u8 = 4;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const EMPTY_DICT: u8 = b'}';
const SETITEMS: u8 = b'u';
const EMPTY_LIST: u8 = b']';
const APPENDS: u8 = b'e';
const TUPLE2: u8 = 0x86;
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const BINPUT: u8 = b'q';
const LONG_BINPUT: u8 = b'r';
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

/// Maximum number of items per `APPENDS`, as in CPython.
pub(crate) const BATCH: usize = 1000;

/// Memo index of an object that can be referenced again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memo(u32);

/// Pickle writer for one object.
#[derive(Debug)]
pub(crate) struct PickleWriter<W> {
    out: W,
    texts: HashMap<String, Memo>,
    next: u32,
}

impl<W: io::Write> PickleWriter<W> {
    /// Writes the header of a pickle.
    pub(crate) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&[PROTO, PROTOCOL])?;
        Ok(Self { out, texts: HashMap::new(), next: 0 })
    }

    /// Ends the pickle and flushes it.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(&[STOP])?;
        self.out.flush()
    }

    /// Begins a dictionary. Keys and values follow alternately.
    pub(crate) fn begin_dict(&mut self) -> io::Result<()> {
        self.out.write_all(&[EMPTY_DICT, MARK])
    }

    /// Ends the dictionary.
    pub(crate) fn end_dict(&mut self) -> io::Result<()> {
        self.out.write_all(&[SETITEMS])
    }

    /// Writes the key of the next value.
    pub(crate) fn key(&mut self, key: &str) -> io::Result<&mut Self> {
        self.text(key)?;
        Ok(self)
    }

    /// Writes an empty list.
    pub(crate) fn empty_list(&mut self) -> io::Result<()> {
        self.out.write_all(&[EMPTY_LIST])
    }

    /// Begins a batch of up to [`BATCH`] items for the last list.
    pub(crate) fn begin_items(&mut self) -> io::Result<()> {
        self.out.write_all(&[MARK])
    }

    /// Ends the batch.
    pub(crate) fn end_items(&mut self) -> io::Result<()> {
        self.out.write_all(&[APPENDS])
    }

    /// References an object that was written before.
    pub(crate) fn again(&mut self, memo: Memo) -> io::Result<()> {
        match u8::try_from(memo.0) {
            Ok(small) => self.out.write_all(&[BINGET, small]),
            Err(_) => self.with(LONG_BINGET, &memo.0.to_le_bytes()),
        }
    }

    /// Stores the last object in the memo.
    pub(crate) fn keep(&mut self) -> io::Result<Memo> {
        let memo = Memo(self.next);
        self.next += 1;
        match u8::try_from(memo.0) {
            Ok(small) => self.out.write_all(&[BINPUT, small])?,
            Err(_) => self.with(LONG_BINPUT, &memo.0.to_le_bytes())?,
        }
        Ok(memo)
    }

    /// Writes a text. A repeated text is written as a reference.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(memo) = self.texts.get(text) {
            return self.again(*memo);
        }
        let bytes = text.as_bytes();
        match (u8::try_from(bytes.len()), u32::try_from(bytes.len())) {
            (Ok(length), _) => self.out.write_all(&[SHORT_BINUNICODE, length])?,
            (Err(_), Ok(length)) => self.with(BINUNICODE, &length.to_le_bytes())?,
            (Err(_), Err(_)) => return Err(io::Error::new(io::ErrorKind::InvalidInput, "a text of 4 GiB and more")),
        }
        self.out.write_all(bytes)?;
        let memo = self.keep()?;
        self.texts.insert(text.to_owned(), memo);
        Ok(())
    }

    /// Writes an integer.
    pub(crate) fn integer(&mut self, number: i64) -> io::Result<()> {
        if let Ok(small) = u8::try_from(number) {
            return self.out.write_all(&[BININT1, small]);
        }
        if let Ok(number) = u16::try_from(number) {
            return self.with(BININT2, &number.to_le_bytes());
        }
        if let Ok(number) = i32::try_from(number) {
            return self.with(BININT, &number.to_le_bytes());
        }
        self.with(LONG1, &[8])?;
        self.out.write_all(&number.to_le_bytes())
    }

    /// Writes an unsigned number, clamped to the viewer's maximum.
    pub(crate) fn number(&mut self, number: u64) -> io::Result<()> {
        self.integer(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// Writes `True` or `False`.
    pub(crate) fn truth(&mut self, truth: bool) -> io::Result<()> {
        self.out.write_all(&[if truth { NEWTRUE } else { NEWFALSE }])
    }

    /// Writes a tuple of two numbers.
    pub(crate) fn pair(&mut self, (first, second): (u64, u64)) -> io::Result<()> {
        self.number(first)?;
        self.number(second)?;
        self.out.write_all(&[TUPLE2])
    }

    fn with(&mut self, opcode: u8, argument: &[u8]) -> io::Result<()> {
        self.out.write_all(&[opcode])?;
        self.out.write_all(argument)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut PickleWriter<&mut Vec<u8>>) -> io::Result<()>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = PickleWriter::new(&mut out).expect("memory takes all");
        write(&mut writer).expect("memory takes all");
        writer.finish().expect("memory takes all");
        out
    }

    #[test]
    fn numbers_take_as_few_bytes_as_they_need() {
        for (number, bytes) in [
            (0, &b"K\0"[..]),
            (255, b"K\xff"),
            (256, b"M\0\x01"),
            (-1, b"J\xff\xff\xff\xff"),
            (1 << 31, b"\x8a\x08\0\0\0\x80\0\0\0\0"),
            (i64::MIN, b"\x8a\x08\0\0\0\0\0\0\0\x80"),
        ] {
            let expected = [b"\x80\x04", bytes, b"."].concat();
            assert_eq!(written(|writer| writer.integer(number)), expected, "{number}");
        }
    }

    #[test]
    fn a_text_is_written_once() {
        let twice = written(|writer| {
            writer.empty_list()?;
            writer.begin_items()?;
            writer.text("ü")?;
            writer.text("ü")?;
            writer.end_items()
        });
        assert_eq!(twice, b"\x80\x04](\x8c\x02\xc3\xbcq\0h\0e.");
    }

    #[test]
    fn pickle_memo_index_above_255_uses_four_bytes() {
        let many = written(|writer| {
            for number in 0..257 {
                writer.text(&number.to_string())?;
            }
            writer.text("256")
        });
        assert!(many.ends_with(b"256r\0\x01\0\0j\0\x01\0\0."));
    }
}

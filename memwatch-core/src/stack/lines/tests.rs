//! Tables of real interpreters, and bytes that no interpreter would write.

use proptest::prelude::*;

use super::LineTable;

/// Start and end in bytes, and the line.
type LineRange = (u32, u32, Option<u32>);

/// One function with branches, a comprehension, `try`, `with`, a call over two lines and 200 empty
/// lines, compiled by each version. The lines are those of `dis.findlinestarts` (3.9) and
/// `co_lines`.
const RECORDED: [(LineTable, &str, u64, &[LineRange]); 3] = [
    (
        LineTable::Increments,
        "000104020a0102ff060202010a0102ff020102ff2403107f004b020102ff",
        100,
        &[
            (0, 4, Some(2)),
            (4, 14, Some(4)),
            (14, 16, Some(5)),
            (16, 22, Some(4)),
            (22, 24, Some(6)),
            (24, 34, Some(7)),
            (34, 36, Some(8)),
            (36, 38, Some(7)),
            (38, 40, Some(8)),
            (40, 76, Some(7)),
            (76, 92, Some(10)),
            (92, 94, Some(212)),
            (94, 96, Some(213)),
            (96, 100, Some(212)),
        ],
    ),
    (
        LineTable::Ranges,
        "04010a02020106ff02020a01020102ff020124ff0603007f024b020104ff008102b20603007f024b020104ff008108b5",
        114,
        &[
            (0, 4, Some(2)),
            (4, 14, Some(4)),
            (14, 16, Some(5)),
            (16, 22, Some(4)),
            (22, 24, Some(6)),
            (24, 34, Some(7)),
            (34, 36, Some(8)),
            (36, 38, Some(7)),
            (38, 40, Some(8)),
            (40, 76, Some(7)),
            (76, 82, Some(10)),
            (82, 84, Some(212)),
            (84, 86, Some(213)),
            (86, 90, Some(212)),
            (90, 92, Some(7)),
            (92, 98, Some(10)),
            (98, 100, Some(212)),
            (100, 102, Some(213)),
            (102, 106, Some(212)),
            (106, 114, Some(10)),
        ],
    ),
    (
        LineTable::Locations,
        "8000df070cf106001a1ff303011020d9191e9041f303001116d9191ef103011020f000010920f004040510df0d12895590659855a135d80c0df303\
         01240fd81015f403011e178f55f10600090e8c07f15406000c11d8080df303010c0ff00001050ff9f26106011020f706000e138f55fbf106000\
         90e8d07fa",
        224,
        &[
            (0, 2, Some(1)),
            (2, 18, Some(2)),
            (18, 22, Some(5)),
            (22, 30, Some(4)),
            (30, 36, Some(5)),
            (36, 44, Some(4)),
            (44, 48, Some(5)),
            (48, 54, Some(4)),
            (54, 56, Some(6)),
            (56, 84, Some(7)),
            (84, 86, Some(8)),
            (86, 94, Some(7)),
            (94, 96, Some(8)),
            (96, 122, Some(7)),
            (122, 136, Some(10)),
            (136, 140, Some(212)),
            (140, 142, Some(213)),
            (142, 152, Some(212)),
            (152, 156, None),
            (156, 162, Some(4)),
            (162, 194, Some(7)),
            (194, 202, None),
            (202, 218, Some(10)),
            (218, 224, None),
        ],
    ),
];

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digit = |byte: u8| u8::try_from(char::from(byte).to_digit(16).expect("a digit")).expect("below 16");
    hexadecimal.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

#[test]
fn recorded_tables_give_the_lines_that_python_gave() {
    for (format, table, length, ranges) in RECORDED {
        let table = bytes(table);
        assert!(format.is_of(&table, length), "{format:?}");
        for &(start, end, line) in ranges {
            for offset in start..end {
                assert_eq!(format.line(&table, 1, offset), line, "{format:?} at {offset}");
            }
        }
    }
}

#[test]
fn tables_of_other_versions_and_lengths_distinguished() {
    for (own, table, length, _) in RECORDED {
        let table = bytes(table);
        for (other, ..) in RECORDED {
            assert_eq!(other.is_of(&table, length), own == other, "{own:?} as {other:?}");
        }
        let too_short = length.min(92);
        assert!(!own.is_of(&table, too_short), "{own:?}");
    }
}

#[test]
fn line_table_past_its_end_is_none_or_the_last_line_in_python_3_9() {
    let lines = RECORDED.map(|(format, table, ..)| format.line(&bytes(table), 1, 1000));
    assert_eq!(lines, [Some(212), None, None]);
}

#[test]
fn line_table_step_of_minus_128_means_no_line_in_python_3_10() {
    let table = [2, 1, 2, 0x80, 2, 1];
    assert_eq!([0, 2, 4].map(|offset| LineTable::Ranges.line(&table, 1, offset)), [Some(2), None, Some(3)]);
}

#[test]
fn lines_below_the_first_and_steps_beyond_all_lines_are_none() {
    assert_eq!(LineTable::Increments.line(&[0, 0x80], 1, 0), None);
    assert_eq!(LineTable::Ranges.line(&[2, 0x81], 1, 0), None);
    // Kind 13 with a step of ten bytes, all bits set.
    let table = [[0xe8].as_slice(), &[0x7f; 10], &[0x3f]].concat();
    assert_eq!(LineTable::Locations.line(&table, 1, 0), None);
}

proptest! {
    #[test]
    fn any_bytes_give_a_line_or_none(table: Vec<u8>, first: u32, offset: u32) {
        for format in [LineTable::Increments, LineTable::Ranges, LineTable::Locations] {
            let _ = format.line(&table, first, offset);
            let _ = format.is_of(&table, u64::from(offset));
        }
    }

    #[test]
    fn increments_written_as_python_3_9_writes_them_are_read(steps in prop::collection::vec((1..40u32, -300..300i64), 0..20)) {
        let (mut table, mut ranges, mut line, mut start) = (Vec::new(), Vec::new(), 10_000i64, 0);
        for (units, lines) in steps {
            ranges.push((start, start + 2 * units, line));
            start += 2 * units;
            line += lines;
            // Steps that do not fit continue in pairs of zero bytes.
            table.push([u8::try_from(2 * units).expect("below 80"), 0]);
            let mut rest = lines;
            while rest != 0 {
                let part = rest.clamp(-128, 127);
                table.push([0, i8::try_from(part).expect("clamped").cast_unsigned()]);
                rest -= part;
            }
        }
        let table = table.concat();
        for (start, end, line) in ranges {
            for offset in [start, end - 1] {
                prop_assert_eq!(LineTable::Increments.line(&table, 10_000, offset).map(i64::from), Some(line));
            }
        }
    }
}

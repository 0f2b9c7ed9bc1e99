//! Units for amounts of memory, selected once by `--units`. The crate bytesize does not allow
//! different numbers of decimals per unit.

use std::sync::OnceLock;

use crate::options::Units;

/// Units of [`Units::Binary`], each 1024 times the previous one.
const BINARY: UnitScale = UnitScale { factor: 1 << 10, names: ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] };
/// Units of [`Units::Si`], each 1000 times the previous one.
const SI: UnitScale = UnitScale { factor: 1000, names: ["B", "kB", "MB", "GB", "TB", "PB", "EB"] };
/// Index of the first unit with two decimals, as in PyTorch and NVML.
const GIGA: usize = 3;

/// Selected units. All output of the process uses them, so they are global instead of a parameter.
static CHOSEN: OnceLock<Units> = OnceLock::new();

/// Unit names by power of the factor.
struct UnitScale {
    factor: u64,
    names: [&'static str; 7],
}

/// Selects the units of all output. Only the first call has an effect.
pub(crate) fn choose(units: Units) {
    CHOSEN.get_or_init(|| units);
}

/// Returns the selected units.
pub(crate) fn chosen() -> Units {
    CHOSEN.get().copied().unwrap_or_default()
}

/// `12 B`, `512.0 MiB`, `78.95 GiB`; or `84.77 GB`, `84,770,000,000 B`, depending on the selected
/// units.
pub(crate) fn bytes(bytes: u64) -> String {
    written(bytes, chosen())
}

/// Formats like [`bytes`], in the given units.
pub(crate) fn written(bytes: u64, units: Units) -> String {
    let scale = match units {
        Units::Binary => BINARY,
        Units::Si => SI,
        Units::Bytes => return format!("{} B", count(bytes)),
    };
    if bytes < scale.factor {
        return format!("{bytes} B");
    }
    let mut unit = 1;
    let mut size = scale.factor;
    while unit + 1 < scale.names.len() && is_full(ratio(bytes, size), unit, scale.factor) {
        size *= scale.factor;
        unit += 1;
    }
    format!("{:.*} {}", decimals(unit), ratio(bytes, size), scale.names[unit])
}

const fn decimals(unit: usize) -> usize {
    if unit < GIGA { 1 } else { 2 }
}

/// Returns whether rounding would print the factor itself, which is 1 of the next unit.
fn is_full(value: f64, unit: usize, factor: u64) -> bool {
    let half = if decimals(unit) == 1 { 0.05 } else { 0.005 };
    value + half >= ratio(factor, 1)
}

/// `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns `part` divided by `whole`, which may exceed 1; 0 if `whole` is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { lossy(part) / lossy(whole) }
}

/// Converts an integer to a float. The rounding error is invisible: screens show three digits.
#[allow(clippy::cast_precision_loss, reason = "the screen shows three digits")]
const fn lossy(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_with_binary_units_and_two_decimals_from_gib_on() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (2 << 20, "2.0 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (2_093_796_556, "1.95 GiB"),
            (85_899_345_920, "80.00 GiB"),
            ((1 << 40) - 1, "1.00 TiB"),
            (u64::MAX, "16.00 EiB"),
        ] {
            assert_eq!(written(number, Units::Binary), text);
        }
        assert_eq!(bytes(1 << 30), "1.00 GiB", "binary units, where nothing else was chosen");
    }

    #[test]
    fn amounts_are_written_in_powers_of_1000_or_whole_where_that_is_asked_for() {
        for (number, si, whole) in [
            (0, "0 B", "0 B"),
            (999, "999 B", "999 B"),
            (1024, "1.0 kB", "1,024 B"),
            (999_950, "1.0 MB", "999,950 B"),
            (999_999_999, "1.00 GB", "999,999,999 B"),
            (85_899_345_920, "85.90 GB", "85,899,345,920 B"),
            (u64::MAX, "18.45 EB", "18,446,744,073,709,551,615 B"),
        ] {
            assert_eq!([written(number, Units::Si), written(number, Units::Bytes)], [si, whole]);
        }
    }
}

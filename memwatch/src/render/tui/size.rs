//! Formats sizes, growth and durations for the live view.

use crate::options::Units;
use crate::render::format::ratio;
use crate::render::units;

/// Values from here on round to four digits before the decimal point.
const FULL: f64 = 999.5;

/// Unit names for one factor, smallest first, without plain bytes.
#[derive(Clone, Copy)]
struct SizeScale {
    factor: u64,
    names: [&'static str; 4],
}

impl SizeScale {
    /// Returns the scale selected by `--units`. The live view has no room for plain byte counts, so
    /// `bytes` uses binary units.
    fn chosen() -> Self {
        match units::chosen() {
            Units::Si => Self { factor: 1000, names: ["kB", "MB", "GB", "TB"] },
            Units::Binary | Units::Bytes => Self { factor: 1024, names: ["KiB", "MiB", "GiB", "TiB"] },
        }
    }
}

/// `12 B`, `4.5 KiB`, `126 MiB`, `28.90 GiB`: at most ten columns wide.
pub(crate) fn size(bytes: u64) -> String {
    written(bytes, SizeScale::chosen())
}

fn written(bytes: u64, SizeScale { factor, names: [kilo, mega, giga, tera] }: SizeScale) -> String {
    let in_unit = |power| ratio(bytes, factor.pow(power));
    let whole =
        |value: f64, unit| if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") };
    match bytes {
        bytes if bytes < factor => format!("{bytes} B"),
        _ if in_unit(1) < FULL => whole(in_unit(1), kilo),
        _ if in_unit(2) < FULL => whole(in_unit(2), mega),
        _ if in_unit(3) < FULL => format!("{:.2} {giga}", in_unit(3)),
        _ => format!("{:.2} {tera}", in_unit(4)),
    }
}

/// Formats like [`size`], with a sign for negative values.
pub(crate) fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", size(bytes.unsigned_abs()))
}

/// `28.90`, without the unit: for lines that show [`giga_unit`] elsewhere.
pub(crate) fn giga(bytes: u64) -> String {
    format!("{:.2}", ratio(bytes, SizeScale::chosen().factor.pow(3)))
}

/// Returns `GiB` or `GB`.
pub(crate) fn giga_unit() -> &'static str {
    SizeScale::chosen().names[2]
}

/// Formats like [`giga`], with a sign for negative values.
pub(crate) fn signed_giga(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", giga(bytes.unsigned_abs()))
}

/// `+126 MiB`, `-3.0 MiB`, `0`.
#[expect(clippy::cast_possible_truncation, reason = "growth beyond the largest number is shown as that")]
pub(crate) fn growth(bytes: f64) -> String {
    match bytes.round() as i64 {
        0 => "0".to_owned(),
        more @ 1.. => format!("+{}", signed(more)),
        less => signed(less),
    }
}

/// `42s`, `1m09s`, `2h05m`, `3d04h`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time beyond all years is shown as that")]
pub(crate) fn time(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Returns the seconds between two times in nanoseconds.
pub(crate) fn seconds(from_ns: u64, to_ns: u64) -> f64 {
    ratio(to_ns.saturating_sub(from_ns), 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn a_size_in_powers_of_1000_has_their_names() {
        let scale = SizeScale { factor: 1000, names: ["kB", "MB", "GB", "TB"] };
        let sizes = [999, 1024, 999_600, 31_030_000_000, 2_000_000_000_000].map(|bytes| written(bytes, scale));
        assert_eq!(sizes, ["999 B", "1.0 kB", "1.0 MB", "31.03 GB", "2.00 TB"]);
    }

    #[test]
    fn a_size_has_at_most_ten_columns_and_gib_have_two_decimals() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4608, "4.5 KiB"),
            (1_022_977, "999 KiB"),
            (1_048_576, "1.0 MiB"),
            (126 * MIB, "126 MiB"),
            (1000 * MIB, "0.98 GiB"),
            (31_030_000_000, "28.90 GiB"),
            (1000 * GIB, "0.98 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for shift in 0..=40 {
            assert!(size((1 << shift) * 999).len() <= 10, "{}", size((1 << shift) * 999));
        }
        assert_eq!([signed(-3 << 20), signed_giga(-(1 << 30)), giga(1 << 29)], ["-3.0 MiB", "-1.00", "0.50"]);
    }

    #[test]
    fn growth_has_its_sign_and_times_two_units() {
        assert_eq!([growth(132_120_576.0), growth(-1_048_576.0), growth(0.2)], ["+126 MiB", "-1.0 MiB", "0"]);
        let times = [0.0, 42.4, 69.0, 7_500.0, 273_600.0].map(time);
        assert_eq!(times, ["0s", "42s", "1m09s", "2h05m", "3d04h"]);
    }
}

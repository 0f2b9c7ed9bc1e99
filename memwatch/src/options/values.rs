//! Parsers for option values, each with an error message. The crate humantime accepts neither
//! numbers without a unit nor fractions, and in bytesize 1K is 1000.

use std::time::Duration;

use memwatch_core::features::simulate::model::Settings;
use memwatch_core::words::Tgid;

/// Minimum refresh interval. Shorter intervals cost more than they show.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum duration. Longer values are typing errors, and the limit avoids overflows of the clock.
const LONGEST: Duration = Duration::from_hours(366 * 24);
/// Units of a duration in seconds.
const TIME_UNITS: [(&str, f64); 6] =
    [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3_600.0), ("d", 86_400.0), ("", 1.0)];
/// Units of a size in bytes.
const SIZE_UNITS: [(&str, u64); 4] = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("", 1)];

/// Minimum size for recordings that keep the newest events.
pub(crate) const LEAST_RING_BYTES: u64 = 1 << 20;

/// Parses a process id.
///
/// # Errors
/// If the text is not a positive number that fits the kernel's type.
pub(crate) fn tgid(text: &str) -> Result<Tgid, String> {
    match text.parse::<i32>() {
        Ok(number) if number > 0 => Ok(Tgid(number.unsigned_abs())),
        _ => Err("a process id is a number from 1 on".to_owned()),
    }
}

/// Parses a GPU: an index, a UUID or its beginning, or a PCI bus id. Checks only the characters.
///
/// # Errors
/// If the text cannot be any of them.
pub(crate) fn gpu(text: &str) -> Result<String, String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/:.".contains(&byte));
    if text.is_empty() || text.starts_with('-') || !is_name {
        return Err("a GPU is an index such as 0 (0:1 for a MIG instance), a UUID such as GPU-8f3c… or its beginning, or a PCI bus id".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses a refresh interval.
///
/// # Errors
/// If the text is not a duration, or shorter than [`SHORTEST_INTERVAL`].
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = time(text)?;
    if interval < SHORTEST_INTERVAL {
        return Err("the shortest interval is 100ms".to_owned());
    }
    Ok(interval)
}

/// Parses the duration of a session.
///
/// # Errors
/// If the text is not a duration, or 0.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let duration = time(text)?;
    if duration.is_zero() {
        return Err("the duration must be greater than 0".to_owned());
    }
    Ok(duration)
}

/// Parses the size of the ring buffer: a power of two of at least 4 KiB.
///
/// # Errors
/// If the kernel would reject the size.
pub(crate) fn ring_bytes(text: &str) -> Result<u32, String> {
    match size(text).and_then(|bytes| u32::try_from(bytes).ok()) {
        Some(bytes) if bytes.is_power_of_two() && bytes >= 4096 => Ok(bytes),
        _ => Err("a size is a power of two from 4K to 2G, such as 16M".to_owned()),
    }
}

/// Parses a percentage.
///
/// # Errors
/// If the text is not a number above 0 and up to 100.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("a threshold is a number of percent above 0 and up to 100, such as 85".to_owned()),
    }
}

/// Parses the URL of a webhook.
///
/// # Errors
/// If the text is not a plain HTTP URL.
pub(crate) fn webhook(text: &str) -> Result<String, String> {
    if text.starts_with("https://") {
        return Err(format!("https is not supported; use curl: --exec \"curl --fail --data-binary @- '{text}'\""));
    }
    let authority = text.strip_prefix("http://").and_then(|rest| rest.split('/').next());
    match authority {
        Some(authority) if !authority.is_empty() && !text.contains(char::is_whitespace) => Ok(text.to_owned()),
        _ => Err("an address is http://host:port/path".to_owned()),
    }
}

/// Parses a size in bytes.
///
/// # Errors
/// If the text is not a size.
pub(crate) fn size_bytes(text: &str) -> Result<u64, String> {
    size(text).ok_or_else(|| "a size is a number of bytes, or of K, M or G (of 1024), such as 100M".to_owned())
}

/// Parses the maximum size of an agent's history in bytes.
///
/// # Errors
/// If the text is not a size, or below [`LEAST_RING_BYTES`].
pub(crate) fn history_bytes(text: &str) -> Result<u64, String> {
    let bytes = size_bytes(text)?;
    if bytes < LEAST_RING_BYTES {
        return Err("the minimum is 1M: the complete state has to fit several times".to_owned());
    }
    Ok(bytes)
}

/// Parses a value of `PYTORCH_CUDA_ALLOC_CONF`.
///
/// # Errors
/// If part of the value is not understood.
pub(crate) fn setting(text: &str) -> Result<Settings, String> {
    Settings::parse(text).map_err(|error| error.to_string())
}

fn size(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = SIZE_UNITS.iter().find(|(name, _)| *name == &text[number.len()..]);
    number.parse::<u64>().ok().zip(unit).and_then(|(number, (_, bytes))| number.checked_mul(*bytes))
}

fn time(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = TIME_UNITS.iter().find(|(name, _)| *name == &text[number.len()..]);
    let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = number.parse::<f64>().ok().filter(|_| is_plain).zip(unit).map(|(number, (_, unit))| number * unit);
    match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(time) if time <= LONGEST => Ok(time),
        Some(_) => Err("that is more than a year".to_owned()),
        None => Err("a time is a number with a unit: 500ms, 2s, 1m, 1h, 1d; without a unit it is seconds".to_owned()),
    }
}

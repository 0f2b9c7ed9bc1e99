//! Content negotiation: selects the exposition format from the `Accept` header (RFC 9110, 12.5.1).

use super::exposition::ExpositionFormat;

/// Maximum length of the header. A longer one is ignored.
const LINE_BYTES: usize = 4096;

/// Returns the scraper's preferred format. Defaults to the Prometheus text format if the header is
/// missing, matches neither format or weights both equally.
pub(crate) fn form(accept: Option<&str>) -> ExpositionFormat {
    let line = accept.filter(|line| line.len() <= LINE_BYTES).unwrap_or_default();
    let [plain, open] = [ExpositionFormat::Plain, ExpositionFormat::OpenMetrics].map(|form| weight(line, form));
    if open > plain { ExpositionFormat::OpenMetrics } else { ExpositionFormat::Plain }
}

/// Returns the weight of a format in thousandths. The most specific range that contains the format
/// decides.
fn weight(line: &str, form: ExpositionFormat) -> u32 {
    let ranges = line.split(',').filter_map(MediaRange::read);
    let of_form = ranges.filter_map(|range| Some((range.precision(form)?, range.weight)));
    of_form.max().map_or(0, |(_, weight)| weight)
}

/// One media range of the header, such as `text/plain;version=0.0.4;q=0.5`.
struct MediaRange<'a> {
    media: &'a str,
    version: Option<&'a str>,
    weight: u32,
}

impl<'a> MediaRange<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().filter(|media| !media.is_empty())?;
        let mut range = Self { media, version: None, weight: 1000 };
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "version" => range.version = Some(value),
                "q" => range.weight = thousandths(value)?,
                // Other parameters are ignored: `charset` is always UTF-8, and `escaping` only
                // concerns names that memwatch does not use.
                _ => {}
            }
        }
        Some(range)
    }

    /// Returns how specific the range is for a format; `None` if the range does not contain it.
    fn precision(&self, form: ExpositionFormat) -> Option<u8> {
        let (media, group, version) = match form {
            ExpositionFormat::Plain => ("text/plain", "text/*", "0.0.4"),
            ExpositionFormat::OpenMetrics => ("application/openmetrics-text", "application/*", "1.0.0"),
        };
        match self.version {
            _ if self.media == "*/*" => Some(0),
            _ if self.media.eq_ignore_ascii_case(group) => Some(1),
            _ if !self.media.eq_ignore_ascii_case(media) => None,
            None => Some(2),
            Some(wanted) => (wanted == version).then_some(3),
        }
    }
}

/// `1`, `0.5`, `0.123`.
fn thousandths(text: &str) -> Option<u32> {
    let weight: f64 = text.parse().ok()?;
    if !(0.0..=1.0).contains(&weight) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies between 0 and 1000")]
    Some((weight * 1000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header_selects_the_preferred_exposition_format() {
        use ExpositionFormat::{OpenMetrics, Plain};
        // The first three are the headers of Prometheus 2.42, 2.55 and 3.5.
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_2_55 = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                               text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (line, wanted) in [
            (prometheus_2, OpenMetrics),
            (prometheus_2_55, OpenMetrics),
            (prometheus_3, OpenMetrics),
            ("", Plain),
            ("*/*", Plain),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Plain),
            ("text/plain;version=0.0.4", Plain),
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; Version=\"1.0.0\"", OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", Plain),
            ("application/openmetrics-text;version=2.0.0;q=0.9,text/plain;q=0.1", Plain),
            ("application/openmetrics-text;q=0.4, text/plain;q=0.5", Plain),
            ("application/openmetrics-text;q=0, */*", Plain),
            ("text/plain;q=0.2, application/*;q=0.3", OpenMetrics),
            ("application/openmetrics-text;q=7", Plain),
            ("application/openmetrics-text;q=NaN", Plain),
            (";;;,,=;q", Plain),
        ] {
            assert_eq!(form(Some(line)), wanted, "{line}");
        }
        assert_eq!(form(None), Plain);
        assert_eq!(form(Some(&"application/openmetrics-text,".repeat(1000))), Plain);
    }
}

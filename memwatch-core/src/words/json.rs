//! Names and formats of view fields in JSON reports, where they differ from the view:
//! `#[serde(serialize_with = "json::since")]`.
//!
//! A view is serialised to JSON for two purposes. Another memwatch receives it unchanged, with
//! times in nanoseconds of the kernel's clock. Reports give these fields other names, and times as
//! dates or seconds. Each such field is therefore written as a newtype, and the newtype's name
//! contains the report format. All serialisers except that of reports ignore the newtype.

use serde::{Serialize, Serializer};

/// Prefix of these newtype names.
const MARK: &str = "report ";

/// Format of a field in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportForm {
    /// `CLOCK_BOOTTIME` nanoseconds as a date.
    Date,
    /// Nanoseconds as seconds.
    Seconds,
    /// Unchanged.
    Same,
    /// Omitted, or in a form that the report builds itself.
    Apart,
}

/// Returns a field's format in a report, and its name there if that does not follow from the view's
/// name; `None` for a field that is written unchanged.
///
/// `newtype` is the name of the newtype that the field is written as.
pub fn form(newtype: &'static str) -> Option<(ReportForm, Option<&'static str>)> {
    let (form, name) = newtype.strip_prefix(MARK)?.split_once(' ')?;
    let form = match form {
        "date" => ReportForm::Date,
        "seconds" => ReportForm::Seconds,
        "same" => ReportForm::Same,
        _ => ReportForm::Apart,
    };
    Some((form, Some(name).filter(|name| !name.is_empty())))
}

/// Derives the name of a date or of seconds from the view's: `ended_ns` becomes `ended`, and
/// `processor_ns` becomes `processor_seconds`.
pub fn name_of(field: &str, form: ReportForm) -> String {
    let name = match form {
        ReportForm::Seconds => field.strip_suffix("_ns").map(|name| format!("{name}_seconds")),
        ReportForm::Date => field.strip_suffix("_ns").map(str::to_owned),
        ReportForm::Same | ReportForm::Apart => None,
    };
    name.unwrap_or_else(|| field.to_owned())
}

macro_rules! forms {
    ($($field:ident = $form:literal $name:literal;)*) => {$(
        #[doc = concat!("Serialises a field that reports write as `", $form, "`, under the name `", $name, "` if one is given.\n\n# Errors\nThose of `serializer`.")]
        pub fn $field<S: Serializer>(value: &impl Serialize, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_newtype_struct(concat!("report ", $form, " ", $name), value)
        }
    )*};
}

forms! {
    apart = "apart" "";
    date = "date" "";
    attached_time = "date" "attached_time";
    begin_time = "date" "begin_time";
    end_time = "date" "end_time";
    peak_time = "date" "peak_time";
    peaks_since = "date" "peaks_since";
    sampled_time = "date" "sampled_time";
    since = "date" "since";
    start_time = "date" "start_time";
    until = "date" "until";
    seconds = "seconds" "";
    all_seconds = "seconds" "seconds";
    budget_seconds_per_second = "seconds" "budget_seconds_per_second";
    predicted_seconds_per_second = "seconds" "predicted_seconds_per_second";
    predicted_seconds_per_second_asked = "seconds" "predicted_seconds_per_second_asked";
    replaced_seconds = "seconds" "replaced_seconds";
    seconds_per_second = "seconds" "seconds_per_second";
    driver_allocated_bytes = "same" "driver_allocated_bytes";
    inner_tgid = "same" "inner_pid";
    largest_alloc_size = "same" "largest_alloc_size";
    level_before = "same" "level_before";
    objects = "same" "objects";
    tgid = "same" "pid";
    requested_bytes = "same" "requested_bytes";
    tensor_events_per_second = "same" "tensor_events_per_second";
    tensor_level = "same" "tensor_level";
    unexplained_bytes = "same" "unexplained_bytes";
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct View {
        #[serde(serialize_with = "tgid")]
        tgid: u32,
        #[serde(serialize_with = "since")]
        first_ns: Option<u64>,
    }

    #[test]
    fn fields_outside_reports_serialize_unchanged() {
        let view = View { tgid: 7, first_ns: Some(5) };
        assert_eq!(serde_json::to_string(&view).expect("plain values"), r#"{"tgid":7,"first_ns":5}"#);
        let bytes = postcard::to_allocvec(&view).expect("a vector takes any bytes");
        assert_eq!(postcard::from_bytes::<View>(&bytes), Ok(view));
    }

    #[test]
    fn a_name_of_a_newtype_says_how_a_report_has_it() {
        assert_eq!(form("report date since"), Some((ReportForm::Date, Some("since"))));
        assert_eq!(form("report seconds "), Some((ReportForm::Seconds, None)));
        assert_eq!(form("Tid"), None);
        assert_eq!(name_of("observed_since_ns", ReportForm::Date), "observed_since");
        assert_eq!(name_of("open_ns", ReportForm::Seconds), "open_seconds");
    }
}

//! How the JSON for people's programs has a field of a view, where that is not as it stands: `#[serde(serialize_with = "json::since")]`.
//!
//! A view goes two ways as JSON. To another memwatch it goes as it is, times in nanoseconds of the kernel's clock. In a report these fields have other
//! names, and times are dates or seconds. So each is written as a newtype whose name says which; all serializers but the reports' pass over that.

use serde::{Serialize, Serializer};

/// What all names of such newtypes begin with.
const MARK: &str = "report ";

/// How a report has a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `CLOCK_BOOTTIME` in nanoseconds, as a date.
    Date,
    /// Nanoseconds, in seconds.
    Seconds,
    /// As it is.
    Same,
    /// Not at all, or in a shape that the report makes.
    Apart,
}

/// A field's form in a report, and its name there where that does not follow from the view's; `None` for what stands there as it is.
///
/// `newtype` is the name of what it is written as.
pub fn form(newtype: &'static str) -> Option<(Form, Option<&'static str>)> {
    let (form, name) = newtype.strip_prefix(MARK)?.split_once(' ')?;
    let form = match form {
        "date" => Form::Date,
        "seconds" => Form::Seconds,
        "same" => Form::Same,
        _ => Form::Apart,
    };
    Some((form, Some(name).filter(|name| !name.is_empty())))
}

/// The name of a date or of seconds that follows from the view's: `ended_ns` is `ended`, and `processor_ns` is `processor_seconds`.
pub fn name_of(field: &str, form: Form) -> String {
    let name = match form {
        Form::Seconds => field.strip_suffix("_ns").map(|name| format!("{name}_seconds")),
        Form::Date => field.strip_suffix("_ns").map(str::to_owned),
        Form::Same | Form::Apart => None,
    };
    name.unwrap_or_else(|| field.to_owned())
}

macro_rules! forms {
    ($($field:ident = $form:literal $name:literal;)*) => {$(
        #[doc = concat!("A field that reports have as `", $form, "`, under the name `", $name, "` if there is one here.\n\n# Errors\nWhat `serializer` answers.")]
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
    fn all_but_reports_have_a_field_as_it_is() {
        let view = View { tgid: 7, first_ns: Some(5) };
        assert_eq!(serde_json::to_string(&view).expect("plain values"), r#"{"tgid":7,"first_ns":5}"#);
        let bytes = postcard::to_allocvec(&view).expect("a vector takes any bytes");
        assert_eq!(postcard::from_bytes::<View>(&bytes), Ok(view));
    }

    #[test]
    fn a_name_of_a_newtype_says_how_a_report_has_it() {
        assert_eq!(form("report date since"), Some((Form::Date, Some("since"))));
        assert_eq!(form("report seconds "), Some((Form::Seconds, None)));
        assert_eq!(form("Tid"), None);
        assert_eq!(name_of("observed_since_ns", Form::Date), "observed_since");
        assert_eq!(name_of("open_ns", Form::Seconds), "open_seconds");
    }
}

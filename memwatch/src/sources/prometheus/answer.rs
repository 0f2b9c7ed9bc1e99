//! Parses answers of a Prometheus server within limits: only the requested labels of each series,
//! and a maximum number of series. Does no I/O.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What to keep of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerRequest<'a> {
    /// Labels that form a row, in the requested order.
    pub(crate) labels: &'a [&'a str],
    /// Maximum number of series.
    pub(crate) most: usize,
}

/// One series of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PrometheusSeries {
    /// Values of the requested labels; empty if the series lacks a label.
    pub(crate) key: Vec<String>,
    /// Current value; never NaN.
    pub(crate) value: f64,
}

/// An answer to an expression.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PrometheusAnswer {
    /// Series with a value.
    pub(crate) series: Vec<PrometheusSeries>,
    /// Number of series beyond the maximum.
    pub(crate) left_out: u64,
}

/// A server's reply to an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    /// The expression was evaluated.
    Answer(PrometheusAnswer),
    /// The server refused it, with the reason.
    Refused(String),
}

/// Parses a response body.
///
/// # Errors
/// The body is no answer of Prometheus's API.
pub(super) fn read(body: &[u8], wanted: AnswerRequest) -> Result<Reply, serde_json::Error> {
    let mut text = serde_json::Deserializer::from_slice(body);
    let reply = Body(wanted).deserialize(&mut text)?;
    text.end()?;
    Ok(reply)
}

/// Parser of the whole body.
struct Body<'a>(AnswerRequest<'a>);
/// Parser of the field `data`.
struct DataSeed<'a>(AnswerRequest<'a>);
/// Parser of the field `result`.
struct Result_<'a>(AnswerRequest<'a>);
/// Parser of one series.
struct One<'a>(AnswerRequest<'a>);
/// Parser of a series's labels.
struct LabelsSeed<'a>(&'a [&'a str]);

/// Implements `DeserializeSeed` and `Visitor` for a parser.
macro_rules! seed {
    ($name:ident, $value:ty, $expected:literal, $method:ident, |$self:ident, $access:ident: $kind:ident| $read:expr) => {
        impl<'de> DeserializeSeed<'de> for $name<'_> {
            type Value = $value;

            fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<$value, D::Error> {
                from.deserialize_any(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_> {
            type Value = $value;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str($expected)
            }

            fn $method<A: $kind<'de>>($self, mut $access: A) -> Result<$value, A::Error> {
                $read
            }
        }
    };
}

seed!(Body, Reply, "an answer with its status", visit_map, |self, map: MapAccess| {
    let (mut status, mut error, mut answer) = (String::new(), String::new(), None);
    while let Some(key) = map.next_key::<String>()? {
        match key.as_str() {
            "status" => status = map.next_value()?,
            "error" => error = map.next_value()?,
            // A refusal may have data, too.
            "data" if status != "error" => answer = Some(map.next_value_seed(DataSeed(self.0))?),
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
    }
    match (status.as_str(), answer) {
        ("success", Some(answer)) => Ok(Reply::Answer(answer)),
        ("error", _) => Ok(Reply::Refused(error)),
        _ => Err(A::Error::custom("status or data is missing")),
    }
});

seed!(DataSeed, PrometheusAnswer, "data with a result", visit_map, |self, map: MapAccess| {
    let mut answer = None;
    while let Some(key) = map.next_key::<String>()? {
        match key.as_str() {
            "resultType" => {
                let kind: String = map.next_value()?;
                if kind != "vector" {
                    return Err(A::Error::custom(format_args!("the result is a {kind}, not a vector")));
                }
            }
            "result" => answer = Some(map.next_value_seed(Result_(self.0))?),
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
    }
    answer.ok_or_else(|| A::Error::missing_field("result"))
});

seed!(Result_, PrometheusAnswer, "a list of series", visit_seq, |self, list: SeqAccess| {
    let mut answer = PrometheusAnswer::default();
    while answer.series.len() < self.0.most {
        match list.next_element_seed(One(self.0))? {
            Some(one) => answer.series.extend(one),
            None => return Ok(answer),
        }
    }
    while list.next_element::<IgnoredAny>()?.is_some() {
        answer.left_out += 1;
    }
    Ok(answer)
});

seed!(One, Option<PrometheusSeries>, "a series", visit_map, |self, map: MapAccess| {
    let (mut key, mut value) = (vec![String::new(); self.0.labels.len()], None);
    while let Some(name) = map.next_key::<String>()? {
        match name.as_str() {
            "metric" => key = map.next_value_seed(LabelsSeed(self.0.labels))?,
            "value" => value = Some(map.next_value::<Value>()?.1),
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
    }
    let text = value.ok_or_else(|| A::Error::missing_field("value"))?;
    let value: f64 = text.parse().map_err(|_parse| A::Error::custom(format_args!("{text:?} is no number")))?;
    // Prometheus's NaN means no value.
    Ok((!value.is_nan()).then_some(PrometheusSeries { key, value }))
});

seed!(LabelsSeed, Vec<String>, "labels", visit_map, |self, map: MapAccess| {
    let mut key = vec![String::new(); self.0.len()];
    while let Some(name) = map.next_key::<String>()? {
        match self.0.iter().position(|wanted| *wanted == name) {
            Some(place) => key[place] = map.next_value()?,
            None => drop(map.next_value::<IgnoredAny>()?),
        }
    }
    Ok(key)
});

/// A time and a number as text.
#[derive(Deserialize)]
struct Value(#[allow(dead_code, reason = "all values of an answer are of one time")] IgnoredAny, String);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LABELS: [&str; 2] = ["instance", "gpu"];

    fn read_most(body: &str, most: usize) -> Result<Reply, String> {
        read(body.as_bytes(), AnswerRequest { labels: &LABELS, most }).map_err(|error| error.to_string())
    }

    fn series(key: [&str; 2], value: f64) -> PrometheusSeries {
        PrometheusSeries { key: key.map(str::to_owned).into(), value }
    }

    const VECTOR: &str = r#"{"status":"success","data":{"resultType":"vector","result":[
        {"metric":{"__name__":"up","gpu":"1","instance":"a:1"},"value":[1.5,"2.5e3"]},
        {"metric":{"instance":"b"},"value":[1.5,"NaN"]},
        {"metric":{"instance":"c"},"value":[1,"+Inf"],"more":[{}]}],"stats":{}},"warnings":["w"]}"#;

    #[test]
    fn prometheus_vector_is_read_by_labels_up_to_a_limit() {
        let all = vec![series(["a:1", "1"], 2_500.0), series(["c", ""], f64::INFINITY)];
        assert_eq!(read_most(VECTOR, 9), Ok(Reply::Answer(PrometheusAnswer { series: all.clone(), left_out: 0 })));
        let first = PrometheusAnswer { series: all[..1].to_vec(), left_out: 2 };
        assert_eq!(read_most(VECTOR, 1), Ok(Reply::Answer(first)));
    }

    #[test]
    fn prometheus_refusal_has_its_reason_and_malformed_bodies_fail() {
        let refused = r#"{"status":"error","errorType":"bad_data","error":"parse error","data":7}"#;
        assert_eq!(read_most(refused, 9), Ok(Reply::Refused("parse error".to_owned())));
        for (body, why) in [
            ("", "EOF"),
            ("<html>", "expected value"),
            ("[]", "an answer with its status"),
            ("{}", "status or data is missing"),
            (r#"{"status":"success"}"#, "status or data is missing"),
            (r#"{"status":"success","data":null}"#, "data with a result"),
            (r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#, "a matrix, not a vector"),
            (r#"{"status":"success","data":{"result":{"metric":1}}}"#, "a list of series"),
            (r#"{"status":"success","data":{"result":[{"metric":{"gpu":7},"value":[0,"1"]}]}}"#, "a string"),
            (r#"{"status":"success","data":{"result":[{"metric":{}}]}}"#, "value"),
            (r#"{"status":"success","data":{"result":[{"metric":{},"value":[0,"x"]}]}}"#, "no number"),
            (r#"{"status":"success","data":{"result":[]}} and more"#, "trailing"),
        ] {
            assert!(read_most(body, 9).expect_err("no answer").contains(why), "{body}: {:?}", read_most(body, 9));
        }
        let deep = format!("{}{}", r#"{"status":"success","data":"#, "[".repeat(1 << 20));
        assert!(read_most(&deep, 9).is_err());
        let ignored = format!(r#"{{"more":{}"#, "[".repeat(1 << 20));
        assert!(read_most(&ignored, 9).is_err());
    }

    proptest! {
        /// A corrupted answer, and every prefix of a valid one, yields an error or an answer within
        /// the limit.
        #[test]
        fn prometheus_answer_parser_handles_arbitrary_corruption(cut in 0..VECTOR.len(), at in 0..VECTOR.len(), byte: u8, most in 0..4_usize) {
            let wanted = AnswerRequest { labels: &LABELS, most };
            prop_assert!(read(&VECTOR.as_bytes()[..cut], wanted).is_err());
            let mut changed = VECTOR.as_bytes().to_vec();
            changed[at] = byte;
            if let Ok(Reply::Answer(answer)) = read(&changed, wanted) {
                prop_assert!(answer.series.len() <= most);
                prop_assert!(answer.series.iter().all(|one| one.key.len() == 2 && !one.value.is_nan()));
            }
        }
    }
}

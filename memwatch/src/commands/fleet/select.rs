//! Selection of series: `--match namespace=ml`.

use std::fmt::Write as _;

/// Labels that only workload series have.
pub(crate) const WORKLOAD: [&str; 6] = ["workload_kind", "namespace", "pod", "container", "slurm_job", "unit"];

/// A condition on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matcher {
    label: String,
    /// `=`, `!=`, `=~` or `!~`.
    operator: &'static str,
    value: String,
}

impl Matcher {
    /// Parses `namespace=ml`, `pod=~train-.*` and the like; the value may be quoted.
    ///
    /// # Errors
    /// A sentence, if the text is not a matcher.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text}: a matcher is LABEL=VALUE, or with !=, =~ or !~ instead, as in namespace=ml");
        let end = text.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).ok_or_else(wrong)?;
        let (label, rest) = text.split_at(end);
        if label.is_empty() || label.starts_with(|letter: char| letter.is_ascii_digit()) || label.starts_with("__") {
            return Err(wrong());
        }
        let mut operators = ["=~", "!~", "!=", "="].into_iter();
        let operator = operators.find(|operator| rest.starts_with(operator)).ok_or_else(wrong)?;
        let value = rest[operator.len()..].trim();
        let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        Ok(Self { label: label.to_owned(), operator, value: quoted.unwrap_or(value).to_owned() })
    }

    /// Makes a condition for exactly this value.
    pub(crate) fn is(label: &str, value: &str) -> Self {
        Self { label: label.to_owned(), operator: "=", value: value.to_owned() }
    }

    fn is_of_workloads(&self) -> bool {
        WORKLOAD.contains(&self.label.as_str())
    }
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Matchers(pub(crate) Vec<Matcher>);

impl Matchers {
    /// Returns the conditions on a series, separated by commas. If the series is not a workload's,
    /// leaves out conditions on workload labels.
    pub(crate) fn text(&self, of_workloads: bool) -> String {
        let mut text = String::new();
        for Matcher { label, operator, value } in self.applying(of_workloads) {
            let comma = if text.is_empty() { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}{label}{operator}\"{}\"", escaped(value));
        }
        text
    }

    /// Whether these conditions can be applied to a series with only these labels.
    pub(crate) fn are_on(&self, labels: &[&str], of_workloads: bool) -> bool {
        self.applying(of_workloads).all(|matcher| labels.contains(&matcher.label.as_str()))
    }

    fn applying(&self, of_workloads: bool) -> impl Iterator<Item = &Matcher> {
        self.0.iter().filter(move |matcher| of_workloads || !matcher.is_of_workloads())
    }
}

/// Escapes a text for a quoted PromQL string.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\\' | '"' => escaped.extend(['\\', letter]),
            // `<` marks placeholders in expressions.
            letter if letter.is_control() || letter == '<' => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matcher_is_a_label_an_operator_and_a_value() {
        let matchers = ["namespace=ml", "pod=~\"a|b\"", "cluster!=x", "unit!~.*\\.scope", "gpu="];
        let matchers = Matchers(matchers.iter().map(|text| Matcher::parse(text).expect(text)).collect());
        let all = r#"namespace="ml",pod=~"a|b",cluster!="x",unit!~".*\\.scope",gpu="""#;
        assert_eq!((matchers.text(true).as_str(), matchers.text(false).as_str()), (all, r#"cluster!="x",gpu="""#));
        for text in ["", "a", "=x", "1a=x", "a b=x", "a>1", "__name__=up", "a}or{b=c"] {
            assert!(Matcher::parse(text).expect_err(text).contains("LABEL=VALUE"), "{text}");
        }
    }

    #[test]
    fn fleet_matcher_escapes_hostile_values() {
        let hostile = Matchers(vec![Matcher::is("pod", "a\"} or up{x=\"\\\n\u{1b}<w>")]);
        assert_eq!(hostile.text(true), r#"pod="a\"} or up{x=\"\\\u000a\u001b\u003cw>""#);
    }

    #[test]
    fn a_recorded_series_is_asked_where_it_has_the_labels() {
        let both = Matchers(vec![Matcher::is("instance", "a"), Matcher::is("pod", "b")]);
        assert!(both.are_on(&["instance", "pod"], true) && both.are_on(&["instance"], false));
        assert!(!both.are_on(&["instance"], true) && !both.are_on(&["pod"], false));
    }
}

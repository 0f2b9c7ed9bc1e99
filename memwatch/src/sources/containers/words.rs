//! Limits untrusted strings before they are stored. Escaping terminal control characters is left to
//! the output.

use std::collections::BTreeMap;

use memwatch_core::owner::PodNames;

/// Maximum length of a stored name in bytes. Kubernetes allows 253 (RFC 1123); image names with
/// registry and digest are longer.
const NAME_BYTES: usize = 512;

/// Truncates an untrusted name to the maximum length; `None` if it is empty.
pub(super) fn name(text: &str) -> Option<String> {
    let end = text.floor_char_boundary(NAME_BYTES);
    (end > 0).then(|| text[..end].to_owned())
}

/// Reads the pod from the labels that the kubelet sets on every container:
/// `pkg/kubelet/types/labels.go` of Kubernetes.
pub(super) fn pod_of<'a>(label: impl Fn(&str) -> Option<&'a str>) -> Option<PodNames> {
    let label = |key: &str| name(label(key)?);
    Some(PodNames {
        uid: label("io.kubernetes.pod.uid").unwrap_or_default(),
        namespace: label("io.kubernetes.pod.namespace")?,
        name: label("io.kubernetes.pod.name")?,
        container: label("io.kubernetes.container.name"),
    })
}

/// Reads the pod from a map of labels.
pub(super) fn pod_in(labels: &BTreeMap<String, String>) -> Option<PodNames> {
    pod_of(|key| labels.get(key).map(String::as_str))
}

/// Whether an id is safe in a request path: it contains no character with a meaning there.
pub(super) fn is_plain(id: &str) -> bool {
    (12..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_between_two_letters_and_an_empty_one_is_none() {
        assert_eq!(name(""), None);
        assert_eq!(name("train"), Some("train".to_owned()));
        let long = name(&"ü".repeat(1000)).unwrap();
        assert_eq!(long.len(), NAME_BYTES);
        assert!(name(&format!("a{}", "ü".repeat(1000))).unwrap().len() < NAME_BYTES);
    }

    #[test]
    fn a_pod_needs_its_name_and_its_namespace() {
        let mut labels: BTreeMap<String, String> = BTreeMap::new();
        labels.insert("io.kubernetes.pod.name".to_owned(), "train-0".to_owned());
        assert_eq!(pod_in(&labels), None);
        labels.insert("io.kubernetes.pod.namespace".to_owned(), "ml".to_owned());
        let pod = pod_in(&labels).unwrap();
        assert_eq!((pod.name.as_str(), pod.namespace.as_str(), pod.container), ("train-0", "ml", None));
    }

    #[test]
    fn ids_with_slashes_questions_or_nothing_are_not_asked_for() {
        assert!(is_plain(&"0f".repeat(32)) && is_plain("s3_web-01-abcdef"));
        for id in ["", "web", "../../../../etc", "0123456789ab?all=1", "0123456789ab\r\nX: y", "ümlaut-in-a-name"] {
            assert!(!is_plain(id), "{id}");
        }
        assert!(!is_plain(&"a".repeat(129)));
    }
}

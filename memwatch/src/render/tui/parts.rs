//! Splits used memory that no driver call explains.

/// Splits bytes that no driver call explains into those allocated before the attach and the
/// unattributed rest.
///
/// If the two readings are inconsistent, all bytes are unattributed.
pub(crate) fn beyond_driver(unexplained: i64, before_attach: Option<u64>) -> (Option<u64>, i64) {
    let before = before_attach.and_then(|before| i64::try_from(before).ok());
    match before.filter(|before| (1..=unexplained).contains(before)) {
        Some(before) => (before_attach, unexplained - before),
        None => (None, unexplained),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preexisting_bytes_are_excluded_from_unattributed_bytes() {
        assert_eq!(beyond_driver(10, Some(4)), (Some(4), 6));
        assert_eq!(beyond_driver(10, Some(10)), (Some(10), 0));
        assert_eq!(beyond_driver(10, None), (None, 10));
        assert_eq!(beyond_driver(10, Some(0)), (None, 10));
        assert_eq!(beyond_driver(10, Some(11)), (None, 10), "readings of different moments");
        assert_eq!(beyond_driver(-3, Some(4)), (None, -3));
    }
}

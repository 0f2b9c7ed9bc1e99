//! Meanings of the driver's error codes (`CUresult`).

/// Codes of the CUDA driver API and their meanings, in ascending order.
const NAMES: [(i32, &str); 22] = [
    (1, "invalid value"),
    (2, "out of memory"),
    (3, "driver not initialized"),
    (4, "driver shutting down"),
    (46, "device unavailable"),
    (100, "no device"),
    (101, "invalid device"),
    (201, "invalid context"),
    (205, "mapping failed"),
    (206, "unmapping failed"),
    (208, "already mapped"),
    (304, "operating system call failed"),
    (400, "invalid handle"),
    (700, "illegal address"),
    (709, "context destroyed"),
    (712, "memory already registered"),
    (713, "memory not registered"),
    (719, "kernel failed"),
    (800, "not permitted"),
    (801, "not supported"),
    (900, "not possible in stream capture"),
    (999, "unknown error"),
];

/// Returns the meaning of a status; `None` for codes unrelated to memory.
pub(crate) fn name(status: i32) -> Option<&'static str> {
    let position = NAMES.binary_search_by_key(&status, |(number, _)| *number).ok()?;
    Some(NAMES[position].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order_so_that_every_number_is_found() {
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(name(2), Some("out of memory"));
        assert_eq!(name(12_345), None);
    }
}

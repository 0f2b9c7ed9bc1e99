//! HTTP headers for a server, from the command line or a file.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use hyper::header::{HeaderName, HeaderValue};

/// Maximum size of a header file in bytes.
const LONGEST_FILE_BYTES: u64 = 64 << 10;

/// Parses a header from the command line.
///
/// # Errors
/// If the text is not a header.
pub(crate) fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    parsed(text).ok_or_else(|| format!("{text}: a header is 'Name: value'"))
}

fn parsed(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(':')?;
    let mut value = HeaderValue::from_str(value.trim()).ok()?;
    value.set_sensitive(true);
    Some((HeaderName::from_bytes(name.trim().as_bytes()).ok()?, value))
}

/// Reads the headers of a file: one per line, ignoring empty lines and comments. `option` is the
/// option that named the file.
///
/// # Errors
/// If the file cannot be read, or a line is not a header. Messages never contain the line, because
/// headers hold secrets.
pub(crate) fn of_file(file: &Path, option: &str) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let name = file.display();
    let fails = |error: std::io::Error| format!("{option} {name}: {error}");
    let mut text = String::new();
    // The file may be a pipe that delivers a secret, so its size is not known in advance.
    let read = File::open(file).and_then(|file| file.take(LONGEST_FILE_BYTES + 1).read_to_string(&mut text));
    if read.map_err(fails)? as u64 > LONGEST_FILE_BYTES {
        return Err(format!(
            "{option} {name}: the file is larger than {} KiB, too large for a list of headers",
            LONGEST_FILE_BYTES >> 10
        ));
    }
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let one = |(number, line): (u32, &str)| {
        parsed(line).ok_or_else(|| format!("{option} {name}: line {number} is not as in 'Authorization: Bearer TOKEN'"))
    };
    lines.map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_a_name_and_a_value() {
        let (name, value) = header("X-Scope-OrgID: a:7 ").expect("a header");
        assert_eq!((name.as_str(), value.as_bytes()), ("x-scope-orgid", &b"a:7"[..]));
        assert!(header("nothing").is_err() && header("a b: c").is_err() && header("a: b\u{1}c").is_err());
    }

    #[test]
    fn a_file_of_headers_keeps_its_secrets() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "# ours\n\nAuthorization: Bearer x:y\nX-Scope-OrgID: 7\n").expect("it is written");
        let headers = of_file(file.path(), "--header-file").expect("headers");
        let names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["authorization", "x-scope-orgid"]);
        assert!(!format!("{headers:?}").contains("Bearer"), "{headers:?}");
        std::fs::write(file.path(), "x: y\nsecret token\n").expect("it is written");
        let why = of_file(file.path(), "--header-file").expect_err("no header");
        assert!(why.contains("line 2") && !why.contains("secret"), "{why}");
        assert!(of_file(Path::new("/nowhere"), "--header-file").expect_err("no file").contains("/nowhere"));
    }
}

//! Rust source with its comments and literals blanked, so that a rule sees code only.

/// What a stretch of source is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Hidden,
}

/// Replaces every comment, string and character literal by spaces; line breaks and all positions stay.
///
/// Positions are bytes: a hidden letter becomes as many spaces as it has bytes.
pub(super) fn mask(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut masked = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let (length, part) = part_at(bytes, position);
        let stretch = &bytes[position..(position + length).min(bytes.len())];
        match part {
            Part::Code => masked.extend_from_slice(stretch),
            Part::Hidden => masked.extend(stretch.iter().map(|&byte| if byte == b'\n' { byte } else { b' ' })),
        }
        position += stretch.len();
    }
    String::from_utf8(masked).expect("only whole characters are replaced, by ASCII")
}

/// The length and kind of the part that starts here; code is taken one word or one byte at a time.
fn part_at(bytes: &[u8], position: usize) -> (usize, Part) {
    let rest = &bytes[position..];
    if rest.starts_with(b"//") {
        return (line_length(rest), Part::Hidden);
    }
    if rest.starts_with(b"/*") {
        return (block_comment_length(rest), Part::Hidden);
    }
    if let Some(length) = string_length(rest) {
        return (length, Part::Hidden);
    }
    if rest[0] == b'\'' {
        return char_length(rest).map_or((1, Part::Code), |length| (length, Part::Hidden));
    }
    // A whole word at once: the `r` of `for"` is no raw string's prefix.
    let word = rest.iter().take_while(|byte| is_word(**byte)).count();
    (word.max(1), Part::Code)
}

fn line_length(rest: &[u8]) -> usize {
    rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
}

fn block_comment_length(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut position = 0;
    while position < rest.len() {
        if rest[position..].starts_with(b"/*") {
            depth += 1;
            position += 2;
        } else if rest[position..].starts_with(b"*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += 1;
        }
    }
    rest.len()
}

/// The length of a string literal of any kind, prefix included.
fn string_length(rest: &[u8]) -> Option<usize> {
    let prefix = rest.iter().take_while(|byte| matches!(byte, b'b' | b'c' | b'r')).count();
    if prefix > 2 {
        return None;
    }
    let is_raw = rest[..prefix].contains(&b'r');
    let hashes = rest[prefix..].iter().take_while(|&&byte| byte == b'#').count();
    let start = prefix + hashes;
    if rest.get(start) != Some(&b'"') || (hashes > 0 && !is_raw) {
        return None;
    }
    if is_raw {
        let end = [b"\"".as_slice(), &rest[prefix..start]].concat();
        return Some(length_until(rest, start + 1, &end));
    }
    let mut position = start + 1;
    while position < rest.len() {
        match rest[position] {
            b'\\' => position += 2,
            b'"' => return Some(position + 1),
            _ => position += 1,
        }
    }
    Some(rest.len())
}

fn length_until(rest: &[u8], from: usize, end: &[u8]) -> usize {
    rest[from..]
        .windows(end.len())
        .position(|window| window == end)
        .map_or(rest.len(), |position| from + position + end.len())
}

/// The length of a character literal, or nothing where the quote starts a lifetime.
fn char_length(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        return Some(length_until(rest, 3, b"'"));
    }
    let letter = first_char_bytes(rest.get(1..)?);
    (rest.get(1 + letter) == Some(&b'\'')).then_some(letter + 2)
}

fn first_char_bytes(rest: &[u8]) -> usize {
    1 + rest.iter().skip(1).take_while(|&&byte| byte & 0xC0 == 0x80).count()
}

/// Whether a byte may stand in an identifier.
pub(super) fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_become_spaces() {
        for (source, want) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("pid \" x") + 1"#, "f(          ) + 1"),
            (r##"f(r#"a " b"#, b"c", cr"d")"##, "f(          ,     ,      )"),
            (r"x('a', '\'', '\u{41}')", "x(   ,     ,         )"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("'\u{e9}'; x", "    ; x"),
        ] {
            assert_eq!(mask(source), want, "{source}");
        }
    }

    #[test]
    fn line_breaks_inside_literals_stay() {
        assert_eq!(mask("\"a\nb\"\nc").matches('\n').count(), 2);
    }
}

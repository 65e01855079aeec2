//! Numbers in outputs: the last one is the answer.

/// The last number of a text, written so that equal numbers are equal texts: without separators of
/// thousands, zeros that say nothing, or a plus.
pub(super) fn last(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut found = None;
    let mut at = 0;
    while at < bytes.len() {
        let after_digit = at > 0 && digit(bytes, at - 1);
        let part = bytes[at] == b'.' && digit(bytes, at + 1) && !after_digit;
        if digit(bytes, at) || part {
            let end = end(bytes, at);
            found = Some((at, end));
            at = end;
        } else {
            at += 1;
        }
    }
    let (start, end) = found?;
    Some(plain(&text[start..end], is_negative(&text[..start])))
}

fn digit(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(u8::is_ascii_digit)
}

/// Where the number that begins here ends.
fn end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    let mut has_point = false;
    loop {
        let thousands = bytes.get(at) == Some(&b',')
            && !has_point
            && (1..=3).all(|ahead| digit(bytes, at + ahead));
        let point = bytes.get(at) == Some(&b'.') && !has_point && digit(bytes, at + 1);
        if thousands && !digit(bytes, at + 4) {
            at += 4;
        } else if point {
            has_point = true;
            at += 2;
        } else if digit(bytes, at) {
            at += 1;
        } else {
            return at;
        }
    }
}

/// Whether a minus stands before a number, and not one that takes it from something.
fn is_negative(before: &str) -> bool {
    let before = before.strip_suffix('$').unwrap_or(before);
    let Some(rest) = before.strip_suffix(['-', '−']) else { return false };
    !rest.ends_with(|last: char| last.is_alphanumeric() || last == ')')
}

fn plain(number: &str, negative: bool) -> String {
    let number = number.replace(',', "");
    let (whole, part) = number.split_once('.').unwrap_or((&number, ""));
    let (whole, part) = (whole.trim_start_matches('0'), part.trim_end_matches('0'));
    let sign = if negative && !(whole.is_empty() && part.is_empty()) { "-" } else { "" };
    let whole = if whole.is_empty() { "0" } else { whole };
    let point = if part.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts_however_it_is_written() {
        for (text, number) in [
            ("She makes 9 * 2 = $18 every day.", "18"),
            ("#### 1,450,000", "1450000"),
            ("The answer is **$1,200.50**.", "1200.5"),
            ("It is 18.00.", "18"),
            ("007", "7"),
            ("That leaves -5 degrees.", "-5"),
            ("He owes $-3", "-3"),
            ("Thus −4.", "-4"),
            ("It is 16-3", "3"),
            ("(2)-1", "1"),
            ("-0", "0"),
            ("one of 1,2,3", "3"),
            ("12,3456", "3456"),
            ("version 1.2.3", "3"),
            ("half: .50", "0.5"),
            ("42", "42"),
        ] {
            assert_eq!(last(text).as_deref(), Some(number), "{text}");
        }
        for text in ["", "none", "a. b, c - d $"] {
            assert_eq!(last(text), None, "{text}");
        }
    }
}

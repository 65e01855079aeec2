//! A least indentation: a line that is indented less ends a generation.
//!
//! Code that is filled into a block belongs to it as long as its lines are indented as the block is.
//! Stop strings, end tokens and lengths are not decided here.

/// Lets text through until a line that is indented too little.
///
/// The first line continues one that is there already, so it is not looked at. Of a line that is
/// indented too little, its white space is let through and nothing else; an empty line counts as
/// one that is not indented. So it is in llama.cpp (`n_indent`).
///
/// ```
/// use forerun_decode::IndentFilter;
///
/// let mut filter = IndentFilter::new(4);
/// let mut text = String::new();
/// assert!(!filter.push("return a +", &mut text));
/// assert!(!filter.push(" b\n    c()\n  ", &mut text));
/// assert!(filter.push("d()\n", &mut text));
/// assert_eq!(text, "return a + b\n    c()\n  ");
/// ```
#[derive(Debug, Clone, Default)]
pub struct IndentFilter {
    /// Least white space at the beginning of a line.
    least: usize,
    /// White space of the line so far, while there is nothing else in it.
    indent: Option<usize>,
    /// Whether such a line came.
    hit: bool,
}

impl IndentFilter {
    /// Lines have at least so many spaces or tabs at their beginning; with 0, all text is let through.
    pub fn new(least: usize) -> Self {
        Self { least, indent: None, hit: false }
    }

    /// Takes text, and appends to `out` what is let through. Returns whether a line was indented too
    /// little; from then on all text is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.least == 0 {
            out.push_str(text);
            return false;
        }
        for letter in text.chars() {
            if self.hit {
                break;
            }
            match (letter, self.indent) {
                (' ' | '\t', Some(indent)) => self.indent = Some(indent + 1),
                (_, Some(indent)) if indent < self.least => {
                    self.hit = true;
                    break;
                }
                ('\n', _) => self.indent = Some(0),
                _ => self.indent = None,
            }
            out.push(letter);
        }
        self.hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(least: usize, text: &str, chunk_len: usize) -> (String, bool) {
        let (mut filter, mut out, mut hit) = (IndentFilter::new(least), String::new(), false);
        for chunk in text.as_bytes().chunks(chunk_len) {
            hit = filter.push(std::str::from_utf8(chunk).unwrap(), &mut out);
        }
        (out, hit)
    }

    #[test]
    fn text_ends_at_a_line_that_is_indented_too_little_however_it_is_split() {
        for (least, text, through, hit) in [
            (0, "a\nb", "a\nb", false),
            (2, "a", "a", false),
            (2, "a\n  b\n\t\tc\n   d", "a\n  b\n\t\tc\n   d", false),
            (2, "a\n  b\n c", "a\n  b\n ", true),
            (2, "a\n  b\nc\n  d", "a\n  b\n", true),
            (2, "a\n\n  b", "a\n", true),
            // What comes after white space is not known yet.
            (2, "a\n ", "a\n ", false),
        ] {
            for chunk_len in 1..=text.len() {
                assert_eq!(cut(least, text, chunk_len), (through.to_owned(), hit), "{text:?}");
            }
        }
    }
}

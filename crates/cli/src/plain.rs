//! Errors of libraries in words that do not speak of their insides.

use std::io;

/// What libraries say, and what is meant.
const MEANT: &[(&str, &str)] = &[
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid digit found in string", "expected a whole number, 0 or more"),
    ("invalid float literal", "expected a number"),
    ("cannot parse integer from empty string", "expected a number"),
    ("cannot parse float from empty string", "expected a number"),
    ("stream did not contain valid UTF-8", "it is not text in UTF-8"),
    ("No such file or directory", "there is no such file"),
    ("Is a directory", "it is a directory"),
    ("Permission denied", "this is not permitted"),
];

/// A message without numbers of the system and words of the standard library.
pub(crate) fn plain(message: &str) -> String {
    let mut text = message.to_owned();
    for (said, meant) in MEANT {
        text = text.replace(said, meant);
    }
    while let Some(start) = text.find(" (os error ") {
        let Some(len) = text[start..].find(')') else { break };
        text.replace_range(start..=start + len, "");
    }
    // A range, as in "9 is not in 0..=5".
    if let Some((before, range)) = text.split_once(" is not in ")
        && let Some((low, rest)) = range.split_once("..=")
    {
        text = format!("{before}; expected {low} to {rest}");
    }
    text
}

/// Whether nobody is left to read the text.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
#[path = "../tests/line/plain.rs"]
mod tests;

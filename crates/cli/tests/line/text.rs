//! Escapes in prompts and stop strings.

use super::*;

#[test]
fn escapes_are_read_where_asked_and_others_stay() {
    let text = r"a\n\t\\n\'\q\".to_owned();
    assert_eq!(unescape(true, text.clone()), "a\n\t\\n'\\q\\");
    assert_eq!(unescape(false, text.clone()), text);
}

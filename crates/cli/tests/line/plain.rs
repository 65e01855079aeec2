//! Errors of libraries in our words.

use super::*;

#[test]
fn errors_do_not_speak_of_types_and_numbers_of_the_system() {
    for (said, expected) in [
        (
            "cannot read x: No such file or directory (os error 2)",
            "cannot read x: there is no such file",
        ),
        (
            "'--predict <N>': invalid digit found in string",
            "'--predict <N>': expected a whole number, 0 or more",
        ),
        ("'-c <N>': 9 is not in 0..=5\n\nSee", "'-c <N>': 9; expected 0 to 5\n\nSee"),
        ("all is well", "all is well"),
    ] {
        assert_eq!(plain(said), expected);
    }
}

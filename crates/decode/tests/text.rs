//! Bytes to text: whatever the split, what the standard library gives for the whole.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use forerun_decode::Detokenizer;
use proptest::prelude::*;

/// Bytes that are often the beginning, the middle or the end of a character, or nothing at all.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![
            b'a', 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xe0, 0xe2, 0xed, 0xef, 0xf0,
            0xf1, 0xf4, 0xf5, 0xff,
        ]),
    ];
    let part = prop_oneof![
        prop::collection::vec(byte, 0..4),
        prop::sample::select(vec!["é", "€", "😀", "\u{fffd}", "\u{10ffff}"])
            .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

/// The longest text that every continuation of the bytes begins with: all but an incomplete
/// character at the end.
fn settled(bytes: &[u8]) -> String {
    let held = (1..=3.min(bytes.len())).find(|&held| {
        let tail = &bytes[bytes.len() - held..];
        std::str::from_utf8(tail)
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    });
    String::from_utf8_lossy(&bytes[..bytes.len() - held.unwrap_or(0)]).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_split_gives_the_text_of_the_whole(
        bytes in bytes(),
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut cuts: Vec<usize> = cuts.drain(..).map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(bytes.len());
        let mut detokenizer = Detokenizer::new();
        let (mut text, mut from) = (String::new(), 0);
        for to in cuts {
            detokenizer.push(&bytes[from..to], &mut text);
            prop_assert_eq!(&text, &settled(&bytes[..to]), "after {:x?}", &bytes[..to]);
            from = to;
        }
        detokenizer.finish(&mut text);
        prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn every_pair_of_bytes_before_a_third_gives_the_text_of_the_whole() {
    for first in 0..=255 {
        for second in 0..=255 {
            for third in [b'a', 0x80, 0xbf, 0xc3, 0xf0] {
                let bytes = [first, second, third];
                let (mut detokenizer, mut text) = (Detokenizer::new(), String::new());
                for byte in bytes {
                    detokenizer.push(&[byte], &mut text);
                }
                detokenizer.finish(&mut text);
                assert_eq!(text, String::from_utf8_lossy(&bytes), "{bytes:x?}");
            }
        }
    }
}

#[test]
fn a_finished_text_leaves_nothing_behind() {
    let (mut detokenizer, mut text) = (Detokenizer::new(), String::new());
    detokenizer.push(b"\xf0\x9f\x98", &mut text);
    detokenizer.finish(&mut text);
    detokenizer.push(b"\x80b", &mut text);
    detokenizer.finish(&mut text);
    assert_eq!(text, "\u{fffd}\u{fffd}b");
}

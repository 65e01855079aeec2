//! Stop strings: a filter that sees each byte once, against a search of the whole text.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use forerun_decode::{StopError, StopFilter, StopStrings};
use proptest::prelude::*;

/// Start and end of the stop in a text: the first to end, and of those the first to start.
fn search(stops: &[String], text: &str) -> Option<(usize, usize)> {
    (1..=text.len()).find_map(|end| {
        let ending = stops.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        ending.map(|stop| (end - stop.len(), end)).min()
    })
}

/// How many bytes at the end of a text without a stop are part of one in some continuation.
fn open(stops: &[String], text: &str) -> usize {
    let begun = |stop: &String| {
        let (text, stop) = (text.to_owned(), stop.clone());
        (1..stop.len().min(text.len() + 1))
            .filter(move |&len| stop.is_char_boundary(len) && text.ends_with(&stop[..len]))
    };
    let opens = |stop: &String, len: usize| {
        let whole = text.to_owned() + &stop[len..];
        search(stops, &whole).is_some_and(|(start, _)| start == text.len() - len)
    };
    stops
        .iter()
        .flat_map(|stop| begun(stop).map(move |len| (stop, len)))
        .filter(|&(stop, len)| opens(stop, len))
        .map(|(_, len)| len)
        .max()
        .unwrap_or(0)
}

/// Streams the chunks, and compares with a search of all that has come after each of them.
fn check(stops: &[String], chunks: &[String]) -> Result<(), TestCaseError> {
    let mut filter = StopFilter::new(&StopStrings::new(stops.to_vec()).expect("short, and few"));
    let (mut whole, mut out) = (String::new(), String::new());
    for chunk in chunks {
        whole += chunk;
        let hit = filter.push(chunk, &mut out).map(str::to_owned);
        if let Some((start, end)) = search(stops, &whole) {
            prop_assert_eq!(hit.as_deref(), Some(&whole[start..end]));
            prop_assert_eq!(&out, &whole[..start]);
        } else {
            prop_assert_eq!(hit, None);
            prop_assert_eq!(&out, &whole[..whole.len() - open(stops, &whole)]);
        }
    }
    let hit = search(stops, &whole);
    prop_assert_eq!(filter.hit(), hit.map(|(start, end)| &whole[start..end]));
    filter.finish(&mut out);
    prop_assert_eq!(&out, &whole[..hit.map_or(whole.len(), |(start, _)| start)]);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_stops_in_any_chunks_are_found_as_by_a_search(
        stops in prop::collection::vec("[ab]{1,5}", 0..4),
        chunks in prop::collection::vec("[abc]{0,4}", 0..12),
    ) {
        check(&stops, &chunks)?;
    }

    #[test]
    fn characters_of_several_bytes_stay_whole(
        // The first two share their first byte, the next two their first three.
        stops in prop::collection::vec("[éè😀😁a]{1,3}", 0..4),
        chunks in prop::collection::vec("[éè😀😁a]{0,3}", 0..10),
    ) {
        check(&stops, &chunks)?;
    }
}

#[test]
fn every_short_text_is_stopped_as_by_a_search() {
    let stops = ["ab", "b", "aab", "abab", "ba", "aaa", "aabaa"];
    for subset in 0..1 << stops.len() {
        let chosen = stops.iter().enumerate().filter(|(index, _)| subset >> index & 1 == 1);
        let chosen: Vec<String> = chosen.map(|(_, stop)| (*stop).to_owned()).collect();
        for bits in 0..1 << 8 {
            let letter = |index: usize| if bits >> index & 1 == 1 { "a" } else { "b" };
            let text: Vec<String> = (0..8).map(|index| letter(index).to_owned()).collect();
            check(&chosen, &text).unwrap();
        }
    }
}

#[test]
fn only_the_beginning_of_a_stop_is_held_back() {
    let mut filter = StopFilter::new(&StopStrings::new(["abab", "xby", "b!"]).unwrap());
    let mut out = String::new();
    let mut after = |text| {
        filter.push(text, &mut out);
        out.clone()
    };
    assert_eq!(after("aba"), "");
    assert_eq!(after("c"), "abac");
    assert_eq!(after("xb"), "abac");
    assert_eq!(after("z"), "abacxbz");

    // "b" ends before "xby" can, so nothing waits for a "y".
    let mut filter = StopFilter::new(&StopStrings::new(["xby", "b"]).unwrap());
    let mut out = String::new();
    assert_eq!(filter.push("x", &mut out), None);
    assert_eq!(out, "x");
    assert_eq!(filter.push("by", &mut out), Some("b"));
    assert_eq!(out, "x");
}

#[test]
fn after_a_stop_nothing_comes() {
    let mut filter = StopFilter::new(&StopStrings::new(["."]).unwrap());
    let mut out = String::new();
    assert_eq!(filter.push("One. Two. ", &mut out), Some("."));
    assert_eq!(filter.push("Three.", &mut out), Some("."));
    filter.finish(&mut out);
    assert_eq!(filter.hit(), Some("."));
    assert_eq!(out, "One");
}

#[test]
fn what_is_no_list_of_stops_is_refused() {
    let long = "x".repeat(StopStrings::LEN_MAX + 1);
    let many = vec!["x"; StopStrings::COUNT_MAX + 1];
    assert_eq!(StopStrings::new(["x", ""]), Err(StopError::Empty { index: 1 }));
    assert_eq!(
        StopStrings::new(["x", &long]),
        Err(StopError::Long { index: 1, bytes: long.len() })
    );
    assert_eq!(StopStrings::new(many.clone()), Err(StopError::Many { count: many.len() }));
    assert!(StopStrings::new(many[1..].to_vec()).is_ok() && StopStrings::new([&long[1..]]).is_ok());
    assert_eq!(StopStrings::new([""; 0]), Ok(StopStrings::default()));
}

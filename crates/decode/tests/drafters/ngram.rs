use forerun_decode::{MatchLen, NgramDrafter, Slot, Token};
use proptest::prelude::*;

use super::{config, events, slot, takes_no_longer_with_time};

/// The latest earlier occurrence of the most last tokens, found by looking everywhere.
fn searched(tokens: &[Token], match_len: MatchLen, len: usize) -> Vec<Token> {
    for n in (match_len.min()..=match_len.max()).rev() {
        let Some(start) = tokens.len().checked_sub(n) else { continue };
        let gram = &tokens[start..];
        let Some(found) = (0..start).rev().find(|at| &tokens[*at..*at + n] == gram) else {
            continue;
        };
        let mut text = tokens.to_vec();
        (0..len).for_each(|at| text.push(text[found + n + at]));
        return text.split_off(tokens.len());
    }
    Vec::new()
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn drafts_are_those_of_a_search(
        events in events(),
        (min, max) in (1usize..4).prop_flat_map(|min| (Just(min), min..6)),
        len_max in 1usize..12,
    ) {
        let match_len = MatchLen::new(min..=max).unwrap();
        let mut drafter = NgramDrafter::new(match_len);
        let mut sequences = [Vec::new(), Vec::new()];
        for (index, event) in events {
            event.happen(&mut sequences[index]);
            let sequence = &sequences[index];
            let wanted = searched(sequence, match_len, len_max);
            prop_assert_eq!(drafter.propose(slot(index), sequence, len_max), wanted);
        }
    }
}

#[test]
fn the_latest_of_the_longest_matches_wins() {
    let mut drafter = NgramDrafter::default();
    let tokens = [1, 2, 3, 70, 2, 3, 80, 1, 2, 3].map(Token);
    assert_eq!(drafter.propose(Slot(0), &tokens, 1), [Token(70)], "three tokens before two");
    let tokens = [2, 3, 70, 2, 3, 80, 2, 3].map(Token);
    assert_eq!(drafter.propose(Slot(0), &tokens, 1), [Token(80)], "the latest");
}

#[test]
fn a_text_that_repeats_itself_goes_on() {
    let mut drafter = NgramDrafter::default();
    let tokens = [9, 1, 2, 3, 1, 2, 3].map(Token);
    assert_eq!(drafter.propose(Slot(0), &tokens, 8), [1, 2, 3, 1, 2, 3, 1, 2].map(Token));
}

#[test]
fn nothing_is_drafted_without_a_match() {
    let mut drafter = NgramDrafter::default();
    assert_eq!(drafter.propose(Slot(0), &[], 4), []);
    assert_eq!(drafter.propose(Slot(0), &[Token(1)], 4), []);
    assert_eq!(drafter.propose(Slot(0), &[1, 1].map(Token), 4), [], "one token is too few");
    assert_eq!(drafter.propose(Slot(0), &[1, 1, 1].map(Token), 4), [Token(1); 4]);
    assert_eq!(drafter.propose(Slot(0), &[1, 1, 1].map(Token), 0), []);
}

#[test]
fn slots_know_nothing_of_each_other() {
    let mut drafter = NgramDrafter::default();
    drafter.propose(Slot(0), &[1, 2, 3, 4].map(Token), 1);
    assert_eq!(drafter.propose(Slot(1), &[1, 2].map(Token), 1), []);
    assert_eq!(drafter.propose(Slot(0), &[1, 2].map(Token), 1), [], "another sequence in the slot");
}

#[test]
fn a_round_takes_no_longer_with_time() {
    let mut drafter = NgramDrafter::default();
    takes_no_longer_with_time(|slot, tokens| drafter.propose(slot, tokens, 8));
}

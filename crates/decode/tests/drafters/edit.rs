use forerun_decode::{Allowance, EditDrafter, Price, Slot, Token};
use proptest::prelude::*;

use super::{config, events, slot, takes_no_longer_with_time, tokens};

/// Rounds it takes to write `output`, when each commits what of the draft is right and a token.
fn rounds(drafter: &mut EditDrafter, prompt: &[Token], output: &[Token]) -> usize {
    let (mut len, mut rounds) = (0, 0);
    while len < output.len() {
        let path = drafter.propose(Slot(0), prompt, &output[..len], 16);
        let right = path.iter().zip(&output[len..]).take_while(|(a, b)| a == b).count();
        len += right + 1;
        rounds += 1;
    }
    rounds
}

/// Rounds it takes to write `output` if `original` is predicted.
fn rounds_from(original: &[Token], output: &[Token]) -> usize {
    let mut drafter = EditDrafter::default();
    drafter.predict(Slot(0), original);
    rounds(&mut drafter, &[], output)
}

fn counted(len: u32) -> Vec<Token> {
    (0..len).map(Token).collect()
}

#[test]
fn an_edited_line_costs_little_more_than_that_line() {
    let original = counted(170);
    assert_eq!(rounds_from(&original, &original), 11, "no change: 17 tokens a round but the first");
    for edited in [
        [&original[..80], &[Token(900)], &original[81..]].concat(),
        [&original[..80], &[Token(900), Token(901)], &original[80..]].concat(),
        [&original[..80], &original[90..]].concat(),
    ] {
        let rounds = rounds_from(&original, &edited);
        assert!(rounds <= 15, "{rounds} rounds");
    }
}

#[test]
fn what_was_replaced_once_is_replaced_in_drafts() {
    // One name, which is two tokens in some places, becomes another of three tokens.
    let text = |name: &[u32]| -> Vec<Token> {
        let line = |at: u32| [&[10 + at, 1, 2], name, &[3, 4, 5, 6]].concat();
        (0..20).flat_map(line).map(Token).collect()
    };
    let (original, renamed) = (text(&[50, 51]), text(&[60, 61, 62]));
    let rounds = rounds_from(&original, &renamed);
    assert!(rounds <= 19, "{rounds} rounds for {} tokens", renamed.len());
}

#[test]
fn a_replacement_that_does_not_come_again_is_given_up() {
    let mut original = counted(200);
    original.iter_mut().step_by(10).for_each(|token| *token = Token(999));
    let mut edited = original.clone();
    edited[10] = Token(1_000);
    let rounds = rounds_from(&original, &edited);
    assert!(rounds <= 17, "{rounds} rounds");
}

#[test]
fn code_in_a_prompt_is_found_by_how_it_begins() {
    let code = counted(120);
    let question = [900, 901, 902].map(Token);
    let prompt = [&question[..], &code, &question].concat();
    let preface = [800, 801, 802, 803].map(Token);
    let mut edited = [&preface[..], &code].concat();
    edited[60] = Token(810);
    let rounds = rounds(&mut EditDrafter::default(), &prompt, &edited);
    assert!(rounds <= 20, "{rounds} rounds");
}

#[test]
fn the_newest_version_in_a_prompt_is_edited() {
    let prompt = [1, 2, 3, 4, 5, 90, 1, 2, 3, 6, 7, 91].map(Token);
    let mut drafter = EditDrafter::default();
    assert_eq!(drafter.propose(Slot(0), &prompt, &[1, 2, 3].map(Token), 2), [6, 7].map(Token));
}

#[test]
fn of_several_places_the_next_one_is_taken() {
    let mut drafter = EditDrafter::default();
    // The same two tokens stand before 30, 31 and 32.
    let original = [1, 2, 30, 5, 6, 1, 2, 31, 8, 9, 1, 2, 32].map(Token);
    drafter.predict(Slot(0), &original);
    let edited = [1, 2, 30, 5, 77, 1, 2].map(Token);
    assert_eq!(drafter.propose(Slot(0), &[], &edited, 1), [Token(31)]);
}

#[test]
fn a_draft_is_as_long_as_its_price_allows() {
    let mut drafter = EditDrafter::default();
    let original = counted(100);
    drafter.predict(Slot(0), &original);
    let mut len = |price: &Price| {
        let allowance = Allowance { price: price.clone(), ..Allowance::one_path(32) };
        let paths = drafter.propose_paths(Slot(0), &[], &original[..20], &allowance);
        paths.first().map_or(0, |path| path.tokens.len())
    };
    assert_eq!(len(&Price::per_token(0.02)), 32);
    assert_eq!(len(&Price::per_token(1.0)), 0, "no token is certain");
    // The first is worth it by itself, and not what it takes to come to the cheap ones.
    assert_eq!(len(&Price::new([0.1, 9.0, 9.1, 9.2, 30.0])), 1);
    assert_eq!(len(&Price::new([0.1, 2.0, 2.1, 2.2, 30.0])), 4);
}

#[test]
fn after_an_insertion_the_original_may_go_on_where_it_was_left() {
    let mut drafter = EditDrafter::default();
    drafter.predict(Slot(0), &counted(40));
    let output = [&counted(20)[..], &[Token(900)]].concat();
    let cheap = Allowance { tokens: 16, paths: 2, price: Price::per_token(0.02) };
    let paths = drafter.propose_paths(Slot(0), &[], &output, &cheap);
    let mut firsts: Vec<Token> = paths.iter().map(|path| path.tokens[0]).collect();
    firsts.sort_unstable();
    assert_eq!(firsts, [20, 21].map(Token), "900 was inserted, or replaced 20");
    let one = drafter.propose_paths(Slot(0), &[], &output, &Allowance { paths: 1, ..cheap });
    assert_eq!(one.len(), 1, "one path was allowed");
}

#[test]
fn nothing_is_drafted_beyond_the_original_or_without_one() {
    let mut drafter = EditDrafter::default();
    drafter.predict(Slot(0), &[1, 2].map(Token));
    assert_eq!(drafter.propose(Slot(0), &[], &[1, 2].map(Token), 4), []);
    assert_eq!(drafter.propose(Slot(1), &[1, 2, 3, 4].map(Token), &[8, 9].map(Token), 4), []);
}

#[test]
fn a_prediction_holds_for_its_slot_until_another_is_made() {
    let mut drafter = EditDrafter::default();
    drafter.predict(Slot(0), &[1, 2, 3].map(Token));
    drafter.predict(Slot(1), &[4, 5].map(Token));
    assert_eq!(drafter.propose(Slot(0), &[], &[Token(1)], 4), [2, 3].map(Token));
    assert_eq!(drafter.propose(Slot(1), &[], &[], 4), [4, 5].map(Token));
    assert_eq!(drafter.propose(Slot(0), &[], &[], 1), [Token(1)], "the next, from the start");
    drafter.predict(Slot(0), &[Token(7)]);
    assert_eq!(drafter.propose(Slot(0), &[], &[], 4), [Token(7)]);
}

proptest! {
    #![proptest_config(config(1_000))]

    /// Whatever was in a slot before, its drafts are those of a drafter that saw nothing else, once
    /// both have learned the same rates.
    #[test]
    fn drafts_are_short_enough_whatever_happens(
        events in events(),
        prompts in [tokens(0..40), tokens(0..40)],
        predictions in [tokens(0..40), tokens(0..40)],
        len_max in 1usize..12,
    ) {
        let mut drafter = EditDrafter::default();
        for (index, prediction) in predictions.iter().enumerate() {
            drafter.predict(slot(index), prediction);
        }
        let mut sequences = [Vec::new(), Vec::new()];
        for (index, event) in events {
            event.happen(&mut sequences[index]);
            let before = drafter.clone();
            let path = drafter.propose(slot(index), &prompts[index], &sequences[index], len_max);
            prop_assert!(path.len() <= len_max);
            let again = before.clone().propose(slot(index), &prompts[index], &sequences[index], len_max);
            prop_assert_eq!(path, again);
        }
    }
}

#[test]
fn a_round_takes_no_longer_with_time() {
    // Half of it repeats, half of it comes never: the place is often lost.
    let original: Vec<_> =
        (0..200_000).map(|at| Token(if at % 9 == 0 { at } else { at % 7 })).collect();
    let mut predicted = EditDrafter::default();
    (0..6).for_each(|index| predicted.predict(slot(index), &original));
    takes_no_longer_with_time(|slot, tokens| predicted.propose(slot, &[], tokens, 8));
    let mut prompted = EditDrafter::default();
    takes_no_longer_with_time(|slot, tokens| prompted.propose(slot, &original, tokens, 8));
}

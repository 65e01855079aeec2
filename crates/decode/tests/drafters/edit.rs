use forerun_decode::{MatchLen, PredictedDrafter, Slot, Token};
use proptest::prelude::*;

use super::{config, events, slot, takes_no_longer_with_time, tokens};

/// Follows an output round by round and looks everywhere when it is lost.
struct Searched {
    prediction: Vec<Token>,
    match_len: MatchLen,
    output: Vec<Token>,
    next: Option<usize>,
    run: usize,
    parted: usize,
}

impl Searched {
    fn propose(&mut self, output: &[Token], len_max: usize) -> Vec<Token> {
        if !output.starts_with(&self.output) {
            (self.next, self.run, self.parted) = (Some(0), 0, 0);
            self.output.clear();
        }
        let fresh = &output[self.output.len()..];
        self.output.extend(fresh);
        for token in fresh {
            let Some(next) = self.next else { continue };
            if self.prediction.get(next) == Some(token) {
                (self.next, self.run) = (Some(next + 1), self.run + 1);
            } else {
                self.next = None;
                self.parted = if self.run >= self.match_len.min() { next } else { self.parted };
            }
        }
        if self.next.is_none() && !fresh.is_empty() {
            (self.next, self.run) = (self.place(), 0);
        }
        let rest = self.next.map_or(&[][..], |next| &self.prediction[next..]);
        rest.iter().take(len_max).copied().collect()
    }

    fn place(&self) -> Option<usize> {
        let lens = self.match_len.min()..=self.match_len.max().min(self.output.len());
        lens.rev().find_map(|len| {
            let last = &self.output[self.output.len() - len..];
            let after =
                |place: &usize| *place >= len && &self.prediction[place - len..*place] == last;
            let later = (self.parted..=self.prediction.len()).find(after);
            later.or_else(|| (0..self.parted).rev().find(after))
        })
    }
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn drafts_are_those_of_a_search(
        events in events(),
        predictions in [tokens(1..40), tokens(1..40)],
        (min, max) in (1usize..4).prop_flat_map(|min| (Just(min), min..6)),
        len_max in 1usize..12,
    ) {
        let match_len = MatchLen::new(min..=max).unwrap();
        let mut drafter = PredictedDrafter::new(match_len);
        let mut searched = predictions.map(|prediction| {
            let (output, next, run, parted) = (Vec::new(), Some(0), 0, 0);
            Searched { prediction, match_len, output, next, run, parted }
        });
        for (index, searched) in searched.iter().enumerate() {
            drafter.predict(slot(index), &searched.prediction);
        }
        let mut sequences = [Vec::new(), Vec::new()];
        for (index, event) in events {
            event.happen(&mut sequences[index]);
            let sequence = &sequences[index];
            let wanted = searched[index].propose(sequence, len_max);
            prop_assert_eq!(drafter.propose(slot(index), sequence, len_max), wanted);
        }
    }
}

/// Rounds it takes to write `output`, when each commits what of the draft is right and a token.
fn rounds(drafter: &mut PredictedDrafter, output: &[Token]) -> usize {
    let (mut len, mut rounds) = (0, 0);
    while len < output.len() {
        let path = drafter.propose(Slot(0), &output[..len], 16);
        let right = path.iter().zip(&output[len..]).take_while(|(a, b)| a == b).count();
        len += right + 1;
        rounds += 1;
    }
    rounds
}

#[test]
fn an_edited_line_does_not_end_the_drafting() {
    let prediction: Vec<_> = (0..170).map(Token).collect();
    let mut drafter = PredictedDrafter::default();
    drafter.predict(Slot(0), &prediction);
    assert_eq!(rounds(&mut drafter, &prediction), 10, "as predicted: 17 tokens a round");
    for edited in [
        [&prediction[..80], &[Token(900)], &prediction[81..]].concat(),
        [&prediction[..80], &[Token(900), Token(901)], &prediction[80..]].concat(),
        [&prediction[..80], &prediction[90..]].concat(),
    ] {
        let rounds = rounds(&mut drafter, &edited);
        assert!(rounds <= 15, "{rounds} rounds");
    }
}

#[test]
fn of_several_places_the_next_one_is_taken() {
    let mut drafter = PredictedDrafter::default();
    // The same two tokens stand before 30, 31 and 32.
    let prediction = [1, 2, 30, 5, 6, 1, 2, 31, 8, 9, 1, 2, 32].map(Token);
    drafter.predict(Slot(0), &prediction);
    assert_eq!(drafter.propose(Slot(0), &prediction[..4], 1), [Token(6)]);
    let edited = [1, 2, 30, 5, 77, 1, 2].map(Token);
    assert_eq!(drafter.propose(Slot(0), &edited, 1), [Token(31)]);
    let late = [1, 2, 30, 5, 6, 1, 2, 31, 8, 9, 1, 2, 32, 77, 8, 9].map(Token);
    assert_eq!(drafter.propose(Slot(0), &late, 1), [Token(1)], "there is none after");
}

#[test]
fn an_output_beyond_the_prediction_is_not_drafted() {
    let mut drafter = PredictedDrafter::default();
    drafter.predict(Slot(0), &[1, 2].map(Token));
    assert_eq!(drafter.propose(Slot(0), &[1, 2].map(Token), 4), []);
    assert_eq!(drafter.propose(Slot(0), &[1, 2, 3].map(Token), 4), []);
}

#[test]
fn a_prediction_holds_for_its_slot_until_another_is_made() {
    let mut drafter = PredictedDrafter::default();
    drafter.predict(Slot(0), &[1, 2, 3].map(Token));
    drafter.predict(Slot(1), &[4, 5].map(Token));
    assert_eq!(drafter.propose(Slot(0), &[Token(1)], 4), [2, 3].map(Token));
    assert_eq!(drafter.propose(Slot(1), &[], 4), [4, 5].map(Token));
    assert_eq!(drafter.propose(Slot(0), &[], 1), [Token(1)], "the next sequence, from the start");
    drafter.predict(Slot(0), &[Token(7)]);
    assert_eq!(drafter.propose(Slot(0), &[], 4), [Token(7)]);
    drafter.predict(Slot(0), &[]);
    assert_eq!(drafter.propose(Slot(0), &[], 4), []);
}

#[test]
fn a_round_takes_no_longer_with_time() {
    let mut drafter = PredictedDrafter::default();
    // Half of it repeats, half of it comes never: the place is often lost.
    let prediction: Vec<_> =
        (0..200_000).map(|at| Token(if at % 9 == 0 { at } else { at % 7 })).collect();
    (0..6).for_each(|index| drafter.predict(slot(index), &prediction));
    takes_no_longer_with_time(|slot, tokens| drafter.propose(slot, tokens, 8));
}

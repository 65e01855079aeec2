use std::collections::BTreeMap;

use forerun_decode::{
    Allowance, Drafter, MatchLen, Price, Slot, SuffixConfig, SuffixDrafter, Tenant,
    TenantSuffixDrafter, Token,
};
use proptest::prelude::*;

use super::{Event, config, events, slot, takes_no_longer_with_time};

/// Ended sequences, as they are remembered.
#[derive(Default)]
struct Halves {
    older: Vec<Vec<Token>>,
    younger: Vec<Vec<Token>>,
}

impl Halves {
    fn ended(&mut self, tokens: &[Token], tokens_max: usize) {
        let half = tokens_max / 2;
        let tokens = tokens[tokens.len().saturating_sub(half)..].to_vec();
        if self.younger.iter().map(Vec::len).sum::<usize>() + tokens.len() > half {
            self.older = std::mem::take(&mut self.younger);
        }
        self.younger.push(tokens);
    }
}

/// What most often followed the longest suffix that was followed by anything, found by looking
/// everywhere, token after token.
fn searched(
    sequences: &[&Vec<Token>],
    tokens: &[Token],
    config: &SuffixConfig,
    len_max: usize,
) -> Vec<Token> {
    let mut text = tokens.to_vec();
    while text.len() < tokens.len() + len_max {
        let lens = config.match_len.min()..=config.match_len.max().min(text.len());
        let followers = lens.rev().map(|len| {
            let suffix = &text[text.len() - len..];
            let mut counts = BTreeMap::new();
            for window in sequences.iter().flat_map(|sequence| sequence.windows(len + 1)) {
                if &window[..len] == suffix {
                    *counts.entry(window[len]).or_insert(0u32) += 1;
                }
            }
            counts
        });
        let Some(counts) = followers.into_iter().find(|counts| !counts.is_empty()) else { break };
        // The first of the greatest: the lowest id.
        let (token, _) = counts.iter().rev().max_by_key(|(_, count)| **count).unwrap();
        text.push(*token);
    }
    text.split_off(tokens.len())
}

fn configs() -> impl Strategy<Value = SuffixConfig> {
    let match_len = (1usize..4).prop_flat_map(|min| (Just(min), min..7));
    let tokens_max = prop_oneof![Just(0), 1usize..80, Just(1 << 20)];
    (match_len, tokens_max).prop_map(|((min, max), tokens_max)| SuffixConfig {
        match_len: MatchLen::new(min..=max).unwrap(),
        tokens_max,
    })
}

/// At this price all that is known is worth drafting.
fn free(tokens: usize) -> Allowance {
    Allowance { price: Price::per_token(0.0), ..Allowance::one_path(tokens) }
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn drafts_are_those_of_a_search(
        events in events(),
        config in configs(),
        len_max in 1usize..12,
    ) {
        let mut drafter = SuffixDrafter::new(config);
        let mut halves = Halves::default();
        let mut sequences = [Vec::new(), Vec::new()];
        for (index, event) in events {
            event.happen(&mut sequences[index]);
            let sequence = &sequences[index];
            if matches!(event, Event::End) {
                drafter.ended(slot(index), sequence);
                halves.ended(sequence, config.tokens_max);
            }
            let all: Vec<_> = halves.older.iter().chain(&halves.younger).chain([sequence]).collect();
            let wanted = searched(&all, sequence, &config, len_max);
            let drafted = drafter.propose_within(slot(index), sequence, &free(len_max));
            prop_assert_eq!(drafted, wanted);
        }
    }
}

#[test]
fn what_followed_most_often_is_drafted() {
    let mut drafter = SuffixDrafter::default();
    let mut ended = |tokens: [u32; 4]| {
        drafter.ended(Slot(0), &tokens.map(Token));
        drafter.propose_within(Slot(0), &[1, 2].map(Token), &free(8))
    };
    assert_eq!(ended([1, 2, 6, 7]), [6, 7].map(Token));
    assert_eq!(ended([1, 2, 5, 7]), [5, 7].map(Token), "lowest id");
    assert_eq!(ended([1, 2, 6, 8]), [6, 7].map(Token));
}

#[test]
fn counts_of_the_sequence_and_of_those_that_ended_are_one() {
    let mut drafter = SuffixDrafter::default();
    drafter.ended(Slot(0), &[1, 2, 5].map(Token));
    drafter.ended(Slot(0), &[1, 2, 6].map(Token));
    let tokens = [1, 2, 6, 1, 2].map(Token);
    assert_eq!(drafter.propose(Slot(0), &tokens, 1), [Token(6)]);
}

#[test]
fn an_unlikely_path_ends() {
    let mut drafter = SuffixDrafter::default();
    for last in [4, 5] {
        drafter.ended(Slot(0), &[1, 2, 3, last].map(Token));
        drafter.ended(Slot(0), &[1, 2, 6, last].map(Token));
    }
    // Half of what is likely after such a suffix for the third token, a quarter with the fourth.
    assert_eq!(drafter.propose(Slot(0), &[1, 2].map(Token), 8), [Token(3)]);
}

#[test]
fn a_longer_match_makes_a_longer_draft() {
    let ended: Vec<Token> = (1..40).map(Token).collect();
    let mut drafter = SuffixDrafter::default();
    drafter.ended(Slot(0), &ended);
    assert_eq!(drafter.propose(Slot(0), &ended[1..2], 30), [], "shorter than it must be");
    let drafted = [2, 4, 8].map(|len| drafter.propose(Slot(0), &ended[..len], 30).len());
    assert!(drafted[0] > 0 && drafted.is_sorted_by(|one, other| one < other), "{drafted:?}");
}

#[test]
fn what_was_wrong_is_drafted_less() {
    let drafted = |right: bool| {
        let mut drafter = SuffixDrafter::default();
        let mut tokens = Vec::new();
        for round in 100..140 {
            drafter.ended(Slot(1), &[round, 1, 3].map(Token));
            // After two known tokens comes the one that came after them before, or another.
            tokens.extend([round, 1, if right { 3 } else { 4 }].map(Token));
            drafter.propose(Slot(0), &tokens[..tokens.len() - 1], 8);
            drafter.propose(Slot(0), &tokens, 8);
        }
        // Another sequence begins with what this one taught.
        drafter.ended(Slot(1), &[1, 2, 3, 4, 5].map(Token));
        drafter.propose(Slot(1), &[1, 2].map(Token), 8).len()
    };
    assert_eq!(drafted(false), 0);
    assert!(drafted(true) > 0);
}

#[test]
fn the_oldest_are_forgotten() {
    let config = SuffixConfig { tokens_max: 8, ..SuffixConfig::default() };
    let mut drafter = SuffixDrafter::new(config);
    let mut remembered = |tokens: &[u32]| {
        let tokens: Vec<_> = tokens.iter().map(|id| Token(*id)).collect();
        drafter.ended(Slot(0), &tokens);
        [[1, 2], [3, 4], [5, 6]]
            .map(|start| !drafter.propose(Slot(0), &start.map(Token), 1).is_empty())
    };
    assert_eq!(remembered(&[1, 2, 9]), [true, false, false]);
    assert_eq!(remembered(&[3, 4, 9]), [true, true, false]);
    assert_eq!(remembered(&[5, 6, 9]), [false, true, true]);
    assert_eq!(
        remembered(&[1, 2, 0, 0, 0, 0]),
        [false, false, true],
        "its beginning is too long ago"
    );
}

#[test]
fn empty_sequences_do_no_harm() {
    let mut drafter = SuffixDrafter::default();
    drafter.ended(Slot(0), &[]);
    assert_eq!(drafter.propose(Slot(0), &[], 8), []);
    drafter.ended(Slot(0), &[Token(1)]);
    assert_eq!(drafter.propose(Slot(0), &[Token(1)], 8), []);
}

#[test]
fn a_round_takes_no_longer_with_time() {
    let mut drafter = SuffixDrafter::default();
    takes_no_longer_with_time(|slot, tokens| drafter.propose(slot, tokens, 8));
}

#[test]
fn ended_sequences_take_no_longer_with_time() {
    let config = SuffixConfig { tokens_max: 100_000, ..SuffixConfig::default() };
    let mut drafter = SuffixDrafter::new(config);
    takes_no_longer_with_time(|slot, tokens| {
        let end = tokens.len();
        if end % 1_000 == 0 {
            drafter.ended(Slot(0), &tokens[end - 1_000..]);
        }
        drafter.propose(slot, tokens, 8)
    });
}

#[test]
fn tenants_learn_from_their_own_outputs_alone() {
    let mut drafter = TenantSuffixDrafter::default();
    let output = [1, 2, 3, 4].map(Token);
    drafter.share(Slot(0), Some(Tenant(1)));
    drafter.ended(Slot(0), &output);
    let mut proposed = |slot, tenant| {
        drafter.share(Slot(slot), tenant);
        !drafter.propose(Slot(slot), &output[..2], 8).is_empty()
    };
    for slot in [0, 1] {
        assert!(proposed(slot, Some(Tenant(1))));
        assert!(!proposed(slot, Some(Tenant(2))));
        assert!(!proposed(slot, None));
    }
    drafter.share(Slot(3), None);
    drafter.ended(Slot(3), &[5, 6, 7, 8].map(Token));
    for tenant in [None, Some(Tenant(1)), Some(Tenant(2))] {
        drafter.share(Slot(3), tenant);
        assert_eq!(drafter.propose(Slot(3), &[5, 6].map(Token), 8), [], "{tenant:?}");
    }
}

#[test]
fn tenants_that_learned_long_ago_are_forgotten() {
    let config = SuffixConfig { tokens_max: 80, ..SuffixConfig::default() };
    let mut drafter = TenantSuffixDrafter::new(config);
    let output = |tenant: u32| [1, 2, 3, 4].map(|at| Token(10 * tenant + at));
    let knows = |drafter: &mut TenantSuffixDrafter, tenant: u32| {
        drafter.share(Slot(0), Some(Tenant(tenant.into())));
        !drafter.propose(Slot(0), &output(tenant)[..2], 8).is_empty()
    };
    for tenant in 0..20 {
        drafter.share(Slot(0), Some(Tenant(tenant.into())));
        drafter.ended(Slot(0), &output(tenant));
    }
    assert!((0..20).all(|tenant| knows(&mut drafter, tenant)), "80 tokens");
    drafter.share(Slot(0), Some(Tenant(0)));
    drafter.ended(Slot(0), &output(0));
    let known: Vec<u32> = (0..20).filter(|tenant| knows(&mut drafter, *tenant)).collect();
    assert_eq!(known, [&[0][..], &(2..20).collect::<Vec<_>>()].concat(), "the first but one");
    // A tenant takes an eighth at most, however much it is told.
    (0..50).for_each(|at| drafter.ended(Slot(0), &[at, at + 1, at + 2].map(Token)));
    assert!((3..20).filter(|tenant| knows(&mut drafter, *tenant)).count() >= 16);
}

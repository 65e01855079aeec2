//! The original of an edit, and where runs of tokens occur in it.

use forerun_verify::Token;

use super::super::fixed::MatchLen;
use super::super::index::Key;

/// A place is found by its last 2 to 6 tokens.
const MATCH_LEN: MatchLen = MatchLen::of(2, 6);

/// So near to where the output left the original, a match of the shortest length counts: two tokens
/// of code occur everywhere.
const NEAR: usize = 128;

/// So near, a single token does.
const VERY_NEAR: usize = 16;

/// The original's tokens.
#[derive(Debug, Clone)]
pub(super) struct Original {
    tokens: Vec<Token>,
    /// For each length of match, the shortest first: the keys of all matches and the positions after
    /// them, in order.
    places: Vec<Vec<(Key, u32)>>,
}

/// A place in the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// The position of the token that goes on from there.
    pub(super) next: usize,
    /// How many tokens before it agree.
    pub(super) len: usize,
}

impl Original {
    pub(super) fn new(tokens: &[Token]) -> Self {
        let mut places = vec![Vec::new(); MATCH_LEN.max() - MATCH_LEN.min() + 1];
        for (end, after) in (1..=tokens.len()).zip(1u32..) {
            for (key, places) in keys(&tokens[..end]).zip(&mut places) {
                places.push((key, after));
            }
        }
        places.iter_mut().for_each(|places| places.sort_unstable());
        Self { tokens: tokens.to_vec(), places }
    }

    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The tokens from a position on.
    pub(super) fn from(&self, position: usize) -> &[Token] {
        self.tokens.get(position..).unwrap_or_default()
    }

    /// The place after the longest match with the end of the output: the first at or after `from`,
    /// else the last before it.
    pub(super) fn find(&self, output: &[Token], from: usize) -> Option<Found> {
        let at = u32::try_from(from).unwrap_or(u32::MAX);
        self.longest(output, |key, len, places| {
            let index = places.partition_point(|place| *place < (key, at));
            let around = [places.get(index), index.checked_sub(1).map(|before| &places[before])];
            let (_, next) = around.into_iter().flatten().find(|(other, _)| *other == key)?;
            let next = *next as usize;
            (len > MATCH_LEN.min() || next.abs_diff(from) <= NEAR).then_some(next)
        })
    }

    /// The last place after the longest match with the end of the output.
    pub(super) fn find_last(&self, output: &[Token]) -> Option<Found> {
        self.longest(output, |key, len, places| {
            let after = places.partition_point(|(other, _)| *other <= key);
            let (other, next) = places[..after].last()?;
            (len > MATCH_LEN.min() && *other == key).then_some(*next as usize)
        })
    }

    /// The place after the first occurrence of a token close behind a position.
    pub(super) fn find_near(&self, token: Token, from: usize) -> Option<usize> {
        let near = self.from(from).iter().take(VERY_NEAR);
        near.copied().position(|it| it == token).map(|offset| from + offset + 1)
    }

    fn longest(
        &self,
        output: &[Token],
        find: impl Fn(Key, usize, &[(Key, u32)]) -> Option<usize>,
    ) -> Option<Found> {
        let keys: Vec<_> = (MATCH_LEN.min()..).zip(keys(output).zip(&self.places)).collect();
        keys.into_iter()
            .rev()
            .find_map(|(len, (key, places))| find(key, len, places).map(|next| Found { next, len }))
    }
}

/// The keys of the last tokens, for each length of match that fits, the shortest first.
fn keys(tokens: &[Token]) -> impl Iterator<Item = Key> {
    let longest = &tokens[tokens.len().saturating_sub(MATCH_LEN.max())..];
    Key::backwards(longest).skip(MATCH_LEN.min() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_counts_and_then_the_next_after_the_difference() {
        let original = Original::new(&[1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 5].map(Token));
        let find = |output: &[u32], from| {
            let output: Vec<Token> = output.iter().copied().map(Token).collect();
            original.find(&output, from).map(|it| (it.next, it.len))
        };
        assert_eq!(find(&[7, 1, 2], 0), Some((2, 2)));
        assert_eq!(find(&[7, 1, 2], 3), Some((6, 2)));
        assert_eq!(find(&[7, 1, 2], 11), Some((10, 2)));
        assert_eq!(find(&[8, 1, 2], 0), Some((10, 3)));
        assert_eq!(find(&[7, 2], 0), None);
    }

    #[test]
    fn of_a_prompt_the_last_of_the_longest_matches_counts() {
        let original = Original::new(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 2, 3, 6].map(Token));
        let find = |output: &[Token]| original.find_last(output).map(|it| (it.next, it.len));
        assert_eq!(find(&[1, 2, 3].map(Token)), Some((8, 3)));
        assert_eq!(find(&[7, 2, 3].map(Token)), None, "two tokens say nothing");
    }

    #[test]
    fn two_tokens_far_away_say_nothing() {
        let mut tokens = vec![Token(0); 10];
        tokens.extend((100..400).map(Token));
        tokens.extend([1, 2, 3].map(Token));
        let original = Original::new(&tokens);
        assert_eq!(original.find(&[5, 1, 2].map(Token), 10), None);
        assert_eq!(original.find(&[399, 1, 2].map(Token), 10).map(|it| it.next), Some(312));
    }

    #[test]
    fn a_single_token_counts_close_behind_the_difference() {
        let original = Original::new(&(0..40).map(Token).collect::<Vec<_>>());
        assert_eq!(original.find_near(Token(12), 10), Some(13));
        assert_eq!(original.find_near(Token(9), 10), None);
        assert_eq!(original.find_near(Token(30), 10), None);
    }
}

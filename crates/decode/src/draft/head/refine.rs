//! Refines the rows of a block by the text's own n-grams.
//!
//! The rows of a block are independent: none knows which tokens are drawn before its own, so a draft
//! may begin like one continuation and end like another. What followed the same tokens earlier in the
//! text tells which tokens belong together (cf. arXiv 2404.09221). So each row is raised at the tokens
//! that did, given the path so far; a token is drawn from the raised row, and the rule gets that very
//! row. No token is fixed, so every rule and several paths stay lossless.
//!
//! How much rows are raised is learned from the tokens that are committed, so text that does not repeat
//! itself is hardly refined. The path's own tokens are never counted.

use forerun_verify::{Dist, Token};

use crate::draft::automaton::{Automaton, End};
use crate::draft::fixed::Seen;

/// Longest n-gram that is looked up before a token.
const MATCH_MAX: usize = 3;

/// Where more different tokens followed than this, each is hardly likelier than without: the row stays,
/// and a row costs no more time than this.
const FOLLOWERS_MAX: usize = 64;

/// How much a logit is raised at a token that alone followed: at first, and at most.
const STRENGTH_FIRST: f32 = 0.5;
const STRENGTH_MAX: f32 = 8.0;

/// How fast strengths follow what is committed.
const LEARNING_RATE: f32 = 0.3;

/// What followed must come again more often than expected by this much, or strengths fall: else chance
/// alone would keep them above zero.
const MARGIN: f32 = 0.05;

/// Refines the blocks of one sequence.
///
/// A refined row is log-linear: a token's probability is multiplied by the exponential of `strength`
/// times its share of what followed. There is one strength for each length of match, which climbs the
/// likelihood of the committed tokens; its gradient is the share of the token that came, less the
/// share that the refined row expected.
#[derive(Debug, Clone)]
pub(super) struct Refiner {
    seen: Seen,
    automaton: Automaton,
    end: End,
    prompt_len: usize,
    strengths: [f32; MATCH_MAX + 1],
    /// The rows of the last block that were refined.
    rows: Vec<Refined>,
}

/// A refined row, until it is known which token came there.
#[derive(Debug, Clone)]
struct Refined {
    /// The drafted tokens before it.
    path: Vec<Token>,
    followers: Followers,
    /// The expected share of what is drawn from it.
    expected: f32,
}

/// What followed a match in the text.
#[derive(Debug, Clone)]
struct Followers {
    match_len: usize,
    /// Each token with its share of all that followed.
    shares: Vec<(Token, f32)>,
}

impl Default for Refiner {
    fn default() -> Self {
        Self {
            seen: Seen::default(),
            automaton: Automaton::new(MATCH_MAX),
            end: End::START,
            prompt_len: 0,
            strengths: [STRENGTH_FIRST; MATCH_MAX + 1],
            rows: Vec::new(),
        }
    }
}

impl Refiner {
    /// Takes the tokens that are committed now, and learns from those that came where rows were refined.
    /// A request that begins learns anew, so that its seed gives the same output whatever came before.
    pub(super) fn turn_to(&mut self, tokens: &[Token], prompt_len: usize) {
        let seen_len = self.seen.len();
        let mut known = self.seen.update(tokens);
        let replaced = known < seen_len;
        if replaced {
            (self.automaton, self.end) = (Automaton::new(MATCH_MAX), End::START);
            known = 0;
        }
        if replaced || prompt_len != self.prompt_len {
            self.strengths = [STRENGTH_FIRST; MATCH_MAX + 1];
            self.rows.clear();
            self.prompt_len = prompt_len;
        }
        let fresh = &tokens[known..];
        for row in std::mem::take(&mut self.rows) {
            if let Some((came, _)) = fresh.strip_prefix(&row.path[..]).and_then(<[_]>::split_first)
            {
                let strength = &mut self.strengths[row.followers.match_len];
                let gradient = row.followers.share(*came) - row.expected;
                let step = LEARNING_RATE * (gradient - MARGIN);
                *strength = (*strength + step).clamp(0.0, STRENGTH_MAX);
            }
        }
        for token in fresh {
            self.end = self.automaton.append(self.end, *token);
        }
    }

    /// The distribution after a path: its row, raised at what followed and then shaped.
    pub(super) fn refined<E>(
        &mut self,
        path: &[Token],
        row: &mut [f32],
        shape: impl FnOnce(&mut [f32]) -> Result<Dist, E>,
    ) -> Result<Dist, E> {
        let Some(followers) = self.followers(path) else { return shape(row) };
        let strength = self.strengths[followers.match_len];
        for (token, share) in &followers.shares {
            if let Some(logit) = row.get_mut(token.index()) {
                *logit += strength * share;
            }
        }
        let dist = shape(row)?;
        let expected = followers.expected(&dist);
        self.rows.push(Refined { path: path.to_vec(), followers, expected });
        Ok(dist)
    }

    /// What followed the longest end of text and path that was followed by anything; nothing after an
    /// empty path, which the head knows itself.
    fn followers(&self, path: &[Token]) -> Option<Followers> {
        if path.is_empty() {
            return None;
        }
        let cursor =
            path.iter().fold(self.end.cursor(), |at, token| self.automaton.advance(at, *token));
        let cursor = self.automaton.followed(cursor);
        let counts = || self.automaton.followers(cursor).take(FOLLOWERS_MAX + 1);
        if cursor.len() == 0 || counts().count() > FOLLOWERS_MAX {
            return None;
        }
        let total: f32 = counts().map(|(_, count)| count as f32).sum();
        let shares = counts().map(|(token, count)| (token, count as f32 / total)).collect();
        Some(Followers { match_len: cursor.len(), shares })
    }
}

impl Followers {
    fn share(&self, token: Token) -> f32 {
        self.shares.iter().find(|(other, _)| *other == token).map_or(0.0, |(_, share)| *share)
    }

    /// The mean share of a token that is drawn.
    #[expect(clippy::cast_possible_truncation, reason = "a share")]
    fn expected(&self, dist: &Dist) -> f32 {
        self.shares.iter().map(|(token, share)| dist.prob(*token) as f32 * share).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[u32]) -> Vec<Token> {
        ids.iter().copied().map(Token).collect()
    }

    fn refiner(text: &[u32]) -> Refiner {
        let mut refiner = Refiner::default();
        refiner.turn_to(&tokens(text), text.len());
        refiner
    }

    /// By how much each logit is raised after a path.
    fn raised(refiner: &mut Refiner, path: &[u32]) -> Vec<f32> {
        let mut row = vec![0.0; 100];
        refiner.refined(&tokens(path), &mut row, |row| Dist::softmax(row, 1.0)).unwrap();
        row
    }

    #[test]
    fn a_row_is_raised_at_what_followed_the_path_by_its_share() {
        let mut refiner = refiner(&[1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 9]);
        let row = raised(&mut refiner, &[1, 2]);
        assert_eq!((row[3], row[4]), (STRENGTH_FIRST * 2.0 / 3.0, STRENGTH_FIRST / 3.0));
        assert_eq!(row.iter().filter(|logit| **logit != 0.0).count(), 2, "and nowhere else");
        let row = raised(&mut refiner, &[8, 2]);
        assert!(row[3] > 0.0, "a shorter match counts where no longer one is found");
    }

    #[test]
    fn the_first_row_knows_the_newest_token_and_stays() {
        let row = raised(&mut refiner(&[1, 2, 1, 2, 1]), &[]);
        assert!(row.iter().all(|logit| *logit == 0.0));
    }

    #[test]
    fn what_the_draft_itself_says_does_not_count() {
        let mut refiner = refiner(&[1, 2, 3]);
        for path in [&[5, 6][..], &[5, 6, 5], &[5, 6, 5, 6, 5]] {
            assert!(raised(&mut refiner, path).iter().all(|logit| *logit == 0.0), "{path:?}");
        }
    }

    #[test]
    fn a_masked_token_stays_masked() {
        let mut row = vec![0.0, f32::NEG_INFINITY, 0.0];
        let mut refiner = refiner(&[0, 1, 0]);
        let dist = refiner.refined(&[Token(0)], &mut row, |row| Dist::softmax(row, 1.0)).unwrap();
        assert_eq!(dist.prob(Token(1)), 0.0);
    }

    #[test]
    fn where_too_many_followed_the_row_stays() {
        let text = |others: u32| (1..=others).flat_map(|other| [0, other]).collect::<Vec<_>>();
        let most = u32::try_from(FOLLOWERS_MAX).unwrap();
        assert!(raised(&mut refiner(&text(most)), &[0])[1] > 0.0);
        assert!(raised(&mut refiner(&text(most + 1)), &[0]).iter().all(|logit| *logit == 0.0));
    }

    /// The strength after 40 blocks, in each of which token 1 is drafted and committed, and then `came`.
    fn learned(came: impl Fn(u32) -> u32) -> f32 {
        let mut text = tokens(&[1, 2, 3, 1, 2, 3]);
        let mut refiner = Refiner::default();
        for round in 0..40 {
            refiner.turn_to(&text, 6);
            raised(&mut refiner, &[1]);
            text.extend([Token(1), Token(came(round)), Token(3)]);
        }
        refiner.strengths[1..].iter().copied().fold(0.0, f32::max)
    }

    #[test]
    fn strengths_follow_what_comes() {
        let (repeated, never) = (learned(|_| 2), learned(|round| 4 + round));
        assert!(repeated > 2.0, "what followed always comes again: {repeated}");
        assert!(never <= STRENGTH_FIRST, "nothing comes again: {never}");
    }

    #[test]
    fn a_path_that_was_not_committed_teaches_nothing() {
        let mut refiner = refiner(&[1, 2, 3]);
        raised(&mut refiner, &[1]);
        refiner.turn_to(&tokens(&[1, 2, 3, 7, 2]), 3);
        assert!(refiner.strengths.iter().all(|strength| *strength == STRENGTH_FIRST));
    }

    #[test]
    fn a_request_that_begins_learns_anew_over_the_same_text() {
        let mut refiner = refiner(&[1, 2, 3]);
        raised(&mut refiner, &[1]);
        refiner.turn_to(&tokens(&[1, 2, 3, 1, 2, 3]), 3);
        assert!(refiner.strengths[1] > STRENGTH_FIRST);
        refiner.turn_to(&tokens(&[1, 2, 3, 1, 2, 3]), 6);
        assert_eq!(refiner.strengths[1], STRENGTH_FIRST);
        assert_eq!(raised(&mut refiner, &[1])[2], STRENGTH_FIRST, "and knows the text");
        refiner.turn_to(&tokens(&[1, 5, 3]), 3);
        assert_eq!(raised(&mut refiner, &[1])[2], 0.0, "but no other text");
    }
}

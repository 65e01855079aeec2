//! Do outputs stray further from the target than a lossy mode promised? A test that may be looked at
//! after every token.
//!
//! Before a token is seen, the tokens that the drafter likes more than the target are singled out. How
//! much oftener than the target would one of them is said, is on average at most what the token spent,
//! for any rule; for rules whose rows lie between the target's and the drafter's it is what was spent.
//! Over the first tokens of every text, spends add up to at most the promise per token. So money that
//! is bet on more grows a thousandfold with a chance of at most one in a thousand if the promise is
//! kept (`exp(l x - psi(l) x^2) <= 1 + l x` for `x >= -1`: Fan, Grama and Liu, arXiv 1311.6273; Ville).

use forerun_verify::{Dist, Token};

/// What is bet. Small ones find a small excess in a long test, large ones a gross one soon.
const STAKES: [f64; 6] = [0.01, 0.03, 0.1, 0.2, 0.4, 0.7];

/// The money, and what was seen.
#[derive(Debug, Clone)]
pub(super) struct LossTest {
    /// What was promised per token.
    promised: f64,
    tokens: u64,
    /// Tokens where it is known what the drafter would have said.
    known: u64,
    /// How much oftener than the target would, tokens were said that the drafter likes more; and the
    /// squares of that, token by token.
    sum: f64,
    squares: f64,
}

impl LossTest {
    /// Of a promise of total variation per token.
    pub(super) fn new(promised: f64) -> Self {
        Self { promised, tokens: 0, known: 0, sum: 0.0, squares: 0.0 }
    }

    /// Sees a token, given the target's law and what the drafter would say.
    pub(super) fn see(&mut self, law: &Dist, drafter: Option<&Dist>, token: Token) {
        let more = drafter.map_or(0.0, |drafter| said_more(law, drafter, token));
        self.tokens += 1;
        self.known += u64::from(drafter.is_some());
        self.sum += more;
        self.squares += more * more;
    }

    /// Tokens seen.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The logarithm of the money, all stakes taken together.
    pub(super) fn evidence(&self) -> f64 {
        let excess = self.sum - self.promised * self.tokens as f64;
        let money = STAKES.map(|stake| stake * excess - caution(stake) * self.squares);
        let most = money.into_iter().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = money.into_iter().map(|money| (money - most).exp()).sum();
        most + (sum / STAKES.len() as f64).ln()
    }

    /// What a token spent on average, and by how much that may be wrong, 19 times of 20. Nothing is known of it
    /// if nowhere is known what the drafter would have said.
    pub(super) fn estimate(&self) -> Option<(f64, f64)> {
        if self.known == 0 {
            return None;
        }
        let count = self.tokens as f64;
        let mean = self.sum / count;
        let variance = (self.squares / count - mean * mean).max(0.0);
        Some((mean, 1.96 * (variance / count).sqrt()))
    }

    /// The smallest spend per token above the promise that would have been expected to be found by
    /// now at this false-alarm rate.
    pub(super) fn smallest_excess(&self, false_alarm: f64) -> Option<f64> {
        let count = self.tokens as f64;
        let wanted = (1.0 / false_alarm).ln() + (STAKES.len() as f64).ln();
        let of_stake = |stake: f64| (wanted + caution(stake) * self.squares) / (stake * count);
        // Without a square the drafter never liked anything more, and nothing could be found.
        let found = STAKES.into_iter().map(of_stake).reduce(f64::min);
        found.filter(|excess| self.squares > 0.0 && self.promised + excess <= 1.0)
    }
}

/// What is taken off for each square, so that no promise that is kept loses by chance.
fn caution(stake: f64) -> f64 {
    -(-stake).ln_1p() - stake
}

/// One if the drafter likes the token more than the target, less how often the target says such tokens.
fn said_more(law: &Dist, drafter: &Dist, token: Token) -> f64 {
    let liked = |token: Token| drafter.prob(token) > law.prob(token);
    let often: f64 = law.support().filter(|(token, _)| liked(*token)).map(|(_, prob)| prob).sum();
    f64::from(u8::from(liked(token))) - often
}

#[cfg(test)]
mod tests {
    use forerun_verify::{
        Block, Budget, Chance, Draft, LossyBlockRule, Node, Philox, Random, Rule as _,
    };

    use super::*;

    fn dist(weights: &[f32]) -> Dist {
        Dist::dense(weights.to_vec()).unwrap()
    }

    fn rows() -> (Dist, Dist) {
        (dist(&[0.4, 0.3, 0.2, 0.09, 0.01]), dist(&[0.25, 0.21, 0.19, 0.2, 0.15]))
    }

    /// Tokens of a mode that bends every row by a share of what the drafter likes more.
    fn tested(promised: f64, spent: f64, seed: u64, tokens: u64) -> LossTest {
        let (law, drafter) = rows();
        let mut chance = Random(Philox::new(seed));
        let mut test = LossTest::new(promised);
        // Moves `spent` from what the target likes more to what the drafter does.
        let distance: f64 =
            law.support().map(|(it, prob)| (prob - drafter.prob(it)).max(0.0)).sum();
        for _ in 0..tokens {
            let other = Chance::coin(&mut chance, spent / distance);
            let token = if other { &drafter } else { &law }.draw(&mut chance);
            test.see(&law, Some(&drafter), token);
        }
        test
    }

    const PROOF: f64 = 6.9;

    #[test]
    fn a_promise_that_is_kept_is_hardly_ever_said_to_be_broken() {
        for spent in [0.0, 0.02] {
            let accused =
                (0..300).filter(|seed| tested(0.02, spent, *seed, 3000).evidence() > PROOF);
            assert_eq!(accused.count(), 0, "{spent}: one in a thousand is");
        }
    }

    #[test]
    fn twice_the_promise_is_found_out() {
        let found = (0..20).filter(|seed| tested(0.02, 0.04, *seed, 20_000).evidence() > PROOF);
        assert!(found.count() >= 18);
    }

    #[test]
    fn the_estimate_is_what_was_spent() {
        let (mean, margin) = tested(0.02, 0.03, 7, 40_000).estimate().unwrap();
        assert!((mean - 0.03).abs() < 2.0 * margin && margin < 0.005, "{mean} ± {margin}");
    }

    /// The rule's own rows: what it says it spent is what outputs and rows tell.
    #[test]
    fn the_rule_in_use_spends_what_is_estimated() {
        let (law, drafter) = rows();
        let rule = LossyBlockRule { budget: Budget::at_every_token(0.05).unwrap() };
        let mut chance = Random(Philox::new(5));
        let mut test = LossTest::new(0.05);
        let mut said = 0.0;
        for _ in 0..20_000 {
            let drafted = drafter.draw(&mut chance);
            let draft = Draft::path(5, [(drafted, drafter.clone())]).unwrap();
            let rows = [law.clone(), law.clone()];
            let block = Block::new(&draft, &rows).unwrap();
            let verdict = rule.verify(&block, &mut chance).unwrap();
            let first = if verdict.node == Node::ROOT { verdict.next } else { drafted };
            said += rule.spent(&block, &verdict).tokens[0].distance / 20_000.0;
            test.see(&law, Some(&drafter), first);
        }
        let (mean, margin) = test.estimate().unwrap();
        assert!((mean - said).abs() < 2.0 * margin, "{mean} ± {margin} and {said}");
        assert!((said - 0.05).abs() < 1e-6 && test.evidence() < 0.0, "{said}");
    }

    #[test]
    fn the_smallest_excess_says_what_would_be_found() {
        assert_eq!(LossTest::new(0.02).smallest_excess(1e-3), None, "nothing was seen");
        let excess = tested(0.02, 0.02, 3, 4000).smallest_excess(1e-3).unwrap();
        let found =
            (0..20).filter(|seed| tested(0.02, 0.02 + excess, *seed, 4000).evidence() > PROOF);
        assert!((5..=18).contains(&found.clone().count()), "{} at {excess}", found.count());
    }

    #[test]
    fn a_drafter_that_likes_nothing_more_tells_nothing() {
        let (law, _) = rows();
        let mut test = LossTest::new(0.02);
        for _ in 0..100 {
            test.see(&law, Some(&law), Token(0));
            test.see(&law, None, Token(0));
        }
        assert_eq!((test.estimate(), test.smallest_excess(1e-3)), (Some((0.0, 0.0)), None));
    }

    #[test]
    fn without_the_drafters_rows_there_is_no_estimate() {
        let mut test = LossTest::new(0.02);
        test.see(&rows().0, None, Token(0));
        assert_eq!((test.estimate(), test.tokens()), (None, 1));
    }
}

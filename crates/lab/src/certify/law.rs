//! Do tokens follow the laws they should? A test that may be looked at after every token.
//!
//! Plain decoding's law is known: the target's own row, shaped as the user wants it. So drafted
//! tokens need not be compared with other samples; each is held against the law it should have been
//! drawn from. The test bets on each token before it is seen. A bet says how likely some other law,
//! such as the drafter's, makes it; if the token does follow the target, no way of betting gains on
//! average, and the chance that the money ever grows a thousandfold is one in a thousand (Ville). So
//! it may stop whenever it likes, and its false-alarm rate holds.
//!
//! Bets know the text before a token and nothing else: where rounds begin and what was drafted is
//! not independent of the token.

use forerun_verify::{Dist, Token};

/// Shares of the money that are put on a bet. Small ones find rare faults, large ones gross ones.
const STAKES: [f64; 6] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3];

/// How many other laws are bet on.
const LAWS: usize = 10;

/// What is given away so that a token just outside a cut, which rounding may bring about, is not
/// taken for impossible.
const LEEWAY: f64 = 1e-4;

/// A token is lucky where the drafter held it for this much likelier than the target.
const LUCKY: f64 = 0.8;

/// What is known before a token is seen.
pub(super) struct Position<'a> {
    /// Its law by plain decoding.
    pub(super) law: &'a Dist,
    /// The same without cuts (top-k and the like).
    pub(super) uncut: &'a Dist,
    /// The same without penalties and biases.
    pub(super) bare: &'a Dist,
    /// What the drafter would say here, where that is known.
    pub(super) drafter: Option<&'a Dist>,
    /// How much likelier the target held the token before than the drafter did.
    pub(super) luck: f64,
}

/// The money, and how it was made.
#[derive(Debug, Clone)]
pub(super) struct LawTest {
    /// Logarithms, law by law and stake by stake.
    money: [[f64; STAKES.len()]; LAWS],
    tokens: u64,
    power: Power,
}

impl Default for LawTest {
    fn default() -> Self {
        Self { money: [[0.0; STAKES.len()]; LAWS], tokens: 0, power: Power::default() }
    }
}

impl LawTest {
    /// Bets on a token, then sees it.
    pub(super) fn see(&mut self, position: &Position<'_>, token: Token) {
        let sums = Sums::of(position);
        for (law, money) in self.money.iter_mut().enumerate() {
            let ratio = sums.ratio(position, law, token);
            for (stake, money) in STAKES.iter().zip(money) {
                *money += (1.0 + stake * (ratio - 1.0)).ln();
            }
        }
        if self.tokens.is_multiple_of(Power::EVERY) {
            self.power.add(position);
        }
        self.tokens += 1;
    }

    /// Tokens seen.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The logarithm of the money, all bets taken together.
    pub(super) fn evidence(&self) -> f64 {
        let all = self.money.iter().flatten();
        let most = all.clone().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = all.map(|money| (money - most).exp()).sum();
        most + (sum / (LAWS * STAKES.len()) as f64).ln()
    }

    /// The smallest share of tokens that, had they come from the drafter's law instead of the
    /// target's, would have been expected to be found out by now at this false-alarm rate.
    pub(super) fn smallest_share(&self, false_alarm: f64) -> Option<f64> {
        let wanted = (1.0 / false_alarm).ln() + ((LAWS * STAKES.len()) as f64).ln();
        self.power.smallest_share(self.tokens, wanted)
    }
}

/// Sums over a row that bets need.
struct Sums {
    /// What target and drafter have in common.
    overlap: f64,
    squares: f64,
    roots: f64,
    favourite: Option<Token>,
}

impl Sums {
    fn of(position: &Position<'_>) -> Self {
        let mut sums = Self { overlap: 0.0, squares: 0.0, roots: 0.0, favourite: None };
        for (token, prob) in position.law.support() {
            sums.squares += prob * prob;
            sums.roots += prob.sqrt();
            if let Some(drafter) = position.drafter {
                sums.overlap += prob.min(drafter.prob(token));
            }
        }
        if let Some(drafter) = position.drafter {
            let best = drafter.support().max_by(|one, other| one.1.total_cmp(&other.1));
            sums.favourite = best.map(|(token, _)| token);
        }
        sums
    }

    /// How much likelier another law makes the token than the one it should follow; one where
    /// nothing is bet. Its mean under the law is at most one, whatever the law.
    fn ratio(&self, position: &Position<'_>, law: usize, token: Token) -> f64 {
        let prob = position.law.prob(token);
        let drafted = position.drafter.map(|drafter| drafter.prob(token));
        let rest = 1.0 - self.overlap;
        let residual = |drafted: f64| {
            if rest > 1e-6 { Some((prob - drafted).max(0.0) / rest) } else { None }
        };
        let other = match (law, drafted) {
            // The drafter's.
            (0, Some(drafted)) => Some(drafted),
            // What it shares with the target, and what it does not.
            (1, Some(drafted)) if self.overlap > 1e-6 => Some(prob.min(drafted) / self.overlap),
            (2, Some(drafted)) => residual(drafted),
            // The latter after a lucky token, where a block's residual is not a token's.
            (3, Some(drafted)) if position.luck < LUCKY => residual(drafted),
            // The drafter's likeliest token.
            (4, Some(_)) => self.favourite.map(|best| f64::from(u8::from(best == token))),
            // What it wants more of than the target: what is accepted and should not be.
            (9, Some(drafted)) if rest > 1e-6 => Some((drafted - prob).max(0.0) / rest),
            // Colder and warmer.
            (5, _) => Some(prob * prob / self.squares),
            (6, _) => Some(prob.sqrt() / self.roots),
            // Nothing cut, nothing penalised.
            (7, _) => Some(position.uncut.prob(token)),
            (8, _) => Some(position.bare.prob(token)),
            _ => None,
        };
        other.map_or(1.0, |other| other / smoothed(position, token) * (1.0 - LEEWAY))
    }
}

/// The law with a little of the uncut one.
fn smoothed(position: &Position<'_>, token: Token) -> f64 {
    let (law, uncut) = (position.law.prob(token), position.uncut.prob(token));
    // A token that not even the uncut law knows is forbidden by a bias: any bet on it wins.
    ((1.0 - LEEWAY) * law + LEEWAY * uncut).max(f64::MIN_POSITIVE)
}

/// What the bet on the drafter's law gains on average: if tokens follow the target, and if they
/// follow the drafter.
#[derive(Debug, Clone, Default)]
struct Power {
    positions: u64,
    target: [f64; STAKES.len()],
    drafter: [f64; STAKES.len()],
}

impl Power {
    /// Sums over whole rows are dear; some positions do.
    const EVERY: u64 = 8;

    fn add(&mut self, position: &Position<'_>) {
        self.positions += 1;
        // Where the drafter says nothing, no token is its.
        let Some(drafter) = position.drafter else { return };
        let gains = |prob: f64, token: Token, stake: f64| {
            let ratio = drafter.prob(token) / smoothed(position, token) * (1.0 - LEEWAY);
            prob * (1.0 + stake * (ratio - 1.0)).ln()
        };
        for (index, stake) in STAKES.into_iter().enumerate() {
            let sum =
                |law: &Dist| law.support().map(|(token, prob)| gains(prob, token, stake)).sum();
            let (target, drafted): (f64, f64) = (sum(position.law), sum(drafter));
            self.target[index] += target;
            self.drafter[index] += drafted;
        }
    }

    fn smallest_share(&self, tokens: u64, wanted: f64) -> Option<f64> {
        let each = wanted / (tokens as f64).max(1.0);
        let count = (self.positions as f64).max(1.0);
        let of_stake = |index: usize| {
            let (target, drafter) = (self.target[index] / count, self.drafter[index] / count);
            let share = (each - target) / (drafter - target);
            (drafter > target && share <= 1.0).then_some(share)
        };
        (0..STAKES.len()).filter_map(of_stake).reduce(f64::min)
    }
}

#[cfg(test)]
mod tests {
    use forerun_verify::{Philox, Random};

    use super::*;

    fn dist(weights: &[f32]) -> Dist {
        Dist::dense(weights.to_vec()).unwrap()
    }

    /// Tokens from a mixture of target and drafter, until the money is a thousandfold.
    fn found_after(share: f64, seed: u64, limit: u64) -> Option<u64> {
        let target = dist(&[0.4, 0.3, 0.2, 0.09, 0.01]);
        let drafter = dist(&[0.3, 0.1, 0.2, 0.1, 0.3]);
        let mut chance = Random(Philox::new(seed));
        let mut test = LawTest::default();
        for _ in 0..limit {
            let position = Position {
                law: &target,
                uncut: &target,
                bare: &target,
                drafter: Some(&drafter),
                luck: 1.0,
            };
            let wrong = forerun_verify::Chance::coin(&mut chance, share);
            let token = if wrong { &drafter } else { &target }.draw(&mut chance);
            test.see(&position, token);
            if test.evidence() > 1000.0_f64.ln() {
                return Some(test.tokens());
            }
        }
        None
    }

    #[test]
    fn what_follows_its_law_is_hardly_ever_accused() {
        let accused = (0..200).filter(|seed| found_after(0.0, *seed, 2000).is_some()).count();
        assert_eq!(accused, 0, "one in a thousand is");
    }

    #[test]
    fn a_few_tokens_from_elsewhere_are_found_out() {
        let mut after: Vec<u64> =
            (0..20).map(|seed| found_after(0.05, seed, 20_000).expect("it is found")).collect();
        after.sort_unstable();
        assert!(after[10] < 3000, "{after:?}");
    }

    #[test]
    fn the_smallest_share_says_what_would_be_found() {
        let (law, drafter) = (dist(&[0.4, 0.3, 0.2, 0.09, 0.01]), dist(&[0.3, 0.1, 0.2, 0.1, 0.3]));
        let mut test = LawTest::default();
        let mut chance = Random(Philox::new(3));
        let share = |test: &LawTest| test.smallest_share(1e-3);
        for count in 1..=4000 {
            let position =
                Position { law: &law, uncut: &law, bare: &law, drafter: Some(&drafter), luck: 1.0 };
            test.see(&position, law.draw(&mut chance));
            if count == 5 {
                assert_eq!(share(&test), None, "five tokens say nothing");
            }
        }
        // With this share the median over seeds is found at about as many tokens.
        let share = share(&test).unwrap();
        let found = (0..20).filter(|seed| found_after(share, *seed, 4000).is_some()).count();
        assert!((5..=18).contains(&found), "{found} of 20 at a share of {share}");
    }

    #[test]
    fn a_drafter_that_says_little_is_found_out_later() {
        let (law, drafter) = (dist(&[0.4, 0.3, 0.2, 0.09, 0.01]), dist(&[0.3, 0.1, 0.2, 0.1, 0.3]));
        let share = |silent: u64| {
            let mut test = LawTest::default();
            for count in 0..8000 {
                let drafter =
                    Some(&drafter).filter(|_| (count / Power::EVERY).is_multiple_of(silent));
                let position = Position { law: &law, uncut: &law, bare: &law, drafter, luck: 1.0 };
                test.see(&position, Token(0));
            }
            test.smallest_share(1e-3).unwrap()
        };
        assert!(share(4) > 1.5 * share(1), "{} and {}", share(4), share(1));
    }

    #[test]
    fn a_few_tokens_that_cannot_follow_are_enough() {
        let (law, uncut) = (dist(&[1.0, 0.0, 0.0]), dist(&[0.5, 0.3, 0.2]));
        let position = Position { law: &law, uncut: &uncut, bare: &law, drafter: None, luck: 1.0 };
        let mut test = LawTest::default();
        for _ in 0..100 {
            test.see(&position, Token(0));
        }
        assert!(test.evidence() <= 1e-9, "{}", test.evidence());
        for token in [1, 2, 1, 2].map(Token) {
            test.see(&position, token);
        }
        assert!(test.evidence() > 1000.0_f64.ln(), "{}", test.evidence());
    }
}

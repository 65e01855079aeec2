//! How often each source of a draft is right, learned as it goes.

use super::super::rate::{EARLIER_MAX, OWN_MAX, Rate};

/// Where a proposed token comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The beginning of an original that was told: many an output begins with something else.
    Start,
    /// The original, after so many tokens in a row that agreed with it.
    Original(usize),
    /// The original, so many tokens into a difference.
    Guess(usize),
    /// The original where a difference began, so many tokens into it: they were inserted.
    Resumed(usize),
    /// The first token of a replacement that was seen before.
    Replacement,
    /// A further token of one.
    Replacing,
    /// What followed the last so many tokens in the output itself.
    Output(usize),
}

impl Source {
    /// Whether it is the original, as it is or as it was changed, and not the output itself.
    pub(super) fn is_original(self) -> bool {
        !matches!(self, Self::Output(_))
    }
}

/// What the other source proposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Agreement {
    /// Nothing.
    Alone,
    /// The same token.
    Agrees,
    /// Another one.
    Differs,
}

/// Runs, contexts and differences of more tokens than this are not told apart.
const LEN_MAX: usize = 8;
const SOURCES: usize = 4 * (LEN_MAX + 1) + 3;
const AGREEMENTS: usize = 3;

/// How often each source is right, by what the other one proposes.
#[derive(Debug, Clone)]
pub(super) struct Rates([[Rate; AGREEMENTS]; SOURCES]);

/// The longer the run or the context, the likelier; the longer the difference, the less.
impl Default for Rates {
    fn default() -> Self {
        let mut rates = Self([[Rate::guessed(0.8); AGREEMENTS]; SOURCES]);
        for len in 0..=LEN_MAX {
            let sure = 1.0 - 1.0 / (2.0 + len as f32);
            // At equal lengths the original is the better guess.
            let sources = [
                (Source::Original(len), sure),
                (Source::Output(len), 0.9 * sure),
                (Source::Guess(len), 1.0 - sure),
                (Source::Resumed(len), 1.0 - sure),
            ];
            for (source, sure) in sources {
                rates.0[index(source)] = [sure, sure.sqrt(), sure / 2.0].map(Rate::guessed);
            }
        }
        rates
    }
}

impl Rates {
    /// What a new sequence begins with: the same rates, of which it is less sure.
    pub(super) fn prior(&self) -> Self {
        let mut own = self.clone();
        own.0.iter_mut().flatten().for_each(|rate| rate.bound(EARLIER_MAX));
        own
    }

    /// The estimated chance that a source is right.
    pub(super) fn chance(&self, source: Source, agreement: Agreement) -> f64 {
        let rate = self.0[index(source)][agreement as usize];
        f64::from(rate.chance())
    }

    pub(super) fn learn(&mut self, source: Source, agreement: Agreement, right: bool) {
        self.0[index(source)][agreement as usize].learn(right, 1.0, OWN_MAX);
    }
}

fn index(source: Source) -> usize {
    let lens = |kind: usize, len: usize| kind * (LEN_MAX + 1) + len.min(LEN_MAX);
    match source {
        Source::Original(run) => lens(0, run),
        Source::Output(len) => lens(1, len),
        Source::Guess(gap) => lens(2, gap),
        Source::Resumed(gap) => lens(3, gap),
        Source::Start => SOURCES - 3,
        Source::Replacement => SOURCES - 2,
        Source::Replacing => SOURCES - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_more_often_is_likelier() {
        let mut rates = Rates::default();
        let before = rates.chance(Source::Replacement, Agreement::Alone);
        (0..10).for_each(|_| rates.learn(Source::Replacement, Agreement::Alone, true));
        assert!(rates.chance(Source::Replacement, Agreement::Alone) > before);
        assert_eq!(rates.chance(Source::Replacement, Agreement::Differs), before);
        assert_eq!(rates.chance(Source::Replacing, Agreement::Alone), before);
    }

    #[test]
    fn a_new_sequence_learns_faster_than_an_old_one() {
        let mut rates = Rates::default();
        (0..1000).for_each(|_| rates.learn(Source::Original(8), Agreement::Alone, true));
        let (mut old, mut new) = (rates.clone(), rates.prior());
        for rates in [&mut old, &mut new] {
            (0..4).for_each(|_| rates.learn(Source::Original(8), Agreement::Alone, false));
        }
        let chance = |rates: &Rates| rates.chance(Source::Original(8), Agreement::Alone);
        assert!(chance(&new) < 0.8 && chance(&old) > 0.9);
    }
}

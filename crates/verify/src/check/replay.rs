//! Every outcome of a random procedure, with its probability.

use crate::chance::{Chance, Weights};

/// Runs `procedure` once for every outcome of its choices and hands each result to `each` with
/// its probability.
///
/// The procedure must choose through the given [`Chance`] alone and be otherwise deterministic.
///
/// ```
/// use forerun_verify::{check::outcomes, Chance};
/// let mut heads = [0.0; 3];
/// outcomes(
///     |chance| usize::from(chance.coin(0.5)) + usize::from(chance.coin(0.25)),
///     |probability, count| heads[count] += probability,
/// );
/// assert_eq!(heads, [0.375, 0.5, 0.125]);
/// ```
pub fn outcomes<T>(mut procedure: impl FnMut(&mut dyn Chance) -> T, mut each: impl FnMut(f64, T)) {
    let mut open: Vec<Vec<usize>> = vec![vec![]];
    while let Some(forced) = open.pop() {
        let mut replay = Replay { forced, at: 0, probability: 1.0, open: &mut open };
        let result = procedure(&mut replay);
        let probability = replay.probability;
        each(probability, result);
    }
}

/// Answers the first choices as told, then takes the first outcome and notes the others down.
struct Replay<'a> {
    forced: Vec<usize>,
    at: usize,
    probability: f64,
    open: &'a mut Vec<Vec<usize>>,
}

impl Replay<'_> {
    fn choose(&mut self, choices: &[(usize, f64)]) -> usize {
        // A choice without alternative is none, and is not recorded.
        if let [(only, _)] = choices {
            return *only;
        }
        if self.at == self.forced.len() {
            for (index, _) in &choices[1..] {
                let mut other = self.forced.clone();
                other.push(*index);
                self.open.push(other);
            }
            self.forced.push(choices[0].0);
        }
        let chosen = self.forced[self.at];
        self.at += 1;
        let total: f64 = choices.iter().map(|(_, weight)| weight).sum();
        let weight = choices.iter().find(|(index, _)| *index == chosen).map(|(_, weight)| weight);
        self.probability *= weight.expect("the procedure is deterministic") / total;
        chosen
    }
}

impl Chance for Replay<'_> {
    fn coin(&mut self, probability: f64) -> bool {
        assert!(!probability.is_nan(), "a coin was tossed with a probability that is NaN");
        if probability <= 0.0 || probability >= 1.0 {
            return probability >= 1.0;
        }
        self.choose(&[(1, probability), (0, 1.0 - probability)]) == 1
    }

    fn pick(&mut self, weights: &dyn Weights) -> usize {
        let mut choices = Vec::new();
        weights.visit(&mut |index, weight| choices.push((index, weight)));
        assert!(!choices.is_empty(), "a pick from weights that are all zero");
        self.choose(&choices)
    }
}

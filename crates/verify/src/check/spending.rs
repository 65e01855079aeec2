//! What a rule really spends, by enumeration: how far the distribution it gives each token is from
//! the target's.

use std::collections::BTreeMap;

use super::{Finding, Model};
use crate::dist::Token;
use crate::promise::Budget;

/// Prefixes reached less often than this say nothing: their rows are rounding.
const REACHED_MIN: f64 = 1e-12;

/// How far a bound may be exceeded by rounding.
const ROUNDING: f64 = 1e-12;

/// What enumeration found that a rule spends on a model.
///
/// Given that the accepted path reaches a prefix, the token after it, accepted or next, has some
/// distribution: the *bent row*. A lossless rule's is the target's row.
///
/// ```
/// use forerun_verify::{check::*, Budget, LossyBlockRule};
/// let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
/// let budget = Budget::at_every_token(0.05)?;
/// let finding = examine(&model, &drafting::paths(1), &LossyBlockRule { budget })?;
/// let spending = finding.spending(&model);
/// assert!(spending.keeps(&budget) && spending.worst > 0.01);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Spending {
    /// The largest total variation between a bent row and the target's.
    pub worst: f64,
    /// The most by which a bent row multiplies a probability of the target.
    pub factor: f64,
    /// The most probability that a bent row gives to tokens the target never says.
    pub outside: f64,
    /// The largest difference between what the rule says that a token spent and what it did.
    pub books: f64,
    /// The total variation at each prefix the accepted path reaches.
    pub spends: BTreeMap<Vec<Token>, f64>,
}

impl Finding {
    /// What the rule spends on the model it was examined on.
    ///
    /// ```
    /// # use forerun_verify::{check::*, BlockRule};
    /// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
    /// let finding = examine(&model, &drafting::paths(1), &BlockRule)?;
    /// assert!(finding.spending(&model).worst < 1e-12);
    /// # Ok::<(), forerun_verify::Refusal>(())
    /// ```
    pub fn spending(&self, model: &Model) -> Spending {
        let mut spending =
            Spending { worst: 0.0, factor: 1.0, outside: 0.0, books: 0.0, spends: BTreeMap::new() };
        for (prefix, row) in self.bent_rows(model.shape().vocab_len) {
            let target = model.target(&prefix);
            let (mut above, mut outside) = (0.0, 0.0);
            for (index, bent) in row.iter().enumerate() {
                let probability = target.prob(Token::at(index));
                above += (bent - probability).max(0.0);
                if probability == 0.0 {
                    outside += bent;
                } else if probability > REACHED_MIN {
                    spending.factor = spending.factor.max(bent / probability);
                }
            }
            spending.worst = spending.worst.max(above);
            spending.outside = spending.outside.max(outside);
            let said = self.said.get(&prefix).copied().unwrap_or(0.0);
            spending.books = spending.books.max((said - above).abs());
            spending.spends.insert(prefix, above);
        }
        spending
    }

    /// The distribution of the token after each prefix that the accepted path reaches.
    fn bent_rows(&self, vocab_len: usize) -> BTreeMap<Vec<Token>, Vec<f64>> {
        let mut reached: BTreeMap<Vec<Token>, (f64, Vec<f64>)> = BTreeMap::new();
        for (path, nexts) in &self.exits {
            for (next, probability) in nexts {
                for depth in 0..=path.len() {
                    let token = path.get(depth).unwrap_or(next);
                    let (weight, row) = reached
                        .entry(path[..depth].to_vec())
                        .or_insert_with(|| (0.0, vec![0.0; vocab_len]));
                    *weight += probability;
                    row[token.index()] += probability;
                }
            }
        }
        reached.retain(|_, (weight, _)| *weight > REACHED_MIN);
        let normal = |(weight, row): (f64, Vec<f64>)| row.iter().map(|p| p / weight).collect();
        reached.into_iter().map(|(prefix, reached)| (prefix, normal(reached))).collect()
    }
}

impl Spending {
    /// The most by which spends along a path of a new text exceed what its tokens earned so far; at
    /// most rounding if the account is never overdrawn.
    ///
    /// ```
    /// # use forerun_verify::{check::*, Budget, LossyBlockRule};
    /// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
    /// let budget = Budget::on_account(0.05)?;
    /// let finding = examine(&model, &drafting::paths(1), &LossyBlockRule { budget })?;
    /// assert!(finding.spending(&model).overdrawn(budget.per_token(), budget.per_token()) < 1e-12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn overdrawn(&self, opening: f64, per_token: f64) -> f64 {
        let along = |prefix: &Vec<Token>| {
            let paid: f64 = (0..=prefix.len()).filter_map(|n| self.spends.get(&prefix[..n])).sum();
            paid - (opening + per_token * prefix.len() as f64)
        };
        self.spends.keys().map(along).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Whether a rule on a new text kept a budget, and its books, but for rounding.
    ///
    /// ```
    /// # use forerun_verify::{check::*, BlockRule, Budget};
    /// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
    /// let finding = examine(&model, &drafting::paths(1), &BlockRule)?;
    /// assert!(finding.spending(&model).keeps(&Budget::at_every_token(0.0)?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keeps(&self, budget: &Budget) -> bool {
        let exceeded = [
            self.worst - budget.step(),
            self.factor / budget.factor() - 1.0,
            self.outside,
            self.books,
            self.overdrawn(budget.per_token(), budget.per_token()),
        ];
        exceeded.into_iter().all(|by| by <= ROUNDING)
    }
}

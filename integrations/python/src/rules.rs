//! Any rule on a draft of any shape.

use forerun_verify as verify;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use verify::{
    Block, BlockRule, CoupledRule, Dist, GbvRule, LossyBlockRule, LossyNearRule, NssRule, PathRule,
    Philox, PooledRule, Promise, Random, RsdRule, Rule, SpecInferRule, SpecTrRule, TokenRule,
    TraversalRule, Verdict,
};

use crate::arrays::Held;
use crate::chance::Asking;
use crate::draft::Draft;
use crate::errors;
use crate::promise::{Budget, Near};
use crate::rows::{Array, Row};

/// The names of all lossless rules.
#[pyfunction]
pub(crate) fn rules() -> Vec<&'static str> {
    lossless(0).iter().map(|rule| rule.name()).collect()
}

/// The names of the rules that change the output, within a bound that the caller states.
#[pyfunction]
pub(crate) fn lossy_rules() -> [&'static str; 2] {
    [LOSSY_BLOCK, LOSSY_NEAR]
}

/// The names of the rules for one path that are judged straight from arrays.
#[pyfunction]
pub(crate) fn path_rules() -> Vec<&'static str> {
    PathRule::ALL.iter().map(|rule| rule.name()).collect()
}

const LOSSY_BLOCK: &str = "lossy-block";
const LOSSY_NEAR: &str = "lossy-near";

fn lossless(seed: u64) -> [Box<dyn Rule>; 10] {
    [
        Box::new(BlockRule),
        Box::new(PooledRule),
        Box::new(TraversalRule),
        Box::new(NssRule),
        Box::new(CoupledRule { noise: verify::Noise::new(seed) }),
        Box::new(TokenRule),
        Box::new(SpecInferRule),
        Box::new(SpecTrRule),
        Box::new(RsdRule),
        Box::new(GbvRule::default()),
    ]
}

/// What Python asks for: attributes of an object.
#[derive(FromPyObject)]
pub(crate) struct Asked {
    rule: String,
    seed: u64,
    /// Answers instead of the seed.
    chance: Option<Py<PyAny>>,
    position: u64,
    budget: Option<Py<Budget>>,
    near: Option<Py<Near>>,
    /// What the account of a lossy rule holds; none at the start of a text.
    balance: Option<f64>,
    gaps: Option<Vec<f64>>,
}

impl Asked {
    fn rule(&self) -> PyResult<Box<dyn Rule>> {
        let name = self.rule.as_str();
        match (name, &self.budget, &self.near) {
            (LOSSY_BLOCK, Some(budget), _) => {
                Ok(Box::new(LossyBlockRule { budget: budget.get().0 }))
            }
            (LOSSY_NEAR, _, Some(near)) => Ok(Box::new(LossyNearRule { near: near.get().0 })),
            _ => {
                lossless(self.seed).into_iter().find(|rule| rule.name() == name).ok_or_else(|| {
                    let known = [rules(), lossy_rules().to_vec()].concat().join(", ");
                    PyValueError::new_err(format!("rule {name:?}; expected one of {known}"))
                })
            }
        }
    }

    fn block<'a>(&'a self, draft: &'a Draft, rows: &'a [Dist]) -> PyResult<Block<'a>> {
        let block = Block::new(&draft.0, rows).map_err(errors::block)?.at(self.position);
        let block = match &self.gaps {
            Some(gaps) => block.with_gaps(gaps).map_err(errors::block)?,
            None => block,
        };
        match self.balance {
            Some(balance) if balance.is_nan() => Err(PyValueError::new_err("the balance is NaN")),
            Some(balance) => Ok(block.holding(balance)),
            None => Ok(block),
        }
    }
}

/// Distance, factor and balance of each committed token.
type Spends = Vec<(f64, f64, f64)>;

/// What a verdict spent, unless the rule is lossless.
fn spends(rule: &dyn Rule, block: &Block<'_>, verdict: &Verdict) -> Option<Spends> {
    (rule.promise() != Promise::Lossless).then(|| {
        let spent = rule.spent(block, verdict).tokens;
        spent.iter().map(|spend| (spend.distance, spend.factor, spend.balance)).collect()
    })
}

/// Judges a draft: the last accepted node, how many tokens are accepted, the next one, and what a lossy
/// rule spent.
#[pyfunction]
pub(crate) fn verify_block(
    py: Python<'_>,
    draft: &Draft,
    rows: Vec<PyRef<'_, Row>>,
    asked: Asked,
) -> PyResult<(usize, usize, u32, Option<Spends>)> {
    let rule = asked.rule()?;
    let rows: Vec<Dist> = rows.iter().map(|row| row.0.clone()).collect();
    let block = asked.block(draft, &rows)?;
    let (verdict, spent) = match &asked.chance {
        None => py.detach(|| {
            let verdict = rule.verify(&block, &mut Random(Philox::new(asked.seed)))?;
            Ok((verdict, spends(&*rule, &block, &verdict)))
        }),
        Some(chance) => {
            let mut asking = Asking::new(chance.bind(py));
            let verdict = rule.verify(&block, &mut asking);
            asking.answered()?;
            verdict.map(|verdict| (verdict, spends(&*rule, &block, &verdict)))
        }
    }
    .map_err(errors::refusal)?;
    Ok((verdict.node.index(), verdict.accepted, verdict.next.0, spent))
}

/// How many nats below the target's best each drafted token is, from the logits at the root and after
/// each node. Rows that are missing are left to `verify_block` to name.
#[pyfunction]
pub(crate) fn gaps(draft: &Draft, logits: Array<'_>) -> PyResult<Vec<f64>> {
    let held = Held::new(&logits.0, &logits.1)?;
    let rows = held.rows()?;
    let gap = |(_, token, parent): (verify::Node, verify::Token, verify::Node)| {
        let row = rows.get(parent.index()).filter(|row| token.index() < row.len())?;
        let best = (0..row.len()).map(|index| row.get(index)).fold(f32::NEG_INFINITY, f32::max);
        Some(f64::from(best) - f64::from(row.get(token.index())))
    };
    Ok(draft.0.nodes().map(|node| gap(node).unwrap_or(f64::INFINITY)).collect())
}

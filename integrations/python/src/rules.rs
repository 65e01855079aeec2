//! Any rule on a draft of any shape.

use forerun_verify as verify;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use verify::{
    BlockRule, CoupledRule, Dist, GbvRule, NssRule, PathRule, Philox, PooledRule, Random, RsdRule,
    Rule, SpecInferRule, SpecTrRule, TokenRule, TraversalRule,
};

use crate::draft::Draft;
use crate::errors;
use crate::rows::Row;

/// The names of all rules.
#[pyfunction]
pub(crate) fn rules() -> Vec<&'static str> {
    all(0).iter().map(|rule| rule.name()).collect()
}

/// The names of the rules for one path.
#[pyfunction]
pub(crate) fn path_rules() -> Vec<&'static str> {
    PathRule::ALL.iter().map(|rule| rule.name()).collect()
}

fn all(seed: u64) -> [Box<dyn Rule>; 10] {
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

fn named(name: &str, seed: u64) -> PyResult<Box<dyn Rule>> {
    let found = all(seed).into_iter().find(|rule| rule.name() == name);
    found.ok_or_else(|| {
        PyValueError::new_err(format!("rule {name:?}; expected one of {}", rules().join(", ")))
    })
}

/// Judges a draft: the last accepted node, how many tokens are accepted, and the next one.
#[pyfunction]
pub(crate) fn verify_block(
    py: Python<'_>,
    draft: &Draft,
    rows: Vec<PyRef<'_, Row>>,
    rule: &str,
    seed_and_position: (u64, u64),
) -> PyResult<(usize, usize, u32)> {
    let (seed, position) = seed_and_position;
    let rule = named(rule, seed)?;
    let rows: Vec<Dist> = rows.iter().map(|row| row.0.clone()).collect();
    let draft = &draft.0;
    py.detach(|| {
        let block = verify::Block::new(draft, &rows).map_err(errors::block)?.at(position);
        let mut chance = Random(Philox::new(seed));
        let verdict = rule.verify(&block, &mut chance).map_err(errors::refusal)?;
        Ok((verdict.node.index(), verdict.accepted, verdict.next.0))
    })
}

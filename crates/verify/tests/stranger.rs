//! A rule over trees, written with the public parts alone, and proved as ours are.

#![expect(clippy::unwrap_used, reason = "a test")]

use forerun_verify::check::{Drafting, Kind, Model, Shape, drafting, examine};
use forerun_verify::*;

/// Recursive rejection, as a stranger would write it: what is left of the target after a rejected
/// candidate goes to the next one.
#[derive(Debug)]
struct Recursive {
    /// The mistake that shipped: a token drawn twice is tried once.
    drops_duplicates: bool,
}

impl Recursive {
    fn next(&self, block: &Block<'_>, node: Node, chance: &mut dyn Chance) -> Token {
        let (draft, target) = (block.draft(), block.target(node));
        let mut taken = Vec::new();
        let mut tried = Vec::new();
        for candidate in draft.candidates(node) {
            if self.drops_duplicates && tried.contains(&candidate.child) {
                continue;
            }
            tried.push(candidate.child);
            let residual = Residual::new((1.0, target), taken.iter().copied());
            let (token, proposal) = (draft.token(candidate.child), draft.proposal(*candidate));
            if residual.mass() <= 0.0 {
                break;
            }
            let share = residual.weight(token) / residual.mass();
            if chance.coin(share / proposal.prob(token)) {
                return token;
            }
            taken.push((residual.mass(), proposal));
        }
        Residual::new((1.0, target), taken).draw(chance)
    }
}

impl Rule for Recursive {
    fn name(&self) -> &'static str {
        "recursive"
    }

    fn admits(&self, _: &Draft) -> Result<(), Refusal> {
        Ok(())
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let draft = block.draft();
        let mut node = Node::ROOT;
        loop {
            let next = self.next(block, node, chance);
            match draft.children(node).find(|child| draft.token(*child) == next) {
                Some(child) => {
                    assert_eq!(draft.parent(child), Some(node));
                    node = child;
                }
                None => return Verdict { node, accepted: draft.depth(node), next },
            }
        }
    }
}

fn worst(rule: &dyn Rule, drafting: &dyn Drafting) -> f64 {
    let shape = Shape { vocab_len: 3, len: 2 };
    let models = Kind::ALL.into_iter().flat_map(|kind| (0..3).map(move |seed| (kind, seed)));
    let errors = models.map(|(kind, seed)| {
        examine(&Model::random(kind, shape, seed), drafting, rule).unwrap().worst_error
    });
    errors.fold(0.0, f64::max)
}

#[test]
fn a_strangers_rule_over_trees_is_proved() {
    let right = Recursive { drops_duplicates: false };
    assert!(worst(&right, &drafting::paths(2)) < 1e-12);
    assert!(worst(&right, &drafting::two_drafters(2)) < 1e-12);
    assert!(worst(&right, &drafting::paths_and_guess(1)) < 1e-12);
}

#[test]
fn a_strangers_mistake_is_found() {
    assert!(worst(&Recursive { drops_duplicates: true }, &drafting::paths(2)) > 1e-3);
}

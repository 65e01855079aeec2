//! How the paths of a draft model branch: one depth of a tree, drawn by the draft's scheme.
//!
//! Whether a path goes on is decided from rows and tokens above, never from what is drawn below;
//! duplicates among independent paths are kept as slots of one node.

use forerun_verify::{Chance, Dist, DraftError, Node, Scheme, Token};

use crate::draft::{Ask, Draw};

/// Where a path, or several that agree so far, may go on.
#[derive(Debug, Clone)]
pub(super) struct Tip {
    node: Node,
    /// The drafted tokens that lead to it.
    pub(super) path: Vec<Token>,
    /// Its node in the drafter's cache, or its parent's until it ran.
    pub(super) cached: usize,
    /// How many paths lead to it.
    paths: usize,
    /// The drafter's probability of `path`.
    probability: f64,
}

impl Tip {
    /// The committed text, where this many paths begin.
    pub(super) fn root(paths: usize) -> Self {
        Self { node: Node::ROOT, path: Vec::new(), cached: 0, paths, probability: 1.0 }
    }

    fn child(&self, node: Node, token: Token, probability: f64) -> Self {
        let mut path = Vec::with_capacity(self.path.len() + 1);
        path.extend_from_slice(&self.path);
        path.push(token);
        let probability = self.probability * probability;
        Self { node, path, cached: self.cached, paths: 1, probability }
    }
}

/// Draws the next depth from the drafter's law after each tip; gives the new tips.
pub(super) fn branch(ask: &mut Ask<'_>, tips: Vec<(Tip, Dist)>) -> Result<Vec<Tip>, DraftError> {
    match ask.tree.scheme() {
        Scheme::Paths | Scheme::Slots => independent(ask, tips),
        Scheme::WithoutReplacement => distinct(ask, tips),
        Scheme::Beam => beam(ask, tips),
    }
}

/// Every path draws for itself; those that agree stay together.
fn independent(ask: &mut Ask<'_>, tips: Vec<(Tip, Dist)>) -> Result<Vec<Tip>, DraftError> {
    let mut next: Vec<Tip> = Vec::new();
    for (tip, law) in tips {
        let drawn: Vec<_> = (0..tip.paths)
            .map(|_| ask.draw(tip.path.len(), &law))
            .map(|token| (token, law.prob(token)))
            .collect();
        let row = ask.tree.row(law)?;
        for (token, probability) in drawn {
            let node = ask.tree.sampled(tip.node, row, token)?;
            match next.iter_mut().find(|known| known.node == node) {
                Some(known) => known.paths += 1,
                None => next.push(tip.child(node, token, probability)),
            }
        }
    }
    Ok(next)
}

/// As many different first tokens as there are paths, then each path goes on alone.
fn distinct(ask: &mut Ask<'_>, tips: Vec<(Tip, Dist)>) -> Result<Vec<Tip>, DraftError> {
    let mut next = Vec::new();
    for (tip, law) in tips {
        let mut drawn = vec![ask.draw(tip.path.len(), &law)];
        while drawn.len() < tip.paths {
            let Some(token) = ask.draw_except(&drawn, &law) else { break };
            drawn.push(token);
        }
        let probabilities: Vec<f64> = drawn.iter().map(|token| law.prob(*token)).collect();
        let row = ask.tree.row(law)?;
        for (token, probability) in drawn.into_iter().zip(probabilities) {
            let node = ask.tree.sampled(tip.node, row, token)?;
            next.push(tip.child(node, token, probability));
        }
    }
    Ok(next)
}

/// Stochastic beam search: of all continuations of the beam, as many as there are paths, as if
/// whole paths were drawn without replacement and a prefix entered when the first path through it
/// came.
///
/// The tips are in the order in which they came. Between the arrival of one tip and the next,
/// further children of those that are there arrive; which event is next depends on the
/// probability left to each alone, for arrivals have no memory. So no perturbed scores are needed,
/// and the draft is made of plain picks, which a test can enumerate.
fn beam(ask: &mut Ask<'_>, tips: Vec<(Tip, Dist)>) -> Result<Vec<Tip>, DraftError> {
    let Draw::Chance(chance) = &mut ask.draw else { return distinct(ask, tips) };
    let mut children: Vec<Vec<Token>> = Vec::new();
    // In the order they came: whose child, and its probability there.
    let mut order: Vec<(usize, Token, f64)> = Vec::new();
    while order.len() < ask.width {
        let Some(at) = arrival(&tips, &children, *chance) else { break };
        children.resize(children.len().max(at + 1), Vec::new());
        let law = &tips[at].1;
        // Rounding may promise a child where none is left.
        let Some(token) = law.draw_except(&children[at], *chance) else { break };
        children[at].push(token);
        order.push((at, token, law.prob(token)));
    }
    let mut parents = Vec::with_capacity(tips.len());
    for (tip, law) in tips {
        parents.push((tip, ask.tree.row(law)?));
    }
    let mut next = Vec::with_capacity(order.len());
    for (at, token, probability) in order {
        let (tip, row) = &parents[at];
        let node = ask.tree.sampled(tip.node, *row, token)?;
        next.push(tip.child(node, token, probability));
    }
    Ok(next)
}

/// The tip whose child comes next: one that has come already, or the first that has not.
fn arrival(
    tips: &[(Tip, Dist)],
    children: &[Vec<Token>],
    chance: &mut dyn Chance,
) -> Option<usize> {
    let left = |(tip, law): &(Tip, Dist), taken: &[Token]| {
        let taken: f64 = taken.iter().map(|token| law.prob(*token)).sum();
        tip.probability * (1.0 - taken).max(0.0)
    };
    let mut weights: Vec<f64> =
        tips.iter().zip(children).map(|(tip, taken)| left(tip, taken)).collect();
    if weights.len() < tips.len() {
        let arrived: f64 = tips[..weights.len()].iter().map(|(tip, _)| tip.probability).sum();
        weights.push((1.0 - arrived).max(0.0));
    }
    (weights.iter().sum::<f64>() > 0.0).then(|| chance.pick(&&weights[..]))
}

//! How the paths of a draft model branch: one depth of a tree, drawn by the draft's scheme.
//!
//! Whether a path goes on is decided from rows and tokens above, never from what is drawn below;
//! duplicates among independent paths stay, as candidates of one node.

use forerun_verify::{Chance, Dist, DraftError, Node, Scheme, Token};

use crate::draft::{DraftFailure, DraftRequest, Draw};

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
    /// The end of the committed tokens, where this many paths begin.
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

/// Draws the next depth from the rows after each tip, whose distributions `dist` gives by the tip's
/// number and path. A path ends before a token if the likeliest one is less likely than
/// `confidence_min`. Returns the new tips.
pub(super) fn grow(
    request: &mut DraftRequest<'_>,
    tips: Vec<Tip>,
    confidence_min: f64,
    mut dist: impl FnMut(&mut DraftRequest<'_>, usize, &[Token]) -> Result<Dist, DraftFailure>,
) -> Result<Vec<Tip>, DraftFailure> {
    let mut going_on = Vec::with_capacity(tips.len());
    for (number, tip) in tips.into_iter().enumerate() {
        let dist = dist(request, number, &tip.path)?;
        if confidence_min == 0.0 || dist.likeliest().1 >= confidence_min {
            going_on.push((tip, dist));
        }
    }
    branch(request, going_on).map_err(unusable)
}

/// What the next token after a path is drawn from: the row as the target's would be shaped.
pub(super) fn shaped(
    request: &mut DraftRequest<'_>,
    path: &[Token],
    logits: &mut [f32],
) -> Result<Dist, DraftFailure> {
    if let Some(constraint) = &mut request.constraint {
        constraint.mask(path, logits).map_err(unusable)?;
    }
    request.sampling.row(logits, request.tokens, path).map_err(unusable)
}

fn unusable(error: impl ToString) -> DraftFailure {
    DraftFailure::Row(error.to_string())
}

/// Draws the next depth from the drafter's distribution after each tip. Returns the new tips.
fn branch(request: &mut DraftRequest<'_>, tips: Vec<(Tip, Dist)>) -> Result<Vec<Tip>, DraftError> {
    match request.tree.scheme() {
        Scheme::Paths | Scheme::Independent => independent(request, tips),
        Scheme::WithoutReplacement => distinct(request, tips),
        Scheme::Beam => beam(request, tips),
    }
}

/// Every path draws for itself; those that agree stay together.
fn independent(
    request: &mut DraftRequest<'_>,
    tips: Vec<(Tip, Dist)>,
) -> Result<Vec<Tip>, DraftError> {
    let mut next: Vec<Tip> = Vec::new();
    for (tip, dist) in tips {
        let drawn: Vec<_> = (0..tip.paths)
            .map(|_| request.draw(tip.path.len(), &dist))
            .map(|token| (token, dist.prob(token)))
            .collect();
        let row = request.tree.row(dist)?;
        for (token, probability) in drawn {
            let node = request.tree.sampled(tip.node, row, token)?;
            match next.iter_mut().find(|known| known.node == node) {
                Some(known) => known.paths += 1,
                None => next.push(tip.child(node, token, probability)),
            }
        }
    }
    Ok(next)
}

/// As many different first tokens as there are paths, then each path goes on alone.
fn distinct(
    request: &mut DraftRequest<'_>,
    tips: Vec<(Tip, Dist)>,
) -> Result<Vec<Tip>, DraftError> {
    let mut next = Vec::new();
    for (tip, dist) in tips {
        let mut drawn = vec![request.draw(tip.path.len(), &dist)];
        while drawn.len() < tip.paths {
            let Some(token) = request.draw_except(&drawn, &dist) else { break };
            drawn.push(token);
        }
        let probabilities: Vec<f64> = drawn.iter().map(|token| dist.prob(*token)).collect();
        let row = request.tree.row(dist)?;
        for (token, probability) in drawn.into_iter().zip(probabilities) {
            let node = request.tree.sampled(tip.node, row, token)?;
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
fn beam(request: &mut DraftRequest<'_>, tips: Vec<(Tip, Dist)>) -> Result<Vec<Tip>, DraftError> {
    let Draw::Chance(chance) = &mut request.draw else { return distinct(request, tips) };
    let mut children: Vec<Vec<Token>> = Vec::new();
    // In the order they came: whose child, and its probability there.
    let mut order: Vec<(usize, Token, f64)> = Vec::new();
    while order.len() < request.width {
        let Some(at) = arrival(&tips, &children, *chance) else { break };
        children.resize(children.len().max(at + 1), Vec::new());
        let dist = &tips[at].1;
        // Rounding may promise a child where none is left.
        let Some(token) = dist.draw_except(&children[at], *chance) else { break };
        children[at].push(token);
        order.push((at, token, dist.prob(token)));
    }
    let mut parents = Vec::with_capacity(tips.len());
    for (tip, dist) in tips {
        parents.push((tip, request.tree.row(dist)?));
    }
    let mut next = Vec::with_capacity(order.len());
    for (at, token, probability) in order {
        let (tip, row) = &parents[at];
        let node = request.tree.sampled(tip.node, *row, token)?;
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
    let left = |(tip, dist): &(Tip, Dist), taken: &[Token]| {
        let taken: f64 = taken.iter().map(|token| dist.prob(*token)).sum();
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

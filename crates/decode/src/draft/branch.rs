//! How the paths of a draft model branch: one depth of a tree, drawn by the draft's scheme.
//!
//! Whether a path goes on is decided from rows and tokens above, never from what is drawn below;
//! duplicates among independent paths stay, as candidates of one node.

use forerun_verify::{Chance, Dist, DraftError, Node, Scheme, Token};

use crate::draft::{DraftFailure, DraftRequest, Draw, Watched};
use crate::gate::{Drawn, PathEnd, RowView};

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
    /// How likely all of `path` is accepted, by a gate.
    reach: f64,
    /// The row after it, as a gate sees it, and its last token.
    row: Option<RowView>,
    last: Option<Drawn>,
}

/// A row as tokens are drawn from it, and as a gate sees it if there is one.
pub(super) struct Shaped {
    pub(super) dist: Dist,
    pub(super) view: Option<RowView>,
}

impl Tip {
    /// The end of the committed tokens, where this many paths begin.
    pub(super) fn root(paths: usize) -> Self {
        Self {
            node: Node::ROOT,
            path: Vec::new(),
            cached: 0,
            paths,
            probability: 1.0,
            reach: 1.0,
            row: None,
            last: None,
        }
    }

    fn child(&self, node: Node, drawn: &DrawnToken) -> Self {
        let mut path = Vec::with_capacity(self.path.len() + 1);
        path.extend_from_slice(&self.path);
        path.push(drawn.token);
        let probability = self.probability * drawn.probability;
        let last = drawn.seen.clone();
        Self { node, path, paths: 1, probability, row: None, last, ..*self }
    }

    /// As a gate sees its end.
    fn end(&self, len_max: usize) -> PathEnd {
        PathEnd { reach: self.reach, depth: self.path.len(), len_max, paths: self.paths }
    }
}

/// A token that was drawn after a tip.
struct DrawnToken {
    token: Token,
    probability: f64,
    seen: Option<Drawn>,
}

impl DrawnToken {
    fn new(token: Token, tip: &Tip, row: &Dist, temperature: f32) -> Self {
        let probability = row.prob(token);
        let seen = tip.row.as_ref().map(|view| Drawn::new(view, row, probability, temperature));
        Self { token, probability, seen }
    }
}

/// Draws the next depth from the rows after each tip, whose distributions `dist` gives by the tip's
/// number and path. A path ends before a token if the likeliest one is less likely than
/// `confidence_min`, or if the gate says so. Returns the new tips.
pub(super) fn grow(
    request: &mut DraftRequest<'_>,
    tips: Vec<Tip>,
    confidence_min: f64,
    mut row: impl FnMut(&mut DraftRequest<'_>, usize, &[Token]) -> Result<Shaped, DraftFailure>,
) -> Result<Vec<Tip>, DraftFailure> {
    let mut going_on = Vec::with_capacity(tips.len());
    for (number, mut tip) in tips.into_iter().enumerate() {
        let Shaped { dist, view } = row(request, number, &tip.path)?;
        let is_sure = confidence_min == 0.0 || dist.likeliest().1 >= confidence_min;
        tip.row = view;
        if is_sure && is_drawn_from(request, &tip) {
            going_on.push((tip, dist));
        }
    }
    let grown = branch(request, going_on).map_err(unusable)?;
    Ok(match &mut request.gate {
        Some(gate) => worth_a_pass(gate, grown, request.len_max),
        None => grown,
    })
}

/// Whether the gate lets a token be drawn from the row after a tip.
fn is_drawn_from(request: &mut DraftRequest<'_>, tip: &Tip) -> bool {
    let (Some(gate), Some(view)) = (&mut request.gate, &tip.row) else { return true };
    let draws = gate.watch.draws(&tip.end(request.len_max), view);
    gate.stopped += usize::from(!draws);
    draws
}

/// Has the gate look at the tokens that were just drawn. Returns the tips that are worth another pass.
fn worth_a_pass(gate: &mut Watched, mut tips: Vec<Tip>, len_max: usize) -> Vec<Tip> {
    for tip in &mut tips {
        let Some(last) = &tip.last else { continue };
        let (seen, chance) = gate.watch.look(tip.node, tip.path.len() - 1, last);
        tip.reach *= chance;
        gate.seen.push(seen);
    }
    tips.retain(|tip| {
        let is_whole = tip.path.len() >= len_max;
        let runs = is_whole || gate.watch.runs(&tip.end(len_max));
        gate.stopped += usize::from(!runs);
        runs
    });
    tips
}

/// What the next token after a path is drawn from: the row as the target's would be shaped.
pub(super) fn shaped(
    request: &mut DraftRequest<'_>,
    path: &[Token],
    logits: &mut [f32],
) -> Result<Shaped, DraftFailure> {
    if let Some(constraint) = &mut request.constraint {
        constraint.mask(path, logits).map_err(unusable)?;
    }
    let dist = request.sampling.row(logits, request.tokens, path).map_err(unusable)?;
    let view = request.gate.as_ref().map(|_| RowView::of(logits));
    Ok(Shaped { dist, view })
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
        let temperature = request.sampling.temperature;
        let drawn: Vec<DrawnToken> = (0..tip.paths)
            .map(|_| request.draw(tip.path.len(), &dist))
            .map(|token| DrawnToken::new(token, &tip, &dist, temperature))
            .collect();
        let row = request.tree.row(dist)?;
        for drawn in drawn {
            let node = request.tree.sampled(tip.node, row, drawn.token)?;
            match next.iter_mut().find(|known| known.node == node) {
                Some(known) => known.paths += 1,
                None => next.push(tip.child(node, &drawn)),
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
        let temperature = request.sampling.temperature;
        let drawn: Vec<DrawnToken> = drawn
            .into_iter()
            .map(|token| DrawnToken::new(token, &tip, &dist, temperature))
            .collect();
        let row = request.tree.row(dist)?;
        for drawn in drawn {
            let node = request.tree.sampled(tip.node, row, drawn.token)?;
            next.push(tip.child(node, &drawn));
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
    // In the order they came, and whose child each is.
    let mut order: Vec<(usize, DrawnToken)> = Vec::new();
    while order.len() < request.width {
        let Some(at) = arrival(&tips, &children, *chance) else { break };
        children.resize(children.len().max(at + 1), Vec::new());
        let (tip, dist) = &tips[at];
        // Rounding may promise a child where none is left.
        let Some(token) = dist.draw_except(&children[at], *chance) else { break };
        children[at].push(token);
        order.push((at, DrawnToken::new(token, tip, dist, request.sampling.temperature)));
    }
    let mut parents = Vec::with_capacity(tips.len());
    for (tip, dist) in tips {
        parents.push((tip, request.tree.row(dist)?));
    }
    let mut next = Vec::with_capacity(order.len());
    for (at, drawn) in order {
        let (tip, row) = &parents[at];
        let node = request.tree.sampled(tip.node, *row, drawn.token)?;
        next.push(tip.child(node, &drawn));
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

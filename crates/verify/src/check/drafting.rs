//! Ways to draft for a small model: one for every scheme a rule may be used with.

use super::{Drafting, Model};
use crate::chance::Chance;
use crate::dist::{Dist, Token};
use crate::draft::{Draft, DraftBuilder, Node, RowId, Scheme};

/// A draft that grows over a model, handing each row over once.
struct Growing<'a> {
    model: &'a Model,
    tree: DraftBuilder,
    rows: Vec<((usize, Vec<Token>), RowId)>,
}

impl<'a> Growing<'a> {
    fn new(scheme: Scheme, model: &'a Model) -> Self {
        let tree = Draft::start(scheme, model.shape().vocab_len);
        Self { model, tree, rows: Vec::new() }
    }

    fn row(&mut self, drafter: usize, prefix: &[Token]) -> RowId {
        let key = (drafter, prefix.to_vec());
        if let Some((_, row)) = self.rows.iter().find(|(known, _)| *known == key) {
            return *row;
        }
        let row = self.model.draft(drafter, prefix).clone();
        let row = self.tree.row(row).expect("rows of the model's vocabulary");
        self.rows.push((key, row));
        row
    }

    /// Draws one token from a drafter's row and adds it.
    fn sample(
        &mut self,
        drafter: usize,
        (node, prefix): &(Node, Vec<Token>),
        chance: &mut dyn Chance,
    ) -> (Node, Vec<Token>) {
        let token = self.model.draft(drafter, prefix).draw(chance);
        let row = self.row(drafter, prefix);
        let node = self.tree.sampled(*node, row, token).expect("drawn from the row");
        (node, [&prefix[..], &[token]].concat())
    }

    /// Draws a whole path below a node.
    fn path(&mut self, drafter: usize, from: &(Node, Vec<Token>), chance: &mut dyn Chance) {
        let mut at = from.clone();
        while at.1.len() < self.model.shape().len {
            at = self.sample(drafter, &at, chance);
        }
    }

    fn guess(&mut self, guess: impl Fn(usize) -> usize) {
        let shape = self.model.shape();
        let mut node = Node::ROOT;
        for depth in 0..shape.len {
            let token = Token::at(guess(depth) % shape.vocab_len);
            node = self.tree.fixed(node, token).expect("a token of the vocabulary");
        }
    }

    fn finish(self) -> Draft {
        self.tree.finish().expect("drafted by the scheme")
    }
}

fn root() -> (Node, Vec<Token>) {
    (Node::ROOT, vec![])
}

/// Independent whole paths of drafter 0.
///
/// ```
/// # use forerun_verify::{check::*, PooledRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 2, len: 2 }, 1);
/// assert!(examine(&model, &drafting::paths(2), &PooledRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn paths(count: usize) -> impl Drafting {
    move |model: &Model, chance: &mut dyn Chance| {
        let mut draft = Growing::new(Scheme::Paths, model);
        for _ in 0..count {
            draft.path(0, &root(), chance);
        }
        draft.finish()
    }
}

/// One shared path that branches into several before its last token.
///
/// ```
/// # use forerun_verify::{check::*, GbvRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 2, len: 2 }, 1);
/// assert!(examine(&model, &drafting::trunk(2), &GbvRule::default())?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn trunk(count: usize) -> impl Drafting {
    move |model: &Model, chance: &mut dyn Chance| {
        let mut draft = Growing::new(Scheme::Paths, model);
        let mut at = root();
        while at.1.len() + 1 < model.shape().len {
            at = draft.sample(0, &at, chance);
        }
        for _ in 0..count {
            draft.sample(0, &at, chance);
        }
        draft.finish()
    }
}

/// A path of drafter 0 and the others of drafter 1.
///
/// ```
/// # use forerun_verify::{check::*, PooledRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 2, len: 2 }, 1);
/// assert!(examine(&model, &drafting::two_drafters(2), &PooledRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn two_drafters(count: usize) -> impl Drafting {
    move |model: &Model, chance: &mut dyn Chance| {
        let mut draft = Growing::new(Scheme::Independent, model);
        for path in 0..count {
            draft.path(path.min(1), &root(), chance);
        }
        draft.finish()
    }
}

/// Sampled paths beside a fixed one.
///
/// ```
/// # use forerun_verify::{check::*, PooledRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 2, len: 2 }, 1);
/// assert!(examine(&model, &drafting::paths_and_guess(1), &PooledRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn paths_and_guess(count: usize) -> impl Drafting {
    move |model: &Model, chance: &mut dyn Chance| {
        let mut draft = Growing::new(Scheme::Independent, model);
        for _ in 0..count {
            draft.path(0, &root(), chance);
        }
        draft.guess(|depth| depth * 7 + 1);
        draft.finish()
    }
}

/// Two fixed paths, nothing sampled.
///
/// ```
/// # use forerun_verify::{check::*, NssRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
/// assert!(examine(&model, &drafting::guesses(), &NssRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn guesses() -> impl Drafting {
    |model: &Model, _: &mut dyn Chance| {
        let mut draft = Growing::new(Scheme::Independent, model);
        draft.guess(|depth| depth * 7 + 1);
        draft.guess(|depth| depth * 5 + 2);
        draft.finish()
    }
}

/// One fixed path.
///
/// ```
/// # use forerun_verify::{check::*, BlockRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
/// assert!(examine(&model, &drafting::guess(), &BlockRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn guess() -> impl Drafting {
    |model: &Model, _: &mut dyn Chance| {
        let mut draft = Growing::new(Scheme::Independent, model);
        draft.guess(|depth| depth * 7 + 1);
        draft.finish()
    }
}

/// One path that stops before a token whose row is flatter than 0.55 at its top.
///
/// ```
/// # use forerun_verify::{check::*, BlockRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
/// assert!(examine(&model, &drafting::early_stop(), &BlockRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn early_stop() -> impl Drafting {
    |model: &Model, chance: &mut dyn Chance| {
        let mut draft = Growing::new(Scheme::Independent, model);
        let mut at = root();
        while at.1.len() < model.shape().len {
            let top = model.draft(0, &at.1).support().map(|(_, p)| p).fold(0.0, f64::max);
            if top < 0.55 {
                break;
            }
            at = draft.sample(0, &at, chance);
        }
        draft.finish()
    }
}

/// A tree of independent candidates: two at the root, two after token 0 at depth one, else one.
///
/// ```
/// # use forerun_verify::{check::*, PooledRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 2, len: 2 }, 1);
/// assert!(examine(&model, &drafting::candidate_tree(), &PooledRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn candidate_tree() -> impl Drafting {
    |model: &Model, chance: &mut dyn Chance| {
        let mut draft = Growing::new(Scheme::Independent, model);
        let mut front = vec![root()];
        for depth in 0..model.shape().len {
            let mut next: Vec<(Node, Vec<Token>)> = Vec::new();
            for at in &front {
                let twice = depth == 0 || (depth == 1 && at.1 == [Token(0)]);
                for _ in 0..1 + usize::from(twice) {
                    let child = draft.sample(0, at, chance);
                    if !next.contains(&child) {
                        next.push(child);
                    }
                }
            }
            front = next;
        }
        draft.finish()
    }
}

/// At each of up to three nodes of a depth, the drafter's top token fixed and one sampled from
/// the rest.
///
/// ```
/// # use forerun_verify::{check::*, PooledRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
/// assert!(examine(&model, &drafting::top_and_rest(), &PooledRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn top_and_rest() -> impl Drafting {
    |model: &Model, chance: &mut dyn Chance| {
        let mut draft = Growing::new(Scheme::Independent, model);
        let mut front = vec![root()];
        for _ in 0..model.shape().len {
            let mut next: Vec<(Node, Vec<Token>)> = Vec::new();
            for (node, prefix) in &front {
                let row = model.draft(0, prefix);
                let (top, _) = row
                    .support()
                    .fold((Token(0), 0.0), |top, token| if token.1 > top.1 { token } else { top });
                let fixed = draft.tree.fixed(*node, top).expect("a token of the vocabulary");
                next.push((fixed, [&prefix[..], &[top]].concat()));
                let rest = row.support().filter(|(token, _)| *token != top);
                #[expect(clippy::cast_possible_truncation, reason = "the row is what is stored")]
                let rest: Vec<_> = rest.map(|(token, p)| (token, p as f32)).collect();
                if let Ok(rest) = Dist::sparse(model.shape().vocab_len, rest) {
                    let token = rest.draw(chance);
                    let row = draft.tree.row(rest).expect("of the vocabulary");
                    let child = draft.tree.sampled(*node, row, token).expect("drawn from the row");
                    next.push((child, [&prefix[..], &[token]].concat()));
                }
            }
            next.truncate(3);
            front = next;
        }
        draft.finish()
    }
}

/// Children drawn without replacement (RSD-C): `width` at the root, then one each, or `width`
/// everywhere where the model is at most two tokens deep.
///
/// ```
/// # use forerun_verify::{check::*, TraversalRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
/// assert!(examine(&model, &drafting::without_replacement(2), &TraversalRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn without_replacement(width: usize) -> impl Drafting {
    move |model: &Model, chance: &mut dyn Chance| {
        let shape = model.shape();
        let mut draft = Growing::new(Scheme::WithoutReplacement, model);
        let mut front = vec![root()];
        for depth in 0..shape.len {
            let width = if depth == 0 || shape.len <= 2 { width } else { 1 };
            let mut next = Vec::new();
            for (node, prefix) in &front {
                let row = draft.row(0, prefix);
                for token in drawn_in_turn(model.draft(0, prefix), width, chance) {
                    let child = draft.tree.sampled(*node, row, token).expect("drawn from the row");
                    next.push((child, [&prefix[..], &[token]].concat()));
                }
            }
            front = next;
        }
        draft.finish()
    }
}

fn drawn_in_turn(row: &Dist, count: usize, chance: &mut dyn Chance) -> Vec<Token> {
    let mut left: Vec<f64> = vec![0.0; row.vocab_len()];
    row.support().for_each(|(token, probability)| left[token.index()] = probability);
    let mut drawn = Vec::new();
    while drawn.len() < count && left.iter().any(|weight| *weight > 0.0) {
        let token = chance.pick(&&left[..]);
        left[token] = 0.0;
        drawn.push(Token::at(token));
    }
    drawn
}

/// Stochastic beam search (RSD-S) of this width.
///
/// The beams are a function of the order in which whole paths would be drawn without replacement:
/// a prefix enters its depth's beam when the first path through it is drawn.
///
/// ```
/// # use forerun_verify::{check::*, TraversalRule};
/// # let model = Model::random(Kind::Random, Shape { vocab_len: 2, len: 2 }, 1);
/// assert!(examine(&model, &drafting::beam(2), &TraversalRule)?.is_lossless());
/// # Ok::<(), forerun_verify::Refusal>(())
/// ```
pub fn beam(width: usize) -> impl Drafting {
    move |model: &Model, chance: &mut dyn Chance| {
        let shape = model.shape();
        let mut paths: Vec<(Vec<Token>, f64)> = Vec::new();
        model.each_output(shape.len, &mut |output, _| {
            let steps = (0..output.len()).map(|n| model.draft(0, &output[..n]).prob(output[n]));
            paths.push((output.to_vec(), steps.product()));
        });
        paths.retain(|(_, probability)| *probability > 0.0);
        let mut beams: Vec<Vec<Vec<Token>>> = vec![Vec::new(); shape.len + 1];
        while !paths.is_empty() {
            let weights: Vec<f64> = paths.iter().map(|(_, probability)| *probability).collect();
            let (path, _) = paths.remove(chance.pick(&&weights[..]));
            for depth in 1..=shape.len {
                let prefix = path[..depth].to_vec();
                if beams[depth].len() < width && !beams[depth].contains(&prefix) {
                    beams[depth].push(prefix);
                }
            }
            // Paths that can no longer enter any beam need not be drawn.
            let full = |depth: usize, prefix: &[Token]| {
                beams[depth].len() == width || beams[depth].iter().any(|known| known == prefix)
            };
            if paths.iter().all(|(path, _)| (1..=shape.len).all(|d| full(d, &path[..d]))) {
                break;
            }
        }
        let mut draft = Growing::new(Scheme::Beam, model);
        let mut nodes = vec![root()];
        for prefix in beams.iter().skip(1).flatten() {
            let parent = &prefix[..prefix.len() - 1];
            let Some((node, _)) = nodes.iter().find(|(_, known)| known == parent) else {
                continue;
            };
            let (node, row) = (*node, draft.row(0, parent));
            let token = prefix[prefix.len() - 1];
            let child = draft.tree.sampled(node, row, token).expect("drawn from the row");
            nodes.push((child, prefix.clone()));
        }
        draft.finish()
    }
}

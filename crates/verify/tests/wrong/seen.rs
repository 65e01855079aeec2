//! What a handmade rule sees of a block, and the arithmetic of rows they share.
//!
//! Rows are plain vectors of probabilities here: nothing is borrowed from the library but the
//! draft, the target's rows and chance, so that a mistake there would not be repeated here.

use forerun_verify::check::Model;
use forerun_verify::*;

use crate::lossy::{LossyFault, bent_block};
use crate::one_path::{BlockFault, TokenFault, block, token_by_token};
use crate::several_paths::{PickFault, picked};

/// A block, and the model it was drafted for: that is where the draft rows come from.
pub(crate) struct Seen<'a> {
    pub(crate) model: &'a Model,
    pub(crate) block: &'a Block<'a>,
}

/// A decision written out in full.
pub(crate) type Decide = fn(&Seen<'_>, &mut dyn Chance) -> Verdict;

/// A rule by what is wrong with it, `Sound` where nothing is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Judge {
    Library(&'static dyn Rule),
    Tokenwise(TokenFault),
    Blockwise(BlockFault),
    Bent(LossyFault),
    Picked(PickFault),
    Own(Decide),
}

/// A judge at work on a model. It admits any draft: being refused is not being caught.
#[derive(Debug)]
pub(crate) struct Handmade<'a> {
    pub(crate) model: &'a Model,
    pub(crate) judge: Judge,
}

impl Rule for Handmade<'_> {
    fn name(&self) -> &'static str {
        "handmade"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        if let Judge::Library(rule) = self.judge { rule.admits(draft) } else { Ok(()) }
    }

    fn decide(&self, whole: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let seen = Seen { model: self.model, block: whole };
        match self.judge {
            Judge::Library(rule) => rule.decide(whole, chance),
            Judge::Tokenwise(fault) => token_by_token(&seen, fault, chance),
            Judge::Blockwise(fault) => block(&seen, &seen.line(), fault, chance),
            Judge::Bent(fault) => bent_block(&seen, fault, chance),
            Judge::Picked(fault) => block(&seen, &picked(&seen, fault), BlockFault::Sound, chance),
            Judge::Own(decide) => decide(&seen, chance),
        }
    }
}

/// A path with the law that each of its tokens is verified against.
pub(crate) struct Line {
    /// The nodes from the root on, one more than tokens.
    pub(crate) nodes: Vec<Node>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) laws: Vec<Vec<f64>>,
}

impl Seen<'_> {
    pub(crate) fn target(&self, node: Node) -> Vec<f64> {
        numbers(self.block.target(node))
    }

    pub(crate) fn draft(&self, node: Node) -> Vec<f64> {
        numbers(self.model.draft(0, &self.block.draft().path_to(node)))
    }

    /// The distinct children of a node in order of first appearance.
    pub(crate) fn children(&self, node: Node) -> Vec<(Node, Token)> {
        let below = self.block.draft().nodes().filter(|(.., parent)| *parent == node);
        below.map(|(child, token, _)| (child, token)).collect()
    }

    pub(crate) fn leaves(&self) -> Vec<Node> {
        let drafted = self.block.draft().nodes().map(|(node, ..)| node);
        let nodes = std::iter::once(Node::ROOT).chain(drafted);
        nodes.filter(|node| self.children(*node).is_empty()).collect()
    }

    /// The path to a node, against the drafter's own rows.
    pub(crate) fn line_to(&self, leaf: Node) -> Line {
        let tokens = self.block.draft().path_to(leaf);
        let mut nodes = vec![Node::ROOT];
        for token in &tokens {
            let child = self.block.draft().child(nodes[nodes.len() - 1], *token);
            nodes.push(child.expect("the path is drafted"));
        }
        let laws = nodes[..tokens.len()].iter().map(|node| self.draft(*node)).collect();
        Line { nodes, tokens, laws }
    }

    /// The path of a draft that has but one.
    pub(crate) fn line(&self) -> Line {
        self.line_to(self.leaves()[0])
    }

    pub(crate) fn verdict(&self, node: Node, next: Token) -> Verdict {
        Verdict { node, accepted: self.block.draft().depth(node), next }
    }

    pub(crate) fn verdict_from_target(&self, node: Node, chance: &mut dyn Chance) -> Verdict {
        self.verdict(node, self.block.target(node).draw(chance))
    }
}

pub(crate) fn numbers(row: &Dist) -> Vec<f64> {
    (0u32..).take(row.vocab_len()).map(|token| row.prob(Token(token))).collect()
}

pub(crate) fn token_at(index: usize) -> Token {
    Token(u32::try_from(index).expect("a small vocabulary"))
}

/// Draws from weights, or from `otherwise` where rounding left them none.
pub(crate) fn draw(weights: &[f64], otherwise: &[f64], chance: &mut dyn Chance) -> Token {
    let weights = if weights.iter().sum::<f64>() > 0.0 { weights } else { otherwise };
    token_at(chance.pick(&weights))
}

/// `relu(scale * target - draft)`.
pub(crate) fn residual(scale: f64, target: &[f64], draft: &[f64]) -> Vec<f64> {
    target.iter().zip(draft).map(|(target, draft)| (scale * target - draft).max(0.0)).collect()
}

/// The row divided by its mass; as it is where it has none, which nothing then draws from.
pub(crate) fn normal(row: &[f64]) -> Vec<f64> {
    let mass: f64 = row.iter().sum();
    row.iter().map(|weight| if mass > 0.0 { weight / mass } else { *weight }).collect()
}

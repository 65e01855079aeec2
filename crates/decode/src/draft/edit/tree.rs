//! What may follow, as a tree that grows where it is likeliest.

use forerun_verify::Token;

use super::super::FixedTokens;
use super::super::automaton::Cursor;
use super::align::Alignment;
use super::rates::{Agreement, Rates, Source};

/// A source, and the token it proposes next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub(super) source: Source,
    pub(super) agreement: Agreement,
    pub(super) token: Token,
}

/// Where the sources are after the tokens up to a node, and what they propose next.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) alignment: Alignment,
    pub(super) cursor: Cursor,
    pub(super) offers: Vec<Offer>,
}

/// A token that may come, if all before it on its path do.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// By index among the tree's nodes; none after what is committed.
    pub(super) parent: Option<usize>,
    pub(super) token: Token,
    /// That it comes.
    pub(super) chance: f64,
    /// Whether the original proposes it, as it is or as it was changed.
    pub(super) predicted: bool,
}

/// The nodes that were grown, and those that could be next.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    root: State,
    /// The likeliest first, so a parent always before its children.
    grown: Vec<(Node, State)>,
    open: Vec<Node>,
    /// How many paths there are, the first before it has a node.
    paths: usize,
}

impl Tree {
    pub(super) fn new(root: State, rates: &Rates) -> Self {
        let mut tree = Self { root, grown: Vec::new(), open: Vec::new(), paths: 1 };
        tree.offer(None, 1.0, rates);
        tree
    }

    /// Removes the likeliest node that could be added, if the tree has no more than so many paths
    /// with it.
    pub(super) fn likeliest(&mut self, paths_max: usize) -> Option<Node> {
        loop {
            let open = self.open.iter().enumerate();
            let best = open.max_by(|(_, one), (_, other)| one.chance.total_cmp(&other.chance));
            let node = best.map(|(index, _)| index).map(|index| self.open.swap_remove(index))?;
            if self.paths + usize::from(self.branches(&node)) <= paths_max {
                return Some(node);
            }
        }
    }

    /// Whether a node begins another path.
    fn branches(&self, node: &Node) -> bool {
        self.nodes().any(|grown| grown.parent == node.parent)
    }

    /// Adds a node, and offers what may follow it.
    pub(super) fn add(&mut self, node: Node, state: State, rates: &Rates) {
        let chance = node.chance;
        self.paths += usize::from(self.branches(&node));
        self.grown.push((node, state));
        self.offer(Some(self.grown.len() - 1), chance, rates);
    }

    fn offer(&mut self, parent: Option<usize>, chance: f64, rates: &Rates) {
        let state = parent.map_or(&self.root, |node| &self.grown[node].1);
        for (index, Offer { token, .. }) in state.offers.iter().enumerate() {
            if state.offers[..index].iter().any(|earlier| earlier.token == *token) {
                continue;
            }
            let same = || state.offers.iter().filter(|offer| offer.token == *token);
            let likely = same().map(|it| rates.chance(it.source, it.agreement)).fold(0.0, f64::max);
            let predicted = same().any(|offer| offer.source.is_original());
            self.open.push(Node { parent, token: *token, chance: chance * likely, predicted });
        }
    }

    /// Where the sources are after a node; after what is committed without one.
    pub(super) fn state(&self, node: Option<usize>) -> &State {
        node.map_or(&self.root, |node| &self.grown[node].1)
    }

    /// The tokens up to a node.
    pub(super) fn path_to(&self, node: Option<usize>) -> Vec<Token> {
        let mut path: Vec<Token> = self.upwards(node).map(|at| self.grown[at].0.token).collect();
        path.reverse();
        path
    }

    /// A node, its parent, and so on.
    fn upwards(&self, node: Option<usize>) -> impl Iterator<Item = usize> {
        std::iter::successors(node, |at| self.grown[*at].0.parent)
    }

    /// The nodes, the likeliest first.
    pub(super) fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> {
        self.grown.iter().map(|(node, _)| node)
    }

    /// The paths of the first so many nodes. What two paths share counts as predicted on the first.
    pub(super) fn paths(&self, nodes: usize) -> Vec<FixedTokens> {
        let drafted = || self.nodes().take(nodes);
        let is_last = |at: &usize| drafted().all(|node| node.parent != Some(*at));
        let mut seen = vec![false; nodes];
        let path = |last: usize| {
            let tokens = self.path_to(Some(last));
            let mut predicted: Vec<bool> = self
                .upwards(Some(last))
                .map(|at| self.grown[at].0.predicted && !std::mem::replace(&mut seen[at], true))
                .collect();
            predicted.reverse();
            FixedTokens { tokens, predicted }
        };
        (0..nodes).filter(is_last).map(path).collect()
    }

    /// The node that this token leads to.
    pub(super) fn child(&self, parent: Option<usize>, token: Token) -> Option<usize> {
        self.nodes().position(|node| node.parent == parent && node.token == token)
    }
}

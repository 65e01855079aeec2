//! Drafts: the paths a drafter proposes, as one tree, with how each token came about.
//!
//! A rule is lossless for some ways of drafting and not for others, so a draft states its
//! [`Scheme`] when it is started and is checked against it as it grows. What cannot be seen in
//! the tree (that a token really was drawn from its row) is the contract of the method that adds
//! it. Nothing here draws: the drafter does, from the very rows it hands over.

mod builder;
mod error;

pub use builder::DraftBuilder;
pub use error::DraftError;

use crate::dist::{Dist, Token};

/// Most nodes of one draft.
pub const NODES_MAX: usize = 1_024;

/// A node of a draft: the root (the committed tokens) or a drafted prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node(u32);

impl Node {
    /// The committed tokens, before any draft token.
    pub const ROOT: Self = Self(0);

    /// Returns its position in the order of [`Draft::nodes`]: the root is 0 and parents come first.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A draft row that was handed over, to be named by further candidates.
///
/// ```
/// # use forerun_verify::*;
/// let mut tree = Draft::start(Scheme::Paths, 2);
/// let row: RowId = tree.row(Dist::dense(vec![1.0, 1.0])?)?;
/// let (one, two) = (tree.sampled(Node::ROOT, row, Token(0))?, tree.sampled(Node::ROOT, row, Token(0))?);
/// assert_eq!(one, two, "equal prefixes are one node");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId(u32);

/// How the tokens of a draft are drawn: what a rule needs to know to stay lossless.
///
/// In every scheme, whether and how often a node is extended may depend on the tokens up to that
/// node's depth and on earlier rounds, never on tokens drawn below it. "Stop where the drafter's
/// row is flat" is fine; "drop a token after it was drawn because it is unlikely" is not.
///
/// ```
/// # use forerun_verify::*;
/// assert_eq!(Draft::empty(10).scheme(), Scheme::Independent);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Whole paths of equal length, drawn independently from one drafter, possibly after a shared
    /// trunk. A prefix that several paths share is one node with one candidate for each of them.
    Paths,
    /// Independent candidates: each token drawn from its own row, whichever drafter's, given the
    /// tokens above it; and fixed tokens, chosen without drawing. Any number at any node.
    Independent,
    /// The children of a node are drawn one after the other from one row without replacement.
    WithoutReplacement,
    /// Stochastic beam search: as without replacement, but how many children a node has depends
    /// on its siblings' scores too.
    Beam,
}

/// One proposal at a node: a child, and the row it was drawn from unless it is fixed.
///
/// ```
/// # use forerun_verify::*;
/// let draft = Draft::fixed_path(9, [Token(4)])?;
/// let candidate: Candidate = draft.candidates(Node::ROOT)[0];
/// assert_eq!((draft.token(candidate.child), candidate.row), (Token(4), None));
/// # Ok::<(), DraftError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Candidate {
    /// The node that it proposes.
    pub child: Node,
    /// What its token was drawn from; nothing if it is fixed.
    pub row: Option<RowId>,
}

/// What a candidate's token was drawn from.
///
/// ```
/// # use forerun_verify::*;
/// let row = Dist::dense(vec![1.0, 3.0])?;
/// assert_eq!(Proposal::Row(&row).prob(Token(1)), 0.75);
/// assert_eq!(Proposal::Fixed(Token(1)).prob(Token(0)), 0.0);
/// # Ok::<(), RowError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Proposal<'a> {
    /// A drafter's row.
    Row(&'a Dist),
    /// Nothing: the token is fixed, all mass is on it.
    Fixed(Token),
}

impl Proposal<'_> {
    /// The probability with which a token is proposed.
    pub fn prob(self, token: Token) -> f64 {
        self.weight(token) * self.unit()
    }

    pub(crate) fn weight(self, token: Token) -> f64 {
        match self {
            Self::Row(row) => f64::from(row.weight(token)),
            Self::Fixed(fixed) => f64::from(u8::from(fixed == token)),
        }
    }

    pub(crate) fn unit(self) -> f64 {
        match self {
            Self::Row(row) => row.unit(),
            Self::Fixed(_) => 1.0,
        }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    token: Token,
    parent: Node,
    depth: usize,
    candidates: Vec<Candidate>,
}

/// A finished draft: a tree of tokens, the rows they were drawn from, and the scheme.
///
/// ```
/// use forerun_verify::*;
/// // A drafter's own path beside a guess from the prompt.
/// let mut tree = Draft::start(Scheme::Independent, 4);
/// let row = tree.row(Dist::dense(vec![0.1, 0.2, 0.3, 0.4])?)?;
/// let drawn = tree.sampled(Node::ROOT, row, Token(3))?;
/// tree.fixed(Node::ROOT, Token(1))?;
/// let draft = tree.finish()?;
/// assert_eq!(draft.nodes().count(), 2);
/// assert_eq!(draft.path_to(drawn), [Token(3)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Draft {
    vocab_len: usize,
    scheme: Scheme,
    entries: Vec<Entry>,
    rows: Vec<Dist>,
}

impl Draft {
    /// Begins a draft over a vocabulary.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let draft = Draft::start(Scheme::Beam, 10).finish()?;
    /// assert!(draft.is_empty());
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn start(scheme: Scheme, vocab_len: usize) -> DraftBuilder {
        let root = Entry { token: Token(0), parent: Node::ROOT, depth: 0, candidates: Vec::new() };
        DraftBuilder(Self { vocab_len, scheme, entries: vec![root], rows: Vec::new() })
    }

    /// No draft: verification then just draws one token from the target.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert!(Draft::empty(10).is_empty());
    /// ```
    pub fn empty(vocab_len: usize) -> Self {
        Self::start(Scheme::Independent, vocab_len).0
    }

    /// One path: token `n` was drawn from row `n`.
    ///
    /// # Errors
    /// If a token cannot have been drawn so.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let row = || Dist::dense(vec![0.5, 0.5]);
    /// let draft = Draft::path(2, [(Token(0), row()?), (Token(1), row()?)])?;
    /// assert_eq!(draft.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn path(
        vocab_len: usize,
        tokens: impl IntoIterator<Item = (Token, Dist)>,
    ) -> Result<Self, DraftError> {
        let mut tree = Self::start(Scheme::Paths, vocab_len);
        let mut node = Node::ROOT;
        for (token, row) in tokens {
            let row = tree.row(row)?;
            node = tree.sampled(node, row, token)?;
        }
        tree.finish()
    }

    /// One path of fixed tokens: an n-gram's, or a user's predicted text.
    ///
    /// # Errors
    /// If a token is out of range.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert_eq!(Draft::fixed_path(9, [Token(4), Token(8)])?.len(), 2);
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn fixed_path(
        vocab_len: usize,
        tokens: impl IntoIterator<Item = Token>,
    ) -> Result<Self, DraftError> {
        let mut tree = Self::start(Scheme::Independent, vocab_len);
        let mut node = Node::ROOT;
        for token in tokens {
            node = tree.fixed(node, token)?;
        }
        tree.finish()
    }

    /// How many tokens the vocabulary has.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert_eq!(Draft::empty(10).vocab_len(), 10);
    /// ```
    pub fn vocab_len(&self) -> usize {
        self.vocab_len
    }

    /// How the tokens were drawn.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert_eq!(Draft::fixed_path(9, [Token(4)])?.scheme(), Scheme::Independent);
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// How many tokens the target must score: the nodes but the root.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert_eq!(Draft::fixed_path(9, [Token(4), Token(4)])?.len(), 2);
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn len(&self) -> usize {
        self.entries.len() - 1
    }

    /// Whether nothing is drafted.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert!(!Draft::fixed_path(9, [Token(4)])?.is_empty());
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The drafted nodes with their tokens and parents, parents first: what the target scores.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let draft = Draft::fixed_path(9, [Token(4)])?;
    /// let (node, token, parent) = draft.nodes().next().unwrap();
    /// assert_eq!((node.index(), token, parent), (1, Token(4), Node::ROOT));
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn nodes(&self) -> impl Iterator<Item = (Node, Token, Node)> {
        let entries = self.entries.iter().zip(0u32..).skip(1);
        entries.map(|(entry, index)| (Node(index), entry.token, entry.parent))
    }

    /// The node before a node; none before the root.
    ///
    /// # Panics
    /// If the node is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let draft = Draft::fixed_path(9, [Token(4), Token(5)])?;
    /// let first = draft.child(Node::ROOT, Token(4)).unwrap();
    /// let second = draft.child(first, Token(5)).unwrap();
    /// assert_eq!((draft.parent(second), draft.parent(Node::ROOT)), (Some(first), None));
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn parent(&self, node: Node) -> Option<Node> {
        (node != Node::ROOT).then(|| self.entries[node.index()].parent)
    }

    /// How many tokens lead to a node.
    ///
    /// # Panics
    /// If the node is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert_eq!(Draft::empty(9).depth(Node::ROOT), 0);
    /// ```
    pub fn depth(&self, node: Node) -> usize {
        self.entries[node.index()].depth
    }

    /// The tokens that lead to a node.
    ///
    /// # Panics
    /// If the node is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let draft = Draft::fixed_path(9, [Token(4), Token(5)])?;
    /// let (last, ..) = draft.nodes().last().unwrap();
    /// assert_eq!(draft.path_to(last), [Token(4), Token(5)]);
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn path_to(&self, node: Node) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(self.depth(node));
        let mut node = node;
        while node != Node::ROOT {
            let entry = &self.entries[node.index()];
            tokens.push(entry.token);
            node = entry.parent;
        }
        tokens.reverse();
        tokens
    }

    /// The child of a node that has this token.
    ///
    /// # Panics
    /// If the node is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let draft = Draft::fixed_path(9, [Token(4)])?;
    /// assert!(draft.child(Node::ROOT, Token(4)).is_some());
    /// assert!(draft.child(Node::ROOT, Token(5)).is_none());
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn child(&self, node: Node, token: Token) -> Option<Node> {
        let mut children = self.candidates(node).iter().map(|candidate| candidate.child);
        children.find(|child| self.token(*child) == token)
    }

    /// The row a drafted token was drawn from, by its first candidate; none for a fixed token and
    /// for the root. For rules written elsewhere.
    ///
    /// # Panics
    /// If the node is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let row = Dist::dense(vec![0.5, 0.5])?;
    /// let draft = Draft::path(2, [(Token(1), row.clone())])?;
    /// let (node, ..) = draft.nodes().next().unwrap();
    /// assert_eq!(draft.drawn_from(node), Some(&row));
    /// assert_eq!(draft.drawn_from(Node::ROOT), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drawn_from(&self, node: Node) -> Option<&Dist> {
        let parent = self.entries[node.index()].parent;
        let candidate = self.candidates(parent).iter().find(|candidate| candidate.child == node)?;
        candidate.row.map(|row| self.draft_row(row))
    }

    /// The token that a drafted node adds to its parent's.
    ///
    /// # Panics
    /// If the node is the root, which adds none, or of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let draft = Draft::fixed_path(9, [Token(4)])?;
    /// let (node, token, _) = draft.nodes().next().unwrap();
    /// assert_eq!(draft.token(node), token);
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn token(&self, node: Node) -> Token {
        assert_ne!(node, Node::ROOT, "the root adds no token");
        self.entries[node.index()].token
    }

    /// What was proposed after a node, in the order of drawing. A token that was drawn twice is two
    /// candidates of one child.
    ///
    /// # Panics
    /// If the node is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let mut tree = Draft::start(Scheme::Paths, 2);
    /// let row = tree.row(Dist::dense(vec![1.0, 1.0])?)?;
    /// let twice = [tree.sampled(Node::ROOT, row, Token(0))?, tree.sampled(Node::ROOT, row, Token(0))?];
    /// let draft = tree.finish()?;
    /// assert_eq!(draft.candidates(Node::ROOT).iter().map(|c| c.child).collect::<Vec<_>>(), twice);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn candidates(&self, node: Node) -> &[Candidate] {
        &self.entries[node.index()].candidates
    }

    /// The drafted nodes one token after a node, each once, in the order of their first candidate.
    ///
    /// # Panics
    /// If the node is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let mut tree = Draft::start(Scheme::Independent, 9);
    /// let (four, five) = (tree.fixed(Node::ROOT, Token(4))?, tree.fixed(Node::ROOT, Token(5))?);
    /// tree.fixed(Node::ROOT, Token(4))?;
    /// assert_eq!(tree.finish()?.children(Node::ROOT).collect::<Vec<_>>(), [four, five]);
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn children(&self, node: Node) -> impl Iterator<Item = Node> {
        let candidates = self.candidates(node);
        let children = candidates.iter().map(|candidate| candidate.child).enumerate();
        children
            .filter(|(place, child)| candidates[..*place].iter().all(|other| other.child != *child))
            .map(|(_, child)| child)
    }

    pub(crate) fn draft_row(&self, row: RowId) -> &Dist {
        &self.rows[row.0 as usize]
    }

    /// The same draft over another vocabulary.
    #[cfg(all(test, feature = "check"))]
    pub(crate) fn mapped(
        &self,
        vocab_len: usize,
        token: impl Fn(Token) -> Token,
        row: impl Fn(&Dist) -> Dist,
    ) -> Self {
        let mut entries = self.entries.clone();
        entries.iter_mut().skip(1).for_each(|entry| entry.token = token(entry.token));
        Self { vocab_len, scheme: self.scheme, entries, rows: self.rows.iter().map(row).collect() }
    }

    #[cfg(feature = "check")]
    pub(crate) fn has_rows_of(&self, other: &Self) -> bool {
        self.rows == other.rows
    }

    /// What a candidate's token was drawn from.
    ///
    /// # Panics
    /// If the candidate is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let draft = Draft::fixed_path(9, [Token(4)])?;
    /// let proposal = draft.proposal(draft.candidates(Node::ROOT)[0]);
    /// assert_eq!(proposal.prob(Token(4)), 1.0);
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn proposal(&self, candidate: Candidate) -> Proposal<'_> {
        match candidate.row {
            Some(row) => Proposal::Row(self.draft_row(row)),
            None => Proposal::Fixed(self.token(candidate.child)),
        }
    }

    /// The candidates of a draft of one path, from the root down.
    pub(crate) fn steps(&self) -> Vec<(Node, Candidate)> {
        let mut steps = Vec::with_capacity(self.len());
        let mut node = Node::ROOT;
        while let Some(&candidate) = self.candidates(node).first() {
            steps.push((node, candidate));
            node = candidate.child;
        }
        steps
    }

    /// The row all candidates of a node were drawn from, where there is just one and none is fixed.
    pub(crate) fn shared_row(&self, node: Node) -> Option<RowId> {
        let candidates = self.candidates(node);
        let row = candidates.first()?.row?;
        candidates.iter().all(|candidate| candidate.row == Some(row)).then_some(row)
    }

    /// The candidates of the node that has most.
    pub(crate) fn most_candidates(&self) -> usize {
        self.entries.iter().map(|entry| entry.candidates.len()).max().unwrap_or(0)
    }

    /// Whether there is at most one proposal at each node.
    pub(crate) fn is_one_path(&self) -> bool {
        self.most_candidates() <= 1
    }

    /// Whether, at each node, all candidates were drawn from one row.
    pub(crate) fn is_sampled_alike(&self) -> bool {
        let nodes = self.entries.iter().zip(0u32..);
        nodes.clone().all(|(entry, index)| {
            entry.candidates.is_empty() || self.shared_row(Node(index)).is_some()
        })
    }

    /// The first node with more than one candidate, and the greatest depth.
    pub(crate) fn branch(&self) -> (Option<Node>, usize) {
        let nodes = self.entries.iter().zip(0u32..);
        let branch =
            nodes.filter(|(entry, _)| entry.candidates.len() > 1).map(|(_, i)| Node(i)).next();
        (branch, self.entries.iter().map(|entry| entry.depth).max().unwrap_or(0))
    }
}

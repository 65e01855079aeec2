//! A draft while it grows, checked against its scheme token by token.

use super::{Candidate, Draft, DraftError, Entry, NODES_MAX, Node, RowId, Scheme};
use crate::dist::{Dist, Token};

/// A draft while it grows.
///
/// ```
/// # use forerun_verify::*;
/// let mut tree: DraftBuilder = Draft::start(Scheme::Independent, 4);
/// let first = tree.fixed(Node::ROOT, Token(1))?;
/// tree.fixed(first, Token(2))?;
/// assert_eq!(tree.finish()?.len(), 2);
/// # Ok::<(), DraftError>(())
/// ```
#[derive(Debug, Clone)]
pub struct DraftBuilder(pub(super) Draft);

impl DraftBuilder {
    /// How tokens are to be drawn.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// assert_eq!(Draft::start(Scheme::Beam, 4).scheme(), Scheme::Beam);
    /// ```
    pub fn scheme(&self) -> Scheme {
        self.0.scheme
    }

    /// Hands over a row to draw from; name it in [`DraftBuilder::sampled`].
    ///
    /// # Errors
    /// If the row is of another vocabulary.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let mut tree = Draft::start(Scheme::Paths, 3);
    /// assert!(tree.row(Dist::point(2, Token(0))?).is_err());
    /// # Ok::<(), RowError>(())
    /// ```
    pub fn row(&mut self, row: Dist) -> Result<RowId, DraftError> {
        let draft = &mut self.0;
        if row.vocab_len() != draft.vocab_len {
            let (row_len, vocab_len) = (row.vocab_len(), draft.vocab_len);
            return Err(DraftError::Vocabulary { row_len, vocab_len });
        }
        draft.rows.push(row);
        Ok(RowId(u32::try_from(draft.rows.len() - 1).expect("fewer rows than candidates")))
    }

    /// Adds a token that was drawn from `row`, in the order of drawing. Where the parent has this
    /// child already, the same node gets one more candidate: duplicates count and must be added.
    ///
    /// # Errors
    /// If the token cannot have been drawn so under the draft's scheme.
    ///
    /// # Panics
    /// If node or row is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let mut tree = Draft::start(Scheme::Paths, 2);
    /// let row = tree.row(Dist::point(2, Token(0))?)?;
    /// assert!(tree.sampled(Node::ROOT, row, Token(0)).is_ok());
    /// assert_eq!(
    ///     tree.sampled(Node::ROOT, row, Token(1)),
    ///     Err(DraftError::Impossible { token: Token(1) })
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sampled(&mut self, parent: Node, row: RowId, token: Token) -> Result<Node, DraftError> {
        let draft = &self.0;
        draft.check_token(token)?;
        if draft.draft_row(row).prob(token) <= 0.0 {
            return Err(DraftError::Impossible { token });
        }
        let scheme = draft.scheme;
        if scheme != Scheme::Independent
            && draft.candidates(parent).iter().any(|candidate| candidate.row != Some(row))
        {
            return Err(DraftError::SeveralRows { node: parent, scheme });
        }
        let put_back = matches!(scheme, Scheme::Paths | Scheme::Independent);
        if !put_back && draft.child(parent, token).is_some() {
            return Err(DraftError::DrawnTwice { token });
        }
        self.add(parent, token, Some(row))
    }

    /// Adds a token chosen without drawing: from an n-gram, a corpus, a predicted text, the top of
    /// a row, or the unaccepted tail of an earlier draft. A second time is the same child.
    ///
    /// # Errors
    /// If the scheme has no fixed tokens, or the token is out of range.
    ///
    /// # Panics
    /// If the node is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let mut tree = Draft::start(Scheme::Independent, 2);
    /// assert_eq!(tree.fixed(Node::ROOT, Token(1))?, tree.fixed(Node::ROOT, Token(1))?);
    /// # Ok::<(), DraftError>(())
    /// ```
    pub fn fixed(&mut self, parent: Node, token: Token) -> Result<Node, DraftError> {
        let draft = &self.0;
        draft.check_token(token)?;
        if draft.scheme != Scheme::Independent {
            return Err(DraftError::FixedToken { token, scheme: draft.scheme });
        }
        let fixed = draft.candidates(parent).iter().find(|candidate| {
            candidate.row.is_none() && draft.entries[candidate.child.index()].token == token
        });
        match fixed {
            Some(candidate) => Ok(candidate.child),
            None => self.add(parent, token, None),
        }
    }

    fn add(&mut self, parent: Node, token: Token, row: Option<RowId>) -> Result<Node, DraftError> {
        let draft = &mut self.0;
        let child = match draft.child(parent, token) {
            Some(child) => child,
            None => {
                if draft.entries.len() > NODES_MAX {
                    return Err(DraftError::TooManyNodes);
                }
                let depth = draft.depth(parent) + 1;
                draft.entries.push(Entry { token, parent, depth, candidates: Vec::new() });
                Node(u32::try_from(draft.entries.len() - 1).expect("at most NODES_MAX"))
            }
        };
        draft.entries[parent.index()].candidates.push(Candidate { child, row });
        Ok(child)
    }

    /// Ends the draft.
    ///
    /// # Errors
    /// If the scheme is [`Scheme::Paths`] and the candidates are not those of whole paths.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let mut tree = Draft::start(Scheme::Paths, 2);
    /// let row = tree.row(Dist::dense(vec![1.0, 1.0])?)?;
    /// let first = tree.sampled(Node::ROOT, row, Token(0))?;
    /// tree.sampled(Node::ROOT, row, Token(1))?;
    /// tree.sampled(first, row, Token(1))?; // and the other path just ends
    /// assert!(matches!(tree.finish(), Err(DraftError::NotPaths { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn finish(self) -> Result<Draft, DraftError> {
        if self.0.scheme == Scheme::Paths {
            self.0.check_paths()?;
        }
        Ok(self.0)
    }
}

impl Draft {
    fn check_token(&self, token: Token) -> Result<(), DraftError> {
        if token.index() < self.vocab_len {
            Ok(())
        } else {
            Err(DraftError::OutOfRange { token, vocab_len: self.vocab_len })
        }
    }

    /// Whole paths: below the first branching, as many candidates leave a node as lead to it, until
    /// the last depth.
    fn check_paths(&self) -> Result<(), DraftError> {
        let (branch, depth_max) = self.branch();
        let trunk = branch.map_or(depth_max, |node| self.depth(node));
        let mut reached = vec![0; self.entries.len()];
        for entry in &self.entries {
            for candidate in &entry.candidates {
                reached[candidate.child.index()] += 1;
            }
        }
        for (index, entry) in self.entries.iter().enumerate() {
            let candidates = entry.candidates.len();
            let wanted = match entry.depth {
                depth if depth == depth_max => 0,
                depth if depth < trunk => 1,
                depth if depth == trunk => candidates.max(1),
                _ => reached[index],
            };
            if candidates != wanted {
                let node = Node(u32::try_from(index).expect("at most NODES_MAX"));
                return Err(DraftError::NotPaths { node, reached: reached[index], candidates });
            }
        }
        Ok(())
    }
}

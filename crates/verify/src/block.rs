//! The unit of verification: a draft and the target's rows after each of its nodes.

use crate::dist::Dist;
use crate::draft::{Draft, Node};

/// Why a draft and rows do not make a block.
///
/// ```
/// # use forerun_verify::*;
/// let draft = Draft::fixed_path(2, [Token(0)])?;
/// let rows = [Dist::dense(vec![0.5, 0.5])?];
/// assert!(matches!(Block::new(&draft, &rows), Err(BlockError::Rows { rows: 1, expected: 2 })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The target must be scored at the root and after every drafted token.
    #[error("{rows} target rows; expected {expected}, one for the root and one for each node")]
    Rows {
        /// How many rows were given.
        rows: usize,
        /// How many are needed.
        expected: usize,
    },
    /// A target row is of another vocabulary than the draft.
    #[error(
        "target row {row} has {row_len} tokens; expected the draft's vocabulary of {vocab_len}"
    )]
    Vocabulary {
        /// Which row.
        row: usize,
        /// Its vocabulary.
        row_len: usize,
        /// The draft's.
        vocab_len: usize,
    },
    /// Each drafted token has a gap, or none has.
    #[error("{gaps} gaps; expected {expected}, one for each drafted token")]
    Gaps {
        /// How many gaps were given.
        gaps: usize,
        /// How many are needed.
        expected: usize,
    },
}

/// A draft with its target rows: row `n` is the target's after node `n`.
///
/// ```
/// use forerun_verify::*;
/// let draft = Draft::fixed_path(2, [Token(0)])?;
/// let rows = [Dist::dense(vec![0.9, 0.1])?, Dist::dense(vec![0.5, 0.5])?];
/// let block = Block::new(&draft, &rows)?;
/// assert_eq!(block.target(Node::ROOT).prob(Token(0)), rows[0].prob(Token(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    draft: &'a Draft,
    target: &'a [Dist],
    position: u64,
    balance: Option<f64>,
    gaps: Option<&'a [f64]>,
}

impl<'a> Block<'a> {
    /// Joins a draft and the target's rows.
    ///
    /// # Errors
    /// If rows are missing or of another vocabulary.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let rows = [Dist::dense(vec![0.9, 0.1])?];
    /// let draft = Draft::empty(2);
    /// assert!(Block::new(&draft, &rows).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(draft: &'a Draft, target: &'a [Dist]) -> Result<Self, BlockError> {
        let expected = draft.len() + 1;
        if target.len() != expected {
            return Err(BlockError::Rows { rows: target.len(), expected });
        }
        let vocab_len = draft.vocab_len();
        match target.iter().position(|row| row.vocab_len() != vocab_len) {
            Some(row) => {
                let row_len = target[row].vocab_len();
                Err(BlockError::Vocabulary { row, row_len, vocab_len })
            }
            None => Ok(Self { draft, target, position: 0, balance: None, gaps: None }),
        }
    }

    /// The same block after so many committed tokens, for rules whose choices depend on the
    /// position ([`CoupledRule`](crate::CoupledRule)). Without it, the block is at the start of a
    /// sequence.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// # let rows = [Dist::dense(vec![0.9, 0.1])?];
    /// # let draft = Draft::empty(2);
    /// assert_eq!(Block::new(&draft, &rows)?.at(7).position(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn at(self, position: u64) -> Self {
        Self { position, ..self }
    }

    /// How many tokens are committed before the draft.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The same block of a text whose account holds this much, for rules that save up what they
    /// may spend ([`Budget`](crate::Budget)): the balance of the last committed token's
    /// [`Spend`](crate::Spend). Without it, the text is new.
    ///
    /// # Panics
    /// If the balance is NaN.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// # let rows = [Dist::dense(vec![0.9, 0.1])?];
    /// # let draft = Draft::empty(2);
    /// assert_eq!(Block::new(&draft, &rows)?.holding(0.125).balance(), Some(0.125));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn holding(self, balance: f64) -> Self {
        assert!(!balance.is_nan(), "the balance of an account is NaN");
        Self { balance: Some(balance), ..self }
    }

    /// What the text's account holds; `None` if the text is new.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// # let rows = [Dist::dense(vec![0.9, 0.1])?];
    /// # let draft = Draft::empty(2);
    /// assert_eq!(Block::new(&draft, &rows)?.balance(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn balance(&self) -> Option<f64> {
        self.balance
    }

    /// The same block with how many nats below the target's best token each drafted token is, in
    /// the order of [`Draft::nodes`]: the difference of their logits, as rows at temperature zero no
    /// longer tell ([`LossyNearRule`](crate::LossyNearRule)).
    ///
    /// # Errors
    /// If there is not one for each drafted token.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// let draft = Draft::fixed_path(2, [Token(0)])?;
    /// let rows = [Dist::point(2, Token(1))?, Dist::point(2, Token(1))?];
    /// let block = Block::new(&draft, &rows)?;
    /// assert!(block.with_gaps(&[0.5]).is_ok());
    /// assert!(matches!(block.with_gaps(&[]), Err(BlockError::Gaps { gaps: 0, expected: 1 })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_gaps(self, gaps: &'a [f64]) -> Result<Self, BlockError> {
        let expected = self.draft.len();
        match gaps.len() == expected {
            true => Ok(Self { gaps: Some(gaps), ..self }),
            false => Err(BlockError::Gaps { gaps: gaps.len(), expected }),
        }
    }

    /// How many nats below the target's best a drafted token is; infinitely many if that is not
    /// known.
    ///
    /// # Panics
    /// If the node is the root, or of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// # let draft = Draft::fixed_path(2, [Token(0)])?;
    /// # let rows = [Dist::point(2, Token(1))?, Dist::point(2, Token(1))?];
    /// # let block = Block::new(&draft, &rows)?;
    /// let (node, ..) = draft.nodes().next().unwrap();
    /// assert_eq!(block.gap(node), f64::INFINITY);
    /// assert_eq!(block.with_gaps(&[0.5])?.gap(node), 0.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gap(&self, node: Node) -> f64 {
        self.gaps.map_or(f64::INFINITY, |gaps| gaps[node.index() - 1])
    }

    /// The draft.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// # let rows = [Dist::dense(vec![0.9, 0.1])?];
    /// # let draft = Draft::empty(2);
    /// assert!(Block::new(&draft, &rows)?.draft().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn draft(&self) -> &'a Draft {
        self.draft
    }

    /// The target's row after a node.
    ///
    /// # Panics
    /// If the node is of another draft and not in this one.
    ///
    /// ```
    /// # use forerun_verify::*;
    /// # let rows = [Dist::dense(vec![0.75, 0.25])?];
    /// # let draft = Draft::empty(2);
    /// assert_eq!(Block::new(&draft, &rows)?.target(Node::ROOT).prob(Token(1)), 0.25);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn target(&self, node: Node) -> &'a Dist {
        &self.target[node.index()]
    }
}

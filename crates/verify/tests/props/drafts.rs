//! Drafts by any calls of the builder, sensible or not.

use forerun_verify::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseResult;

use crate::sketch::{RowSketch, row, vocab_len};
use crate::{Found, property};

/// One call of the builder. Parents and rows are among those there are.
#[derive(Debug, Clone)]
enum Call {
    Row { sketch: RowSketch, stray: bool },
    Sampled { parent: Index, row: Index, token: Pick },
    Fixed { parent: Index, token: Pick },
}

/// A token: one that the row can say, or any number.
#[derive(Debug, Clone, Copy)]
enum Pick {
    Likely(Index),
    Any(u32),
}

#[derive(Debug, Clone)]
pub(crate) struct Calls {
    pub(crate) vocab_len: usize,
    scheme: Scheme,
    first: RowSketch,
    calls: Vec<Call>,
}

fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        12 => any::<Index>().prop_map(Pick::Likely),
        3 => (0..8u32).prop_map(Pick::Any),
        1 => any::<u32>().prop_map(Pick::Any),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let stray = prop_oneof![7 => Just(false), 1 => Just(true)];
    prop_oneof![
        2 => (row(), stray).prop_map(|(sketch, stray)| Call::Row { sketch, stray }),
        8 => (any::<Index>(), any::<Index>(), pick())
            .prop_map(|(parent, row, token)| Call::Sampled { parent, row, token }),
        3 => (any::<Index>(), pick()).prop_map(|(parent, token)| Call::Fixed { parent, token }),
    ]
}

pub(crate) fn calls() -> impl Strategy<Value = Calls> {
    let schemes = [Scheme::Paths, Scheme::Independent, Scheme::WithoutReplacement, Scheme::Beam];
    let scheme = prop::sample::select(schemes.to_vec());
    (vocab_len(), scheme, row(), vec(call(), 0..=24))
        .prop_map(|(vocab_len, scheme, first, calls)| Calls { vocab_len, scheme, first, calls })
}

/// The builder with what is known of it.
struct Grown {
    tree: DraftBuilder,
    scheme: Scheme,
    vocab_len: usize,
    rows: Vec<(RowId, Dist)>,
    /// Every node with its parent and its token, the root first.
    nodes: Vec<(Node, Node, Token)>,
    /// Candidates: parent, row and token.
    candidates: Vec<(Node, Option<RowId>, Token)>,
}

impl Calls {
    /// Makes all calls, each checked, and ends the draft.
    pub(crate) fn draft(&self) -> Result<Result<Draft, DraftError>, TestCaseError> {
        let (vocab_len, scheme) = (self.vocab_len, self.scheme);
        let mut grown = Grown {
            tree: Draft::start(scheme, vocab_len),
            scheme,
            vocab_len,
            rows: Vec::new(),
            nodes: vec![(Node::ROOT, Node::ROOT, Token(0))],
            candidates: Vec::new(),
        };
        grown.hand_over(&self.first, false)?;
        for call in &self.calls {
            grown.make(call)?;
        }
        let candidates = grown.candidates;
        let finished = grown.tree.finish();
        match &finished {
            Ok(draft) => {
                prop_assert_eq!(draft.len() + 1, grown.nodes.len());
                let known = grown.nodes.iter().skip(1);
                let known = known.map(|(node, parent, token)| (*node, *token, *parent));
                prop_assert!(draft.nodes().eq(known));
                for (parent, _, token) in candidates {
                    let child = draft.child(parent, token).unwrap();
                    prop_assert_eq!(draft.depth(child), draft.depth(parent) + 1);
                    let text = [draft.path_to(parent), vec![token]].concat();
                    prop_assert_eq!(draft.path_to(child), text);
                }
            }
            Err(DraftError::NotPaths { .. }) => prop_assert_eq!(scheme, Scheme::Paths),
            Err(error) => prop_assert!(false, "a draft cannot end with {error}"),
        }
        Ok(finished)
    }
}

impl Grown {
    fn hand_over(&mut self, sketch: &RowSketch, stray: bool) -> TestCaseResult {
        let row_len = self.vocab_len + usize::from(stray);
        let row = sketch.dist(row_len);
        match self.tree.row(row.clone()) {
            Ok(id) => {
                prop_assert!(!stray);
                self.rows.push((id, row));
            }
            Err(error) => {
                let vocab_len = self.vocab_len;
                prop_assert_eq!(error, DraftError::Vocabulary { row_len, vocab_len });
            }
        }
        Ok(())
    }

    fn make(&mut self, call: &Call) -> TestCaseResult {
        let token = |pick: &Pick, row: &Dist| match pick {
            Pick::Likely(index) => index.get(&row.support().collect::<Vec<_>>()).0,
            Pick::Any(token) => Token(*token),
        };
        match call {
            Call::Row { sketch, stray } => self.hand_over(sketch, *stray),
            Call::Sampled { parent, row, token: pick } => {
                let parent = parent.get(&self.nodes).0;
                let (id, row) = row.get(&self.rows);
                let (id, token) = (*id, token(pick, row));
                let possible = row.prob(token) > 0.0;
                let wanted = self.sampled_fault(parent, id, token, possible);
                let made = self.tree.sampled(parent, id, token);
                self.settle(made, wanted, (parent, Some(id), token))
            }
            Call::Fixed { parent, token: pick } => {
                let parent = parent.get(&self.nodes).0;
                let token = token(pick, &self.rows[0].1);
                let scheme = self.scheme;
                let forbidden = scheme != Scheme::Independent;
                let wanted = self
                    .stray(token)
                    .or(forbidden.then_some(DraftError::FixedToken { token, scheme }));
                let made = self.tree.fixed(parent, token);
                self.settle(made, wanted, (parent, None, token))
            }
        }
    }

    fn stray(&self, token: Token) -> Option<DraftError> {
        let vocab_len = self.vocab_len;
        (token.index() >= vocab_len).then_some(DraftError::OutOfRange { token, vocab_len })
    }

    fn sampled_fault(
        &self,
        node: Node,
        row: RowId,
        token: Token,
        possible: bool,
    ) -> Option<DraftError> {
        let scheme = self.scheme;
        let here = || self.candidates.iter().filter(|(parent, ..)| *parent == node);
        let several =
            scheme != Scheme::Independent && here().any(|(_, known, _)| *known != Some(row));
        let kept = matches!(scheme, Scheme::WithoutReplacement | Scheme::Beam);
        let twice = kept && here().any(|(.., known)| *known == token);
        self.stray(token)
            .or((!possible).then_some(DraftError::Impossible { token }))
            .or(several.then_some(DraftError::SeveralRows { node, scheme }))
            .or(twice.then_some(DraftError::DrawnTwice { token }))
    }

    fn settle(
        &mut self,
        made: Result<Node, DraftError>,
        wanted: Option<DraftError>,
        candidate: (Node, Option<RowId>, Token),
    ) -> TestCaseResult {
        let node = match (made, wanted) {
            (Ok(node), None) => node,
            (made, wanted) => {
                prop_assert_eq!(made.err(), wanted);
                return Ok(());
            }
        };
        let (parent, _, token) = candidate;
        match self
            .nodes
            .iter()
            .find(|known| (known.1, known.2) == (parent, token) && known.0 != Node::ROOT)
        {
            Some((known, ..)) => prop_assert_eq!(*known, node),
            None => {
                prop_assert_eq!(node.index(), self.nodes.len());
                self.nodes.push((node, parent, token));
            }
        }
        self.candidates.push(candidate);
        Ok(())
    }
}

pub(crate) fn any_calls() -> Found {
    property(calls(), |calls| calls.draft().map(|_| ()))
}

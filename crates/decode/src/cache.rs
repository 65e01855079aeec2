//! What a slot holds, as its owner knows it, and how much of that is still true.
//!
//! A cache is a function of the tokens in it. So nobody keeps track of what was accepted or
//! rejected: the committed tokens are compared with the cached ones, and what agrees is kept.

use forerun_verify::Token;

use crate::engine::{Branch, Caches, EngineError, Keep};

/// The tokens in a slot's cache: the trunk, and above it the tree of the last drafts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cached {
    trunk: Vec<Token>,
    tree: Vec<Branch>,
}

/// How much of a cache is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reuse {
    /// What to keep.
    pub(crate) keep: Keep,
    /// How many tokens that is.
    pub(crate) len: usize,
}

impl Cached {
    /// The longest cached beginning of `tokens`. The last of them never counts: it has to run for
    /// its row.
    pub(crate) fn reuse(&self, tokens: &[Token]) -> Reuse {
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let shared = self.trunk.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        if shared < self.trunk.len() {
            return Reuse { keep: Keep::Trunk(shared), len: shared };
        }
        let (mut node, mut len) = (0, shared);
        while let Some(next) = wanted.get(len).and_then(|token| self.child(node, *token)) {
            (node, len) = (next, len + 1);
        }
        Reuse { keep: Keep::To(node), len }
    }

    /// How many tokens of the trunk `tokens` begins with.
    pub(crate) fn shared(&self, tokens: &[Token]) -> usize {
        self.trunk.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// Notes that the first `len` tokens of another slot's trunk were copied here.
    pub(crate) fn copied(&mut self, from: &Self, len: usize) {
        self.extended(0, &from.trunk[..len], &[]);
    }

    /// The trunk.
    pub(crate) fn trunk(&self) -> &[Token] {
        &self.trunk
    }

    /// The node that follows `parent` with `token`; nodes count from 1.
    fn child(&self, parent: usize, token: Token) -> Option<usize> {
        let wanted = Branch { parent, token };
        self.tree.iter().position(|branch| *branch == wanted).map(|index| index + 1)
    }

    /// Notes a step that ran: the trunk is now `trunk`, of which `kept` tokens were cached before,
    /// and `tree` stands on it.
    pub(crate) fn extended(&mut self, kept: usize, trunk: &[Token], tree: &[Branch]) {
        self.trunk.truncate(kept);
        self.trunk.extend_from_slice(&trunk[self.trunk.len()..]);
        self.tree.clear();
        self.tree.extend_from_slice(tree);
    }

    /// Notes a step that kept everything and added to the tree.
    pub(crate) fn grown(&mut self, branches: &[Branch]) {
        self.tree.extend_from_slice(branches);
    }

    /// Notes such a step that failed.
    pub(crate) fn not_grown(&mut self, error: &EngineError) {
        if error.caches() == Caches::Lost {
            *self = Self::default();
        }
    }

    /// Notes a step that failed: it had kept the first `kept` of `tokens`.
    pub(crate) fn failed(&mut self, kept: usize, tokens: &[Token], error: &EngineError) {
        match error.caches() {
            Caches::Untouched => {}
            Caches::Cut => self.extended(kept, &tokens[..kept], &[]),
            Caches::Lost => *self = Self::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[u32]) -> Vec<Token> {
        ids.iter().map(|id| Token(*id)).collect()
    }

    fn cached(trunk: &[u32], tree: &[(usize, u32)]) -> Cached {
        let tree = tree.iter().map(|(parent, id)| Branch { parent: *parent, token: Token(*id) });
        Cached { trunk: tokens(trunk), tree: tree.collect() }
    }

    fn reuse(cached: &Cached, ids: &[u32]) -> (Keep, usize) {
        let Reuse { keep, len } = cached.reuse(&tokens(ids));
        (keep, len)
    }

    #[test]
    fn an_empty_cache_keeps_nothing() {
        assert_eq!(reuse(&Cached::default(), &[1, 2]), (Keep::To(0), 0));
    }

    #[test]
    fn the_last_token_always_runs() {
        assert_eq!(reuse(&cached(&[1, 2], &[]), &[1, 2]), (Keep::Trunk(1), 1));
        assert_eq!(reuse(&cached(&[1], &[(0, 2)]), &[1, 2]), (Keep::To(0), 1));
    }

    #[test]
    fn the_accepted_branch_is_kept() {
        let cached = cached(&[1], &[(0, 2), (0, 3), (2, 4), (2, 5)]);
        assert_eq!(reuse(&cached, &[1, 3, 5, 9]), (Keep::To(4), 3));
        assert_eq!(reuse(&cached, &[1, 3, 6, 9]), (Keep::To(2), 2));
        assert_eq!(reuse(&cached, &[1, 7, 5, 9]), (Keep::To(0), 1));
    }

    #[test]
    fn another_text_keeps_the_common_beginning() {
        assert_eq!(reuse(&cached(&[1, 2, 3], &[(0, 4)]), &[1, 2, 9, 4, 5]), (Keep::Trunk(2), 2));
    }

    #[test]
    fn a_step_that_ran_is_found_again() {
        let mut cached = cached(&[1], &[(0, 2)]);
        let text = tokens(&[1, 2, 3]);
        cached.extended(2, &text, &[Branch { parent: 0, token: Token(7) }]);
        assert_eq!(reuse(&cached, &[1, 2, 3, 7, 8]), (Keep::To(1), 4));
    }

    #[test]
    fn an_error_says_what_is_left() {
        let text = tokens(&[1, 2, 3]);
        let after = |error: EngineError| {
            let mut cached = cached(&[1, 2, 4], &[(0, 5)]);
            cached.failed(2, &text, &error);
            cached
        };
        let untouched = after(EngineError::Token { token: Token(9), vocab_len: 9 });
        assert_eq!(reuse(&untouched, &[1, 2, 4, 5, 6]), (Keep::To(1), 4));
        let cut = after(EngineError::Full { tokens: 1 });
        assert_eq!(reuse(&cut, &[1, 2, 4, 5, 6]), (Keep::To(0), 2));
        let lost = after(EngineError::Broken { backend: "toy", code: -3 });
        assert_eq!(reuse(&lost, &[1, 2, 4, 5, 6]), (Keep::To(0), 0));
    }
}

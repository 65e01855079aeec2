//! What the slots of an engine have cached, as its owner knows it, and how much of that is still
//! valid.
//!
//! A cache is a function of the tokens in it. So nothing records what was accepted or rejected: the
//! committed tokens are compared with the cached ones, and the common prefix is reused. The record
//! belongs to the engine's slots and not to the sequences that use them, because an engine that
//! fails may lose all slots at once, those of idle sequences included.

use forerun_verify::Token;

use crate::engine::{Branch, Caches, EngineError, Keep, Slot};

/// What each slot of an engine has cached.
#[derive(Debug, Clone)]
pub(crate) struct SlotCaches {
    slots: Vec<Cached>,
    /// The empty cache of a slot that does not exist; the engine refuses a step for it.
    none: Cached,
}

impl SlotCaches {
    /// So many empty slots.
    pub(crate) fn new(slot_count: usize) -> Self {
        Self { slots: vec![Cached::default(); slot_count], none: Cached::default() }
    }

    /// What a slot has cached.
    pub(crate) fn of(&self, slot: Slot) -> &Cached {
        self.slots.get(slot.0 as usize).unwrap_or(&self.none)
    }

    /// Notes a step that ran: the trunk is now `trunk`, of which `kept` tokens were cached before,
    /// and `tree` stands on it.
    pub(crate) fn extended(&mut self, slot: Slot, kept: usize, trunk: &[Token], tree: &[Branch]) {
        if let Some(cached) = self.slots.get_mut(slot.0 as usize) {
            cached.extended(kept, trunk, tree);
        }
    }

    /// Notes a step that kept everything and added to the tree.
    pub(crate) fn grown(&mut self, slot: Slot, branches: &[Branch]) {
        if let Some(cached) = self.slots.get_mut(slot.0 as usize) {
            cached.tree.extend_from_slice(branches);
        }
    }

    /// Notes that the first `len` tokens of one slot's trunk were copied to another.
    pub(crate) fn copied(&mut self, from: Slot, to: Slot, len: usize) {
        let trunk = self.of(from).trunk[..len].to_vec();
        self.extended(to, 0, &trunk, &[]);
    }

    /// Notes a pass that failed, of steps that kept so much each.
    pub(crate) fn failed(
        &mut self,
        kept: impl IntoIterator<Item = (Slot, Keep)>,
        error: &EngineError,
    ) {
        match (error.caches(), error) {
            // The record was wrong. Nothing is relied on from here, so the slot can be used again.
            (_, EngineError::Step { slot, .. }) => self.extended(*slot, 0, &[], &[]),
            (Caches::Untouched, _) => {}
            (Caches::Cut, _) => kept.into_iter().for_each(|(slot, keep)| {
                if let Some(cached) = self.slots.get_mut(slot.0 as usize) {
                    cached.cut(keep);
                }
            }),
            (Caches::Lost, _) => self.clear(),
        }
    }

    /// Notes that all slots are empty.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(Cached::default());
    }
}

/// The tokens in a slot's cache: the trunk, and above it the tree of the last drafts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cached {
    trunk: Vec<Token>,
    tree: Vec<Branch>,
}

/// How much of a cache is valid for a sequence.
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
        // A step that keeps nothing relies on nothing.
        let keep = if len == 0 { Keep::Trunk(0) } else { Keep::To { node, len } };
        Reuse { keep, len }
    }

    /// How many tokens of the trunk `tokens` begins with.
    pub(crate) fn shared(&self, tokens: &[Token]) -> usize {
        self.trunk.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }

    /// How many tokens it has, drafted ones included.
    pub(crate) fn len(&self) -> usize {
        self.trunk.len() + self.tree.len()
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

    fn extended(&mut self, kept: usize, trunk: &[Token], tree: &[Branch]) {
        self.trunk.truncate(kept);
        self.trunk.extend_from_slice(&trunk[self.trunk.len()..]);
        self.tree.clear();
        self.tree.extend_from_slice(tree);
    }

    fn cut(&mut self, keep: Keep) {
        match keep {
            Keep::All(_) => return,
            Keep::To { mut node, .. } => {
                let mut path = Vec::new();
                while let Some(branch) = node.checked_sub(1).and_then(|at| self.tree.get(at)) {
                    path.push(branch.token);
                    node = branch.parent;
                }
                self.trunk.extend(path.into_iter().rev());
            }
            Keep::Trunk(len) => self.trunk.truncate(len),
        }
        self.tree.clear();
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

    fn to(node: usize, len: usize) -> Keep {
        Keep::To { node, len }
    }

    fn reuse(cached: &Cached, ids: &[u32]) -> (Keep, usize) {
        let Reuse { keep, len } = cached.reuse(&tokens(ids));
        (keep, len)
    }

    #[test]
    fn an_empty_cache_keeps_nothing() {
        assert_eq!(reuse(&Cached::default(), &[1, 2]), (Keep::Trunk(0), 0));
    }

    #[test]
    fn the_last_token_always_runs() {
        assert_eq!(reuse(&cached(&[1, 2], &[]), &[1, 2]), (Keep::Trunk(1), 1));
        assert_eq!(reuse(&cached(&[1], &[(0, 2)]), &[1, 2]), (to(0, 1), 1));
    }

    #[test]
    fn the_accepted_branch_is_kept() {
        let cached = cached(&[1], &[(0, 2), (0, 3), (2, 4), (2, 5)]);
        assert_eq!(reuse(&cached, &[1, 3, 5, 9]), (to(4, 3), 3));
        assert_eq!(reuse(&cached, &[1, 3, 6, 9]), (to(2, 2), 2));
        assert_eq!(reuse(&cached, &[1, 7, 5, 9]), (to(0, 1), 1));
    }

    #[test]
    fn another_sequence_reuses_the_common_prefix() {
        assert_eq!(reuse(&cached(&[1, 2, 3], &[(0, 4)]), &[1, 2, 9, 4, 5]), (Keep::Trunk(2), 2));
    }

    #[test]
    fn a_step_that_ran_is_found_again() {
        let mut cached = cached(&[1], &[(0, 2)]);
        let trunk = tokens(&[1, 2, 3]);
        cached.extended(2, &trunk, &[Branch { parent: 0, token: Token(7) }]);
        assert_eq!(reuse(&cached, &[1, 2, 3, 7, 8]), (to(1, 4), 4));
    }

    #[test]
    fn an_error_says_what_is_left() {
        let mut slots = SlotCaches::new(3);
        slots.slots.fill(cached(&[1, 2, 4], &[(0, 5)]));
        // Steps of the first two slots failed.
        let after = |error: EngineError| {
            let mut slots = slots.clone();
            slots.failed([(Slot(0), Keep::Trunk(2)), (Slot(1), to(1, 4))], &error);
            [0, 1, 2].map(|slot| reuse(slots.of(Slot(slot)), &[1, 2, 4, 5, 6]))
        };
        let all = (to(1, 4), 4);
        let none = (Keep::Trunk(0), 0);
        let untouched = after(EngineError::Token { token: Token(9), vocab_len: 9 });
        assert_eq!(untouched, [all; 3]);
        let cut = after(EngineError::Full { tokens: 1 });
        assert_eq!(cut, [(to(0, 2), 2), (to(0, 4), 4), all]);
        let lost = after(EngineError::Broken { backend: "toy", code: -3 });
        assert_eq!(lost, [none; 3]);
        let mistaken = after(EngineError::Step { slot: Slot(1), reason: String::new() });
        assert_eq!(mistaken, [all, none, all]);
    }
}

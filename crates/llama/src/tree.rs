//! Bookkeeping of one slot's cache: which tokens are the trunk, which the tree, and which of
//! llama.cpp's sequences hold them.
//!
//! llama.cpp knows no trees, only sequences, and a cell may belong to several. So a slot has as
//! many sequences as its tree may have leaves, here called paths: every path holds the trunk, and
//! each leaf of the tree has a path of its own that holds the nodes above the trunk up to that
//! leaf. Plain Rust: what must be done to the memory comes out as [`Change`]s, done elsewhere.

use std::ops::Range;

use forerun_decode::{Branch, Keep};

/// What one slot's cache holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    trunk_len: usize,
    // Node `i` of the tree is `nodes[i - 1]`; node 0 is the trunk's end.
    nodes: Vec<Node>,
    // The leaf of each path in use, by path. Paths are taken in order and given back all at once.
    leaves: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Node {
    parent: usize,
    // Tokens above the trunk, this one included.
    depth: usize,
    // The path it was appended to, which leads through it as long as it lives: a path only grows.
    path: usize,
}

/// What must be done to the memory of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Forget what a path holds from a position on.
    Remove {
        /// The path.
        path: usize,
        /// The first position to go.
        from: usize,
    },
    /// Let a path hold what another does.
    Share {
        /// Who holds it.
        from: usize,
        /// Who is to hold it too.
        to: usize,
        /// The positions.
        positions: Range<usize>,
    },
}

impl Clone for Tree {
    fn clone(&self) -> Self {
        let mut tree = Self::default();
        tree.clone_from(self);
        tree
    }

    // By hand, so that memory is reused.
    fn clone_from(&mut self, other: &Self) {
        self.trunk_len = other.trunk_len;
        self.nodes.clone_from(&other.nodes);
        self.leaves.clone_from(&other.leaves);
    }
}

impl Tree {
    /// How many tokens are cached, trunk and tree together.
    pub(crate) fn len(&self) -> usize {
        self.trunk_len + self.nodes.len()
    }

    /// How many tokens the trunk has.
    pub(crate) fn trunk_len(&self) -> usize {
        self.trunk_len
    }

    /// How many nodes the tree has.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The position of a node's token.
    pub(crate) fn position(&self, node: usize) -> usize {
        self.trunk_len + self.depth(node) - 1
    }

    /// How many tokens a path holds, the trunk included.
    pub(crate) fn len_of(&self, path: usize) -> usize {
        self.trunk_len + self.leaves.get(path).map_or(0, |&leaf| self.depth(leaf))
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.trunk_len = 0;
        self.clear_nodes();
    }

    /// Cuts the cache to what `keep` leaves, and notes what that changes for `paths` paths.
    ///
    /// # Errors
    /// If it keeps what is not there; then nothing is cut.
    pub(crate) fn cut(
        &mut self,
        keep: Keep,
        paths: usize,
        changes: &mut Vec<Change>,
    ) -> Result<(), String> {
        match keep {
            Keep::All(_) => Ok(()),
            Keep::Trunk(n) if n > self.trunk_len => Err(format!(
                "{n} tokens of the trunk are to be kept, but it has {}",
                self.trunk_len
            )),
            Keep::Trunk(n) => {
                for path in 0..paths {
                    self.remove(path, n, changes);
                }
                self.trunk_len = n;
                self.clear_nodes();
                Ok(())
            }
            Keep::To { node, .. } if node > self.nodes.len() => Err(self.no_node(node)),
            Keep::To { node, .. } => {
                self.cut_to(node, paths, changes);
                Ok(())
            }
        }
    }

    /// The path to `node` becomes the trunk, which every path holds again.
    fn cut_to(&mut self, node: usize, paths: usize, changes: &mut Vec<Change>) {
        let trunk_len = self.trunk_len + self.depth(node);
        for path in 0..paths {
            let leads = self.leads_through(path, node);
            self.remove(path, if leads { trunk_len } else { self.trunk_len }, changes);
        }
        if node > 0 {
            let from = self.nodes[node - 1].path;
            let others = (0..paths).filter(|&path| !self.leads_through(path, node));
            changes.extend(others.map(|to| Change::Share {
                from,
                to,
                positions: self.trunk_len..trunk_len,
            }));
        }
        self.trunk_len = trunk_len;
        self.clear_nodes();
    }

    /// Appends tokens to the trunk.
    ///
    /// # Errors
    /// If a tree stands on it.
    pub(crate) fn append_trunk(&mut self, len: usize) -> Result<(), String> {
        if len > 0 && !self.nodes.is_empty() {
            return Err(format!(
                "the trunk cannot grow under the {} nodes of the tree that is kept",
                self.nodes.len()
            ));
        }
        self.trunk_len += len;
        Ok(())
    }

    /// Appends nodes, and notes what the paths taken for them must share with those that were
    /// there before.
    ///
    /// # Errors
    /// If a parent does not exist or there are more leaves than `paths`.
    pub(crate) fn append_nodes(
        &mut self,
        tree: &[Branch],
        paths: usize,
        changes: &mut Vec<Change>,
    ) -> Result<(), String> {
        let cached = self.nodes.len();
        for branch in tree {
            let parent = branch.parent;
            if parent > self.nodes.len() {
                return Err(self.no_node(parent));
            }
            let path = match self.path_ending_in(parent) {
                Some(path) => path,
                None => self.take_path(parent, cached, paths, changes)?,
            };
            self.nodes.push(Node { parent, depth: self.depth(parent) + 1, path });
            self.leaves[path] = self.nodes.len();
        }
        Ok(())
    }

    /// Calls `visit` with each path and each of its nodes after the first `cached`, leaf first.
    pub(crate) fn for_each_since(&self, cached: usize, mut visit: impl FnMut(usize, usize)) {
        for (path, &leaf) in self.leaves.iter().enumerate() {
            let mut node = leaf;
            while node > cached {
                visit(path, node);
                node = self.nodes[node - 1].parent;
            }
        }
    }

    fn take_path(
        &mut self,
        parent: usize,
        cached: usize,
        paths: usize,
        changes: &mut Vec<Change>,
    ) -> Result<usize, String> {
        let path = self.leaves.len();
        if path == paths {
            return Err(format!("its tree has more than {paths} leaves, the most it can have"));
        }
        // Nodes of this very call are appended to all their paths; the ones before are shared.
        let mut node = parent;
        while node > cached {
            node = self.nodes[node - 1].parent;
        }
        if node > 0 {
            let from = self.nodes[node - 1].path;
            let positions = self.trunk_len..self.trunk_len + self.depth(node);
            changes.push(Change::Share { from, to: path, positions });
        }
        self.leaves.push(0);
        Ok(path)
    }

    /// The path whose leaf is this node: the one it was appended to, unless that has grown on.
    fn path_ending_in(&self, node: usize) -> Option<usize> {
        let path = self.nodes.get(node.checked_sub(1)?)?.path;
        (self.leaves[path] == node).then_some(path)
    }

    fn leads_through(&self, path: usize, node: usize) -> bool {
        let mut at = self.leaves.get(path).copied().unwrap_or(0);
        // Parents come before their children.
        while at > node {
            at = self.nodes[at - 1].parent;
        }
        at == node
    }

    fn remove(&self, path: usize, from: usize, changes: &mut Vec<Change>) {
        if self.len_of(path) > from {
            changes.push(Change::Remove { path, from });
        }
    }

    fn depth(&self, node: usize) -> usize {
        if node == 0 { 0 } else { self.nodes[node - 1].depth }
    }

    fn clear_nodes(&mut self) {
        self.nodes.clear();
        self.leaves.clear();
    }

    fn no_node(&self, node: usize) -> String {
        format!("there is no node {node}: its tree has {}", self.nodes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_verify::Token;

    fn branches(parents: &[usize]) -> Vec<Branch> {
        parents.iter().map(|&parent| Branch { parent, token: Token(0) }).collect()
    }

    /// A trunk of ten and a tree with these parents.
    fn grown(parents: &[usize], paths: usize) -> Tree {
        let mut tree = Tree::default();
        tree.append_trunk(10).unwrap();
        tree.append_nodes(&branches(parents), paths, &mut Vec::new()).unwrap();
        tree
    }

    fn cut(tree: &mut Tree, keep: Keep, paths: usize) -> Vec<Change> {
        let mut changes = Vec::new();
        tree.cut(keep, paths, &mut changes).unwrap();
        changes
    }

    fn remove(path: usize, from: usize) -> Change {
        Change::Remove { path, from }
    }

    fn share(from: usize, to: usize, positions: Range<usize>) -> Change {
        Change::Share { from, to, positions }
    }

    #[test]
    fn one_path_grows_on_without_sharing() {
        let mut changes = Vec::new();
        let mut tree = grown(&[0, 1], 1);
        tree.append_nodes(&branches(&[2, 3]), 1, &mut changes).unwrap();
        assert_eq!(changes, []);
        assert_eq!((tree.len(), tree.len_of(0), tree.position(4)), (14, 14, 13));
    }

    #[test]
    fn a_branch_from_a_cached_node_shares_the_way_to_it() {
        let mut changes = Vec::new();
        let mut tree = grown(&[0, 1, 2], 3);
        // The first grows on at the leaf; the second branches off below; the third off the second.
        tree.append_nodes(&branches(&[3, 2, 5]), 3, &mut changes).unwrap();
        assert_eq!(changes, [share(0, 1, 10..12)]);
        assert_eq!([0, 1, 2].map(|path| tree.len_of(path)), [14, 14, 10]);
    }

    #[test]
    fn a_branch_from_a_node_of_the_same_call_shares_only_what_was_cached() {
        let mut changes = Vec::new();
        let mut tree = grown(&[0], 3);
        tree.append_nodes(&branches(&[1, 2, 2]), 3, &mut changes).unwrap();
        assert_eq!(changes, [share(0, 1, 10..11)]);
        let mut held = Vec::new();
        tree.for_each_since(1, |path, node| held.push((path, node)));
        assert_eq!(held, [(0, 3), (0, 2), (1, 4), (1, 2)]);
    }

    #[test]
    fn more_leaves_than_paths_are_refused() {
        let mut tree = grown(&[0, 0], 2);
        let refusal = tree.append_nodes(&branches(&[0]), 2, &mut Vec::new()).unwrap_err();
        assert_eq!(refusal, "its tree has more than 2 leaves, the most it can have");
    }

    #[test]
    fn a_parent_must_come_first() {
        let mut tree = grown(&[0], 2);
        let refusal = tree.append_nodes(&branches(&[2]), 2, &mut Vec::new()).unwrap_err();
        assert_eq!(refusal, "there is no node 2: its tree has 1");
    }

    #[test]
    fn keeping_a_node_leaves_every_path_with_the_new_trunk() {
        // Nodes 1-2-3 on path 0, 2-4-5 on path 1, path 2 unused.
        let mut tree = grown(&[0, 1, 2, 2, 4], 3);
        let changes = cut(&mut tree, Keep::To { node: 4, len: 13 }, 3);
        assert_eq!(
            changes,
            [remove(0, 10), remove(1, 13), share(1, 0, 10..13), share(1, 2, 10..13)]
        );
        assert_eq!((tree.trunk_len(), tree.node_count()), (13, 0));
        assert_eq!([0, 1, 2].map(|path| tree.len_of(path)), [13, 13, 13]);
    }

    #[test]
    fn keeping_node_0_forgets_the_tree() {
        let mut tree = grown(&[0, 0], 3);
        let keep = Keep::To { node: 0, len: 10 };
        assert_eq!(cut(&mut tree, keep, 3), [remove(0, 10), remove(1, 10)]);
        assert_eq!(tree.len(), 10);
    }

    #[test]
    fn cutting_the_trunk_cuts_every_path() {
        let mut tree = grown(&[0], 2);
        assert_eq!(cut(&mut tree, Keep::Trunk(4), 2), [remove(0, 4), remove(1, 4)]);
        assert_eq!(cut(&mut tree, Keep::Trunk(4), 2), []);
        assert!(tree.cut(Keep::Trunk(5), 2, &mut Vec::new()).is_err());
    }

    #[test]
    fn the_trunk_does_not_grow_under_a_tree() {
        let mut tree = grown(&[0], 1);
        assert!(tree.append_trunk(1).is_err());
        assert!(tree.append_trunk(0).is_ok());
    }

    /// What llama.cpp would hold, as sets, to check changes against.
    #[derive(Default)]
    struct Cells(Vec<(usize, usize, Vec<usize>)>);

    impl Cells {
        fn apply(&mut self, changes: &[Change]) {
            for change in changes {
                match change {
                    Change::Remove { path, from } => {
                        for (_, position, paths) in &mut self.0 {
                            if *position >= *from {
                                paths.retain(|held| held != path);
                            }
                        }
                    }
                    Change::Share { from, to, positions } => {
                        for (_, position, paths) in &mut self.0 {
                            if positions.contains(position) && paths.contains(from) {
                                assert!(!paths.contains(to), "shared twice");
                                paths.push(*to);
                            }
                        }
                    }
                }
            }
            self.0.retain(|(_, _, paths)| !paths.is_empty());
        }

        /// The tokens a path holds, by position.
        fn len_of(&self, path: usize) -> Vec<usize> {
            let mut held: Vec<_> =
                self.0.iter().filter(|(_, _, paths)| paths.contains(&path)).collect();
            held.sort_by_key(|(_, position, _)| *position);
            for (index, (_, position, _)) in held.iter().enumerate() {
                assert_eq!(index, *position, "path {path} has a hole or a double");
            }
            held.iter().map(|(token, _, _)| *token).collect()
        }
    }

    #[test]
    fn random_trees_leave_each_path_with_its_own_tokens() {
        const PATHS: usize = 4;
        let mut state = 7_usize;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            (state >> 33) % n
        };
        let (mut tree, mut cells, mut token) = (Tree::default(), Cells::default(), 0);
        let (mut trunk, mut nodes): (Vec<usize>, Vec<(usize, usize)>) = Default::default();
        let way = |nodes: &[(usize, usize)], mut node: usize| {
            let mut way = Vec::new();
            while node > 0 {
                way.push(nodes[node - 1].1);
                node = nodes[node - 1].0;
            }
            way.reverse();
            way
        };
        for _ in 0..5000 {
            let keep = match below(4) {
                0 => Keep::Trunk(below(trunk.len() + 1)),
                1 => {
                    let node = below(nodes.len() + 1);
                    Keep::To { node, len: trunk.len() + way(&nodes, node).len() }
                }
                _ => Keep::All(trunk.len() + nodes.len()),
            };
            let mut changes = Vec::new();
            tree.cut(keep, PATHS, &mut changes).unwrap();
            cells.apply(&changes);
            match keep {
                Keep::All(_) => {}
                Keep::Trunk(n) => trunk.truncate(n),
                Keep::To { node, .. } => trunk.extend(way(&nodes, node)),
            }
            assert!(keep.len() <= tree.len());
            if !matches!(keep, Keep::All(_)) {
                nodes.clear();
            }
            if nodes.is_empty() && below(2) == 0 {
                tree.append_trunk(1).unwrap();
                cells.0.push((token, trunk.len(), (0..PATHS).collect()));
                trunk.push(token);
                token += 1;
            }
            let cached = nodes.len();
            let parents: Vec<usize> = (0..below(4)).map(|new| below(cached + new + 1)).collect();
            let (before, mut changes) = (tree.clone(), Vec::new());
            if tree.append_nodes(&branches(&parents), PATHS, &mut changes).is_err() {
                tree = before;
                continue;
            }
            cells.apply(&changes);
            let mut paths = vec![Vec::new(); parents.len()];
            tree.for_each_since(cached, |path, node| paths[node - cached - 1].push(path));
            for (parent, paths) in parents.into_iter().zip(paths) {
                nodes.push((parent, token));
                cells.0.push((token, tree.position(nodes.len()), paths));
                token += 1;
            }
            for path in 0..PATHS {
                let leaf = tree.leaves.get(path).copied().unwrap_or(0);
                let expected: Vec<usize> = trunk.iter().copied().chain(way(&nodes, leaf)).collect();
                assert_eq!(cells.len_of(path), expected);
            }
            assert_eq!(cells.0.len(), tree.len(), "cells are freed");
        }
    }
}

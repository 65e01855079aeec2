//! A suffix automaton that grows token by token and knows how often everything occurred.
//!
//! Blumer's online construction (Blumer et al., 1985), over several sequences: a state is a set of
//! strings that end at the same places, and a link leads to the longest suffix that ends at more.
//! Exact counts cost a walk along the links for each token, which is as long as the sequence if
//! that repeats itself; so there are counts for strings of `match_max + 1` tokens at most, and no
//! walk is longer than that. It drafts nothing itself and forgets nothing.

use forerun_verify::Token;

use super::index::{Index, Key};

/// The empty string.
const ROOT: u32 = 0;

/// No edge, or no link.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct State {
    /// Length of its longest string.
    len: u32,
    /// The state of its longest suffix that ends at more places.
    link: u32,
    /// How often its strings occurred, those of more than `match_max + 1` tokens aside.
    count: u32,
    /// The edge that was added last.
    edge: u32,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    from: u32,
    token: Token,
    to: u32,
    /// The edge that `from` had before.
    next: u32,
}

/// A string that occurs: the suffix of some sequence, at most `match_max` long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    state: u32,
    len: usize,
}

impl Cursor {
    pub(super) const EMPTY: Self = Self { state: ROOT, len: 0 };

    pub(super) fn len(self) -> usize {
        self.len
    }
}

/// Where a sequence ends that is being written.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// The state of the whole sequence.
    last: u32,
    /// Its last tokens.
    cursor: Cursor,
}

impl End {
    /// Of a sequence without tokens.
    pub(super) const START: Self = Self { last: ROOT, cursor: Cursor::EMPTY };

    pub(super) fn cursor(self) -> Cursor {
        self.cursor
    }
}

/// All that occurred in some sequences. A token takes about 120 bytes, and 224 at most: two states
/// and three edges, each with as much room again to grow, and their index.
#[derive(Debug, Clone)]
pub(super) struct Automaton {
    match_max: usize,
    states: Vec<State>,
    edges: Vec<Edge>,
    index: Index,
    /// Tokens written.
    len: usize,
}

impl Automaton {
    pub(super) fn new(match_max: usize) -> Self {
        let root = State { len: 0, link: NONE, count: 0, edge: NONE };
        let (states, edges) = (vec![root], Vec::new());
        Self { match_max, states, edges, index: Index::default(), len: 0 }
    }

    /// How many tokens were written.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Writes a token after `end`. Sequences are written one after the other, not in turns.
    pub(super) fn append(&mut self, end: End, token: Token) -> End {
        let last = self.extend(end.last, token);
        // Should that have split the cursor's state: both parts go on to the same one.
        let state = self.follow(end.cursor.state, token).expect("it was just written");
        let mut counted = state;
        while counted != ROOT {
            self.states[counted as usize].count += 1;
            counted = self.state(counted).link;
        }
        self.len += 1;
        End { last, cursor: self.grown(end.cursor, state) }
    }

    /// The longest suffix that occurs of the cursor's string and then `token`.
    pub(super) fn advance(&self, mut cursor: Cursor, token: Token) -> Cursor {
        loop {
            if let Some(state) = self.follow(cursor.state, token) {
                return self.grown(cursor, state);
            }
            if cursor.state == ROOT {
                return Cursor::EMPTY;
            }
            cursor = self.shorter(cursor);
        }
    }

    /// The longest suffix that occurs of a sequence.
    pub(super) fn find(&self, tokens: &[Token]) -> Cursor {
        // Tokens before the last `match_max` do not count.
        let last = &tokens[tokens.len().saturating_sub(self.match_max)..];
        last.iter().fold(Cursor::EMPTY, |cursor, token| self.advance(cursor, *token))
    }

    /// The longest suffix of the cursor's string that was ever followed by a token.
    pub(super) fn followed(&self, mut cursor: Cursor) -> Cursor {
        while cursor.state != ROOT && self.state(cursor.state).edge == NONE {
            cursor = self.shorter(cursor);
        }
        cursor
    }

    /// The tokens that followed the cursor's string, each once, and how often.
    pub(super) fn followers(&self, cursor: Cursor) -> impl Iterator<Item = (Token, u32)> {
        let mut edge = self.state(cursor.state).edge;
        std::iter::from_fn(move || {
            let Edge { token, to, next, .. } = *self.edges.get(edge as usize)?;
            edge = next;
            Some((token, self.state(to).count))
        })
    }

    /// How often a token followed the cursor's string.
    pub(super) fn follower_count(&self, cursor: Cursor, token: Token) -> u32 {
        self.follow(cursor.state, token).map_or(0, |state| self.state(state).count)
    }

    fn state(&self, state: u32) -> &State {
        &self.states[state as usize]
    }

    /// The edge of a state for a token.
    fn edge(&self, from: u32, token: Token) -> Option<u32> {
        let key = Key::EMPTY.with(from).with(token.0);
        self.index.get(key, |edge| {
            let edge = &self.edges[edge as usize];
            edge.from == from && edge.token == token
        })
    }

    fn follow(&self, from: u32, token: Token) -> Option<u32> {
        self.edge(from, token).map(|edge| self.edges[edge as usize].to)
    }

    /// The cursor after a token that led to `state`.
    fn grown(&self, cursor: Cursor, state: u32) -> Cursor {
        self.fitted(Cursor { state, len: (cursor.len + 1).min(self.match_max) })
    }

    /// The longest suffix of the cursor's string that ends at more places.
    fn shorter(&self, cursor: Cursor) -> Cursor {
        let state = self.state(cursor.state).link;
        Cursor { state, len: self.state(state).len as usize }
    }

    /// The same string at the state that has it: among those linked, the last that is no shorter.
    fn fitted(&self, mut cursor: Cursor) -> Cursor {
        while cursor.state != ROOT {
            let link = self.state(cursor.state).link;
            if (self.state(link).len as usize) < cursor.len {
                break;
            }
            cursor.state = link;
        }
        cursor
    }

    /// The state of the string of `last` and then `token`, which ends a sequence.
    fn extend(&mut self, last: u32, token: Token) -> u32 {
        if let Some(next) = self.follow(last, token) {
            return self.exactly(last, token, next);
        }
        let new =
            self.push(State { len: self.state(last).len + 1, link: ROOT, count: 0, edge: NONE });
        let mut from = last;
        while from != NONE {
            if let Some(next) = self.follow(from, token) {
                self.states[new as usize].link = self.exactly(from, token, next);
                break;
            }
            self.connect(from, token, new);
            from = self.state(from).link;
        }
        new
    }

    /// The state whose longest string is that of `from` and then `token`, which leads to `next`:
    /// `next`, or the part of it that is split off.
    fn exactly(&mut self, mut from: u32, token: Token, next: u32) -> u32 {
        let len = self.state(from).len + 1;
        if self.state(next).len == len {
            return next;
        }
        let part = self.push(State { len, edge: NONE, ..*self.state(next) });
        let mut edge = self.state(next).edge;
        while edge != NONE {
            let Edge { token, to, next, .. } = self.edges[edge as usize];
            self.connect(part, token, to);
            edge = next;
        }
        self.states[next as usize].link = part;
        while from != NONE {
            match self.edge(from, token).map(|edge| &mut self.edges[edge as usize]) {
                Some(edge) if edge.to == next => edge.to = part,
                _ => break,
            }
            from = self.state(from).link;
        }
        part
    }

    fn push(&mut self, state: State) -> u32 {
        self.states.push(state);
        u32::try_from(self.states.len() - 1).expect("fewer than 2^31 tokens")
    }

    fn connect(&mut self, from: u32, token: Token, to: u32) {
        let place = u32::try_from(self.edges.len()).expect("fewer than 2^30 tokens");
        self.edges.push(Edge { from, token, to, next: self.state(from).edge });
        self.states[from as usize].edge = place;
        // The state had no such edge.
        self.index.put(Key::EMPTY.with(from).with(token.0), place, |_| false);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(sequences: &[Vec<u32>], string: &[u32]) -> usize {
        let occurs =
            |tokens: &Vec<u32>| tokens.windows(string.len()).filter(|w| *w == string).count();
        sequences.iter().map(occurs).sum()
    }

    fn written(sequences: &[Vec<u32>], match_max: usize) -> Automaton {
        let mut automaton = Automaton::new(match_max);
        for tokens in sequences {
            let mut end = End::START;
            for (at, token) in tokens.iter().enumerate() {
                end = automaton.append(end, Token(*token));
                assert_eq!(end.cursor.len, match_max.min(at + 1));
            }
        }
        automaton
    }

    #[test]
    fn a_sequence_that_came_before_takes_no_room() {
        let sequence = vec![0, 1, 0, 0, 2, 1, 0, 0, 1];
        let once = written(std::slice::from_ref(&sequence), 3);
        let twice = written(&[sequence.clone(), sequence], 3);
        assert_eq!(twice.states.len(), once.states.len());
        assert_eq!(twice.edges.len(), once.edges.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

        #[test]
        fn every_count_is_that_of_a_search(
            sequences in prop::collection::vec(prop::collection::vec(0u32..3, 0..24), 1..4),
            text in prop::collection::vec(0u32..3, 0..12),
            match_max in 1usize..6,
        ) {
            let automaton = written(&sequences, match_max);
            let tokens: Vec<Token> = text.iter().map(|id| Token(*id)).collect();
            let cursor = automaton.find(&tokens);
            let longest = (1..=match_max.min(text.len()))
                .rev()
                .find(|len| count(&sequences, &text[text.len() - len..]) > 0)
                .unwrap_or(0);
            prop_assert_eq!(cursor.len, longest);
            let mut string = text[text.len() - longest..].to_vec();
            let mut sum = 0;
            for token in 0..3 {
                string.push(token);
                let wanted = count(&sequences, &string);
                prop_assert_eq!(automaton.follower_count(cursor, Token(token)) as usize, wanted);
                sum += wanted;
                string.pop();
            }
            let followers: Vec<_> = automaton.followers(cursor).collect();
            prop_assert_eq!(followers.iter().map(|(_, count)| *count as usize).sum::<usize>(), sum);
        }

        #[test]
        fn it_is_as_small_as_promised(
            sequences in prop::collection::vec(prop::collection::vec(0u32..4, 1..60), 1..4),
        ) {
            let automaton = written(&sequences, 4);
            let len: usize = sequences.iter().map(Vec::len).sum();
            prop_assert_eq!(automaton.len(), len);
            prop_assert!(automaton.states.len() <= 2 * len);
            prop_assert!(automaton.edges.len() <= 3 * len);
        }
    }
}

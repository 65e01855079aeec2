//! Which lexemes are not what they seem if they are read as long as they can be.
//!
//! The library reads on while any lexeme it may expect goes on. That is right if no lexeme goes on
//! where another could be over and the text continue with what follows it. So one lexeme clashes
//! with another (or with itself) if there is a text that the other matches, and a byte that may
//! follow it there, such that the first can begin with the two. Any lexemes are taken to be expected
//! together, and a byte may follow if it does anywhere: what does not clash by this is safe.
//!
//! Texts in common are found by walking the lexemes' automata in pairs. Their states are the
//! positions of characters in the lexeme (Glushkov's automaton), and repetitions are not counted,
//! which only makes for more texts.

use std::collections::{HashMap, HashSet};

use super::chars::{Bytes, Chars};
use super::flow::Start;
use super::part::Budget;
use super::{Node, Rules};

/// What keeping a pair costs, in comparisons of one.
const PAIR_COST: usize = 16;

/// The automata of lexemes.
pub(super) struct Automaton<'a> {
    rules: &'a Rules,
    /// Sets of characters, each once.
    kinds: Vec<Chars>,
    indices: HashMap<Chars, usize>,
    positions: Vec<Position>,
    /// The positions that lexemes can begin at.
    firsts: Vec<usize>,
    /// How each lexeme starts; those not in use do not.
    starts: Vec<Start>,
}

/// A character of a lexeme.
struct Position {
    /// Which characters it can be.
    kind: usize,
    lexeme: usize,
    /// Whether the lexeme can be over after it.
    is_last: bool,
    /// The positions that can come after it.
    next: Vec<usize>,
    /// The bytes that those can begin with.
    goes_on: Bytes,
}

/// The positions that a part of a lexeme can begin and end at.
struct Ends {
    first: Vec<usize>,
    last: Vec<usize>,
    /// Whether it can match nothing.
    empty: bool,
}

impl<'a> Automaton<'a> {
    /// The automata of the lexemes in use, or none if the budget does not allow it.
    pub(super) fn new(
        rules: &'a Rules,
        lexemes: &[Node],
        used: &[bool],
        budget: &mut Budget,
    ) -> Option<Self> {
        let mut new = Self {
            rules,
            kinds: Vec::new(),
            indices: HashMap::new(),
            positions: Vec::new(),
            firsts: Vec::new(),
            starts: vec![Start::default(); lexemes.len()],
        };
        for (lexeme, node) in lexemes.iter().enumerate().filter(|(lexeme, _)| used[*lexeme]) {
            let ends = new.build(node, lexeme, budget)?;
            for &position in &ends.last {
                new.positions[position].is_last = true;
            }
            new.starts[lexeme] = Start { bytes: new.leads(&ends.first), empty: ends.empty };
            new.firsts.extend(ends.first);
        }
        for position in 0..new.positions.len() {
            new.positions[position].goes_on = new.leads(&new.positions[position].next);
        }
        Some(new)
    }

    /// How each lexeme starts.
    pub(super) fn starts(&self) -> &[Start] {
        &self.starts
    }

    /// Which lexemes clash, given the bytes that may follow each.
    pub(super) fn clashing(&self, follow: &[Bytes], budget: &mut Budget) -> Option<Vec<bool>> {
        let mut clashing = vec![false; self.starts.len()];
        let mut walk = Walk { automaton: self, seen: HashSet::new(), pairs: Vec::new() };
        walk.add(&self.firsts, &self.firsts, budget)?;
        while let Some((one, two)) = walk.pairs.pop() {
            let (one, two) = (&self.positions[one], &self.positions[two]);
            for (over, other) in [(one, two), (two, one)] {
                if over.is_last && follow[over.lexeme].overlaps(other.goes_on) {
                    clashing[other.lexeme] = true;
                }
            }
            walk.add(&one.next, &two.next, budget)?;
        }
        Some(clashing)
    }

    /// Adds the positions of a part of a lexeme.
    fn build(&mut self, node: &Node, lexeme: usize, budget: &mut Budget) -> Option<Ends> {
        budget.spend(1)?;
        match node {
            Node::Chars(chars) => self.position(chars, lexeme, budget),
            Node::Text(text) => {
                let mut whole = Ends::nothing();
                for char in text.chars() {
                    let next = self.position(&Chars::one(char), lexeme, budget)?;
                    whole = self.join(whole, next, budget)?;
                }
                Some(whole)
            }
            Node::Seq(nodes) => {
                let mut whole = Ends::nothing();
                for node in nodes {
                    let next = self.build(node, lexeme, budget)?;
                    whole = self.join(whole, next, budget)?;
                }
                Some(whole)
            }
            Node::Alt(nodes) => {
                let mut whole = Ends { first: Vec::new(), last: Vec::new(), empty: false };
                for node in nodes {
                    let one = self.build(node, lexeme, budget)?;
                    whole.first.extend(one.first);
                    whole.last.extend(one.last);
                    whole.empty |= one.empty;
                }
                Some(whole)
            }
            Node::Repeat(node, times) => {
                let mut ends = self.build(node, lexeme, budget)?;
                if times.max != Some(1) {
                    self.connect(&ends.last, &ends.first, budget)?;
                }
                ends.empty |= times.min == 0;
                Some(ends)
            }
            Node::Rule(rule) => {
                let rules = self.rules;
                self.build(&rules.bodies[*rule], lexeme, budget)
            }
        }
    }

    fn position(&mut self, chars: &Chars, lexeme: usize, budget: &mut Budget) -> Option<Ends> {
        budget.spend(8)?; // It takes space, not only time.
        let kind = match self.indices.get(chars) {
            Some(&kind) => kind,
            None => {
                self.kinds.push(chars.clone());
                self.indices.insert(chars.clone(), self.kinds.len() - 1);
                self.kinds.len() - 1
            }
        };
        let (next, goes_on) = (Vec::new(), Bytes::default());
        self.positions.push(Position { kind, lexeme, is_last: false, next, goes_on });
        let index = self.positions.len() - 1;
        Some(Ends { first: vec![index], last: vec![index], empty: false })
    }

    /// One part after the other.
    fn join(&mut self, mut one: Ends, two: Ends, budget: &mut Budget) -> Option<Ends> {
        self.connect(&one.last, &two.first, budget)?;
        if one.empty {
            one.first.extend(two.first);
        }
        if !two.empty {
            one.last.clear();
        }
        one.last.extend(two.last);
        one.empty &= two.empty;
        Some(one)
    }

    /// Lets each of `to` come after each of `from`.
    fn connect(&mut self, from: &[usize], to: &[usize], budget: &mut Budget) -> Option<()> {
        budget.spend(from.len().saturating_mul(to.len()))?;
        for &position in from {
            self.positions[position].next.extend_from_slice(to);
        }
        Some(())
    }

    /// The bytes that these positions can begin with.
    fn leads(&self, positions: &[usize]) -> Bytes {
        positions.iter().fold(Bytes::default(), |leads, &position| {
            leads | self.kinds[self.positions[position].kind].leads()
        })
    }
}

impl Ends {
    fn nothing() -> Self {
        Self { first: Vec::new(), last: Vec::new(), empty: true }
    }
}

/// Pairs of positions that some text leads to both of.
struct Walk<'a> {
    automaton: &'a Automaton<'a>,
    seen: HashSet<(usize, usize)>,
    /// Those not walked on from.
    pairs: Vec<(usize, usize)>,
}

impl Walk<'_> {
    /// Adds the pairs that some character leads to.
    fn add(&mut self, ones: &[usize], twos: &[usize], budget: &mut Budget) -> Option<()> {
        budget.spend(ones.len().saturating_mul(twos.len()))?;
        let chars = |index: usize| &self.automaton.kinds[self.automaton.positions[index].kind];
        for &one in ones {
            for &two in twos {
                let pair = (one.min(two), one.max(two));
                if chars(one).overlaps(chars(two)) && self.seen.insert(pair) {
                    budget.spend(PAIR_COST)?;
                    self.pairs.push(pair);
                }
            }
        }
        Some(())
    }
}

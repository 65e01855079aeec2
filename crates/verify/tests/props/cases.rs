//! Drafts as drafters make them: drawn from rows, under every scheme.

use forerun_verify::rand_core::Rng;
use forerun_verify::*;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::seen::{Temper, temper};
use crate::sketch::{RowSketch, row, vocab_len};

/// What is drawn of all that can be.
#[derive(Debug, Clone, Copy)]
enum Luck {
    /// What the probabilities say.
    Fair,
    /// Any token as often as another: mostly unlikely ones.
    Even,
    /// Always the least likely token.
    Bad,
}

fn luck() -> impl Strategy<Value = Luck> {
    prop_oneof![3 => Just(Luck::Fair), 3 => Just(Luck::Even), 1 => Just(Luck::Bad)]
}

/// How a draft is drawn.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) scheme: Scheme,
    /// Paths, or most candidates or children of a node.
    pub(crate) width: usize,
    pub(crate) len: usize,
    /// Tokens before paths part.
    pub(crate) trunk: usize,
    luck: Luck,
    drafters: usize,
    /// How many of eight candidates hold fixed tokens, under [`Scheme::Independent`].
    fixed: u64,
}

/// A draft to be drawn and judged, with all that decides on it.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) vocab_len: usize,
    /// Rows of target and drafters.
    pub(crate) rows: Vec<RowSketch>,
    /// Whether target and drafters have rows of their own; else these are often equal.
    apart: bool,
    pub(crate) plan: Plan,
    pub(crate) seed: u64,
    pub(crate) temper: Temper,
}

pub(crate) fn case(
    schemes: &[Scheme],
    width: impl Strategy<Value = usize>,
) -> impl Strategy<Value = Case> {
    let scheme = prop::sample::select(schemes.to_vec());
    let len = prop_oneof![9 => 0..=5usize, 1 => 6..=12usize];
    let shape = (scheme, width, len, 0..=2usize);
    let manner = (luck(), 1..=3usize, 0..=8u64);
    let plan =
        (shape, manner).prop_map(|((scheme, width, len, trunk), (luck, drafters, fixed))| Plan {
            scheme,
            width,
            len,
            trunk,
            luck,
            drafters,
            fixed,
        });
    let rest = ((vec(row(), 1..=4), any::<bool>()), plan, any::<u64>(), temper());
    (vocab_len(), rest).prop_map(|(vocab_len, ((rows, apart), plan, seed, temper))| Case {
        vocab_len,
        rows,
        apart,
        plan,
        seed,
        temper,
    })
}

/// Who speaks after a text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Speaker {
    Target,
    Drafter(usize),
}

impl Case {
    /// The index of the row after a text: a function of text and speaker alone.
    pub(crate) fn row_after(&self, text: &[Token], speaker: Speaker) -> usize {
        let mix = |sum: usize, token: &Token| (sum * 31 + token.index() + 1) % 9_973;
        let rows = self.rows.len();
        // One row cannot be shared out.
        let half = if self.apart { rows / 2 } else { 0 };
        let (voice, first, count) = match speaker {
            Speaker::Target if half > 0 => (0, 0, half),
            Speaker::Target => (0, 0, rows),
            Speaker::Drafter(drafter) => (1 + drafter, half, rows - half),
        };
        first + text.iter().fold(voice, mix) % count
    }
}

/// Draws the draft of a case.
struct Drawer<'a> {
    case: &'a Case,
    plan: &'a Plan,
    rows: &'a [Dist],
    chance: Random<Philox>,
    tree: DraftBuilder,
    /// The text that leads to each node.
    texts: Vec<Vec<Token>>,
    /// The rows handed over already: a drafter draws all its candidates at a node from one.
    handed: Vec<(usize, Node, RowId)>,
}

/// Nodes that are extended at one depth.
const LIVE_MAX: usize = 12;

impl Case {
    /// The draft, and the target's row after each node.
    pub(crate) fn draw(&self) -> (Draft, Vec<Dist>) {
        let rows: Vec<Dist> = self.rows.iter().map(|row| row.dist(self.vocab_len)).collect();
        let mut drawer = Drawer {
            case: self,
            plan: &self.plan,
            rows: &rows,
            chance: Random(Philox::new(self.seed)),
            tree: Draft::start(self.plan.scheme, self.vocab_len),
            texts: vec![Vec::new()],
            handed: Vec::new(),
        };
        match self.plan.scheme {
            Scheme::Paths => drawer.paths(),
            Scheme::Independent => drawer.candidates(),
            Scheme::WithoutReplacement | Scheme::Beam => drawer.without_replacement(),
        }
        let target = |text: &Vec<Token>| rows[self.row_after(text, Speaker::Target)].clone();
        let after = drawer.texts.iter().map(target).collect();
        (drawer.tree.finish().unwrap(), after)
    }
}

impl Drawer<'_> {
    fn number(&mut self, below: u64) -> u64 {
        self.chance.0.next_u64() % below
    }

    fn index(&mut self, below: usize) -> usize {
        usize::try_from(self.number(below as u64)).unwrap()
    }

    fn text(&self, node: Node) -> Vec<Token> {
        self.texts[node.index()].clone()
    }

    fn row(&mut self, node: Node, drafter: usize) -> (RowId, Dist) {
        let rows = self.rows;
        let row = &rows[self.case.row_after(&self.text(node), Speaker::Drafter(drafter))];
        let known = self.handed.iter().find(|known| (known.0, known.1) == (drafter, node));
        if let Some((.., id)) = known {
            return (*id, row.clone());
        }
        let id = self.tree.row(row.clone()).unwrap();
        self.handed.push((drafter, node, id));
        (id, row.clone())
    }

    /// A token of the row that is not drawn yet, where there is one.
    fn token(&mut self, row: &Dist, drawn: &[Token]) -> Option<Token> {
        let left: Vec<(Token, f64)> =
            row.support().filter(|(token, _)| !drawn.contains(token)).collect();
        if left.is_empty() {
            return None;
        }
        let least = |one: &&(Token, f64), two: &&(Token, f64)| one.1.total_cmp(&two.1);
        match self.plan.luck {
            Luck::Bad => left.iter().min_by(least).map(|(token, _)| *token),
            Luck::Even => Some(left[self.index(left.len())].0),
            Luck::Fair if drawn.is_empty() => Some(row.draw(&mut self.chance)),
            Luck::Fair => {
                let weights: Vec<f64> = left.iter().map(|(_, probability)| *probability).collect();
                Some(left[self.chance.pick(&&weights[..])].0)
            }
        }
    }

    fn add(&mut self, parent: Node, row: Option<RowId>, token: Token) -> Node {
        let node = match row {
            Some(row) => self.tree.sampled(parent, row, token).unwrap(),
            None => self.tree.fixed(parent, token).unwrap(),
        };
        if node.index() == self.texts.len() {
            self.texts.push([self.text(parent), vec![token]].concat());
        }
        node
    }

    fn sampled(&mut self, parent: Node, drafter: usize) -> Node {
        let (id, row) = self.row(parent, drafter);
        let token = self.token(&row, &[]).unwrap();
        self.add(parent, Some(id), token)
    }

    fn paths(&mut self) {
        let mut node = Node::ROOT;
        let trunk = self.plan.trunk.min(self.plan.len);
        for _ in 0..trunk {
            node = self.sampled(node, 0);
        }
        let mut ends = vec![node; self.plan.width];
        for _ in trunk..self.plan.len {
            for end in &mut ends {
                *end = self.sampled(*end, 0);
            }
        }
    }

    fn candidates(&mut self) {
        let mut live = vec![Node::ROOT];
        for _ in 0..self.plan.len {
            let mut next = Vec::new();
            for node in live {
                let least = u64::from(node == Node::ROOT || self.plan.width == 1);
                let count = least + self.number(self.plan.width as u64 + 1 - least);
                for _ in 0..count {
                    let child = if self.number(8) < self.plan.fixed {
                        let token = self.index(self.case.vocab_len);
                        self.add(node, None, Token(u32::try_from(token).unwrap()))
                    } else {
                        let drafter = self.index(self.plan.drafters);
                        self.sampled(node, drafter)
                    };
                    if !next.contains(&child) {
                        next.push(child);
                    }
                }
            }
            next.truncate(LIVE_MAX);
            live = next;
        }
    }

    /// Each node has up to `width` children; a beam has up to `width` at each depth.
    fn without_replacement(&mut self) {
        let beam = self.plan.scheme == Scheme::Beam;
        let mut live = vec![Node::ROOT];
        for _ in 0..self.plan.len {
            let mut next = Vec::new();
            for node in live {
                let room = if beam { self.plan.width - next.len() } else { self.plan.width };
                let children = if beam && node != Node::ROOT { self.index(room + 1) } else { room };
                let mut drawn = Vec::new();
                for _ in 0..children {
                    let (id, row) = self.row(node, 0);
                    let Some(token) = self.token(&row, &drawn) else { break };
                    drawn.push(token);
                    next.push(self.add(node, Some(id), token));
                }
            }
            next.truncate(LIVE_MAX);
            live = next;
        }
    }
}

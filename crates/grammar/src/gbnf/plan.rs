//! Decides what of a grammar is a lexeme.
//!
//! Rules that need no recursion are regular, and a lexeme may be anything regular. So at first every
//! part that is regular and as large as can be is a lexeme. Those that clash are taken apart, until
//! none does. The last resort is a lexeme for each character: those never clash.

use std::collections::HashMap;

use super::clash::Automaton;
use super::flow;
use super::part::{Budget, Part};
use super::{Lexemes, Node, Rules};

/// How much may be spent to find the clashes of a grammar; a fraction of a second.
const BUDGET: usize = 10_000_000;

/// A grammar over lexemes.
pub(super) struct Plan {
    /// What each lexeme matches; some may be of no use.
    pub(super) lexemes: Vec<Node>,
    /// What each rule is made of, if it is parsed and not only part of lexemes.
    pub(super) parts: Vec<Option<Part>>,
}

/// Makes a plan under which a text is of the grammar by its lexemes just if it is by its characters.
pub(super) fn plan(rules: &Rules, lexemes: Lexemes) -> Plan {
    let mut planner = Planner::new(rules);
    if lexemes == Lexemes::Chars {
        planner.shatter();
        return planner.plan;
    }
    if matches!(planner.plan.parts[rules.root], Some(Part::Lexeme(_))) {
        return planner.plan; // Nothing follows, so nothing clashes.
    }
    let mut budget = Budget(BUDGET);
    loop {
        match planner.clashing(&mut budget) {
            Some(clashing) if !clashing.contains(&true) => return planner.plan,
            Some(clashing) => planner.split(&clashing),
            None => {
                planner.shatter();
                return planner.plan;
            }
        }
    }
}

struct Planner<'a> {
    rules: &'a Rules,
    /// Which rules need no recursion.
    regular: Vec<bool>,
    plan: Plan,
    /// Lexemes by what they match.
    indices: HashMap<Node, usize>,
}

impl<'a> Planner<'a> {
    /// Every regular part is a lexeme, as large as can be.
    fn new(rules: &'a Rules) -> Self {
        let plan = Plan { lexemes: Vec::new(), parts: vec![None; rules.bodies.len()] };
        let mut new = Self { rules, regular: regular(rules), plan, indices: HashMap::new() };
        for rule in rules.needed() {
            if rule == rules.root || !new.regular[rule] {
                new.plan.parts[rule] = Some(new.open(&rules.bodies[rule]));
            }
        }
        new
    }

    fn is_regular(&self, node: &Node) -> bool {
        let mut is_regular = true;
        node.mentions(&mut |rule| is_regular &= self.regular[rule]);
        is_regular
    }

    /// The part with what is regular in it as lexemes.
    fn open(&mut self, node: &Node) -> Part {
        if self.is_regular(node) {
            return self.lexeme(node.clone());
        }
        match node {
            Node::Seq(nodes) => {
                let both_regular =
                    |one: &Node, two: &Node| self.is_regular(one) && self.is_regular(two);
                let runs: Vec<&[Node]> = nodes.chunk_by(both_regular).collect();
                let part = |run: &[Node]| match run {
                    [node] => self.open(node),
                    _ => self.lexeme(Node::Seq(run.to_vec())),
                };
                Part::Seq(runs.into_iter().map(part).collect())
            }
            Node::Alt(nodes) => {
                let (regular, other): (Vec<_>, Vec<_>) =
                    nodes.iter().partition(|node| self.is_regular(node));
                let mut parts: Vec<Part> = other.into_iter().map(|node| self.open(node)).collect();
                match regular.as_slice() {
                    [] => {}
                    [node] => parts.push(self.lexeme((*node).clone())),
                    _ => parts.push(self.lexeme(Node::Alt(regular.into_iter().cloned().collect()))),
                }
                Part::Alt(parts)
            }
            Node::Repeat(node, times) => Part::Repeat(Box::new(self.open(node)), *times),
            Node::Rule(rule) => Part::Rule(*rule),
            Node::Chars(_) | Node::Text(_) => unreachable!("they mention no rule"),
        }
    }

    /// A lexeme that matches this.
    fn lexeme(&mut self, node: Node) -> Part {
        if node.is_nothing() {
            return Part::Seq(Vec::new());
        }
        let next = self.plan.lexemes.len();
        let index = *self.indices.entry(node).or_insert_with_key(|node| {
            self.plan.lexemes.push(node.clone());
            next
        });
        Part::Lexeme(index)
    }

    /// Which lexemes are in use.
    fn used(&self) -> Vec<bool> {
        let mut used = vec![false; self.plan.lexemes.len()];
        for part in self.plan.parts.iter().flatten() {
            part.lexemes(&mut |index| used[index] = true);
        }
        used
    }

    /// Which lexemes clash, or none if the budget does not allow to find out.
    fn clashing(&self, budget: &mut Budget) -> Option<Vec<bool>> {
        let used = self.used();
        let automaton = Automaton::new(self.rules, &self.plan.lexemes, &used, budget)?;
        let follow = flow::follow(&self.plan.parts, automaton.starts(), budget)?;
        automaton.clashing(&follow, budget)
    }

    /// Takes these lexemes apart, by one step.
    fn split(&mut self, clashing: &[bool]) {
        let split: Vec<Option<Part>> = (0..clashing.len())
            .map(|index| clashing[index].then(|| self.pieces(index)).flatten())
            .collect();
        for part in self.plan.parts.iter_mut().flatten() {
            part.replace(&split);
        }
    }

    /// The lexeme as what it is made of; none if it is a single character.
    fn pieces(&mut self, index: usize) -> Option<Part> {
        Some(match self.plan.lexemes[index].clone() {
            Node::Chars(_) => return None,
            Node::Text(text) => {
                let chars = text.chars().map(|char| Node::Chars(super::Chars::one(char)));
                Part::Seq(chars.map(|node| self.lexeme(node)).collect())
            }
            Node::Seq(nodes) => {
                Part::Seq(nodes.into_iter().map(|node| self.lexeme(node)).collect())
            }
            Node::Alt(nodes) => {
                Part::Alt(nodes.into_iter().map(|node| self.lexeme(node)).collect())
            }
            Node::Repeat(node, times) => Part::Repeat(Box::new(self.lexeme(*node)), times),
            Node::Rule(rule) => {
                if self.plan.parts[rule].is_none() {
                    self.plan.parts[rule] = Some(self.lexeme(self.rules.bodies[rule].clone()));
                }
                Part::Rule(rule)
            }
        })
    }

    /// Takes all lexemes apart, down to characters.
    fn shatter(&mut self) {
        loop {
            let mut left = self.used();
            for (index, node) in self.plan.lexemes.iter().enumerate() {
                left[index] &= !matches!(node, Node::Chars(_));
            }
            if !left.contains(&true) {
                return;
            }
            self.split(&left);
        }
    }
}

/// Which rules need no recursion: those that mention only such rules.
fn regular(rules: &Rules) -> Vec<bool> {
    let count = rules.bodies.len();
    let mut waiting = vec![0; count];
    let mut mentioned_by = vec![Vec::new(); count];
    for (rule, body) in rules.bodies.iter().enumerate() {
        body.mentions(&mut |mentioned| {
            waiting[rule] += 1;
            mentioned_by[mentioned].push(rule);
        });
    }
    let mut regular = vec![false; count];
    let mut ready: Vec<usize> = (0..count).filter(|&rule| waiting[rule] == 0).collect();
    while let Some(rule) = ready.pop() {
        regular[rule] = true;
        for &user in &mentioned_by[rule] {
            waiting[user] -= 1;
            if waiting[user] == 0 {
                ready.push(user);
            }
        }
    }
    regular
}

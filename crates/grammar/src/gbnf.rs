//! GBNF, llama.cpp's grammar format, made into Lark.
//!
//! The two differ in more than their looks. GBNF is about characters: a text belongs to the grammar
//! if its rules can make it in any way. The library reads lexemes first, each as long as it can be,
//! and then parses those. A rule like `"a"* "ab"` would match nothing if its two parts were lexemes,
//! as the first would take every `a`. So what is one lexeme is decided with care (`plan`): as much as
//! possible, since lexemes are fast, and never so much that reading them as long as they can be
//! changes what the grammar matches (`clash`). A grammar without recursion is one lexeme.
//!
//! Unlike llama.cpp, a rule may begin with itself, and it goes on over lines until the next rule.
//! Token literals (`<think>`, `<[1000]>`) are refused.

mod chars;
mod clash;
mod flow;
mod parse;
mod part;
mod plan;
mod write;

#[cfg(test)]
mod tests;

use crate::error::GrammarError;
use chars::Chars;

/// A grammar: rules by index.
#[derive(Debug)]
struct Rules {
    bodies: Vec<Node>,
    /// The rule that the whole text must match.
    root: usize,
}

impl Rules {
    /// The rules that a text can need, the root first.
    fn needed(&self) -> Vec<usize> {
        let mut seen = vec![false; self.bodies.len()];
        let mut needed = vec![self.root];
        seen[self.root] = true;
        let mut next = 0;
        while let Some(&rule) = needed.get(next) {
            next += 1;
            self.bodies[rule].mentions(&mut |mentioned| {
                if !seen[mentioned] {
                    seen[mentioned] = true;
                    needed.push(mentioned);
                }
            });
        }
        needed
    }
}

/// What a part of a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Node {
    /// One of these characters.
    Chars(Chars),
    /// This text, which is not empty.
    Text(String),
    /// One after the other; nothing if there are none.
    Seq(Vec<Node>),
    /// One of these.
    Alt(Vec<Node>),
    /// The same, this many times.
    Repeat(Box<Node>, Times),
    /// What a rule matches.
    Rule(usize),
}

/// How often something is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Times {
    min: u32,
    /// None: without end. Never 0.
    max: Option<u32>,
}

impl Node {
    /// Whether this is written as nothing.
    fn is_nothing(&self) -> bool {
        matches!(self, Self::Seq(nodes) if nodes.is_empty())
    }

    /// Calls `visit` for each rule that is mentioned.
    fn mentions(&self, visit: &mut impl FnMut(usize)) {
        match self {
            Self::Chars(_) | Self::Text(_) => {}
            Self::Seq(nodes) | Self::Alt(nodes) => {
                nodes.iter().for_each(|node| node.mentions(visit));
            }
            Self::Repeat(node, _) => node.mentions(visit),
            Self::Rule(rule) => visit(*rule),
        }
    }
}

/// How much is a lexeme. What a grammar matches is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lexemes {
    /// As much as possible: fast.
    Large,
    /// A character. The library fails to compile some lexemes, but none of these.
    Chars,
}

/// The grammar in Lark.
pub(crate) fn to_lark(text: &str, lexemes: Lexemes) -> Result<String, GrammarError> {
    let rules = parse::rules(text)?;
    Ok(write::lark(&rules, &plan::plan(&rules, lexemes)))
}

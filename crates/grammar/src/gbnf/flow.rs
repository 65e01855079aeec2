//! What may follow a lexeme: the bytes that a text can go on with after it.

use super::chars::Bytes;
use super::part::{Budget, Part};

/// How the texts of something begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Start {
    /// The bytes they can begin with.
    pub(super) bytes: Bytes,
    /// Whether one is empty.
    pub(super) empty: bool,
}

impl Start {
    /// The start of one after the other.
    fn then(self, next: Self) -> Self {
        if !self.empty {
            return self;
        }
        Self { bytes: self.bytes | next.bytes, empty: next.empty }
    }
}

/// The bytes that may follow each lexeme, or none if the budget does not allow to find out.
pub(super) fn follow(
    parts: &[Option<Part>],
    lexemes: &[Start],
    budget: &mut Budget,
) -> Option<Vec<Bytes>> {
    let mut flow = Flow {
        lexemes,
        rules: vec![Start::default(); parts.len()],
        after_lexeme: vec![Bytes::default(); lexemes.len()],
        after_rule: vec![Bytes::default(); parts.len()],
        steps: 0,
    };
    loop {
        let mut changed = false;
        for (rule, part) in parts.iter().enumerate() {
            let Some(part) = part else { continue };
            let start = flow.start(part);
            changed |= start != flow.rules[rule];
            flow.rules[rule] = start;
        }
        budget.spend(std::mem::take(&mut flow.steps))?;
        if !changed {
            break;
        }
    }
    // Nothing follows the root, but where it is mentioned.
    loop {
        let before = flow.after_rule.clone();
        for (rule, part) in parts.iter().enumerate() {
            if let Some(part) = part {
                let after = flow.after_rule[rule];
                flow.push(part, after);
            }
        }
        budget.spend(std::mem::take(&mut flow.steps))?;
        if flow.after_rule == before {
            return Some(flow.after_lexeme);
        }
    }
}

struct Flow<'a> {
    lexemes: &'a [Start],
    rules: Vec<Start>,
    after_lexeme: Vec<Bytes>,
    after_rule: Vec<Bytes>,
    steps: usize,
}

impl Flow<'_> {
    /// How the part starts, by what is known of the rules.
    fn start(&mut self, part: &Part) -> Start {
        self.steps += 1;
        match part {
            Part::Lexeme(index) => self.lexemes[*index],
            Part::Rule(rule) => self.rules[*rule],
            Part::Seq(parts) => {
                let mut whole = Start { bytes: Bytes::default(), empty: true };
                for part in parts {
                    if !whole.empty {
                        break;
                    }
                    whole = whole.then(self.start(part));
                }
                whole
            }
            Part::Alt(parts) => parts.iter().fold(Start::default(), |whole, part| {
                let start = self.start(part);
                Start { bytes: whole.bytes | start.bytes, empty: whole.empty || start.empty }
            }),
            Part::Repeat(part, times) => {
                let start = self.start(part);
                Start { empty: start.empty || times.min == 0, ..start }
            }
        }
    }

    /// Takes in that `after` may follow the part.
    fn push(&mut self, part: &Part, after: Bytes) {
        self.steps += 1;
        match part {
            Part::Lexeme(index) => self.after_lexeme[*index] |= after,
            Part::Rule(rule) => self.after_rule[*rule] |= after,
            Part::Seq(parts) => {
                let mut after = Start { bytes: after, empty: false };
                for part in parts.iter().rev() {
                    self.push(part, after.bytes);
                    after = self.start(part).then(after);
                }
            }
            Part::Alt(parts) => parts.iter().for_each(|part| self.push(part, after)),
            Part::Repeat(part, times) => {
                let again = match times.max {
                    Some(1) => Bytes::default(),
                    _ => self.start(part).bytes,
                };
                self.push(part, after | again);
            }
        }
    }
}

//! Random cases with the verdicts of the rules in Rust, a line of JSON each, for the Python tests to
//! meet: `cargo run --example cases -- 10000 1`.

use std::fmt::Write as _;
use std::io::Write as _;

use forerun_verify::rand_core::Rng;
use forerun_verify::*;

type Failure = Box<dyn std::error::Error>;

/// A row, and how Python is to make it.
struct Made {
    row: Dist,
    json: String,
}

struct Cases {
    rng: Philox,
    /// The form of all rows of a case, if they have the same.
    form: Option<usize>,
}

impl Cases {
    fn below(&mut self, bound: usize) -> usize {
        self.rng.next_u32() as usize % bound
    }

    fn unit(&mut self) -> f32 {
        (self.rng.next_u32() >> 8) as f32 / 16_777_216.0
    }

    /// Dense or sparse weights, or logits. Numbers are printed so that they read back to the bit.
    fn row(&mut self, vocab_len: usize) -> Result<Made, Failure> {
        let form = self.form.unwrap_or(4);
        let form = if form < 4 { form } else { self.below(4) };
        let numbers: Vec<f32> = (0..vocab_len).map(|_| self.unit()).collect();
        match form {
            0 | 1 => {
                let mut weights: Vec<f32> = numbers.iter().map(|x| x * x * x).collect();
                let zero = self.below(vocab_len);
                if form == 1 && vocab_len > 1 {
                    weights[zero] = 0.0;
                }
                let json = format!("{{\"weights\":{weights:?}}}");
                Ok(Made { row: Dist::dense(weights)?, json })
            }
            2 => {
                let logits: Vec<f32> = numbers.iter().map(|x| 12.0 * x - 6.0).collect();
                let json = format!("{{\"logits\":{logits:?},\"temperature\":0.7}}");
                Ok(Made { row: Dist::softmax(&logits, 0.7)?, json })
            }
            _ => {
                let kept = 1 + self.below(vocab_len);
                let mut ids: Vec<u32> = (0u32..).take(vocab_len).collect();
                for place in 0..kept {
                    let other = place + self.below(vocab_len - place);
                    ids.swap(place, other);
                }
                let weights: Vec<f32> = numbers[..kept].iter().map(|x| x + 0.01).collect();
                let ids = &ids[..kept];
                let json = format!("{{\"ids\":{ids:?},\"weights\":{weights:?}}}");
                let entries = ids.iter().copied().map(Token).zip(weights);
                Ok(Made { row: Dist::sparse(vocab_len, entries)?, json })
            }
        }
    }
}

/// A draft while it grows, and the calls that make it.
struct Growing {
    tree: DraftBuilder,
    calls: Vec<String>,
    rows: Vec<(RowId, Dist)>,
}

impl Growing {
    fn row(&mut self, made: Made) -> Result<usize, Failure> {
        self.calls.push(format!("[\"row\",{}]", made.json));
        let id = self.tree.row(made.row.clone())?;
        self.rows.push((id, made.row));
        Ok(self.rows.len() - 1)
    }

    fn sampled(&mut self, parent: Node, row: usize, token: Token) -> Result<Node, Failure> {
        self.calls.push(format!("[\"sampled\",{},{row},{}]", parent.index(), token.0));
        Ok(self.tree.sampled(parent, self.rows[row].0, token)?)
    }

    fn fixed(&mut self, parent: Node, token: Token) -> Result<Node, Failure> {
        self.calls.push(format!("[\"fixed\",{},{}]", parent.index(), token.0));
        Ok(self.tree.fixed(parent, token)?)
    }
}

/// A random draft of a scheme.
fn draft(cases: &mut Cases, scheme: Scheme, vocab_len: usize) -> Result<Growing, Failure> {
    let tree = Draft::start(scheme, vocab_len);
    let mut growing = Growing { tree, calls: Vec::new(), rows: Vec::new() };
    let depth = cases.below(4);
    let width = if depth == 0 { 0 } else { 1 + cases.below(3) };
    match scheme {
        Scheme::Paths => {
            let mut seen: Vec<(Node, usize)> = Vec::new();
            for _ in 0..width {
                let mut node = Node::ROOT;
                for _ in 0..depth {
                    let row = match seen.iter().find(|(known, _)| *known == node) {
                        Some((_, row)) => *row,
                        None => {
                            let made = cases.row(vocab_len)?;
                            let row = growing.row(made)?;
                            seen.push((node, row));
                            row
                        }
                    };
                    let token = growing.rows[row].1.draw(&mut Random(&mut cases.rng));
                    node = growing.sampled(node, row, token)?;
                }
            }
        }
        Scheme::Independent => {
            let mut node = Node::ROOT;
            for _ in 0..depth {
                for _ in 0..width {
                    if cases.below(3) == 0 {
                        let token = cases.below(vocab_len);
                        node = growing.fixed(node, Token(u32::try_from(token)?))?;
                    } else {
                        let made = cases.row(vocab_len)?;
                        let row = growing.row(made)?;
                        let token = growing.rows[row].1.draw(&mut Random(&mut cases.rng));
                        growing.sampled(node, row, token)?;
                    }
                }
            }
        }
        _ => {
            let made = cases.row(vocab_len)?;
            let row = growing.row(made)?;
            let mut taken = Vec::new();
            for _ in 0..width {
                let known = growing.rows[row].1.clone();
                if let Some(token) = known.draw_except(&taken, &mut Random(&mut cases.rng)) {
                    growing.sampled(Node::ROOT, row, token)?;
                    taken.push(token);
                }
            }
        }
    }
    Ok(growing)
}

/// A rule, and how Python is to ask for it.
struct Turn {
    rule: Box<dyn Rule>,
    /// Further fields of the case.
    json: String,
}

const RULES: u64 = 12;

/// Every rule has its turn.
fn turn(cases: &mut Cases, number: u64, seed: u64) -> Result<Turn, Failure> {
    let rule: Box<dyn Rule> = match number % RULES {
        0 => Box::new(BlockRule),
        1 => Box::new(TokenRule),
        2 => Box::new(NssRule),
        3 => Box::new(CoupledRule { noise: Noise::new(seed) }),
        4 => Box::new(PooledRule),
        5 => Box::new(SpecInferRule),
        6 => Box::new(SpecTrRule),
        7 => Box::new(RsdRule),
        8 => Box::new(TraversalRule),
        9 => Box::new(GbvRule::default()),
        10 => return lossy_block(cases),
        _ => return lossy_near(cases),
    };
    Ok(Turn { rule, json: String::new() })
}

fn lossy_block(cases: &mut Cases) -> Result<Turn, Failure> {
    let per_token = [0.0, 0.02, 0.1, 0.3][cases.below(4)];
    let factor = [1.5, 4.0, 300.0][cases.below(3)];
    let (budget, json) = if cases.below(2) == 0 {
        let budget = Budget::at_every_token(per_token)?.with_factor(factor)?;
        (
            budget,
            format!("\"at_every_token\":{{\"per_token\":{per_token:?},\"factor\":{factor:?}}}"),
        )
    } else {
        let (step, bank) = ([0.15, 0.6][cases.below(2)], per_token + 0.2);
        let budget = Budget::on_account(per_token)?.with_factor(factor)?;
        let json = format!(
            "\"on_account\":{{\"per_token\":{per_token:?},\"factor\":{factor:?},\"step\":{step:?},\
             \"bank\":{bank:?}}}"
        );
        (budget.with_step(step)?.with_bank(bank)?, json)
    };
    Ok(Turn { rule: Box::new(LossyBlockRule { budget }), json })
}

fn lossy_near(cases: &mut Cases) -> Result<Turn, Failure> {
    let (gap, share) = ([0.5, 2.0, 8.0][cases.below(3)], [0.1, 0.5, 1.0][cases.below(3)]);
    let near = Near::new(gap, share)?.with_bank(2.0)?;
    let json = format!("\"near\":{{\"gap\":{gap:?},\"share\":{share:?},\"bank\":2.0}}");
    Ok(Turn { rule: Box::new(LossyNearRule { near }), json })
}

/// The target's rows: of any form, or logits at temperature zero with how far each drafted token is from
/// the best.
struct Scored {
    rows: Vec<Dist>,
    gaps: Vec<f64>,
    json: Vec<String>,
}

fn scored(cases: &mut Cases, draft: &Draft, greedy: bool) -> Result<Scored, Failure> {
    let mut scored = Scored { rows: Vec::new(), gaps: Vec::new(), json: Vec::new() };
    let mut all: Vec<Vec<f32>> = Vec::new();
    for _ in 0..=draft.len() {
        let made = if greedy {
            let logits: Vec<f32> = (0..draft.vocab_len()).map(|_| 4.0 * cases.unit()).collect();
            let json = format!("{{\"logits\":{logits:?},\"temperature\":0.0}}");
            let row = Dist::argmax(&logits)?;
            all.push(logits);
            Made { row, json }
        } else {
            cases.row(draft.vocab_len())?
        };
        scored.rows.push(made.row);
        scored.json.push(made.json);
    }
    for (_, token, parent) in draft.nodes().filter(|_| greedy) {
        let best = scored.rows[parent.index()].likeliest().0;
        let logit = |token: Token| f64::from(all[parent.index()][token.index()]);
        scored.gaps.push(logit(best) - logit(token));
    }
    Ok(scored)
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (count, seed) = (arguments.next().ok_or("how many?")??, arguments.next().ok_or("seed?")??);
    let mut cases = Cases { rng: Philox::new(seed), form: None };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut done = 0;
    while done < count {
        // A rule that refuses a draft is asked about another.
        if let Some(line) = case(&mut cases, done)? {
            writeln!(out, "{line}")?;
            done += 1;
        }
    }
    Ok(())
}

/// A line, unless the rule whose turn it is refuses the draft.
fn case(cases: &mut Cases, number: u64) -> Result<Option<String>, Failure> {
    let vocab_len = [2, 3, 5, 9, 2, 3, 5, 9, 700][cases.below(9)];
    cases.form = Some(cases.below(3)).filter(|form| *form < 2);
    let scheme = [Scheme::Paths, Scheme::Independent, Scheme::WithoutReplacement][cases.below(3)];
    let growing = draft(cases, scheme, vocab_len)?;
    let draft = growing.tree.finish()?;
    let (seed, position) = (cases.rng.next_u64(), u64::from(cases.rng.next_u32()));
    let Turn { rule, json: bound } = turn(cases, number, seed)?;
    let greedy = matches!(rule.promise(), Promise::Near(_));
    let Scored { rows, gaps, json } = scored(cases, &draft, greedy)?;
    let mut block = Block::new(&draft, &rows)?.at(position);
    if greedy {
        block = block.with_gaps(&gaps)?;
    }
    let lossy = rule.promise() != Promise::Lossless;
    let balance = Some(f64::from(cases.unit())).filter(|_| lossy && cases.below(2) == 0);
    let block = balance.map_or(block, |balance| block.holding(balance));
    let Ok(verdict) = rule.verify(&block, &mut Random(Philox::new(seed))) else { return Ok(None) };
    let scheme = match scheme {
        Scheme::Paths => "paths",
        Scheme::Independent => "independent",
        _ => "without-replacement",
    };
    let mut line = format!(
        "{{\"rule\":{:?},\"scheme\":{scheme:?},\"vocab_len\":{vocab_len},\"calls\":[{}],\
         \"target\":[{}],\"seed\":{seed},\"position\":{position},\"verdict\":[{},{},{}]",
        rule.name(),
        growing.calls.join(","),
        json.join(","),
        verdict.node.index(),
        verdict.accepted,
        verdict.next.0
    );
    if lossy {
        let spent = rule.spent(&block, &verdict).tokens;
        let spent: Vec<_> = spent.iter().map(|s| [s.distance, s.factor, s.balance]).collect();
        let balance = balance.map_or(String::from("null"), |balance| format!("{balance:?}"));
        write!(line, ",\"bound\":{{{bound}}},\"balance\":{balance},\"spent\":{spent:?}")?;
    }
    line.push('}');
    Ok(Some(line))
}

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

fn rules(seed: u64) -> Vec<Box<dyn Rule>> {
    vec![
        Box::new(BlockRule),
        Box::new(TokenRule),
        Box::new(NssRule),
        Box::new(CoupledRule { noise: Noise::new(seed) }),
        Box::new(PooledRule),
        Box::new(SpecInferRule),
        Box::new(SpecTrRule),
        Box::new(RsdRule),
        Box::new(TraversalRule),
        Box::new(GbvRule::default()),
    ]
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (count, seed) = (arguments.next().ok_or("how many?")??, arguments.next().ok_or("seed?")??);
    let mut cases = Cases { rng: Philox::new(seed), form: None };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut done = 0;
    while done < count {
        let vocab_len = [2, 3, 5, 9, 2, 3, 5, 9, 700][cases.below(9)];
        cases.form = Some(cases.below(3)).filter(|form| *form < 2);
        let scheme =
            [Scheme::Paths, Scheme::Independent, Scheme::WithoutReplacement][cases.below(3)];
        let growing = draft(&mut cases, scheme, vocab_len)?;
        let draft = growing.tree.finish()?;
        let target: Vec<Made> =
            (0..=draft.len()).map(|_| cases.row(vocab_len)).collect::<Result<_, _>>()?;
        let mut json = String::from("[");
        for (place, made) in target.iter().enumerate() {
            write!(json, "{}{}", if place == 0 { "" } else { "," }, made.json)?;
        }
        json.push(']');
        let rows: Vec<Dist> = target.into_iter().map(|made| made.row).collect();
        let (seed, position) = (cases.rng.next_u64(), u64::from(cases.rng.next_u32()));
        let all = rules(seed);
        // Every rule has its turn; one that refuses this draft is asked about another.
        let rule = &all[usize::try_from(done)? % all.len()];
        let block = Block::new(&draft, &rows)?.at(position);
        let Ok(verdict) = rule.verify(&block, &mut Random(Philox::new(seed))) else { continue };
        let scheme = match scheme {
            Scheme::Paths => "paths",
            Scheme::Independent => "independent",
            _ => "without-replacement",
        };
        writeln!(
            out,
            "{{\"rule\":{:?},\"scheme\":{scheme:?},\"vocab_len\":{vocab_len},\"calls\":[{}],\
             \"target\":{json},\"seed\":{seed},\"position\":{position},\"verdict\":[{},{},{}]}}",
            rule.name(),
            growing.calls.join(","),
            verdict.node.index(),
            verdict.accepted,
            verdict.next.0
        )?;
        done += 1;
    }
    Ok(())
}

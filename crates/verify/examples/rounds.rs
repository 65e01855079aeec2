//! Tokens per round of every rule on large vocabularies: `just rounds` writes the table to
//! `bench/verify/rounds.md`.
//!
//! Rows are made like a language model's: every prefix has rows of its own, some peaked, some
//! flat; the drafter's are the target's with noise, and at times with the top tokens shuffled.
//! All rules judge the same drafts, so differences between them are known better than their means.

use std::collections::HashMap;
use std::fmt::Write as _;

use forerun_verify::rand_core::Rng;
use forerun_verify::*;

/// A drafter: noise on the logits, and how often the top eight tokens are shuffled.
const DRAFTERS: [(&str, f64, f64); 3] =
    [("strong", 0.35, 0.02), ("medium", 0.8, 0.08), ("weak", 1.3, 0.2)];
const LENS: [usize; 2] = [4, 8];
const PATHS: [usize; 3] = [1, 2, 4];
/// Vocabularies with the number of drafted rounds at each.
const VOCABS: [(usize, usize); 2] = [(1_000, 1_200), (32_000, 160)];
/// Verdicts drawn on each draft.
const VERDICTS: u64 = 8;

const COLUMNS: [&str; 13] = [
    "token",
    "block",
    "nss",
    "specinfer",
    "spectr",
    "rsd",
    "traversal",
    "rsd w/o",
    "trav. w/o",
    "gbv plain",
    "gbv",
    "pooled",
    "coupled",
];
const BLOCK: usize = 1;
const POOLED: usize = 11;
/// Columns of published rules for several paths.
const PUBLISHED: std::ops::Range<usize> = 2..11;

fn main() -> std::io::Result<()> {
    let mut report = String::from(HEAD);
    for (vocab_len, rounds) in VOCABS {
        for (drafter, noise, shuffled) in DRAFTERS {
            for len in LENS {
                let world = World { vocab_len, noise, shuffled, len };
                let seen = world.play(rounds);
                for (place, paths) in PATHS.into_iter().enumerate() {
                    let rows: Vec<&[f64]> = seen.iter().map(|round| &round[place][..]).collect();
                    let line = line(&format!("{drafter} | {vocab_len} | {len} | {paths}"), &rows);
                    eprint!("{line}");
                    report.push_str(&line);
                }
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/verify/rounds.md");
    std::fs::write(path, report)
}

const HEAD: &str = "\
# Tokens per round, by rule

Made by `just rounds` (`crates/verify/examples/rounds.rs`, fixed seeds). Synthetic rows like a language
model's; `strong`, `medium` and `weak` are drafters of growing noise. V is the vocabulary, L the draft
length, K the number of paths. Each cell is the mean number of committed tokens (accepted + 1); `se` is the
largest standard error in the row. All rules judge the same drafts, so the last two columns, differences
to pooled with their own standard errors, are known better than the means: `best` is the best published
rule for several paths in that row. `rsd`, `traversal` judge independent paths, `w/o` trees drawn without
replacement (K children at the root, then one each). `gbv` is the guarded form. `coupled` is the
reproducible rule: its drafter chooses by the same noise, K > 1 branches into its K best first choices.
`token` and `block` judge the first path alone.

| drafter | V | L | K | token | block | nss | specinfer | spectr | rsd | traversal | rsd w/o | trav. w/o | gbv plain | gbv | pooled | coupled | se | pooled − block | pooled − best |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
";

/// Mean and standard error.
fn estimate(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let spread = values.map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (spread / count).sqrt())
}

fn line(head: &str, rows: &[&[f64]]) -> String {
    let column = |column: usize| rows.iter().map(move |row| row[column] + 1.0);
    let cells: Vec<(f64, f64)> = (0..COLUMNS.len()).map(|c| estimate(column(c))).collect();
    let best = PUBLISHED.max_by(|a, b| cells[*a].0.total_cmp(&cells[*b].0)).unwrap_or(BLOCK);
    let lead = |other: usize| {
        let (mean, error) = estimate(rows.iter().map(|row| row[POOLED] - row[other]));
        format!("{mean:+.3} ± {error:.3}")
    };
    let mut line = format!("| {head} |");
    for (mean, _) in &cells {
        let _ = write!(line, " {mean:.3} |");
    }
    let error = cells.iter().map(|cell| cell.1).fold(0.0, f64::max);
    let _ = writeln!(line, " {error:.3} | {} | {} ({}) |", lead(BLOCK), lead(best), COLUMNS[best]);
    line
}

/// What is drafted for: a vocabulary, a drafter and a draft length.
#[derive(Clone, Copy)]
struct World {
    vocab_len: usize,
    noise: f64,
    shuffled: f64,
    len: usize,
}

/// Accepted tokens by number of paths and rule.
type Round = Vec<Vec<f64>>;

impl World {
    /// Plays rounds on two threads.
    fn play(self, rounds: usize) -> Vec<Round> {
        let half = |parity: usize| {
            move || (parity..rounds).step_by(2).map(|seed| self.round(seed as u64)).collect()
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(half(1));
            let mut seen: Vec<Round> = half(0)();
            seen.extend(other.join().expect("rounds do not panic"));
            seen
        })
    }

    fn round(self, seed: u64) -> Round {
        let mut rows = Rows { world: self, seed, known: HashMap::new() };
        let noise = Noise::new(seed);
        let coupled = CoupledRule { noise };
        let mut chance = Random(Philox::new(seed ^ 0xD4AF7));
        let most = PATHS[PATHS.len() - 1];
        let paths: Vec<Vec<Token>> = (0..most).map(|_| rows.path(vec![], &mut chance)).collect();
        let distinct = rows.distinct_paths(most, &mut chance);
        PATHS
            .iter()
            .map(|&count| {
                let one = rows.draft(Scheme::Paths, &paths[..1]);
                let several = rows.draft(Scheme::Paths, &paths[..count]);
                let tree = rows.draft(Scheme::WithoutReplacement, &distinct[..count]);
                let chosen = rows.chosen(noise, count);
                let gbv_plain = GbvRule { guarded: false };
                let cases: [(&dyn Rule, &Draft); 13] = [
                    (&TokenRule, &one),
                    (&BlockRule, &one),
                    (&NssRule, &several),
                    (&SpecInferRule, &several),
                    (&SpecTrRule, &several),
                    (&RsdRule, &several),
                    (&TraversalRule, &several),
                    (&RsdRule, &tree),
                    (&TraversalRule, &tree),
                    (&gbv_plain, &several),
                    (&GbvRule { guarded: true }, &several),
                    (&PooledRule, &several),
                    (&coupled, &chosen),
                ];
                cases.iter().map(|(rule, draft)| rows.accepted(*rule, draft)).collect()
            })
            .collect()
    }
}

/// The rows of one round, made when first asked for.
struct Rows {
    world: World,
    seed: u64,
    known: HashMap<Vec<Token>, (Dist, Dist)>,
}

impl Rows {
    /// The target's and the drafter's row after a prefix.
    fn at(&mut self, prefix: &[Token]) -> &(Dist, Dist) {
        let (world, seed) = (self.world, self.seed);
        self.known.entry(prefix.to_vec()).or_insert_with(|| world.rows(seed, prefix))
    }

    fn path(&mut self, prefix: Vec<Token>, chance: &mut dyn Chance) -> Vec<Token> {
        let mut path = prefix;
        while path.len() < self.world.len {
            let token = self.at(&path).1.draw(chance);
            path.push(token);
        }
        path
    }

    /// Paths whose first tokens are drawn without replacement.
    fn distinct_paths(&mut self, count: usize, chance: &mut dyn Chance) -> Vec<Vec<Token>> {
        let mut firsts: Vec<Token> = Vec::new();
        while firsts.len() < count {
            // Skipping repeats is drawing without replacement.
            let token = self.at(&[]).1.draw(chance);
            if !firsts.contains(&token) {
                firsts.push(token);
            }
        }
        firsts.into_iter().map(|token| self.path(vec![token], chance)).collect()
    }

    fn draft(&mut self, scheme: Scheme, paths: &[Vec<Token>]) -> Draft {
        let mut tree = Draft::start(scheme, self.world.vocab_len);
        let mut handed: HashMap<Vec<Token>, RowId> = HashMap::new();
        for path in paths {
            let mut node = Node::ROOT;
            for (depth, token) in path.iter().enumerate() {
                let prefix = &path[..depth];
                if !handed.contains_key(prefix) {
                    let row = self.at(prefix).1.clone();
                    handed.insert(prefix.to_vec(), tree.row(row).expect("of the vocabulary"));
                }
                node = tree.sampled(node, handed[prefix], *token).expect("drawn from the row");
            }
        }
        tree.finish().expect("whole paths")
    }

    /// The drafter's own choices by the noise, after each of its best first ones.
    fn chosen(&mut self, noise: Noise, count: usize) -> Draft {
        let mut tree = Draft::start(Scheme::Independent, self.world.vocab_len);
        for first in noise.choose_several(0, &self.at(&[]).1, count) {
            let mut path = vec![first];
            let mut node = tree.fixed(Node::ROOT, first).expect("a token");
            while path.len() < self.world.len {
                let token = noise.choose(path.len() as u64, &self.at(&path).1);
                node = tree.fixed(node, token).expect("a token");
                path.push(token);
            }
        }
        tree.finish().expect("fixed tokens")
    }

    /// Accepted tokens on average over a few verdicts.
    fn accepted(&mut self, rule: &dyn Rule, draft: &Draft) -> f64 {
        let nodes = std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, ..)| node));
        let rows: Vec<Dist> = nodes.map(|node| self.at(&draft.path_to(node)).0.clone()).collect();
        let block = Block::new(draft, &rows).expect("every node is scored");
        // The coupled rule's verdict is a function of its noise: one is all there is.
        let verdicts = if rule.name() == "coupled" { 1 } else { VERDICTS };
        let verdict = |draw: u64| {
            let mut chance = Random(Philox::new(self.seed ^ draw << 32));
            rule.verify(&block, &mut chance).expect("a draft for the rule").accepted as f64
        };
        (0..verdicts).map(verdict).sum::<f64>() / verdicts as f64
    }
}

impl World {
    fn rows(self, seed: u64, prefix: &[Token]) -> (Dist, Dist) {
        let key = prefix.iter().fold(seed + 1, |key, token| {
            (key ^ u64::from(token.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        });
        let mut rng = Philox::new(key);
        let context = uniform(&mut rng);
        let (least, most) = match context {
            peaked if peaked < 0.45 => (3.5, 7.0),
            medium if medium < 0.8 => (1.8, 3.0),
            _ => (1.0, 1.5),
        };
        let slope = least + (most - least) * uniform(&mut rng);
        let target: Vec<f64> = (1..=self.vocab_len)
            .map(|rank| -slope * (rank as f64).ln() + 0.4 * normal(&mut rng))
            .collect();
        let mut draft: Vec<f64> =
            target.iter().map(|logit| logit + self.noise * normal(&mut rng)).collect();
        if uniform(&mut rng) < self.shuffled {
            for top in (1..8).rev() {
                draft.swap(top, rng.next_u32() as usize % (top + 1));
            }
        }
        let row = |logits: Vec<f64>| {
            #[expect(clippy::cast_possible_truncation, reason = "logits are f32")]
            let logits: Vec<f32> = logits.into_iter().map(|logit| logit as f32).collect();
            Dist::softmax(&logits, 1.0).expect("finite logits")
        };
        (row(target), row(draft))
    }
}

fn uniform(rng: &mut Philox) -> f64 {
    (f64::from(rng.next_u32()) + 0.5) / 4_294_967_296.0
}

/// Box and Muller.
fn normal(rng: &mut Philox) -> f64 {
    (-2.0 * uniform(rng).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos()
}

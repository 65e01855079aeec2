//! Tokens per target pass: every rule on the same drafts.
//!
//! A round drafts three independent paths, three with different first tokens, three of which one has
//! the likeliest token and the others one of the rest, and a tree of the tokens that the drafter
//! finds most likely to be reached; it scores them all. Every rule then judges what it would have
//! been given at each width and length, several times over. So the rules are compared on the same
//! rows, and machine and output fall on all alike.

use std::collections::HashMap;
use std::fmt::Write as _;

use forerun_decode::{Branch, Engine, Keep, Output, Rows, Sampling, Slot, Step, Token};
use forerun_llama::{EngineOptions, LlamaEngine, Model};
use forerun_verify::{
    Block, BlockRule, Dist, Draft, GbvRule, Node, Philox, PooledRule, Random, RsdRule, Rule,
    Scheme, SpecInferRule, TokenRule, TraversalRule,
};

use crate::lab;

const TARGET: &str = "SmolLM2-135M-Instruct.Q8_0.gguf";
const PAIRS: [(&str, &str); 5] = [
    ("aligned", "SmolLM2-135M-Instruct.Q4_0.gguf"),
    ("medium", "SmolLM2-pruned-14+13.gguf"),
    ("weak", "SmolLM2-pruned-12+12.gguf"),
    ("poor", "SmolLM2-pruned-10+10.gguf"),
    ("useless", "SmolLM2-pruned-8+0.gguf"),
];
const WIDTH: usize = 3;
/// All kinds of paths together.
const PATHS: u32 = 9;
const LENS: [usize; 2] = [4, 8];
const PROMPTS: usize = 8;
const ROUNDS: usize = 10;
/// As many nodes as all paths of one kind have.
const GROWN_MAX: u32 = 24;
/// Verdicts of each rule on each draft.
const VERDICTS: usize = 8;

type Path = Vec<Token>;

/// How a draft comes about.
#[derive(Clone, Copy)]
enum Drawn {
    Independent,
    /// Different first tokens, without replacement.
    Distinct,
    /// One path with the likeliest first token, the others with one of the rest.
    Led,
    /// As many nodes as the paths would have, each the likeliest to be reached of those left.
    Grown,
}

/// A rule, the draft it is given, and the widths it is judged at.
struct Contender {
    name: &'static str,
    rule: Box<dyn Rule>,
    drawn: Drawn,
    widths: std::ops::RangeInclusive<usize>,
}

fn contenders() -> Vec<Contender> {
    let contender =
        |name, rule: Box<dyn Rule>, drawn, widths| Contender { name, rule, drawn, widths };
    vec![
        contender("token", Box::new(TokenRule), Drawn::Independent, 1..=1),
        contender("block", Box::new(BlockRule), Drawn::Independent, 1..=1),
        contender("specinfer", Box::new(SpecInferRule), Drawn::Independent, 2..=3),
        contender("rsd", Box::new(RsdRule), Drawn::Distinct, 2..=3),
        contender("gbv", Box::<GbvRule>::default(), Drawn::Independent, 2..=3),
        contender("traversal", Box::new(TraversalRule), Drawn::Distinct, 2..=3),
        contender("pooled", Box::new(PooledRule), Drawn::Independent, 2..=3),
        contender("pooled, led", Box::new(PooledRule), Drawn::Led, 2..=3),
        contender("pooled, grown", Box::new(PooledRule), Drawn::Grown, 2..=3),
    ]
}

/// Mean tokens per pass and nodes of each round, by contender, width and length.
type Tokens = HashMap<(&'static str, usize, usize), Vec<(f64, usize)>>;

pub(crate) fn report() {
    let mut text = head();
    for temperature in [1.0, 0.7] {
        for (kind, drafter) in PAIRS {
            let tokens = measure(drafter, temperature);
            table(&mut text, kind, drafter, temperature, &tokens);
            lab::write("paths.md", &text);
        }
    }
}

fn head() -> String {
    format!(
        "# Several paths: tokens per target pass\n\n\
         Made by `just paths`. Target: SmolLM2-135M-Instruct (Q8_0), which says what the **grown** targets say; drafters:\n\
         the same requantised (aligned) and **pruned** of blocks. {PROMPTS} prompts of Spec-Bench, {ROUNDS} rounds each. In every\n\
         round all rules judge the same rows, {VERDICTS} times: *token* and *block* the first path; *specinfer*, *gbv* and *pooled*\n\
         independent paths; *rsd* and *traversal* paths with different first tokens, drawn without replacement, which they\n\
         are made for; *pooled, led* one path with the drafter's likeliest token and others with tokens drawn from the rest;\n\
         *pooled, grown* a tree of fixed tokens with as many nodes, grown where the drafter says it is most likely reached.\n\
         *gbv* has our guard (it uses fewer paths where that promises more). With one path gbv, traversal and pooled are\n\
         block verification. Tokens per pass count the token after the accepted ones; nodes are drafted tokens, where paths\n\
         that agree have one. Intervals: 95 %, resampling rounds; ratios are of the same rounds.\n\n\
         Machine: {}.\n",
        lab::machine()
    )
}

fn engine(model: &Model, slots: u32, paths: u32) -> LlamaEngine {
    let count = |n| std::num::NonZeroU32::new(n).expect("above zero");
    let options = EngineOptions { slots: count(slots), paths: count(paths), ..lab::options() };
    LlamaEngine::new(model, &options).expect("the engine starts")
}

fn measure(drafter: &str, temperature: f32) -> Tokens {
    let (target, draft) = (lab::model(TARGET), lab::model(drafter));
    let sampling = lab::endless(&target, temperature);
    let mut tokens = Tokens::new();
    let mut chance = Random(Philox::new(1));
    let prompts = lab::prompts(&target, "spec_bench.jsonl", 6);
    let short = prompts.iter().filter(|prompt| lab::tokens(&target, prompt).len() < 300);
    for prompt in short.take(PROMPTS) {
        let mut committed = lab::tokens(&target, prompt);
        let mut drafts = Drafting::new(engine(&draft, PATHS, 1));
        let mut trees = Drafting::new(engine(&draft, 1, GROWN_MAX));
        let mut scores = Scoring::new(engine(&target, 1, PATHS + GROWN_MAX));
        for _ in 0..ROUNDS {
            let mut paths = drafts.paths(&committed, &sampling, &mut chance);
            paths.grown = trees.grown(&committed, &sampling);
            let rows = scores.rows(&committed, &paths, &sampling);
            for contender in contenders() {
                for (width, len) in contender.widths.clone().flat_map(|k| LENS.map(|l| (k, l))) {
                    let judged = judge(&contender, (width, len), &paths, &rows, &mut chance);
                    tokens.entry((contender.name, width, len)).or_default().push(judged);
                }
            }
            commit(&mut committed, &paths, &rows, &mut chance);
        }
        eprint!(".");
    }
    eprintln!();
    tokens
}

/// The drafted paths of a round and the rows they were drawn from.
struct Paths {
    independent: Vec<Path>,
    distinct: Vec<Path>,
    led: Vec<Path>,
    /// The nodes of a tree, in the order they were grown.
    grown: Vec<Path>,
    rows: HashMap<Path, Dist>,
}

/// A draft model that draws each path in a slot of its own, or grows one tree.
struct Drafting {
    engine: LlamaEngine,
    cached: usize,
    output: Output,
}

impl Drafting {
    fn new(engine: LlamaEngine) -> Self {
        Self { engine, cached: 0, output: Output::default() }
    }

    fn paths(
        &mut self,
        committed: &[Token],
        sampling: &Sampling,
        chance: &mut Random<Philox>,
    ) -> Paths {
        let mut rows = HashMap::new();
        let mut paths: Vec<Path> = vec![Vec::new(); PATHS as usize];
        let len_max = LENS[LENS.len() - 1];
        for depth in 0..len_max {
            let branches: Vec<[Branch; 1]> = paths
                .iter()
                .map(|path| {
                    let token = path.last().copied().unwrap_or(Token(0));
                    [Branch { parent: depth.saturating_sub(1), token }]
                })
                .collect();
            let steps = branches.iter().zip(0u32..).map(|(branch, slot)| match depth {
                0 => Step {
                    slot: Slot(slot),
                    keep: Keep::Trunk(self.cached),
                    trunk: &committed[self.cached..],
                    tree: &[],
                    rows: Rows::Trunk,
                },
                _ => Step {
                    slot: Slot(slot),
                    keep: Keep::All(committed.len() + depth - 1),
                    trunk: &[],
                    tree: branch,
                    rows: Rows::Tree,
                },
            });
            let steps: Vec<Step<'_>> = steps.collect();
            self.engine.extend(&steps, &mut self.output).expect("the drafter runs");
            let mut first: Vec<Token> = Vec::new();
            for (index, path) in paths.iter_mut().enumerate() {
                let logits = self.output.row_mut(index);
                let law = sampling.row(logits, committed, path).expect("a law");
                let law = rows.entry(path.clone()).or_insert(law);
                let best = law.likeliest().0;
                let token = match index / WIDTH {
                    1 if depth == 0 => law.draw_except(&first, chance),
                    2 if depth == 0 && index == 2 * WIDTH => Some(best),
                    2 if depth == 0 => law.draw_except(&[best], chance),
                    _ => None,
                };
                let token = token.unwrap_or_else(|| law.draw(chance));
                if index / WIDTH == 1 && depth == 0 {
                    first.push(token);
                }
                path.push(token);
            }
        }
        self.cached = committed.len();
        let led = paths.split_off(2 * WIDTH);
        let distinct = paths.split_off(WIDTH);
        Paths { independent: paths, distinct, led, grown: Vec::new(), rows }
    }

    /// The nodes that are most likely to be reached if the target draws as the drafter does, the
    /// likeliest first.
    fn grown(&mut self, committed: &[Token], sampling: &Sampling) -> Vec<Path> {
        let mut nodes: Vec<Path> = Vec::new();
        // Nodes that could come next, with their probability and their parent's number.
        let mut open: Vec<(f64, usize, Path)> = Vec::new();
        let (mut reached, mut parent) = (1.0, 0);
        while nodes.len() < GROWN_MAX as usize {
            let path = nodes.last().cloned().unwrap_or_default();
            let branch = path.last().map(|token| Branch { parent, token: *token });
            let step = match &branch {
                None => Step {
                    slot: Slot(0),
                    keep: Keep::Trunk(self.cached),
                    trunk: &committed[self.cached..],
                    tree: &[],
                    rows: Rows::Trunk,
                },
                Some(branch) => Step {
                    slot: Slot(0),
                    keep: Keep::All(committed.len() + nodes.len() - 1),
                    trunk: &[],
                    tree: std::slice::from_ref(branch),
                    rows: Rows::Tree,
                },
            };
            self.engine.extend(&[step], &mut self.output).expect("the drafter runs");
            let law = sampling.row(self.output.row_mut(0), committed, &path).expect("a law");
            let mut likely: Vec<(Token, f64)> = law.support().collect();
            likely.sort_by(|one, other| other.1.total_cmp(&one.1));
            likely.truncate(GROWN_MAX as usize);
            open.extend(likely.into_iter().map(|(token, probability)| {
                (reached * probability, nodes.len(), [&path[..], &[token]].concat())
            }));
            let best = (0..open.len()).max_by(|one, other| open[*one].0.total_cmp(&open[*other].0));
            let (probability, of, path) = open.swap_remove(best.expect("a row has mass"));
            (reached, parent) = (probability, of);
            nodes.push(path);
        }
        self.cached = committed.len();
        nodes
    }
}

/// A target that scores all paths of a round in one pass.
struct Scoring {
    engine: LlamaEngine,
    cached: usize,
    output: Output,
}

impl Scoring {
    fn new(engine: LlamaEngine) -> Self {
        Self { engine, cached: 0, output: Output::default() }
    }

    fn rows(
        &mut self,
        committed: &[Token],
        paths: &Paths,
        sampling: &Sampling,
    ) -> HashMap<Path, Dist> {
        let mut prefixes: Vec<Path> = vec![Vec::new()];
        let mut tree: Vec<Branch> = Vec::new();
        for path in
            paths.independent.iter().chain(&paths.distinct).chain(&paths.led).chain(&paths.grown)
        {
            for len in 1..=path.len() {
                if prefixes.iter().any(|known| *known == path[..len]) {
                    continue;
                }
                let parent = prefixes.iter().position(|known| *known == path[..len - 1]);
                let parent = parent.expect("shorter prefixes come first");
                tree.push(Branch { parent, token: path[len - 1] });
                prefixes.push(path[..len].to_vec());
            }
        }
        let step = Step {
            slot: Slot(0),
            keep: Keep::Trunk(self.cached),
            trunk: &committed[self.cached..],
            tree: &tree,
            rows: Rows::All,
        };
        self.engine.extend(&[step], &mut self.output).expect("the target runs");
        self.cached = committed.len();
        let row = |(index, prefix): (usize, Path)| {
            let row = sampling.row(self.output.row_mut(index), committed, &prefix);
            (prefix, row.expect("a law"))
        };
        prefixes.into_iter().enumerate().map(row).collect()
    }
}

/// The draft a rule is given: the first paths, so far; or as many nodes of the grown tree.
fn draft(drawn: Drawn, width: usize, len: usize, paths: &Paths) -> Draft {
    let root = &paths.rows[&Vec::new()];
    let (scheme, chosen) = match drawn {
        Drawn::Independent => (Scheme::Paths, &paths.independent),
        Drawn::Distinct => (Scheme::WithoutReplacement, &paths.distinct),
        Drawn::Led => (Scheme::Independent, &paths.led),
        Drawn::Grown => (Scheme::Independent, &paths.grown),
    };
    let mut tree = Draft::start(scheme, root.vocab_len());
    if let Drawn::Grown = drawn {
        for path in &chosen[..width * len] {
            let add = |node, token: &Token| tree.fixed(node, *token).expect("of the vocabulary");
            path.iter().fold(Node::ROOT, add);
        }
        return tree.finish().expect("fixed tokens are a draft");
    }
    let mut ids = HashMap::new();
    let best = root.likeliest().0;
    let led = matches!(drawn, Drawn::Led);
    let rest = led.then(|| root.without(best)).flatten();
    let rest = rest.map(|rest| tree.row(rest).expect("of the vocabulary"));
    for (index, path) in chosen[..width].iter().enumerate() {
        let mut node = Node::ROOT;
        for (depth, token) in path[..len].iter().enumerate() {
            if let (0, Some(rest)) = (depth, rest) {
                let added = match index {
                    0 => tree.fixed(node, best),
                    _ => tree.sampled(node, rest, *token),
                };
                node = added.expect("drawn as the scheme has it");
                continue;
            }
            let prefix = path[..depth].to_vec();
            let row = *ids.entry(prefix).or_insert_with_key(|prefix| {
                tree.row(paths.rows[prefix].clone()).expect("of the vocabulary")
            });
            node = tree.sampled(node, row, *token).expect("drawn from the row");
        }
    }
    tree.finish().expect("drawn by the scheme")
}

/// The target's rows for a draft.
fn scored(draft: &Draft, rows: &HashMap<Path, Dist>) -> Vec<Dist> {
    let nodes = std::iter::once(Node::ROOT).chain(draft.nodes().map(|(node, _, _)| node));
    nodes.map(|node| rows[&draft.path_to(node)].clone()).collect()
}

fn judge(
    contender: &Contender,
    (width, len): (usize, usize),
    paths: &Paths,
    rows: &HashMap<Path, Dist>,
    chance: &mut Random<Philox>,
) -> (f64, usize) {
    let draft = draft(contender.drawn, width, len, paths);
    let target = scored(&draft, rows);
    let block = Block::new(&draft, &target).expect("a row for each node");
    let verdict = |_| contender.rule.verify(&block, chance).expect("it is for such drafts");
    let tokens: usize = (0..VERDICTS).map(verdict).map(|verdict| verdict.accepted + 1).sum();
    (tokens as f64 / VERDICTS as f64, draft.len())
}

/// Goes on with the text as pooled verification of all paths would.
fn commit(
    committed: &mut Vec<Token>,
    paths: &Paths,
    rows: &HashMap<Path, Dist>,
    chance: &mut Random<Philox>,
) {
    let draft = draft(Drawn::Independent, WIDTH, LENS[0], paths);
    let target = scored(&draft, rows);
    let block = Block::new(&draft, &target).expect("a row for each node");
    let verdict = PooledRule.verify(&block, chance).expect("it is for such drafts");
    committed.extend(draft.path_to(verdict.node));
    committed.push(verdict.next);
}

fn table(text: &mut String, kind: &str, drafter: &str, temperature: f32, tokens: &Tokens) {
    writeln!(text, "\n## {kind} pair, temperature {temperature}: drafter {drafter}\n")
        .expect("grows");
    text.push_str("| rule | paths | length 4 | nodes | over block | length 8 | nodes | over block |\n|---|--:|--:|--:|--:|--:|--:|--:|\n");
    let runs = |rule, width, len| {
        lab::Runs(tokens[&(rule, width, len)].iter().map(|(mean, _)| (*mean, 1.0)).collect())
    };
    for contender in contenders() {
        let rule = contender.name;
        for width in contender.widths.clone() {
            write!(text, "| {rule} | {width} |").expect("grows");
            for len in LENS {
                let (own, block) = (runs(rule, width, len), runs("block", 1, len));
                let over = if rule == "block" { "1".to_owned() } else { own.over(&block) };
                let all = &tokens[&(rule, width, len)];
                let nodes =
                    all.iter().map(|(_, nodes)| *nodes as f64).sum::<f64>() / all.len() as f64;
                write!(text, " {:.2} | {nodes:.1} | {over} |", own.rate()).expect("grows");
            }
            text.push('\n');
        }
    }
    text.push_str("\nPooled over the best published rule:");
    for (width, len) in [(2, 4), (2, 8), (3, 4), (3, 8)] {
        let published = ["specinfer", "rsd", "gbv", "traversal"];
        let best = published
            .into_iter()
            .max_by(|one, other| {
                runs(one, width, len).rate().total_cmp(&runs(other, width, len).rate())
            })
            .expect("there are four");
        let ratio = runs("pooled", width, len).over(&runs(best, width, len));
        write!(text, " {ratio} ({best}, {width} paths of {len});").expect("grows");
    }
    text.pop();
    text.push_str(".\n");
}

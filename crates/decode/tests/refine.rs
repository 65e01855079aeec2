//! What refining the rows of a block gains and costs: a target whose text is a chain, and the best head
//! of independent rows that there is for it.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::sync::Arc;

use forerun_decode::*;
use forerun_verify::{BlockRule, Chance, Dist, Philox, PooledRule, Random, Rule, Scheme};

const VOCAB: usize = 48;
const BLOCK_LEN: usize = 6;
const PROMPT_LEN: usize = 100;
const OUTPUT_LEN: usize = 600;

/// A text in which each token depends on the one before it alone: the probabilities of what follows each
/// token. As a head, it gives for each depth the exact distribution of the token there, given the newest
/// token and nothing of those between.
#[derive(Debug, Clone)]
struct Chain(Vec<Vec<f64>>);

impl Chain {
    /// Each token is followed by one of three others, as a rule.
    fn repeating() -> Self {
        let follows = |token: usize| [7 * token + 1, 11 * token + 5, 13 * token + 8];
        let row = |token| {
            let mut row = vec![0.1 / VOCAB as f64; VOCAB];
            for (next, probability) in follows(token).into_iter().zip([0.5, 0.3, 0.1]) {
                row[next % VOCAB] += probability;
            }
            row
        };
        Self((0..VOCAB).map(row).collect())
    }

    /// What follows does not depend on what came before. Some tokens are common, so they often follow
    /// each other.
    fn unrelated() -> Self {
        let total: f64 = (1..=VOCAB).map(|rank| 1.0 / rank as f64).sum();
        let row: Vec<f64> = (1..=VOCAB).map(|rank| 1.0 / (rank as f64 * total)).collect();
        Self(vec![row; VOCAB])
    }

    /// A text that begins with token 0.
    fn text(&self, len: usize, chance: &mut dyn Chance) -> Vec<Token> {
        let mut tokens = vec![Token(0)];
        while tokens.len() < len {
            let row = &self.0[tokens[tokens.len() - 1].index()];
            let row = Dist::dense(row.iter().copied().map(single).collect()).unwrap();
            tokens.push(row.draw(chance));
        }
        tokens
    }

    /// The distribution after one more token.
    fn step(&self, row: &[f64]) -> Vec<f64> {
        let next = |token: usize| row.iter().zip(&self.0).map(|(p, after)| p * after[token]).sum();
        (0..VOCAB).map(next).collect()
    }

    fn push(output: &mut Output, row: &[f64]) {
        output.push(&row.iter().map(|p| single(p.ln())).collect::<Vec<f32>>());
    }
}

#[expect(clippy::cast_possible_truncation, reason = "engines give single precision")]
fn single(number: f64) -> f32 {
    number as f32
}

impl Engine for Chain {
    fn vocab_len(&self) -> usize {
        VOCAB
    }

    fn context_len(&self) -> usize {
        4096
    }

    fn slot_count(&self) -> usize {
        1
    }

    fn paths_max(&self) -> usize {
        8
    }

    fn can_cut(&self) -> bool {
        true
    }

    fn feature_len(&self) -> usize {
        1
    }

    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        output.clear(VOCAB);
        for step in steps {
            let last = step.trunk.last().filter(|_| matches!(step.rows, Rows::Trunk | Rows::All));
            let tree = step.tree.iter().map(|branch| &branch.token);
            for token in last.into_iter().chain(tree) {
                Self::push(output, &self.0[token.index()]);
            }
            (0..step.trunk.len() + step.tree.len()).for_each(|_| output.push_feature(&[&[0.0]]));
        }
        Ok(())
    }
}

impl Head for Chain {
    fn pairing(&self) -> Pairing {
        Pairing::FromFirst
    }

    fn hidden_len(&self) -> usize {
        1
    }

    fn block(&self) -> Option<BlockShape> {
        Some(BlockShape { mask: Token(0), len_max: BLOCK_LEN, first_row: 0 })
    }

    fn encode(&mut self, features: &[f32], hidden: &mut Vec<f32>) -> Result<(), EngineError> {
        hidden.extend_from_slice(features);
        Ok(())
    }

    fn extend_hidden(
        &mut self,
        _: usize,
        steps: &[Step<'_>],
        _: &[f32],
        output: &mut Output,
    ) -> Result<(), EngineError> {
        output.clear(VOCAB);
        for step in steps.iter().filter(|step| step.rows == Rows::Tree) {
            let mut row = self.0[step.tree[0].token.index()].clone();
            for _ in step.tree {
                Self::push(output, &row);
                row = self.step(&row);
            }
        }
        Ok(())
    }
}

/// Tokens committed per round: block efficiency.
fn committed_per_round(chain: &Chain, setting: Setting, texts: u64, refined: bool) -> f64 {
    let head = HeadDrafter::new(Box::new(chain.clone()), DrafterKind::Dflash);
    let head = if refined { head } else { head.unrefined() };
    let mut decoder = Decoder::new(Box::new(chain.clone()), vec![Box::new(head)]).unwrap();
    let one_path = setting.paths == 1;
    let rule: Arc<dyn Rule> = if one_path { Arc::new(BlockRule) } else { Arc::new(PooledRule) };
    let policy = DraftPolicy::drafted(vec![DrafterId(0)], BLOCK_LEN, rule).wide(setting.paths);
    let policy = &policy.drawn(Scheme::Independent);
    let (mut committed, mut rounds) = (0, 0);
    for seed in 0..texts {
        let mut chance = Random(Philox::new(seed));
        let sampling = Sampling { temperature: setting.temperature, ..Sampling::unshaped() };
        let mut sequence = Sequence::new(Slot(0), sampling);
        sequence.begin(chain.text(PROMPT_LEN, &mut chance), OUTPUT_LEN);
        while sequence.wanted() > 0 {
            let (plan, limits, chance) = (&policy.plan(), Limits::default(), &mut chance);
            let turn = Turn { sequence: &mut sequence, policy, plan, limits, chance };
            let commit = decoder.round(&mut [turn]).unwrap().commits.remove(0);
            if commit.draft_len_max == BLOCK_LEN {
                rounds += 1;
                committed += commit.committed;
            }
        }
    }
    committed as f64 / rounds as f64
}

#[derive(Debug, Clone, Copy)]
struct Setting {
    paths: usize,
    temperature: f32,
}

const SETTINGS: [Setting; 6] = [
    Setting { paths: 1, temperature: 1.0 },
    Setting { paths: 2, temperature: 1.0 },
    Setting { paths: 1, temperature: 0.5 },
    Setting { paths: 2, temperature: 0.5 },
    Setting { paths: 1, temperature: 0.0 },
    Setting { paths: 2, temperature: 0.0 },
];

/// Tokens per round without and with refinement.
fn compared(chain: &Chain, setting: Setting, texts: u64) -> [f64; 2] {
    [false, true].map(|refined| committed_per_round(chain, setting, texts, refined))
}

#[test]
fn refinement_gains_where_a_text_repeats_itself() {
    for setting in SETTINGS {
        let [plain, refined] = compared(&Chain::repeating(), setting, 3);
        assert!(refined > 1.08 * plain, "{setting:?}: {plain} and {refined} tokens per round");
    }
}

/// The head is perfect, so that anything but its own rows is a loss.
#[test]
fn refinement_costs_little_where_what_came_before_tells_nothing() {
    for setting in SETTINGS {
        let [plain, refined] = compared(&Chain::unrelated(), setting, 3);
        assert!(refined > 0.93 * plain, "{setting:?}: {plain} and {refined} tokens per round");
    }
}

#[test]
#[ignore = "writes bench/decode/refine.md: `just refine`"]
fn report() {
    const TEXTS: u64 = 32;
    let mut report = format!(
        "# Blocks refined by the text's own n-grams: tokens per round\n\n\
         Made by `just refine`, without a model. The text is a Markov chain over {VOCAB} tokens, and the head is\n\
         the best that drafts blocks of independent rows: it knows the exact distribution of every token of a block\n\
         given the newest committed token, and nothing of the tokens between. In the *repeating* text three\n\
         tokens usually follow each token; in the *unrelated* one, what follows does not depend on the token before,\n\
         so the head's rows are the target's and refinement can only lose. {TEXTS} texts of {OUTPUT_LEN} tokens\n\
         after {PROMPT_LEN}, blocks of {BLOCK_LEN}; block verification, or pooled for two paths. Tokens per round\n\
         count the token after the accepted ones.\n\n\
         | text | temperature | paths | as the head says | refined | ratio |\n|---|--:|--:|--:|--:|--:|\n"
    );
    for (name, chain) in [("repeating", Chain::repeating()), ("unrelated", Chain::unrelated())] {
        for setting in SETTINGS {
            let [plain, refined] = compared(&chain, setting, TEXTS);
            let Setting { paths, temperature } = setting;
            let ratio = refined / plain;
            report += &format!(
                "| {name} | {temperature} | {paths} | {plain:.2} | {refined:.2} | {ratio:.2} |\n"
            );
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/decode/refine.md");
    std::fs::write(path, report).unwrap();
}

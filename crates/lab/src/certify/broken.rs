//! Decoders that are wrong on purpose, in ways that engines have been wrong: to see the certificate
//! fail.

mod lossy;

use std::sync::Arc;

use forerun_decode::{
    Decoder, DraftFailure, DraftRequest, Drafter, DrafterKind, Draw, Engine, EngineError, Keep,
    LossyMode, NgramDrafter, Output, Rows, Sampling, Shown, Slot, Step, Token,
};
use forerun_verify::check::LossyPublishedRule;
use forerun_verify::{
    Block, BlockRule, Chance, Dist, Draft, LossyBlockRule, Node, Refusal, Rule, Scheme, Verdict,
    Weights,
};

use lossy::LossyBroken;

/// How often a rejected token is accepted all the same.
const LEAK: f64 = 0.01;

/// The temperature drafts are drawn at, as a share of the one they are verified with.
const COLDER: f64 = 0.8;

/// What to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Accept like block verification, then draw the next token from token verification's residual.
    TokenResidual,
    /// Sample drafts at another temperature than they are verified with.
    DraftTemperature,
    /// Apply penalties to the first row of a block, but not to the rows of draft tokens.
    Penalties,
    /// Draft the likeliest token, and verify it as if it had been sampled.
    Argmax,
    /// Accept one in a hundred rejected tokens.
    Leak,
    /// Accept tokens that are likely enough (Medusa's typical acceptance).
    Typical,
    /// Accept tokens among the target's three likeliest that are close to the likeliest.
    TopThree,
    /// Accept more than a lossless rule may, and draw the rest as the paper does (lenience).
    Lenience,
    /// Accept tokens near the likeliest, and say the likeliest otherwise (SpecDec).
    SpecDec,
    /// Accept tokens above a threshold (SGLang).
    Thresholds,
    /// Accept what a gate lets pass, without asking the target (SPRINTER).
    Sprinter,
    /// Spend twice of what a lossy mode promises.
    SpendTwice,
    /// Never pay: the account of a lossy mode is full again after every round.
    UnpaidAccount,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::TokenResidual,
        Self::DraftTemperature,
        Self::Penalties,
        Self::Argmax,
        Self::Leak,
        Self::Typical,
        Self::TopThree,
        Self::Lenience,
        Self::SpecDec,
        Self::Thresholds,
        Self::Sprinter,
        Self::SpendTwice,
        Self::UnpaidAccount,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenResidual => "token-residual",
            Self::DraftTemperature => "draft-temperature",
            Self::Penalties => "penalties",
            Self::Argmax => "argmax",
            Self::Leak => "leak",
            Self::Typical => "typical",
            Self::TopThree => "top-three",
            Self::Lenience => "lenience",
            Self::SpecDec => "specdec",
            Self::Thresholds => "sglang",
            Self::Sprinter => "sprinter",
            Self::SpendTwice => "spend-twice",
            Self::UnpaidAccount => "unpaid-account",
        }
    }

    /// What the broken decoder does, for a list of all of them.
    pub fn explained(self) -> &'static str {
        match self {
            Self::TokenResidual => {
                "Accept like block verification, then draw the next token from token verification's \
                 residual"
            }
            Self::DraftTemperature => {
                "Sample drafts at another temperature than they are verified with"
            }
            Self::Penalties => {
                "Apply penalties to the first row of a block, but not to the rows of draft tokens"
            }
            Self::Argmax => "Draft the likeliest token, and verify it as if it had been sampled",
            Self::Leak => "Accept one in a hundred rejected tokens",
            Self::Typical => "Accept tokens that are likely enough (Medusa's typical acceptance)",
            Self::TopThree => {
                "Accept tokens among the target's three likeliest that are close to the likeliest"
            }
            Self::Lenience => "Accept twice as readily as a lossless rule (lenience 0.5)",
            Self::SpecDec => {
                "Accept tokens near the likeliest, and take the likeliest otherwise (SpecDec)"
            }
            Self::Thresholds => "Accept tokens above a threshold (SGLang's, at 0.5)",
            Self::Sprinter => "Accept likely drafts without asking the target (SPRINTER)",
            Self::SpendTwice => "With --lossy: spend twice of what is promised",
            Self::UnpaidAccount => {
                "With --lossy account: never pay, so that the account is full after every round"
            }
        }
    }

    /// What is wrong, for people.
    pub fn about(self) -> &'static str {
        match self {
            Self::TokenResidual => "token residual used with block acceptance",
            Self::DraftTemperature => "drafts drawn at 0.8 of the temperature verified with",
            Self::Penalties => "penalties ignored at draft positions",
            Self::Argmax => "argmax drafts verified as if sampled",
            Self::Leak => "1 % chance to accept what should be rejected",
            Self::Typical => "tolerant rule: typical acceptance",
            Self::TopThree => "tolerant rule: among the target's best three",
            Self::Lenience => "published rule: lenience",
            Self::SpecDec => "published rule: SpecDec's tolerance",
            Self::Thresholds => "published rule: SGLang's thresholds",
            Self::Sprinter => "published rule: SPRINTER",
            Self::SpendTwice => "spends twice of what it promises",
            Self::UnpaidAccount => "an account that is never debited",
        }
    }

    /// The rule it puts in place of the one in use.
    pub(super) fn rule(self) -> Option<Arc<dyn Rule>> {
        Some(match self {
            Self::TokenResidual => Arc::new(TokenResidual),
            Self::Leak => Arc::new(Leak),
            Self::TopThree => Arc::new(TopThree),
            Self::Typical | Self::Lenience | Self::SpecDec | Self::Thresholds | Self::Sprinter => {
                Arc::new(LossyPublishedRule::by_name(self.name())?)
            }
            Self::DraftTemperature | Self::Penalties | Self::Argmax => return None,
            Self::SpendTwice | Self::UnpaidAccount => return None,
        })
    }

    /// Whether only a lossy mode can be broken so.
    pub fn is_of_lossy(self) -> bool {
        matches!(self, Self::SpendTwice | Self::UnpaidAccount)
    }

    /// The rule it puts in place of that of a lossy mode.
    pub(super) fn lossy_rule(self, mode: LossyMode) -> Option<Arc<dyn Rule>> {
        let (LossyMode::Budget(stated) | LossyMode::Account(stated)) = mode else { return None };
        let (times, pays) = match self {
            Self::SpendTwice => (2.0, true),
            Self::UnpaidAccount => (1.0, false),
            _ => return None,
        };
        let spent = LossyMode::named(mode.name(), (times * stated.per_token()).min(1.0), None);
        let (LossyMode::Budget(budget) | LossyMode::Account(budget)) = spent.ok()? else {
            return None;
        };
        Some(Arc::new(LossyBroken { inner: LossyBlockRule { budget }, stated, pays }))
    }

    /// Breaks the first drafter, where that is what is broken.
    pub(super) fn break_drafter(self, decoder: &mut Decoder) {
        let power = match self {
            Self::DraftTemperature => 1.0 / COLDER,
            Self::Argmax => f64::INFINITY,
            _ => return,
        };
        if let Some((_, first)) = decoder.drafters_mut().iter_mut().next() {
            let inner = std::mem::replace(first, Box::new(NgramDrafter::default()));
            *first = Box::new(Skewed { inner, power });
        }
    }

    /// What the broken decoder draws its tokens with: where its engine penalises, it must not.
    pub(super) fn sampling(self, sampling: &Sampling) -> Sampling {
        match self {
            Self::Penalties => bare(sampling),
            _ => sampling.clone(),
        }
    }
}

/// The same without penalties and biases.
pub(super) fn bare(sampling: &Sampling) -> Sampling {
    Sampling {
        repeat_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        logit_bias: Vec::new(),
        ..sampling.clone()
    }
}

/// The one path of a draft, from the root down: a node, its token and its child.
fn path(draft: &Draft) -> Vec<(Node, Token, Node)> {
    draft.nodes().map(|(child, token, parent)| (parent, token, child)).collect()
}

/// What is left of `weight` times the target without the drafter's row.
fn residual(weight: f64, target: &Dist, drafter: Option<&Dist>, drafted: Token) -> Vec<f64> {
    let mut left = vec![0.0; target.vocab_len()];
    for (token, prob) in target.support() {
        let taken = match drafter {
            Some(row) => row.prob(token),
            None => f64::from(u8::from(token == drafted)),
        };
        left[token.index()] = (weight * prob - taken).max(0.0);
    }
    left
}

fn draw(weights: &[f64], target: &Dist, chance: &mut dyn Chance) -> Token {
    if weights.mass() > 0.0 {
        Token(u32::try_from(chance.pick(&weights)).expect("a vocabulary fits"))
    } else {
        target.draw(chance)
    }
}

/// Block verification with token verification's residual.
#[derive(Debug)]
struct TokenResidual;

impl Rule for TokenResidual {
    fn name(&self) -> &'static str {
        "block with a token residual"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        BlockRule.admits(draft)
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let draft = block.draft();
        let path = path(draft);
        let mut weights = vec![1.0];
        for (n, (parent, token, child)) in path.iter().enumerate() {
            let drafted = draft.drawn_from(*child).map_or(1.0, |row| row.prob(*token));
            let ratio = block.target(*parent).prob(*token) / drafted;
            weights.push((weights[n] * ratio).min(1.0));
        }
        if chance.coin(weights[path.len()]) {
            let node = path.last().map_or(Node::ROOT, |(_, _, child)| *child);
            return Verdict { node, accepted: path.len(), next: block.target(node).draw(chance) };
        }
        for (n, (node, token, child)) in path.iter().enumerate().rev() {
            let (target, row) = (block.target(*node), draft.drawn_from(*child));
            let left = residual(weights[n], target, row, *token).iter().sum::<f64>();
            if n == 0 || chance.coin(left / (left + (1.0 - weights[n]))) {
                let wrong = residual(1.0, target, row, *token);
                return Verdict { node: *node, accepted: n, next: draw(&wrong, target, chance) };
            }
        }
        let next = block.target(Node::ROOT).draw(chance);
        Verdict { node: Node::ROOT, accepted: 0, next }
    }
}

/// Block verification that now and then accepts what it should reject.
#[derive(Debug)]
struct Leak;

impl Rule for Leak {
    fn name(&self) -> &'static str {
        "block with a leak"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        BlockRule.admits(draft)
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let verdict = BlockRule.decide(block, chance);
        let rejected = block.draft().nodes().find(|(_, _, parent)| *parent == verdict.node);
        match rejected {
            Some((node, ..)) if chance.coin(LEAK) => {
                let next = block.target(node).draw(chance);
                Verdict { node, accepted: verdict.accepted + 1, next }
            }
            _ => verdict,
        }
    }
}

/// Accepts what is among the target's best three, then draws from the target.
#[derive(Debug)]
struct TopThree;

impl Rule for TopThree {
    fn name(&self) -> &'static str {
        "top-three"
    }

    fn admits(&self, draft: &Draft) -> Result<(), Refusal> {
        BlockRule.admits(draft)
    }

    fn decide(&self, block: &Block<'_>, chance: &mut dyn Chance) -> Verdict {
        let (mut node, mut accepted) = (Node::ROOT, 0);
        for (parent, token, child) in path(block.draft()) {
            if !top_three(block.target(parent), token) {
                break;
            }
            (node, accepted) = (child, accepted + 1);
        }
        Verdict { node, accepted, next: block.target(node).draw(chance) }
    }
}

/// Among the best three, and at most e times less likely than the best.
fn top_three(target: &Dist, token: Token) -> bool {
    let prob = target.prob(token);
    let better = target.support().filter(|(_, other)| *other > prob).count();
    let best = target.support().map(|(_, prob)| prob).fold(0.0, f64::max);
    better < 3 && prob * std::f64::consts::E >= best
}

/// A drafter whose draws are not those of the rows it hands over.
struct Skewed {
    inner: Box<dyn Drafter>,
    /// What probabilities are raised to; infinite for the likeliest token.
    power: f64,
}

/// Chance that prefers likely tokens more than it should.
struct SkewedChance<'a> {
    inner: &'a mut dyn Chance,
    power: f64,
}

impl Chance for SkewedChance<'_> {
    fn coin(&mut self, probability: f64) -> bool {
        self.inner.coin(probability)
    }

    fn pick(&mut self, weights: &dyn Weights) -> usize {
        let mut all: Vec<(usize, f64)> = Vec::new();
        weights.visit(&mut |index, weight| all.push((index, weight)));
        let best = all.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1));
        let Some((best, most)) = best else { return self.inner.pick(weights) };
        if self.power.is_infinite() {
            return best;
        }
        let skewed: Vec<f64> = all.iter().map(|(_, w)| (w / most).powf(self.power)).collect();
        all[self.inner.pick(&skewed.as_slice())].0
    }
}

impl Drafter for Skewed {
    fn kind(&self) -> DrafterKind {
        self.inner.kind()
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        for request in requests {
            let Draw::Chance(inner) = &mut request.draw else { continue };
            let tree = std::mem::replace(&mut request.tree, Draft::start(Scheme::Independent, 0));
            let mut chance = SkewedChance { inner: &mut **inner, power: self.power };
            let mut own = DraftRequest {
                slot: request.slot,
                tokens: request.tokens,
                prompt_len: request.prompt_len,
                sampling: request.sampling,
                constraint: None,
                len_max: request.len_max,
                width: request.width,
                price: request.price.clone(),
                drafter_prefill_max: request.drafter_prefill_max,
                draw: Draw::Chance(&mut chance),
                tree,
                fixed_paths: std::mem::take(&mut request.fixed_paths),
                gate: request.gate.take(),
                failure: None,
            };
            self.inner.draft(std::slice::from_mut(&mut own))?;
            (request.tree, request.fixed_paths, request.failure) =
                (own.tree, own.fixed_paths, own.failure);
            request.gate = own.gate;
        }
        Ok(())
    }

    fn behind(&self, slot: Slot, tokens: &[Token]) -> usize {
        self.inner.behind(slot, tokens)
    }

    fn show(&mut self, shown: &[Shown<'_>]) {
        self.inner.show(shown);
    }

    fn shown_until(&self, slot: Slot, tokens: &[Token]) -> Option<usize> {
        self.inner.shown_until(slot, tokens)
    }
}

/// An engine that penalises the row after the committed text and no other: what a decoder does that
/// forgets drafted positions.
pub(super) struct PenaltiesAtRoot {
    inner: Box<dyn Engine>,
    sampling: Sampling,
    texts: Vec<Text>,
}

/// What a slot holds.
#[derive(Debug, Clone, Default)]
struct Text {
    trunk: Vec<Token>,
    tree: Vec<(usize, Token)>,
}

impl PenaltiesAtRoot {
    pub(super) fn new(inner: Box<dyn Engine>, sampling: Sampling) -> Self {
        let texts = vec![Text::default(); inner.slot_count()];
        Self { inner, sampling, texts }
    }
}

impl Text {
    fn apply(&mut self, step: &Step<'_>) {
        match step.keep {
            Keep::All(_) => {}
            Keep::To { node, .. } => {
                let mut path = Vec::new();
                let mut at = node;
                while at > 0 {
                    let (parent, token) = self.tree[at - 1];
                    path.push(token);
                    at = parent;
                }
                self.trunk.extend(path.into_iter().rev());
                self.tree.clear();
            }
            Keep::Trunk(len) => {
                self.trunk.truncate(len);
                self.tree.clear();
            }
        }
        self.trunk.extend_from_slice(step.trunk);
        self.tree.extend(step.tree.iter().map(|branch| (branch.parent, branch.token)));
    }
}

impl Engine for PenaltiesAtRoot {
    fn vocab_len(&self) -> usize {
        self.inner.vocab_len()
    }

    fn context_len(&self) -> usize {
        self.inner.context_len()
    }

    fn slot_count(&self) -> usize {
        self.inner.slot_count()
    }

    fn paths_max(&self) -> usize {
        self.inner.paths_max()
    }

    fn can_cut(&self) -> bool {
        self.inner.can_cut()
    }

    fn can_forget(&self, slot: Slot, tokens: usize) -> bool {
        self.inner.can_forget(slot, tokens)
    }

    fn forgets_max(&self) -> usize {
        self.inner.forgets_max()
    }

    fn feature_len(&self) -> usize {
        self.inner.feature_len()
    }

    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        self.inner.extend(steps, output)?;
        let mut row = 0;
        for step in steps {
            let text = &mut self.texts[step.slot.0 as usize];
            text.apply(step);
            if matches!(step.rows, Rows::Trunk | Rows::All) {
                // Shaping leaves the penalties in the row; the law it gives is not wanted.
                let _ = self.sampling.row(output.row_mut(row), &text.trunk, &[]);
            }
            row += step.row_count();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forerun_verify::check::{Kind, Model, Shape, drafting, examine};

    use super::*;

    #[test]
    fn every_broken_rule_is_broken() {
        for fault in Fault::ALL {
            let Some(rule) = fault.rule() else { continue };
            let wrong = (0..20).any(|seed| {
                let model = Model::random(Kind::Mid, Shape { vocab_len: 4, len: 2 }, seed);
                !examine(&model, &drafting::paths(1), &*rule).unwrap().is_lossless()
            });
            assert!(wrong, "{fault:?}");
        }
    }
}

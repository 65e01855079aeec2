//! One text by one setting, and what its acceptance says about every length.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use forerun_decode::{
    Controller, Costs, Decoder, DraftPolicy, DrafterId, Generation, Limits, Sampling, Sequence,
    Stats, StopStrings, Token, Tokenizer,
};
use forerun_verify::PooledRule;

use crate::cancellation::Cancellation;
use crate::error::{Error, Result};
use crate::models::{MEASURE, SLOT};

/// What drafts, and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) drafter: usize,
    pub(super) width: usize,
    pub(super) len: usize,
}

impl Setting {
    /// For people.
    pub(super) fn name(self, drafter: &str) -> String {
        let paths = if self.width > 1 { format!(", {} paths", self.width) } else { String::new() };
        format!("{drafter}, drafts of {}{paths}", self.len)
    }

    fn policy(self) -> DraftPolicy {
        let drafters = vec![DrafterId(self.drafter)];
        DraftPolicy::drafted(drafters, self.len, Arc::new(PooledRule)).wide(self.width)
    }
}

/// Decodes outputs and keeps the cost of passes current.
pub(super) struct Bench<'a> {
    decoder: Decoder,
    costs: Costs,
    vocab: Arc<dyn Tokenizer>,
    sampling: Sampling,
    len: usize,
    cancellation: &'a Cancellation,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        mut decoder: Decoder,
        vocab: Arc<dyn Tokenizer>,
        sampling: Sampling,
        len: usize,
        cancellation: &'a Cancellation,
    ) -> Result<Self> {
        let costs = decoder.measure(MEASURE).map_err(Error::Costs)?;
        Ok(Self { decoder, costs, vocab, sampling, len, cancellation })
    }

    /// What passes cost, as it is known now.
    pub(super) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Decodes a text by a setting, or plain. What is not done in time is left off, but for one round.
    pub(super) fn text(
        &mut self,
        prompt: &[Token],
        setting: Option<Setting>,
        seed: u64,
        until: Instant,
    ) -> Result<Stats> {
        let policy = setting.map_or_else(DraftPolicy::plain, Setting::policy);
        let mut text = self.begin(prompt, policy, seed);
        while goes_on(&text, until) {
            self.check()?;
            let plan = text.plan();
            let mut round = self.decoder.round(&mut [text.turn(&plan, Limits::default())])?;
            self.costs.observe(&round.passes);
            let commit = round.commits.remove(0);
            text.committed(commit, round.times, self.decoder.target().context_len());
        }
        Ok(text.stats().clone())
    }

    /// Decodes a text as the controller chooses.
    pub(super) fn adaptive(
        &mut self,
        prompt: &[Token],
        controller: &mut Controller,
        seed: u64,
        until: Instant,
    ) -> Result<Stats> {
        let policy = controller.policy(Arc::new(PooledRule));
        let mut history = controller.history(|_| true);
        let mut text = self.begin(prompt, policy, seed);
        while goes_on(&text, until) {
            self.check()?;
            controller.next(&mut history, &mut text, &mut self.decoder)?;
        }
        Ok(text.stats().clone())
    }

    /// Begins a text. No drafter learns of its end: one that learns from outputs must not know this
    /// one before others have tried it.
    fn begin(&self, prompt: &[Token], policy: DraftPolicy, seed: u64) -> Generation {
        let mut sequence = Sequence::new(SLOT, self.sampling.clone());
        sequence.begin(prompt.to_vec(), self.len);
        let stops = StopStrings::new(Vec::<String>::new()).expect("none is fine");
        Generation::new(sequence, policy, Arc::clone(&self.vocab), &stops, seed)
    }

    /// Whether Ctrl-C or the clock has stopped it.
    pub(super) fn is_stopped(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    fn check(&self) -> Result<()> {
        self.cancellation.check()
    }
}

/// Whether there is more to decode, and time for it.
fn goes_on(text: &Generation, until: Instant) -> bool {
    text.finish().is_none() && (text.stats().rounds == 0 || Instant::now() < until)
}

/// What every length would bring, from the acceptance of the longest.
pub(super) struct Forecasts {
    pub(super) setting: Setting,
    stats: Stats,
    /// Speed-up over plain decoding, by length from one.
    pub(super) speedups: Vec<f64>,
}

impl Forecasts {
    pub(super) fn new(
        setting: Setting,
        stats: Stats,
        costs: &Costs,
        prompt_len: usize,
        text_len: usize,
    ) -> Self {
        let rounds = (stats.rounds as f64).max(1.0);
        let positions = &stats.positions;
        let drafted: u64 = positions.iter().map(|position| position.drafted).sum();
        let nodes_each = stats.drafted as f64 / (drafted as f64).max(1.0);
        let spoken = positions.first().map_or(0.0, |first| first.drafted as f64 / rounds);
        let curve = costs.drafters.get(&DrafterId(setting.drafter));
        let plain = costs.target.seconds(1, 1);
        let passes = (stats.times.target + stats.times.draft_pass).as_secs_f64();
        let rest = (stats.time.as_secs_f64() - passes).max(0.0) / rounds;
        // Before it can draft, a draft model reads the prompt.
        let read = curve.map_or(0.0, |curve| curve.seconds(prompt_len.max(1), 1));
        let (mut tokens, mut nodes) = (1.0, 0.0);
        let mut speedups = Vec::new();
        for len in 1..=setting.len {
            let position = positions.get(len - 1).copied().unwrap_or_default();
            let reached = position.accepted as f64 / rounds;
            tokens += reached;
            nodes += nodes_each * position.drafted as f64 / rounds;
            let scored = if spoken > 0.0 {
                spoken * costs.target.between(1.0 + nodes / spoken) + (1.0 - spoken) * plain
            } else {
                plain
            };
            let drafting = curve.map_or(0.0, |curve| {
                let further = (len - 1) as f64 * curve.seconds(setting.width, 1);
                curve.between(1.0 + reached) + further
            });
            let seconds = (scored + drafting + rest) / tokens + read / text_len as f64;
            speedups.push(plain / seconds);
        }
        Self { setting, stats, speedups }
    }

    /// The length that brings most, and how much.
    pub(super) fn best(&self) -> (usize, f64) {
        let best = self.speedups.iter().enumerate();
        let best = best.max_by(|one, other| one.1.total_cmp(other.1));
        best.map_or((1, 0.0), |(index, speedup)| (index + 1, *speedup))
    }

    /// Acceptance by position and forecast speedup by length.
    pub(super) fn table(&self, text: &mut String, drafter: &str) {
        let width = self.setting.width;
        let paths = if width > 1 { format!(", {width} paths") } else { String::new() };
        let mut row = |name: &str, cells: &mut dyn Iterator<Item = String>| {
            write!(text, "  {name:<24}").expect("strings take all text");
            cells.for_each(|cell| text.push_str(&format!("{cell:>6}")));
            text.push('\n');
        };
        row(&format!("{drafter}{paths}"), &mut std::iter::empty());
        row("length", &mut (1..=self.setting.len).map(|len| len.to_string()));
        let rounds = (self.stats.rounds as f64).max(1.0);
        let accepted = (0..self.setting.len).map(|index| {
            let position = self.stats.positions.get(index).copied().unwrap_or_default();
            format!("{:.0} %", 100.0 * position.accepted as f64 / rounds)
        });
        row("rounds accepting it", &mut { accepted });
        row("speedup, forecast", &mut self.speedups.iter().map(|it| format!("{it:.2}")));
        text.push('\n');
    }
}

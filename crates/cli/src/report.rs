//! What a text cost and what drafting gained: for people, and as JSON.

mod json;

use std::fmt::Write;
use std::time::Duration;

use forerun_decode::{CostCurve, Costs, Finish, LossyMode, Spending, Stats};
use forerun_lab::{bytes, file_name, milliseconds};

use crate::flags::RunConfig;
use crate::load::Loaded;
use crate::stream::{Ending, Text};

/// A text and what it was made with.
pub(crate) struct Report<'a> {
    /// What was asked for.
    pub(crate) config: &'a RunConfig,
    /// Target and drafters.
    pub(crate) loaded: &'a Loaded,
    /// The text.
    pub(crate) text: &'a Text,
}

impl Report<'_> {
    /// A block of lines.
    pub(crate) fn block(&self) -> String {
        let Text { stats, seed, ending, .. } = self.text;
        let mut block = Block::default();
        block.line("prompt", &self.prompt());
        let speed = match stats.committed {
            0 => String::new(),
            _ => format!(", {:.1} tokens/s", stats.tokens_per_second()),
        };
        let time = seconds(stats.time);
        block.line(
            "text",
            &format!("{} in {time}{speed}; {}", tokens(stats.output_len), why(*ending)),
        );
        if !self.config.draft.drafters.is_empty() {
            let per_round = stats.tokens_per_round();
            block.line("rounds", &format!("{}, {per_round:.2} tokens per round", stats.rounds));
            block.line("drafts", &drafts(stats));
        }
        if let Some(mode) = self.config.draft.lossy {
            block.line("spent", &spent(mode, &stats.spending));
        }
        if let Some(controller) = &self.loaded.controller {
            block.line("control", &control(stats));
            block.line("passes", &passes(controller.costs()));
        }
        if stats.rounds > 0 {
            block.line("time", &shares(stats));
        }
        block.settings(self.config, self.loaded, *seed);
        block.0
    }

    /// What is shown after the only text: a line, or all where that is wanted.
    pub(crate) fn after_text(&self) -> String {
        if self.config.output.all_stats {
            return self.block();
        }
        format!("[{}; seed {}; --stats shows more]", self.line(), self.text.seed)
    }

    /// One line.
    pub(crate) fn line(&self) -> String {
        let stats = &self.text.stats;
        let mut line = format!(
            "{}, {:.1} tokens/s, {}",
            tokens(stats.output_len),
            stats.tokens_per_second(),
            why(self.text.ending)
        );
        if stats.drafted > 0 {
            let (per_round, acceptance) = (stats.tokens_per_round(), stats.acceptance());
            write!(
                line,
                "; {per_round:.2} tokens per round, {} of drafts accepted",
                percent(acceptance)
            )
            .expect("strings take all text");
        }
        if let Some(mode) = self.config.draft.lossy {
            write!(line, "; LOSSY {mode}: {}", spent(mode, &stats.spending))
                .expect("strings take all text");
        }
        line
    }

    /// What a session begins with: who answers, and how.
    pub(crate) fn heading(config: &RunConfig, loaded: &Loaded) -> String {
        let mut block = Block::default();
        let (name, size) = (file_name(loaded.model.path()), bytes(loaded.model.size()));
        let target = format!("{name} ({size}), context of {} tokens", loaded.context_len());
        block.line("target", &target);
        block.settings(config, loaded, config.sampling.seed);
        block.0
    }

    fn prompt(&self) -> String {
        let Text { stats, prompt_len, .. } = self.text;
        let (len, time) = (tokens(*prompt_len as u64), seconds(stats.prompt_time));
        match self.text.cached_len() {
            None => format!("{len}, {} of them read in {time}", stats.prompt_prefilled),
            Some(0) => format!("{len} in {time}"),
            Some(cached) => format!("{len} in {time}, {cached} of them cached"),
        }
    }
}

/// Lines of a name and what there is to say.
#[derive(Default)]
struct Block(String);

impl Block {
    fn line(&mut self, name: &str, text: &str) {
        let separator = if self.0.is_empty() { "" } else { "\n" };
        write!(self.0, "{separator}{name:<10}{text}").expect("strings take all text");
    }

    fn settings(&mut self, config: &RunConfig, loaded: &Loaded, seed: u64) {
        match loaded.drafters.as_slice() {
            [] => self.line("rule", config.draft.rule.alone()),
            drafters => {
                let (drafters, len) = (drafters.join(", "), config.draft.len);
                let paths = match config.draft.width.get() {
                    1 => String::new(),
                    width => format!(", {width} paths"),
                };
                let adaptive = if config.draft.adaptive { "up to " } else { "" };
                self.line(
                    "drafters",
                    &format!("{drafters}; {adaptive}{}{paths}", tokens(len.get() as u64)),
                );
                let rule = match config.draft.lossy {
                    None => format!("{} verification, lossless", config.draft.rule.name()),
                    Some(mode) => format!("LOSSY {mode}: {}", mode.about()),
                };
                self.line("rule", &rule);
            }
        }
        self.line("seed", &seed.to_string());
    }
}

/// Why a text is over, for people.
fn why(ending: Ending) -> &'static str {
    match ending {
        Ending::Interrupted => "interrupted",
        Ending::Finished(Finish::End) => "the model ended it",
        Ending::Finished(Finish::Stop) => "a stop string ended it",
        Ending::Finished(Finish::Length) => "ended by --predict",
        Ending::Finished(Finish::Context) => "the context is full",
    }
}

fn drafts(stats: &Stats) -> String {
    let Stats { drafted, accepted, positions, .. } = stats;
    let mut text = format!("{accepted} of {drafted} accepted");
    if *drafted > 0 {
        write!(text, ", {}; by position", percent(stats.acceptance()))
            .expect("strings take all text");
        for (index, position) in positions.iter().enumerate() {
            let share = percent(ratio(position.accepted, position.drafted));
            write!(text, "  {}: {share}", index + 1).expect("strings take all text");
        }
    }
    text
}

/// What a lossy mode changed.
fn spent(mode: LossyMode, spending: &Spending) -> String {
    let Spending { tokens, sum, most, .. } = spending;
    let kept = if mode.is_kept(spending) { "kept" } else { "BROKEN" };
    match mode {
        LossyMode::Near(_) => format!("{sum:.0} of {tokens} tokens differ, promise {kept}"),
        _ => format!(
            "{sum:.1} of {tokens} tokens expected to differ ({:.4} per token, at most {most:.3} at one), \
             promise {kept}",
            spending.mean()
        ),
    }
}

/// What the controller did.
fn control(stats: &Stats) -> String {
    let Stats { rounds, plain_rounds, trial_rounds, gated_rounds, .. } = stats;
    let expected = stats.expected_speedup();
    let gated = match gated_rounds {
        0 => String::new(),
        rounds => format!(", {rounds} with a gate"),
    };
    format!(
        "drafted in {} of {rounds} rounds, {trial_rounds} of them trials{gated}; {expected:.2} times \
         plain decoding expected",
        rounds - plain_rounds
    )
}

/// What a pass takes, by its tokens.
fn passes(costs: &Costs) -> String {
    let curve = |name: &str, curve: &CostCurve| format!("{name} {} ms", milliseconds(curve));
    let drafters = costs.drafters.values().map(|costs| curve("draft model", costs));
    let curves: Vec<String> =
        std::iter::once(curve("target", &costs.target)).chain(drafters).collect();
    curves.join("; ")
}

/// Where the time after the prompt went.
fn shares(stats: &Stats) -> String {
    let times = &stats.times;
    let draft = times.draft_pass + times.draft;
    let rest = stats.time.saturating_sub(draft + times.target + times.verify);
    let share = |time: Duration| match stats.time.as_secs_f64() {
        0.0 => percent(0.0),
        all => percent(time.as_secs_f64() / all),
    };
    format!(
        "draft {}  target {}  verify {}  rest {}",
        share(draft),
        share(times.target),
        share(times.verify),
        share(rest)
    )
}

fn tokens(count: u64) -> String {
    format!("{count} {}", if count == 1 { "token" } else { "tokens" })
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// A share of counts; zero of nothing.
fn ratio(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

//! The page about a run: what its student learned, and from what.

use std::time::{SystemTime, UNIX_EPOCH};

use forerun_distill::loss::Divergence;
use forerun_distill::rows::Rows;
use forerun_distill::speedup::Forecast;
use forerun_distill::train::{Plan, Point, Progress};
use forerun_lab::{Curves, CurvesPage, Machine, Span, file_name};

use crate::flags::Flags;

/// What the page is about.
pub(super) struct Run<'a> {
    pub(super) flags: &'a Flags,
    pub(super) rows: &'a Rows,
    /// What was trained.
    pub(super) student: &'a str,
    pub(super) plan: &'a Plan,
    pub(super) progress: &'a Progress,
    pub(super) forecast: &'a Forecast,
}

/// Standard errors to either side that hold 95 %.
const USUAL: f64 = 1.96;

const WORDS: [(&str, &str); 6] = [
    (
        "overlap",
        "The sum of the smaller of both models' probabilities of each token: the probability that a \
         drafted token is accepted at this temperature. Only the tokens that a row lists are counted, so \
         it is a little lower than the true one.",
    ),
    (
        "the same token likeliest",
        "Share of positions where both models find the same token likeliest: acceptance at temperature 0.",
    ),
    (
        "±",
        "To either side of it are 95 % of what other prompts of the kind would give, by the spread over the \
         sequences that are held out. It says nothing about another training.",
    ),
    (
        "loss",
        "The divergence that training makes small, over the listed tokens and all others as one.",
    ),
    (
        "held out, learned",
        "Of prompts that were not learned from, and of those that were, since the measurement before.",
    ),
    (
        "predicted speedup",
        "Over plain decoding of one sequence, with the draft length that would be fastest: from what \
         passes of both models took on this machine, as if each token were accepted as often as any \
         other. forerun tune measures it.",
    ),
];

impl Run<'_> {
    pub(super) fn html(&self) -> String {
        let curve = &self.progress.curve;
        let line = |label: &str, of: &dyn Fn(&Point) -> Option<f64>| {
            let points = curve.iter().filter_map(|it| Some((it.step as f64, of(it)?)));
            (label.to_owned(), points.collect())
        };
        let pictures = vec![
            Curves {
                caption: "Acceptance of what is held out".to_owned(),
                curves: vec![
                    line("overlap", &|it| Some(it.overlap)),
                    line("the same token likeliest", &|it| Some(it.agreement)),
                ],
            },
            Curves {
                caption: format!("Loss ({})", loss_name(self.plan.divergence)),
                curves: vec![
                    line("held out", &|it| Some(it.loss)),
                    line("learned", &|it| it.learned_loss),
                ],
            },
            Curves {
                caption: "Predicted speedup".to_owned(),
                curves: vec![line("of the best draft length", &|it| Some(self.speedup(it)))],
            },
        ];
        let page = CurvesPage {
            title: format!(
                "{}, a draft model for {}",
                file_name(&self.flags.output),
                file_name(&self.flags.model)
            ),
            verdict: self.verdict(),
            pictures,
            words: WORDS.to_vec(),
            measured: self.measured(),
            facts: self.facts(),
        };
        page.html()
    }

    fn speedup(&self, point: &Point) -> f64 {
        self.forecast.best(point.accepted).speedup
    }

    /// What it came to, a line each.
    pub(super) fn verdict(&self) -> Vec<String> {
        let (Some(first), Some((best, _))) = (self.progress.curve.first(), self.progress.best())
        else {
            return Vec::new();
        };
        let forecast = self.forecast.best(best.accepted);
        vec![
            format!(
                "Overlap of what is held out: {:.3} ± {:.3}, {:.3} at the start.",
                best.overlap,
                USUAL * best.overlap_error,
                first.overlap
            ),
            format!(
                "The same token likeliest: {:.3} ± {:.3}, {:.3} at the start.",
                best.agreement,
                USUAL * best.agreement_error,
                first.agreement
            ),
            format!(
                "Predicted speedup: {:.2} with drafts of {}. Measure it with forerun tune.",
                forecast.speedup, forecast.len
            ),
        ]
    }

    fn measured(&self) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let head = vec![
            "step",
            "rows learned from",
            "loss, held out",
            "loss, learned",
            "overlap",
            "the same token likeliest",
            "predicted speedup",
        ];
        let row = |point: &Point| {
            vec![
                point.step.to_string(),
                point.rows.to_string(),
                format!("{:.4}", point.loss),
                point.learned_loss.map_or("–".to_owned(), |it| format!("{it:.4}")),
                format!("{:.4} ± {:.4}", point.overlap, USUAL * point.overlap_error),
                format!("{:.4} ± {:.4}", point.agreement, USUAL * point.agreement_error),
                format!("{:.2}", self.speedup(point)),
            ]
        };
        (head, self.progress.curve.iter().map(row).collect())
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let (settings, plan) = (&self.rows.settings, self.plan);
        let machine = Machine::here();
        let time = Span { seconds: self.progress.seconds };
        vec![
            ("date", today()),
            ("target", format!("{}, SHA-256 {}", file_name(&self.flags.model), settings.target)),
            ("student", self.student.to_owned()),
            (
                "data",
                format!(
                    "{} rows to learn from, {} held out; temperature {}, {} tokens of a row, seed {}",
                    self.rows.row_count(false),
                    self.rows.row_count(true),
                    settings.temperature,
                    settings.listed,
                    settings.seed
                ),
            ),
            (
                "training",
                format!(
                    "{} steps in {time}, batches of {} tokens, rate {}, {} of warm-up, loss {}",
                    self.progress.step,
                    plan.batch_tokens,
                    plan.rate,
                    plan.warm_up,
                    loss_name(plan.divergence)
                ),
            ),
            (
                "machine",
                format!(
                    "{}, {} threads",
                    machine.processor.as_deref().unwrap_or("an unknown processor"),
                    machine.threads
                ),
            ),
            ("Forerun", env!("CARGO_PKG_VERSION").to_owned()),
        ]
    }
}

fn loss_name(divergence: Divergence) -> &'static str {
    match divergence {
        Divergence::ForwardKl => "forward KL",
        Divergence::ReverseKl => "reverse KL",
        Divergence::Jsd => "JSD",
        Divergence::Tv => "TV",
    }
}

#[expect(clippy::disallowed_methods, reason = "a page says when it was made, and nothing else")]
fn today() -> String {
    forerun_decode::date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

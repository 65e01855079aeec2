//! The certificate: what was tested, what would have been found, and the verdict; as JSON, as a
//! page, and for the terminal.

use std::fmt::Write as _;

use forerun_decode::{Drift, LossyMode};
use maud::html;
use serde_json::{Value, json};

use super::decoder::DecoderFinding;
use super::rule::RuleProof;
use super::server::ServerFinding;
use super::spend::SpendFinding;
use super::verdict::{Ended, Verdict};
use crate::html;
use crate::span::Span;
use crate::words::wrapped;

/// The version of the JSON document.
const SCHEMA: &str = "forerun-certificate/1";

/// All that was found.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    /// When, with what build, on what machine, on which files.
    pub(crate) about: Value,
    /// What was asked for.
    pub(crate) settings: Value,
    /// What was broken on purpose.
    pub(crate) broken: Option<&'static str>,
    /// The false-alarm rate.
    pub(crate) false_alarm: f64,
    /// How small a fault had to be found.
    pub(crate) power: f64,
    /// What the command was allowed to take.
    pub(crate) time_limit: Span,
    /// The phase in which the time was over, where the decoder was not tested at all.
    pub(crate) cut: Option<&'static str>,
    /// (a) the rule; none where it cannot be enumerated.
    pub(crate) rule: Option<RuleProof>,
    /// (b) the decoder.
    pub(crate) decoder: Option<DecoderFinding>,
    /// The lossy mode, if it is one, and what it spent.
    pub(crate) lossy: Option<LossyMode>,
    pub(crate) spend: Option<SpendFinding>,
    /// (c) the engine, by tokens in a block.
    pub(crate) drift: Vec<(usize, Drift)>,
    /// (d) a server.
    pub(crate) server: Option<ServerFinding>,
}

/// The verdict on a part, for people.
struct Part {
    title: &'static str,
    class: Verdict,
    verdict: String,
    about: String,
    facts: Vec<(&'static str, String)>,
}

impl Certificate {
    /// What it all comes to.
    pub(crate) fn verdict(&self) -> Verdict {
        let rule = self.rule.as_ref().map(rule_verdict);
        let decoder = self.decoder.as_ref().map(|decoder| decoder.verdict);
        let spend = self.spend.as_ref().map(|spend| spend.verdict);
        let server = self.server.as_ref().map(|server| server.verdict);
        let cut = self.cut.map(|_| Verdict::Inconclusive);
        let all = [rule, decoder, spend, server, cut];
        if all.contains(&Some(Verdict::Failed)) {
            Verdict::Failed
        } else if all.contains(&Some(Verdict::Inconclusive)) {
            Verdict::Inconclusive
        } else {
            Verdict::Passed
        }
    }

    /// The verdict in a few words.
    fn says(&self) -> String {
        let verdict = self.verdict();
        let word = verdict.word(self.lossy.is_some());
        let said = match (verdict, &self.broken, self.lossy) {
            (Verdict::Passed, _, None) => "nothing that was tested is wrong.".to_owned(),
            (Verdict::Passed, _, Some(mode)) => self.within(mode),
            (Verdict::Failed, Some(broken), _) => {
                return format!("{word}, as it should: broken on purpose ({broken}).");
            }
            (Verdict::Failed, None, None) => {
                "the output does not follow the target's law.".to_owned()
            }
            (Verdict::Failed, None, Some(mode)) => {
                format!("the output strays further than {mode} allows ({}).", mode.about())
            }
            (Verdict::Inconclusive, Some(broken), _) => format!(
                "broken on purpose ({broken}), and not found out by what was tested. Raise \
                 --time-limit."
            ),
            (Verdict::Inconclusive, None, _) => {
                format!("nothing wrong was found, but {}", self.missing())
            }
        };
        format!("{word}: {said}")
    }

    /// How far a promise that was kept is shown to be.
    fn within(&self, mode: LossyMode) -> String {
        let found = self.spend.as_ref().and_then(|spend| spend.smallest_found);
        let found = found.map_or(String::new(), |found| {
            format!(" Spending {found:.4} per token would have been found.")
        });
        format!("{}, as far as was tested.{found}", mode.about())
    }

    /// Why nothing can be concluded, and what to do.
    fn missing(&self) -> String {
        let limit = self.time_limit;
        if let Some(phase) = self.cut {
            return format!(
                "the time limit of {limit} was over in the phase \"{phase}\", before any text was \
                 tested. Raise --time-limit."
            );
        }
        let short = |ended: Ended, what: &str, found: Option<f64>| {
            let why = match ended {
                Ended::Interrupted => "Ctrl-C ended the test".to_owned(),
                Ended::Pairs => "as many pairs of outputs as --pairs allows were seen".to_owned(),
                _ => format!("the time limit of {limit} ended the test"),
            };
            let found = found.map_or("none of any size".to_owned(), percent);
            let (wanted, more) = (
                percent(self.power),
                match ended {
                    Ended::Pairs => "--pairs",
                    _ => "--time-limit",
                },
            );
            format!(
                "{why} before it could have found {what} of {wanted}; it could have found \
                 {found}. Raise {more}, or ask for less with --power."
            )
        };
        if let Some(spend) = &self.spend {
            let why = match spend.ended {
                Ended::Interrupted => "Ctrl-C ended the test".to_owned(),
                _ => format!("the time limit of {limit} ended the test"),
            };
            let found = spend.smallest_found.map_or("none".to_owned(), |it| format!("{it:.4}"));
            return format!(
                "{why} before it could have found a spend of {:.4} per token; it could have found \
                 {found}. Raise --time-limit, or ask for less with --power.",
                spend.promised + self.power
            );
        }
        match (&self.server, &self.decoder) {
            (Some(server), _) if !server.tested => {
                "the server drafted nothing, so nothing was tested. Turn its speculation on, or give \
                 --on and --off."
                    .to_owned()
            }
            (Some(server), _) => short(server.ended, "a difference", server.smallest_difference),
            (None, Some(it)) => short(it.ended, "a share of wrong tokens", it.smallest_share),
            (None, None) => "nothing was tested.".to_owned(),
        }
    }

    /// The document.
    pub(crate) fn json(&self) -> Value {
        let drift = |(len, drift): &(usize, Drift)| {
            json!({
                "block_len": len,
                "rows": drift.rows,
                "rows_equal": drift.equal,
                "same_argmax": drift.same_best,
                "largest_logit_gap": drift.gap,
                "mean_total_variation": drift.distance,
            })
        };
        json!({
            "schema": SCHEMA,
            "verdict": self.verdict().word(self.lossy.is_some()).to_lowercase().replace(' ', "_"),
            "lossless": self.lossy.is_none(),
            "broken_on_purpose": self.broken,
            "false_alarm": self.false_alarm,
            "power": self.power,
            "cut_short_in": self.cut,
            "about": self.about,
            "settings": self.settings,
            "rule": self.rule,
            "decoder": self.decoder,
            "lossy": self.spend,
            "engine": self.drift.iter().map(drift).collect::<Vec<_>>(),
            "server": self.server,
        })
    }

    /// Lines for the terminal.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for part in self.parts() {
            writeln!(out, "{}: {}", part.title, part.verdict).expect("strings take all text");
            for (name, fact) in &part.facts {
                writeln!(out, "  {name:<34} {fact}").expect("strings take all text");
            }
        }
        out.push('\n');
        out.push_str(&wrapped(&self.says()));
        out
    }

    /// The page.
    pub(crate) fn html(&self) -> String {
        let part = |part: &Part| {
            let facts = part.facts.iter();
            let rows: Vec<[String; 2]> =
                facts.map(|(name, fact)| [(*name).to_owned(), fact.clone()]).collect();
            html! {
                h2 { (part.title) }
                p class=(part.class.class()) { (part.verdict) }
                p { (part.about) }
                (html::table(&["what", "found"], 2, &rows))
            }
        };
        let fields = |title: &str, value: &Value| {
            let text =
                |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let rows: Vec<[String; 2]> = value
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, value)| [name.replace('_', " "), text(value)])
                .collect();
            html! {
                h2 { (title) }
                (html::table(&["what", "value"], 2, &rows))
            }
        };
        let body = html! {
            p class={ "verdict " (self.verdict().class()) } { (self.says()) }
            p {
                @if self.lossy.is_some() {
                    "A lossy mode trades exactness for speed and promises a bound: the output is not \
                     distributed as the target's own. "
                } @else {
                    "Speculative decoding may only change how fast a text comes, never what it says. "
                }
                "This page states what was tested of that, what the tests would have found, and what \
                 they did find. False-alarm rate: "
                (self.false_alarm) " (a right decoder fails that often)."
            }
            @for it in self.parts() { (part(&it)) }
            (fields("Settings", &self.settings))
            (fields("Made with", &self.about))
        };
        html::page(self.title(), "", &body)
    }

    fn title(&self) -> &'static str {
        match self.lossy {
            Some(_) => "Certificate: does a lossy mode keep its promise?",
            None => "Certificate: is the output the target's own?",
        }
    }

    fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        parts.extend(self.rule.as_ref().map(rule_part));
        parts.extend(self.decoder.as_ref().map(|it| decoder_part(it, self.false_alarm)));
        parts.extend(self.spend.as_ref().map(|it| spend_part(it, self.false_alarm)));
        if !self.drift.is_empty() {
            parts.push(engine_part(&self.drift));
        }
        parts.extend(self.server.as_ref().map(|it| server_part(it, self.false_alarm)));
        parts
    }
}

fn rule_verdict(proof: &RuleProof) -> Verdict {
    match (proof.within.unwrap_or(proof.lossless), proof.complete) {
        (false, _) => Verdict::Failed,
        (true, true) => Verdict::Passed,
        (true, false) => Verdict::Inconclusive,
    }
}

fn rule_part(proof: &RuleProof) -> Part {
    let (does, does_not) = match proof.within {
        Some(_) => ("keeps its promise", "does NOT keep its promise"),
        None => ("is lossless", "is NOT lossless"),
    };
    let verdict = match rule_verdict(proof) {
        Verdict::Passed => format!("{} {does} on every model tried", proof.rule),
        Verdict::Failed => format!("{} {does_not}", proof.rule),
        Verdict::Inconclusive => {
            format!("{} {does} on the models there was time for", proof.rule)
        }
    };
    let mut facts = vec![
        ("drafts", proof.drafts.clone()),
        ("models", proof.models.to_string()),
        ("drafts gone through", proof.drafts_seen.to_string()),
    ];
    facts.push(match proof.worst_spend {
        Some(worst) => ("largest total variation at a token", format!("{worst:.4}")),
        None => ("largest error of a probability", format!("{:.1e}", proof.worst_error)),
    });
    Part {
        title: "The rule, by enumeration",
        class: rule_verdict(proof),
        verdict,
        about: "Every draft and every verdict on small models, with their exact probabilities: nothing is sampled. An error \
                above rounding would be a proof that the rule changes the output more than it says."
            .to_owned(),
        facts,
    }
}

const NOT_KNOWN: &str = "not known: it is estimated from what the drafter would have said";

fn decoder_part(found: &DecoderFinding, false_alarm: f64) -> Part {
    let mut facts = vec![
        ("drafted outputs, tokens", format!("{}, {}", found.texts, found.tokens)),
        ("tokens drafted, accepted", format!("{}, {}", found.drafted, found.accepted)),
        ("evidence against their law", evidence(found.law_evidence, false_alarm)),
        ("the same of plain outputs (control)", evidence(found.control_evidence, false_alarm)),
        ("smallest share of tokens found", share(found.smallest_share)),
    ];
    if found.verdict == Verdict::Failed {
        let strayed = |(spent, margin)| format!("{spent:.3} ± {margin:.3} per token, or more");
        let strayed = found.spent.zip(found.spent_margin).map_or(NOT_KNOWN.to_owned(), strayed);
        facts.push(("total variation from the target", strayed));
    }
    if found.made_twice > 0 {
        let same = found.made_twice - found.made_differently;
        facts
            .push(("same text with and without drafts", format!("{same} of {}", found.made_twice)));
    } else {
        facts.push(("pairs of drafted and plain outputs", found.pairs.to_string()));
        facts.push(("evidence for two laws", evidence(found.pair_evidence, false_alarm)));
        facts.push(("smallest difference found", share(found.smallest_difference)));
    }
    facts.push(("took", format!("{:.0} s; ended by {}", found.seconds, ended(found.ended))));
    Part {
        title: "The decoder, on this model",
        class: found.verdict,
        verdict: match found.verdict {
            Verdict::Passed => "drafted outputs follow plain decoding's distribution, as far as was tested",
            Verdict::Failed => "drafted outputs do NOT follow plain decoding's distribution",
            Verdict::Inconclusive => "nothing wrong was found, but too little was tested",
        }
        .to_owned(),
        about: "Every token of drafted outputs is tested against the distribution plain decoding would have drawn it from, by a test that \
                bets on distributions it might follow instead; and outputs of both kinds are compared as samples. Evidence is how many \
                times likelier the data are if something is wrong, as a power of ten. The smallest share is that of tokens \
                which, had they come from the drafter's law instead of the target's, would have been expected to be found; the \
                smallest difference that of something half of all outputs show."
            .to_owned(),
        facts,
    }
}

fn spend_part(found: &SpendFinding, false_alarm: f64) -> Part {
    let spend = |spend: Option<f64>| {
        spend.map_or("none: too little was seen".to_owned(), |it| format!("{it:.4} per token"))
    };
    let estimated = |(spent, margin)| format!("{spent:.4} ± {margin:.4} per token");
    let estimated = found.estimated.zip(found.margin).map_or(NOT_KNOWN.to_owned(), estimated);
    Part {
        title: "What a lossy mode spent, on this model",
        class: found.verdict,
        verdict: match found.verdict {
            Verdict::Passed => format!("within {}, as far as was tested", found.mode),
            Verdict::Failed => format!("more than {} allows", found.mode),
            Verdict::Inconclusive => {
                "nothing wrong was found, but too little was tested".to_owned()
            }
        },
        about: "Spend is the total variation between the distribution a token is drawn from and the target's. How much oftener \
                than the target would the decoder says tokens that the drafter likes more, is at most the spend; for this rule \
                it is the spend, on average. A test bets that it is more than promised, and may be looked at after every token. \
                Evidence is how many times likelier the data are if too much was spent, as a power of ten."
            .to_owned(),
        facts: vec![
            ("outputs, tokens", format!("{}, {}", found.texts, found.tokens)),
            ("tokens drafted, accepted", format!("{}, {}", found.drafted, found.accepted)),
            ("promised", format!("{} per token", found.promised)),
            ("spent, by outputs and rows", estimated),
            ("spent, as the mode says", format!("{:.4} per token", found.said)),
            ("evidence that it is more", evidence(found.evidence, false_alarm)),
            ("smallest spend found", spend(found.smallest_found)),
            ("took", format!("{:.0} s; ended by {}", found.seconds, ended(found.ended))),
        ],
    }
}

fn engine_part(drift: &[(usize, Drift)]) -> Part {
    let none = drift.iter().all(|(_, drift)| drift.is_none());
    let fact = |(len, drift): &(usize, Drift)| {
        let text = match drift.is_none() {
            true => format!("{len} tokens: {} rows equal to the last bit", drift.rows),
            false => format!(
                "{len} tokens: {} of {} rows equal, mean total variation {:.5}, same likeliest token {} times",
                drift.equal, drift.rows, drift.distance, drift.same_best
            ),
        };
        ("rows in blocks", text)
    };
    Part {
        title: "The engine: rows in blocks against rows one by one",
        class: Verdict::Passed,
        verdict: match none {
            true => "no drift".to_owned(),
            false => "rows depend a little on the block they are scored in".to_owned(),
        },
        about: "A rule is lossless for the rows it is given. Where the engine's sums depend on how many tokens are scored at \
                once, those rows are not quite the ones plain decoding would see. That is the engine's error, reported here and \
                no part of the verdict."
            .to_owned(),
        facts: drift.iter().map(fact).collect(),
    }
}

fn server_part(found: &ServerFinding, false_alarm: f64) -> Part {
    let told = |count: Option<u64>| count.map_or("not told".to_owned(), |count| count.to_string());
    let says = match (&found.rule, found.says_lossless) {
        (Some(rule), Some(true)) => format!("{rule}, lossless"),
        (Some(rule), _) => rule.clone(),
        (None, _) => "nothing".to_owned(),
    };
    Part {
        title: "The server, speculation on against off",
        class: found.verdict,
        verdict: match (found.tested, found.verdict) {
            (false, _) => "nothing was drafted, so nothing was tested",
            (_, Verdict::Passed) => "outputs have one distribution, as far as was tested",
            (_, Verdict::Failed) => "outputs with speculation on do NOT have the distribution of those with it off",
            (_, Verdict::Inconclusive) => "nothing wrong was found, but too little was tested",
        }
        .to_owned(),
        about: "The same requests with speculation on and off, compared as samples by a test that learns to tell them apart; if \
                they have one distribution it cannot. The smallest difference is that of something half of all outputs show, which would \
                have been expected to be found. Greedy outputs may differ where two tokens are nearly as likely, which is no \
                part of the verdict."
            .to_owned(),
        facts: vec![
            ("with speculation", found.url.clone()),
            ("without", found.plain_url.clone()),
            ("the server says of its rule", says),
            ("tokens drafted, accepted", format!("{}, {}", told(found.drafted), told(found.accepted))),
            ("pairs of outputs", found.pairs.to_string()),
            ("evidence for two laws", evidence(found.pair_evidence, false_alarm)),
            ("smallest difference found", share(found.smallest_difference)),
            ("greedy outputs that are the same", format!("{} of {}", found.greedy_same, found.greedy)),
            ("took", format!("{:.0} s; ended by {}", found.seconds, ended(found.ended))),
        ],
    }
}

fn evidence(tens: f64, false_alarm: f64) -> String {
    format!("10^{tens:.1} (proof at 10^{:.1})", -false_alarm.log10())
}

fn share(share: Option<f64>) -> String {
    share.map_or("none: too little was seen".to_owned(), percent)
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

fn ended(ended: Ended) -> &'static str {
    match ended {
        Ended::Proof => "proof",
        Ended::Power => "reaching the power asked for",
        Ended::Pairs => "the number of pairs asked for",
        Ended::Time => "the time limit",
        Ended::Interrupted => "interruption",
    }
}

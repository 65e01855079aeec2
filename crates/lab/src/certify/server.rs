//! Anyone's server over HTTP: outputs with speculation on against outputs with it off.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forerun_decode::{Sampling, Token};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::pairs::{PairTest, Sample, smallest_difference};
use super::verdict::{Ended, Limits, Verdict};
use crate::cancellation::Cancellation;
use crate::client::Client;
use crate::error::Result;
use crate::observer::Observer;
use crate::prompts::Prompt;
use crate::sampling::SamplingConfig;

/// Pairs asked for between two looks at the evidence.
const BATCH: usize = 16;

/// What is asked, and of whom.
pub(super) struct ServerTest<'a> {
    /// With speculation, and without; often the same server.
    pub(super) on: Client,
    pub(super) off: Client,
    /// What requests of either kind say beside what all say.
    pub(super) on_body: Map<String, Value>,
    pub(super) off_body: Map<String, Value>,
    pub(super) model: Option<String>,
    pub(super) prompts: &'a [Prompt],
    pub(super) sampling: &'a SamplingConfig,
    /// Requests under way at once.
    pub(super) users: usize,
    pub(super) limits: Limits,
    /// Most pairs.
    pub(super) pairs_max: u64,
    pub(super) cancellation: &'a Cancellation,
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ServerFinding {
    pub(crate) url: String,
    pub(crate) plain_url: String,
    /// What requests said beside what all say.
    pub(crate) on: Map<String, Value>,
    pub(crate) off: Map<String, Value>,
    pub(crate) pairs: u64,
    /// Tokens drafted and accepted, as far as the server tells; none where it does not.
    pub(crate) drafted: Option<u64>,
    pub(crate) accepted: Option<u64>,
    /// The rule the server says it ran, and whether it calls it lossless.
    pub(crate) rule: Option<String>,
    pub(crate) says_lossless: Option<bool>,
    /// Evidence that both kinds are of two laws, as a power of ten.
    pub(crate) pair_evidence: f64,
    pub(crate) smallest_difference: Option<f64>,
    /// Greedy outputs asked for in both ways, and those that were the same.
    pub(crate) greedy: u64,
    pub(crate) greedy_same: u64,
    pub(crate) seconds: f64,
    pub(crate) ended: Ended,
    /// Whether anything was drafted at all, as far as can be told.
    pub(crate) tested: bool,
    pub(crate) verdict: Verdict,
    /// Whether the verdict is that.
    pub(crate) passed: bool,
}

/// What an answer says about its drafts.
#[derive(Debug, Default)]
struct Said {
    drafted: Option<u64>,
    accepted: Option<u64>,
    rule: Option<String>,
    lossless: Option<bool>,
}

/// What was seen so far.
#[derive(Debug, Default)]
struct Seen {
    test: PairTest,
    said: Said,
    greedy: u64,
    greedy_same: u64,
}

impl ServerTest<'_> {
    pub(super) fn run(self, observer: &dyn Observer) -> Result<ServerFinding> {
        let started = Instant::now();
        let mut seen = Seen::default();
        let ended = self.ask_all(&mut seen, observer)?;
        let Seen { test, said, greedy, greedy_same } = seen;
        let tested = said.drafted != Some(0);
        let verdict = match ended {
            Ended::Proof => Verdict::Failed,
            Ended::Power if tested => Verdict::Passed,
            _ => Verdict::Inconclusive,
        };
        Ok(ServerFinding {
            url: self.on.base().to_owned(),
            plain_url: self.off.base().to_owned(),
            pairs: test.pairs(),
            drafted: said.drafted,
            accepted: said.accepted,
            rule: said.rule,
            says_lossless: said.lossless,
            pair_evidence: test.evidence() / std::f64::consts::LN_10,
            smallest_difference: smallest_difference(test.pairs(), self.limits.false_alarm),
            greedy,
            greedy_same,
            seconds: started.elapsed().as_secs_f64(),
            ended,
            tested,
            verdict,
            passed: verdict == Verdict::Passed,
            on: self.on_body,
            off: self.off_body,
        })
    }

    /// Asks until something is proved or the limits are reached.
    fn ask_all(&self, seen: &mut Seen, observer: &dyn Observer) -> Result<Ended> {
        let Limits { power, limit, false_alarm, .. } = self.limits;
        if let Err(error) = self.greedy(seen, observer) {
            return if self.is_late() { Ok(Ended::Time) } else { Err(error) };
        }
        observer.phase(1);
        loop {
            let first = usize::try_from(seen.test.pairs()).expect("a count of pairs fits");
            match self.pairs(first, &mut seen.said) {
                Ok(pairs) => pairs.iter().for_each(|(one, other)| seen.test.see(one, other)),
                // What was tested before counts.
                Err(_) if self.is_late() => return Ok(Ended::Time),
                Err(_) if self.cancellation.is_cancelled() && first > 0 => {
                    return Ok(Ended::Interrupted);
                }
                Err(error) => return Err(error),
            }
            let (pairs, evidence) = (seen.test.pairs(), seen.test.evidence());
            let difference = smallest_difference(pairs, false_alarm);
            observer.show(
                limit.share().max(difference.map_or(0.0, |it| (power / it).powi(2))),
                &format!(
                    "{pairs} pairs, would find {}, evidence {:+.1}",
                    difference
                        .map_or("nothing yet".to_owned(), |it| format!("{:.0} %", 100.0 * it)),
                    evidence / std::f64::consts::LN_10,
                ),
            );
            if evidence >= self.limits.proof() {
                return Ok(Ended::Proof);
            }
            if difference.is_some_and(|difference| difference <= power) {
                return Ok(Ended::Power);
            }
            if pairs >= self.pairs_max {
                return Ok(Ended::Pairs);
            }
        }
    }

    /// Whether the time is over: requests break off then.
    fn is_late(&self) -> bool {
        self.cancellation.is_expired() || self.limits.limit.share() >= 1.0
    }

    /// Outputs of either kind for the next prompts. First those with drafts, then those without: a server
    /// may draft less while it serves somebody who asked for none.
    fn pairs(&self, first: usize, said: &mut Said) -> Result<Vec<(Sample, Sample)>> {
        let (on, off) = (self.answers(first, true)?, self.answers(first, false)?);
        on.iter().for_each(|answer| said.add(answer));
        let samples = |answers: Vec<Value>| {
            let prompts = (first..).map(|pair| pair % self.prompts.len());
            let answers = prompts.zip(answers);
            answers.map(|(prompt, it)| Sample { prompt, symbols: symbols(&text(&it)) })
        };
        Ok(samples(on).zip(samples(off)).collect())
    }

    /// The answers of one kind to the prompts from this one on, several asked for at once.
    fn answers(&self, first: usize, on: bool) -> Result<Vec<Value>> {
        let next = AtomicUsize::new(0);
        let answers = Mutex::new(vec![Value::Null; BATCH]);
        let temperature = self.sampling.sampling.temperature;
        std::thread::scope(|scope| {
            let ask = || -> Result<()> {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= BATCH {
                        return Ok(());
                    }
                    let answer = self.ask((first + place) % self.prompts.len(), on, temperature)?;
                    answers.lock().expect("nobody panics")[place] = answer;
                }
            };
            let users: Vec<_> = (0..self.users).map(|_| scope.spawn(ask)).collect();
            users.into_iter().try_for_each(|user| user.join().expect("nobody panics"))
        })?;
        Ok(answers.into_inner().expect("nobody panics"))
    }

    /// Every prompt once in both ways at temperature 0.
    fn greedy(&self, seen: &mut Seen, observer: &dyn Observer) -> Result<()> {
        let count = self.prompts.len();
        for prompt in 0..count {
            let said = format!("prompt {} of {count}", prompt + 1);
            observer.show(prompt as f64 / count as f64, &said);
            let (on, off) = (self.ask(prompt, true, 0.0)?, self.ask(prompt, false, 0.0)?);
            seen.greedy += 1;
            seen.greedy_same += u64::from(text(&on) == text(&off));
        }
        Ok(())
    }

    fn ask(&self, prompt: usize, on: bool, temperature: f32) -> Result<Value> {
        self.cancellation.check()?;
        let sampling = &self.sampling.sampling;
        let mut body = json!({
            "messages": self.prompts[prompt].messages,
            "max_tokens": self.limits.text_len,
            "temperature": temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        });
        let fields = body.as_object_mut().expect("an object is made above");
        // What OpenAI's API does not know is said only where it matters; but these servers cut unless
        // they are told not to.
        let neutral = Sampling::unshaped();
        // JSON has no infinity; this forbids a token as well.
        let bias = |(token, bias): &(Token, f32)| (token.0.to_string(), json!(bias.max(-1e9)));
        let biases: Map<String, Value> = sampling.logit_bias.iter().map(bias).collect();
        let last_n = sampling.repeat_last_n.map_or(json!(-1), |len| json!(len));
        for (name, wanted, value) in [
            ("top_k", true, json!(sampling.top_k)),
            ("min_p", true, json!(sampling.min_p)),
            ("typical_p", sampling.typical_p != neutral.typical_p, json!(sampling.typical_p)),
            ("repeat_penalty", sampling.repeat_penalty != 1.0, json!(sampling.repeat_penalty)),
            ("repeat_last_n", sampling.repeat_last_n != neutral.repeat_last_n, last_n),
            ("logit_bias", !biases.is_empty(), Value::Object(biases.clone())),
            ("ignore_eos", self.sampling.ignore_end, json!(true)),
            ("model", self.model.is_some(), json!(self.model)),
        ] {
            if wanted {
                fields.insert(name.to_owned(), value);
            }
        }
        let (client, own) =
            if on { (&self.on, &self.on_body) } else { (&self.off, &self.off_body) };
        fields.extend(own.clone());
        client.post("/v1/chat/completions", &body)
    }
}

impl Said {
    /// Adds what an answer with speculation on says about its drafts, in vLLM's words or llama.cpp's.
    fn add(&mut self, answer: &Value) {
        let count =
            |pointers: [&str; 2]| pointers.iter().find_map(|it| answer.pointer(it)?.as_u64());
        let drafted = count(["/metrics/speculative_decoding/num_draft_tokens", "/timings/draft_n"]);
        let accepted = count([
            "/metrics/speculative_decoding/num_accepted_tokens",
            "/timings/draft_n_accepted",
        ]);
        if let Some(drafted) = drafted {
            *self.drafted.get_or_insert(0) += drafted;
            *self.accepted.get_or_insert(0) += accepted.unwrap_or(0);
        }
        let rule = answer.pointer("/speculative/rule").and_then(Value::as_str);
        self.rule = rule.map(str::to_owned).or(self.rule.take());
        let lossless = answer.pointer("/speculative/lossless").and_then(Value::as_bool);
        self.lossless = lossless.or(self.lossless);
    }
}

/// The text of an answer.
fn text(answer: &Value) -> String {
    let content = answer.pointer("/choices/0/message/content").and_then(Value::as_str);
    content.unwrap_or_default().to_owned()
}

/// Words, each with the space before it.
fn symbols(text: &str) -> Vec<u64> {
    let hash = |word: &str| {
        let mut hasher = DefaultHasher::new();
        word.hash(&mut hasher);
        hasher.finish()
    };
    text.split_inclusive(char::is_whitespace).map(hash).collect()
}

/// How long a server may take to answer one request.
pub(super) const ANSWER: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_of_their_drafts_is_added_up() {
        let mut said = Said::default();
        said.add(&json!({ "timings": { "draft_n": 8, "draft_n_accepted": 5 } }));
        said.add(&json!({
            "speculative": { "rule": "block", "lossless": true },
            "metrics": { "speculative_decoding": { "num_draft_tokens": 4, "num_accepted_tokens": 1 } }
        }));
        assert_eq!((said.drafted, said.accepted), (Some(12), Some(6)));
        assert_eq!((said.rule.as_deref(), said.lossless), (Some("block"), Some(true)));
    }

    #[test]
    fn texts_are_words() {
        assert_eq!(symbols("a b c").len(), 3);
        assert_eq!(symbols("a b")[0], symbols("a c")[0]);
        assert_ne!(symbols("a b")[1], symbols("a c")[1]);
    }
}

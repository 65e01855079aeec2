//! Outputs by a server: closed-loop users, each of whom sends a request, reads its stream to the end,
//! and sends the next.
//!
//! With speculation and without are never mixed: the users of a setting have the server for
//! themselves, and settings take turns. Tokens are counted by what the server says of usage, never by
//! pieces of the stream, which may hold several.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::plan::{Ended, PLAIN, turns};
use super::record::{Config, Measure, ServerRecord, Setting, UserTimes};
use super::session::{Session, Source};
use crate::cancellation::Cancellation;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::observer::Observer;
use crate::prompts::{Prompt, check_for_server};

const PATH: &str = "/v1/chat/completions";

/// No request takes longer.
const LIMIT: Duration = Duration::from_secs(1800);

/// Each user sends so many requests at least, so that all are busy most of the time.
const REQUESTS_EACH: usize = 2;

/// Where to ask, as given.
#[derive(Clone)]
pub struct Address {
    /// The server.
    pub url: String,
    /// The one without speculation.
    pub plain_url: Option<String>,
    /// The key of both.
    pub key: Option<String>,
    /// The model's name.
    pub model: Option<String>,
    /// When all requests break off.
    pub until: Option<Instant>,
}

/// A server that was asked what it can do.
pub(super) struct Users {
    client: Client,
    plain: Option<Client>,
    prompts: Vec<Prompt>,
    /// What it can do.
    pub(super) record: ServerRecord,
}

impl Users {
    /// Asks a server what it can do.
    ///
    /// # Errors
    /// Where it cannot be reached, or refuses.
    pub(super) fn meet(address: Address, prompts: Vec<Prompt>) -> Result<Self> {
        check_for_server(&prompts)?;
        let client = |url: &String| {
            let client = Client::new(url, address.key.clone(), LIMIT)?;
            Ok::<_, Error>(address.until.map_or(client.clone(), |until| client.until(until)))
        };
        let plain = address.plain_url.as_ref().map(client).transpose()?;
        let client = client(&address.url)?;
        let model = address.model.map_or_else(|| first_model(&client), Ok)?;
        let mut users = Self {
            plain,
            prompts,
            record: ServerRecord {
                url: client.base().to_owned(),
                plain_url: None,
                model,
                fingerprint: None,
                switchable: false,
                fixed_len: true,
            },
            client,
        };
        users.record.plain_url = users.plain.as_ref().map(|plain| plain.base().to_owned());
        let prompt =
            users.prompts.first().ok_or_else(|| Error::refused("there is no prompt"))?.clone();
        let ask = |users: &Self| users.client.post(PATH, &users.body(&prompt, 2, 0.0));
        let answer = ask(&users).or_else(|refused| {
            // Not every server makes outputs of a fixed length.
            users.record.fixed_len = false;
            ask(&users).map_err(|_| refused)
        })?;
        users.record.fingerprint = answer["system_fingerprint"].as_str().map(str::to_owned);
        users.record.switchable = answer["speculative"]["enabled"] == true;
        Ok(users)
    }

    /// With and without speculation for each number of users, as far as the server can.
    pub(super) fn settings(&self, counts: &[usize]) -> Vec<Setting> {
        let mut settings = Vec::new();
        for users in counts {
            let name = |what: &str| match users {
                1 => format!("{what}, 1 user"),
                count => format!("{what}, {count} users"),
            };
            if self.plain.is_none() && !self.record.switchable {
                settings.push(Setting::plain(name("server"), *users));
                continue;
            }
            let plain = Some(settings.len());
            settings.push(Setting::plain(name(PLAIN), *users));
            let drafters = vec!["server".to_owned()];
            let speculating = Setting::plain(name("speculation"), *users);
            settings.push(Setting { drafters, plain, ..speculating });
        }
        settings
    }

    /// Sends every prompt once, so that all settings find the same in the server's cache.
    ///
    /// # Errors
    /// Where a request fails.
    pub(super) fn warm_up(
        &self,
        cancellation: &Cancellation,
        observer: &dyn Observer,
    ) -> Result<()> {
        let count = self.prompts.len();
        let clients = std::iter::once(&self.client).chain(&self.plain);
        let all = (count * clients.clone().count()) as f64;
        for (server, client) in clients.enumerate() {
            for (index, prompt) in self.prompts.iter().enumerate() {
                cancellation.check()?;
                let done = (server * count + index) as f64 / all;
                observer.show(done, &format!("prompt {} of {count}", index + 1));
                client.post(PATH, &self.body(prompt, 1, 0.0))?;
            }
        }
        Ok(())
    }

    fn body(&self, prompt: &Prompt, len: usize, temperature: f32) -> Value {
        let mut body = json!({
            "model": self.record.model,
            "messages": prompt.messages,
            "max_tokens": len,
            "temperature": temperature,
        });
        match &prompt.original {
            Some(original) => {
                body["prediction"] = json!({ "type": "content", "content": original });
            }
            None if self.record.fixed_len && !prompt.ends => body["ignore_eos"] = true.into(),
            None => {}
        }
        body
    }

    /// What a request of a setting says, and to whom.
    fn request(&self, config: &Config, job: &Job) -> (&Client, Value) {
        let prompt = &self.prompts[job.prompt];
        let mut body = self.body(prompt, config.text_len, job.temperature);
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let shapes = [
            ("top_k", config.top_k.map(Value::from)),
            ("top_p", config.top_p.map(Value::from)),
            ("min_p", config.min_p.map(Value::from)),
        ];
        for (name, value) in shapes {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        let setting = &config.settings[job.setting];
        let speculates = setting.plain.is_some();
        match &self.plain {
            Some(plain) if !speculates => (plain, body),
            None if self.record.switchable => {
                body["speculative"] = json!({ "enabled": speculates });
                (&self.client, body)
            }
            _ => (&self.client, body),
        }
    }

    /// Has the users of a setting send their requests, and gives what they read.
    fn phase(
        &self,
        config: &Config,
        job: &Job,
        cancellation: &Cancellation,
    ) -> Result<Vec<Measure>> {
        let users = config.settings[job.setting].users;
        let count = self.prompts.len().max(REQUESTS_EACH * users);
        let (next, started) = (AtomicUsize::new(0), Instant::now());
        let readings: Mutex<Vec<Result<Measure>>> = Mutex::new(Vec::new());
        let user = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count || cancellation.is_cancelled() {
                    return;
                }
                let job = Job { prompt: index % self.prompts.len(), ..*job };
                let (client, body) = self.request(config, &job);
                let reading = read(client, &body, started).map(|measure| job.with(measure));
                if reading.is_err() {
                    next.store(count, Ordering::Relaxed);
                }
                readings.lock().expect("no user panics").push(reading);
            }
        };
        std::thread::scope(|scope| {
            (0..users).for_each(|_| {
                scope.spawn(user);
            });
        });
        readings.into_inner().expect("no user panics").into_iter().collect()
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
struct Job {
    repeat: usize,
    prompt: usize,
    temperature: f32,
    setting: usize,
}

impl Job {
    fn with(&self, measure: Measure) -> Measure {
        let Self { repeat, prompt, temperature, setting } = *self;
        Measure { repeat, prompt, temperature, setting, ..measure }
    }
}

fn first_model(client: &Client) -> Result<String> {
    let models = client.get("/v1/models")?;
    let first = models["data"][0]["id"].as_str().map(str::to_owned);
    first.ok_or_else(|| Error::refused("the server names no model: add --model-name"))
}

/// Sends a request, reads its stream, and says what that took.
fn read(client: &Client, body: &Value, started: Instant) -> Result<Measure> {
    let sent = Instant::now();
    let mut times: Vec<f64> = Vec::new();
    let (mut usage, mut timings) = (Value::Null, Value::Null);
    client.stream(PATH, body, |mut event| {
        let delta = &event["choices"][0]["delta"];
        let says = |name: &str| delta[name].as_str().is_some_and(|text| !text.is_empty());
        if says("content") || says("reasoning_content") {
            times.push(sent.elapsed().as_secs_f64());
        }
        for (name, last) in [("usage", &mut usage), ("timings", &mut timings)] {
            let value = event[name].take();
            if !value.is_null() {
                *last = value;
            }
        }
    })?;
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        return Err(Error::refused(format!("{}: an answer without text", client.base())));
    };
    let tokens = usage["completion_tokens"].as_u64().ok_or_else(|| {
        let base = client.base();
        Error::refused(format!("{base} does not say how many tokens an answer has (usage)"))
    })?;
    let count = |name: &str| timings[name].as_u64().unwrap_or(0);
    let (drafted, accepted) = (count("draft_n"), count("draft_n_accepted"));
    let tokens = tokens.saturating_sub(1);
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    let prompt_tokens = usage["prompt_tokens"].as_u64().unwrap_or(0);
    Ok(Measure {
        tokens,
        seconds: last - first,
        // A round commits what it accepts and one token more. Without counts nothing is known.
        rounds: if timings.is_null() { 0 } else { tokens.saturating_sub(accepted) },
        drafted,
        accepted,
        prompt_tokens,
        prompt_read: prompt_tokens.saturating_sub(cached),
        first_token_s: *first,
        user: Some(UserTimes {
            sent_s: (sent - started).as_secs_f64(),
            ended_s: started.elapsed().as_secs_f64(),
            gaps_s: times.windows(2).map(|pair| pair[1] - pair[0]).collect(),
        }),
        ..Measure::default()
    })
}

impl Source for Users {
    fn repeat(&mut self, repeat: usize, session: &mut Session<'_>) -> Result<Option<Ended>> {
        let config = session.config.clone();
        let texts = |setting: &Setting| self.prompts.len().max(REQUESTS_EACH * setting.users);
        let each: usize = config.settings.iter().map(texts).sum();
        let texts = each * config.temperatures.len() * config.stop.repeats;
        for (turn, temperature) in config.temperatures.iter().enumerate() {
            for setting in turns(config.settings.len(), repeat + turn) {
                let job = Job { repeat, prompt: 0, temperature: *temperature, setting };
                // Users' readings are kept together or not at all.
                if session.is_done(&job.with(Measure::default())) {
                    continue;
                }
                if session.is_late() && !session.measures.is_empty() {
                    return Ok(Some(Ended::Time));
                }
                session.show(repeat, texts);
                let readings = self.phase(&config, &job, session.cancellation);
                if session.cancellation.is_cancelled() {
                    return Ok(Some(session.broken_off()));
                }
                if readings.is_err() && session.is_late() {
                    return Ok(Some(Ended::Time));
                }
                for measure in readings? {
                    session.add(measure)?;
                }
            }
        }
        Ok(None)
    }
}

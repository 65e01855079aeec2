//! What is tried and measured within the time: acceptance first, then speed.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use forerun_decode::{Arm, Controller, DrafterId, Stats, Token};

use super::trial::{Bench, Forecasts, Setting};
use super::{Candidate, TuneConfig};
use crate::bench::{Interval, Measure, pairs, speedup};
use crate::error::Result;
use crate::observer::Observer;

/// When acceptance must be known, as a share of the time limit; the rest is for measuring.
const SURVEY_END: f64 = 0.5;

/// When measuring ends, so that what was found is told within the limit.
const FINALS_END: f64 = 0.98;

/// Most times that all prompts are decoded to measure speed.
const REPEATS: usize = 3;

/// A setting whose forecast is below this is not worth measuring.
const HOPELESS: f64 = 0.9;

/// A setting that was run beside plain decoding.
#[derive(Debug, Clone)]
pub(super) struct Final {
    pub(super) setting: Setting,
    /// Whether the controller chose how much of it to use.
    pub(super) adaptive: bool,
    pub(super) forecast: f64,
    /// Over plain decoding; nothing where there was no time to measure it.
    pub(super) speedup: Option<Interval>,
    pub(super) stats: Stats,
    /// Prompts it was measured on.
    pub(super) prompts: usize,
}

impl Final {
    /// The speedup as measured.
    pub(super) fn measured(&self) -> Option<f64> {
        self.speedup.map(|it| it.value)
    }
}

/// What is tried, with what.
pub(super) struct Trials<'a> {
    pub(super) config: &'a TuneConfig,
    pub(super) candidates: &'a [Candidate],
    pub(super) prompts: &'a [Vec<Token>],
    pub(super) observer: &'a dyn Observer,
    pub(super) bench: Bench<'a>,
}

/// The time of a phase, and how its outputs share it.
struct Schedule {
    begun: Instant,
    end: Instant,
    /// Outputs in all, and those that are done.
    texts: usize,
    done: usize,
    /// What the slowest prompt took by all settings.
    slowest: Duration,
}

impl Schedule {
    fn new(end: Instant, texts: usize) -> Self {
        Self { begun: Instant::now(), end, texts, done: 0, slowest: Duration::ZERO }
    }

    /// Whether one more prompt fits.
    fn has_room(&self) -> bool {
        self.done == 0 || Instant::now() + self.slowest <= self.end
    }

    /// When the next of so many outputs of a prompt must be over, so that the others get as much time.
    fn until(&self, left: usize) -> Instant {
        let now = Instant::now();
        now + self.end.saturating_duration_since(now) / u32::try_from(left.max(1)).unwrap_or(1)
    }

    /// How far the phase is, by outputs or by time.
    fn share(&self) -> f64 {
        let time = self.end.saturating_duration_since(self.begun).as_secs_f64();
        let by_time = self.begun.elapsed().as_secs_f64() / time.max(1e-9);
        by_time.max(self.done as f64 / self.texts.max(1) as f64)
    }
}

impl Trials<'_> {
    /// Every drafter at its longest, for each width, taking turns with plain decoding, which tells
    /// what a pass over one token takes now.
    ///
    /// # Errors
    /// Where a pass fails, or nothing was tried before Ctrl-C or the clock ended it.
    pub(super) fn survey(&mut self) -> Result<Vec<Forecasts>> {
        let config = self.config;
        let mut settings = Vec::new();
        for (drafter, candidate) in self.candidates.iter().enumerate() {
            let widths = if candidate.is_model { config.paths.get() as usize } else { 1 };
            settings.extend((1..=widths).map(|width| Setting {
                drafter,
                width,
                len: config.len_max,
            }));
        }
        let each = settings.len() + 1;
        let mut schedule = Schedule::new(config.limit.at(SURVEY_END), self.prompts.len() * each);
        let mut seen = vec![Stats::default(); settings.len()];
        let surveyed = self.survey_prompts(&settings, &mut schedule, &mut seen);
        // What was tried before it was stopped counts.
        if seen.iter().all(|stats| stats.rounds == 0) || !self.bench.is_stopped() {
            surveyed?;
        }
        let prompt_len = self.prompts.iter().map(Vec::len).sum::<usize>() / self.prompts.len();
        let tried = settings.into_iter().zip(seen).filter(|(_, stats)| stats.rounds > 0);
        let forecasts = tried.map(|(setting, stats)| {
            Forecasts::new(setting, stats, self.bench.costs(), prompt_len, config.text_len)
        });
        Ok(forecasts.collect())
    }

    fn survey_prompts(
        &mut self,
        settings: &[Setting],
        schedule: &mut Schedule,
        seen: &mut [Stats],
    ) -> Result<()> {
        let each = settings.len() + 1;
        for (index, prompt) in self.prompts.iter().enumerate() {
            if !schedule.has_room() {
                break;
            }
            let began = Instant::now();
            let seed = self.config.sampling.seed.wrapping_add(index as u64);
            self.show(schedule, index);
            self.bench.text(prompt, None, seed, schedule.until(each))?;
            schedule.done += 1;
            for (number, (setting, stats)) in settings.iter().zip(&mut *seen).enumerate() {
                self.show(schedule, index);
                let until = schedule.until(settings.len() - number);
                stats.merge(&self.bench.text(prompt, Some(*setting), seed, until)?);
                schedule.done += 1;
            }
            schedule.slowest = schedule.slowest.max(began.elapsed());
        }
        Ok(())
    }

    fn show(&self, schedule: &Schedule, prompt: usize) {
        let count = self.prompts.len();
        self.observer.show(schedule.share(), &format!("prompt {}/{count}", prompt + 1));
    }

    /// Runs the best setting of each drafter, and the controller with the most promising of them,
    /// beside plain decoding, until it is clear whether drafting pays.
    ///
    /// # Errors
    /// Where a pass fails.
    pub(super) fn finals(&mut self, forecasts: &[Forecasts]) -> Result<Vec<Final>> {
        let finalists = finalists(forecasts);
        let Some((best, _)) = finalists.iter().max_by(|one, other| one.1.total_cmp(&other.1))
        else {
            return Ok(Vec::new());
        };
        let arm = |width| Arm { drafters: vec![DrafterId(best.drafter)], width };
        let arms = (1..=best.width).map(arm).collect();
        let mut race = Race {
            finalists: &finalists,
            controller: Controller::new(self.bench.costs().clone(), arms, self.config.len_max),
            measures: Vec::new(),
            stats: vec![Stats::default(); finalists.len() + 2],
        };
        let texts = REPEATS * self.prompts.len() * race.stats.len();
        let mut schedule = Schedule::new(self.config.limit.at(FINALS_END), texts);
        let raced = self.race(&mut race, &mut schedule);
        // What was measured before it was stopped counts.
        if !self.bench.is_stopped() {
            raced?;
        }
        let fixed = finalists.iter().map(|(setting, forecast)| (*setting, false, *forecast));
        let expected = race.stats[finalists.len() + 1].expected_speedup();
        let all = fixed.chain([(*best, true, expected)]).enumerate();
        let of = |(index, (setting, adaptive, forecast)): (usize, (Setting, bool, f64))| Final {
            setting,
            adaptive,
            forecast,
            speedup: race.speedup(index + 1),
            stats: race.stats[index + 1].clone(),
            prompts: race.prompts(index + 1),
        };
        Ok(all.map(of).collect())
    }

    fn race(&mut self, race: &mut Race<'_>, schedule: &mut Schedule) -> Result<()> {
        for repeat in 0..REPEATS {
            for (index, prompt) in self.prompts.iter().enumerate() {
                if !schedule.has_room() {
                    return Ok(());
                }
                let (count, began) = (self.prompts.len(), Instant::now());
                let seed = ((repeat + 1) * count + index) as u64;
                let seed = self.config.sampling.seed.wrapping_add(seed);
                for setting in 0..race.stats.len() {
                    let (number, turn) = (index + 1, repeat + 1);
                    let said = format!("prompt {number}/{count}, repeat {turn}/{REPEATS}");
                    self.observer.show(schedule.share(), &said);
                    let until = schedule.until(race.stats.len() - setting);
                    let stats = match setting {
                        0 => self.bench.text(prompt, None, seed, until)?,
                        number if number <= race.finalists.len() => {
                            let (setting, _) = race.finalists[number - 1];
                            self.bench.text(prompt, Some(setting), seed, until)?
                        }
                        _ => self.bench.adaptive(prompt, &mut race.controller, seed, until)?,
                    };
                    race.add((index, repeat, setting), &stats);
                    schedule.done += 1;
                }
                schedule.slowest = schedule.slowest.max(began.elapsed());
            }
            if race.is_clear() {
                break;
            }
        }
        Ok(())
    }
}

/// What is run beside plain decoding, and what it took.
struct Race<'a> {
    finalists: &'a [(Setting, f64)],
    controller: Controller,
    measures: Vec<Measure>,
    /// Of plain decoding, the finalists and the controller.
    stats: Vec<Stats>,
}

impl Race<'_> {
    fn add(&mut self, (prompt, repeat, setting): (usize, usize, usize), stats: &Stats) {
        self.stats[setting].merge(stats);
        let (tokens, seconds) = (stats.committed, stats.time.as_secs_f64());
        self.measures.push(Measure {
            prompt,
            repeat,
            setting,
            tokens,
            seconds,
            ..Measure::default()
        });
    }

    fn speedup(&self, setting: usize) -> Option<Interval> {
        speedup(&pairs(self.measures.iter(), setting, 0))
    }

    fn prompts(&self, setting: usize) -> usize {
        let own = self.measures.iter().filter(|it| it.setting == setting);
        own.map(|it| it.prompt + 1).max().unwrap_or(0)
    }

    /// Whether the fastest is surely faster than plain decoding, or nothing is.
    fn is_clear(&self) -> bool {
        let all: Vec<Interval> =
            (1..self.stats.len()).filter_map(|setting| self.speedup(setting)).collect();
        let fastest = all.iter().max_by(|one, other| one.value.total_cmp(&other.value));
        fastest.is_some_and(|it| it.excludes(1.0))
    }
}

/// The best setting of each drafter by forecast, unless it is hopeless.
fn finalists(forecasts: &[Forecasts]) -> Vec<(Setting, f64)> {
    let mut best: Vec<(Setting, f64)> = Vec::new();
    for forecast in forecasts {
        let (len, speedup) = forecast.best();
        let setting = Setting { len, ..forecast.setting };
        match best.iter_mut().find(|(known, _)| known.drafter == setting.drafter) {
            Some(known) if known.1 < speedup => *known = (setting, speedup),
            Some(_) => {}
            None => best.push((setting, speedup)),
        }
    }
    best.retain(|(_, speedup)| *speedup > HOPELESS);
    best
}

/// What was forecast and measured of each.
pub(super) fn finals_table(text: &mut String, candidates: &[Candidate], finals: &[Final]) {
    if finals.is_empty() {
        text.push_str("No setting is worth measuring: none comes near plain decoding.\n");
        return;
    }
    text.push_str("Speedup over plain decoding, with its 95 % interval\n");
    let names: Vec<String> = finals.iter().map(|it| it.name(candidates)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(7);
    writeln!(text, "  {:<width$}  forecast  measured          tokens/round", "setting")
        .expect("strings take all text");
    for (result, name) in finals.iter().zip(&names) {
        let measured = result.speedup.as_ref().map_or("–".to_owned(), interval);
        let (forecast, per_round) = (result.forecast, result.stats.tokens_per_round());
        writeln!(text, "  {name:<width$}  {forecast:>8.2}  {measured:<16}  {per_round:>12.2}")
            .expect("strings take all text");
    }
}

/// A figure and where it may lie.
pub(super) fn interval(it: &Interval) -> String {
    match (it.low, it.high) {
        (Some(_), Some(_)) => it.to_string(),
        _ => format!("{it} (unsure)"),
    }
}

impl Final {
    /// For people.
    pub(super) fn name(&self, candidates: &[Candidate]) -> String {
        let drafter = &candidates[self.setting.drafter].name;
        match self.adaptive {
            true => format!("{drafter}, adaptive"),
            false => self.setting.name(drafter),
        }
    }
}

//! What is run, in which order, and when it is enough.

use std::str::FromStr;

use forerun_decode::{DrafterKind, Drafts, RuleChoice, RuleMismatch};

use super::lossy::LossyWay;
use super::record::{LeftOut, Setting};
use crate::prompts::Prompt;

/// The name of plain decoding.
pub(super) const PLAIN: &str = "plain";

/// The edit drafter with what the prompt's file predicts, beside the one that has the prompt alone.
pub const PREDICTION: DrafterKind = DrafterKind::Other("prediction");

/// The edit drafter with the finished output as prediction: as fast as an edit can be.
pub const ORACLE: DrafterKind = DrafterKind::Other("oracle");

/// The suffix drafter with what it drafted for earlier prompts, as for requests with one API key.
pub const SHARED_SUFFIX: DrafterKind = DrafterKind::Other("suffix-shared");

/// The drafters that a benchmark can name.
const KINDS: [DrafterKind; 7] = [
    DrafterKind::DraftModel,
    DrafterKind::Ngram,
    DrafterKind::Suffix,
    SHARED_SUFFIX,
    DrafterKind::Edit,
    PREDICTION,
    ORACLE,
];

/// Drafters that propose together; none for plain decoding alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team(pub Vec<DrafterKind>);

impl FromStr for Team {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let mut kinds = Vec::new();
        for name in text.split('+') {
            let kind = KINDS.into_iter().find(|kind| kind.name() == name).ok_or(
                "expected ngram, suffix, suffix-shared, edit, prediction, oracle or draft-model, \
                 several at once as in ngram+suffix, or none",
            )?;
            if kinds.contains(&kind) {
                return Err(format!("{name} stands there twice"));
            }
            kinds.push(kind);
        }
        Ok(Self(kinds))
    }
}

/// A drafter of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drafting {
    /// Its name, which no other drafter of the run has.
    pub name: String,
    /// What it is.
    pub kind: DrafterKind,
}

impl Drafting {
    /// A drafter that looks tokens up, named by what it is.
    fn looking_up(kind: DrafterKind) -> Self {
        Self { name: kind.name().to_owned(), kind }
    }
}

/// Why drafters cannot be named so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TeamError {
    /// Two draft models would have one name.
    #[error("two draft models have the same name")]
    SameName,
    /// A draft model is to draft, and there is none.
    #[error("no draft model is named")]
    NoDraftModel,
}

/// What drafts together: each draft model alone, then what else is named; n-grams and suffixes if
/// nothing is. A team with a draft model is formed with each of them.
///
/// # Errors
/// If two draft models have one name, or a team wants one and there is none.
pub fn teams(models: &[String], named: &[Team]) -> Result<Vec<Vec<Drafting>>, TeamError> {
    if distinct(models.to_vec()).len() < models.len() {
        return Err(TeamError::SameName);
    }
    let alone = Team(vec![DrafterKind::DraftModel]);
    let looked_up = [Team(vec![DrafterKind::Ngram]), Team(vec![DrafterKind::Suffix])];
    let mut all = if models.is_empty() { Vec::new() } else { vec![alone] };
    all.extend(match named.is_empty() && models.is_empty() {
        true => looked_up.to_vec(),
        false => named.to_vec(),
    });
    let mut teams = Vec::new();
    for Team(kinds) in distinct(all).into_iter().filter(|team| !team.0.is_empty()) {
        if !kinds.contains(&DrafterKind::DraftModel) {
            teams.push(kinds.iter().map(|kind| Drafting::looking_up(*kind)).collect());
            continue;
        }
        if models.is_empty() {
            return Err(TeamError::NoDraftModel);
        }
        for model in models {
            let drafter = |kind: &DrafterKind| match kind {
                DrafterKind::DraftModel => Drafting { name: model.clone(), kind: *kind },
                kind => Drafting::looking_up(*kind),
            };
            teams.push(kinds.iter().map(drafter).collect());
        }
    }
    Ok(teams)
}

/// Each drafter of some teams once, draft models first.
pub fn drafters(teams: &[Vec<Drafting>]) -> Vec<Drafting> {
    let of_kind = |kind| teams.iter().flatten().filter(move |it: &&Drafting| it.kind == kind);
    distinct(KINDS.into_iter().flat_map(of_kind).cloned().collect())
}

/// Each once, in the order they come.
pub fn distinct<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    let mut once: Vec<T> = Vec::with_capacity(all.len());
    for one in all {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

/// What is to be combined with each other.
#[derive(Debug, Clone)]
pub struct Axes {
    /// Drafters that propose together.
    pub teams: Vec<Vec<Drafting>>,
    /// Rules; where none is named, the best for what is drafted.
    pub rules: Vec<RuleChoice>,
    /// Lossy ways of verifying, for drafters that propose alone, on one path.
    pub lossy: Vec<LossyWay>,
    /// Paths of a draft model.
    pub widths: Vec<usize>,
    /// Tokens of a path.
    pub lens: Vec<usize>,
    /// Whether the controller decides how much is drafted.
    pub adaptive: Vec<bool>,
}

/// What comes of it.
#[derive(Debug, Clone, Default)]
pub struct Product {
    /// Plain decoding, and all that can be run.
    pub settings: Vec<Setting>,
    /// What no rule can judge.
    pub left_out: Vec<LeftOut>,
}

impl Product {
    /// Plain decoding and what is lossy.
    #[must_use]
    pub fn without_lossless(mut self) -> Self {
        let is_lossless = |it: &Setting| {
            it.rule.as_deref().is_some_and(|rule| LossyWay::of_setting(rule).is_none())
        };
        self.settings.retain(|it| !is_lossless(it));
        self
    }
}

impl Axes {
    /// Combines all with all. A rule that can judge none of the widths gets one path.
    ///
    /// # Errors
    /// Where the only combination cannot be run.
    pub fn product(&self) -> Result<Product, RuleMismatch> {
        let mut product = Product::default();
        product.settings.push(Setting::plain(PLAIN.to_owned(), 1));
        let mut refused = None;
        for team in &self.teams {
            let has_model = team.iter().any(|drafter| drafter.kind.is_model());
            let widths: &[usize] = if has_model { &self.widths } else { &[1] };
            for (rule, wide) in self.rules_for(team.len(), widths) {
                let drafts = |width| {
                    let (drafters, may_stop, paths) = (team.len(), false, None);
                    rule.scheme(&Drafts { drafters, has_model, may_stop, width, paths })
                };
                let mut judged = 0;
                for width in &wide {
                    match drafts(*width) {
                        Ok(_) => {
                            self.add(&mut product, team, rule.name(), *width);
                            judged += 1;
                        }
                        Err(mismatch) => {
                            let paths = if *width == 1 { "path" } else { "paths" };
                            let name = rule.name();
                            let what = format!("{}, {name}, {width} {paths}", joined(team));
                            let reason = mismatch.reason.to_owned();
                            product.left_out.push(LeftOut { what, reason });
                            refused = Some(mismatch);
                        }
                    }
                }
                if judged == 0 && !wide.contains(&1) && drafts(1).is_ok() {
                    self.add(&mut product, team, rule.name(), 1);
                }
            }
            for way in &self.lossy {
                if team.len() == 1 {
                    self.add(&mut product, team, &way.setting(), 1);
                } else {
                    let what = format!("{}, {}", joined(team), way.setting());
                    let reason = "lossy modes judge one path".to_owned();
                    product.left_out.push(LeftOut { what, reason });
                }
            }
        }
        let axes = [self.teams.len(), self.rules.len(), self.widths.len(), self.lens.len()];
        let only = axes.iter().all(|count| *count == 1) || product.settings.len() == 1;
        match refused {
            Some(mismatch) if only => Err(mismatch),
            _ => Ok(product),
        }
    }

    /// Each rule with the widths it is to be tried at.
    fn rules_for(&self, drafters: usize, widths: &[usize]) -> Vec<(RuleChoice, Vec<usize>)> {
        if !self.rules.is_empty() {
            return self.rules.iter().map(|rule| (*rule, widths.to_vec())).collect();
        }
        let best = |width: usize| match drafters > 1 || width > 1 {
            true => RuleChoice::Pooled,
            false => RuleChoice::Block,
        };
        widths.iter().map(|width| (best(*width), vec![*width])).collect()
    }

    fn add(&self, product: &mut Product, team: &[Drafting], rule: &str, width: usize) {
        for len in &self.lens {
            for adaptive in &self.adaptive {
                let adapted = if *adaptive { ", adaptive" } else { "" };
                product.settings.push(Setting {
                    name: format!("{}, {}, {width}x{len}{adapted}", joined(team), rule),
                    drafters: team.iter().map(|drafter| drafter.name.clone()).collect(),
                    rule: Some(rule.to_owned()),
                    paths: width,
                    length: *len,
                    adaptive: *adaptive,
                    users: 1,
                    plain: Some(0),
                });
            }
        }
    }
}

fn joined(team: &[Drafting]) -> String {
    let names: Vec<&str> = team.iter().map(|drafter| drafter.name.as_str()).collect();
    names.join(" & ")
}

/// The settings in the order of their turn: each time another begins.
pub(super) fn turns(count: usize, turn: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| (place + turn) % count)
}

/// So many prompts of each task, the tasks taking turns, so that any beginning of the list is
/// spread over them.
pub(super) fn spread(prompts: Vec<Prompt>, tasks: &[String], per_task: usize) -> Vec<Prompt> {
    let mut by_task: Vec<Vec<Prompt>> = tasks.iter().map(|_| Vec::new()).collect();
    for prompt in prompts {
        if let Some(at) = tasks.iter().position(|task| *task == prompt.task) {
            by_task[at].push(prompt);
        }
    }
    let mut rest: Vec<_> =
        by_task.into_iter().map(|prompts| prompts.into_iter().take(per_task)).collect();
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(rest.iter_mut().filter_map(Iterator::next));
        if all.len() == before {
            return all;
        }
    }
}

/// Why a run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every interval is narrow enough.
    Precise,
    /// As many repeats as were wanted.
    Repeats,
    /// All problems of a task are solved.
    Problems,
    /// The time is up.
    Time,
    /// Ctrl-C.
    Interrupted,
}

impl Ended {
    /// As the report says it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Precise => "precision",
            Self::Repeats => "repeats",
            Self::Problems => "problems",
            Self::Time => "time-limit",
            Self::Interrupted => "interrupted",
        }
    }
}

/// How far a run is after a whole repeat.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// Whole repeats.
    pub(super) repeats: usize,
    /// The reach of the widest interval.
    pub(super) reach: f64,
    /// Seconds since the call began.
    pub(super) elapsed_s: f64,
    /// Seconds another repeat would take.
    pub(super) repeat_s: f64,
}

impl super::record::Stop {
    /// Whether that is enough.
    pub(super) fn rule(&self, progress: &Progress) -> Option<Ended> {
        if progress.repeats >= 2 && progress.reach <= self.precision {
            Some(Ended::Precise)
        } else if progress.repeats >= self.repeats {
            Some(Ended::Repeats)
        } else if progress.elapsed_s + progress.repeat_s > self.time_limit_s {
            Some(Ended::Time)
        } else {
            None
        }
    }

    /// Whether the first repeat may take one more prompt: what has been spent on `prompts` of them
    /// must leave time for a second repeat, where there is to be one.
    pub(super) fn room_for_prompt(&self, prompts: usize, spent_s: f64, elapsed_s: f64) -> bool {
        if prompts == 0 {
            return true;
        }
        let each = spent_s / prompts as f64;
        let repeats = self.repeats.min(2) as f64;
        let whole = repeats * each * (prompts + 1) as f64;
        // What was spent outside of outputs, such as loading, comes on top.
        whole + (elapsed_s - spent_s).max(0.0) <= self.time_limit_s
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Stop;
    use super::*;

    fn drafting(name: &str, kind: DrafterKind) -> Drafting {
        Drafting { name: name.to_owned(), kind }
    }

    fn axes(rules: &str, widths: &[usize]) -> Axes {
        let rules = rules.split(',').filter(|name| !name.is_empty());
        Axes {
            teams: vec![
                vec![drafting("small", DrafterKind::DraftModel)],
                vec![drafting("ngram", DrafterKind::Ngram)],
            ],
            rules: rules.map(|rule| rule.parse().unwrap()).collect(),
            lossy: Vec::new(),
            widths: widths.to_vec(),
            lens: vec![4],
            adaptive: vec![false],
        }
    }

    fn names(product: &Product) -> Vec<&str> {
        product.settings.iter().map(|setting| setting.name.as_str()).collect()
    }

    #[test]
    fn all_is_combined_with_all_and_plain_is_always_there() {
        let product = axes("block,pooled", &[1, 2]).product().unwrap();
        assert_eq!(
            names(&product),
            [
                "plain",
                "small, block, 1x4",
                "small, pooled, 1x4",
                "small, pooled, 2x4",
                "ngram, block, 1x4",
                "ngram, pooled, 1x4",
            ]
        );
        let [block] = product.left_out.as_slice() else { panic!("{:?}", product.left_out) };
        assert_eq!(block.what, "small, block, 2 paths");
        assert_eq!(block.reason, "judges one path, and there would be several");
        assert!(product.settings[1..].iter().all(|setting| setting.plain == Some(0)));
    }

    #[test]
    fn rules_for_one_path_get_one() {
        let product = axes("token,gbv", &[2]).product().unwrap();
        let expected = ["plain", "small, token, 1x4", "small, gbv, 2x4", "ngram, token, 1x4"];
        assert_eq!(names(&product), expected);
        let left: Vec<&str> = product.left_out.iter().map(|it| it.what.as_str()).collect();
        assert_eq!(left, ["small, token, 2 paths", "ngram, gbv, 1 path"]);
    }

    #[test]
    fn lossy_ways_come_last_and_judge_one_path_of_one_drafter() {
        let lossy = ["account:0.02", "typical"].map(|way| way.parse().unwrap()).to_vec();
        let alone = axes("block", &[2]);
        let both = vec![alone.teams[0][0].clone(), drafting("n", DrafterKind::Ngram)];
        let teams = vec![alone.teams[0].clone(), both];
        let product = Axes { lossy, teams, ..alone }.product().unwrap();
        let lossy = product.settings.iter().filter(|it| it.name.contains("lossy"));
        let rules: Vec<_> = lossy.map(|it| (it.rule.clone().unwrap(), it.paths)).collect();
        let expected = [("lossy account:0.02".to_owned(), 1), ("lossy typical".to_owned(), 1)];
        assert!(rules.starts_with(&expected), "{rules:?}");
        let without = product.clone().without_lossless();
        assert_eq!(without.settings.len(), 1 + rules.len());
        assert_eq!(without.settings[0].name, PLAIN);
        let several = |it: &&LeftOut| it.what.contains(" & ") && it.what.contains("lossy");
        assert!(product.left_out.iter().filter(several).count() > 0, "{:?}", product.left_out);
    }

    #[test]
    fn the_best_rule_is_taken_where_none_is_named() {
        let product = axes("", &[1, 2]).product().unwrap();
        let expected = ["plain", "small, block, 1x4", "small, pooled, 2x4", "ngram, block, 1x4"];
        assert_eq!(names(&product), expected);
    }

    #[test]
    fn the_only_combination_must_be_possible() {
        let one = |rule: &str, widths: &[usize]| {
            let both = axes(rule, widths);
            Axes { teams: vec![both.teams[0].clone()], ..both }.product()
        };
        let error = one("block", &[2]).unwrap_err().to_string();
        assert!(error.starts_with("block judges one path"), "{error}");
        assert_eq!(names(&one("block", &[1]).unwrap()).len(), 2);
        let ngram =
            Axes { teams: vec![vec![drafting("n", DrafterKind::Ngram)]], ..axes("gbv,rsd", &[1]) };
        assert!(ngram.product().is_err());
    }

    #[test]
    fn adaptive_drafts_stand_beside_fixed_ones() {
        let both = Axes { adaptive: vec![false, true], ..axes("block", &[1]) };
        let product = both.product().unwrap();
        assert_eq!(names(&product)[1..3], ["small, block, 1x4", "small, block, 1x4, adaptive"]);
        assert_eq!(product.settings[2].label(), "block 4 adaptive");
    }

    #[test]
    fn every_setting_comes_once_a_turn_and_first_as_often_as_any_other() {
        let mut firsts = vec![0; 5];
        for turn in 0..10 {
            let order: Vec<usize> = turns(5, turn).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4]);
            firsts[order[0]] += 1;
        }
        assert_eq!(firsts, [2; 5]);
    }

    #[test]
    fn tasks_take_turns() {
        let prompt = |id: &str, task: &str| Prompt {
            id: id.to_owned(),
            task: task.to_owned(),
            ..Prompt::of_user("")
        };
        let all = vec![
            prompt("1", "a"),
            prompt("2", "a"),
            prompt("3", "a"),
            prompt("4", "b"),
            prompt("5", "c"),
        ];
        let tasks = ["b".to_owned(), "a".to_owned()];
        let ids: Vec<String> = spread(all, &tasks, 2).into_iter().map(|it| it.id).collect();
        assert_eq!(ids, ["4", "1", "2"]);
    }

    #[test]
    fn a_run_ends_when_it_is_precise_or_out_of_repeats_or_time() {
        let stop = Stop { repeats: 4, precision: 0.05, time_limit_s: 100.0 };
        let after = |repeats, reach, elapsed_s| {
            stop.rule(&Progress { repeats, reach, elapsed_s, repeat_s: 20.0 })
        };
        assert_eq!(after(2, 0.04, 40.0), Some(Ended::Precise));
        assert_eq!(after(1, 0.04, 20.0), None, "one repeat cannot know its own noise");
        assert_eq!(after(3, 0.06, 60.0), None);
        assert_eq!(after(4, 0.06, 80.0), Some(Ended::Repeats));
        assert_eq!(after(3, f64::INFINITY, 81.0), Some(Ended::Time));
    }

    #[test]
    fn the_first_repeat_leaves_time_for_the_second() {
        let stop = Stop { repeats: 5, precision: 0.05, time_limit_s: 100.0 };
        assert!(stop.room_for_prompt(0, 0.0, 1000.0), "one prompt at least");
        assert!(stop.room_for_prompt(3, 30.0, 30.0), "two repeats of four take 80");
        assert!(!stop.room_for_prompt(4, 40.0, 45.0), "two of five take 100, loading took 5");
        let once = Stop { repeats: 1, ..stop };
        assert!(once.room_for_prompt(8, 80.0, 85.0) && !once.room_for_prompt(9, 90.0, 95.0));
    }

    #[test]
    fn drafters_may_propose_together() {
        assert_eq!("ngram+suffix".parse(), Ok(Team(vec![DrafterKind::Ngram, DrafterKind::Suffix])));
        assert_eq!("none".parse(), Ok(Team(Vec::new())));
        assert!("ngram+ngram".parse::<Team>().unwrap_err().contains("twice"));
        assert!("eagle".parse::<Team>().is_err());
    }
}

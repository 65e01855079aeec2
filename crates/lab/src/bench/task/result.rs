//! What answers come to: how often a setting was right, beside plain decoding on the same problems.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::paired::Paired;
use super::{Answer, Record};
use crate::bench::interval::Interval;

/// Where plain decoding is right less often, a lossy mode has too little to lose.
const INFORMATIVE: f64 = 0.2;

/// What a setting came to at a temperature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TaskResult {
    /// The setting's name.
    pub(super) setting: String,
    /// Its temperature.
    pub(super) temperature: f32,
    /// Problems that it and plain decoding both answered.
    pub(super) problems: usize,
    /// Its share of right answers.
    pub(super) accuracy: f64,
    /// Plain decoding's, of the same problems.
    pub(super) plain_accuracy: f64,
    /// Whether plain decoding is right often enough for the difference to say anything.
    pub(super) informative: bool,
    /// Its accuracy less plain decoding's; null for plain decoding itself.
    pub(super) difference: Option<Interval>,
    /// The share of problems that both gave the same number for; null for plain decoding itself.
    pub(super) same: Option<f64>,
    /// Outputs that were cut off.
    pub(super) unfinished: usize,
    /// Total variation spent per token, of a lossy mode that says so.
    pub(super) spent: Option<f64>,
}

/// Every setting at every temperature that has an answer.
pub(super) fn results(record: &Record, answers: &[Answer]) -> Vec<TaskResult> {
    let mut all = Vec::new();
    for temperature in &record.config.temperatures {
        let here: Vec<&Answer> =
            answers.iter().filter(|it| it.temperature == *temperature).collect();
        for setting in 0..record.config.settings.len() {
            all.extend(result(record, &here, setting));
        }
    }
    all
}

fn result(record: &Record, answers: &[&Answer], index: usize) -> Option<TaskResult> {
    let setting = &record.config.settings[index];
    let plain = setting.plain.unwrap_or(index);
    let of = |setting, problem| {
        answers.iter().find(|it| (it.setting, it.problem) == (setting, problem)).copied()
    };
    let both: Vec<(&Answer, &Answer)> = (0..record.answers.len())
        .filter_map(|problem| of(index, problem).zip(of(plain, problem)))
        .collect();
    let (own, _) = both.first()?;
    let right = |it: &Answer| it.number.as_ref() == Some(&record.answers[it.problem]);
    let count = |holds: &dyn Fn(&Answer, &Answer) -> bool| {
        both.iter().filter(|(own, plain)| holds(own, plain)).count()
    };
    let paired = Paired {
        problems: both.len(),
        first: count(&|own, plain| right(plain) && !right(own)),
        second: count(&|own, plain| right(own) && !right(plain)),
    };
    let share = |count: usize| count as f64 / both.len() as f64;
    let plain_accuracy = share(count(&|_, plain| right(plain)));
    let compared = setting.plain.is_some();
    let tokens: u64 = both.iter().map(|(own, _)| own.tokens).sum();
    let spent: Option<f64> = both.iter().map(|(own, _)| own.spent).sum();
    Some(TaskResult {
        setting: setting.name.clone(),
        temperature: own.temperature,
        problems: both.len(),
        accuracy: share(count(&|own, _| right(own))),
        plain_accuracy,
        informative: plain_accuracy >= INFORMATIVE,
        difference: paired.difference().filter(|_| compared),
        same: compared.then(|| {
            share(count(&|own, plain| own.number.is_some() && own.number == plain.number))
        }),
        unfinished: count(&|own, _| !own.ended),
        spent: spent.filter(|_| tokens > 0).map(|sum| sum / tokens as f64),
    })
}

/// A line without the setting's name. That there is no loss is never said.
impl fmt::Display for TaskResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let problems = self.problems;
        write!(f, "{:>7} of {problems} right", percent(self.accuracy))?;
        let ends = self.difference.as_ref().and_then(|it| it.low.zip(it.high));
        let Some((low, high)) = ends else { return Ok(()) };
        if self.informative {
            let (low, high) = (100.0 * low, 100.0 * high);
            write!(f, "; between {low:+.1} and {high:+.1} points of plain decoding (95 %)")?;
        } else {
            let plain = percent(self.plain_accuracy);
            write!(f, "; not informative: plain decoding is right in {plain}, below 20 %")?;
        }
        self.same.map_or(Ok(()), |same| write!(f, "; {} the same answer", percent(same)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let config = crate::bench::sample::config();
        let answers = (0..5).map(|it: usize| it.to_string()).collect();
        Record { task: "gsm8k".to_owned(), file: None, answers, config }
    }

    /// A setting's answers: the right number, another, or none.
    fn answers(setting: usize, said: &str) -> Vec<Answer> {
        let answer = |(problem, letter): (usize, char)| Answer {
            problem,
            setting,
            temperature: 1.0,
            number: match letter {
                'r' => Some(problem.to_string()),
                'w' => Some("99".to_owned()),
                'v' => Some("98".to_owned()),
                _ => None,
            },
            ended: letter != '-',
            tokens: 10,
            spent: (setting > 0).then_some(0.2),
            text: String::new(),
        };
        said.chars().enumerate().map(answer).collect()
    }

    #[test]
    fn pairs_are_counted_problem_by_problem() {
        let all = [answers(0, "rrwrw"), answers(1, "rwww-")].concat();
        let results = results(&record(), &all);
        let [plain, own] = results.as_slice() else { panic!("{results:?}") };
        assert_eq!((plain.accuracy, plain.difference, plain.same), (0.6, None, None));
        assert_eq!((own.accuracy, own.plain_accuracy, own.problems), (0.2, 0.6, 5));
        let difference = own.difference.unwrap();
        assert!((difference.value + 0.4).abs() < 1e-12);
        assert_eq!((own.same, own.unfinished), (Some(0.4), 1), "no answer is the same as no other");
        assert_eq!((plain.spent, own.spent), (None, Some(0.02)));
        let line = own.to_string();
        assert!(line.contains("20.0 % of 5 right; between -"), "{line}");
        assert!(
            line.ends_with("points of plain decoding (95 %); 40.0 % the same answer"),
            "{line}"
        );
    }

    #[test]
    fn problems_without_a_plain_answer_are_left_out() {
        let all = [answers(0, "rr"), answers(1, "rrr")].concat();
        assert_eq!(results(&record(), &all)[1].problems, 2);
        assert_eq!(results(&record(), &answers(1, "rrr")), []);
    }

    #[test]
    fn nobody_is_told_that_nothing_was_lost() {
        let same = [answers(0, "rrrrw"), answers(1, "rrrrw")].concat();
        let line = results(&record(), &same)[1].to_string();
        assert!(line.contains("between -43.4 and +43.4 points"), "{line}");
        assert!(!line.contains("no loss"));
        let none = [answers(0, "wwwww"), answers(1, "wwwww")].concat();
        let line = results(&record(), &none)[1].to_string();
        assert!(line.contains("not informative") && !line.contains("between"), "{line}");
    }
}

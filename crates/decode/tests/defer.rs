//! Tokens that are committed before the target has scored them, by enumeration: every random choice of
//! every text is replayed with its probability, the books are compared with rows written down from the
//! models, and the law of the output with the target's own.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::collections::HashMap;
use std::sync::Arc;

use forerun_decode::*;
use forerun_verify::check::outcomes;
use forerun_verify::{Chance, Deferral, LossyDeferRule, Philox, Random, Spend};

const VOCAB: usize = 3;
/// Ends a text.
const END: Token = Token(2);
const ROUNDING: f64 = 1e-12;
const CONTEXT_LEN: usize = 96;

type Law = HashMap<Vec<Token>, f64>;

fn toy(seed: u64) -> ToyModel {
    ToyModel { vocab_len: VOCAB, order: 3, seed, spread: 1.5 }
}

fn drafter() -> ToyModel {
    toy(77)
}

fn prompt() -> Vec<Token> {
    [0, 1, 0, 2, 0, 1].map(Token).to_vec()
}

struct Letters {
    has_end: bool,
}

impl Tokenizer for Letters {
    fn vocab_len(&self) -> usize {
        VOCAB
    }

    fn tokenize(&self, _: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(Vec::new())
    }

    fn start(&self) -> Option<Token> {
        None
    }

    fn is_end(&self, token: Token) -> bool {
        self.has_end && token == END
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.push(b'a' + u8::try_from(token.0).unwrap());
    }
}

/// Says what a function of what is known says, whatever happened.
#[derive(Debug, Clone, Copy)]
struct Says(fn(&Foreseen) -> f64);

impl Risk for Says {
    fn predict(&self, token: &Foreseen) -> f64 {
        (self.0)(token)
    }

    fn learn(&mut self, _: &Foreseen, _: f64) {}
}

const CARELESS: Says = Says(|_| 0.0);
const ANXIOUS: Says = Says(|_| 1.0);
/// Looks at the token, but not at its risk.
const LIKES_LIKELY: Says = Says(|token| if token.probability > 0.4 { 0.01 } else { 1.0 });
/// The worst tokens first.
const PERVERSE: Says = Says(|token| 0.3 * token.probability);
const BROKEN: Says = Says(|token| if token.unscored == 1 { f64::NAN } else { -token.probability });

#[derive(Clone)]
struct Case {
    deferral: Deferral,
    risk: Option<Says>,
    sampling: Sampling,
    len: usize,
    draft_len: usize,
    has_end: bool,
    stop: Option<&'static str>,
}

impl Case {
    fn new(per_token: f64, stretch: u8, risk: Says) -> Self {
        Self {
            deferral: Deferral::new(per_token).unwrap().with_stretch(stretch),
            risk: Some(risk),
            sampling: Sampling::unshaped(),
            len: 5,
            draft_len: 2,
            has_end: false,
            stop: None,
        }
    }

    fn policy(&self) -> DraftPolicy {
        let rule = Arc::new(LossyDeferRule { deferral: self.deferral });
        DraftPolicy::drafted(vec![DrafterId(0)], self.draft_len, rule)
    }

    fn begun(&self, slot: Slot) -> Generation {
        let mut sequence = Sequence::new(slot, self.sampling.clone());
        sequence.begin(prompt(), self.len);
        if let Some(risk) = self.risk {
            sequence.foresee(Box::new(risk));
        }
        let vocab = Arc::new(Letters { has_end: self.has_end });
        let stops = StopStrings::new(self.stop.map(str::to_owned)).unwrap();
        Generation::new(sequence, self.policy(), vocab, &stops, 1)
    }

    fn written(&self, seed: u64, chance: &mut dyn Chance) -> Book {
        let mut decoder = decoder(seed, 1);
        let mut generation = self.begun(Slot(0));
        let mut book = Book::default();
        let plan = generation.plan();
        while generation.finish().is_none() {
            let mut turn = generation.turn(&plan, Limits::default());
            turn.chance = &mut *chance;
            let mut round = decoder.round(&mut [turn]).unwrap();
            let commit = round.commits.pop().unwrap();
            book.add(&generation, &commit);
            generation.committed(commit, round.times, CONTEXT_LEN);
        }
        book.end(&generation);
        book
    }

    /// The target's own distribution after some output.
    fn row(&self, model: ToyModel, output: &[Token]) -> forerun_verify::Dist {
        let committed = [prompt().as_slice(), output].concat();
        self.sampling.row(&mut model.logits(&committed), &committed, &[]).unwrap()
    }

    /// What a token of an output that was committed unscored really spent.
    fn real(&self, seed: u64, output: &[Token], place: usize) -> f64 {
        let (before, token) = (&output[..place], output[place]);
        let ratio =
            self.row(toy(seed), before).prob(token) / self.row(drafter(), before).prob(token);
        1.0 - ratio.min(1.0)
    }

    /// Every text: its books are those of the rows, and the bound is kept.
    fn check_books(&self, seed: u64) -> Seen {
        let mut seen = Seen::default();
        outcomes(
            |chance| self.written(seed, chance),
            |probability, book| self.check_book(seed, probability, &book, &mut seen),
        );
        seen
    }

    fn check_book(&self, seed: u64, probability: f64, book: &Book, seen: &mut Seen) {
        let output = &book.output;
        let mut account = 0.0;
        let mut sum = 0.0;
        let mut unscored = 0;
        for event in &book.events {
            match *event {
                Event::Deferred(place) => {
                    // Sums of spends may round to either side of zero; a new account is exactly that.
                    let open = account > 0.0 || (account != 0.0 && account > -ROUNDING);
                    assert!(open, "token {place} was deferred on an account of {account}");
                    unscored += 1;
                    assert!(unscored <= self.deferral.stretch(), "{unscored} unscored tokens");
                }
                // What follows the end of a text is dropped, and nobody pays for it.
                Event::Scored { place, .. } if place >= output.len() => {}
                Event::Scored { place, spent } => {
                    let was_deferred = book.events.contains(&Event::Deferred(place));
                    let real = if was_deferred { self.real(seed, output, place) } else { 0.0 };
                    assert!((spent - real).abs() < ROUNDING, "token {place}: {spent}, not {real}");
                    account += self.deferral.per_token() - real;
                    sum += real;
                    unscored -= usize::from(was_deferred);
                }
            }
        }
        let scored =
            |event: &&Event| matches!(event, Event::Scored { place, .. } if *place < output.len());
        assert_eq!(book.events.iter().filter(scored).count(), output.len(), "all are scored");
        let most = self.deferral.per_token() * output.len() as f64 + self.deferral.stretch() as f64;
        assert!(sum <= most + ROUNDING, "{sum} of {most}");
        assert!((book.spending.sum - sum).abs() < ROUNDING);
        assert_eq!(book.spending.tokens, output.len() as u64);
        seen.sum += probability * sum;
        seen.most = seen.most.max(sum);
        seen.deferred += book.events.iter().filter(|it| matches!(it, Event::Deferred(_))).count();
        seen.without_target += book.without_target;
        *seen.law.entry(output.clone()).or_default() += probability;
    }

    /// Total variation from the target at each token, summed over what a text is expected to meet.
    fn distance(&self, seed: u64, law: &Law) -> f64 {
        let mut begun = Law::new();
        for (output, chance) in law {
            for len in 0..=output.len() {
                *begun.entry(output[..len].to_vec()).or_default() += chance;
            }
        }
        let mut sum = 0.0;
        for (output, chance) in &begun {
            let is_over = output.len() == self.len || (self.has_end && output.last() == Some(&END));
            if is_over {
                continue;
            }
            let row = self.row(toy(seed), output);
            for id in 0..VOCAB {
                let token = Token(u32::try_from(id).unwrap());
                let next = [output.as_slice(), &[token]].concat();
                let ours = begun.get(&next).copied().unwrap_or(0.0);
                sum += (ours - chance * row.prob(token)).abs() / 2.0;
            }
        }
        sum
    }
}

fn decoder(seed: u64, slots: usize) -> Decoder {
    let target = ToyEngine::new(toy(seed), CONTEXT_LEN).slots(slots);
    let draft = ModelDrafter::new(Box::new(ToyEngine::new(drafter(), CONTEXT_LEN).slots(slots)));
    Decoder::new(Box::new(target), vec![Box::new(draft)]).unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    /// The token at this place was committed unscored.
    Deferred(usize),
    /// It was scored, and spent so much.
    Scored { place: usize, spent: f64 },
}

/// What a text's rounds said of its tokens, in order.
#[derive(Debug, Default)]
struct Book {
    events: Vec<Event>,
    output: Vec<Token>,
    spending: Spending,
    /// Rounds without the target.
    without_target: usize,
}

impl Book {
    /// Takes over a round whose tokens are in the sequence.
    fn add(&mut self, generation: &Generation, commit: &Commit) {
        let len = generation.sequence().output().len() - commit.committed;
        self.events.extend((len..len + commit.deferred).map(Event::Deferred));
        let scored =
            |(place, spend): (usize, &Spend)| Event::Scored { place, spent: spend.distance };
        self.events.extend((len - commit.late..).zip(&commit.spent).map(scored));
        self.without_target += usize::from(commit.committed > 0 && commit.spent.is_empty());
    }

    /// Drops what came after the end.
    fn end(&mut self, generation: &Generation) {
        self.output = generation.sequence().output().to_vec();
        self.spending = generation.stats().spending.clone();
        let len = self.output.len();
        self.events.retain(|event| !matches!(event, Event::Deferred(place) if *place >= len));
    }
}

/// What all texts of a case had.
#[derive(Debug, Default)]
struct Seen {
    law: Law,
    /// What a text is expected to spend.
    sum: f64,
    /// The most that one spent.
    most: f64,
    deferred: usize,
    without_target: usize,
}

#[test]
fn every_text_pays_what_its_tokens_really_spent() {
    let mut most = 0.0_f64;
    for seed in 0..2 {
        for risk in [CARELESS, LIKES_LIKELY, PERVERSE, BROKEN] {
            for (per_token, stretch) in [(0.3, 2), (0.05, 3), (1.0, 16)] {
                let seen = Case::new(per_token, stretch, risk).check_books(seed);
                assert!(seen.deferred > 0, "{per_token} {stretch} {risk:?}");
                most = most.max(seen.most - per_token * 5.0);
            }
        }
    }
    // The stretch that the promise allows beside the account is needed.
    assert!(most > 0.0, "{most}");
}

#[test]
fn the_target_rests_while_a_stretch_goes_on() {
    let seen = Case::new(1.0, 16, CARELESS).check_books(0);
    assert!(seen.without_target > 0);
    let rounds = Case { len: 40, ..Case::new(1.0, 16, CARELESS) };
    let book = rounds.written(0, &mut Random(Philox::new(3)));
    assert!(book.without_target > 5, "{}", book.without_target);
}

#[test]
fn what_the_books_say_bounds_how_far_the_output_strays() {
    for seed in 0..2 {
        for risk in [CARELESS, LIKES_LIKELY, PERVERSE] {
            let case = Case { len: 4, ..Case::new(0.6, 3, risk) };
            let seen = case.check_books(seed);
            let distance = case.distance(seed, &seen.law);
            assert!(distance > 1e-3, "{risk:?}: nothing was lost");
            assert!(distance <= seen.sum + ROUNDING, "{risk:?}: {distance}, but {}", seen.sum);
        }
    }
}

#[test]
fn nothing_is_lost_where_nothing_is_deferred() {
    for case in
        [Case::new(1.0, 16, ANXIOUS), Case::new(0.0, 16, CARELESS), Case::new(1.0, 0, CARELESS)]
    {
        let case = Case { len: 4, ..case };
        let seen = case.check_books(1);
        assert_eq!(seen.deferred, 0);
        let distance = case.distance(1, &seen.law);
        assert!(distance < ROUNDING, "{distance}");
    }
}

#[test]
fn a_text_that_ends_in_a_stretch_is_scored_to_its_end() {
    let case = Case { has_end: true, ..Case::new(1.0, 16, CARELESS) };
    let seen = case.check_books(0);
    let distance = case.distance(0, &seen.law);
    assert!(distance <= seen.sum + ROUNDING, "{distance}, but {}", seen.sum);
    // A stop string ends a text as an end token does, also between two tokens of a stretch.
    Case { stop: Some("ba"), ..Case::new(1.0, 16, CARELESS) }.check_books(0);
}

#[test]
fn rows_are_shaped_by_the_tokens_before_them() {
    let penalised = Sampling {
        repeat_penalty: 1.4,
        presence_penalty: 0.6,
        frequency_penalty: 0.9,
        repeat_last_n: Some(4),
        logit_bias: vec![(Token(1), 0.7)],
        ..Sampling::unshaped()
    };
    for sampling in [penalised, Sampling { top_k: 2, ..Sampling::unshaped() }] {
        let case = Case { sampling, len: 4, ..Case::new(0.6, 3, CARELESS) };
        let seen = case.check_books(0);
        let distance = case.distance(0, &seen.law);
        assert!(distance <= seen.sum + ROUNDING, "{distance}, but {}", seen.sum);
    }
}

#[test]
fn at_temperature_zero_what_is_spent_is_how_many_tokens_are_not_the_best() {
    let case = Case { sampling: Sampling::greedy(), len: 60, ..Case::new(0.2, 4, CARELESS) };
    let mut all = 0.0;
    for seed in 0..6 {
        let book = case.written(seed, &mut Random(Philox::new(1)));
        case.check_book(seed, 1.0, &book, &mut Seen::default());
        let best = |place: usize| case.row(toy(seed), &book.output[..place]).likeliest().0;
        let others = (0..60).filter(|place| best(*place) != book.output[*place]);
        let Spending { sum, forgiven, .. } = &book.spending;
        assert_eq!(*forgiven, others.collect::<Vec<_>>());
        assert!((forgiven.len() as f64 - sum).abs() < 1e-9, "{sum}, {forgiven:?}");
        all += sum;
    }
    assert!(all > 2.0, "{all}");
}

/// The account is the text's own, and so is what it learns: another text beside it changes nothing,
/// whether the target runs for one, both or none of them.
#[test]
fn texts_that_share_passes_are_as_they_are_alone() {
    let case = Case { len: 60, risk: None, draft_len: 3, ..Case::new(0.3, 8, CARELESS) };
    let seeds = [5, 6];
    let alone = seeds.map(|seed| case.written(1, &mut Random(Philox::new(seed))));
    let mut decoder = decoder(1, 2);
    let mut both = [Slot(0), Slot(1)].map(|slot| case.begun(slot));
    let mut books = [Book::default(), Book::default()];
    let mut chances = seeds.map(|seed| Random(Philox::new(seed)));
    let plan = both[0].plan();
    let mut shared = 0;
    while both.iter().any(|it| it.finish().is_none()) {
        let mut going: Vec<usize> = (0..2).filter(|at| both[*at].finish().is_none()).collect();
        let parts = both.iter_mut().zip(&mut chances).filter(|(it, _)| it.finish().is_none());
        let turns = parts.map(|(generation, chance)| {
            let mut turn = generation.turn(&plan, Limits::default());
            turn.chance = chance;
            turn
        });
        let round = decoder.round(&mut turns.collect::<Vec<_>>()).unwrap();
        let ran = round.passes.target.map_or(0, |pass| pass.sequences);
        shared += usize::from(going.len() == 2 && ran == 1);
        for (commit, at) in round.commits.into_iter().zip(going.drain(..)) {
            books[at].add(&both[at], &commit);
            both[at].committed(commit, round.times, CONTEXT_LEN);
        }
    }
    for ((book, generation), alone) in books.iter_mut().zip(&both).zip(&alone) {
        book.end(generation);
        assert_eq!((&book.output, &book.events), (&alone.output, &alone.events));
    }
    assert!(shared > 0, "the target never ran for one of two");
}

#[test]
fn what_is_learnt_defers_where_drafts_are_good_and_not_where_they_are_bad() {
    let deferred = |draft: ToyModel| {
        let target = Box::new(ToyEngine::new(toy(1), 2048));
        let drafter = ModelDrafter::new(Box::new(ToyEngine::new(draft, 2048)));
        let mut decoder = Decoder::new(target, vec![Box::new(drafter)]).unwrap();
        let case = Case { len: 1000, risk: None, draft_len: 4, ..Case::new(0.05, 16, CARELESS) };
        let mut generation = case.begun(Slot(0));
        while generation.next(&mut decoder).unwrap().is_some() {}
        let stats = generation.stats();
        let mode: LossyMode = "defer:0.05".parse().unwrap();
        assert!(mode.is_kept(&stats.spending), "{:?}", stats.spending);
        (stats.rounds, stats.spending.mean())
    };
    let (good, bad) = (deferred(ToyModel { spread: 1.4, ..toy(1) }), deferred(drafter()));
    let lossless = 1000 / 5;
    assert!(good.0 < lossless, "{good:?}: fewer passes than any lossless rule could have");
    assert!(good.1 < 0.07 && bad.1 < 0.07, "{good:?} {bad:?}");
}

#[test]
fn a_constraint_and_log_probabilities_are_never_deferred() {
    let case = Case { len: 40, ..Case::new(1.0, 16, CARELESS) };
    let mut decoder = decoder(0, 1);
    let mut sequence = Sequence::new(Slot(0), Sampling::unshaped());
    sequence.foresee(Box::new(CARELESS));
    sequence.logprobs = Some(1);
    sequence.begin(prompt(), 40);
    let (policy, limits) = (case.policy(), Limits::default());
    let (plan, chance) = (policy.plan(), &mut Random(Philox::new(1)));
    while sequence.wanted() > 0 {
        let turn = Turn { sequence: &mut sequence, policy: &policy, plan: &plan, limits, chance };
        let round = decoder.round(&mut [turn]).unwrap();
        assert_eq!(round.commits[0].deferred, 0);
        assert_eq!(round.commits[0].logprobs.len(), round.commits[0].committed);
    }
}

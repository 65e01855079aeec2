//! The drafters without a model, each against a search that knows no index: whatever a slot held
//! before, they draft what the definition says, and their time does not grow with the sequence.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic")]

#[path = "drafters/edit.rs"]
mod edit;
#[path = "drafters/ngram.rs"]
mod ngram;
#[path = "drafters/suffix.rs"]
mod suffix;

use std::time::{Duration, Instant};

use forerun_decode::{DraftRequest, Drafter, DrafterKind, Draw, Price, Sampling, Slot, Token};
use forerun_verify::{Chance, Draft, DraftBuilder, Node, Scheme, Weights};
use proptest::prelude::*;

/// What happens to the sequence in a slot between two rounds.
#[derive(Debug, Clone)]
enum Event {
    Grow(Vec<Token>),
    Cut(usize),
    Replace(Vec<Token>),
    /// As it is, it ends.
    End,
}

/// Tokens of a small vocabulary, so that they repeat.
fn tokens(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Token>> {
    (1u32..4).prop_flat_map(move |vocab_len| {
        prop::collection::vec((0..vocab_len).prop_map(Token), len.clone())
    })
}

/// Events in one of two slots, one after the other.
fn events() -> impl Strategy<Value = Vec<(usize, Event)>> {
    let event = prop_oneof![
        4 => tokens(0..6).prop_map(Event::Grow),
        1 => (0usize..12).prop_map(Event::Cut),
        1 => tokens(0..24).prop_map(Event::Replace),
        1 => Just(Event::End),
    ];
    prop::collection::vec((0usize..2, event), 1..24)
}

impl Event {
    fn happen(&self, sequence: &mut Vec<Token>) {
        match self {
            Self::Grow(tokens) => sequence.extend(tokens),
            Self::Cut(len) => sequence.truncate(*len),
            Self::Replace(tokens) => sequence.clone_from(tokens),
            Self::End => {}
        }
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn slot(index: usize) -> Slot {
    Slot(u32::try_from(index).unwrap())
}

/// Drafters of fixed tokens never draw.
struct NoChance;

impl Chance for NoChance {
    fn coin(&mut self, _: f64) -> bool {
        panic!("nothing is drawn")
    }

    fn pick(&mut self, _: &dyn Weights) -> usize {
        panic!("nothing is drawn")
    }
}

/// What a drafter adds to a tree, as the tokens of its last node, and whether it failed.
fn drafted(
    drafter: &mut dyn Drafter,
    tokens: &[Token],
    prompt_len: usize,
    tree: DraftBuilder,
) -> (Vec<Token>, Option<String>) {
    let mut chance = NoChance;
    let mut requests = [DraftRequest {
        slot: Slot(0),
        tokens,
        prompt_len,
        sampling: &Sampling::default(),
        constraint: None,
        width: 1,
        price: Price::default(),
        drafter_prefill_max: None,
        len_max: 4,
        draw: Draw::Chance(&mut chance),
        tree,
        fixed_paths: Vec::new(),
        gate: None,
        failure: None,
    }];
    drafter.draft(&mut requests).unwrap();
    let [request] = requests;
    let draft = request.tree.finish().unwrap();
    let last = draft.nodes().last().map_or(Node::ROOT, |(node, ..)| node);
    (draft.path_to(last), request.failure.map(|failure| failure.to_string()))
}

/// Texts of `len` tokens that are hard for an index: all different, all the same, of short and of
/// long periods, of few tokens in disorder, and of sentences that come again.
fn hard_texts(len: u32) -> Vec<(&'static str, Vec<Token>)> {
    let scramble = |n: u32| n.wrapping_mul(2_654_435_761) >> 16;
    let text = |id: &dyn Fn(u32) -> u32| (0..len).map(|at| Token(id(at))).collect();
    vec![
        ("different", text(&|at| at)),
        ("the same", text(&|_| 7)),
        ("short period", text(&|at| at % 3)),
        ("long period", text(&|at| scramble(at % 5_000))),
        ("disorder", text(&|at| scramble(at ^ scramble(at)) % 2)),
        ("sentences", text(&|at| scramble(scramble(at / 16) % 500 * 16 + at % 16) % 30_000)),
    ]
}

/// Feeds sequences one token each round. A drafter that reads a sequence again in each round takes
/// thirty times as long in the last rounds as it did in early ones. The fastest of many stretches
/// are compared: other work on the machine only adds.
fn takes_no_longer_with_time(mut guess: impl FnMut(Slot, &[Token]) -> Vec<Token>) {
    let len = 200_000;
    for (index, (name, text)) in hard_texts(len).into_iter().enumerate() {
        let (mut drafted, mut stretches) = (0, Vec::new());
        for first in (1..=text.len()).step_by(1_000) {
            let started = Instant::now();
            for end in first..first + 1_000 {
                drafted += guess(slot(index), &text[..end]).len();
                // Another sequence in another slot is none of its business.
                guess(slot(99), &text[..1]);
            }
            stretches.push(started.elapsed());
        }
        let fastest = |of: &[Duration]| of.iter().min().unwrap().as_secs_f64();
        let (early, late) = (fastest(&stretches[5..25]), fastest(&stretches[150..]));
        eprintln!(
            "{name}: {drafted} drafted tokens in {:?}, {early} then {late} s",
            stretches.iter().sum::<Duration>()
        );
        assert!(
            late < 8.0 * early,
            "{name}: a thousand rounds took {early} s early and {late} s late"
        );
    }
}

#[test]
fn a_path_is_added_beside_what_others_drafted() {
    let tokens = [1, 2, 3, 1, 2].map(Token);
    for drafter in every_drafter() {
        let mut drafter = drafter;
        let wanted = drafted(&mut *drafter, &tokens, 5, Draft::start(Scheme::Independent, 9));
        assert_eq!(wanted.0[..2], [3, 1].map(Token), "{}", drafter.kind().name());
        let mut tree = Draft::start(Scheme::Independent, 9);
        let other = tree.fixed(Node::ROOT, Token(8)).unwrap();
        tree.fixed(other, Token(8)).unwrap();
        assert_eq!(drafted(&mut *drafter, &tokens, 5, tree), wanted, "{}", drafter.kind().name());
    }
}

#[test]
fn tokens_the_target_does_not_know_are_a_failure_of_that_sequence() {
    let tokens = [1, 2, 3, 1, 2].map(Token);
    for mut drafter in every_drafter() {
        let (path, failure) =
            drafted(&mut *drafter, &tokens, 5, Draft::start(Scheme::Independent, 3));
        assert_eq!(path, [], "{}", drafter.kind().name());
        assert_eq!(failure.as_deref(), Some("token 3 is outside a vocabulary of 3"));
    }
}

#[test]
fn a_tree_that_has_no_fixed_tokens_is_a_failure_of_that_sequence() {
    let tokens = [1, 2, 3, 1, 2].map(Token);
    for mut drafter in every_drafter() {
        let (path, failure) = drafted(&mut *drafter, &tokens, 5, Draft::start(Scheme::Paths, 9));
        assert_eq!((path, failure.is_some()), (vec![], true), "{}", drafter.kind().name());
    }
}

#[test]
fn names_are_those_of_the_flags() {
    let names: Vec<_> = every_drafter().iter().map(|drafter| drafter.kind().name()).collect();
    assert_eq!(names, ["ngram", "suffix", "edit"]);
}

/// Each of them drafts 3, 1 after 1, 2, 3, 1, 2.
fn every_drafter() -> Vec<Box<dyn Drafter>> {
    let mut edit = forerun_decode::EditDrafter::default();
    edit.predict(Slot(0), &[3, 1].map(Token));
    // Of four tokens asked for, the n-gram's go on through its own; two are left by the prediction
    // and by the length of the suffix.
    let ngram = TwoOnly(forerun_decode::NgramDrafter::default());
    vec![Box::new(ngram), Box::<forerun_decode::SuffixDrafter>::default(), Box::new(edit)]
}

/// Asks a drafter for two tokens at most.
struct TwoOnly(forerun_decode::NgramDrafter);

impl Drafter for TwoOnly {
    fn kind(&self) -> DrafterKind {
        self.0.kind()
    }

    fn draft(
        &mut self,
        requests: &mut [DraftRequest<'_>],
    ) -> Result<(), forerun_decode::DraftFailure> {
        requests.iter_mut().for_each(|request| request.len_max = 2);
        self.0.draft(requests)
    }
}

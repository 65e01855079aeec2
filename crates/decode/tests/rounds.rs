//! Rounds and generations as a caller sees them: where a sequence ends, how failures are reported,
//! and that sequences do not disturb each other.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use forerun_decode::*;
use forerun_verify::{
    BlockRule, Chance, CoupledRule, Dist, Node, Noise, Philox, PooledRule, Random,
};

const VOCAB: usize = 5;
/// The toy's end token.
const END: Token = Token(4);

fn toy(seed: u64) -> ToyModel {
    ToyModel { vocab_len: VOCAB, order: 3, seed, spread: 2.0 }
}

/// Tokens are the letters a to d, and an end.
struct Letters;

impl Tokenizer for Letters {
    fn vocab_len(&self) -> usize {
        VOCAB
    }
    fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(text.bytes().map(|byte| Token(u32::from(byte - b'a'))).collect())
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        token == END
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.push(b'a' + u8::try_from(token.0).unwrap());
    }
}

fn prompt() -> Vec<Token> {
    Letters.tokenize("abcab", Special::AsText).unwrap()
}

fn no_end() -> Sampling {
    Sampling { logit_bias: vec![(END, f32::NEG_INFINITY)], ..Sampling::unshaped() }
}

fn drafter(seed: u64) -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(Box::new(ToyEngine::new(toy(seed), 64).slots(4))))
}

fn drafted(len: usize) -> DraftPolicy {
    DraftPolicy::drafted(vec![DrafterId(0)], len, Arc::new(BlockRule))
}

/// A sequence, what may be drafted for it, and what the next round does.
struct Request {
    sequence: Sequence,
    policy: DraftPolicy,
    plan: Plan,
    limits: Limits,
}

impl Request {
    fn new(slot: u32, sampling: Sampling, policy: DraftPolicy) -> Self {
        let sequence = Sequence::new(Slot(slot), sampling);
        Self { sequence, plan: policy.plan(), policy, limits: Limits::default() }
    }

    fn turn<'a>(&'a mut self, chance: &'a mut dyn Chance) -> Turn<'a> {
        let Self { sequence, policy, plan, limits } = self;
        Turn { sequence, policy, plan, limits: *limits, chance }
    }

    /// A round for it alone. Drafters that fail are left out of later ones.
    fn round(
        &mut self,
        decoder: &mut Decoder,
        chance: &mut dyn Chance,
    ) -> Result<Round, DecodeError> {
        let round = decoder.round(&mut [self.turn(chance)])?;
        let dropped: Vec<DrafterId> =
            round.commits[0].dropped.iter().map(|it| it.drafter).collect();
        self.plan = self.plan.clone().without(&dropped);
        Ok(round)
    }
}

impl Deref for Request {
    type Target = Sequence;

    fn deref(&self) -> &Sequence {
        &self.sequence
    }
}

impl DerefMut for Request {
    fn deref_mut(&mut self) -> &mut Sequence {
        &mut self.sequence
    }
}

fn request(slot: u32, policy: DraftPolicy, output_len: usize) -> Request {
    let mut request = Request::new(slot, no_end(), policy);
    request.begin(prompt(), output_len);
    request
}

fn decoder(drafters: Vec<Box<dyn Drafter>>, context_len: usize) -> Decoder {
    Decoder::new(Box::new(ToyEngine::new(toy(1), context_len).slots(4)), drafters).unwrap()
}

/// Runs a sequence to its end.
fn run(decoder: &mut Decoder, generation: &mut Generation) -> (String, Vec<Chunk>) {
    let (mut text, mut chunks) = (String::new(), Vec::new());
    while let Some(chunk) = generation.next(decoder).unwrap() {
        chunk.pieces.iter().for_each(|piece| text.push_str(&piece.text));
        chunks.push(chunk);
    }
    (text, chunks)
}

fn generation(request: Request, stops: &[&str], seed: u64) -> Generation {
    let stops = StopStrings::new(stops.iter().copied()).unwrap();
    Generation::new(request.sequence, request.policy, Arc::new(Letters), &stops, seed)
}

#[test]
fn a_sequence_gets_as_many_tokens_as_were_wanted() {
    for len in 1..20 {
        let mut decoder = decoder(vec![drafter(1)], 64);
        let mut text = generation(request(0, drafted(4), len), &[], 7);
        let (written, chunks) = run(&mut decoder, &mut text);
        assert_eq!((written.len(), text.sequence().output().len()), (len, len));
        assert_eq!(text.finish(), Some(Finish::Length));
        assert_eq!(text.stats().output_len, len as u64);
        let pieces: usize = chunks.iter().map(|chunk| chunk.pieces.len()).sum();
        assert_eq!(pieces, len);
    }
}

#[test]
fn the_end_token_ends_a_sequence_inside_a_block() {
    let mut inside = 0;
    for seed in 0..50 {
        let mut ending = Request::new(0, Sampling::unshaped(), drafted(6));
        ending.begin(prompt(), 40);
        let mut text = generation(ending, &[], seed);
        let (written, chunks) = run(&mut decoder(vec![drafter(1)], 64), &mut text);
        let tokens = text.sequence().output();
        let end = tokens.iter().position(|token| *token == END);
        assert_eq!(end.is_some(), text.finish() == Some(Finish::End), "seed {seed}");
        if let Some(end) = end {
            assert_eq!((tokens.len(), written.len()), (end + 1, end), "nothing after the end");
            let last = &chunks.last().unwrap().pieces;
            inside += usize::from(last.last().unwrap().origin == Origin::Accepted);
        }
    }
    assert!(inside > 10, "an accepted end token ends the sequence before the block does: {inside}");
}

#[test]
fn a_stop_string_ends_a_sequence_inside_a_block_and_is_not_shown() {
    let mut inside = 0;
    for seed in 0..50 {
        let mut text = generation(request(0, drafted(6), 40), &["cab", "dd"], seed);
        let (written, chunks) = run(&mut decoder(vec![drafter(1)], 64), &mut text);
        assert!(!written.contains("cab") && !written.contains("dd"), "{written}");
        let said: String =
            text.sequence().output().iter().map(|token| b"abcde"[token.index()] as char).collect();
        match text.finish() {
            Some(Finish::Stop) => {
                assert!(said.ends_with("cab") || said.ends_with("dd"), "{said}");
                assert!(said.starts_with(&written));
                let stop = text.stopped_by().unwrap();
                assert_eq!(said, written + stop);
                let committed = chunks.last().unwrap().pieces.last().unwrap().origin;
                inside += usize::from(committed == Origin::Accepted);
            }
            finish => {
                assert_eq!((finish, &said), (Some(Finish::Length), &written));
                assert_eq!(text.stopped_by(), None);
            }
        }
    }
    assert!(inside > 10, "{inside}");
}

#[test]
fn a_sequence_that_wants_no_token_ends_once_its_prompt_is_prefilled() {
    for pass_len in 1..=prompt().len() {
        let mut decoder = decoder(vec![drafter(1)], 64);
        let mut text = generation(request(0, drafted(4), 0), &[], 7);
        let limits = Limits { prefill_max: pass_len, ..Limits::default() };
        let mut rounds = 0;
        while text.finish().is_none() {
            assert!(decoder.uncached_len(text.sequence()) > 0, "it goes on for something");
            let plan = text.plan();
            let mut round = decoder.round(&mut [text.turn(&plan, limits)]).unwrap();
            let chunk = text.committed(round.commits.pop().unwrap(), round.times, 64);
            assert!(chunk.pieces.is_empty());
            rounds += 1;
        }
        assert_eq!(
            (text.finish(), rounds),
            (Some(Finish::Length), prompt().len().div_ceil(pass_len))
        );
        assert_eq!(decoder.cached_tokens(Slot(0)), prompt());
        assert_eq!(text.stats().output_len, 0);
    }
}

/// [`Letters`] whose c is a space and whose d is a line break.
struct Lines;

impl Tokenizer for Lines {
    fn vocab_len(&self) -> usize {
        VOCAB
    }
    fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
        Letters.tokenize(text, special)
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        token == END
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.push(b"ab \ne"[token.index()]);
    }
}

#[test]
fn a_sequence_in_a_hurry_ends_with_its_line_also_inside_a_block() {
    let mut inside = 0;
    for seed in 0..50 {
        let request = request(0, drafted(6), 40);
        let stops = StopStrings::default();
        let mut text =
            Generation::new(request.sequence, request.policy, Arc::new(Lines), &stops, seed);
        let mut decoder = decoder(vec![drafter(1)], 64);
        let first = text.next(&mut decoder).unwrap().unwrap();
        text.hurry();
        let before: String = first.pieces.iter().map(|piece| piece.text.as_str()).collect();
        let (rest, chunks) = run(&mut decoder, &mut text);
        assert_eq!(text.finish(), Some(Finish::Length));
        let ends_late = text.sequence().output().len() == 40;
        assert_eq!(rest.matches('\n').count(), usize::from(!ends_late), "{before:?} {rest:?}");
        assert!(ends_late || rest.ends_with('\n'), "{rest:?}");
        let last = chunks.last().unwrap().pieces.last().unwrap().origin;
        inside += usize::from(last == Origin::Accepted);
    }
    assert!(inside > 10, "{inside}");
}

#[test]
fn a_line_that_is_indented_too_little_ends_a_sequence_inside_a_block() {
    let mut cut = 0;
    for seed in 0..50 {
        let request = request(0, drafted(6), 40);
        let reading = Reading::new(Arc::new(Lines), &StopStrings::default()).indented(1);
        let mut text = Generation::resumed(request.sequence, request.policy, reading, seed);
        let (written, _) = run(&mut decoder(vec![drafter(1)], 64), &mut text);
        assert_eq!(text.finish(), Some(Finish::Length));
        let tokens = text.sequence().output();
        let said: String = tokens.iter().map(|it| b"ab \ne"[it.index()] as char).collect();
        let lines = written.split('\n').skip(1);
        assert!(lines.clone().all(|line| line.is_empty() || line.starts_with(' ')), "{written:?}");
        if tokens.len() < 40 {
            // The token that shows it is the last.
            assert_eq!(said.len(), written.len() + 1, "{said:?}");
            cut += 1;
        }
    }
    assert!(cut > 10, "{cut}");
}

#[test]
fn a_context_that_fills_up_ends_the_sequence() {
    for context_len in 8..20 {
        let mut text = generation(request(0, drafted(6), 100), &[], 3);
        let (written, _) = run(&mut decoder(vec![drafter(1)], context_len), &mut text);
        assert_eq!(text.finish(), Some(Finish::Context));
        // The last token is drawn from the last row the context has room for.
        assert_eq!(written.len() + prompt().len(), context_len + 1);
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_refused() {
    let mut text = generation(request(0, DraftPolicy::plain(), 10), &[], 3);
    let error = text.next(&mut decoder(vec![], 4)).unwrap_err();
    assert_eq!(error, DecodeError::ContextFull { len: 5, context_len: 4 });
}

#[test]
fn an_empty_prompt_is_refused() {
    let mut empty = Request::new(0, no_end(), DraftPolicy::plain());
    empty.begin(Vec::new(), 10);
    let error = generation(empty, &[], 1).next(&mut decoder(vec![], 64)).unwrap_err();
    assert_eq!(error, DecodeError::EmptyPrompt);
}

#[test]
fn a_token_out_of_range_is_refused_and_the_sequence_can_begin_again() {
    let mut decoder = decoder(vec![], 64);
    let mut wrong = Request::new(0, no_end(), DraftPolicy::plain());
    wrong.begin(vec![Token(0), Token(99)], 10);
    let mut chance = Random(Philox::new(1));
    let error = wrong.round(&mut decoder, &mut chance).unwrap_err();
    assert_eq!(error, EngineError::Token { token: Token(99), vocab_len: VOCAB }.into());
    wrong.begin(prompt(), 10);
    assert!(wrong.round(&mut decoder, &mut chance).is_ok());
}

#[test]
fn a_drafter_that_fails_is_named_and_dropped_and_the_sequence_goes_on() {
    for fault in [
        EngineError::Broken { backend: "toy", code: -3 },
        EngineError::Full { tokens: 1 },
        EngineError::Interrupted,
    ] {
        for passes in 0..6 {
            let engine = ToyEngine::new(toy(1), 64).failing(passes, fault.clone());
            let failing: Box<dyn Drafter> = Box::new(ModelDrafter::new(Box::new(engine)));
            let mut text = generation(request(0, drafted(3), 30), &[], 3);
            let (written, chunks) = run(&mut decoder(vec![failing], 64), &mut text);
            assert_eq!(written.len(), 30);
            let dropped: Vec<_> = chunks.iter().flat_map(|chunk| &chunk.dropped).collect();
            assert_eq!(dropped.len(), 1);
            assert_eq!(dropped[0].kind, DrafterKind::DraftModel);
            assert_eq!(dropped[0].failure, DraftFailure::Engine(fault.clone()));
            assert!(text.plan().drafters.is_empty(), "later plans leave it out");
        }
    }
}

#[test]
fn a_drafter_that_fails_is_not_chosen_again_by_a_controller() {
    let fault = EngineError::Broken { backend: "toy", code: -3 };
    let engine = ToyEngine::new(toy(1), 64).failing(4, fault);
    let failing: Box<dyn Drafter> = Box::new(ModelDrafter::new(Box::new(engine)));
    let mut decoder = decoder(vec![failing], 64);
    // Drafts cost next to nothing, so that the controller always drafts while it can.
    let drafters = [(DrafterId(0), CostCurve::new([(1, 1e-9)]))].into();
    let costs = Costs { target: CostCurve::new([(1, 1.0), (64, 1.01)]), drafters };
    let arms = vec![Arm { drafters: vec![DrafterId(0)], width: 1 }];
    let mut controller = Controller::new(costs, arms, 3);
    let mut history = controller.history(|_| true);
    let mut text = generation(request(0, drafted(3), 30), &[], 3);
    let (mut drafted, mut dropped) = (text.stats().drafted, 0);
    while let Some(chunk) = controller.next(&mut history, &mut text, &mut decoder).unwrap() {
        dropped += chunk.dropped.len();
        if chunk.dropped.is_empty() && dropped > 0 {
            assert_eq!(text.stats().drafted, drafted, "nothing is drafted any more");
        }
        drafted = text.stats().drafted;
    }
    assert!(dropped == 1 && drafted > 0, "{dropped} dropped, {drafted} drafted");
    assert_eq!(text.sequence().output().len(), 30);
}

#[test]
fn a_drafter_whose_context_is_shorter_is_dropped_with_the_reason() {
    let short = Box::new(ModelDrafter::new(Box::new(ToyEngine::new(toy(1), 12))));
    let mut text = generation(request(0, drafted(3), 30), &[], 3);
    let (written, chunks) = run(&mut decoder(vec![short], 64), &mut text);
    assert_eq!(written.len(), 30);
    assert_eq!(chunks.iter().flat_map(|chunk| &chunk.dropped).count(), 1);
}

/// Drafts tokens the target does not know.
struct Foreign;

impl Drafter for Foreign {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Other("foreign")
    }
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        for request in requests {
            let dist = Dist::point(VOCAB, Token(0)).unwrap();
            let row = request.tree.row(dist).unwrap();
            let node = request.tree.sampled(Node::ROOT, row, Token(0)).unwrap();
            let refused = request.tree.fixed(node, Token(99)).unwrap_err();
            request.failure = Some(DraftFailure::Row(refused.to_string()));
        }
        Ok(())
    }
}

#[test]
fn a_drafted_token_out_of_range_is_the_drafters_failure() {
    let mut text = generation(request(0, drafted(3), 10), &[], 3);
    let (_, chunks) = run(&mut decoder(vec![Box::new(Foreign)], 64), &mut text);
    let dropped: Vec<_> = chunks.iter().flat_map(|chunk| &chunk.dropped).collect();
    assert!(matches!(
        &dropped[..],
        [Dropped { kind: DrafterKind::Other("foreign"), failure: DraftFailure::Row(_), .. }]
    ));
}

#[test]
fn a_target_that_fails_commits_nothing_and_can_be_tried_again() {
    for fault in [
        EngineError::Broken { backend: "toy", code: -3 },
        EngineError::Full { tokens: 1 },
        EngineError::Interrupted,
    ] {
        for passes in 0..5 {
            let engine = ToyEngine::new(toy(1), 64).failing(passes, fault.clone());
            let mut decoder = Decoder::new(Box::new(engine), vec![drafter(2)]).unwrap();
            let greedy = Sampling { temperature: 0.0, ..no_end() };
            let mut failing = Request::new(0, greedy.clone(), drafted(3));
            failing.begin(prompt(), 20);
            let mut chance = Random(Philox::new(1));
            let mut failed = 0;
            while failing.wanted() > 0 {
                let before = failing.tokens().to_vec();
                if let Err(error) = failing.round(&mut decoder, &mut chance) {
                    assert_eq!(error, fault.clone().into());
                    assert_eq!(failing.tokens(), before);
                    failed += 1;
                }
            }
            assert_eq!(failed, 1);
            let mut plain = Request::new(0, greedy, DraftPolicy::plain());
            plain.begin(prompt(), 20);
            let mut plain = generation(plain, &[], 1);
            run(&mut self::decoder(vec![], 64), &mut plain);
            assert_eq!(&failing.output()[..20], plain.sequence().output());
        }
    }
}

/// Wants no draft above a sequence that is only half prefilled.
struct Watchful(ToyEngine);

impl Engine for Watchful {
    fn vocab_len(&self) -> usize {
        VOCAB
    }
    fn context_len(&self) -> usize {
        self.0.context_len()
    }
    fn slot_count(&self) -> usize {
        1
    }
    fn paths_max(&self) -> usize {
        1
    }
    fn can_cut(&self) -> bool {
        true
    }
    fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
        assert!(steps.iter().all(|step| step.rows != Rows::None || step.tree.is_empty()));
        self.0.extend(steps, output)
    }
}

#[test]
fn a_long_sequence_whose_caches_are_lost_is_prefilled_again_before_it_is_drafted_for() {
    let fault = EngineError::Broken { backend: "toy", code: -3 };
    // Two passes prefill the prompt; the fifth fails in the middle of the output.
    let engine = ToyEngine::new(toy(1), 700).failing(4, fault);
    let long = Box::new(ModelDrafter::new(Box::new(ToyEngine::new(toy(2), 700))));
    let mut decoder = Decoder::new(Box::new(Watchful(engine)), vec![long]).unwrap();
    let mut sequence = Request::new(0, no_end(), drafted(3));
    sequence.begin(prompt().repeat(120), 20);
    let mut chance = Random(Philox::new(1));
    let mut prefilled_again = false;
    while sequence.wanted() > 0 {
        let Ok(round) = sequence.round(&mut decoder, &mut chance) else { continue };
        prefilled_again |= round.commits[0].committed == 0 && !sequence.output().is_empty();
    }
    assert!(prefilled_again);
}

#[test]
fn sequences_in_one_round_get_what_they_would_alone() {
    let alone = |slot: u32| {
        let mut text = generation(request(slot, drafted(3), 24), &[], u64::from(slot));
        run(&mut decoder(vec![drafter(2)], 64), &mut text).0
    };
    let mut decoder = decoder(vec![drafter(2)], 64);
    let mut texts: Vec<_> = (0..4)
        .map(|slot| generation(request(slot, drafted(3), 24), &[], u64::from(slot)))
        .collect();
    let mut written = vec![String::new(); 4];
    while texts.iter().any(|text| text.finish().is_none()) {
        let unfinished = texts.iter().enumerate().filter(|(_, text)| text.finish().is_none());
        let places: Vec<usize> = unfinished.map(|(place, _)| place).collect();
        let plan = drafted(3).plan();
        let turns = texts.iter_mut().filter(|text| text.finish().is_none());
        let mut turns: Vec<_> = turns.map(|text| text.turn(&plan, Limits::default())).collect();
        let round = decoder.round(&mut turns).unwrap();
        drop(turns);
        for (place, commit) in places.into_iter().zip(round.commits) {
            let chunk = texts[place].committed(commit, round.times, 64);
            chunk.pieces.iter().for_each(|piece| written[place].push_str(&piece.text));
        }
    }
    for (slot, text) in written.iter().enumerate() {
        assert_eq!(*text, alone(u32::try_from(slot).unwrap()), "slot {slot}");
    }
}

#[test]
fn the_next_sequence_reuses_what_the_slot_has_cached() {
    let mut decoder = decoder(vec![drafter(2)], 200);
    let mut first = generation(request(0, drafted(3), 20), &[], 1);
    run(&mut decoder, &mut first);
    let mut conversation = first.sequence().tokens().to_vec();
    conversation.extend(prompt());
    let mut next = Request::new(0, no_end(), drafted(3));
    next.begin(conversation.clone(), 10);
    let mut second = generation(next, &[], 2);
    run(&mut decoder, &mut second);
    assert!(second.stats().prompt_prefilled <= prompt().len() as u64 + 1, "{:?}", second.stats());
    // And the output is that of an empty slot.
    let mut fresh = Request::new(0, no_end(), drafted(3));
    fresh.begin(conversation, 10);
    let mut fresh = generation(fresh, &[], 2);
    run(&mut self::decoder(vec![drafter(2)], 200), &mut fresh);
    assert_eq!(fresh.sequence().output(), second.sequence().output());
}

#[test]
fn origins_and_statistics_agree() {
    let mut text = generation(request(0, drafted(3), 50), &[], 5);
    let (_, chunks) = run(&mut decoder(vec![drafter(2)], 64), &mut text);
    let origins: Vec<_> =
        chunks.iter().flat_map(|chunk| &chunk.pieces).map(|piece| piece.origin).collect();
    let count = |wanted| origins.iter().filter(|origin| **origin == wanted).count() as u64;
    let stats = text.stats();
    assert_eq!(count(Origin::Accepted), stats.accepted);
    assert_eq!(origins.len() as u64, stats.output_len);
    let by_position: u64 = stats.positions.iter().map(|position| position.accepted).sum();
    assert_eq!(by_position, stats.accepted);
    assert!(count(Origin::Corrected) > 0 && count(Origin::Accepted) > 0);
}

#[test]
fn a_drafter_that_prefilled_a_part_of_one_sequence_drafts_for_the_next() {
    // Sequences of every length after one another, the drafter now seeing the last tokens, now all.
    let mut decoder = decoder(vec![drafter(1)], 64);
    let mut sequence = Request::new(0, Sampling::greedy(), drafted(2));
    let mut chance = Random(Philox::new(1));
    for (index, prompt_len) in [40, 2, 1, 30, 3, 45, 1, 2].into_iter().enumerate() {
        let prompt: Vec<Token> = (0..prompt_len).map(|n| Token(n % 4)).collect();
        sequence.begin(prompt, 12);
        while sequence.wanted() > 0 {
            let turn = sequence.output().len() + index;
            sequence.plan.drafter_prefill_max = (!turn.is_multiple_of(3)).then_some(1 + turn % 4);
            let round = sequence.round(&mut decoder, &mut chance).unwrap();
            assert!(round.commits[0].dropped.is_empty(), "{:?}", round.commits[0].dropped);
            // The drafter is the target: with all of the sequence before it, it is always right.
            let all_seen = round.commits[0].accepted == round.commits[0].draft_len;
            assert!(all_seen || sequence.plan.drafter_prefill_max.is_some());
        }
    }
}

#[test]
fn several_paths_of_several_sequences_are_drafted_in_shared_passes() {
    let policy = DraftPolicy { rule: Arc::new(PooledRule), ..drafted(3).wide(3) };
    let mut decoder = decoder(vec![drafter(2)], 64);
    let mut sequences: Vec<Request> =
        (0..4).map(|slot| request(slot, policy.clone(), 12)).collect();
    let mut chances: Vec<_> = (0..4).map(|seed| Random(Philox::new(seed))).collect();
    while sequences.iter().any(|sequence| sequence.wanted() > 0) {
        let waiting = sequences.iter_mut().zip(&mut chances);
        let waiting = waiting.filter(|(sequence, _)| sequence.wanted() > 0);
        let mut turns: Vec<Turn<'_>> =
            waiting.map(|(sequence, chance)| sequence.turn(chance)).collect();
        let round = decoder.round(&mut turns).unwrap();
        let longest = round.commits.iter().map(|commit| commit.draft_len).max().unwrap();
        assert_eq!(round.passes.drafters.len(), longest, "one pass for each depth");
        let drafted: usize = round.commits.iter().map(|commit| commit.drafted).sum();
        let committed = round.passes.target.unwrap().tokens - drafted;
        assert!(committed >= turns.len(), "every node is scored once");
    }
}

#[test]
fn more_paths_than_a_drafter_s_cache_holds_are_refused() {
    let mut decoder = decoder(vec![drafter(2)], 64);
    let policy = DraftPolicy { rule: Arc::new(PooledRule), ..drafted(2).wide(9) };
    let mut wide = request(0, policy, 12);
    let mut chance = Random(Philox::new(1));
    wide.round(&mut decoder, &mut chance).unwrap();
    let round = wide.round(&mut decoder, &mut chance).unwrap();
    let failure = &round.commits[0].dropped[0].failure;
    assert_eq!(*failure, DraftFailure::Paths { width: 9, paths_max: 8 });
    assert_eq!(round.commits[0].committed, 1, "the sequence goes on without it");
}

#[test]
fn a_measured_engine_is_left_as_it_was() {
    let mut measured = decoder(vec![drafter(1)], 64);
    let costs = measured.measure(std::time::Duration::from_millis(5)).unwrap();
    assert!(costs.target.seconds(1, 1) > 0.0 && costs.drafters.contains_key(&DrafterId(0)));
    let mut fresh = decoder(vec![drafter(1)], 64);
    let text =
        |decoder: &mut Decoder| run(decoder, &mut generation(request(0, drafted(3), 20), &[], 5)).0;
    assert_eq!(text(&mut measured), text(&mut fresh));
}

#[test]
fn log_probabilities_are_the_model_s_own_however_tokens_came() {
    let model = ToyModel { vocab_len: 9, order: 3, seed: 1, spread: 2.0 };
    let drafter = ModelDrafter::new(Box::new(ToyEngine::new(model.clone(), 64)));
    let target = Box::new(ToyEngine::new(model.clone(), 64));
    let mut decoder = Decoder::new(target, vec![Box::new(drafter)]).unwrap();
    let plan = drafted(3);
    let shaped =
        Sampling { temperature: 0.5, presence_penalty: 1.0, top_k: 4, ..Sampling::default() };
    let mut sequence = Request::new(0, shaped, plan);
    sequence.logprobs = Some(2);
    sequence.begin(vec![Token(1)], 30);
    let mut chance = Random(Philox::new(5));
    let mut said = Vec::new();
    while sequence.wanted() > 0 {
        let mut round = sequence.round(&mut decoder, &mut chance).unwrap();
        said.append(&mut round.commits[0].logprobs);
    }
    let tokens = sequence.tokens();
    assert_eq!(said.len(), tokens.len() - 1);
    for (at, said) in said.iter().enumerate() {
        let expected = TokenLogprob::of(&model.logits(&tokens[..=at]), tokens[at + 1], 2);
        assert_eq!(*said, expected, "token {at}");
    }
}

#[test]
fn a_prefix_that_another_slot_has_cached_is_not_prefilled_again() {
    let model = ToyModel { vocab_len: 9, order: 3, seed: 1, spread: 2.0 };
    let engine = || Box::new(ToyEngine::new(model.clone(), 64).slots(2));
    let drafter = ModelDrafter::new(engine());
    let mut decoder = Decoder::new(engine(), vec![Box::new(drafter)]).unwrap();
    let sequence = |slot| Request::new(slot, Sampling::greedy(), drafted(3));
    let run = |decoder: &mut Decoder, sequence: &mut Request| {
        let mut chance = Random(Philox::new(5));
        let mut prefilled = 0;
        while sequence.wanted() > 0 {
            prefilled += sequence.round(decoder, &mut chance).unwrap().commits[0].prefilled;
        }
        prefilled
    };
    let beginning: Vec<Token> = (0..12).map(|n| Token(n * 5 % 9)).collect();
    let [mut first, mut second] = [0, 1].map(sequence);
    first.begin(beginning.clone(), 8);
    run(&mut decoder, &mut first);
    let another = Token((first.output()[0].0 + 1) % 9);
    let other: Vec<Token> = beginning.into_iter().chain([another; 2]).collect();
    second.begin(other.clone(), 8);
    assert_eq!(decoder.shares(first.slot(), &other), 12);
    assert!(decoder.share(first.slot(), second.slot(), &other));
    assert_eq!(decoder.uncached_len(&second), 2);
    assert!(!decoder.share(first.slot(), second.slot(), &other), "it has it now");
    run(&mut decoder, &mut second);
    let mut alone = sequence(0);
    alone.begin(other, 8);
    let mut decoder = Decoder::new(engine(), vec![Box::new(ModelDrafter::new(engine()))]).unwrap();
    run(&mut decoder, &mut alone);
    assert_eq!(second.output(), alone.output());
}

#[test]
fn a_commit_reports_how_much_of_a_fixed_path_was_accepted() {
    let model = ToyModel { vocab_len: 9, order: 3, seed: 1, spread: 2.0 };
    let target = Box::new(ToyEngine::new(model.clone(), 64));
    let mut decoder = Decoder::new(target, vec![Box::new(EditDrafter::default())]).unwrap();
    let likeliest = |text: &[Token]| {
        let logits = model.logits(text);
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Token(u32::try_from(logits.iter().position(|it| *it == highest).unwrap()).unwrap())
    };
    let mut text = vec![Token(1)];
    (0..5).for_each(|_| text.push(likeliest(&text)));
    // The fourth token of the prediction is wrong.
    let mut prediction = text[1..].to_vec();
    prediction[3] = Token((prediction[3].0 + 1) % 9);
    decoder.drafters_mut()[DrafterId(0)].predict(Slot(0), &prediction);
    let mut sequence = Request::new(0, Sampling::greedy(), drafted(8));
    sequence.begin(vec![Token(1)], 30);
    let mut chance = Random(Philox::new(5));
    let mut round = |sequence: &mut Request| {
        sequence.round(&mut decoder, &mut chance).unwrap().commits.remove(0)
    };
    assert_eq!(round(&mut sequence).fixed_paths, []);
    let guess = FixedPath { drafter: DrafterId(0), drafted: 4, accepted: 2, predicted: 2 };
    assert_eq!(round(&mut sequence).fixed_paths, [guess]);
}

/// A failure after which all slots of an engine are empty.
const LOST: EngineError = EngineError::Broken { backend: "toy", code: -3 };

/// Runs a sequence to its end, or returns the first error.
fn finish(decoder: &mut Decoder, sequence: &mut Request) -> Result<Vec<Commit>, DecodeError> {
    let (mut chance, mut commits) = (Random(Philox::new(5)), Vec::new());
    while sequence.wanted() > 0 {
        let round = sequence.round(decoder, &mut chance)?;
        commits.extend(round.commits);
    }
    Ok(commits)
}

/// What a sequence gets from a decoder that never failed.
fn undisturbed(tokens: &[Token], output_len: usize) -> Vec<Token> {
    let mut alone = Request::new(0, no_end(), DraftPolicy::plain());
    alone.begin(tokens.to_vec(), output_len);
    finish(&mut decoder(vec![], 64), &mut alone).unwrap();
    alone.output().to_vec()
}

#[test]
fn idle_slots_are_empty_after_the_target_lost_its_caches() {
    // Two sequences of six tokens take twelve passes; a third one meets the failure.
    let engine = ToyEngine::new(toy(1), 64).slots(4).failing(12, LOST);
    let mut decoder = Decoder::new(Box::new(engine), vec![]).unwrap();
    let [mut on, mut off] = [0, 1].map(|slot| request(slot, DraftPolicy::plain(), 6));
    for idle in [&mut on, &mut off] {
        finish(&mut decoder, idle).unwrap();
        assert!(decoder.shares(idle.slot(), idle.tokens()) >= 10);
    }
    let mut third = request(2, DraftPolicy::plain(), 6);
    assert_eq!(finish(&mut decoder, &mut third).unwrap_err(), LOST.into());
    for idle in [&on, &off] {
        assert_eq!(decoder.cached_tokens(idle.slot()), []);
        let copied = decoder.share(idle.slot(), Slot(3), idle.tokens());
        assert!(!copied, "there is nothing to copy");
    }
    // One conversation goes on where it ended, the other takes another turn half-way.
    let longer = [on.tokens(), &prompt()].concat();
    let other = [&off.tokens()[..8], &prompt()].concat();
    for (idle, tokens) in [(&mut on, longer), (&mut off, other)] {
        idle.begin(tokens.clone(), 12);
        assert_eq!(decoder.uncached_len(idle), tokens.len());
        finish(&mut decoder, idle).unwrap();
        assert_eq!(idle.output(), undisturbed(&tokens, 12));
    }
}

#[test]
fn a_sequence_that_sits_a_round_out_is_prefilled_again_after_the_caches_were_lost() {
    let engine = ToyEngine::new(toy(1), 64).slots(4).failing(5, LOST);
    let mut decoder = Decoder::new(Box::new(engine), vec![]).unwrap();
    let [mut waits, mut runs] = [0, 1].map(|slot| request(slot, DraftPolicy::plain(), 12));
    let (mut one, mut two) = (Random(Philox::new(5)), Random(Philox::new(5)));
    for _ in 0..4 {
        waits.round(&mut decoder, &mut one).unwrap();
    }
    for _ in 0..2 {
        let _ = runs.round(&mut decoder, &mut two);
    }
    assert_eq!(decoder.uncached_len(&waits), 9, "the failure came");
    while waits.wanted() > 0 {
        waits.round(&mut decoder, &mut one).unwrap();
    }
    assert_eq!(waits.output(), undisturbed(&prompt(), 12));
}

#[test]
fn a_drafter_that_lost_its_caches_drafts_for_idle_slots_as_before() {
    let mut met = 0;
    for passes in 0..60 {
        let engine = ToyEngine::new(toy(1), 64).slots(4).failing(passes, LOST);
        let failing: Box<dyn Drafter> = Box::new(ModelDrafter::new(Box::new(engine)));
        let mut decoder = decoder(vec![failing], 64);
        let greedy = |slot: u32| {
            let greedy = Sampling { temperature: 0.0, ..no_end() };
            let mut sequence = Request::new(slot, greedy, drafted(3));
            sequence.begin(prompt(), 8);
            sequence
        };
        let [mut idle, mut other] = [0, 1].map(greedy);
        let dropped = |commits: &[Commit]| commits.iter().any(|it| !it.dropped.is_empty());
        let before = finish(&mut decoder, &mut idle).unwrap();
        let during = finish(&mut decoder, &mut other).unwrap();
        if dropped(&before) || !dropped(&during) {
            continue;
        }
        met += 1;
        let longer = [idle.tokens(), &prompt()].concat();
        idle.begin(longer, 12);
        let after = finish(&mut decoder, &mut idle).unwrap();
        assert!(!dropped(&after), "after a failure in pass {passes}");
        // Drafter and target are the same model, so that all is accepted that continues the
        // sequence.
        let all = after.iter().all(|commit| commit.accepted == commit.drafted);
        assert!(all && after.iter().any(|commit| commit.drafted > 0), "{after:?}");
    }
    assert!(met > 3, "the failure came while the other was drafted for: {met}");
}

#[test]
fn a_step_that_relies_on_what_is_not_cached_is_refused_and_changes_nothing() {
    let model = toy(1);
    let mut engine = ToyEngine::new(model.clone(), 64).slots(2);
    let (mut output, text) = (Output::default(), prompt());
    let step = |keep, trunk| Step { slot: Slot(0), keep, trunk, tree: &[], rows: Rows::Trunk };
    engine.extend(&[step(Keep::Trunk(0), &text)], &mut output).unwrap();
    let len = text.len();
    for keep in [Keep::To { node: 0, len: len + 2 }, Keep::All(0), Keep::Trunk(len + 1)] {
        let error = engine.extend(&[step(keep, &text[..1])], &mut output).unwrap_err();
        assert!(matches!(error, EngineError::Step { .. }), "{keep:?}: {error}");
    }
    engine.extend(&[step(Keep::All(len), &text[..1])], &mut output).unwrap();
    assert_eq!(output.row(0), model.logits(&[&text[..], &text[..1]].concat()));
}

/// Forbids nothing, and reports that each mask takes a hundredth of a second.
#[derive(Default)]
struct Slow(std::time::Duration);

impl Constraint for Slow {
    fn mask(&mut self, _: &[Token], _: &mut [f32]) -> Result<(), ConstraintError> {
        self.0 = std::time::Duration::from_millis(10);
        Ok(())
    }
    fn admitted(&mut self, path: &[Token]) -> usize {
        path.len()
    }
    fn commit(&mut self, _: &[Token]) {}
    fn mask_time(&mut self) -> std::time::Duration {
        std::mem::take(&mut self.0)
    }
}

#[test]
fn drafts_are_as_short_as_slow_masks_need_and_the_output_stays() {
    let run = |budget_ms: Option<u64>| {
        let coupled = Arc::new(CoupledRule { noise: Noise::new(7) });
        let policy = DraftPolicy { rule: coupled, ..drafted(6) };
        let mut slow = request(0, policy, 40);
        slow.constraint = Some(Box::<Slow>::default());
        slow.limits.mask_budget = budget_ms.map(std::time::Duration::from_millis);
        let commits = finish(&mut decoder(vec![drafter(1)], 64), &mut slow).unwrap();
        let drafted: Vec<usize> = commits.iter().map(|commit| commit.drafted).collect();
        (slow.output()[..40].to_vec(), drafted)
    };
    let (text, free) = run(None);
    assert!(free.contains(&6), "{free:?}");
    // The first round drafts nothing and shows what a mask takes.
    for (budget_ms, most) in [(100, 6), (35, 2), (10, 0), (0, 0)] {
        let (bounded, drafted) = run(Some(budget_ms));
        assert_eq!(bounded, text);
        assert_eq!(drafted.into_iter().max(), Some(most), "in {budget_ms} ms");
    }
}

#[test]
fn what_a_slot_is_told_to_forget_serves_no_other_sequence() {
    let own: [Box<dyn Drafter>; 3] = [
        drafter(1),
        Box::new(NgramDrafter::default()),
        Box::new(SuffixDrafter::new(SuffixConfig::default())),
    ];
    let mut decoder = decoder(own.into(), 64);
    let greedy = Sampling { temperature: 0.0, ..no_end() };
    let mut sequence = Request::new(0, greedy, drafted(3));
    sequence.begin(prompt(), 20);
    finish(&mut decoder, &mut sequence).unwrap();
    let output = sequence.output().to_vec();
    assert!(decoder.drafters()[DrafterId(0)].behind(Slot(0), sequence.tokens()) < 8);
    decoder.forget(Slot(0));
    assert_eq!(decoder.cached_tokens(Slot(0)), []);
    let len = sequence.tokens().len();
    assert_eq!(decoder.drafters()[DrafterId(0)].behind(Slot(0), sequence.tokens()), len);
    sequence.begin(prompt(), 20);
    assert_eq!(decoder.uncached_len(&sequence), prompt().len());
    finish(&mut decoder, &mut sequence).unwrap();
    assert_eq!(sequence.output(), output);
}

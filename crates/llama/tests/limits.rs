//! What an engine refuses, and what is still true afterwards.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{TEXT, count, options, row_after, rows, step, tokens};
use forerun_decode::{Branch, Caches, Engine, EngineError, Keep, Output, Rows, Slot, Step, Token};
use forerun_llama::{CacheType, FlashAttention, LlamaEngine, SetupError};

/// Runs one step that must fail, and gives the error.
fn refusal(engine: &mut LlamaEngine, step: Step<'_>) -> EngineError {
    let mut output = Output::default();
    let error = engine.extend(&[step], &mut output).unwrap_err();
    assert!(output.is_empty(), "no rows come with an error");
    assert!(engine.is_consistent(), "after {error}");
    error
}

#[test]
fn a_full_slot_says_so_and_can_still_be_used() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    let mut options = options(1, 2);
    options.context_len = Some(count(20));
    let mut engine = LlamaEngine::new(&model, &options).unwrap();
    rows(&mut engine, step(Keep::All(0), &text[..16], &[], Rows::None));

    // Five more do not fit, nor do two and a tree of three; the cut asked for is made all the same.
    let tree = [0, 0, 1].map(|parent| Branch { parent, token: text[0] });
    let error = refusal(&mut engine, step(Keep::All(16), &text[16..21], &[], Rows::Trunk));
    assert_eq!(error, EngineError::Full { tokens: 5 });
    assert_eq!(engine.cached_len(Slot(0)), 16);
    let error = refusal(&mut engine, step(Keep::Trunk(14), &text[14..18], &tree, Rows::Tree));
    assert_eq!((error.caches(), engine.cached_len(Slot(0))), (Caches::Cut, 14));

    // Up to the brim.
    let row = rows(&mut engine, step(Keep::All(14), &text[14..20], &[], Rows::Trunk));
    assert!(row[0] == row_after(&mut common::engine(1, 1), &text[..20]));
    assert!(engine.is_consistent());
}

#[test]
fn a_mistake_in_any_step_leaves_every_cache_untouched() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    let mut engine = common::engine(2, 2);
    let tree = [0, 1, 1].map(|parent| Branch { parent, token: text[30] });
    rows(&mut engine, step(Keep::All(0), &text[..8], &tree, Rows::None));

    let token = |token: u32| [Token(token)];
    let far = u32::try_from(engine.vocab_len()).unwrap();
    let (far, near) = (token(far), token(0));
    let leaf = |parent: usize| [Branch { parent, token: Token(0) }];
    let (orphan, third) = (leaf(4), leaf(0));
    let base = step(Keep::All(11), &[], &[], Rows::None);
    let to = |node, len| Keep::To { node, len };
    let wrong = [
        ("token 49152 is out of range", Step { trunk: &far, keep: to(0, 8), ..base }),
        ("there are only 2 slots", Step { slot: Slot(2), ..base }),
        ("there is no node 4", Step { tree: &orphan, ..base }),
        ("there is no node 5", Step { keep: to(5, 9), ..base }),
        ("more than 2 leaves", Step { tree: &third, ..base }),
        ("cannot grow under", Step { trunk: &near, ..base }),
        ("9 tokens of the trunk", Step { keep: Keep::Trunk(9), ..base }),
        ("relies on 9 cached tokens, and it keeps 11", Step { keep: Keep::All(9), ..base }),
        ("relies on 9 cached tokens, and it keeps 8", Step { keep: to(0, 9), ..base }),
        ("relies on 8 cached tokens, and it keeps 10", Step { keep: to(2, 8), ..base }),
        ("gets no token", Step { rows: Rows::Trunk, ..base }),
        ("gets no token", Step { rows: Rows::All, tree: &tree[..0], ..base }),
    ];
    let mut output = Output::default();
    for (words, step) in wrong {
        // A step before it that is in order is not carried out either.
        let keep = Keep::All(0);
        let other = Step { slot: Slot(1), keep, trunk: &text[..3], ..base };
        let error = engine.extend(&[other, step], &mut output).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.caches(), Caches::Untouched, "{error}");
        assert_eq!([0, 1].map(|slot| engine.cached_len(Slot(slot))), [11, 0]);
        assert!(engine.is_consistent());
    }
    let error = engine.extend(&[base, base], &mut output).unwrap_err();
    assert!(error.to_string().contains("occurs in two steps"), "{error}");

    let row = rows(&mut engine, step(to(2, 10), &text[40..41], &[], Rows::Trunk));
    let sequence = [&text[..8], &[text[30], text[30]], &text[40..41]].concat();
    assert!(row[0] == row_after(&mut common::engine(1, 1), &sequence));
}

#[test]
fn an_interrupted_pass_can_be_made_again() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    let flag = Arc::new(AtomicBool::new(false));
    let mut options = options(2, 2);
    options.interrupt = Some(Arc::clone(&flag));
    options.pass_len = count(8);
    let mut engine = LlamaEngine::new(&model, &options).unwrap();
    let tree = [0, 0, 1, 2].map(|parent| Branch { parent, token: text[30 + parent] });
    rows(&mut engine, step(Keep::All(0), &text[..10], &tree[..2], Rows::None));

    // Before the pass, and at some point of it from another thread.
    flag.store(true, Ordering::Relaxed);
    let error = refusal(&mut engine, step(Keep::All(12), &[], &tree[2..], Rows::Tree));
    assert_eq!(error, EngineError::Interrupted);
    assert_eq!(engine.cached_len(Slot(0)), 12);
    flag.store(false, Ordering::Relaxed);
    let prompt: Vec<Token> = text.iter().copied().cycle().take(480).collect();
    for spins in [0, 1 << 16, 1 << 20, 1 << 24] {
        flag.store(false, Ordering::Relaxed);
        let ready = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ready.wait();
                (0..spins).for_each(|_| std::hint::spin_loop());
                flag.store(true, Ordering::Relaxed);
            });
            ready.wait();
            let long = Step { slot: Slot(1), ..step(Keep::All(0), &prompt, &[], Rows::Trunk) };
            let error = refusal(&mut engine, long);
            assert_eq!((error.caches(), &error), (Caches::Cut, &EngineError::Interrupted));
        });
    }
    assert_eq!([0, 1].map(|slot| engine.cached_len(Slot(slot))), [12, 0]);
    flag.store(false, Ordering::Relaxed);

    let keep = Keep::To { node: 1, len: 11 };
    let row = rows(&mut engine, step(keep, &text[40..41], &[], Rows::Trunk));
    let sequence = [&text[..10], &[text[30]], &text[40..41]].concat();
    assert!(row[0] == row_after(&mut common::engine(1, 1), &sequence));
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let model = common::model();
    let refused = |change: fn(&mut forerun_llama::EngineOptions)| {
        let mut options = options(1, 1);
        change(&mut options);
        LlamaEngine::new(&model, &options).unwrap_err()
    };
    let many = refused(|options| (options.slots, options.paths) = (count(100), count(3)));
    assert_eq!(many, SetupError::TooManySequences { slots: 100, paths: 3, max: 256 });
    let long = refused(|options| options.context_len = Some(count(100_000)));
    assert_eq!(long, SetupError::ContextTooLong { asked: 100_000, trained: 8192 });
    let values = refused(|options| {
        options.cache_values = Some(CacheType::Q8_0);
        options.flash_attention = FlashAttention::Off;
    });
    assert_eq!(values, SetupError::NeedsFlashAttention { kind: CacheType::Q8_0 });
}

#[test]
fn every_cache_type_runs() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    for kind in CacheType::ALL {
        let mut options = options(1, 1);
        (options.cache_keys, options.cache_values) = (Some(kind), Some(kind));
        let mut engine = LlamaEngine::new(&model, &options).unwrap();
        let row = rows(&mut engine, step(Keep::All(0), &text[..8], &[], Rows::Trunk));
        assert!(row[0].iter().all(|logit| logit.is_finite()), "{kind}");
    }
}

#[test]
fn an_engine_made_while_interrupted_works_afterwards() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    let flag = Arc::new(AtomicBool::new(true));
    let mut options = options(1, 2);
    options.interrupt = Some(Arc::clone(&flag));
    let mut engine = LlamaEngine::new(&model, &options).unwrap();
    assert!(engine.can_cut());
    flag.store(false, Ordering::Relaxed);
    let row = rows(&mut engine, step(Keep::All(0), &text[..8], &[], Rows::Trunk));
    assert!(row[0] == row_after(&mut common::engine(1, 1), &text[..8]));
}

#[test]
fn a_step_may_append_nothing() {
    let model = common::model();
    let text = tokens(&model, TEXT);
    let mut engine = common::engine(1, 1);
    rows(&mut engine, step(Keep::All(0), &text[..8], &[], Rows::None));
    rows(&mut engine, step(Keep::Trunk(3), &[], &[], Rows::Tree));
    assert_eq!(engine.cached_len(Slot(0)), 3);
    engine.extend(&[], &mut Output::default()).unwrap();
    assert!(engine.is_consistent());
}

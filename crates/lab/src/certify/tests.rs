//! Certificates on the toy engine: a right decoder passes, a broken one fails.

use std::fs;
use std::num::NonZeroUsize;
use std::time::Duration;

use forerun_verify::Scheme;

use super::*;
use crate::sampling::SamplingConfig;
use crate::span::Limit;
use crate::toy::{Folder, Heard, Toy, provenance};

/// What came of it, and the certificate.
fn certified(
    name: &str,
    change: impl FnOnce(&mut CertifyConfig, &mut ModelSubject),
) -> (Option<Verdict>, Value) {
    let folder = Folder::new(name);
    let mut config = CertifyConfig {
        prompts: None,
        sampling: SamplingConfig { sampling: Sampling::unshaped(), ignore_end: true, seed: 1 },
        limits: Limits {
            false_alarm: 0.001,
            power: 0.05,
            limit: Limit::from_now(Duration::from_secs(60)),
            text_len: 16,
        },
        quick: false,
        out: folder.path("page.html"),
        json: folder.path("page.json"),
        provenance: provenance(),
    };
    let mut subject = ModelSubject {
        target: folder.file("target.gguf", "a target"),
        draft_models: vec![folder.file("draft.gguf", "a draft")],
        drafters: vec![DrafterKind::DraftModel],
        len: NonZeroUsize::new(3).unwrap(),
        width: NonZeroUsize::MIN,
        scheme: Scheme::Independent,
        may_stop: false,
        rule: RuleChoice::Block,
        lossy: None,
        slots: NonZeroU32::new(8).unwrap(),
        broken: None,
    };
    change(&mut config, &mut subject);
    let mut toy = Toy { drafters: subject.drafters.clone() };
    let subject = Subject::Models(&subject, &mut toy);
    let verdict = run(&config, subject, &Heard::default(), &Cancellation::default()).unwrap();
    let json = fs::read_to_string(&config.json).unwrap();
    (verdict, serde_json::from_str(&json).unwrap())
}

#[test]
fn a_right_decoder_passes() {
    let (verdict, json) = certified("right", |_, _| {});
    assert_eq!(verdict, Some(Verdict::Passed), "{json:#}");
    let decoder = &json["decoder"];
    assert!(decoder["smallest_share"].as_f64().unwrap() <= 0.05, "{decoder}");
    assert!(decoder["accepted"].as_u64() > Some(100), "{decoder}");
    assert_eq!(json["engine"][0]["rows"], json["engine"][0]["rows_equal"], "the toy has no drift");
    assert_eq!(json["rule"]["lossless"], true);
    assert_eq!(json["about"]["date"], "2026-01-02");
}

#[test]
fn several_paths_and_drafters_pass_too() {
    let (verdict, json) = certified("several", |_, subject| {
        subject.drafters = vec![DrafterKind::DraftModel, DrafterKind::Ngram];
        subject.width = NonZeroUsize::new(2).unwrap();
        subject.rule = RuleChoice::Pooled;
    });
    assert_eq!(verdict, Some(Verdict::Passed), "{json:#}");
    assert_eq!(json["settings"]["drafters"], "draft-model, ngram");
}

#[test]
fn a_coupled_decoder_writes_every_text_again() {
    let (verdict, json) = certified("coupled", |_, subject| subject.rule = RuleChoice::Coupled);
    assert_eq!(verdict, Some(Verdict::Passed), "{json:#}");
    assert_eq!(json["decoder"]["made_differently"], 0);
    assert!(json["decoder"]["made_twice"].as_u64() > Some(0));
}

#[test]
fn every_broken_decoder_fails() {
    for fault in Fault::ALL.into_iter().filter(|fault| !fault.is_of_lossy()) {
        let (verdict, json) = certified(fault.name(), |config, subject| {
            subject.broken = Some(fault);
            if fault.rule().is_none() {
                // Only outputs can tell: until they do.
                config.limits.power = 0.0;
            }
            if fault == Fault::Penalties {
                config.sampling.sampling.presence_penalty = 1.0;
            }
        });
        assert_eq!(verdict, Some(Verdict::Failed), "{fault:?}: {json:#}");
        assert_eq!(json["broken_on_purpose"], fault.about());
        // A broken rule is proved wrong by enumeration, any other mistake by its outputs alone.
        match fault.rule() {
            Some(_) => assert_eq!(json["rule"]["lossless"], false, "{fault:?}"),
            None => assert_eq!(json["decoder"]["ended"], "proof", "{fault:?}: {json:#}"),
        }
    }
}

/// A lossy mode, as it is or broken.
fn lossy(name: &str, mode: &str, broken: Option<Fault>) -> (Option<Verdict>, Value) {
    certified(name, |config, subject| {
        subject.lossy = Some(mode.parse().unwrap());
        subject.broken = broken;
        config.limits.power = if broken.is_some() { 0.0 } else { 0.05 };
    })
}

#[test]
fn a_lossy_mode_that_keeps_its_promise_is_within() {
    for mode in ["budget:0.05", "account:0.05"] {
        let (verdict, json) = lossy("within", mode, None);
        assert_eq!(verdict, Some(Verdict::Passed), "{json:#}");
        assert_eq!((&json["verdict"], &json["lossless"]), (&"within".into(), &false.into()));
        let found = &json["lossy"];
        let number = |name: &str| found[name].as_f64().unwrap();
        assert!(number("estimated") > 0.005 && number("said") <= 0.05 + 1e-9, "{found}");
        assert!((number("estimated") - number("said")).abs() < 2.0 * number("margin"), "{found}");
        assert!(number("smallest_found") <= 0.1, "{found}");
        assert_eq!(json["rule"]["within"], true);
    }
}

#[test]
fn a_lossy_mode_that_breaks_its_promise_is_found_out() {
    for (mode, fault) in [
        ("budget:0.05", Fault::SpendTwice),
        ("account:0.05", Fault::SpendTwice),
        ("account:0.05", Fault::UnpaidAccount),
    ] {
        let (verdict, json) = lossy("exceeded", mode, Some(fault));
        assert_eq!(verdict, Some(Verdict::Failed), "{mode} {fault:?}: {json:#}");
        assert_eq!(json["verdict"], "exceeded");
        assert_eq!(json["lossy"]["ended"], "proof", "by its texts: {json:#}");
    }
}

#[test]
fn a_test_without_time_is_inconclusive() {
    let (verdict, json) = certified("late", |config, _| {
        config.limits.limit = Limit::from_now(Duration::from_millis(1));
        config.limits.power = 1e-6;
    });
    assert_eq!(verdict, Some(Verdict::Inconclusive), "{json:#}");
}

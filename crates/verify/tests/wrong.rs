//! Every wrong version that is known, each caught by enumeration: of rules, of ways to draft, and
//! of what is carried from one round to the next.
//!
//! This is the proof that the checker would see a mistake, so it uses nothing but the public
//! interface. Beside each wrong version stands the sound one it is mistaken for, where the other
//! tests do not have it: it is found lossless by the same code.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests panic and report")]

#[path = "wrong/draftings.rs"]
mod draftings;
#[path = "wrong/lossy.rs"]
mod lossy;
#[path = "wrong/one_path.rs"]
mod one_path;
#[path = "wrong/rounds.rs"]
mod rounds;
#[path = "wrong/seen.rs"]
mod seen;
#[path = "wrong/several_paths.rs"]
mod several_paths;

use std::convert::Infallible;

use draftings::*;
use forerun_verify::check::drafting::{beam, paths, trunk, without_replacement};
use forerun_verify::check::{
    Drafting, Kind, LossyPublishedRule, Model, Shape, Spending, drafting, examine,
};
use forerun_verify::*;
use lossy::*;
use one_path::*;
use rand_core::TryRng;
use rounds::*;
use seen::*;
use several_paths::*;

/// The models a version is tried on.
fn models(vocab_len: usize, len: usize) -> impl Iterator<Item = (String, Model)> {
    let kinds = [Kind::Random, Kind::Mid, Kind::Aligned, Kind::Ties];
    kinds.into_iter().flat_map(move |kind| {
        (0..4).map(move |seed| {
            let model = Model::random(kind, Shape { vocab_len, len }, seed);
            (format!("{kind:?} seed {seed}"), model)
        })
    })
}

/// The largest error over models of a size, and where it was found.
fn worst(size: (usize, usize), error: impl Fn(&Model) -> f64) -> (f64, String) {
    let errors = models(size.0, size.1).map(|(at, model)| (error(&model), at));
    errors.fold((0.0, String::new()), |worst, one| if one.0 >= worst.0 { one } else { worst })
}

fn judged(drafting: &dyn Drafting, judge: Judge) -> impl Fn(&Model) -> f64 {
    move |model| examine(model, drafting, &Handmade { model, judge }).unwrap().worst_error
}

fn caught(name: &str, size: (usize, usize), error: impl Fn(&Model) -> f64) {
    let (error, at) = worst(size, error);
    println!("{name}: {error:.1e} at {at}");
    assert!(error > 1e-4, "{name} is not caught: {error:e}");
}

fn lossless(name: &str, size: (usize, usize), error: impl Fn(&Model) -> f64) {
    let (error, at) = worst(size, error);
    println!("{name}: {error:.1e} at {at}");
    assert!(error < 1e-12, "{name} is off by {error:e} at {at}");
}

/// Rows of a table: a name, the models' vocabulary and length, how to draft, and who judges.
macro_rules! table {
    ($found:ident: $($name:ident: $size:expr, $drafting:expr, $judge:expr;)*) => {
        mod $found {
            use super::*;
            use Judge::*;
            $(
                #[test]
                fn $name() {
                    super::$found(stringify!($name), $size, judged(&$drafting, $judge));
                }
            )*
        }
    };
}

const PLAIN_GBV: GbvRule = GbvRule { guarded: false };

table! { caught:
    // One path, wrong rules.
    the_plain_target_after_a_rejected_token: (3, 2), paths(1), Tokenwise(TokenFault::PlainTarget);
    a_scalar_for_the_residual: (3, 2), paths(1), Tokenwise(TokenFault::ScalarResidual);
    a_first_token_that_is_not_tested: (3, 2), paths(1), Tokenwise(TokenFault::FirstUntested);
    a_coin_of_hundredths_that_lets_zero_pass: (3, 2), paths(1), Tokenwise(TokenFault::CoarseCoin);
    the_token_residual_after_block_acceptance: (4, 2), paths(1), Blockwise(BlockFault::TokenResidual);
    the_plain_target_after_block_acceptance: (3, 2), paths(1), Blockwise(BlockFault::PlainTarget);
    prefixes_kept_by_weight_and_not_by_residual: (3, 2), paths(1), Blockwise(BlockFault::KeptByWeight);
    block_tests_from_the_front: (2, 3), paths(1), Own(block_forward);
    greedy_block_without_its_carried_target: (2, 2), paths(1), Own(greedy_forgetting);
    typical_acceptance: (3, 2), paths(1), Own(typical);
    acceptance_near_the_top_of_the_target: (3, 2), paths(1), Own(near_the_top);
    // One path, wrong rows.
    likeliest_tokens_said_to_be_drawn: (3, 2), likeliest(), Library(&TokenRule);
    likeliest_tokens_said_to_be_drawn_to_block: (3, 2), likeliest(), Library(&BlockRule);
    a_draft_at_another_temperature: (3, 2), colder(), Library(&BlockRule);
    a_draft_of_a_truncated_row: (3, 2), truncated(), Library(&BlockRule);
    a_row_rounded_after_the_draw: (3, 2), rounded(), Library(&BlockRule);
    an_unlikely_token_dropped_once_drawn: (3, 2), dropping(), Library(&BlockRule);
    // Several paths, wrong rules.
    the_likeliest_path_alone: (2, 2), paths(2), Own(block_on_the_likeliest);
    a_picked_path_against_the_whole_row: (2, 2), paths(2), Picked(PickFault::Unskewed);
    clipped_ratios_with_ties_in_two_orders: (3, 2), paths(2), Picked(PickFault::ClippedTies);
    a_number_of_paths_chosen_by_their_tokens: (3, 2), paths(2), Picked(PickFault::Peeking);
    a_shared_trunk_that_is_skewed: (2, 2), trunk(2), Picked(PickFault::Sound);
    repeated_children_tried_once: (3, 1), paths(2), Own(specinfer_distinct);
    one_bar_for_all_candidates_set_for_one: (3, 1), paths(2), Own(k_seq_low);
    a_traversal_that_ends_with_the_plain_target: (3, 2), without_replacement(2), Own(traversal_plain_target);
    layers_in_turn_on_beams: (2, 3), beam(2), Own(in_turn);
    // Several paths, drawn in another way than the rule is told.
    rsd_on_sorted_children: (3, 2), sorted(2), Library(&RsdRule);
    traversal_on_sorted_children: (3, 2), sorted(2), Library(&TraversalRule);
    specinfer_on_children_not_put_back: (3, 2), passed_off(without_replacement(2), Scheme::Independent), Library(&SpecInferRule);
    spectr_on_children_not_put_back: (3, 2), passed_off(without_replacement(2), Scheme::Independent), Library(&SpecTrRule);
    gbv_on_children_not_put_back: (3, 1), passed_off(without_replacement(2), Scheme::Paths), Library(&PLAIN_GBV);
    pooled_on_children_not_put_back: (3, 2), passed_off(without_replacement(2), Scheme::Independent), Library(&PooledRule);
    pooled_on_beams_passed_off_as_candidates: (2, 3), passed_off(beam(2), Scheme::Independent), Library(&PooledRule);
    a_second_candidate_where_the_first_drew_badly: (3, 1), second_chance(), Library(&PooledRule);
    a_path_added_by_tokens_at_its_depth: (3, 2), afterthought(), Library(&PooledRule);
}

table! { lossless:
    token_by_hand: (3, 2), paths(1), Tokenwise(TokenFault::Sound);
    block_by_hand: (3, 2), paths(1), Blockwise(BlockFault::Sound);
    block_that_knows_of_dropped_tokens: (3, 2), dropping(), Own(block_on_kept_tokens);
    a_picked_path_by_hand: (3, 2), paths(2), Picked(PickFault::Sound);
    repeated_children_tried_as_often: (3, 1), paths(2), Own(specinfer_sound);
    one_bar_for_all_candidates_set_too_high: (3, 1), paths(2), Own(k_seq_high);
    traversal_by_hand: (3, 2), without_replacement(2), Own(traversal_sound);
    layers_in_turn_on_paths: (3, 2), paths(2), Own(in_turn);
    layers_in_turn_without_replacement: (3, 2), without_replacement(2), Own(in_turn);
    traversal_on_beams: (2, 3), beam(2), Library(&TraversalRule);
    children_in_the_order_they_were_drawn: (3, 2), passed_off(without_replacement(2), Scheme::WithoutReplacement), Library(&RsdRule);
}

#[test]
fn a_tail_passed_off_as_freshly_drawn_is_caught() {
    caught("a tail as a fresh sample", (2, 3), |model| two_rounds(model, tail_as_drawn));
}

#[test]
fn a_tail_as_a_guess_is_lossless() {
    lossless("a tail as a guess", (2, 3), |model| two_rounds(model, tail_as_guess));
}

#[test]
fn two_rounds_with_fresh_drafts_are_lossless() {
    lossless("two fresh rounds", (2, 3), |model| two_rounds(model, fresh));
}

#[test]
fn greedy_block_with_its_carried_target_is_lossless() {
    lossless("greedy block", (2, 3), greedy_with_carried_target);
}

// Budgets.

/// The worst spending of a judge over models of several shapes.
fn spending(judge: Judge) -> Spending {
    worst_spending(&[(3, 1), (2, 2), (3, 2), (2, 3)], |model| {
        let finding = examine(model, &paths(1), &Handmade { model, judge }).unwrap();
        finding.spending(model)
    })
}

fn exceeded(name: &str, by: f64) {
    println!("{name}: {by:.3}");
    assert!(by > 0.01, "{name} is not caught: {by:e}");
}

#[test]
fn a_budget_by_hand_is_kept_and_is_the_library_s() {
    let found = spending(Judge::Bent(LossyFault::Sound));
    assert!(found.worst < PROMISED + 1e-12 && found.factor < 4.0 + 1e-9, "{found:?}");
    assert!(found.outside == 0.0, "{found:?}");
    let rule = LossyBlockRule { budget: Budget::at_every_token(PROMISED).unwrap() };
    for (at, model) in models(3, 2) {
        let judge = Judge::Bent(LossyFault::Sound);
        let by_hand = examine(&model, &paths(1), &Handmade { model: &model, judge }).unwrap();
        let library = examine(&model, &paths(1), &rule).unwrap();
        for (path, nexts) in &by_hand.exits {
            for (next, chance) in nexts {
                let other = library.exits.get(path).and_then(|nexts| nexts.get(next));
                let off = (chance - other.unwrap_or(&0.0)).abs();
                assert!(off < 1e-12, "a verdict is off by {off:e} at {at}");
            }
        }
    }
}

#[test]
fn budgets_that_are_not_kept_are_caught() {
    let over = |judge| spending(judge).worst - PROMISED;
    exceeded("a bend for weight one", over(Judge::Bent(LossyFault::BentAtOne)));
    exceeded("the plain residual after a bend", over(Judge::Bent(LossyFault::PlainResidual)));
    exceeded("lenience in block verification", over(Judge::Own(lenient_block)));
    exceeded("the distance of the best token", over(Judge::Own(distance_of_the_best)));
    for name in ["typical", "specdec"] {
        let rule = LossyPublishedRule::by_name(name).unwrap();
        exceeded(name, over(Judge::Library(Box::leak(Box::new(rule)))));
    }
}

/// Within the distance, and still not what a budget promises.
#[test]
fn tokens_outside_the_target_and_raised_too_far_are_caught() {
    let versions = [("a mixture", mixture as Decide), ("forgiving late", forgiving_late)];
    for (name, decide) in versions {
        let found = spending(Judge::Own(decide));
        assert!(found.worst < PROMISED + 1e-12, "{name} keeps the distance: {}", found.worst);
        exceeded(name, found.outside);
    }
    let found = spending(Judge::Bent(LossyFault::NoFactor));
    assert!(found.worst < PROMISED + 1e-12, "{}", found.worst);
    exceeded("a budget without a factor", found.factor - 1_000.0);
}

#[test]
fn an_account_spent_in_advance_is_caught() {
    let budget = Budget::on_account(PROMISED).unwrap().with_bank(1.0).unwrap();
    let rule = RoundInAdvance(LossyBlockRule { budget });
    let overdrawn = |model: &Model| {
        let finding = examine(model, &paths(1), &rule).unwrap();
        finding.spending(model).overdrawn(PROMISED, PROMISED)
    };
    let (by, at) = worst((3, 2), overdrawn);
    println!("a round in advance: overdrawn by {by:.3} at {at}");
    assert!(by > 0.05);
}

#[test]
fn books_that_do_not_say_what_was_spent_are_caught() {
    let rule = LossyBlockRule { budget: Budget::at_every_token(PROMISED).unwrap() };
    let books = |rule: &dyn Rule| {
        worst_spending(&[(3, 2)], |model| examine(model, &paths(1), rule).unwrap().spending(model))
            .books
    };
    assert!(books(&rule) < 1e-12);
    exceeded("an account paid by prediction", books(&PaidByPrediction(rule)));
    let bias = |audits| worst((3, 1), |model| audit_bias(model, audits)).0;
    assert!(bias(Audits::ByCoin) < 1e-12);
    exceeded("audits chosen by doubt", bias(Audits::ByDoubt));
}

/// A divergence that is kept by a row for each drafted token is not kept by the output.
#[test]
fn a_row_that_depends_on_the_drafted_token_is_caught() {
    const DIVERGENCE: f64 = 0.01;
    let model = Model::new(Shape { vocab_len: 100, len: 1 }, |_| {
        let half = || Dist::sparse(100, (0..50).map(|token| (Token(token), 1.0))).unwrap();
        [Dist::dense(vec![1.0; 100]).unwrap(), half(), half()]
    });
    let judge = Judge::Own(|seen, chance| cactus(seen, DIVERGENCE, chance));
    let found = divergence(&model, &Handmade { model: &model, judge });
    println!("Cactus: {found:.3} nats, {:.0} times what is promised", found / DIVERGENCE);
    assert!((found - std::f64::consts::LN_2).abs() < 1e-9);
}

/// A generator whose every number is zero.
struct Zeros;

impl TryRng for Zeros {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(0)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(0)
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        dst.fill(0);
        Ok(())
    }
}

/// Enumeration cannot see how a seed becomes a coin. A uniform of exactly zero must not let a
/// token of ratio zero through, as a coin with `<=` would.
#[test]
fn a_uniform_of_zero_lets_nothing_impossible_through() {
    let mut chance = Random(Zeros);
    assert!(!chance.coin(0.0) && chance.coin(f64::MIN_POSITIVE));
    let weights: &[f64] = &[0.0, 0.0, 0.5];
    assert_eq!(chance.pick(&weights), 2);
    // The drafted token has no probability in the target, whatever the rule.
    let row = || Dist::dense(vec![0.5, 0.5]).unwrap();
    let draft = Draft::path(2, [(Token(0), row())]).unwrap();
    let rows = [Dist::dense(vec![0.0, 1.0]).unwrap(), row()];
    let block = Block::new(&draft, &rows).unwrap();
    let rules: [&dyn Rule; 9] = [
        &TokenRule,
        &BlockRule,
        &NssRule,
        &SpecInferRule,
        &SpecTrRule,
        &RsdRule,
        &TraversalRule,
        &PLAIN_GBV,
        &PooledRule,
    ];
    for rule in rules {
        let verdict = rule.verify(&block, &mut chance).unwrap();
        assert_eq!((verdict.accepted, verdict.next), (0, Token(1)), "{}", rule.name());
    }
}

/// What a rule is not lossless for it refuses, before the target runs.
#[test]
fn rules_refuse_what_they_would_get_wrong() {
    let refused = |drafting: &dyn Drafting, rules: &[&dyn Rule]| {
        let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
        for rule in rules {
            assert!(examine(&model, drafting, *rule).is_err(), "{} admits it", rule.name());
        }
    };
    let guarded = GbvRule { guarded: true };
    let independent: [&dyn Rule; 7] =
        [&TokenRule, &BlockRule, &SpecInferRule, &SpecTrRule, &PLAIN_GBV, &guarded, &PooledRule];
    refused(&beam(2), &independent);
    refused(&without_replacement(2), &independent);
    refused(&paths(2), &[&TokenRule, &BlockRule]);
    let of_one_row: [&dyn Rule; 5] = [&SpecTrRule, &RsdRule, &TraversalRule, &PLAIN_GBV, &guarded];
    refused(&drafting::guesses(), &of_one_row);
    refused(&drafting::paths_and_guess(1), &of_one_row);
    refused(&drafting::two_drafters(2), &of_one_row);
}

/// What a scheme does not allow a draft cannot say.
#[test]
fn drafts_refuse_what_their_scheme_forbids() {
    let row = || Dist::dense(vec![0.5, 0.5, 0.0]).unwrap();
    for scheme in [Scheme::Paths, Scheme::WithoutReplacement, Scheme::Beam] {
        let mut tree = Draft::start(scheme, 3);
        let fixed = tree.fixed(Node::ROOT, Token(0));
        assert_eq!(fixed, Err(DraftError::FixedToken { token: Token(0), scheme }));
        // Paths of fixed tokens cannot be passed off as drawn from rows of one token each either.
        let one = tree.row(Dist::point(3, Token(0)).unwrap()).unwrap();
        let two = tree.row(Dist::point(3, Token(1)).unwrap()).unwrap();
        tree.sampled(Node::ROOT, one, Token(0)).unwrap();
        let second = tree.sampled(Node::ROOT, two, Token(1));
        assert_eq!(second, Err(DraftError::SeveralRows { node: Node::ROOT, scheme }));
    }
    for scheme in [Scheme::WithoutReplacement, Scheme::Beam] {
        let mut tree = Draft::start(scheme, 3);
        let id = tree.row(row()).unwrap();
        tree.sampled(Node::ROOT, id, Token(0)).unwrap();
        let again = tree.sampled(Node::ROOT, id, Token(0));
        assert_eq!(again, Err(DraftError::DrawnTwice { token: Token(0) }));
        let impossible = tree.sampled(Node::ROOT, id, Token(2));
        assert_eq!(impossible, Err(DraftError::Impossible { token: Token(2) }));
    }
    // One of two paths is cut short.
    let mut tree = Draft::start(Scheme::Paths, 3);
    let id = tree.row(row()).unwrap();
    let first = tree.sampled(Node::ROOT, id, Token(0)).unwrap();
    tree.sampled(Node::ROOT, id, Token(1)).unwrap();
    tree.sampled(first, id, Token(1)).unwrap();
    assert!(matches!(tree.finish(), Err(DraftError::NotPaths { .. })));
}

//! Verdicts: in range, possible, the same each time, and asked for with sound probabilities.

use forerun_verify::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::cases::{Case, Speaker, case};
use crate::drafts::calls;
use crate::seen::{Generator, Seen, Temper, temper};
use crate::sketch::row;
use crate::{Found, property};

/// Vocabularies up to this long have their weights gone over.
const VISITED_MAX: usize = 16;

/// The rules that state a law of their own; the coupled rule has its own noise.
const RULES: [&dyn Rule; 10] = [
    &TokenRule,
    &BlockRule,
    &NssRule,
    &SpecInferRule,
    &SpecTrRule,
    &RsdRule,
    &TraversalRule,
    &GbvRule { guarded: true },
    &GbvRule { guarded: false },
    &PooledRule,
];

/// Judges twice, and checks all that holds for every rule. `None` where the rule refuses.
fn judge(
    rule: &dyn Rule,
    block: &Block<'_>,
    (temper, seed): (Temper, u64),
) -> Result<Option<Verdict>, TestCaseError> {
    let admitted = rule.admits(block.draft());
    let visits = block.draft().vocab_len() <= VISITED_MAX;
    let mut seen = Seen::new(Generator::new(temper, seed), visits);
    let verdict = rule.verify(block, &mut seen);
    let again = rule.verify(block, &mut Random(Generator::new(temper, seed)));
    prop_assert_eq!(&verdict, &again, "{} changed its mind", rule.name());
    prop_assert!(seen.fault.is_none(), "{}: {}", rule.name(), seen.fault.unwrap());
    prop_assert_eq!(admitted.err(), verdict.as_ref().err().cloned());
    let Ok(verdict) = verdict else { return Ok(None) };
    is_sound(block, verdict)
        .map_err(|error| TestCaseError::fail(format!("{}: {verdict:?}: {error}", rule.name())))?;
    Ok(Some(verdict))
}

fn is_sound(block: &Block<'_>, verdict: Verdict) -> TestCaseResult {
    let draft = block.draft();
    prop_assert!(verdict.node.index() <= draft.len(), "the node is not in the draft");
    prop_assert_eq!(verdict.accepted, draft.depth(verdict.node));
    prop_assert!(verdict.next.index() < draft.vocab_len());
    let next = block.target(verdict.node).prob(verdict.next);
    prop_assert!(next > 0.0, "the target cannot say the next token");
    let mut node = Node::ROOT;
    for token in draft.path_to(verdict.node) {
        prop_assert!(block.target(node).prob(token) > 0.0, "the target cannot say {token:?}");
        node = draft.child(node, token).unwrap();
    }
    prop_assert_eq!(node, verdict.node);
    Ok(())
}

/// A rule on drafts of the schemes it is for, none of which it may refuse.
fn verdicts(rule: &dyn Rule, schemes: &[Scheme], width_max: usize) -> Found {
    property(case(schemes, 1..=width_max), |case| {
        let (draft, rows) = case.draw();
        let block = Block::new(&draft, &rows).unwrap();
        let verdict = judge(rule, &block, (case.temper, case.seed))?;
        prop_assert!(verdict.is_some(), "{} refuses what it is for", rule.name());
        Ok(())
    })
}

const ALL: [Scheme; 4] =
    [Scheme::Paths, Scheme::Independent, Scheme::WithoutReplacement, Scheme::Beam];
const INDEPENDENT: [Scheme; 2] = [Scheme::Paths, Scheme::Independent];
const DISTINCT: [Scheme; 3] = [Scheme::Paths, Scheme::WithoutReplacement, Scheme::Beam];

pub(crate) fn token() -> Found {
    verdicts(&TokenRule, &INDEPENDENT, 1)
}

pub(crate) fn block() -> Found {
    verdicts(&BlockRule, &INDEPENDENT, 1)
}

pub(crate) fn nss() -> Found {
    verdicts(&NssRule, &ALL, 4)
}

pub(crate) fn specinfer() -> Found {
    verdicts(&SpecInferRule, &INDEPENDENT, 4)
}

pub(crate) fn spectr() -> Found {
    verdicts(&SpecTrRule, &[Scheme::Paths], 4)
}

pub(crate) fn rsd() -> Found {
    verdicts(&RsdRule, &DISTINCT, 4)
}

pub(crate) fn traversal() -> Found {
    verdicts(&TraversalRule, &DISTINCT, 4)
}

pub(crate) fn gbv(guarded: bool) -> Found {
    verdicts(&GbvRule { guarded }, &[Scheme::Paths], 4)
}

pub(crate) fn pooled() -> Found {
    verdicts(&PooledRule, &INDEPENDENT, 4)
}

/// Verdicts within a budget, and books that hold no more than it.
pub(crate) fn lossy_block() -> Found {
    let budgets = [Budget::at_every_token(0.0), Budget::on_account(0.05), Budget::on_account(1.0)];
    property((case(&INDEPENDENT, 1..=1usize), 0..3usize), move |(case, budget)| {
        let (draft, rows) = case.draw();
        let block = Block::new(&draft, &rows).unwrap();
        let budget = budgets[budget].unwrap().with_factor(65_536.0).unwrap();
        let rule = LossyBlockRule { budget };
        let verdict = judge(&rule, &block, (case.temper, case.seed))?;
        let verdict = verdict.expect("it is for one path");
        let spent = rule.spent(&block, &verdict);
        prop_assert_eq!(spent.tokens.len(), verdict.accepted + 1);
        for Spend { distance, factor, balance } in spent.tokens {
            prop_assert!((0.0..=budget.step()).contains(&distance), "{distance} spent");
            prop_assert!((1.0..=budget.factor()).contains(&factor), "raised by {factor}");
            prop_assert!((0.0..=budget.bank()).contains(&balance), "{balance} left");
        }
        Ok(())
    })
}

/// Positions leave room for the tokens of a round.
fn position() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, 0..u64::MAX - 100]
}

pub(crate) fn coupled() -> Found {
    property((case(&ALL, 1..=4usize), position()), |(case, position)| {
        let (draft, rows) = case.draw();
        let block = Block::new(&draft, &rows).unwrap().at(position);
        let rule = CoupledRule { noise: Noise::new(case.seed) };
        prop_assert!(judge(&rule, &block, (case.temper, case.seed))?.is_some());
        Ok(())
    })
}

/// Whatever is drafted, the text is the one that the target's choices make alone.
pub(crate) fn coupled_text() -> Found {
    let chosen = proptest::option::of(0..=4usize);
    property((case(&ALL, 1..=4usize), position(), chosen), |(case, position, drafted)| {
        let noise = Noise::new(case.seed);
        let rule = CoupledRule { noise };
        let rows: Vec<Dist> = case.rows.iter().map(|row| row.dist(case.vocab_len)).collect();
        let plain =
            chosen_text(noise, position, 14, |text| &rows[case.row_after(text, Speaker::Target)]);
        let (draft, after) = match drafted {
            None => case.draw(),
            Some(len) => coupled_draft(&case, &rows, &plain[..len]),
        };
        let block = Block::new(&draft, &after).unwrap().at(position);
        let verdict = rule.verify(&block, &mut Random(Philox::new(0))).unwrap();
        let text = [draft.path_to(verdict.node), vec![verdict.next]].concat();
        prop_assert_eq!(&text[..], &plain[..text.len()]);
        // It stops only where the target's choice is not drafted.
        prop_assert!(draft.child(verdict.node, verdict.next).is_none());
        if let Some(len) = drafted {
            prop_assert_eq!(verdict.accepted, len);
        }
        Ok(())
    })
}

/// The plain text: what the rows choose, one after the other.
fn chosen_text<'a>(
    noise: Noise,
    position: u64,
    len: usize,
    row: impl Fn(&[Token]) -> &'a Dist,
) -> Vec<Token> {
    let mut text = Vec::new();
    for place in (position..).take(len) {
        text.push(noise.choose(place, row(&text)));
    }
    text
}

/// A drafter that guesses right.
fn coupled_draft(case: &Case, rows: &[Dist], text: &[Token]) -> (Draft, Vec<Dist>) {
    let draft = Draft::fixed_path(case.vocab_len, text.iter().copied()).unwrap();
    let after = |n: usize| rows[case.row_after(&text[..n], Speaker::Target)].clone();
    (draft, (0..=text.len()).map(after).collect())
}

/// Rows equal bit for bit along one path: there is nothing to reject.
pub(crate) fn equal_rows() -> Found {
    property((case(&[Scheme::Paths], Just(1)), row()), |(case, last)| {
        let rows: Vec<Dist> = case.rows.iter().map(|row| row.dist(case.vocab_len)).collect();
        let mut chance = Random(Philox::new(case.seed));
        let mut path: Vec<(Token, Dist)> = Vec::new();
        for n in 0..case.plan.len {
            let row = rows[n % rows.len()].clone();
            path.push((row.draw(&mut chance), row));
        }
        let mut target: Vec<Dist> = path.iter().map(|(_, row)| row.clone()).collect();
        target.push(last.dist(case.vocab_len));
        let draft = Draft::path(case.vocab_len, path).unwrap();
        let block = Block::new(&draft, &target).unwrap();
        let rules: [&dyn Rule; 5] = [
            &TokenRule,
            &BlockRule,
            &PooledRule,
            &GbvRule { guarded: true },
            &GbvRule { guarded: false },
        ];
        for rule in rules {
            let verdict = judge(rule, &block, (case.temper, case.seed))?.unwrap();
            prop_assert_eq!(verdict.accepted, draft.len(), "{}", rule.name());
        }
        Ok(())
    })
}

/// Drafts by any calls, judged by every rule against any rows.
pub(crate) fn any_draft() -> Found {
    let rows = proptest::collection::vec(row(), 1..=3);
    property((calls(), rows, any::<u64>(), temper()), |(calls, rows, seed, temper)| {
        let Ok(draft) = calls.draft()? else { return Ok(()) };
        let rows: Vec<Dist> = rows.iter().map(|row| row.dist(calls.vocab_len)).collect();
        let target: Vec<Dist> =
            (0..=draft.len()).map(|node| rows[node % rows.len()].clone()).collect();
        let block = Block::new(&draft, &target).unwrap().at(seed % 1_000);
        let coupled = CoupledRule { noise: Noise::new(seed) };
        for rule in RULES.into_iter().chain([&coupled as &dyn Rule]) {
            judge(rule, &block, (temper, seed))?;
        }
        Ok(())
    })
}

/// Wide drafts around the limit of 64 candidates.
pub(crate) fn many_candidates() -> Found {
    property(case(&INDEPENDENT, 50..=70usize), |mut case| {
        case.plan.len = case.plan.len.min(2);
        case.vocab_len = case.vocab_len.min(80);
        let (draft, rows) = case.draw();
        let block = Block::new(&draft, &rows).unwrap();
        for rule in RULES {
            let verdict = judge(rule, &block, (case.temper, case.seed))?;
            let whole_paths = case.plan.scheme == Scheme::Paths && !draft.is_empty();
            let pools = matches!(rule.name(), "spectr" | "pooled");
            if whole_paths && pools && case.plan.len > case.plan.trunk {
                prop_assert_eq!(verdict.is_none(), case.plan.width > 64, "{}", rule.name());
            }
        }
        Ok(())
    })
}

//! What a gate sees, learns and stores.

use forerun_verify::rand_core::Rng as _;
use forerun_verify::{Draft, Philox, Scheme};

use super::*;

const DRAFTER: DrafterId = DrafterId(0);
const OTHER: DrafterId = DrafterId(1);

fn uniform(random: &mut Philox) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[test]
fn a_row_is_seen_as_its_softmax_is() {
    let random = &mut Philox::new(5);
    for len in [1, 2, 40, 1000] {
        #[allow(clippy::cast_possible_truncation, reason = "rows are so precise")]
        let mut logits: Vec<f32> = (0..len).map(|_| (12.0 * uniform(random)) as f32).collect();
        if len > 2 {
            logits[1] = f32::NEG_INFINITY;
        }
        let row = Dist::softmax(&logits, 1.0).unwrap();
        let view = RowView::of(&logits);
        let entropy: f64 = row.support().map(|(_, chance)| -chance * chance.ln()).sum();
        let (likeliest, best) = row.likeliest();
        assert_eq!(view.likeliest, likeliest, "{len}");
        assert!((view.best - best).abs() < 1e-4 && (view.entropy - entropy).abs() < 1e-2, "{len}");
        let mut chances: Vec<f64> = row.support().map(|(_, chance)| chance).collect();
        chances.sort_by(|one, other| other.total_cmp(one));
        for (gap, chance) in view.gaps.iter().zip(&chances) {
            assert!((gap - (best / chance).ln()).abs() < 1e-3, "{len}: {view:?}");
        }
    }
}

#[test]
fn a_token_is_ranked_the_same_at_every_temperature() {
    let logits = [0.0, 3.0, 1.0, 2.0, -1.0];
    let view = RowView::of(&logits);
    let watch = Gates::default().watch((DRAFTER, 1.0), 0, None);
    for temperature in [0.2, 1.0, 1.7] {
        let row = Dist::softmax(&logits, temperature).unwrap();
        for (token, rank) in [(1, 0), (3, 1), (2, 2), (0, 3), (4, 4)] {
            let drawn = Drawn::new(&view, &row, row.prob(Token(token)), temperature);
            let gap = f64::from(3.0 - logits[token as usize]);
            assert!((drawn.gap - gap).abs() < 1e-3, "{token} at {temperature}: {}", drawn.gap);
            let (seen, _) = watch.look(Node::ROOT, 0, &drawn);
            assert_eq!(seen.features[ROW + 1], f64::from(rank).ln_1p() / 2.0, "{token}");
        }
    }
    // The likeliest token alone can be drawn, whatever else the row says.
    let drawn = Drawn::new(&view, &Dist::point(5, Token(1)).unwrap(), 1.0, 0.0);
    assert_eq!(drawn.gap, 0.0);
}

/// A path of so many tokens, of which the first was drawn from an even row of two.
fn lessons_of(target: [[f32; 2]; 3]) -> Vec<Lesson> {
    let even = Dist::dense(vec![1.0, 1.0]).unwrap();
    let mut tree = Draft::start(Scheme::Independent, 2);
    let row = tree.row(even.clone()).unwrap();
    let first = tree.sampled(Node::ROOT, row, Token(0)).unwrap();
    let second = tree.sampled(first, row, Token(1)).unwrap();
    let draft = tree.finish().unwrap();
    let target: Vec<Dist> = target.map(|row| Dist::dense(row.to_vec()).unwrap()).to_vec();
    let block = Block::new(&draft, &target).unwrap();
    let watch = Gates::default().watch((DRAFTER, 1.0), 0, None);
    let drawn = Drawn::new(&RowView::of(&[0.0, 0.0]), &even, 0.5, 1.0);
    let seen =
        [first, second].map(|node| (DRAFTER, watch.look(node, draft.depth(node) - 1, &drawn).0));
    lessons(&block, &seen)
}

#[test]
fn a_token_teaches_how_likely_it_was_accepted_once_those_before_were() {
    let lessons = lessons_of([[0.25, 0.75], [0.4, 0.6], [0.5, 0.5]]);
    let learned: Vec<(f64, f64)> =
        lessons.iter().map(|it| (it.example.hit, it.example.weight)).collect();
    assert_eq!(learned.len(), 2);
    for ((hit, weight), wanted) in learned.iter().zip([(0.5, 1.0), (1.0, 0.5)]) {
        assert!((hit - wanted.0).abs() < 1e-6 && (weight - wanted.1).abs() < 1e-6, "{learned:?}");
    }
    // What comes after a token that is never accepted is not asked for.
    assert_eq!(lessons_of([[0.0, 1.0], [0.4, 0.6], [0.5, 0.5]]).len(), 1);
}

/// An example of a drafter that is right the more often the surer it is, and how often.
fn example(random: &mut Philox) -> (Lesson, f64) {
    let sure = 0.5 + 0.499 * uniform(random);
    #[allow(clippy::cast_possible_truncation, reason = "rows are so precise")]
    let logits = [sure.ln() as f32, (1.0 - sure).ln() as f32];
    let row = Dist::softmax(&logits, 1.0).unwrap();
    let drawn = Drawn::new(&RowView::of(&logits), &row, row.likeliest().1, 1.0);
    let watch = Gates::default().watch((DRAFTER, 1.0), 3, None);
    let (seen, _) = watch.look(Node::ROOT, 1, &drawn);
    let chance = 2.0 * sure - 1.0;
    let hit = f64::from(u8::from(uniform(random) < chance));
    (Lesson::new(DRAFTER, &seen, hit, 1.0), chance)
}

#[test]
fn a_gate_learns_to_tell_what_is_accepted() {
    let random = &mut Philox::new(11);
    let mut gate = Gate::default();
    assert_eq!((gate.is_ready(), gate.auc()), (false, None));
    let mut truth = Auc::default();
    for _ in 0..4000 {
        let (lesson, chance) = example(random);
        truth.add(chance, lesson.example.hit, 1.0);
        gate.learn(&lesson);
    }
    let ((before, after), best) = (gate.auc().unwrap(), truth.area().unwrap());
    assert!(gate.is_ready() && best > 0.8, "{best}");
    // Each example was predicted before it was learned from, and the likeliest token adds nothing.
    assert!(before > best - 0.03 && after > best - 0.03, "{before} {after} of {best}");
    assert!(before < best + 0.03, "{before} of {best}");
}

#[test]
fn a_gate_that_cannot_know_does_not_seem_to() {
    let random = &mut Philox::new(12);
    let mut gate = Gate::default();
    for _ in 0..4000 {
        let (mut lesson, _) = example(random);
        lesson.example.hit = f64::from(u8::from(uniform(random) < 0.6));
        gate.learn(&lesson);
    }
    let (before, after) = gate.auc().unwrap();
    assert!((before - 0.5).abs() < 0.05 && (after - 0.5).abs() < 0.05, "{before} {after}");
    assert!((gate.fitted().mean - 0.6).abs() < 0.05);
}

fn end(reach: f64, depth: usize) -> PathEnd {
    PathEnd { reach, depth, len_max: 8, paths: 1 }
}

#[test]
fn a_path_goes_on_while_that_brings_more_than_it_costs() {
    let worth = Worth { scored: Price::per_token(0.3), pass: 0.2, width: 1 };
    // Without a pass before it, a token must bring 0.3 alone or together with others.
    assert!(worth.goes_on(&end(1.0, 0), 0.31, 0.0, 0.0));
    assert!(!worth.goes_on(&end(1.0, 0), 0.29, 0.0, 0.0));
    assert!(!worth.goes_on(&end(0.5, 3), 0.55, 0.0, 0.0), "the path itself may be rejected");
    // With one, 0.5.
    assert!(worth.goes_on(&end(1.0, 0), 0.51, 0.0, 1.0));
    assert!(!worth.goes_on(&end(1.0, 0), 0.49, 0.0, 1.0));
    assert!(!worth.goes_on(&end(1.0, 8), 1.0, 1.0, 0.0), "it is as long as it may be");
    // The first token is dear, those after it are not: together they pay.
    let worth = Worth { scored: Price::new([0.9, 1.0, 1.1]), pass: 0.0, width: 1 };
    assert!(worth.goes_on(&end(1.0, 0), 0.8, 0.9, 0.0));
    assert!(!worth.goes_on(&end(1.0, 0), 0.5, 0.1, 0.0));
}

fn two_gates() -> Gates {
    let named = [(DRAFTER, "small for large"), (OTHER, "tiny for large")];
    Gates::new(named.map(|(id, name)| (id, name.to_owned())))
}

#[test]
fn drafters_and_temperatures_have_gates_of_their_own() {
    let random = &mut Philox::new(13);
    let mut gates = two_gates();
    let (lesson, _) = example(random);
    let other = Lesson { drafter: OTHER, ..lesson.clone() };
    let unknown = Lesson { drafter: DrafterId(9), ..lesson.clone() };
    gates.learn(&[lesson.clone(), lesson.clone()], 0.71);
    gates.learn(&[lesson, other, unknown], 0.0);
    let seen = |drafter, temperature| gates.of(drafter, temperature).map(|gate| gate.seen);
    assert_eq!(seen(DRAFTER, 0.7), Some(2.0));
    assert_eq!(seen(DRAFTER, 0.0), Some(1.0));
    assert_eq!((seen(OTHER, 0.0), seen(OTHER, 0.7)), (Some(1.0), None));
    assert_eq!(seen(DrafterId(9), 0.0), None);
    assert_eq!(gates.iter().count(), 3);
}

/// Gates that have learned something, as text.
fn stored() -> (Gates, String) {
    let random = &mut Philox::new(14);
    let mut gates = two_gates();
    let lessons: Vec<Lesson> = (0..96).map(|_| example(random).0).collect();
    gates.learn(&lessons, 0.8);
    let text = serde_json::to_string(&gates.save()).unwrap();
    (gates, text)
}

fn load(text: &str) -> Result<Gates, String> {
    let saved: SavedGates = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut gates = two_gates();
    gates.load(&saved).map_err(|error| error.to_string())?;
    Ok(gates)
}

#[test]
fn gates_come_back_as_they_were_stored() {
    let (gates, text) = stored();
    let loaded = load(&text).unwrap();
    let of = |gates: &Gates| gates.of(DRAFTER, 0.8).unwrap().fitted();
    assert_eq!(of(&loaded), of(&gates));
    assert!(loaded.of(DRAFTER, 0.8).unwrap().is_ready());
    assert_eq!(loaded.save(), gates.save());
    // One whose drafter is not here now stays in the file.
    let mut others = Gates::new([(DRAFTER, "another for large".to_owned())]);
    others.load(&gates.save()).unwrap();
    assert!(others.of(DRAFTER, 0.8).is_none());
    assert_eq!(others.save(), gates.save());
}

#[test]
fn numbers_that_cannot_be_right_are_refused() {
    let (_, text) = stored();
    assert!(load(&text).is_ok());
    for (old, new) in [
        (text.as_str(), &text[..text.len() / 2]),
        ("\"format\":1", "\"format\":2"),
        ("\"seen\":", "\"sight\":"),
        ("\"accepted\":", "\"accepted\":1e9,\"ignored\":"),
        ("\"weights\":[", "\"weights\":[0.5,"),
        ("\"weights\":[", "\"weights\":[null,"),
        ("\"precision\":[[", "\"precision\":[[-"),
    ] {
        let broken = text.replacen(old, new, 1);
        assert_ne!(broken, text);
        assert!(load(&broken).is_err(), "{old} as {new}");
    }
    let mut saved: SavedGates = serde_json::from_str(&text).unwrap();
    saved.gates[0].accepted = saved.gates[0].seen + 1.0;
    let mut gates = two_gates();
    let refused = gates.load(&saved).unwrap_err().to_string();
    assert!(refused.contains("temperature 0.8 cannot be right"), "{refused}");
    assert_eq!(gates, two_gates(), "nothing is taken over");
}

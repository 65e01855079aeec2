//! The row that a lossy rule keeps in place of the target's: as close to the draft as a budget
//! allows.
//!
//! For a prefix of weight `w` that is `clip(draft / w, down * target, up * target)`. Tokens the
//! drafter likes more than the target are raised to at most `up` times the target's probability,
//! and the others lowered to no less than `down` times, with as much mass raised as lowered. No
//! row at the same distance lets more of the draft pass, and none is nearer to the target by any
//! f-divergence that lets as much pass.
//!
//! Short rows are kept and solved exactly. Long ones are counted in one pass into buckets of
//! nearly equal distance from the target; `up` and `down` then stand on the edge of a bucket, where
//! the mass that moves is known exactly, and both are rounded towards one.

use fearless_simd::{Simd, dispatch};

use crate::dist::{Dist, Entries, common};
use crate::draft::Proposal;
use crate::profile::SHORT_MAX;
use crate::simd::{CHUNK, level};

/// How far a row may be bent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Most mass that moves.
    pub(crate) spend: f64,
    /// Most that a probability is multiplied by.
    pub(crate) factor: f64,
}

/// How a target row is bent towards a draft row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bend {
    /// Most that a probability is multiplied by.
    pub(crate) up: f64,
    /// Least that a probability is multiplied by.
    pub(crate) down: f64,
    /// The mass that moves: the total variation between bent row and target.
    pub(crate) spent: f64,
    /// What does not go on along the draft, of the weight that arrived. It follows from the mass
    /// that moves, so that nothing is lost or counted twice where `down` is rounded.
    pub(crate) left: f64,
}

impl Bend {
    /// Bends the row of a prefix of this weight, or returns `None` if nothing can move.
    pub(crate) fn new(
        (weight, target): (f64, &Dist),
        draft: Proposal<'_>,
        limits: Limits,
    ) -> Option<Self> {
        if weight <= 0.0 || limits.spend <= 0.0 || limits.factor <= 1.0 {
            return None;
        }
        let Sides { mut above, mut below } = Sides::new((weight, target), draft);
        let missing = below.total();
        let (raise, spent) = above.within(limits.spend.min(missing), limits.factor - 1.0);
        if spent <= 0.0 {
            return None;
        }
        let (lower, _) = below.within(spent, 1.0);
        let left = weight * (missing - spent);
        Some(Self { up: 1.0 + raise, down: 1.0 - lower, spent, left })
    }
}

/// The tokens that `draft / weight` gives more probability than the target, and those it gives
/// less. Tokens the target never says are on neither side.
#[derive(Debug)]
struct Sides {
    above: Side,
    below: Side,
}

impl Sides {
    fn new((weight, target): (f64, &Dist), draft: Proposal<'_>) -> Self {
        let row = match draft {
            Proposal::Row(row) => row,
            Proposal::Fixed(token) => {
                let drafted = target.prob(token);
                let pairs = (drafted > 0.0).then_some((drafted, 1.0 / weight));
                return Self::kept(pairs.into_iter().collect());
            }
        };
        let short = row.stored_len().min(target.stored_len()) <= SHORT_MAX;
        let scale = row.unit() / weight;
        match (target.entries(), row.entries()) {
            (Entries::Dense { weights: targets, .. }, Entries::Dense { weights: drafts, .. })
                if !short =>
            {
                let units = (target.unit(), scale);
                let counts = dispatch!(level(), simd => count(simd, targets, drafts, units));
                Self::counted(counts)
            }
            _ => {
                let mut pairs = Vec::with_capacity(row.stored_len().min(target.stored_len()));
                common(target, row, |_, target_weight, draft_weight| {
                    let probability = f64::from(target_weight) * target.unit();
                    pairs.push((probability, f64::from(draft_weight) * scale));
                });
                if short { Self::kept(pairs) } else { Self::counted(count_pairs(pairs)) }
            }
        }
    }

    /// From the pairs of target and draft probability, the latter over the weight, of the tokens
    /// that both rows say.
    fn kept(pairs: Vec<(f64, f64)>) -> Self {
        let (mut above, mut below) = (Vec::new(), Vec::new());
        let undrafted = undrafted(&pairs);
        for (target, draft) in pairs.into_iter().chain([(undrafted, 0.0)]) {
            if target > 0.0 {
                let size = draft / target - 1.0;
                let side = if size > 0.0 { &mut above } else { &mut below };
                side.push((size.abs(), target));
            }
        }
        Self { above: Side::Kept(above), below: Side::Kept(below) }
    }

    fn counted(mut counts: Vec<Count>) -> Self {
        let below = counts.split_off(BUCKETS);
        Self { above: Side::Counted(counts), below: Side::Counted(below) }
    }
}

/// The target's probability of all tokens that the drafter never says.
fn undrafted(pairs: &[(f64, f64)]) -> f64 {
    (1.0 - pairs.iter().map(|(target, _)| target).sum::<f64>()).max(0.0)
}

/// The tokens on one side of the target, by *size*: how far they could move, in multiples of their
/// target probability.
#[derive(Debug)]
enum Side {
    /// Every token: its size and target probability.
    Kept(Vec<(f64, f64)>),
    /// Counts by bucket of the size.
    Counted(Vec<Count>),
}

/// Of the tokens in a bucket: their target probability, and that times their size.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    target: f64,
    movable: f64,
}

impl Side {
    /// The mass that could move.
    fn total(&self) -> f64 {
        match self {
            Self::Kept(tokens) => tokens.iter().map(|(size, target)| size * target).sum(),
            Self::Counted(counts) => counts.iter().map(|count| count.movable).sum(),
        }
    }

    /// The largest size, up to `size_max`, by which all tokens can be moved, or as far as they go,
    /// within a limit on the mass; and that mass.
    fn within(&mut self, limit: f64, size_max: f64) -> (f64, f64) {
        match self {
            Self::Kept(tokens) => {
                tokens.sort_unstable_by(|one, two| one.0.total_cmp(&two.0));
                kept_within(tokens, limit, size_max)
            }
            Self::Counted(counts) => counted_within(counts, limit, size_max),
        }
    }
}

fn kept_within(sorted: &[(f64, f64)], limit: f64, size_max: f64) -> (f64, f64) {
    // Added up from the end, so that what is left of a few tokens is not a difference of sums.
    let mut target_from = vec![0.0; sorted.len() + 1];
    for (n, (_, target)) in sorted.iter().enumerate().rev() {
        target_from[n] = target_from[n + 1] + target;
    }
    let (mut moved_whole, mut largest) = (0.0, 0.0);
    for ((size, target), target_from) in sorted.iter().zip(target_from) {
        if *size >= size_max || moved_whole + target_from * size >= limit {
            let size = ((limit - moved_whole) / target_from).min(size_max).max(0.0);
            return (size, (moved_whole + target_from * size).min(limit));
        }
        moved_whole += target * size;
        largest = *size;
    }
    (largest, moved_whole)
}

fn counted_within(counts: &[Count], limit: f64, size_max: f64) -> (f64, f64) {
    let mut target_from = vec![0.0; BUCKETS];
    let mut target = 0.0;
    for (from, count) in target_from.iter_mut().zip(counts).rev() {
        target += count.target;
        *from = target;
    }
    let (mut best, mut moved_whole) = ((0.0, 0.0), 0.0);
    for (bucket, (count, target_from)) in counts.iter().zip(target_from).enumerate() {
        let size = edge(bucket);
        let moved = moved_whole + target_from * size;
        if size > size_max || moved > limit {
            break;
        }
        best = (size, moved);
        moved_whole += count.movable;
    }
    best
}

/// Buckets to each doubling of the size, as a power of two: rounding gives up at most a
/// thirty-second of a budget.
const BUCKET_BITS: u32 = 5;
/// Mantissa bits of `f64` that do not tell buckets apart.
const SHIFT: u32 = 52 - BUCKET_BITS;
/// Sizes below two to the minus twenty share the first bucket, those from [`SIZE_MAX`] the last.
const BITS_MIN: u64 = (1_023 - 20) << 52;
const SIZE_MAX: f64 = 65_536.0;
const BUCKETS: usize = (36 << BUCKET_BITS) + 1;

/// The least size in a bucket.
fn edge(bucket: usize) -> f64 {
    if bucket == 0 { 0.0 } else { f64::from_bits(BITS_MIN + ((bucket as u64) << SHIFT)) }
}

/// The bucket of a size of at most [`SIZE_MAX`].
#[inline(always)]
fn bucket(size: f64) -> usize {
    (size.to_bits().saturating_sub(BITS_MIN) >> SHIFT) as usize
}

/// The place of a token among the counts of both sides, and what it adds there. The first half is
/// above the target.
#[inline(always)]
fn placed(target: f64, draft: f64) -> (usize, Count) {
    let size = if target > 0.0 { draft / target - 1.0 } else { 0.0 };
    let (side, size) = if size > 0.0 { (0, size.min(SIZE_MAX)) } else { (BUCKETS, size.abs()) };
    (side + bucket(size), Count { target, movable: target * size })
}

fn count_pairs(pairs: Vec<(f64, f64)>) -> Vec<Count> {
    let mut counts = vec![Count::default(); 2 * BUCKETS];
    let undrafted = undrafted(&pairs);
    for (target, draft) in pairs.into_iter().chain([(undrafted, 0.0)]) {
        let (place, count) = placed(target, draft);
        add(&mut counts[place], count);
    }
    counts
}

#[inline(always)]
fn count<S: Simd>(_: S, targets: &[f32], drafts: &[f32], (unit, scale): (f64, f64)) -> Vec<Count> {
    let mut counts = vec![Count::default(); 2 * BUCKETS];
    let mut staged = [(0, Count::default()); CHUNK];
    for (targets, drafts) in targets.chunks(CHUNK).zip(drafts.chunks(CHUNK)) {
        // Where to and what first, all at once; then the additions, one by one.
        for (placed_at, (&target, &draft)) in staged.iter_mut().zip(targets.iter().zip(drafts)) {
            *placed_at = placed(f64::from(target) * unit, f64::from(draft) * scale);
        }
        for (place, count) in &staged[..targets.len()] {
            add(&mut counts[*place], *count);
        }
    }
    counts
}

#[inline(always)]
fn add(sum: &mut Count, count: Count) {
    sum.target += count.target;
    sum.movable += count.movable;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::Token;

    fn row(len: usize, step: usize) -> Vec<f32> {
        (0..len).map(|i| 1.0 / (1.0 + ((i * step) % 97) as f32)).collect()
    }

    fn sparse(weights: &[f32], every: usize) -> Dist {
        let entries = weights.iter().enumerate().filter(|(i, _)| i % every == 0);
        let entries = entries.map(|(i, w)| (Token::at(i), *w));
        Dist::sparse(weights.len(), entries).unwrap()
    }

    /// Mass raised, mass lowered and mass that leaves, token by token.
    fn moved(bend: &Bend, (weight, target): (f64, &Dist), draft: &Dist) -> (f64, f64, f64) {
        let (mut raised, mut lowered, mut left) = (0.0, 0.0, weight);
        for (token, target) in target.support() {
            let wanted = draft.prob(token) / weight;
            raised += (wanted.min(bend.up * target) - target).max(0.0);
            lowered += (target - wanted.max(bend.down * target)).max(0.0);
            left -= draft.prob(token).min(bend.up * weight * target);
        }
        (raised, lowered, left)
    }

    /// Whatever the form of the rows: what is said to move moves, and nothing beyond the limits.
    #[test]
    fn what_moves_is_what_is_spent() {
        for len in [100, 3_000] {
            let (target, draft) = (row(len, 7), row(len, 31));
            let forms = |weights: &[f32]| {
                [Dist::dense(weights.to_vec()).unwrap(), sparse(weights, 1), sparse(weights, 3)]
            };
            for (target, draft) in
                forms(&target).iter().flat_map(|t| forms(&draft).map(move |d| (t, d)))
            {
                for weight in [1.0, 0.3, 1e-3] {
                    for spend in [1e-4, 0.02, 0.3, 1.0] {
                        for factor in [1.5, 4.0, 65_536.0] {
                            let limits = Limits { spend, factor };
                            agrees((weight, target), &draft, limits, len > 100);
                        }
                    }
                }
            }
        }
    }

    fn agrees((weight, target): (f64, &Dist), draft: &Dist, limits: Limits, long: bool) {
        let Some(bend) = Bend::new((weight, target), Proposal::Row(draft), limits) else { return };
        let (raised, lowered, left) = moved(&bend, (weight, target), draft);
        assert!(bend.spent <= limits.spend && bend.up <= limits.factor + 1e-12, "{bend:?}");
        assert!((raised - bend.spent).abs() < 1e-13, "raised {raised}: {bend:?}");
        assert!(lowered < bend.spent + 1e-13, "lowered {lowered}: {bend:?}");
        assert!((left - bend.left).abs() < 1e-13, "left {left}: {bend:?}");
        // Rounding to a bucket's edge gives up little.
        let wasted = if long { 0.05 } else { 1e-12 };
        let (_, most, _) = moved(&Bend { down: 0.0, ..bend }, (weight, target), draft);
        let (reached, ..) = moved(&Bend { up: limits.factor, ..bend }, (weight, target), draft);
        let most = most.min(reached).min(limits.spend);
        assert!(bend.spent >= most * (1.0 - wasted), "{most} could move: {bend:?}");
        assert!(lowered >= bend.spent * (1.0 - wasted), "lowered {lowered}: {bend:?}");
    }

    #[test]
    fn instruction_sets_count_alike() {
        let (target, draft) = (row(5_003, 7), row(5_003, 31));
        let scalar = fearless_simd::Level::fallback();
        let best = dispatch!(level(), simd => count(simd, &target, &draft, (0.7, 0.9)));
        let plain = dispatch!(scalar, simd => count(simd, &target, &draft, (0.7, 0.9)));
        for (best, plain) in best.iter().zip(plain) {
            assert_eq!((best.target, best.movable), (plain.target, plain.movable));
        }
    }

    #[test]
    fn sizes_find_their_bucket() {
        for bucket_at in 1..BUCKETS {
            assert_eq!(bucket(edge(bucket_at)), bucket_at);
            assert_eq!(bucket(edge(bucket_at).next_down()), bucket_at - 1);
        }
        assert_eq!((edge(BUCKETS - 1), bucket(0.0)), (SIZE_MAX, 0));
    }
}

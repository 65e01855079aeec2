//! How the likelihood ratio of target to draft is spread: enough to know, for any bar, what share
//! of a drafter's tokens passes it, without going over the rows again.
//!
//! Short rows are sorted, and any bar is exact. Long ones are counted into buckets of nearly
//! equal ratio in one pass; a bar must then stand on a bucket's edge, where the answer is exact
//! too. Long rows use a ratio in `f32` rounded *down*: a rule that never asks for more than its
//! share stays lossless, as long as every use of the ratio is the same one.

use fearless_simd::{Simd, dispatch};

use crate::dist::{Dist, Entries, Token};
use crate::simd::{LANES, level};

/// Rows of at most this many entries are sorted.
const SORTED_MAX: usize = 512;
/// Buckets to each doubling of the ratio, as a power of two.
const BUCKET_BITS: u32 = 6;
/// Ratios of long rows lie within two to the plus or minus this, or are zero.
const RANGE_LOG2: i32 = 16;
/// Mantissa bits of `f32` that do not tell buckets apart.
const SHIFT: u32 = 23 - BUCKET_BITS;
/// Outweighs the three roundings of a ratio in `f32`, so that it is never above the true one.
const ROUND_DOWN: f64 = 1.0 - 1.0 / (1 << 21) as f64;

/// The ratio of a target row to the average of the rows its slots were drawn from.
#[derive(Debug, Clone)]
pub(crate) struct Ratio<'a> {
    target: &'a Dist,
    /// Rows with their share of the slots.
    rows: Vec<(f64, &'a Dist)>,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// Sorted rows: the ratio in `f64`.
    Exact,
    /// One dense row: the quotient of the weights times this.
    Quotient(f32),
    /// Several rows, at least one pair of them long.
    Mixed,
}

impl<'a> Ratio<'a> {
    /// The ratio of `target` to `rows`, each with its share of the slots.
    pub(crate) fn new(target: &'a Dist, rows: Vec<(f64, &'a Dist)>) -> Self {
        let longest = rows.iter().map(|(_, row)| row.stored_len()).max().unwrap_or(0);
        let form = if longest.min(target.stored_len()) <= SORTED_MAX {
            Form::Exact
        } else {
            match quotient_factor(target, &rows) {
                Some(factor) => Form::Quotient(factor),
                None => Form::Mixed,
            }
        };
        Self { target, rows, form }
    }

    /// The ratio at one token; zero where no row gives it probability.
    pub(crate) fn at(&self, token: Token) -> f64 {
        match self.form {
            Form::Exact => self.quotient(token),
            Form::Quotient(factor) => {
                f64::from(capped(self.target.weight(token), self.rows[0].1.weight(token), factor))
            }
            Form::Mixed => f64::from(capped_ratio(self.quotient(token))),
        }
    }

    fn quotient(&self, token: Token) -> f64 {
        let draft: f64 = self.rows.iter().map(|(share, row)| share * row.prob(token)).sum();
        if draft > 0.0 { self.target.prob(token) / draft } else { 0.0 }
    }

    /// How the ratio is spread over the tokens of one of the rows.
    pub(crate) fn profile(&self, row: &Dist) -> Profile {
        match (self.form, self.target.entries(), row.entries()) {
            (Form::Exact, ..) => self.sorted(row),
            (
                Form::Quotient(factor),
                Entries::Dense { weights: target, .. },
                Entries::Dense { weights: draft, .. },
            ) => {
                let unit = row.unit();
                let counts = dispatch!(level(), simd => count(simd, target, draft, factor));
                Profile::from_counts(counts, unit)
            }
            _ => self.counted(row),
        }
    }

    fn sorted(&self, row: &Dist) -> Profile {
        let few = if row.stored_len() < self.target.stored_len() { row } else { self.target };
        let mut bins: Vec<(f64, f64)> = few
            .support()
            .map(|(token, _)| (self.at(token), row.prob(token)))
            .filter(|(ratio, draft)| *ratio > 0.0 && *draft > 0.0)
            .collect();
        bins.sort_unstable_by(|one, two| one.0.total_cmp(&two.0));
        Profile::from_bins(bins)
    }

    fn counted(&self, row: &Dist) -> Profile {
        let mut counts = Counts::new();
        for (token, draft) in row.support() {
            counts.add(capped_ratio(self.quotient(token)), draft);
        }
        Profile::from_counts(counts, 1.0)
    }
}

/// What turns a quotient of weights into a ratio of probabilities, where one dense row faces a
/// dense target and the factor is an ordinary number.
fn quotient_factor(target: &Dist, rows: &[(f64, &Dist)]) -> Option<f32> {
    let [(_, row)] = rows[..] else { return None };
    let dense = |row: &Dist| matches!(row.entries(), Entries::Dense { .. });
    #[expect(clippy::cast_possible_truncation, reason = "rounding is provided for")]
    let factor = (target.unit() / row.unit() * ROUND_DOWN) as f32;
    (dense(target) && dense(row) && factor.is_normal()).then_some(factor)
}

/// The ratio of two weights, rounded down, zero below the range and cut off above it.
#[inline(always)]
fn capped(target: f32, draft: f32, factor: f32) -> f32 {
    let ratio = target / draft * factor;
    // A quotient that left the normal numbers may have been rounded up.
    let sound = (draft > 0.0) & (target / draft >= f32::MIN_POSITIVE);
    let ratio = if sound & (ratio >= edge(0)) { ratio } else { 0.0 };
    if ratio < RATIO_MAX { ratio } else { RATIO_MAX }
}

fn capped_ratio(ratio: f64) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is provided for")]
    let ratio = (ratio * ROUND_DOWN) as f32;
    if ratio >= edge(0) { ratio.min(RATIO_MAX) } else { 0.0 }
}

const RATIO_MAX: f32 = (1u32 << RANGE_LOG2) as f32;
/// Bits of the least ratio in range.
const BITS_MIN: u32 = ((127 - RANGE_LOG2) as u32) << 23;
/// Buckets in range: the last holds the cut-off ratios alone.
const BUCKETS: usize = ((2 * RANGE_LOG2 as usize) << BUCKET_BITS) + 1;

/// The lower edge of a bucket: the `f32` whose low mantissa bits are zero.
#[inline(always)]
const fn edge(bucket: u32) -> f32 {
    f32::from_bits(BITS_MIN + (bucket << SHIFT))
}

/// The bucket of a ratio in range.
#[inline(always)]
fn bucket(ratio: f32) -> usize {
    (ratio.to_bits().saturating_sub(BITS_MIN) >> SHIFT) as usize
}

/// Draft weight, and draft weight times ratio, by bucket.
struct Counts(Vec<[f64; 2]>);

impl Counts {
    fn new() -> Self {
        Self(vec![[0.0; 2]; BUCKETS])
    }

    #[inline(always)]
    fn add(&mut self, ratio: f32, draft: f64) {
        // A ratio of zero falls into the first bucket and must not count there.
        let draft = if ratio > 0.0 { draft } else { 0.0 };
        let [weight, share] = &mut self.0[bucket(ratio)];
        *weight += draft;
        *share += draft * f64::from(ratio);
    }
}

#[inline(always)]
fn count<S: Simd>(_: S, target: &[f32], draft: &[f32], factor: f32) -> Counts {
    let mut counts = Counts::new();
    let (targets, target_tail) = target.as_chunks::<LANES>();
    let (drafts, draft_tail) = draft.as_chunks::<LANES>();
    for (targets, drafts) in targets.iter().zip(drafts) {
        // Ratios first, all at once; then the additions, which go where the ratios say.
        let mut ratios = [0.0; LANES];
        for lane in 0..LANES {
            ratios[lane] = capped(targets[lane], drafts[lane], factor);
        }
        for lane in 0..LANES {
            counts.add(ratios[lane], f64::from(drafts[lane]));
        }
    }
    for (&target, &draft) in target_tail.iter().zip(draft_tail) {
        counts.add(capped(target, draft, factor), f64::from(draft));
    }
    counts
}

/// The spread of a ratio: bins of rising ratio with the draft mass from each bin on, and the sum
/// of draft mass times ratio before it.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    /// The least ratio of each bin.
    edges: Vec<f64>,
    draft_from: Vec<f64>,
    share_before: Vec<f64>,
    sorted: bool,
}

/// The bins of a class of tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bins {
    from: usize,
    to: usize,
}

impl Profile {
    fn from_bins(bins: Vec<(f64, f64)>) -> Self {
        let edges = bins.iter().map(|(ratio, _)| *ratio).collect();
        let shares = bins.iter().map(|(ratio, draft)| [*draft, ratio * draft]);
        Self::new(edges, shares, true)
    }

    fn from_counts(counts: Counts, unit: f64) -> Self {
        let edges = (0u32..).take(BUCKETS).map(|bucket| f64::from(edge(bucket))).collect();
        let shares = counts.0.iter().map(|[draft, share]| [draft * unit, share * unit]);
        Self::new(edges, shares, false)
    }

    fn new(
        edges: Vec<f64>,
        shares: impl DoubleEndedIterator<Item = [f64; 2]> + Clone,
        sorted: bool,
    ) -> Self {
        let mut share_before = vec![0.0];
        let mut before = 0.0;
        share_before.extend(shares.clone().map(|[_, share]| {
            before += share;
            before
        }));
        let mut draft_from = vec![0.0];
        let mut from = 0.0;
        draft_from.extend(shares.rev().map(|[draft, _]| {
            from += draft;
            from
        }));
        draft_from.reverse();
        Self { edges, draft_from, share_before, sorted }
    }

    /// All tokens.
    pub(crate) fn all(&self) -> Bins {
        Bins { from: 0, to: self.edges.len() }
    }

    /// The tokens of ratio `bar` or more, and the rest.
    pub(crate) fn split(&self, bar: f64) -> [Bins; 2] {
        let at = self.below(bar);
        [Bins { from: at, to: self.edges.len() }, Bins { from: 0, to: at }]
    }

    /// The nearest bar, at or just below this one, at which answers are exact.
    pub(crate) fn snap(&self, bar: f64) -> f64 {
        if self.sorted {
            return bar;
        }
        #[expect(clippy::cast_possible_truncation, reason = "low bits are cut off below")]
        let bar = bar as f32;
        if bar <= edge(0) {
            return f64::from(edge(0));
        }
        f64::from(f32::from_bits(bar.min(RATIO_MAX).to_bits() >> SHIFT << SHIFT))
    }

    /// The mean, over tokens of these bins drawn from the row, of `min(1, ratio / bar)`; the bar
    /// is one that [`Profile::snap`] gave.
    pub(crate) fn passing(&self, bar: f64, bins: Bins) -> f64 {
        let at = self.below(bar).clamp(bins.from, bins.to);
        let above = self.draft_from[at] - self.draft_from[bins.to];
        let below = self.share_before[at] - self.share_before[bins.from];
        above + below / bar
    }

    /// How many bins lie below a bar.
    fn below(&self, bar: f64) -> usize {
        if self.sorted {
            return self.edges.partition_point(|edge| *edge < bar);
        }
        #[expect(clippy::cast_possible_truncation, reason = "a snapped bar is an f32")]
        let bar = bar as f32;
        bucket(bar)
    }
}

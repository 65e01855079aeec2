//! How the likelihood ratio of target to draft is spread: enough to know, for any bar, what share
//! of a drafter's tokens passes it, without going over the rows again.
//!
//! Short rows are kept as they are, and any bar is exact. Long ones are counted into buckets of
//! nearly equal ratio in one pass; a bar must then stand on a bucket's edge, where the answer is
//! exact too. Long rows use a ratio in `f32` rounded *down*: a rule that never asks for more than
//! its share stays lossless, as long as every use of the ratio is the same one.

use fearless_simd::{Simd, dispatch};

use crate::dist::{Dist, Entries, Token, common};
use crate::simd::{CHUNK, level};

/// Rows with at most this many tokens in common are kept; going over them again costs less than
/// clearing the buckets.
pub(crate) const SHORT_MAX: usize = 128;
/// Buckets to each doubling of the ratio, as a power of two.
const BUCKET_BITS: u32 = 6;
/// Ratios of long rows lie within two to the plus or minus this, or are zero.
const RANGE_LOG2: i32 = 16;
/// Mantissa bits of `f32` that do not tell buckets apart.
const SHIFT: u32 = 23 - BUCKET_BITS;
/// Outweighs the three roundings of a ratio in `f32`, so that it is never above the true one.
const ROUND_DOWN: f64 = 1.0 - 1.0 / (1 << 21) as f64;

/// The ratio of a target row to the average of the rows its candidates were drawn from.
#[derive(Debug, Clone)]
pub(crate) struct Ratio<'a> {
    target: &'a Dist,
    /// Rows with their share of the candidates.
    rows: Vec<(f64, &'a Dist)>,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    /// Short rows: the ratio in `f64`.
    Exact,
    /// One dense row: the quotient of the weights times this.
    Quotient(f32),
    /// Several rows, at least one pair of them long.
    Mixed,
}

impl<'a> Ratio<'a> {
    /// The ratio of `target` to `rows`, each with its share of the candidates.
    pub(crate) fn new(target: &'a Dist, rows: Vec<(f64, &'a Dist)>) -> Self {
        let longest = rows.iter().map(|(_, row)| row.stored_len()).max().unwrap_or(0);
        let form = if longest.min(target.stored_len()) <= SHORT_MAX {
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

    /// The ratio of two weights, where there is one row: bit for bit what [`Ratio::at`] says of
    /// their token, without looking it up.
    pub(crate) fn between(&self, target: f32, draft: f32) -> f64 {
        debug_assert_eq!(self.rows.len(), 1, "a mixture has no one draft weight");
        let (target_unit, draft_unit) = (self.target.unit(), self.rows[0].1.unit());
        let quotient = || f64::from(target) * target_unit / (f64::from(draft) * draft_unit);
        match self.form {
            Form::Exact => quotient(),
            Form::Quotient(factor) => f64::from(capped(target, draft, factor)),
            Form::Mixed => f64::from(capped_ratio(quotient())),
        }
    }

    /// A number that orders tokens by ratio: of short rows the ratio itself, of long ones its
    /// bucket, so that no row needs sorting.
    pub(crate) fn rank(&self, ratio: f64) -> f64 {
        match self.form {
            Form::Exact => ratio,
            #[expect(clippy::cast_possible_truncation, reason = "a ratio of a long row is an f32")]
            _ => bucket(ratio as f32) as f64,
        }
    }

    /// Whether ranks are few: numbers below [`RANKS`].
    pub(crate) fn has_few_ranks(&self) -> bool {
        self.form != Form::Exact
    }

    fn quotient(&self, token: Token) -> f64 {
        let draft: f64 = self.rows.iter().map(|(share, row)| share * row.prob(token)).sum();
        if draft > 0.0 { self.target.prob(token) / draft } else { 0.0 }
    }

    /// The dense weights of target and draft row and the factor of their quotient, in the form
    /// whose ratio is [`capped`].
    pub(crate) fn as_quotient(&self) -> Option<(&'a [f32], &'a [f32], f32)> {
        match (self.form, self.target.entries(), self.rows[0].1.entries()) {
            (
                Form::Quotient(factor),
                Entries::Dense { weights: target, .. },
                Entries::Dense { weights: draft, .. },
            ) => Some((target, draft, factor)),
            _ => None,
        }
    }

    /// How the ratio is spread over the tokens of one of the rows.
    pub(crate) fn profile(&self, row: &Dist) -> Profile {
        if self.form == Form::Exact {
            return self.kept(row);
        }
        let Some((target, draft, factor)) = self.as_quotient() else {
            return self.counted(row);
        };
        let counts = dispatch!(level(), simd => count(simd, target, draft, factor));
        Profile::Counted(Counted::new(counts, row.unit()))
    }

    fn kept(&self, row: &Dist) -> Profile {
        let mut kept = Kept::with_room(row.stored_len().min(self.target.stored_len()));
        let alone = self.rows.len() == 1;
        common(self.target, row, |token, target, draft| {
            let ratio = if alone { self.between(target, draft) } else { self.at(token) };
            kept.push(ratio, f64::from(draft) * row.unit());
        });
        Profile::Kept(kept)
    }

    fn counted(&self, row: &Dist) -> Profile {
        let mut counts = Counts::new();
        for (token, draft) in row.support() {
            let ratio = capped_ratio(self.quotient(token));
            counts.add(bucket(ratio), entry(ratio, draft));
        }
        Profile::Counted(Counted::new(counts, 1.0))
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
pub(crate) fn capped(target: f32, draft: f32, factor: f32) -> f32 {
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

/// The ranks of long rows are below this.
pub(crate) const RANKS: usize = BUCKETS;

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
    fn add(&mut self, bucket: usize, [draft, share]: [f64; 2]) {
        let [drafts, shares] = &mut self.0[bucket];
        *drafts += draft;
        *shares += share;
    }
}

/// What a token adds to its bucket: nothing at a ratio of zero, which has none.
#[inline(always)]
fn entry(ratio: f32, draft: f64) -> [f64; 2] {
    let draft = if ratio > 0.0 { draft } else { 0.0 };
    [draft, draft * f64::from(ratio)]
}

#[inline(always)]
fn count<S: Simd>(_: S, target: &[f32], draft: &[f32], factor: f32) -> Counts {
    let mut counts = Counts::new();
    let mut buckets = [0; CHUNK];
    let mut entries = [[0.0; 2]; CHUNK];
    for (target, draft) in target.chunks(CHUNK).zip(draft.chunks(CHUNK)) {
        // Where to and what first, all at once; then the additions, one by one.
        let staged = buckets.iter_mut().zip(&mut entries);
        for ((bucket_of, entry_of), (&target, &draft)) in staged.zip(target.iter().zip(draft)) {
            let ratio = capped(target, draft, factor);
            *bucket_of = ratio.to_bits().saturating_sub(BITS_MIN) >> SHIFT;
            *entry_of = entry(ratio, f64::from(draft));
        }
        for (bucket, entry) in buckets.iter().zip(&entries).take(target.len()) {
            counts.add(*bucket as usize, *entry);
        }
    }
    counts
}

/// The spread of a ratio over the tokens of a row.
#[derive(Debug, Clone)]
pub(crate) enum Profile {
    Kept(Kept),
    Counted(Counted),
}

/// The tokens of a class: those of ratio `from` up to below `to`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Class {
    pub(crate) from: f64,
    pub(crate) to: f64,
}

impl Class {
    pub(crate) const ALL: Self = Self { from: 0.0, to: f64::INFINITY };

    pub(crate) fn holds(&self, ratio: f64) -> bool {
        ratio >= self.from && ratio < self.to
    }
}

impl Profile {
    /// The nearest bar, at or just below this one, at which answers are exact.
    pub(crate) fn snap(&self, bar: f64) -> f64 {
        match self {
            Self::Kept(_) => bar,
            Self::Counted(_) => snap(bar),
        }
    }

    /// The mean, over tokens drawn from the row, of `min(1, ratio / bar)` within a class; the
    /// bounds of the class and the bar are ones that [`Profile::snap`] gave, unless it is
    /// [`Class::ALL`].
    pub(crate) fn passing(&self, bar: f64, class: Class) -> f64 {
        match self {
            Self::Kept(kept) => kept.passing(bar, class),
            Self::Counted(counted) => counted.passing(bar, class),
        }
    }
}

/// Every token, in three parts of one allocation: ratios, draft probabilities, and the products
/// of the two.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    values: Vec<f64>,
    /// How many tokens there are, and room for in each part.
    len: usize,
    room: usize,
}

impl Kept {
    fn with_room(room: usize) -> Self {
        Self { values: vec![0.0; 3 * room], len: 0, room }
    }

    fn push(&mut self, ratio: f64, draft: f64) {
        self.values[self.len] = ratio;
        self.values[self.room + self.len] = draft;
        self.values[2 * self.room + self.len] = ratio * draft;
        self.len += 1;
    }

    fn passing(&self, bar: f64, class: Class) -> f64 {
        let per_bar = 1.0 / bar;
        let passing = |ratio: f64, draft: f64, share: f64| {
            let passing = share * per_bar;
            let passing = if passing < draft { passing } else { draft };
            if (ratio >= class.from) & (ratio < class.to) { passing } else { 0.0 }
        };
        // Unused room counts for nothing: its draft probability is zero.
        let len = self.len.next_multiple_of(4).min(self.room);
        let part = |n: usize| self.values[n * self.room..n * self.room + len].as_chunks::<4>();
        let ((ratios, ratios_left), (drafts, drafts_left), (shares, shares_left)) =
            (part(0), part(1), part(2));
        let mut lanes = [0.0; 4];
        for ((ratios, drafts), shares) in ratios.iter().zip(drafts).zip(shares) {
            for lane in 0..4 {
                lanes[lane] += passing(ratios[lane], drafts[lane], shares[lane]);
            }
        }
        for ((ratio, draft), share) in ratios_left.iter().zip(drafts_left).zip(shares_left) {
            lanes[0] += passing(*ratio, *draft, *share);
        }
        (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
    }
}

/// By bucket: the draft mass from it on, and the sum of draft mass times ratio before it.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    draft_from: Vec<f64>,
    share_before: Vec<f64>,
}

impl Counted {
    fn new(counts: Counts, unit: f64) -> Self {
        let mut draft_from = vec![0.0; BUCKETS + 1];
        let mut share_before = vec![0.0; BUCKETS + 1];
        for (bucket, [_, share]) in counts.0.iter().enumerate() {
            share_before[bucket + 1] = share_before[bucket] + share * unit;
        }
        for (bucket, [draft, _]) in counts.0.iter().enumerate().rev() {
            draft_from[bucket] = draft_from[bucket + 1] + draft * unit;
        }
        Self { draft_from, share_before }
    }

    fn passing(&self, bar: f64, class: Class) -> f64 {
        let (from, to) = (below(class.from), below(class.to));
        let at = below(bar).clamp(from, to);
        let above = self.draft_from[at] - self.draft_from[to];
        let below = self.share_before[at] - self.share_before[from];
        above + below / bar
    }
}

fn snap(bar: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, reason = "low bits are cut off")]
    let bar = (bar as f32).clamp(edge(0), RATIO_MAX);
    f64::from(f32::from_bits(bar.to_bits() >> SHIFT << SHIFT))
}

/// How many buckets lie below a bar that stands on an edge; all of them below infinity.
fn below(bar: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "a snapped bar is an f32")]
    let bar = bar as f32;
    if bar <= RATIO_MAX { bucket(bar) } else { BUCKETS }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(len: usize, step: usize) -> Dist {
        Dist::dense((0..len).map(|i| 1.0 / (1.0 + ((i * step) % 89) as f32)).collect()).unwrap()
    }

    /// Whatever the form: passing tokens are what the ratio says, token by token.
    #[test]
    fn answers_agree_with_the_ratio_at_every_token() {
        let sparse = |row: &Dist, every: usize| {
            let kept = row.support().filter(|(token, _)| token.index() % every == 0);
            #[expect(clippy::cast_possible_truncation, reason = "the row is what is stored")]
            let kept: Vec<_> = kept.map(|(token, w)| (token, w as f32)).collect();
            Dist::sparse(row.vocab_len(), kept).unwrap()
        };
        for len in [100, 3_000] {
            let (target, one, two) = (dense(len, 7), dense(len, 31), dense(len, 53));
            let targets = [target.clone(), sparse(&target, 2)];
            let drafts = [one.clone(), sparse(&one, 3)];
            for (target, one) in targets.iter().flat_map(|t| drafts.iter().map(move |d| (t, d))) {
                for rows in [vec![(1.0, one)], vec![(0.25, one), (0.75, &two)]] {
                    let ratio = Ratio::new(target, rows.clone());
                    for (_, row) in rows {
                        agrees(&ratio, target, row);
                    }
                }
            }
        }
    }

    fn agrees(ratio: &Ratio<'_>, target: &Dist, row: &Dist) {
        let profile = ratio.profile(row);
        for bar in [1e-7, 0.03, 0.9, 1.0, 7.3, 1e9].map(|bar| profile.snap(bar)) {
            for split in [0.5, 1.7].map(|bar| profile.snap(bar)) {
                let (low, high) =
                    (Class { from: 0.0, to: split }, Class { from: split, ..Class::ALL });
                for class in [Class::ALL, low, high] {
                    let wanted: f64 = row
                        .support()
                        .map(|(token, draft)| (ratio.at(token), draft))
                        .filter(|(ratio, _)| class.holds(*ratio))
                        .map(|(ratio, draft)| draft * (ratio / bar).min(1.0))
                        .sum();
                    let passing = profile.passing(bar, class);
                    assert!((passing - wanted).abs() < 1e-12, "{passing} for {wanted} at {bar}");
                }
            }
        }
        for (token, draft) in row.support() {
            let alone = ratio.rows.len() == 1;
            let over = ratio.at(token) * draft - target.prob(token);
            assert!(!alone || over < 1e-16, "a ratio is never above the true one");
        }
    }
}

//! Passes over a row of logits that find the few that matter.
//!
//! Whether a block has anything of interest is found out first, in a loop that vectorises; nearly
//! all do not. Nothing here adds up: what is found does not depend on the instruction set.

use std::cmp::Ordering;

use forerun_verify::{RowError, Token};

/// Logits that are looked at together.
const BLOCK: usize = 32;

/// A logit, and where in the row it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry {
    pub(super) logit: f32,
    pub(super) place: u32,
}

impl Entry {
    /// Larger logits first, the earlier place among equals.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        // Adding zero makes the two zeros one.
        let larger = (other.logit + 0.0).total_cmp(&(self.logit + 0.0));
        larger.then(self.place.cmp(&other.place))
    }

    /// Refuses what no row may hold.
    fn sound(self) -> Result<Self, RowError> {
        let token = Token(self.place);
        if self.logit.is_nan() {
            Err(RowError::Nan { token })
        } else if self.logit == f32::INFINITY {
            Err(RowError::Infinite { token })
        } else {
            Ok(self)
        }
    }
}

/// The largest logit, the first among equals.
pub(super) fn highest(logits: &[f32]) -> Result<Entry, RowError> {
    if logits.is_empty() {
        return Err(RowError::Empty);
    }
    let mut best = Entry { logit: f32::NEG_INFINITY, place: 0 };
    for (start, block) in blocks(logits) {
        if any_above(block, best.logit) {
            for (place, &logit) in (start..).zip(block) {
                if above(logit, best.logit) {
                    best = Entry { logit, place }.sound()?;
                }
            }
        }
    }
    if best.logit == f32::NEG_INFINITY { Err(RowError::NoMass) } else { Ok(best) }
}

/// The `count` largest logits, ties to the earlier place, in order of place; fewer where the rest
/// are masked.
pub(super) fn largest(logits: &[f32], count: usize) -> Result<Vec<Entry>, RowError> {
    let mut kept = Vec::with_capacity(2 * count + BLOCK);
    let mut bar = f32::NEG_INFINITY;
    for (start, block) in blocks(logits) {
        if any_above(block, bar) {
            for (place, &logit) in (start..).zip(block) {
                if above(logit, bar) {
                    kept.push(Entry { logit, place }.sound()?);
                }
            }
            if kept.len() >= 2 * count {
                bar = keep_largest(&mut kept, count);
            }
        }
    }
    if kept.len() > count {
        keep_largest(&mut kept, count);
    }
    kept.sort_unstable_by_key(|entry| entry.place);
    Ok(kept)
}

/// Appends the logits that are wanted, in order of place. `wanted` decides from `bar` up; below it
/// and for masked tokens the answer is no.
pub(super) fn collect(
    logits: &[f32],
    bar: f32,
    wanted: impl Fn(f32) -> bool,
    found: &mut Vec<Entry>,
) {
    let bar = bar.max(f32::MIN);
    for (start, block) in blocks(logits) {
        // No early end: that would not vectorise.
        if block.iter().fold(false, |any, logit| any | (*logit >= bar)) {
            // Written whether wanted or not: a branch would be mispredicted too often.
            let mut hits = [Entry::default(); BLOCK];
            let mut count = 0;
            for (place, &logit) in (start..).zip(block) {
                hits[count] = Entry { logit, place };
                count += usize::from((logit >= bar) & wanted(logit));
            }
            found.extend_from_slice(&hits[..count]);
        }
    }
}

/// The row in blocks, each with the place of its first logit.
fn blocks(logits: &[f32]) -> impl Iterator<Item = (u32, &[f32])> {
    assert!(u32::try_from(logits.len()).is_ok(), "rows are no longer than u32 allows");
    (0..).step_by(BLOCK).zip(logits.chunks(BLOCK))
}

/// Whether a logit is above the bar, or NaN: what is to be looked at.
fn above(logit: f32, bar: f32) -> bool {
    logit > bar || logit.is_nan()
}

fn any_above(block: &[f32], bar: f32) -> bool {
    block.iter().fold(false, |any, logit| any | above(*logit, bar))
}

/// Cuts the list to the `count` largest logits and gives the least of them. A later logit must be
/// above that: at a tie the earlier place stays.
fn keep_largest(kept: &mut Vec<Entry>, count: usize) -> f32 {
    let (_, least, _) = kept.select_nth_unstable_by(count - 1, Entry::order);
    let bar = least.logit;
    kept.truncate(count);
    bar
}

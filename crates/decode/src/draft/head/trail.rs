//! What a draft head has of one sequence: the pairs in its cache, and the rows for those to come.
//!
//! A pair is named by its token: pair `t` is token `t` with the hidden row of token `t - 1`. It depends
//! on the tokens up to `t` alone, so what is still valid is found out by comparing tokens.

use std::ops::Range;

use forerun_verify::Token;

use crate::draft::Shown;

/// A sequence as a head knows it.
#[derive(Debug, Clone, Default)]
pub(super) struct Trail {
    tokens: Vec<Token>,
    /// The pairs in the head's cache.
    cached: Range<usize>,
    /// Which token the first of the rows belongs to.
    first: usize,
    /// All rows, one after the other.
    rows: Vec<f32>,
    row_len: usize,
}

/// Rows that there is always room for. A prompt's are many more, and soon read.
const ROOM: usize = 16;

impl Trail {
    /// The pairs in the head's cache.
    pub(super) fn cached(&self) -> Range<usize> {
        self.cached.clone()
    }

    /// Turns to a sequence, which may be another: forgets what does not belong to it. Its pairs begin
    /// at token `unpaired`.
    pub(super) fn turn_to(&mut self, tokens: &[Token], unpaired: usize) {
        let common = common(&self.tokens, tokens);
        self.tokens.truncate(common);
        self.tokens.extend_from_slice(&tokens[common..]);
        if (unpaired..=common).contains(&self.cached.start) {
            self.cached.end = self.cached.end.min(common).max(self.cached.start);
        } else {
            self.cached = unpaired..unpaired;
        }
        self.keep_until(common);
    }

    /// Takes rows in. Where some are missing before them, pairs begin anew after the gap.
    pub(super) fn show(&mut self, shown: &Shown<'_>, unpaired: usize) {
        self.turn_to(shown.tokens, unpaired);
        let kept = self.covers(self.needed()) && (self.first..=self.end()).contains(&shown.start);
        if kept {
            self.keep_until(shown.start);
        } else {
            self.rows.clear();
            self.first = shown.start;
            if shown.start > self.needed() {
                self.cached = shown.start + 1..shown.start + 1;
            }
        }
        self.row_len = shown.features.first().map_or(self.row_len, |row| row.len());
        shown.features.iter().for_each(|row| self.rows.extend_from_slice(row));
    }

    /// The pairs that can run now.
    pub(super) fn pending(&self) -> Range<usize> {
        let end = self.tokens.len().min(self.end() + 1);
        self.cached.end..end.max(self.cached.end)
    }

    /// Whether the row after the newest token can be had; if the pair ran, it runs again.
    pub(super) fn reach_newest(&mut self) -> bool {
        let newest = self.tokens.len().saturating_sub(1);
        let ran = self.cached.contains(&newest);
        if ran && self.covers(self.needed_by(newest)) {
            self.cached.end = newest;
        }
        self.covers(self.needed()) && self.pending().contains(&newest)
    }

    /// A pair's token.
    pub(super) fn tokens(&self, pairs: Range<usize>) -> &[Token] {
        &self.tokens[pairs]
    }

    /// The target's row that belongs to a pair; none to the first token.
    pub(super) fn row(&self, pair: usize) -> Option<&[f32]> {
        let start = (pair.checked_sub(1)? - self.first) * self.row_len;
        Some(&self.rows[start..start + self.row_len])
    }

    /// Notes that pairs up to this one ran. The row before the last is kept: if another token takes the
    /// newest one's place, its pair needs it.
    pub(super) fn ran(&mut self, end: usize) {
        self.cached.end = end;
        let done = end.saturating_sub(2).saturating_sub(self.first).min(self.row_count());
        self.rows.drain(..done * self.row_len);
        self.rows.shrink_to(ROOM * self.row_len);
        self.first += done;
    }

    /// The first row it would need of a sequence and does not have.
    pub(super) fn shown_until(&self, tokens: &[Token]) -> usize {
        let common = common(&self.tokens, tokens);
        let needed = self.needed_by(self.cached.end.min(common));
        let end = self.end().min(common);
        if (self.first..=end).contains(&needed) { end } else { needed }
    }

    /// What another sequence that begins with the first `len` tokens has of it.
    pub(super) fn prefix(&self, len: usize) -> Self {
        let mut prefix = self.clone();
        prefix.tokens.truncate(len);
        prefix.cached.end = prefix.cached.end.min(len).max(prefix.cached.start);
        prefix.keep_until(len);
        prefix
    }

    /// The row that the next pair needs.
    fn needed(&self) -> usize {
        self.needed_by(self.cached.end)
    }

    fn needed_by(&self, pair: usize) -> usize {
        pair.saturating_sub(1)
    }

    /// Whether no row is missing from this one on.
    fn covers(&self, row: usize) -> bool {
        (self.first..=self.end()).contains(&row)
    }

    fn end(&self) -> usize {
        self.first + self.row_count()
    }

    fn row_count(&self) -> usize {
        self.rows.len().checked_div(self.row_len).unwrap_or(0)
    }

    /// Drops the rows from this one on.
    fn keep_until(&mut self, row: usize) {
        self.rows.truncate(row.saturating_sub(self.first) * self.row_len);
    }
}

fn common(one: &[Token], other: &[Token]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use forerun_verify::Token;

    use super::*;
    use crate::engine::Slot;

    fn tokens(ids: &[u32]) -> Vec<Token> {
        ids.iter().map(|id| Token(*id)).collect()
    }

    /// Shows rows whose one number is their position.
    fn show(trail: &mut Trail, ids: &[u32], positions: Range<usize>) {
        let rows: Vec<[f32; 1]> = positions.clone().map(|at| [at as f32]).collect();
        let features = rows.iter().map(|row| &row[..]).collect();
        let tokens = tokens(ids);
        let shown = Shown { slot: Slot(0), tokens: &tokens, start: positions.start, features };
        trail.show(&shown, 1);
    }

    /// Runs what can run, and returns pairs of tokens and rows.
    fn run(trail: &mut Trail) -> Vec<(u32, f32)> {
        let pending = trail.pending();
        let pair =
            |at: usize| (trail.tokens(at..at + 1)[0].0, trail.row(at).expect("one before")[0]);
        let pairs = pending.clone().map(pair).collect();
        trail.ran(pending.end);
        pairs
    }

    #[test]
    fn every_token_goes_with_the_row_before_it() {
        let mut trail = Trail::default();
        show(&mut trail, &[5, 6, 7, 8], 0..3);
        assert_eq!(run(&mut trail), [(6, 0.0), (7, 1.0), (8, 2.0)]);
        show(&mut trail, &[5, 6, 7, 8, 9, 4], 3..5);
        assert_eq!(run(&mut trail), [(9, 3.0), (4, 4.0)]);
    }

    #[test]
    fn a_prompt_in_chunks_is_paired_as_it_comes() {
        let mut trail = Trail::default();
        show(&mut trail, &[5, 6, 7, 8], 0..2);
        assert_eq!(run(&mut trail), [(6, 0.0), (7, 1.0)]);
        assert!(!trail.reach_newest(), "its rows are not all there");
        show(&mut trail, &[5, 6, 7, 8], 2..3);
        assert!(trail.reach_newest());
        assert_eq!(run(&mut trail), [(8, 2.0)]);
        assert!(trail.reach_newest(), "the last pair can run again");
        assert_eq!(run(&mut trail), [(8, 2.0)]);
    }

    #[test]
    fn another_token_in_the_place_of_the_newest_needs_no_row_again() {
        let mut trail = Trail::default();
        show(&mut trail, &[5, 6, 7, 8], 0..3);
        run(&mut trail);
        assert_eq!(trail.shown_until(&tokens(&[5, 6, 7, 1, 2])), 3);
        show(&mut trail, &[5, 6, 7, 1, 2], 3..4);
        assert_eq!(run(&mut trail), [(1, 2.0), (2, 3.0)]);
    }

    #[test]
    fn a_sequence_that_parts_earlier_needs_one_row_before() {
        let mut trail = Trail::default();
        show(&mut trail, &[5, 6, 7, 8, 9], 0..4);
        run(&mut trail);
        let other = [5, 6, 1, 2];
        assert_eq!(trail.shown_until(&tokens(&other)), 1);
        show(&mut trail, &other, 1..3);
        assert_eq!(run(&mut trail), [(1, 1.0), (2, 2.0)]);
        assert_eq!(trail.cached(), 1..4);
    }

    #[test]
    fn where_rows_are_missing_pairs_begin_anew() {
        let mut trail = Trail::default();
        show(&mut trail, &[5, 6, 7, 8, 9], 0..4);
        run(&mut trail);
        show(&mut trail, &[5, 1, 2, 3, 4], 2..4);
        assert!(trail.reach_newest());
        assert_eq!(run(&mut trail), [(3, 2.0), (4, 3.0)]);
        assert_eq!(trail.cached(), 3..5);
    }

    #[test]
    fn a_prefix_is_a_sequence_of_its_own() {
        let mut trail = Trail::default();
        show(&mut trail, &[5, 6, 7, 8, 9], 0..4);
        run(&mut trail);
        let mut prefix = trail.prefix(3);
        assert_eq!(prefix.cached(), 1..3);
        let other = [5, 6, 7, 1];
        assert_eq!(prefix.shown_until(&tokens(&other)), 2);
        show(&mut prefix, &other, 2..3);
        assert_eq!(run(&mut prefix), [(1, 2.0)]);
    }
}

//! Where the output is in the original, and what was replaced by what.
//!
//! Nothing is aligned twice: each token moves the place on or opens a difference. A difference is
//! closed once two tokens in a row agree again, and what was replaced in it is learned.

use std::collections::HashMap;
use std::ops::Range;

use forerun_verify::Token;

use super::original::Original;
use super::rates::Source;

/// So many tokens in a row must agree before a difference counts as closed.
const CONFIRMED: usize = 2;

/// As many tokens into a difference, each is still taken for the replacement of one.
const GUESSED_MAX: usize = 4;

/// As many tokens into a difference, it may end with a single token of the original.
const NEAR_MAX: usize = 8;

/// What the first token counts for that agrees with a place that was told.
const TOLD: usize = 8;

/// Where the output is in the original.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alignment {
    /// The position of the token expected next, if a place was ever known.
    place: Option<usize>,
    /// How many tokens in a row agreed.
    run: usize,
    /// Whether the place was told, and nothing has shown yet whether it is right.
    told: bool,
    /// The replacement that has begun.
    replacing: Option<Replacing>,
    /// The difference that is not closed.
    open: Option<Difference>,
}

/// A known replacement, of which so many tokens have come.
#[derive(Debug, Clone, Copy)]
struct Replacing {
    index: usize,
    done: usize,
}

/// Where original and output parted, and how many tokens of output have come since.
#[derive(Debug, Clone, Copy)]
struct Difference {
    original: usize,
    output: usize,
    gap: usize,
}

/// What a token teaches about replacements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lesson {
    /// One that was expected came, or did not.
    Tried { index: usize, right: bool },
    /// These tokens of the original became those of the output.
    Replaced { from: Range<usize>, to: Range<usize> },
}

impl Alignment {
    /// The output begins where the original begins.
    pub(super) fn at_start() -> Self {
        Self { place: Some(0), told: true, ..Self::unknown() }
    }

    /// The output may begin anywhere in the original.
    pub(super) fn unknown() -> Self {
        Self { place: None, run: 0, told: false, replacing: None, open: None }
    }

    /// Returns the tokens that may come next, and what says so: where the place is known, one.
    pub(super) fn expected(
        &self,
        original: &Original,
        replacements: &Replacements,
    ) -> [Option<(Source, Token)>; 2] {
        let resumed = || {
            // Something may have been inserted, and the original goes on where it was left.
            let open =
                self.open.filter(|it| self.run < CONFIRMED && self.place != Some(it.original));
            let Difference { original: place, gap, .. } = open.filter(|it| it.gap <= NEAR_MAX)?;
            original.from(place).first().map(|token| (Source::Resumed(gap), *token))
        };
        [self.aligned(original, replacements), resumed()]
    }

    fn aligned(&self, original: &Original, replacements: &Replacements) -> Option<(Source, Token)> {
        if let Some(Replacing { index, done }) = self.replacing {
            return Some((Source::Replacing, replacements.all[index].to[done]));
        }
        let rest = original.from(self.place?);
        let source = match self.open {
            Some(Difference { gap, .. }) if self.run == 0 => {
                (gap <= GUESSED_MAX).then_some(Source::Guess(gap))?
            }
            _ if self.told => Source::Start,
            _ => Source::Original(self.run),
        };
        match replacements.at(rest) {
            Some(index) => Some((Source::Replacement, replacements.all[index].to[0])),
            None => rest.first().map(|token| (source, *token)),
        }
    }

    /// Goes on by the last token of the output.
    pub(super) fn follow(
        &mut self,
        original: &Original,
        replacements: &Replacements,
        output: &[Token],
    ) -> Option<Lesson> {
        let token = *output.last()?;
        let Some(place) = self.place else {
            let found = original.find_last(output)?;
            (self.place, self.run) = (Some(found.next), found.len);
            return None;
        };
        let known = || replacements.at(original.from(place));
        let tried = self.replacing.take().or_else(|| known().map(Replacing::begin));
        let mut began = output.len() - 1;
        if let Some(Replacing { index, done }) = tried {
            let Replacement { from, to, .. } = &replacements.all[index];
            if to[done] == token {
                if done + 1 < to.len() {
                    self.replacing = Some(Replacing { index, done: done + 1 });
                    return None;
                }
                self.agree(place + from.len());
                self.open = None;
                return Some(Lesson::Tried { index, right: true });
            }
            began -= done;
        }
        let wrong = tried.map(|it| Lesson::Tried { index: it.index, right: false });
        if began + 1 == output.len() && original.from(place).first() == Some(&token) {
            self.agree(place + 1);
        } else {
            let open =
                self.open.get_or_insert(Difference { original: place, output: began, gap: 0 });
            open.gap = output.len() - open.output;
            let open = *open;
            self.told = false;
            (self.place, self.run) = relocated(open, original, output);
        }
        wrong.or(self.close(original, output))
    }

    fn agree(&mut self, place: usize) {
        let before = if self.told { TOLD } else { self.run };
        (self.place, self.run, self.told) = (Some(place), before + 1, false);
    }

    /// Closes the difference if its end is known.
    fn close(&mut self, original: &Original, output: &[Token]) -> Option<Lesson> {
        let open = self.open.filter(|_| self.run >= CONFIRMED)?;
        self.open = None;
        let (mut end, mut output_end) =
            (self.place?.checked_sub(self.run)?, output.len().checked_sub(self.run)?);
        let tokens = original.tokens();
        while end > open.original
            && output_end > open.output
            && tokens.get(end - 1) == output.get(output_end - 1)
        {
            (end, output_end) = (end - 1, output_end - 1);
        }
        let (from, to) = (open.original..end, open.output..output_end);
        (!from.is_empty() && !to.is_empty()).then_some(Lesson::Replaced { from, to })
    }
}

impl Replacing {
    fn begin(index: usize) -> Self {
        Self { index, done: 0 }
    }
}

/// The place after a difference, and how many tokens agree with it: where the last tokens occur, or
/// the last one near by, or else as if each token had taken the place of one.
fn relocated(open: Difference, original: &Original, output: &[Token]) -> (Option<usize>, usize) {
    if let Some(found) = original.find(output, open.original) {
        return (Some(found.next), found.len);
    }
    let near = output.last().filter(|_| open.gap <= NEAR_MAX);
    match near.and_then(|token| original.find_near(*token, open.original)) {
        Some(place) => (Some(place), 1),
        None => (Some(open.original + open.gap), 0),
    }
}

/// What was replaced by what so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Replacements {
    all: Vec<Replacement>,
    /// By the first token that is replaced.
    by_first: HashMap<Token, Vec<usize>>,
}

/// Tokens of the original that were replaced.
#[derive(Debug, Clone)]
struct Replacement {
    from: Vec<Token>,
    to: Vec<Token>,
    /// How often it came, and how often it might have.
    right: u32,
    tried: u32,
}

impl Replacements {
    /// Longest replacement that is learned, on either side.
    const LEN_MAX: usize = 12;

    /// Most replacements that are known.
    const COUNT_MAX: usize = 512;

    /// The longest replacement of what the tokens begin with that was right more often than not.
    fn at(&self, tokens: &[Token]) -> Option<usize> {
        let known = self.by_first.get(tokens.first()?)?;
        let fits = |index: &&usize| {
            let it = &self.all[**index];
            tokens.starts_with(&it.from) && 2 * it.right > it.tried
        };
        known.iter().filter(fits).max_by_key(|index| self.all[**index].from.len()).copied()
    }

    /// Learns from a token.
    pub(super) fn learn(&mut self, lesson: Lesson, original: &Original, output: &[Token]) {
        match lesson {
            Lesson::Tried { index, right } => {
                self.all[index].right += u32::from(right);
                self.all[index].tried += 1;
            }
            Lesson::Replaced { from, to } => {
                self.replaced(&original.tokens()[from], &output[to]);
            }
        }
    }

    /// Knows a replacement from now on; one of the same tokens takes the place of what was known.
    fn replaced(&mut self, from: &[Token], to: &[Token]) {
        if from.len() > Self::LEN_MAX || to.len() > Self::LEN_MAX {
            return;
        }
        let same = self.by_first.entry(from[0]).or_default();
        let fresh = Replacement { from: from.to_vec(), to: to.to_vec(), right: 1, tried: 1 };
        match same.iter().find(|index| self.all[**index].from == from) {
            Some(index) if self.all[*index].to == to => self.all[*index].right += 1,
            Some(index) => self.all[*index] = fresh,
            None if self.all.len() < Self::COUNT_MAX => {
                same.push(self.all.len());
                self.all.push(fresh);
            }
            None => {}
        }
    }
}

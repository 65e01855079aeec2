//! Draft models with a smaller vocabulary: their passes take less, most of all where the vocabulary is
//! most of the model.
//!
//! Embeddings, output and tokenizer keep the tokens that matter. Tokens get new numbers, so a trimmed
//! model drafts through the map between vocabularies, by their text: what it lacks is never drafted.
//! A model can also be given the tokens of another one, and then be trained to use them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::CString;
use std::path::{Path, PathBuf};

use crate::ffi::gguf::{Sink, Source};
use crate::model::{LoadError, check_file};

/// The kind of a token that is ordinary text.
const NORMAL: i32 = 1;

/// How SentencePiece spells a space.
const SPACE: &str = "\u{2581}";

/// What a model reads tokens by, and what it says them by if that is another tensor.
const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// How the keys of a tokenizer begin.
const TOKENIZER: &str = "tokenizer.";

/// Why a model was not trimmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrimError {
    /// The model to start from is not in order.
    #[error(transparent)]
    Input(#[from] LoadError),
    /// What is there would be lost.
    #[error("{}: there is a file already: move it away or choose another name", .path.display())]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// It has no list of tokens with their kinds.
    #[error("{}: it has no vocabulary that can be trimmed", .path.display())]
    NoVocab {
        /// The model to start from.
        path: PathBuf,
    },
    /// Tokens that cannot be left out are more than were asked for, or there is nothing to leave out.
    #[error("a vocabulary of {asked} tokens is out of range: this model allows {least} to {most}")]
    Size {
        /// The tokens asked for.
        asked: usize,
        /// Tokens that cannot be left out.
        least: usize,
        /// One less than it has.
        most: usize,
    },
    /// There are counts of another vocabulary.
    #[error("there are counts of {counts} tokens, and the model has {tokens}")]
    Counts {
        /// How many counts.
        counts: usize,
        /// How many tokens.
        tokens: usize,
    },
    /// The file could not be written.
    #[error("{}: it could not be written: is there room on the disk?", .path.display())]
    Unwritten {
        /// Where.
        path: PathBuf,
    },
}

/// What was kept of a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trimmed {
    /// Tokens before.
    pub before: usize,
    /// Tokens after.
    pub after: usize,
}

/// Writes the model at `input` to `output` with a vocabulary of `size` tokens: those that are not
/// ordinary text, then those with the highest counts, and among equal ones those with the lowest
/// numbers, which in most vocabularies are the frequent ones. What a token is merged from is kept with
/// it.
///
/// # Errors
/// If the input is no model with a vocabulary, `size` is out of range, the output exists or cannot be
/// written; then no output is left.
pub fn trim(
    input: &Path,
    output: &Path,
    size: usize,
    counts: Option<&[u64]>,
) -> Result<Trimmed, TrimError> {
    check_free(output)?;
    let (source, words) = opened(input)?;
    let kept = words.kept(size, counts)?;
    let mut sink = Sink::like(&source);
    words.write(&source, &mut sink, &kept);
    sink.add_tensors(&[EMBEDDING, OUTPUT]);
    for name in [EMBEDDING, OUTPUT] {
        sink.add_rows(name, &kept);
    }
    written(&sink, output)?;
    Ok(Trimmed { before: words.tokens.len(), after: kept.len() })
}

/// Writes the model at `donor` to `output` with the vocabulary of the one at `target`: all of it, or as
/// many tokens with the highest counts, chosen as by [`trim`].
///
/// A token is read and said as the mean of the donor's tokens that `spelled` names for it, by its
/// number in the target; one that is spelled by none, as the mean of all.
///
/// # Errors
/// As for [`trim`].
pub fn transplant(
    donor: &Path,
    (target, chosen): (&Path, Option<(usize, &[u64])>),
    output: &Path,
    spelled: impl Fn(usize) -> Vec<usize>,
) -> Result<Trimmed, TrimError> {
    check_free(output)?;
    let ((donor, _), (target, words)) = (opened(donor)?, opened(target)?);
    let kept = match chosen {
        Some((size, counts)) => words.kept(size, Some(counts))?,
        None => (0..words.tokens.len()).collect(),
    };
    let mut vocab = Sink::like(&target);
    words.write(&target, &mut vocab, &kept);
    for key in target.keys().iter().filter(|key| !key.starts_with(TOKENIZER)) {
        vocab.remove(key);
    }
    let mut sink = Sink::like(&donor);
    for key in donor.keys().iter().filter(|key| key.starts_with(TOKENIZER)) {
        sink.remove(key);
    }
    sink.adopt(&vocab);
    set_len(&donor, &mut sink, kept.len());
    sink.add_tensors(&[EMBEDDING, OUTPUT]);
    let spelled: Vec<Vec<usize>> = kept.iter().map(|&token| spelled(token)).collect();
    for name in [EMBEDDING, OUTPUT] {
        if let Some((sizes, values)) = donor.tensor(name) {
            let rows = means(&values, sizes[1], &spelled);
            sink.add_floats(name, &[kept.len(), sizes[1]], &rows);
        }
    }
    written(&sink, output)?;
    Ok(Trimmed { before: words.tokens.len(), after: kept.len() })
}

/// A model with its vocabulary.
fn opened(path: &Path) -> Result<(Source, Words), TrimError> {
    check_file(path)?;
    let no_vocab = || TrimError::NoVocab { path: path.to_owned() };
    let source = Source::open(path).ok_or_else(no_vocab)?;
    let words = Words::of(&source).ok_or_else(no_vocab)?;
    Ok((source, words))
}

fn check_free(output: &Path) -> Result<(), TrimError> {
    match output.exists() {
        true => Err(TrimError::Exists { path: output.to_owned() }),
        false => Ok(()),
    }
}

fn written(sink: &Sink<'_>, output: &Path) -> Result<(), TrimError> {
    if !sink.write(output) {
        // Half a model is worth nothing; that it may not have been begun is no error.
        let _ = std::fs::remove_file(output);
        return Err(TrimError::Unwritten { path: output.to_owned() });
    }
    Ok(())
}

/// States how many tokens a model has, wherever it does.
fn set_len(source: &Source, sink: &mut Sink<'_>, len: usize) {
    for key in source.keys().iter().filter(|key| key.ends_with(".vocab_size")) {
        sink.set_number(key, u32::try_from(len).unwrap_or(u32::MAX));
    }
}

/// The mean of the rows that each list names; of an empty list, that of all rows.
fn means(rows: &[f32], width: usize, lists: &[Vec<usize>]) -> Vec<f32> {
    let mean = |named: &mut dyn Iterator<Item = usize>| {
        let (mut sum, mut count) = (vec![0.0_f64; width], 0.0);
        for row in named {
            for (sum, &value) in sum.iter_mut().zip(&rows[row * width..][..width]) {
                *sum += f64::from(value);
            }
            count += 1.0;
        }
        #[expect(clippy::cast_possible_truncation, reason = "rows are f32")]
        sum.into_iter().map(|sum| (sum / count) as f32).collect::<Vec<f32>>()
    };
    let of_all = mean(&mut (0..rows.len() / width));
    let of = |list: &Vec<usize>| match list.is_empty() {
        true => of_all.clone(),
        false => mean(&mut list.iter().copied()),
    };
    lists.iter().flat_map(of).collect()
}

/// A vocabulary as a file has it.
struct Words {
    tokens: Vec<CString>,
    kinds: Vec<i32>,
    merges: Vec<CString>,
}

impl Words {
    fn of(source: &Source) -> Option<Self> {
        let tokens = source.strings("tokenizer.ggml.tokens")?;
        let kinds = source.integers("tokenizer.ggml.token_type")?;
        let merges = source.strings("tokenizer.ggml.merges").unwrap_or_default();
        (tokens.len() == kinds.len()).then_some(Self { tokens, kinds, merges })
    }

    /// The tokens that stay, ascending.
    fn kept(&self, size: usize, counts: Option<&[u64]>) -> Result<Vec<usize>, TrimError> {
        let count = self.tokens.len();
        if let Some(counts) = counts.filter(|counts| counts.len() != count) {
            return Err(TrimError::Counts { counts: counts.len(), tokens: count });
        }
        let mut kept: BTreeSet<usize> = (0..count).filter(|&token| self.is_needed(token)).collect();
        let least = kept.len();
        if !(least..count).contains(&size) {
            return Err(TrimError::Size { asked: size, least, most: count.saturating_sub(1) });
        }
        let parts = self.parts();
        let mut ranked: Vec<usize> = (0..count).collect();
        ranked.sort_by_key(|&token| std::cmp::Reverse(counts.map_or(0, |counts| counts[token])));
        for token in ranked {
            let mut more = Vec::new();
            let mut wanted = vec![token];
            while let Some(token) = wanted.pop() {
                if !kept.contains(&token) && !more.contains(&token) {
                    more.push(token);
                    wanted.extend(parts.get(&token).into_iter().flatten());
                }
            }
            if kept.len() + more.len() <= size {
                kept.extend(more);
            }
            if kept.len() == size {
                break;
            }
        }
        Ok(kept.into_iter().collect())
    }

    /// Whether a token stays whatever its rank: those that are no text, and the letters that others are
    /// made of, whose numbers may be high.
    fn is_needed(&self, token: usize) -> bool {
        let text = self.tokens[token].to_string_lossy();
        let letter = text.chars().count() == 1
            && (!self.merges.is_empty() || text.is_ascii() || text == SPACE);
        self.kinds[token] != NORMAL || letter
    }

    /// The two tokens that each merged token is made of.
    fn parts(&self) -> HashMap<usize, [usize; 2]> {
        let numbers: HashMap<&[u8], usize> = self
            .tokens
            .iter()
            .enumerate()
            .map(|(number, text)| (text.to_bytes(), number))
            .collect();
        let mut parts = HashMap::new();
        for [left, right] in self.merges.iter().filter_map(sides) {
            let whole = numbers.get(&*[left, right].concat());
            let sides = (numbers.get(left), numbers.get(right));
            if let (Some(&whole), (Some(&left), Some(&right))) = (whole, sides) {
                parts.entry(whole).or_insert([left, right]);
            }
        }
        parts
    }

    /// Changes the metadata to a vocabulary of these tokens.
    fn write(&self, source: &Source, sink: &mut Sink<'_>, kept: &[usize]) {
        let numbers: HashMap<usize, u32> = kept.iter().copied().zip(0..).collect();
        let words: HashSet<&[u8]> =
            kept.iter().map(|&token| self.tokens[token].to_bytes()).collect();
        let tokens: Vec<CString> = kept.iter().map(|&token| self.tokens[token].clone()).collect();
        sink.set_strings("tokenizer.ggml.tokens", &tokens);
        let kinds: Vec<i32> = kept.iter().map(|&token| self.kinds[token]).collect();
        sink.set_integers("tokenizer.ggml.token_type", &kinds);
        if let Some(scores) = source.floats("tokenizer.ggml.scores") {
            let scores: Vec<f32> = kept.iter().filter_map(|&it| scores.get(it).copied()).collect();
            sink.set_floats("tokenizer.ggml.scores", &scores);
        }
        let possible = |merge: &&CString| {
            sides(merge).is_some_and(|[left, right]| {
                let whole = [left, right].concat();
                [left, right, &whole].into_iter().all(|part| words.contains(part))
            })
        };
        if !self.merges.is_empty() {
            let merges: Vec<CString> = self.merges.iter().filter(possible).cloned().collect();
            sink.set_strings("tokenizer.ggml.merges", &merges);
        }
        for key in source.keys() {
            let Some(number) = source.number(&key) else { continue };
            if key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id") {
                match numbers.get(&(number as usize)) {
                    Some(number) => sink.set_number(&key, *number),
                    None => sink.remove(&key),
                }
            }
        }
        set_len(source, sink, kept.len());
    }
}

/// The two sides of a merge, which a space parts.
fn sides(merge: &CString) -> Option<[&[u8]; 2]> {
    let bytes = merge.to_bytes();
    let space = bytes.iter().skip(1).position(|&byte| byte == b' ')? + 1;
    Some([&bytes[..space], &bytes[space + 1..]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(tokens: &[&str], merges: &[&str]) -> Words {
        let strings = |words: &[&str]| words.iter().map(|it| CString::new(*it).unwrap()).collect();
        // The last is a control token.
        let kinds = (0..tokens.len()).map(|at| if at + 1 == tokens.len() { 3 } else { NORMAL });
        Words { tokens: strings(tokens), kinds: kinds.collect(), merges: strings(merges) }
    }

    #[test]
    fn what_a_token_is_made_of_stays_with_it() {
        let words = words(&["a", "b", "c", "ab", "bc", "abc", "<end>"], &["a b", "b c", "ab c"]);
        assert_eq!(words.kept(5, None).unwrap(), [0, 1, 2, 3, 6]);
        let counts = [0, 0, 0, 0, 0, 9, 0];
        assert_eq!(words.kept(6, Some(&counts)).unwrap(), [0, 1, 2, 3, 5, 6]);
        // There is no room for the token and its part.
        assert_eq!(words.kept(5, Some(&counts)).unwrap(), [0, 1, 2, 3, 6]);
    }

    #[test]
    fn without_merges_letters_beyond_ascii_may_go() {
        let words = words(&["the", "é", "a", SPACE, "cat", "<end>"], &[]);
        assert_eq!(words.kept(4, None).unwrap(), [0, 2, 3, 5]);
    }

    #[test]
    fn a_token_that_is_spelled_by_several_is_their_mean() {
        let rows = [1.0, 10.0, 3.0, 20.0, 8.0, 60.0];
        let lists = [vec![1], vec![0, 1], vec![]];
        assert_eq!(means(&rows, 2, &lists), [3.0, 20.0, 2.0, 15.0, 4.0, 30.0]);
    }

    #[test]
    fn a_size_that_cannot_be_is_refused_with_those_that_can() {
        let words = words(&["a", "b", "ab", "<end>"], &["a b"]);
        for asked in [2, 4] {
            let refused = words.kept(asked, None).unwrap_err();
            assert!(matches!(refused, TrimError::Size { least: 3, most: 3, .. }), "{refused}");
        }
    }
}

//! How far rows scored in a block are from rows scored one by one: the engine's error, which no
//! rule can mend.

use forerun_verify::{Dist, RowError, Token};

use crate::engine::{Branch, Engine, EngineError, Keep, Output, Rows, Slot, Step};

/// What was compared, and how far apart it was.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Drift {
    /// Rows compared.
    pub rows: usize,
    /// Those equal to the last bit.
    pub equal: usize,
    /// Those with the same likeliest token.
    pub same_best: usize,
    /// Largest difference of a logit.
    pub gap: f32,
    /// Mean total variation of the distributions at temperature 1.
    pub distance: f64,
}

impl Drift {
    /// Whether every row is equal to the last bit.
    pub fn is_none(&self) -> bool {
        self.equal == self.rows
    }

    /// Adds what was found elsewhere.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let rows = self.rows + other.rows;
        let sum = self.distance * self.rows as f64 + other.distance * other.rows as f64;
        Self {
            rows,
            equal: self.equal + other.equal,
            same_best: self.same_best + other.same_best,
            gap: self.gap.max(other.gap),
            distance: if rows > 0 { sum / rows as f64 } else { 0.0 },
        }
    }
}

/// Why rows could not be compared.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DriftError {
    /// A pass failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A row is no distribution.
    #[error(transparent)]
    Row(#[from] RowError),
}

/// Lets the engine continue a prompt greedily for so many tokens, one a pass, then scores the same
/// tokens in blocks of `len`, as rounds that accept all do, and compares. Uses slot 0 and leaves
/// the sequence in its cache.
///
/// # Errors
/// If a pass fails.
///
/// # Panics
/// If the prompt is empty.
pub fn drift(
    engine: &mut dyn Engine,
    prompt: &[Token],
    positions: usize,
    len: usize,
) -> Result<Drift, DriftError> {
    let (tokens, singles) = alone(engine, prompt.to_vec(), positions)?;
    let blocks = in_blocks(engine, &tokens, positions, len)?;
    let mut sum = Drift::default();
    for (single, block) in singles.iter().zip(&blocks) {
        sum = sum.and(compare(single, block)?);
    }
    Ok(sum)
}

/// Prefills a prompt but its last token, so that all passes after it start from the same cache.
fn prefill(engine: &mut dyn Engine, prompt: &[Token]) -> Result<(), EngineError> {
    let trunk = &prompt[..prompt.len() - 1];
    let step = Step { slot: Slot(0), keep: Keep::Trunk(0), trunk, tree: &[], rows: Rows::None };
    engine.extend(&[step], &mut Output::default())
}

/// The prompt with a greedy output behind it, and the output's rows, one token a pass.
fn alone(
    engine: &mut dyn Engine,
    mut tokens: Vec<Token>,
    positions: usize,
) -> Result<(Vec<Token>, Vec<Vec<f32>>), EngineError> {
    prefill(engine, &tokens)?;
    let (mut rows, mut output) = (Vec::new(), Output::default());
    for _ in 0..positions {
        let (keep, trunk) = (Keep::All(tokens.len() - 1), &tokens[tokens.len() - 1..]);
        let step = Step { slot: Slot(0), keep, trunk, tree: &[], rows: Rows::Trunk };
        engine.extend(&[step], &mut output)?;
        rows.push(output.row(0).to_vec());
        tokens.push(best(output.row(0)));
    }
    Ok((tokens, rows))
}

/// The same rows, in blocks: a committed token and `len - 1` drafted ones, all of them accepted.
fn in_blocks(
    engine: &mut dyn Engine,
    tokens: &[Token],
    positions: usize,
    len: usize,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let mut done = tokens.len() - positions - 1;
    prefill(engine, &tokens[..=done])?;
    let (mut rows, mut output, mut keep) = (Vec::new(), Output::default(), Keep::All(done));
    while rows.len() < positions {
        let drafted = &tokens[done + 1..tokens.len().min(done + len.max(1))];
        let branch = |(parent, token): (usize, &Token)| Branch { parent, token: *token };
        let tree: Vec<Branch> = drafted.iter().enumerate().map(branch).collect();
        let trunk = &tokens[done..=done];
        let step = Step { slot: Slot(0), keep, trunk, tree: &tree, rows: Rows::All };
        engine.extend(&[step], &mut output)?;
        rows.extend((0..output.len()).map(|row| output.row(row).to_vec()));
        done += 1 + tree.len();
        keep = Keep::To { node: tree.len(), len: done };
    }
    rows.truncate(positions);
    Ok(rows)
}

fn compare(single: &[f32], block: &[f32]) -> Result<Drift, RowError> {
    let gaps = single.iter().zip(block).map(|(one, other)| (one - other).abs());
    let (one, other) = (Dist::softmax(single, 1.0)?, Dist::softmax(block, 1.0)?);
    let ids = (0..u32::try_from(single.len()).unwrap_or(u32::MAX)).map(Token);
    Ok(Drift {
        rows: 1,
        equal: usize::from(single == block),
        same_best: usize::from(best(single) == best(block)),
        gap: gaps.fold(0.0, f32::max),
        distance: ids.map(|id| (one.prob(id) - other.prob(id)).abs()).sum::<f64>() / 2.0,
    })
}

fn best(row: &[f32]) -> Token {
    let best = (0..row.len()).reduce(|best, at| if row[at] > row[best] { at } else { best });
    Token(u32::try_from(best.unwrap_or(0)).unwrap_or(u32::MAX))
}

#[cfg(all(test, feature = "toy"))]
mod tests {
    use super::*;
    use crate::toy::{ToyEngine, ToyModel};

    /// An engine whose rows in blocks are not those of single tokens.
    struct Drifting(ToyEngine);

    impl Engine for Drifting {
        fn vocab_len(&self) -> usize {
            self.0.vocab_len()
        }

        fn context_len(&self) -> usize {
            self.0.context_len()
        }

        fn slot_count(&self) -> usize {
            self.0.slot_count()
        }

        fn paths_max(&self) -> usize {
            self.0.paths_max()
        }

        fn can_cut(&self) -> bool {
            self.0.can_cut()
        }

        fn extend(&mut self, steps: &[Step<'_>], output: &mut Output) -> Result<(), EngineError> {
            self.0.extend(steps, output)?;
            (1..output.len()).for_each(|row| output.row_mut(row)[0] += 0.5);
            Ok(())
        }
    }

    #[test]
    fn rows_that_depend_on_the_block_are_seen() {
        let toy = || ToyEngine::new(ToyModel { vocab_len: 9, order: 2, seed: 1, spread: 3.0 }, 128);
        let prompt = [Token(3), Token(5)];
        let none = drift(&mut toy(), &prompt, 16, 4).unwrap();
        assert!(none.is_none() && none.distance == 0.0 && none.rows == 16, "{none:?}");
        let some = drift(&mut Drifting(toy()), &prompt, 16, 4).unwrap();
        assert_eq!((some.equal, some.gap), (4, 0.5), "the first row of each block is right");
        assert!(some.distance > 0.0);
    }
}

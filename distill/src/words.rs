//! Students with another vocabulary than the target's, such as one that `forerun trim` has cut.
//!
//! What the target wrote is spelled in the student's tokens, as a drafter does, and the target's rows are
//! compared where one of its tokens ends. Of a row, the tokens count that the student has too; all others are
//! among the rest. What the student alone knows is never drafted, so it has no probability here either.

use forerun_decode::{Token, Tokenizer, VocabMap};

use crate::loss::Row;

/// How the target's tokens are written in the student's.
#[derive(Debug, Clone, PartialEq)]
pub struct Words {
    /// The student's tokens for each of the target's.
    spelled: Vec<Box<[u32]>>,
    /// The student's token that is the same as one of the target's.
    same: Vec<Option<u32>>,
    /// Tokens that the student alone has.
    foreign: Vec<u32>,
}

/// A row of the target in the student's tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Translated {
    /// The tokens that both have.
    pub tokens: Vec<u32>,
    /// Their probabilities.
    pub probs: Vec<f32>,
    /// Whether the likeliest is among them.
    pub has_likeliest: bool,
}

impl Words {
    /// Between two vocabularies; none if they are the same.
    ///
    /// # Errors
    /// If they have too little in common.
    pub fn between(
        (target, target_len): (&dyn Tokenizer, usize),
        (student, student_len): (&dyn Tokenizer, usize),
    ) -> anyhow::Result<Option<Self>> {
        let map = VocabMap::between(target, student)?;
        if map.is_identity() && target_len == student_len {
            return Ok(None);
        }
        let tokens = |len: usize| (0..).map(Token).take(len);
        let spell = |token| map.spell(token, target, student).iter().map(|it| it.0).collect();
        Ok(Some(Self {
            spelled: tokens(target_len).map(spell).collect(),
            same: tokens(target_len).map(|it| Some(map.to_draft(it)?.0)).collect(),
            foreign: tokens(student_len)
                .filter(|&it| map.to_target(it).is_none())
                .map(|it| it.0)
                .collect(),
        }))
    }

    /// A token of the target in the student's.
    pub fn spell(&self, token: u32) -> &[u32] {
        &self.spelled[token as usize]
    }

    /// How many tokens these are to the student.
    pub fn len(&self, tokens: &[u32]) -> usize {
        tokens.iter().map(|&token| self.spell(token).len()).sum()
    }

    /// A row in the student's tokens.
    pub fn translate(&self, row: Row<'_>) -> Translated {
        translate(row, &self.same)
    }

    /// Tokens that the student alone has.
    pub fn foreign(&self) -> &[u32] {
        &self.foreign
    }
}

/// A row in a drafter's tokens; `same` has its token for each of the target's.
pub(crate) fn translate(row: Row<'_>, same: &[Option<u32>]) -> Translated {
    let same = |token: u32| same[token as usize];
    let mut translated = Translated {
        has_likeliest: row.tokens.first().is_some_and(|&token| same(token).is_some()),
        ..Translated::default()
    };
    for (&token, &prob) in row.tokens.iter().zip(row.probs) {
        if let Some(token) = same(token) {
            translated.tokens.push(token);
            translated.probs.push(prob);
        }
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_what_both_have() {
        let words = Words {
            spelled: vec![[1].into(), [1, 0].into(), [2].into()],
            same: vec![Some(1), None, Some(2)],
            foreign: vec![0],
        };
        assert_eq!(words.len(&[1, 2, 1]), 5);
        let row = |tokens: &[u32]| words.translate(Row { tokens, probs: &[0.5, 0.25, 0.1] });
        let (tokens, probs) = (vec![2, 1], vec![0.5, 0.1]);
        assert_eq!(row(&[2, 1, 0]), Translated { tokens, probs, has_likeliest: true });
        assert!(!row(&[1, 2, 0]).has_likeliest);
    }
}

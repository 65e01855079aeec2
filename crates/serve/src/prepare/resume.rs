//! A response that broke off and is to go on: its tokens are read as if they had been decoded here.

use forerun_decode::{Constraint, Finish, Reading, Token};

use crate::error::RequestError;
use crate::request::Resumed;

/// The tokens that a client has of a sequence, and whether it had finished with them.
#[derive(Debug, Default)]
pub(super) struct ResumedSequence {
    pub(super) output: Resumed,
    /// Why the sequence goes no further, if it does not.
    pub(super) finish: Option<Finish>,
}

fn reject(message: impl ToString) -> RequestError {
    RequestError::parameter("resume_token_ids", message)
}

/// Rejects requests that resume several sequences at once.
pub(super) fn check(choices: usize) -> Result<(), RequestError> {
    match choices {
        1 => Ok(()),
        _ => Err(reject(
            "answers are resumed one by one: ask for one, of n those with `seed` + index",
        )),
    }
}

impl ResumedSequence {
    /// Reads the tokens.
    pub(super) fn read(
        ids: &[u32],
        reading: &mut Reading,
        vocab_len: usize,
    ) -> Result<Self, RequestError> {
        let mut resumed = Self::default();
        for (index, id) in ids.iter().enumerate() {
            if *id as usize >= vocab_len {
                let message = format!("token {id} is out of range: there are {vocab_len} tokens");
                return Err(reject(message));
            }
            if resumed.finish.is_some() {
                let len = ids.len();
                let message =
                    format!("the answer ends with token {index} of {len}: leave out what follows");
                return Err(reject(message));
            }
            resumed.output.tokens.push(Token(*id));
            resumed.finish = reading.push(Token(*id), &mut resumed.output.text);
        }
        Ok(resumed)
    }

    /// Rejects more tokens than the sequence may have; as many tokens mean that it had finished.
    pub(super) fn check_len(
        &mut self,
        prompt_len: usize,
        output_len_max: usize,
        context_len: usize,
    ) -> Result<(), RequestError> {
        let len = self.output.tokens.len();
        if len > output_len_max {
            let message = format!(
                "there are {len} tokens and max_tokens is {output_len_max}: say the same as \
                 before, it counts from where the answer begins"
            );
            return Err(reject(message));
        }
        // A sequence that filled the context has its last token beyond it.
        let total = prompt_len + len;
        if total > context_len + 1 {
            return Err(RequestError::ContextExceeded { len: total, context_len });
        }
        if self.finish.is_none() && len == output_len_max {
            self.finish = Some(Finish::Length);
        }
        if self.finish.is_none() && total > context_len {
            self.finish = Some(Finish::Context);
        }
        Ok(())
    }
}

/// Commits the output so far to the constraint of its sequence.
pub(super) fn constrain_output(
    output: &[Token],
    constraint: &mut dyn Constraint,
) -> Result<(), RequestError> {
    if output.is_empty() {
        return Ok(());
    }
    let admitted = constraint.admitted(output);
    if admitted < output.len() {
        let message = format!("token {admitted} is none the answer's form allows there");
        return Err(reject(message));
    }
    constraint.commit(output);
    Ok(())
}

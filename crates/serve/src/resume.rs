//! An answer that broke off and is to go on: what the client has of it is read as if it had been made
//! here.

use forerun_decode::{Constraint, Finish, Reading, Token};

use crate::api::error::ApiError;
use crate::api::types::Common;

/// What a client has of an answer whose stream broke off.
#[derive(Debug, Default)]
pub(crate) struct Resumed {
    pub(crate) tokens: Vec<Token>,
    /// The text they released.
    pub(crate) text: String,
    /// Why the answer goes no further, where it does not.
    pub(crate) finish: Option<Finish>,
}

fn refuse(message: String) -> ApiError {
    ApiError::field("resume_token_ids", message)
}

/// Refuses to resume what did not come as one stream.
pub(crate) fn check_resumable(common: &Common, choices: usize) -> Result<(), ApiError> {
    if choices != 1 {
        let message = "answers are resumed one by one: ask for one, of n those with `seed` + index";
        return Err(refuse(message.to_owned()));
    }
    if !common.stream {
        let message = "only a stream can break off half-way: add `stream`, or leave this out";
        return Err(refuse(message.to_owned()));
    }
    Ok(())
}

impl Resumed {
    /// Reads the tokens.
    pub(crate) fn read(
        ids: &[u32],
        reading: &mut Reading,
        vocab_len: usize,
    ) -> Result<Self, ApiError> {
        let mut resumed = Self::default();
        for (index, id) in ids.iter().enumerate() {
            if *id as usize >= vocab_len {
                let message = format!("token {id} is out of range: there are {vocab_len} tokens");
                return Err(refuse(message));
            }
            if resumed.finish.is_some() {
                let len = ids.len();
                let message =
                    format!("the answer ends with token {index} of {len}: leave out what follows");
                return Err(refuse(message));
            }
            resumed.tokens.push(Token(*id));
            resumed.finish = reading.push(Token(*id), &mut resumed.text);
        }
        Ok(resumed)
    }

    /// Sees that they are no more than the answer may have, and whether they are as many.
    pub(crate) fn fit(
        &mut self,
        prompt_len: usize,
        output_len_max: usize,
        context_len: usize,
    ) -> Result<(), ApiError> {
        let len = self.tokens.len();
        if len > output_len_max {
            let message = format!(
                "there are {len} tokens and max_tokens is {output_len_max}: say the same as \
                 before, it counts from where the answer begins"
            );
            return Err(refuse(message));
        }
        // The last token of a text that ended for want of room is beyond the context.
        if prompt_len + len > context_len + 1 {
            return Err(ApiError::too_long(prompt_len + len, context_len));
        }
        if self.finish.is_none() && len == output_len_max {
            self.finish = Some(Finish::Length);
        }
        if self.finish.is_none() && prompt_len + len > context_len {
            self.finish = Some(Finish::Context);
        }
        Ok(())
    }
}

/// Tells the answer's form of the tokens that came before.
pub(crate) fn hold(tokens: &[Token], constraint: &mut dyn Constraint) -> Result<(), ApiError> {
    if tokens.is_empty() {
        return Ok(());
    }
    let admitted = constraint.admitted(tokens);
    if admitted < tokens.len() {
        let message = format!("token {admitted} is none the answer's form allows there");
        return Err(refuse(message));
    }
    constraint.commit(tokens);
    Ok(())
}

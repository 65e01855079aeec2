//! Decoding one sequence with a controller: choose, run, learn.

use crate::control::{Controller, History, Load};
use crate::decoder::Decoder;
use crate::error::DecodeError;
use crate::generate::{Chunk, Generation};
use crate::policy::Limits;

impl Controller {
    /// Runs a round for a sequence alone, as [`Generation::next`], but drafts what it chooses.
    ///
    /// # Errors
    /// As [`Decoder::round`]; the sequence stays as it was.
    pub fn next(
        &mut self,
        history: &mut History,
        generation: &mut Generation,
        decoder: &mut Decoder,
    ) -> Result<Option<Chunk>, DecodeError> {
        if generation.finish().is_some() {
            return Ok(None);
        }
        let choice = self.choose(history, &generation.outlook(decoder, Load::default()));
        let started = decoder.clock().now();
        let mut round = decoder.round(&mut [generation.turn(&choice.plan, Limits::default())])?;
        let seconds = (decoder.clock().now() - started).as_secs_f64();
        let commit = round.commits.pop().expect("one turn, one commit");
        self.observe(&round.passes);
        self.learn(history, &choice, &commit, seconds);
        generation.chose(&choice);
        Ok(Some(generation.committed(commit, round.times, decoder.target().context_len())))
    }
}

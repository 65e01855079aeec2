//! What the engine's thread is given, and what it gives back.

use std::sync::Arc;
use std::time::Instant;

use forerun_decode::{
    Constraint, DecodeError, Dropped, Finish, Piece, Plan, Reading, RuleChoice, Sampling, Stats,
    Token,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::api::types::Common;

/// Who sent a request: clients take turns at the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Client {
    /// A front other than HTTP, which has one.
    #[default]
    Host,
    /// Whoever has this of the server's API keys.
    Key(u64),
    /// Without keys: a connection.
    Connection(u64),
}

/// Which cached prefixes a text may use, and who may use what it leaves: those of the same scope.
/// So `cached_tokens`, and the time to the first token, tell nobody what another sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All with the same API key and the same `cache_salt`; without keys, all with the same salt.
    Shared {
        /// Which key.
        key: Option<u64>,
        /// The salt.
        salt: Option<Arc<str>>,
    },
    /// Nobody: `cache_prompt` is false.
    Nobody,
}

impl Scope {
    /// Whether one may use what the other left.
    pub(crate) fn admits(&self, other: &Self) -> bool {
        *self != Self::Nobody && self == other
    }
}

/// A text to make.
pub(crate) struct Job {
    /// Who wants it.
    pub(crate) client: Client,
    /// What its request says of the prefix cache.
    pub(crate) cache: Cache,
    /// Its place among the answers of its request.
    pub(crate) choice: usize,
    /// What it continues.
    pub(crate) prompt: Vec<Token>,
    /// What came after that before, where it goes on with a text that broke off.
    pub(crate) output: Vec<Token>,
    /// Most tokens after the prompt.
    pub(crate) output_len_max: usize,
    /// How tokens are drawn.
    pub(crate) sampling: Sampling,
    /// How its tokens become text, and what ends it; the output so far was read.
    pub(crate) reading: Reading,
    /// What fixes its random choices.
    pub(crate) seed: u64,
    /// What it is held to.
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// Whether log-probabilities are wanted, and of how many tokens beside.
    pub(crate) logprobs: Option<usize>,
    /// What is drafted.
    pub(crate) drafting: Drafting,
    /// What its output is expected to be.
    pub(crate) prediction: Vec<Token>,
    /// When the request came.
    pub(crate) arrived: Instant,
    /// When it must have ended.
    pub(crate) deadline: Instant,
    /// Who is told.
    pub(crate) events: mpsc::Sender<Event>,
    /// Its request's place in the server, given back when the last of its texts has ended.
    pub(crate) place: Option<Arc<OwnedSemaphorePermit>>,
}

impl Job {
    /// Which cached prefixes it may use.
    pub(crate) fn scope(&self) -> Scope {
        let key = match self.client {
            Client::Key(key) => Some(key),
            Client::Host | Client::Connection(_) => None,
        };
        match self.cache.prompt {
            true => Scope::Shared { key, salt: self.cache.salt.clone() },
            false => Scope::Nobody,
        }
    }
}

/// What a request says of the prefix cache.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    /// Whether it may use what is cached, and leave what others may use.
    pub(crate) prompt: bool,
    /// What parts its prefixes from those of others with the same key.
    pub(crate) salt: Option<Arc<str>>,
}

impl Cache {
    pub(crate) fn of(common: &Common) -> Self {
        let salt = common.cache_salt.as_deref().map(Arc::from);
        Self { prompt: common.cache_prompt.unwrap_or(true), salt }
    }
}

/// What may be drafted for a text.
#[derive(Debug, Clone)]
pub(crate) struct Drafting {
    /// What is drafted where nothing is adapted, and how drafts are judged.
    pub(crate) plan: Plan,
    /// The rule's name.
    pub(crate) rule: RuleChoice,
    /// Whether the controller decides.
    pub(crate) adaptive: bool,
    /// Whether the request asked for no drafts.
    pub(crate) refused: bool,
}

impl Drafting {
    /// The same with this seed.
    pub(crate) fn seeded(&self, seed: u64) -> Self {
        let mut seeded = self.clone();
        seeded.plan.verification = self.rule.verification(seed);
        seeded
    }
}

/// What a round did for a text.
#[derive(Debug)]
pub(crate) enum Event {
    /// It went on.
    Round(Box<Progress>),
    /// It cannot go on, and with it its request.
    Failed(Failure),
}

/// A text's latest tokens, and its sums so far.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Its place among the answers of its request.
    pub(crate) choice: usize,
    /// The tokens.
    pub(crate) pieces: Vec<Piece>,
    /// Why it ended, where it did.
    pub(crate) finish: Option<Finish>,
    /// Its sums.
    pub(crate) tally: Tally,
}

impl Progress {
    /// Of an only answer that ended before, which a client did not hear of.
    pub(crate) fn ended(finish: Finish) -> Self {
        Self { choice: 0, pieces: Vec::new(), finish: Some(finish), tally: Tally::default() }
    }
}

/// What making a text took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// The decoder's sums.
    pub(crate) stats: Stats,
    /// Prompt tokens that were cached.
    pub(crate) cached: usize,
    /// Tokens of the prediction that were committed as such.
    pub(crate) predicted: usize,
    /// For each round with a draft: tokens of the longest path, and accepted ones.
    pub(crate) steps: Vec<(u32, u32)>,
    /// Drafters that failed.
    pub(crate) dropped: Vec<Dropped>,
}

impl Tally {
    /// What a round is sent with. The list of rounds comes with the last one: with each, those that wait
    /// to be read would take the square of their number.
    pub(crate) fn told(&mut self, last: bool) -> Self {
        let steps = std::mem::take(&mut self.steps);
        let mut told = self.clone();
        if last {
            told.steps.clone_from(&steps);
        }
        self.steps = steps;
        told
    }
}

/// Why a text failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum Failure {
    /// The engine's.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It took too long.
    #[error("the request took longer than this server allows (--timeout)")]
    Late,
    /// The server is being stopped.
    #[error("the server is shutting down: try again")]
    Stopping,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_rounds_comes_with_the_last() {
        let mut tally = Tally { cached: 3, steps: vec![(4, 2); 5], ..Tally::default() };
        let told = tally.told(false);
        assert_eq!((told.cached, told.steps.len()), (3, 0));
        assert_eq!(tally.told(true).steps.len(), 5);
        assert_eq!(tally.steps.len(), 5);
    }
}

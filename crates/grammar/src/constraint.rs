//! One text held to a form, and its slow masks worked out on another thread.

use std::fmt;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::Duration;

use forerun_decode::{Constraint, ConstraintError, Token};

use crate::give_way;
use crate::state::State;

/// Holds one text to a form.
///
/// Made by [`GrammarEnv::constrain`](crate::GrammarEnv::constrain). Where the form may end, every end
/// token of the model is allowed; where it must, nothing else is.
///
/// ```
/// use forerun_decode::Constraint;
/// use forerun_grammar::{Form, GrammarEnv};
/// # use forerun_decode::{Special, Token, TokenizeError, Tokenizer};
/// # struct Bytes;
/// # impl Tokenizer for Bytes {
/// #     fn vocab_len(&self) -> usize { 257 }
/// #     fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
/// #         Ok(text.bytes().map(|byte| Token(byte.into())).collect())
/// #     }
/// #     fn start(&self) -> Option<Token> { None }
/// #     fn is_end(&self, token: Token) -> bool { token == Token(256) }
/// #     fn bytes(&self, token: Token, out: &mut Vec<u8>) { out.extend(u8::try_from(token.0)); }
/// # }
/// # let tokenizer = Bytes;
/// let env = GrammarEnv::new(&tokenizer)?;
/// let mut constraint = env.constrain(&Form::JsonObject)?;
/// let draft = tokenizer.tokenize(r#"{"a": 1}!"#, Special::AsText)?;
/// assert_eq!(constraint.admitted(&draft), 8); // All but the exclamation mark.
///
/// constraint.commit(&draft[..8]);
/// assert_eq!(constraint.admitted(&[Token(256)]), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GrammarConstraint(Place);

/// Where the state is.
enum Place {
    Here(Box<State>),
    /// On a thread that works out the next mask and then sends it.
    Away(Receiver<Box<State>>),
    /// On a thread that died.
    Lost,
}

impl GrammarConstraint {
    pub(crate) fn new(state: State) -> Self {
        Self(Place::Here(Box::new(state)))
    }

    /// The state, waited for where it is away.
    fn state(&mut self) -> Result<&mut State, ConstraintError> {
        if let Place::Away(coming) = &self.0 {
            self.0 = coming.recv().map_or(Place::Lost, Place::Here);
        }
        match &mut self.0 {
            Place::Here(state) => Ok(state),
            _ => Err(ConstraintError { reason: "the thread that parses it died".to_owned() }),
        }
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self, path: &[Token], logits: &mut [f32]) -> Result<(), ConstraintError> {
        self.state()?.mask(path, logits)
    }

    fn admitted(&mut self, path: &[Token]) -> usize {
        self.state().map_or(0, |state| state.admitted(path))
    }

    fn commit(&mut self, tokens: &[Token]) {
        // The next mask says that it is lost.
        if let Ok(state) = self.state() {
            state.commit(tokens);
        }
    }

    fn mask_time(&mut self) -> Duration {
        self.state().map_or(Duration::ZERO, State::mask_time)
    }

    fn prepare(&mut self) -> bool {
        match std::mem::replace(&mut self.0, Place::Lost) {
            Place::Here(state) if !state.is_prepared() => {
                let (send, coming) = sync_channel(1);
                let (give, take) = sync_channel::<Box<State>>(1);
                let work = move || {
                    give_way();
                    if let Ok(mut state) = take.recv() {
                        state.prepare();
                        // Nobody may want it any more.
                        let _ = send.send(state);
                    }
                };
                let spawned = thread::Builder::new().name("mask".to_owned()).spawn(work).is_ok();
                // Without a thread it is worked out once it is asked for.
                match spawned.then(|| give.send(state)) {
                    Some(_) => self.0 = Place::Away(coming),
                    None => return true,
                }
            }
            Place::Away(coming) => match coming.try_recv() {
                Ok(state) => self.0 = Place::Here(state),
                Err(TryRecvError::Empty) => self.0 = Place::Away(coming),
                Err(TryRecvError::Disconnected) => {}
            },
            place => self.0 = place,
        }
        !matches!(self.0, Place::Away(_))
    }
}

impl fmt::Debug for GrammarConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarConstraint").finish_non_exhaustive()
    }
}

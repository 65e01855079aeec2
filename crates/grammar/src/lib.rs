//! Holds texts to a [`Form`]: a JSON schema, a regular expression, a choice, a grammar.
//!
//! A [`GrammarEnv`] is a model's vocabulary made ready for grammars, once. It makes a
//! [`GrammarConstraint`] of a form for each text, which forbids the tokens that would leave the form,
//! for target and drafter alike; `forerun-decode` asks it. The work of finding them is done by the
//! library `llguidance`; this crate chooses its settings, checks what it is given, and reads
//! llama.cpp's grammar format, GBNF.
//!
//! It does not make text valid after the fact, and it does not make a model end: a text cut off by
//! its length is the beginning of a text of the form.
//!
//! ```
//! use forerun_grammar::{Form, GrammarEnv};
//! # use forerun_decode::{Constraint, Special, Token, TokenizeError, Tokenizer};
//! # struct Bytes;
//! # impl Tokenizer for Bytes {
//! #     fn vocab_len(&self) -> usize { 257 }
//! #     fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
//! #         Ok(text.bytes().map(|byte| Token(byte.into())).collect())
//! #     }
//! #     fn start(&self) -> Option<Token> { None }
//! #     fn is_end(&self, token: Token) -> bool { token == Token(256) }
//! #     fn bytes(&self, token: Token, out: &mut Vec<u8>) { out.extend(u8::try_from(token.0)); }
//! # }
//! # let tokenizer = Bytes; // A token for each byte, and 256 for the end.
//! let env = GrammarEnv::new(&tokenizer)?;
//! let mut constraint = env.constrain(&Form::Choice(vec!["yes".into(), "no".into()]))?;
//!
//! let mut row = vec![0.0; 257];
//! constraint.mask(&[], &mut row)?;
//! let allowed = |row: &[f32]| (0..257).filter(|&id| row[id] == 0.0).collect::<Vec<_>>();
//! assert_eq!(allowed(&row), [usize::from(b'n'), usize::from(b'y')]);
//!
//! let no = tokenizer.tokenize("no", Special::AsText)?;
//! let mut row = vec![0.0; 257];
//! constraint.mask(&no, &mut row)?;
//! assert_eq!(allowed(&row), [256]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod constraint;
mod env;
mod error;
mod form;
mod gbnf;
mod lark;
mod limits;
mod priority;
mod state;
mod watch;
mod words;

pub use constraint::GrammarConstraint;
pub use env::{CompiledForm, GrammarEnv};
pub use error::GrammarError;
pub use form::Form;
pub use priority::give_way;

//! A model's vocabulary, ready for grammars.

use std::fmt;
use std::panic;
use std::sync::Arc;
use std::thread;

use forerun_decode::{Token, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::constraint::GrammarConstraint;
use crate::error::{GrammarError, PANIC, TOKEN, reason};
use crate::form::Form;
use crate::gbnf::Lexemes;
use crate::state::State;
use crate::words::{Kind, Words};

/// Most tokens of a vocabulary: the trie has 24 bits for a token.
const VOCAB_MAX: usize = (1 << 24) - 1;
/// Most bytes of a token that the trie takes. No model's vocabulary has longer ones that a grammar
/// needs; they are never allowed.
const WORD_MAX: usize = 1 << 10;
/// The stack of the thread that compiles a form. The library walks rules and schemas by recursion,
/// and a chain of rules as long as a form may be takes some 64 MiB. It is reserved, not used.
const STACK: usize = 256 << 20;

/// About what the library keeps for a lexeme beside its lexer.
const LEXEME_BYTES: usize = 512;

/// Most items of a parse that a mask may cost. What must be parsed by characters needs more than the
/// library's 50,000; at 20,000 in a millisecond this is a limit to what a grammar can waste.
const ITEMS_MAX: usize = 1_000_000;

/// The words of a model, ready for grammars: made once, cheap to clone, shared by all threads.
///
/// ```
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
/// assert!(env.constrain(&Form::Regex("[0-9]{4}".into())).is_ok());
///
/// let refused = env.constrain(&Form::Regex("[0-9".into())).err();
/// assert!(refused.is_some_and(|error| error.to_string().contains("unclosed")));
/// # Ok::<(), forerun_grammar::GrammarError>(())
/// ```
#[derive(Clone)]
pub struct GrammarEnv {
    factory: Arc<ParserFactory>,
    words: Arc<Words>,
}

impl GrammarEnv {
    /// Reads the vocabulary.
    ///
    /// # Errors
    /// Where it has no end token or is too large.
    pub fn new(tokenizer: &dyn Tokenizer) -> Result<Self, GrammarError> {
        let tokens = tokenizer.vocab_len();
        let vocab_len = match u32::try_from(tokens) {
            Ok(len) if tokens <= VOCAB_MAX => len,
            _ => return Err(GrammarError::Vocabulary { tokens }),
        };
        let mut kinds = Vec::with_capacity(tokens);
        let mut words = Vec::with_capacity(tokens);
        for id in 0..vocab_len {
            let (kind, word) = read(tokenizer, Token(id));
            kinds.push(kind);
            words.push(word);
        }
        let is_end = |id: &u32| tokenizer.is_end(Token(*id));
        let ends: Vec<u32> = (0..vocab_len).filter(is_end).collect();
        let Some(&first_end) = ends.first() else { return Err(GrammarError::Endless) };

        let trie = TokTrie::from(&TokRxInfo::new(vocab_len, first_end), &words);
        // An approximate tokeniser forces no tokens: whatever spells the form is allowed, and a mask
        // is a function of the text alone.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&ends)));
        let mut factory = ParserFactory::new_simple(&env).map_err(refused)?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().step_max_items = ITEMS_MAX;
        Ok(Self { factory: Arc::new(factory), words: Arc::new(Words::new(kinds)) })
    }

    /// Holds a text to a form; the text has not begun.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn constrain(&self, form: &Form) -> Result<GrammarConstraint, GrammarError> {
        Ok(GrammarConstraint::new(self.compile(form)?.first))
    }

    /// Compiles a form, for any number of sequences. It takes a thread of its own for as long as it
    /// takes, and cannot be interrupted.
    ///
    /// # Errors
    /// If the form is invalid, asks for what is not supported, exceeds a limit, or has no text that
    /// this vocabulary can write.
    pub fn compile(&self, form: &Form) -> Result<CompiledForm, GrammarError> {
        let compiled = thread::scope(|scope| {
            let builder = thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let compiling = builder.spawn_scoped(scope, || self.compile_here(form));
            let compiling = compiling.map_err(refused)?;
            compiling.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
        });
        let (matcher, bytes) = compiled?;
        let first = State::new(matcher, Arc::clone(&self.words))
            .map_err(|error| GrammarError::Refused { reason: error.reason })?;
        Ok(CompiledForm { first, bytes })
    }

    fn compile_here(&self, form: &Form) -> Result<(Matcher, usize), GrammarError> {
        match self.matcher(form.compile(Lexemes::Large)?) {
            Err(GrammarError::Refused { reason }) if reason.starts_with(PANIC) => {
                self.matcher(form.compile(Lexemes::Chars)?)
            }
            made => made,
        }
    }

    /// The matcher, and about how many bytes of memory it takes.
    fn matcher(&self, grammar: TopLevelGrammar) -> Result<(Matcher, usize), GrammarError> {
        let parser = self.factory.create_parser(grammar).map_err(refused)?;
        let spec = parser.parser.grammar().lexer_spec();
        // Lark can ask for what cannot be taken back, and so not be tried on a draft, and for tokens
        // that are no text.
        if !spec.can_rollback() {
            return Err(GrammarError::Unsupported {
                feature: "`stop` or `max_tokens` in a grammar",
            });
        }
        if spec.special_token_rx.is_some() {
            return Err(GrammarError::Unsupported { feature: TOKEN });
        }
        let lexemes = spec.lexemes.len() * LEXEME_BYTES;
        let bytes = parser.parser.lexer_stats().num_bytes + lexemes;
        Ok((Matcher::new(Ok(parser)).into_cancellable(), bytes))
    }
}

/// A form compiled for a vocabulary.
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
/// let compiled = GrammarEnv::new(&Bytes)?.compile(&Form::Regex("[ab]+".into()))?;
/// let (mut one, mut other) = (compiled.constrain(), compiled.constrain());
/// one.commit(&[Token(b'a'.into())]);
/// assert_eq!(other.admitted(&[Token(256)]), 0); // It has not begun.
/// # Ok::<(), forerun_grammar::GrammarError>(())
/// ```
pub struct CompiledForm {
    first: State,
    bytes: usize,
}

impl fmt::Debug for CompiledForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledForm").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl CompiledForm {
    /// Constrains a sequence that has not begun. It shares nothing that grows with others: how much
    /// work one sequence makes does not change what another may do.
    pub fn constrain(&self) -> GrammarConstraint {
        GrammarConstraint::new(self.first.separate())
    }

    /// Constrains so many sequences of one request. They share what the library finds out about the form
    /// while they go on, and the limit on its work.
    pub fn constrain_all(&self, count: usize) -> Vec<GrammarConstraint> {
        let first = self.first.separate();
        (0..count).map(|_| GrammarConstraint::new(first.fork())).collect()
    }

    /// About how many bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for GrammarEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarEnv").field("tokens", &self.words.len()).finish_non_exhaustive()
    }
}

fn refused(error: impl fmt::Display) -> GrammarError {
    GrammarError::Refused { reason: reason(error) }
}

/// What the token is, and its bytes if it is a word.
fn read(tokenizer: &dyn Tokenizer, token: Token) -> (Kind, Vec<u8>) {
    let mut word = Vec::new();
    if tokenizer.is_end(token) {
        return (Kind::End, word);
    }
    tokenizer.bytes(token, &mut word);
    // The byte 0xff is in no text, and the library marks tokens that are no text with it.
    if word.is_empty() || word.len() > WORD_MAX || word.contains(&0xff) {
        return (Kind::Other, Vec::new());
    }
    (Kind::Word, word)
}

//! Chat templates: messages to the prompt a model was trained on.
//!
//! A model file brings its template, a Jinja program written for Python's transformers library, and
//! it is rendered here as that library would (`render_jinja_template`, transformers 5): the same
//! variables, functions, filters and handling of white space. There is no template to fall back on:
//! a prompt in another model's format gives worse text and no error. Tokens are not made here.

mod json;
mod marks;
mod time;

pub use time::date;

use std::{
    collections::BTreeMap,
    error::Error as _,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, SystemTime},
};

use minijinja::{
    AutoEscape, Environment, ErrorKind, Value,
    syntax::SyntaxConfig,
    value::{Serde, ValueKind},
};
use serde::{Deserialize, Serialize};

use crate::special::{RenderedPrompt, SpecialTokens};

/// What one side of a chat said.
///
/// ```
/// use forerun_decode::Message;
///
/// let mut message = Message::new("tool", "21 °C");
/// message.extra.set("name", "weather");
/// assert_eq!(message.role, "tool");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What.
    pub content: String,
    /// What else the template may read, such as `tool_calls`; not another role or content.
    #[serde(flatten)]
    pub extra: Fields,
}

impl Message {
    /// A message with no other fields.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Fields::default() }
    }

    fn value(&self) -> Value {
        let own = [("role", &self.role), ("content", &self.content)];
        let own = own.map(|(name, text)| (name, Value::from(text.as_str())));
        let is_own = |name: &str| own.iter().any(|(own, _)| *own == name);
        let extra = self.extra.0.iter().filter(|(name, _)| !is_own(name));
        let extra = extra.map(|(name, value)| (name.as_str(), value.clone()));
        Value::from_pairs(own.clone().into_iter().chain(extra))
    }
}

/// Values by name that a template may read. The order of a value's own fields is kept.
///
/// ```
/// use forerun_decode::Fields;
///
/// let mut fields = Fields::default();
/// fields.set("enable_thinking", false);
/// assert!(!fields.is_empty());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fields(BTreeMap<String, Value>);

impl Fields {
    /// Sets a value. Where a template expects a list, give a `Vec`: to serde, arrays are tuples. A
    /// value that cannot be serialised makes the templates that read it fail.
    pub fn set(&mut self, name: impl Into<String>, value: impl Serialize) {
        self.0.insert(name.into(), Value::from(Serde(value)));
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a template is told beside the messages.
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use forerun_decode::{ChatOptions, ChatTemplate};
///
/// let template = ChatTemplate::new("{{ strftime_now('%d %b %Y') }}", None, None)?;
/// let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
/// let options = ChatOptions { now: Some(now), ..ChatOptions::default() };
/// assert_eq!(template.render(&[], &options)?, "09 Sep 2001");
/// # Ok::<(), forerun_decode::ChatError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ChatOptions {
    /// Whether the prompt ends where the assistant's next message begins. So it does by default.
    pub add_generation_prompt: bool,
    /// The time that `strftime_now` tells, in UTC. Without it that function is undefined, as
    /// templates foresee, and the prompt depends on the messages alone.
    pub now: Option<SystemTime>,
    /// Other variables, such as `tools` or `enable_thinking`. None can replace a variable that is
    /// set here: `messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `strftime_now`.
    pub fields: Fields,
}

impl Default for ChatOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, now: None, fields: Fields::default() }
    }
}

/// Why there is no prompt.
///
/// ```
/// use forerun_decode::{ChatError, ChatTemplate};
///
/// let source = "\n{{ raise_exception('only users may speak') }}";
/// let error = ChatTemplate::new(source, None, None)?.render(&[], &Default::default()).unwrap_err();
/// assert_eq!(
///     error,
///     ChatError::Refused { line: 2, message: "only users may speak".into() }
/// );
/// # Ok::<(), ChatError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The model file has no template.
    #[error("the model has no chat template: pass --chat-template, a file or one of {}", Names)]
    Missing,
    /// No template has this name.
    #[error("no chat template is called {name:?}: expected one of {}", Names)]
    Unknown {
        /// The name.
        name: String,
    },
    /// The template's source is too long.
    #[error("the chat template has {bytes} bytes, at most {} are taken", ChatTemplate::SOURCE_MAX)]
    Long {
        /// Its length.
        bytes: usize,
    },
    /// The template is not well-formed.
    #[error("the chat template is malformed in line {line}: {message}")]
    Malformed {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// The template itself refuses the messages: a mistake of who wrote them.
    #[error("the chat template refuses the messages in line {line}: {message}")]
    Refused {
        /// The line, from 1.
        line: usize,
        /// The template's words.
        message: String,
    },
    /// The template does what cannot be done, such as reading a field of nothing.
    #[error("the chat template fails in line {line}: {message}")]
    Failed {
        /// The line, from 1.
        line: usize,
        /// What it did.
        message: String,
    },
    /// The template does not come to an end.
    #[error("the chat template was stopped after {} instructions", ChatTemplate::FUEL)]
    Endless,
    /// The library that runs templates has a bug that this one meets.
    #[error("the chat template made the template library panic")]
    Broken,
    /// The prompt is too long.
    #[error("the chat template wrote more than {} bytes", ChatTemplate::PROMPT_MAX)]
    Flood,
    /// The messages hold the text of a control token and every character it could be marked by.
    #[error(
        "the messages hold a control token's text and all private-use characters: leave one of \
         them out"
    )]
    Unmarkable,
}

impl ChatError {
    /// What a template says may quote a message; the mark in it is for nobody to read.
    fn without(mut self, mark: char) -> Self {
        if let Self::Refused { message, .. } | Self::Failed { message, .. } = &mut self {
            message.retain(|char| char != mark);
        }
        self
    }
}

/// Templates that go by a name. Our words for public formats, each with a single form.
const NAMED: [(&str, &str); 3] = [
    ("chatml", include_str!("chat/templates/chatml.jinja")),
    ("gemma", include_str!("chat/templates/gemma.jinja")),
    ("llama3", include_str!("chat/templates/llama3.jinja")),
];

/// Lists the names for messages.
struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&NAMED.map(|(name, _)| name).join(", "))
    }
}

/// A model's way of writing a chat as one text.
///
/// A prompt holds control tokens, to be tokenised with [`Special::Parse`](crate::Special); for
/// messages that are not to be trusted, see [`ChatTemplate::render_content_as_text`]. Many templates
/// write the start token themselves: add [`Tokenizer::start`](crate::Tokenizer::start) only to a
/// prompt whose first token it is not.
///
/// ```
/// use forerun_decode::{ChatOptions, ChatTemplate, Message};
///
/// let template = ChatTemplate::named("chatml", None, None)?;
/// let prompt = template.render(&[Message::new("user", "Hi!")], &ChatOptions::default())?;
/// assert_eq!(prompt, "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n");
/// # Ok::<(), forerun_decode::ChatError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    start: Option<String>,
    end: Option<String>,
}

/// What the template is called inside its environment.
const NAME: &str = "chat";

impl ChatTemplate {
    /// Most bytes of a template's source. Public ones have up to 20,000.
    pub const SOURCE_MAX: usize = 1 << 17;
    /// Most instructions of one rendering, so that none goes on for ever. Public templates take up
    /// to 160 for each message, but for Gemma 4's, which takes 3.6 million for a thousand. This is
    /// no sandbox: what one instruction may cost in time, memory or stack is not bounded, so a
    /// template is to be trusted as far as the model file it comes from.
    pub const FUEL: u64 = 10_000_000;
    /// Most bytes of a prompt: more than the longest contexts hold.
    pub const PROMPT_MAX: usize = 1 << 26;

    /// Reads a template. `start` and `end` are the texts of the model's start and end token, which
    /// it knows as `bos_token` and `eos_token`; without, they are undefined, that is, empty.
    ///
    /// # Errors
    /// [`ChatError::Missing`] where the source is blank, and where it is too long or malformed.
    pub fn new(source: &str, start: Option<&str>, end: Option<&str>) -> Result<Self, ChatError> {
        if source.trim().is_empty() {
            return Err(ChatError::Missing);
        }
        if source.len() > Self::SOURCE_MAX {
            return Err(ChatError::Long { bytes: source.len() });
        }
        let mut environment = environment();
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(|error| {
            let (line, message) = describe(&error);
            ChatError::Malformed { line, message }
        })?;
        Ok(Self { environment, start: start.map(Into::into), end: end.map(Into::into) })
    }

    /// A well-known template. See [`ChatTemplate::new`] for `start` and `end`.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn named(name: &str, start: Option<&str>, end: Option<&str>) -> Result<Self, ChatError> {
        let named = NAMED.iter().find(|(known, _)| *known == name);
        let (_, source) = named.ok_or_else(|| ChatError::Unknown { name: name.to_owned() })?;
        Self::new(source, start, end)
    }

    /// The names of the well-known templates.
    ///
    /// ```
    /// use forerun_decode::ChatTemplate;
    ///
    /// assert!(ChatTemplate::names().any(|name| name == "chatml"));
    /// ```
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// Writes the messages as a prompt.
    ///
    /// # Errors
    /// If the template refuses the messages, fails, or does not end.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, ChatError> {
        write(&self.environment, self.variables(messages, options))
    }

    /// Writes the messages as a prompt in which nothing that they say, nor any string of the options'
    /// fields, becomes a control token: tokenise it with [`SpecialTokens::tokenize`]. Roles are taken
    /// as they are.
    ///
    /// The template sees the text of a control token broken by a character of its own, so a template
    /// that looks for such a text in a message does not find it. One that takes text out of the
    /// middle of a message can still join what is around it to a control token.
    ///
    /// # Errors
    /// If the template refuses the messages, fails, or does not end.
    ///
    /// ```
    /// use forerun_decode::{ChatOptions, ChatTemplate, Message, SpecialToken, SpecialTokens, Token};
    ///
    /// let specials = SpecialTokens::new(vec![SpecialToken::control(Token(2), "<|im_end|>")]);
    /// let template = ChatTemplate::named("chatml", None, None)?;
    /// let said = [Message::new("user", "<|im_end|>")];
    /// let prompt = template.render_content_as_text(&said, &ChatOptions::default(), &specials)?;
    /// assert_eq!(prompt.text, template.render(&said, &ChatOptions::default())?);
    /// assert!(!prompt.breaks.is_empty());
    /// # Ok::<(), forerun_decode::ChatError>(())
    /// ```
    pub fn render_content_as_text(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        specials: &SpecialTokens,
    ) -> Result<RenderedPrompt, ChatError> {
        let template = self.environment.get_template(NAME).expect("it was added by `new`");
        Ok(match marks::mark(messages, options, specials, template.source())? {
            None => RenderedPrompt {
                text: self.render(messages, options)?,
                ..RenderedPrompt::default()
            },
            Some((messages, options, mark)) => {
                let mut environment = self.environment.clone();
                environment.add_global(json::MARK, mark);
                let marked = write(&environment, self.variables(&messages, &options));
                RenderedPrompt::unmark(&marked.map_err(|error| error.without(mark))?, mark)
            }
        })
    }

    fn variables(&self, messages: &[Message], options: &ChatOptions) -> Value {
        // Templates ask whether these are none, not whether they are defined.
        let mut variables =
            BTreeMap::from(["documents", "tools"].map(|name| (name, Value::from(()))));
        for (name, value) in &options.fields.0 {
            variables.insert(name, value.clone());
        }
        let messages: Vec<Value> = messages.iter().map(Message::value).collect();
        variables.insert("messages", messages.into());
        variables.insert("add_generation_prompt", options.add_generation_prompt.into());
        for (name, token) in [("bos_token", &self.start), ("eos_token", &self.end)] {
            variables.insert(name, token.as_deref().map_or(Value::UNDEFINED, Value::from));
        }
        variables.insert("strftime_now", options.now.map_or(Value::UNDEFINED, strftime_now));
        Value::from_pairs(variables)
    }
}

/// Runs the template.
fn write(environment: &Environment<'_>, variables: Value) -> Result<String, ChatError> {
    let template = environment.get_template(NAME).expect("it was added by `ChatTemplate::new`");
    let mut prompt = Prompt::default();
    let write = || template.render_captured_to(variables, &mut prompt).map(drop);
    // A template's author must not be able to end a server where the library has a bug, such
    // as minijinja 3.0.5's panic at `[][::-1]`. Nothing half-done outlives this call.
    match catch_unwind(AssertUnwindSafe(write)) {
        Ok(Ok(())) => Ok(String::from_utf8(prompt.bytes).expect("it was written as strings")),
        Ok(Err(_)) if prompt.full => Err(ChatError::Flood),
        Ok(Err(error)) => Err(explain(&error)),
        Err(_) => Err(ChatError::Broken),
    }
}

/// The dialect of transformers: see `_cached_compile_jinja_template` there.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the delimiters are the usual ones"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_fuel(Some(ChatTemplate::FUEL));
    // Errors then name what is undefined, in release builds too.
    environment.set_debug(true);
    environment.add_filter("tojson", json::tojson);
    for test in ["iterable", "sequence"] {
        environment.add_test(test, has_items);
    }
    environment.add_function("raise_exception", |message: Value| -> Result<Value, _> {
        let message = message.to_string();
        Err(minijinja::Error::from(ErrorKind::InvalidOperation).with_source(Raised(message)))
    });
    environment
}

/// What Python calls iterable, and by its length and items a sequence: texts and maps are, none is
/// not. Templates so ask whether there are tools.
fn has_items(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}

fn strftime_now(now: SystemTime) -> Value {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Value::from_function(move |format: String| time::strftime(since, &format))
}

/// Makes `{% generation %}` blocks, which mark what the assistant said for training, plain scopes.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        out.push_str(before);
        rest = tag;
        let word = tag.trim_start_matches(['-', '+']).trim_start();
        let (scope, name) = match word.strip_prefix("end") {
            Some(name) => ("endwith", name),
            None => ("with", word),
        };
        let Some(after) = name.strip_prefix("generation") else { continue };
        if after.trim_start().trim_start_matches(['-', '+']).starts_with("%}") {
            out.push_str(&tag[..tag.len() - word.len()]);
            out.push_str(scope);
            rest = after;
        }
    }
    out + rest
}

/// What a template raised.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Why a rendering failed.
fn explain(error: &minijinja::Error) -> ChatError {
    let (line, message) = describe(error);
    let mut cause = Some(error as &(dyn std::error::Error + 'static));
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return ChatError::Refused { line, message: message.clone() };
        }
        let kind = error.downcast_ref().map(minijinja::Error::kind);
        if kind == Some(ErrorKind::OutOfFuel) {
            return ChatError::Endless;
        }
        cause = error.source();
    }
    ChatError::Failed { line, message }
}

/// Line and message of the innermost error.
fn describe(error: &minijinja::Error) -> (usize, String) {
    let mut line = error.line();
    let mut innermost = error;
    while let Some(inner) = innermost.source().and_then(<dyn std::error::Error>::downcast_ref) {
        innermost = inner;
        line = innermost.line().or(line);
    }
    let message = match innermost.detail() {
        Some(detail) => format!("{}: {detail}", innermost.kind()),
        None => innermost.kind().to_string(),
    };
    (line.unwrap_or(1), message)
}

/// The prompt as it is written, up to its longest.
#[derive(Default)]
struct Prompt {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Prompt {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > ChatTemplate::PROMPT_MAX - self.bytes.len() {
            self.full = true;
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

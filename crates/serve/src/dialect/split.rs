//! Splits what a model writes into thoughts, text and calls, as it is written: a mark may come in any
//! number of pieces. A call of a function that nobody offered is text.

mod body;

use std::sync::Arc;

use serde_json::Value;

use self::body::Reader;
use super::{CallFormat, Dialect};

/// A part of what a model writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Thought(String),
    Text(String),
    /// A call of this function begins.
    Call(String),
    /// A piece of the arguments of the call that began last: JSON once all pieces are joined.
    Arguments(String),
}

/// A function that may be called.
#[derive(Debug, Clone)]
pub(crate) struct Callable {
    pub(crate) name: String,
    /// The schema of its parameters.
    pub(crate) parameters: Option<Value>,
}

impl Callable {
    /// Whether an argument is a text by its schema, and not JSON.
    fn is_text(&self, key: &str) -> bool {
        let of = |schema: &Value| schema.get("properties")?.get(key)?.get("type").cloned();
        self.parameters.as_ref().and_then(of).is_some_and(|kind| kind == "string")
    }
}

/// Longest name or id of a call; what is longer is none.
const NAME_MAX: usize = 256;

/// Where in an output the splitter is.
#[derive(Debug)]
enum Place {
    /// At its beginning.
    Opening,
    Thinking {
        begun: bool,
    },
    Text {
        /// Whether white space before the text is dropped.
        trim: bool,
    },
    /// Inside the marks of all calls, before a call or their end.
    Calls,
    Body(Reader),
    AfterBody,
}

/// Splits an output.
#[derive(Debug)]
pub(crate) struct Splitter {
    dialect: Arc<Dialect>,
    functions: Arc<[Callable]>,
    place: Place,
    /// What is not decided yet.
    held: String,
    /// The text of a call whose function is not known yet.
    raw: String,
    /// The function that is being called.
    current: Option<usize>,
    /// Calls that have begun.
    calls: usize,
    /// Whether there was text.
    said: bool,
    /// Whether the output ended inside a call.
    cut: bool,
}

/// What a step found.
enum Found {
    /// Something; there may be more.
    More,
    /// Nothing without further text.
    Wait,
    /// What was read is no call.
    NoCall,
}

impl Splitter {
    /// Splits an output, which begins inside a thought if the prompt has opened one.
    pub(crate) fn new(dialect: Arc<Dialect>, functions: Arc<[Callable]>, opened: bool) -> Self {
        let place = if opened { Place::Thinking { begun: false } } else { Place::Opening };
        Self {
            dialect,
            functions,
            place,
            held: String::new(),
            raw: String::new(),
            current: None,
            calls: 0,
            said: false,
            cut: false,
        }
    }

    /// How many calls have begun.
    pub(crate) fn calls(&self) -> usize {
        self.calls
    }

    /// Whether the output ended inside a call.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Adds text. What it completes is appended to `out`.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<Part>) {
        self.held.push_str(text);
        loop {
            match self.step(out) {
                Found::More => {}
                Found::Wait => break,
                Found::NoCall => self.no_call(out),
            }
        }
    }

    /// The output has ended. What was held back is appended to `out`.
    pub(crate) fn finish(&mut self, out: &mut Vec<Part>) {
        let held = std::mem::take(&mut self.held);
        self.cut = matches!(self.place, Place::Body(_)) && self.current.is_some();
        match &self.place {
            Place::Thinking { .. } => add(out, Part::Thought(held.trim_end().to_owned())),
            Place::Text { trim: true } => self.say(held.trim_start(), out),
            Place::Opening | Place::Text { .. } => self.say(&held, out),
            Place::Body(_) if self.current.is_none() => {
                let raw = std::mem::take(&mut self.raw) + &held;
                self.say(&raw, out);
            }
            Place::Calls | Place::AfterBody | Place::Body(_) => {}
        }
        self.place = Place::Text { trim: true };
    }

    fn format(&self) -> &CallFormat {
        &self.dialect.calls
    }

    fn say(&mut self, text: &str, out: &mut Vec<Part>) {
        self.said |= !text.trim().is_empty();
        add(out, Part::Text(text.to_owned()));
    }

    /// Takes the beginning of what is held.
    fn take(&mut self, len: usize) -> String {
        let rest = self.held.split_off(len);
        std::mem::replace(&mut self.held, rest)
    }

    /// The same for text that may turn out not to be a call.
    fn take_raw(&mut self, len: usize) -> String {
        let taken = self.take(len);
        if self.current.is_none() {
            self.raw.push_str(&taken);
        }
        taken
    }

    /// What was read since the mark is text after all.
    fn no_call(&mut self, out: &mut Vec<Part>) {
        let raw = std::mem::take(&mut self.raw);
        self.say(&raw, out);
        self.place = Place::Text { trim: false };
    }

    fn step(&mut self, out: &mut Vec<Part>) -> Found {
        match &mut self.place {
            Place::Opening => self.open(),
            Place::Thinking { .. } => self.think(out),
            Place::Text { .. } => self.text(out),
            Place::Calls => self.between_calls(),
            Place::Body(_) => match std::mem::replace(&mut self.place, Place::AfterBody) {
                Place::Body(reader) => self.body(reader, out),
                _ => Found::Wait,
            },
            Place::AfterBody => self.after_body(),
        }
    }

    fn open(&mut self) -> Found {
        let start = self.dialect.thoughts.as_ref().map_or("", |marks| marks.start.trim());
        let text = self.held.trim_start();
        let skipped = self.held.len() - text.len();
        self.place = match begins(text, start) {
            _ if start.is_empty() => Place::Text { trim: false },
            Begins::Maybe => return Found::Wait,
            Begins::Not => Place::Text { trim: false },
            Begins::With => {
                let len = skipped + start.len();
                self.held.drain(..len);
                Place::Thinking { begun: false }
            }
        };
        Found::More
    }

    fn think(&mut self, out: &mut Vec<Part>) -> Found {
        let end = self.dialect.thoughts.as_ref().map_or("", |marks| marks.end.trim()).to_owned();
        let Place::Thinking { begun } = &mut self.place else { return Found::Wait };
        if !*begun {
            let text = self.held.trim_start().to_owned();
            self.held = text;
            *begun = !self.held.is_empty();
        }
        if let Some(at) = self.held.find(&end) {
            let thought = self.take(at);
            self.held.drain(..end.len());
            add(out, Part::Thought(thought.trim_end().to_owned()));
            self.place = Place::Text { trim: true };
            return Found::More;
        }
        let free = undecided(&self.held, &[&end]);
        let thought = self.take(free);
        add(out, Part::Thought(thought));
        Found::Wait
    }

    fn text(&mut self, out: &mut Vec<Part>) -> Found {
        if let Place::Text { trim: trim @ true } = &mut self.place {
            let text = self.held.trim_start().to_owned();
            self.held = text;
            if self.held.is_empty() {
                return Found::Wait;
            }
            *trim = false;
        }
        let dialect = Arc::clone(&self.dialect);
        let mut opening = dialect.calls.opening();
        if self.functions.is_empty() || dialect.calls.first_only && self.said {
            opening = "";
        }
        let marks = [opening, dialect.answer.start.as_str(), dialect.answer.end.as_str()];
        let marks = marks.map(str::trim);
        let found = marks.iter().enumerate().filter(|(_, mark)| !mark.is_empty());
        let found = found.filter_map(|(index, mark)| Some((self.held.find(mark)?, index)));
        let found = found.min().filter(|(at, index)| {
            *index > 0 || !dialect.calls.first_only || self.held[..*at].trim().is_empty()
        });
        let Some((at, index)) = found else {
            let marks: Vec<&str> = marks.into_iter().filter(|mark| !mark.is_empty()).collect();
            let free =
                if marks.is_empty() { self.held.len() } else { undecided(&self.held, &marks) };
            let text = self.take(free);
            self.say(&text, out);
            return Found::Wait;
        };
        let text = self.take(at);
        self.say(text.trim_end(), out);
        if index > 0 {
            self.held.drain(..marks[index].len());
            self.place = Place::Text { trim: true };
            return Found::More;
        }
        (self.raw, self.current) = (String::new(), None);
        self.take_raw(opening.len());
        self.place = match dialect.calls.section.start.trim() {
            "" => Place::Body(Reader::of(&dialect.calls)),
            _ => Place::Calls,
        };
        Found::More
    }

    /// Skips white space. Returns whether anything is left.
    fn skip_space(&mut self) -> bool {
        let len = self.held.len() - self.held.trim_start().len();
        self.take_raw(len);
        !self.held.is_empty()
    }

    fn between_calls(&mut self) -> Found {
        if !self.skip_space() {
            return Found::Wait;
        }
        let CallFormat { section, call, between, .. } = self.format();
        let (start, end, between) = (call.start.trim(), section.end.trim(), between.trim());
        let held = self.held.as_str();
        let all = [start, end, between].map(|mark| (mark.len(), begins(held, mark)));
        let is = |index: usize| all[index].0 > 0 && all[index].1 == Begins::With;
        let (len, next) = if is(1) {
            (all[1].0, Place::Text { trim: true })
        } else if is(0) || all[0].0 == 0 && held.starts_with(['{', '[']) {
            (all[0].0, Place::Body(Reader::of(self.format())))
        } else if is(2) {
            (all[2].0, Place::Calls)
        } else if all.iter().any(|(len, begins)| *len > 0 && *begins == Begins::Maybe) {
            return Found::Wait;
        } else if self.calls > 0 && self.current.is_some() {
            (0, Place::Text { trim: true })
        } else {
            return Found::NoCall;
        };
        if matches!(next, Place::Body(_)) && self.current.take().is_some() {
            self.raw.clear();
        }
        self.take_raw(len);
        self.place = next;
        Found::More
    }

    fn after_body(&mut self) -> Found {
        if !self.skip_space() {
            return Found::Wait;
        }
        let end = self.format().call.end.trim();
        let len = match begins(&self.held, end) {
            Begins::Maybe => return Found::Wait,
            Begins::With => end.len(),
            Begins::Not => 0,
        };
        self.take(len);
        self.place = match self.format().section.start.trim() {
            "" => Place::Text { trim: true },
            _ => Place::Calls,
        };
        Found::More
    }

    /// A function is called, if it is one of those offered.
    fn call(&mut self, name: &str, out: &mut Vec<Part>) -> bool {
        let name = name.trim();
        self.current = self.functions.iter().position(|function| function.name == name);
        if self.current.is_some() {
            self.calls += 1;
            add(out, Part::Call(name.to_owned()));
        }
        self.current.is_some()
    }
}

/// Whether a text begins with a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begins {
    With,
    /// If more of the text comes.
    Maybe,
    Not,
}

fn begins(text: &str, mark: &str) -> Begins {
    match text {
        _ if text.starts_with(mark) => Begins::With,
        _ if mark.starts_with(text) => Begins::Maybe,
        _ => Begins::Not,
    }
}

/// How much of a text is certainly before any of the marks: not what may be the beginning of one, nor
/// white space before it.
fn undecided(text: &str, marks: &[&str]) -> usize {
    let begun = |mark: &&str| {
        let lens = mark.char_indices().map(|(at, _)| at).skip(1);
        lens.filter(|len| text.ends_with(&mark[..*len])).max().unwrap_or(0)
    };
    let kept = marks.iter().map(begun).max().unwrap_or(0);
    text[..text.len() - kept].trim_end().len()
}

/// Adds a part, to the one before it if that is of its kind.
fn add(out: &mut Vec<Part>, part: Part) {
    match (out.last_mut(), part) {
        (Some(Part::Thought(last)), Part::Thought(more))
        | (Some(Part::Text(last)), Part::Text(more))
        | (Some(Part::Arguments(last)), Part::Arguments(more)) => last.push_str(&more),
        (_, Part::Thought(text) | Part::Text(text) | Part::Arguments(text)) if text.is_empty() => {}
        (_, part) => out.push(part),
    }
}

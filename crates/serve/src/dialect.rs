//! How a model writes thoughts and calls of functions, read off its chat template.
//!
//! A template says how calls of earlier turns are written, so a model that was trained with it
//! writes its own calls so. It is rendered with calls whose parts can be recognised, and the marks
//! around the parts are what is left (`derive.rs`). From the marks come the splitter of what a model
//! writes (`split.rs`) and the grammar that holds its calls to their schemas (`grammar.rs`). Nothing
//! here knows a model's name.

mod derive;
mod families;
mod grammar;
mod json;
mod lead;
mod refs;
mod shown;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use grammar::{CallForm, CallRules};
pub(crate) use lead::Leads;
pub(crate) use shown::Shown;
pub(crate) use split::{Callable, Part, Splitter};

/// What stands before and after something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) start: String,
    pub(crate) end: String,
}

impl Marks {
    pub(crate) fn new(start: &str, end: &str) -> Self {
        Self { start: start.to_owned(), end: end.to_owned() }
    }
}

/// How a model writes what is not plain text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dialect {
    /// The marks of thoughts, if the model thinks before it answers.
    pub(crate) thoughts: Option<Marks>,
    /// The marks of the answer; most models have none.
    pub(crate) answer: Marks,
    /// How calls are written.
    pub(crate) calls: CallFormat,
    /// What the template is to be told of functions and calls; `None` if it can be told nothing, so
    /// that they are described in the model's instructions and written as text.
    pub(crate) native: Option<Native>,
}

/// What a template wants to be told of functions and calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Native {
    /// Whether arguments are given as JSON in a string, and not as an object.
    pub(crate) arguments_as_text: bool,
    /// What ids of calls must be.
    pub(crate) ids: Ids,
}

/// What the ids of calls must be for a template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Anything.
    #[default]
    Any,
    /// Nine letters and digits, as Mistral's.
    Nine,
    /// The function's name and the call's index, as Kimi's.
    Named,
}

/// How calls are written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallFormat {
    /// The marks around all calls.
    pub(crate) section: Marks,
    /// The marks around each.
    pub(crate) call: Marks,
    /// What stands between two.
    pub(crate) between: String,
    /// Whether there may be several.
    pub(crate) several: bool,
    /// Whether calls begin an output and never come after text: their mark is one that text may have.
    pub(crate) first_only: bool,
    pub(crate) body: Body,
}

/// What is between the marks of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Body {
    /// An object with the name and the arguments; with `list`, a list of such objects takes the place
    /// of all calls.
    Object { fields: Vec<(String, Field)>, list: bool },
    /// The name, then a text, then the arguments as JSON.
    Named { middle: Vec<Gap> },
    /// The name, then each argument by itself.
    Tagged(Tags),
}

/// A field of an object that is a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Field {
    Name,
    Arguments,
    /// The arguments, under the function's name.
    ArgumentsByName,
    Id,
    Other(serde_json::Value),
}

/// A part of what stands between a name and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gap {
    Text(String),
    /// An id or an index.
    Id,
}

/// How arguments are written each by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tags {
    /// After the name, before the first argument.
    pub(crate) after_name: String,
    /// The marks of an argument's name.
    pub(crate) key: Marks,
    /// What its name ends with if its value is no text, unless that is the same.
    pub(crate) other_end: Option<String>,
    /// After an argument's value.
    pub(crate) after_value: String,
}

impl CallFormat {
    /// JSON between tags: the format that most models know, described to those whose template has
    /// none.
    pub(crate) fn described() -> Self {
        let fields =
            vec![("name".to_owned(), Field::Name), ("arguments".to_owned(), Field::Arguments)];
        Self {
            section: Marks::default(),
            call: Marks::new("<tool_call>", "</tool_call>"),
            between: String::new(),
            several: true,
            first_only: false,
            body: Body::Object { fields, list: false },
        }
    }

    /// What a call begins with, without white space around it: the text that a splitter looks for.
    pub(crate) fn opening(&self) -> &str {
        match self.section.start.trim() {
            "" => self.call.start.trim(),
            start => start,
        }
    }
}

impl Default for Dialect {
    /// Of a template that knows nothing of functions or thoughts.
    fn default() -> Self {
        Self {
            thoughts: None,
            answer: Marks::default(),
            calls: CallFormat::described(),
            native: None,
        }
    }
}

impl Dialect {
    /// The texts of all marks, in which a control token is to be seen.
    pub(crate) fn marks(&self) -> Vec<&str> {
        let CallFormat { section, call, between, body, .. } = &self.calls;
        let mut marks = vec![between.as_str()];
        let pairs = [Some(section), Some(call), Some(&self.answer), self.thoughts.as_ref()];
        for Marks { start, end } in pairs.into_iter().flatten() {
            marks.extend([start.as_str(), end.as_str()]);
        }
        match body {
            Body::Object { .. } => {}
            Body::Named { middle } => marks.extend(middle.iter().filter_map(|gap| match gap {
                Gap::Text(text) => Some(text.as_str()),
                Gap::Id => None,
            })),
            Body::Tagged(tags) => {
                let Tags { after_name, key, other_end, after_value } = tags;
                marks.extend([after_name, &key.start, &key.end, after_value].map(String::as_str));
                marks.extend(other_end.as_deref());
            }
        }
        marks
    }

    /// Whether a prompt ends inside a thought, so that the output begins there.
    pub(crate) fn is_opened(&self, prompt: &str) -> bool {
        let start = self.thoughts.as_ref().map(|marks| marks.start.trim());
        start.is_some_and(|start| !start.is_empty() && prompt.trim_end().ends_with(start))
    }
}

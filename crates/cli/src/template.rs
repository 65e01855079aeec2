//! Where the chat template comes from.

use std::path::PathBuf;

use anyhow::Context;
use forerun_decode::{ChatTemplate, Token};
use forerun_llama::Model;

/// A chat template, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TemplateFlags {
    /// Chat template: the name of a built-in one, or Jinja source [default: the model's own]
    #[arg(long, env = "LLAMA_ARG_CHAT_TEMPLATE", value_name = "NAME|SOURCE")]
    #[arg(conflicts_with = "chat_template_file")]
    chat_template: Option<String>,
    /// File with a chat template in Jinja
    #[arg(long, env = "LLAMA_ARG_CHAT_TEMPLATE_FILE", value_name = "FILE")]
    chat_template_file: Option<PathBuf>,
    /// Parse control tokens in messages, such as <|im_end|>; by default they are plain text
    ///
    /// With this flag, the author of a message can end it and add further ones, even system
    /// messages.
    #[arg(long)]
    parse_special: bool,
}

/// Where the chat template comes from.
#[derive(Debug)]
pub(crate) enum TemplateSource {
    /// The model's file.
    Model,
    /// The command line: a name or a source.
    Said(String),
    /// A file.
    File(PathBuf),
}

impl TemplateFlags {
    /// Whether control tokens written in messages are read as such.
    pub(crate) fn parse_special(&self) -> bool {
        self.parse_special
    }

    /// Where it comes from.
    pub(crate) fn source(self) -> TemplateSource {
        match (self.chat_template, self.chat_template_file) {
            (Some(said), _) => TemplateSource::Said(said),
            (None, Some(path)) => TemplateSource::File(path),
            (None, None) => TemplateSource::Model,
        }
    }
}

impl TemplateSource {
    /// Its text, or its name.
    ///
    /// # Errors
    /// Where its file cannot be read.
    pub(crate) fn text(&self, model: &Model) -> anyhow::Result<String> {
        Ok(match self {
            Self::Model => model.chat_template().unwrap_or_default(),
            Self::File(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?,
            Self::Said(text) => text.clone(),
        })
    }

    /// Reads it.
    ///
    /// # Errors
    /// Where it is no template.
    pub(crate) fn template(&self, model: &Model) -> anyhow::Result<ChatTemplate> {
        let text_of = |key: &str| {
            let token = model.metadata(key)?.parse().ok()?;
            model.vocab().text(Token(token))
        };
        let start = text_of("tokenizer.ggml.bos_token_id");
        let end = text_of("tokenizer.ggml.eos_token_id");
        let (start, end) = (start.as_deref(), end.as_deref());
        let text = self.text(model)?;
        Ok(match self {
            // No name has a brace, and no template does without.
            Self::Said(name) if !name.contains('{') => ChatTemplate::named(name, start, end)?,
            Self::File(path) => ChatTemplate::new(&text, start, end)
                .with_context(|| format!("chat template {}", path.display()))?,
            _ => ChatTemplate::new(&text, start, end)?,
        })
    }
}

//! `forerun chat`: a conversation, by the model's own template.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, bail};
use forerun_decode::{ChatOptions, ChatTemplate, Message, SpecialTokens};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::flags::{ConfigError, RunConfig, RunFlags, unescape};
use crate::generate::read_text;
use crate::interrupt::{self, Interrupt};
use crate::load::load;
use crate::report::Report;
use crate::stream::{Ending, Text, Writer};
use crate::template::TemplateFlags;
use crate::terminal::{Look, Screen};

/// What is talked about, as given.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ChatFlags {
    /// Answer this one message instead of starting a conversation
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "file")]
    prompt: Option<String>,
    /// File with that message, or - for standard input; a final line break is removed
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// System prompt [-sys]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(conflicts_with = "system_prompt_file")]
    system_prompt: Option<String>,
    /// File with the system prompt [-sysf]
    #[arg(long, value_name = "FILE")]
    system_prompt_file: Option<PathBuf>,
    #[command(flatten)]
    template: TemplateFlags,
    #[command(flatten)]
    run: RunFlags,
}

impl ChatFlags {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let escape = self.run.text.escape;
        let config = self.run.resolve()?;
        let message = match &self.file {
            Some(path) => Some(read_text(path)?),
            None => self.prompt.map(|text| unescape(escape, text)),
        };
        if config.output.json && message.is_none() {
            return Err(ConfigError::JsonNeedsPrompt.into());
        }
        let system = match &self.system_prompt_file {
            Some(path) => Some(read_text(path)?),
            None => self.system_prompt.map(|text| unescape(escape, text)),
        };
        let parse_special = self.template.parse_special();
        let source = self.template.source();
        let interrupt = Interrupt::install()?;
        let chat = || {
            let mut screen = Screen::new(&config.output);
            let loaded = load(&config, &interrupt, &mut screen)?;
            let template = source.template(&loaded.model)?;
            let specials = match parse_special {
                true => SpecialTokens::default(),
                false => SpecialTokens::of(loaded.model.vocab()),
            };
            let writer = Writer::new(loaded, &config, &interrupt);
            let template = Template { template, specials };
            let mut chat = Chat::new(&config, writer, template, system, screen);
            match message {
                Some(message) => chat.answer_once(message),
                None => chat.converse(&interrupt),
            }
        };
        interrupt.or_stopped(chat())
    }
}

/// How messages become a prompt.
struct Template {
    template: ChatTemplate,
    /// The special tokens whose texts messages may hold without becoming them.
    specials: SpecialTokens,
}

/// A conversation so far.
struct Chat<'a> {
    config: &'a RunConfig,
    writer: Writer<'a>,
    template: Template,
    options: ChatOptions,
    messages: Vec<Message>,
    /// How many messages stay when all else is forgotten.
    system_len: usize,
    last: Option<Text>,
    screen: Screen,
}

impl<'a> Chat<'a> {
    fn new(
        config: &'a RunConfig,
        writer: Writer<'a>,
        template: Template,
        system: Option<String>,
        screen: Screen,
    ) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "templates may name the day; this is an edge"
        )]
        let now = Some(SystemTime::now());
        let options = ChatOptions { now, ..ChatOptions::default() };
        let messages: Vec<Message> =
            system.into_iter().map(|text| Message::new("system", text)).collect();
        let system_len = messages.len();
        Self { config, writer, template, options, messages, system_len, last: None, screen }
    }

    /// Answers one message.
    fn answer_once(&mut self, message: String) -> anyhow::Result<ExitCode> {
        self.screen.legend();
        self.answer(message)?;
        let Some(text) = &self.last else { bail!("there is no answer") };
        let report = Report { config: self.config, loaded: &self.writer.loaded, text };
        if self.config.output.json {
            self.screen.result(&report.json())?;
        } else {
            self.screen.end_text()?;
            self.screen.stats(&report.after_text());
        }
        Ok(match text.ending {
            Ending::Finished(_) => ExitCode::SUCCESS,
            Ending::Interrupted => ExitCode::from(interrupt::EXIT_CODE),
        })
    }

    /// Answers until the user leaves.
    fn converse(&mut self, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
        let mut editor = DefaultEditor::new().context("cannot read from the terminal")?;
        // Without a helper, prompts have no colour.
        editor.set_helper(Some(()));
        self.screen.note(&Report::heading(self.config, &self.writer.loaded));
        if io::stdin().is_terminal() {
            self.screen.note("Ctrl-C stops an answer; /help lists the commands");
        }
        self.screen.legend();
        loop {
            let line = match self.read(&mut editor) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(ExitCode::SUCCESS),
                Err(error) => return Err(error).context("cannot read from the terminal"),
            };
            match line.trim() {
                "" => {}
                "/exit" | "/quit" => return Ok(ExitCode::SUCCESS),
                "/clear" => {
                    self.messages.truncate(self.system_len);
                    self.writer.forget_failures();
                    self.screen.note("the conversation is forgotten");
                }
                "/stats" => self.stats(),
                "/help" => self.screen.note(HELP),
                command if is_command(command) => {
                    self.screen.warn(&format!("there is no command {command}: try /help"));
                }
                _ => {
                    interrupt.forget();
                    self.turn(line)?;
                    interrupt.forget();
                }
            }
        }
    }

    /// A line, or several that end with a backslash.
    fn read(&mut self, editor: &mut DefaultEditor) -> rustyline::Result<String> {
        let styled =
            |text: &str| (text.to_owned(), self.screen.palette().paint(Look::Prompt, text));
        let mut line = editor.readline(&styled("> "))?;
        while line.ends_with('\\') {
            line.pop();
            line.push('\n');
            line.push_str(&editor.readline(&styled("… "))?);
        }
        if !line.trim().is_empty() {
            editor.add_history_entry(line.as_str())?;
        }
        Ok(line)
    }

    /// Answers a message; what is wrong with it alone does not end the conversation.
    fn turn(&mut self, message: String) -> anyhow::Result<()> {
        let before = self.messages.len();
        if let Err(error) = self.answer(message) {
            if error.chain().any(|cause| cause.is::<io::Error>()) {
                return Err(error);
            }
            self.messages.truncate(before);
            self.screen.warn(&format!("{error:#}; /clear begins anew"));
            return Ok(());
        }
        self.screen.end_line()?;
        if let Some(text) = &self.last {
            let report = Report { config: self.config, loaded: &self.writer.loaded, text };
            match self.config.output.all_stats {
                true => self.screen.stats(&report.block()),
                false => self.screen.note(&format!("[{}]", report.line())),
            }
        }
        Ok(())
    }

    /// Adds a message and the answer to it.
    fn answer(&mut self, message: String) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", message));
        let Template { template, specials } = &self.template;
        let prompt = template.render_content_as_text(&self.messages, &self.options, specials)?;
        let loaded = &self.writer.loaded;
        let tokens = specials.tokenize(loaded.model.vocab(), &prompt).context("prompt")?;
        let prompt = loaded.begun(tokens)?;
        let text = self.writer.write(prompt, &mut self.screen)?;
        self.messages.push(Message::new("assistant", text.text.as_str()));
        self.last = Some(text);
        Ok(())
    }

    fn stats(&mut self) {
        match &self.last {
            None => self.screen.note("nothing was said yet"),
            Some(text) => {
                let report = Report { config: self.config, loaded: &self.writer.loaded, text };
                self.screen.stats(&report.block());
            }
        }
    }
}

const HELP: &str = "\
/clear   start a new conversation
/stats   show the statistics of the last answer
/exit    quit, like Ctrl-D
A line that ends with \\ continues on the next line.";

/// Whether a line is a command and not a message: a slash and one word.
fn is_command(line: &str) -> bool {
    line.strip_prefix('/').is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()))
}

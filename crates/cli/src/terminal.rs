//! Colours and notes: what is for people and not part of the text.

use std::io::{self, IsTerminal, Stderr, StdoutLock, Write};

use forerun_decode::{Chunk, Origin};

use crate::flags::{ColorChoice, OutputConfig};
use crate::progress::Progress;

const RESET: &str = "\x1b[0m";

/// How something looks where colours are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// As the terminal has it.
    Plain,
    /// Drafted and accepted.
    Accepted,
    /// Put right by the target.
    Corrected,
    /// Beside the point.
    Dim,
    /// The user's own.
    Prompt,
}

impl Look {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Accepted => "\x1b[32m",
            Self::Corrected => "\x1b[33m",
            Self::Dim => "\x1b[2m",
            Self::Prompt => "\x1b[1;36m",
        }
    }
}

/// Whether to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Palette {
    on: bool,
}

impl Palette {
    fn new(choice: ColorChoice, stream: &impl IsTerminal) -> Self {
        let named = |name| std::env::var_os(name).unwrap_or_default();
        let on = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                stream.is_terminal() && named("NO_COLOR").is_empty() && named("TERM") != "dumb"
            }
        };
        Self { on }
    }

    /// The text in that look.
    pub(crate) fn paint(self, look: Look, text: &str) -> String {
        match (self.on, look.code()) {
            (false, _) | (_, "") => text.to_owned(),
            (true, code) => format!("{code}{text}{RESET}"),
        }
    }
}

/// Where text and notes go.
pub(crate) struct Screen {
    out: StdoutLock<'static>,
    err: Stderr,
    out_palette: Palette,
    err_palette: Palette,
    notes: bool,
    show_drafts: bool,
    mid_line: bool,
    progress: Progress,
}

impl Screen {
    /// The program's own standard output and error.
    pub(crate) fn new(config: &OutputConfig) -> Self {
        let (out, err) = (io::stdout().lock(), io::stderr());
        Self {
            out_palette: Palette::new(config.color, &out),
            err_palette: Palette::new(config.color, &err),
            out,
            err,
            notes: config.stats,
            show_drafts: config.show_drafts,
            mid_line: false,
            progress: Progress::new(),
        }
    }

    /// How far the command is, where that is shown.
    pub(crate) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// The colours of standard output.
    pub(crate) fn palette(&self) -> Palette {
        self.out_palette
    }

    /// Writes text as it comes; nothing is held back.
    pub(crate) fn text(&mut self, chunk: &Chunk) -> io::Result<()> {
        for run in chunk.pieces.chunk_by(|a, b| a.origin == b.origin) {
            let text: String = run.iter().map(|piece| piece.text.as_str()).collect();
            self.write(self.look(run[0].origin), &text)?;
        }
        self.out.flush()
    }

    /// Writes text that belongs to no token.
    pub(crate) fn plain(&mut self, text: &str) -> io::Result<()> {
        self.write(Look::Plain, text)?;
        self.out.flush()
    }

    fn write(&mut self, look: Look, text: &str) -> io::Result<()> {
        let Some(last) = text.chars().next_back() else { return Ok(()) };
        self.mid_line = last != '\n';
        self.out.write_all(self.out_palette.paint(look, text).as_bytes())
    }

    fn look(&self, origin: Origin) -> Look {
        match origin {
            Origin::Accepted | Origin::Deferred if self.show_drafts => Look::Accepted,
            Origin::Corrected | Origin::Forgiven if self.show_drafts => Look::Corrected,
            _ => Look::Plain,
        }
    }

    /// Ends the last line of the only text, where people look at it; what a pipe gets is the text
    /// alone.
    pub(crate) fn end_text(&mut self) -> io::Result<()> {
        if self.out.is_terminal() { self.end_line() } else { Ok(()) }
    }

    /// Ends the last line of one text among others.
    pub(crate) fn end_line(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.mid_line) {
            self.out.write_all(b"\n")?;
        }
        self.out.flush()
    }

    /// Says what a text took, a line apart from it.
    pub(crate) fn stats(&mut self, block: &str) {
        self.note(&format!("\n{block}"));
    }

    /// Writes a result that is no streamed text.
    pub(crate) fn result(&mut self, text: &str) -> io::Result<()> {
        self.progress.aside(|| {
            writeln!(self.out, "{text}")?;
            self.out.flush()
        })
    }

    /// Says something that can be left out.
    pub(crate) fn note(&mut self, text: &str) {
        if self.notes {
            self.say(Look::Dim, text);
        }
    }

    /// Says something the user should know.
    pub(crate) fn warn(&mut self, text: &str) {
        self.say(Look::Corrected, &format!("warning: {text}"));
    }

    /// Explains the colours of the text, or why there are none.
    pub(crate) fn legend(&mut self) {
        if !self.show_drafts {
            return;
        }
        if !self.out_palette.on {
            return self.note("--show-drafts marks nothing without colours: use --color always");
        }
        let paint = |look, text| self.out_palette.paint(look, text);
        let legend = [
            paint(Look::Accepted, "drafted and accepted"),
            paint(Look::Corrected, "corrected by the target"),
            "the target's own".to_owned(),
        ];
        if self.notes {
            self.say(Look::Plain, &legend.join("  "));
        }
    }

    fn say(&mut self, look: Look, text: &str) {
        // A message in the middle of a line of text would be taken for text.
        if self.out.is_terminal() && self.err.is_terminal() {
            let _ = self.end_line();
        }
        let text = self.err_palette.paint(look, text);
        // Where standard error is closed there is nobody to tell.
        let _ = self.progress.aside(|| writeln!(self.err, "{text}"));
    }
}

//! What is shown, and where.

/// What is shown, as given.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputFlags {
    /// Print all statistics instead of one line
    #[arg(long, conflicts_with = "no_stats")]
    stats: bool,
    /// Print only the output, warnings and errors: no statistics and no notes
    #[arg(short = 'q', long, visible_alias = "quiet")]
    no_stats: bool,
    /// Colour each token by its origin: drafted and accepted, corrected by the target, or the
    /// target's own
    #[arg(long)]
    show_drafts: bool,
    /// When to use colours; NO_COLOR turns auto off [-co] [default: auto]
    #[arg(long, value_name = "WHEN")]
    color: Option<ColorChoice>,
    /// Print one JSON object at the end instead of streaming the text
    #[arg(long, conflicts_with = "show_drafts")]
    json: bool,
    /// Show llama.cpp's own log
    #[arg(short, long)]
    verbose: bool,
}

/// When colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorChoice {
    /// Only on terminals
    Auto,
    /// Always
    #[value(alias = "on")]
    Always,
    /// Never
    #[value(alias = "off")]
    Never,
}

/// What is shown, checked.
#[derive(Debug)]
pub(crate) struct OutputConfig {
    /// Statistics and notes on standard error.
    pub(crate) stats: bool,
    /// All statistics instead of one line.
    pub(crate) all_stats: bool,
    /// The text coloured by origin.
    pub(crate) show_drafts: bool,
    /// When colours are used.
    pub(crate) color: ColorChoice,
    /// One JSON object instead of text.
    pub(crate) json: bool,
    /// llama.cpp's log on standard error.
    pub(crate) verbose: bool,
}

impl OutputConfig {
    /// Of a command that makes no text.
    pub(crate) fn notes() -> Self {
        let color = ColorChoice::Auto;
        Self {
            stats: true,
            all_stats: false,
            show_drafts: false,
            color,
            json: false,
            verbose: false,
        }
    }
}

impl OutputFlags {
    /// Decides every default.
    pub(crate) fn resolve(self) -> OutputConfig {
        OutputConfig {
            stats: !self.no_stats,
            all_stats: self.stats,
            show_drafts: self.show_drafts,
            color: self.color.unwrap_or(ColorChoice::Auto),
            json: self.json,
            verbose: self.verbose,
        }
    }
}

//! The prompt by which a model is asked for the text between two others, token by token as
//! llama-server makes it.
//!
//! It shows the model a repository (arXiv 2409.12186): other files first, then the text before the gap
//! and the text after it. What comes first changes least while somebody types, so that most of the
//! prompt stays cached.

use forerun_decode::{InfillTokens, Special, Token, TokenizeError, Tokenizer};

/// Most tokens of what is around the gap; llama-server's default for a batch.
const AROUND_MAX: usize = 2048;

/// Most tokens that are kept free for the output, and at most an eighth of the context.
const OUTPUT_MAX: usize = 512;

/// Tokens of a prompt beside its texts: a start token, prefix, suffix and middle.
const MARKS: usize = 4;

/// What parts of files without a token of their own are separated by.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// What a prompt is made of.
#[derive(Debug, Default)]
pub(crate) struct InfillParts {
    /// The tokens before the gap.
    pub(crate) prefix: Vec<Token>,
    /// The tokens after the gap.
    pub(crate) suffix: Vec<Token>,
    /// The beginning of what is to fill the gap, after the prefix.
    pub(crate) begun: Vec<Token>,
    /// Texts of other files, the most important last.
    pub(crate) extra: Vec<InfillFile>,
}

/// A text of another file.
#[derive(Debug)]
pub(crate) struct InfillFile {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// What limits a prompt, and in which order its parts come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InfillLayout {
    /// Tokens of context.
    pub(crate) context_len: usize,
    /// Whether the text after the gap comes before the text before it.
    pub(crate) suffix_first: bool,
}

impl InfillLayout {
    /// The tokens of a prompt. Of what does not fit, the end of the suffix, the beginning of the prefix
    /// and the beginning of the extra texts are left out: the prefix has three quarters of the tokens
    /// around the gap, and the extra texts have what is left of the context. That does not depend on
    /// the prefix or on how long the output may be, so that the extra texts are not cut elsewhere at
    /// each key that is pressed, and a request without an output caches them.
    ///
    /// # Errors
    /// If a text cannot be tokenised.
    pub(crate) fn prompt(
        &self,
        tokenizer: &dyn Tokenizer,
        mut parts: InfillParts,
    ) -> Result<Vec<Token>, TokenizeError> {
        let tokens = tokenizer.infill_tokens();
        let around_max = AROUND_MAX.min(self.context_len / 2);
        let quarter = around_max / 4;
        let suffix_max = quarter.saturating_sub(2 + parts.begun.len());
        parts.prefix.drain(..parts.prefix.len().saturating_sub(3 * quarter));
        parts.suffix.truncate(suffix_max);
        let prefix = tokens.prefix.into_iter().chain(parts.prefix).chain(parts.begun);
        let suffix = tokens.suffix.into_iter().chain(parts.suffix);

        let mut prompt = extra(tokenizer, tokens, &parts.extra)?;
        let output_len = OUTPUT_MAX.min(self.context_len / 8);
        let extra_max = self.context_len.saturating_sub(around_max + output_len + MARKS);
        prompt.drain(..prompt.len().saturating_sub(extra_max));
        prompt.extend(tokenizer.start());
        match self.suffix_first {
            true => prompt.extend(suffix.chain(prefix)),
            false => prompt.extend(prefix.chain(suffix)),
        }
        prompt.extend(tokens.middle);
        Ok(prompt)
    }
}

/// The tokens of other files, and the name of the one with the gap. Names are llama-server's.
fn extra(
    tokenizer: &dyn Tokenizer,
    tokens: InfillTokens,
    files: &[InfillFile],
) -> Result<Vec<Token>, TokenizeError> {
    let read = |text: &str| tokenizer.tokenize(text, Special::AsText);
    let mut all = Vec::new();
    if let Some(repository) = tokens.repository {
        all.push(repository);
        all.extend(read("myproject\n")?);
    }
    for file in files {
        match tokens.file {
            Some(separator) => {
                all.push(separator);
                all.extend(read(&format!("{}\n", file.name))?);
            }
            None => all.extend(read(SNIPPET)?),
        }
        all.extend(read(&file.text)?);
    }
    if let Some(separator) = tokens.file {
        all.push(separator);
        all.extend(read("filename\n")?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

    use super::*;

    /// Tokens are bytes; from 256 on they are marks.
    struct Coder {
        tokens: InfillTokens,
        start: Option<Token>,
    }

    const PREFIX: Token = Token(256);
    const SUFFIX: Token = Token(257);
    const MIDDLE: Token = Token(258);
    const REPOSITORY: Token = Token(259);
    const FILE: Token = Token(260);
    const START: Token = Token(261);

    impl Coder {
        fn new() -> Self {
            let tokens = InfillTokens {
                prefix: Some(PREFIX),
                suffix: Some(SUFFIX),
                middle: Some(MIDDLE),
                repository: Some(REPOSITORY),
                file: Some(FILE),
                end: None,
            };
            Self { tokens, start: None }
        }
    }

    impl Tokenizer for Coder {
        fn vocab_len(&self) -> usize {
            262
        }
        fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
            assert_eq!(special, Special::AsText, "files may contain the text of control tokens");
            Ok(bytes(text))
        }
        fn start(&self) -> Option<Token> {
            self.start
        }
        fn is_end(&self, _: Token) -> bool {
            false
        }
        fn bytes(&self, token: Token, out: &mut Vec<u8>) {
            out.extend(u8::try_from(token.0));
        }
        fn infill_tokens(&self) -> InfillTokens {
            self.tokens
        }
    }

    fn bytes(text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(byte.into())).collect()
    }

    fn parts(prefix: &str, begun: &str, suffix: &str, extra: &[(&str, &str)]) -> InfillParts {
        let file = |(name, text): &(&str, &str)| InfillFile {
            name: (*name).to_owned(),
            text: (*text).to_owned(),
        };
        InfillParts {
            prefix: bytes(prefix),
            suffix: bytes(suffix),
            begun: bytes(begun),
            extra: extra.iter().map(file).collect(),
        }
    }

    const LARGE: InfillLayout = InfillLayout { context_len: 8192, suffix_first: false };

    /// The prompt with a letter for each mark: < prefix, > suffix, ^ middle, @ repository, # file, $ start.
    fn written(prompt: &[Token]) -> String {
        let letter = |token: &Token| match *token {
            PREFIX => '<',
            SUFFIX => '>',
            MIDDLE => '^',
            REPOSITORY => '@',
            FILE => '#',
            START => '$',
            Token(byte) => char::from(u8::try_from(byte).unwrap()),
        };
        prompt.iter().map(letter).collect()
    }

    #[test]
    fn parts_come_in_llama_servers_order() {
        let all = || parts("before", " begun", "after", &[("a.h", "one"), ("b.h", "two")]);
        let prompt =
            |layout: InfillLayout, coder: &Coder| written(&layout.prompt(coder, all()).unwrap());
        let mut coder = Coder::new();
        let files = "@myproject\n#a.h\none#b.h\ntwo#filename\n";
        assert_eq!(prompt(LARGE, &coder), format!("{files}<before begun>after^"));
        let suffix_first = InfillLayout { suffix_first: true, ..LARGE };
        assert_eq!(prompt(suffix_first, &coder), format!("{files}>after<before begun^"));
        // The start token comes after the files, as in llama-server.
        coder.start = Some(START);
        assert_eq!(prompt(LARGE, &coder), format!("{files}$<before begun>after^"));
        coder.tokens.file = None;
        let snippets = format!("@myproject\n{SNIPPET}one{SNIPPET}two$<before begun>after^");
        assert_eq!(prompt(LARGE, &coder), snippets);
        coder.tokens.repository = None;
        coder.start = None;
        let bare = LARGE.prompt(&coder, parts("a", "", "b", &[])).unwrap();
        assert_eq!(written(&bare), "<a>b^");
    }

    #[test]
    fn what_is_far_from_the_gap_is_left_out() {
        // 512 tokens around the gap.
        let layout = InfillLayout { context_len: 1024, suffix_first: false };
        let coder = Coder::new();
        let prefix = format!("far{}", "p".repeat(384));
        let suffix = format!("{}far", "s".repeat(128 - 2 - 5));
        let text = format!("far{}", "x".repeat(1024));
        let all = || parts(&prefix, "begun", &suffix, &[("a.h", &text)]);
        let prompt = written(&layout.prompt(&coder, all()).unwrap());
        assert!(!prompt.contains("far") && !prompt.contains('@'), "{prompt}");
        let around = format!("#filename\n<{}begun>{}^", &prefix[3..], &suffix[..121]);
        assert!(prompt.ends_with(&around), "{prompt}");
        let extra = prompt.find('<').unwrap();
        assert_eq!(extra, 1024 - 512 - 128 - MARKS);
        // However short the prefix is, the extra texts are cut at the same place.
        let short = written(&layout.prompt(&coder, parts("p", "", "", &[("a.h", &text)])).unwrap());
        assert_eq!(short.find('<'), Some(extra));
        // A long beginning leaves no room for the suffix.
        let begun = "b".repeat(200);
        let prompt = layout.prompt(&coder, parts("p", &begun, "after", &[])).unwrap();
        let expected = format!("@myproject\n#filename\n<p{begun}>^");
        assert_eq!(written(&prompt), expected);
    }

    #[test]
    fn a_prompt_fits_whatever_it_is_made_of() {
        let mut coder = Coder::new();
        coder.start = Some(START);
        let long = "x".repeat(20_000);
        for context_len in [64, 1000, 4096, 10_000] {
            let layout = InfillLayout { context_len, suffix_first: false };
            let prompt = layout.prompt(&coder, parts(&long, "", &long, &[("a", &long)])).unwrap();
            let left = context_len.checked_sub(prompt.len());
            assert!(left.is_some_and(|left| left >= context_len.min(4096) / 8), "{left:?}");
        }
    }
}

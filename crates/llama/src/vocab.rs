//! Text to tokens and tokens to bytes, by the model's own vocabulary.
//!
//! The bytes of all tokens are looked up once and stored in one table, because a stream needs
//! them at every token. Chat templates are not applied here.

use std::sync::Arc;

use forerun_decode::{InfillTokens, Special, SpecialToken, TokenizeError, Tokenizer};
use forerun_verify::Token;

use crate::ffi::model::{InfillToken, RawModel, SpecialKind};

/// A model's vocabulary. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Vocab {
    raw: Arc<RawModel>,
    table: Arc<Table>,
}

/// What is known of every token.
#[derive(Debug)]
struct Table {
    bytes: Vec<u8>,
    // Token `i` has `bytes[starts[i]..starts[i + 1]]`.
    starts: Vec<usize>,
    // One bit for each token.
    ends: Vec<u64>,
}

impl Vocab {
    pub(crate) fn new(raw: Arc<RawModel>) -> Self {
        let len = raw.vocab_len();
        let mut bytes = Vec::with_capacity(len * 8);
        let mut starts = Vec::with_capacity(len + 1);
        let mut ends = vec![0; len.div_ceil(64)];
        starts.push(0);
        for token in (0..len).filter_map(|token| u32::try_from(token).ok()) {
            raw.token_bytes(token, false, &mut bytes);
            starts.push(bytes.len());
            if raw.is_end(token) {
                ends[token as usize / 64] |= 1 << (token % 64);
            }
        }
        bytes.shrink_to_fit();
        Self { raw, table: Arc::new(Table { bytes, starts, ends }) }
    }

    /// The tokens of a text with those that the model expects around it, control tokens parsed.
    pub(crate) fn tokenize_whole(&self, text: &str) -> Result<Vec<Token>, TokenizeError> {
        self.tokenize_raw(text, true, Special::Parse)
    }

    /// The tokens of a query and a document for a model that scores documents, as llama-server puts
    /// them together: by the model's own template, else one after the other.
    pub(crate) fn tokenize_pair(
        &self,
        query: &str,
        document: &str,
    ) -> Result<Vec<Token>, TokenizeError> {
        if let Some(template) = self.raw.rank_template() {
            let text = filled(&template, query, document);
            return self.tokenize_raw(&text, false, Special::Parse);
        }
        let end = self.raw.text_end().map(Token);
        let mut tokens: Vec<Token> = self.start().into_iter().collect();
        tokens.extend(self.tokenize_raw(query, false, Special::AsText)?);
        tokens.extend(end);
        tokens.extend(self.raw.separator().map(Token));
        tokens.extend(self.tokenize_raw(document, false, Special::AsText)?);
        tokens.extend(end);
        Ok(tokens)
    }

    fn tokenize_raw(
        &self,
        text: &str,
        around: bool,
        special: Special,
    ) -> Result<Vec<Token>, TokenizeError> {
        if i32::try_from(text.len()).is_err() {
            return Err(TokenizeError::TooLong { bytes: text.len() });
        }
        let tokens = self.raw.tokenize(text, around, special == Special::Parse);
        let tokens = tokens.ok_or(TokenizeError::Failed { backend: "llama.cpp" })?;
        Ok(tokens.into_iter().map(Token).collect())
    }

    /// Whether a token controls the dialogue rather than standing for text.
    pub fn is_control(&self, token: Token) -> bool {
        self.raw.is_control(token.0)
    }

    /// A token as the vocabulary writes it, control tokens included; for people to read.
    pub fn text(&self, token: Token) -> Option<String> {
        self.raw.token_text(token.0)
    }
}

impl Tokenizer for Vocab {
    fn vocab_len(&self) -> usize {
        self.table.starts.len() - 1
    }

    fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
        self.tokenize_raw(text, false, special)
    }

    fn start(&self) -> Option<Token> {
        self.raw.start().map(Token)
    }

    fn is_end(&self, token: Token) -> bool {
        let word = self.table.ends.get(token.0 as usize / 64);
        word.is_some_and(|word| word >> (token.0 % 64) & 1 == 1)
    }

    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        let token = token.0 as usize;
        if let Some(&[start, end]) = self.table.starts.get(token..=token.saturating_add(1)) {
            out.extend_from_slice(&self.table.bytes[start..end]);
        }
    }

    fn special_tokens(&self) -> Vec<SpecialToken> {
        let tokens = (0..self.vocab_len()).filter_map(|token| u32::try_from(token).ok());
        let special = |token| {
            let kind = self.raw.special_kind(token)?;
            let text = self.raw.token_text(token)?;
            let SpecialKind { control, strip_left, strip_right } = kind;
            Some(SpecialToken { token: Token(token), text, control, strip_left, strip_right })
        };
        tokens.filter_map(special).collect()
    }

    fn infill_tokens(&self) -> InfillTokens {
        let token = |of| self.raw.infill_token(of).map(Token);
        InfillTokens {
            prefix: token(InfillToken::Prefix),
            suffix: token(InfillToken::Suffix),
            middle: token(InfillToken::Middle),
            repository: token(InfillToken::Repository),
            file: token(InfillToken::File),
            end: token(InfillToken::TurnEnd).or_else(|| token(InfillToken::End)),
        }
    }
}

/// A template with its two places filled, whatever a query or document says of them.
fn filled(template: &str, query: &str, document: &str) -> String {
    let mut text = String::with_capacity(template.len() + query.len() + document.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{query}") {
            text.push_str(query);
            rest = after;
        } else if let Some(after) = rest.strip_prefix("{document}") {
            text.push_str(document);
            rest = after;
        } else {
            text.push('{');
            rest = &rest[1..];
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Instant;

    use forerun_decode::{InfillSampler, Sampling};
    use forerun_verify::Philox;
    use forerun_verify::rand_core::Rng as _;

    use super::*;
    use crate::ffi::sampler::infill_kept;
    use crate::model::check_file;
    use crate::options::ModelOptions;

    #[test]
    fn a_query_that_names_a_place_of_the_template_stays_a_query() {
        let template = "{ask} {query}: {document}!";
        assert_eq!(filled(template, "{document}", "{query}"), "{ask} {document}: {query}!");
    }

    /// A model of the tests.
    fn model() -> Arc<RawModel> {
        let dir = std::env::var_os("FORERUN_MODELS").map(PathBuf::from).or_else(|| {
            std::env::home_dir().map(|home| home.join(".cache").join("forerun").join("models"))
        });
        let path = dir.expect("there is a home directory").join("SmolLM2-135M-Instruct.Q4_1.gguf");
        assert!(path.is_file(), "{} is missing: run `just models`", path.display());
        let start = Instant::now();
        check_file(&path).unwrap();
        println!("file checked in {:?}", start.elapsed());
        let Ok(raw) = RawModel::load(&mut ModelOptions::new(path)) else { panic!("no model") };
        Arc::new(raw)
    }

    #[test]
    fn the_table_holds_what_llama_cpp_says_of_each_token() {
        let raw = model();
        let start = Instant::now();
        let vocab = Vocab::new(Arc::clone(&raw));
        println!("{} tokens: {:?}", raw.vocab_len(), start.elapsed());

        let (mut kept, mut asked) = (Vec::new(), Vec::new());
        for token in 0..u32::try_from(raw.vocab_len()).unwrap() {
            kept.clear();
            asked.clear();
            vocab.bytes(Token(token), &mut kept);
            raw.token_bytes(token, false, &mut asked);
            assert_eq!(kept, asked, "token {token}");
            assert_eq!(vocab.is_end(Token(token)), raw.is_end(token), "token {token}");
            // Control tokens have no bytes, though they have a name.
            if raw.is_control(token) {
                assert!(kept.is_empty() && raw.token_text(token).is_some(), "token {token}");
            }
        }
    }

    /// Candidates with logits up to `spread`: neighbours in the order of texts, so that many begin as others do,
    /// and sometimes one that ends a text.
    fn candidates(random: &mut Philox, sorted: &[Token], ends: &[Token]) -> Vec<(Token, f32)> {
        let mut below = |count: usize| random.next_u32() as usize % count;
        let (first, len) = (below(sorted.len() - 40), 1 + below(39));
        let mut tokens = sorted[first..first + len].to_vec();
        tokens.extend((below(3) == 0).then(|| ends[below(ends.len())]));
        tokens.sort_unstable();
        let mut share = || random.next_u32() as f32 / u32::MAX as f32;
        let spread = 12.0 * share();
        tokens.into_iter().map(|token| (token, spread * share())).collect()
    }

    #[test]
    fn gaps_are_sampled_as_by_llama_cpp() {
        let raw = model();
        let vocab = Vocab::new(Arc::clone(&raw));
        let end = vocab.infill_tokens().end.expect("the model ends its texts");
        let infill = Some(InfillSampler::new(Arc::new(vocab.clone()), end));
        let all = || (0..).map(Token).take(vocab.vocab_len());
        let ends: Vec<Token> = all().filter(|token| vocab.is_end(*token)).collect();
        let bytes = |token: &Token| {
            let mut bytes = Vec::new();
            vocab.bytes(*token, &mut bytes);
            bytes
        };
        let mut sorted: Vec<Token> = all().filter(|token| !bytes(token).is_empty()).collect();
        sorted.sort_by_cached_key(bytes);

        let mut random = Philox::new(7);
        let mut seen = [0; 4];
        for _ in 0..4000 {
            let candidates = candidates(&mut random, &sorted, &ends);
            let mut row = vec![f32::NEG_INFINITY; vocab.vocab_len()];
            candidates.iter().for_each(|(token, logit)| row[token.index()] = *logit);
            // The end may be chosen though it is no candidate: top-k leaves it out.
            let forced = row[end.index()] == f32::NEG_INFINITY;
            row[end.index()] = row[end.index()].max(-1.0);
            let (infill, top_k) = (infill.clone(), candidates.len());
            let sampling = Sampling { infill, top_k, ..Sampling::unshaped() };
            let dist = sampling.row(&mut row, &[], &[]).unwrap();
            let ours: Vec<Token> = dist.support().map(|(token, _)| token).collect();
            let theirs = infill_kept(&raw, &candidates);
            assert_eq!(ours, theirs, "of {candidates:?}");
            seen[match theirs[..] {
                [one] if one == end && forced => 0,
                [one] if vocab.is_end(one) => 1,
                [_] => 2,
                _ => 3,
            }] += 1;
        }
        println!("ended for want of a text, ended by the model, one text, several: {seen:?}");
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
    }
}

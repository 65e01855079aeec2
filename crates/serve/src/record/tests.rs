#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use forerun_decode::{SpecialToken, TokenizeError};

use super::*;

/// As a SentencePiece vocabulary does it: tokens are characters, text has a space put before it where it
/// begins and after a special token, and `[` and `]` are the texts of the start token and of another.
struct Pieces;

const START: Token = Token(1);
const TURN: Token = Token(2);

fn piece(byte: u8) -> Token {
    Token(u32::from(byte))
}

impl Tokenizer for Pieces {
    fn vocab_len(&self) -> usize {
        256
    }
    fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
        let (mut tokens, mut begins) = (Vec::new(), true);
        for byte in text.bytes() {
            match (byte, special) {
                (b'[', Special::Parse) => tokens.push(START),
                (b']', Special::Parse) => tokens.push(TURN),
                _ if begins => tokens.extend([piece(b' '), piece(byte)]),
                _ => tokens.push(piece(byte)),
            }
            begins = special == Special::Parse && [b'[', b']'].contains(&byte);
        }
        Ok(tokens)
    }
    fn start(&self) -> Option<Token> {
        Some(START)
    }
    fn is_end(&self, _: Token) -> bool {
        false
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        if ![START, TURN].contains(&token) {
            out.push(u8::try_from(token.0).unwrap());
        }
    }
    fn special_tokens(&self) -> Vec<SpecialToken> {
        vec![SpecialToken::control(START, "["), SpecialToken::control(TURN, "]")]
    }
}

/// A path of this test's own, where there is no file.
fn free_path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("forerun-record-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn parsed(text: &str) -> Vec<Token> {
    Pieces.tokenize(text, Special::Parse).unwrap()
}

/// Records prompts in a file that may have `max` lines, and waits until nobody holds it.
fn record(path: &Path, max: usize, prompts: &[&str]) -> Arc<Metrics> {
    let (file, metrics) = (PromptFile::append(path, max).unwrap(), Arc::new(Metrics::new("m", 1)));
    let file = Arc::new(file);
    let recorder =
        PromptRecorder::start(Arc::clone(&file), Arc::new(Pieces), Arc::clone(&metrics)).unwrap();
    recorder.record(&prompts.iter().map(|text| parsed(text)).collect::<Vec<_>>(), true);
    drop(recorder);
    while Arc::strong_count(&file) > 1 {
        std::thread::yield_now();
    }
    metrics
}

fn count(metrics: &Metrics, name: &str) -> usize {
    let text = metrics.text();
    let line = text.lines().find(|line| line.starts_with(name));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_text_is_tokenized_to_the_tokens_that_were_decoded_or_there_is_none() {
    let texts = PromptTexts::new(Arc::new(Pieces));
    for text in ["[hi", "[hi]you]", "[ hi] you", "[]]", "[né"] {
        assert_eq!(texts.of(&parsed(text)).as_deref(), Some(text));
    }
    let turn_as_text = [parsed("[hi"), vec![piece(b']')]].concat();
    let no_character = [parsed("[hi"), vec![piece(0xff)]].concat();
    for tokens in [turn_as_text, no_character, parsed("hi")] {
        assert_eq!(texts.of(&tokens), None, "{tokens:?}");
    }
}

#[test]
fn a_file_takes_so_many_prompts_also_after_a_restart() {
    let path = free_path("max");
    let metrics = record(&path, 3, &["[a", "[b"]);
    assert_eq!(count(&metrics, "forerun:prompts_recorded_total"), 2);
    record(&path, 3, &["[\"c\n", "[d", "[e"]);
    let lines = ["[a", "[b", "[\\\"c\\n"].map(|it| format!("{{\"rendered_prompt\":\"{it}\"}}\n"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), lines.concat());
    record(&path, 3, &["[f"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), lines.concat());
    record(&path, 4, &["[g"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 4);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_line_is_not_joined_to_one_without_an_end() {
    let path = free_path("end");
    std::fs::write(&path, "Tell me a story").unwrap();
    record(&path, 2, &["[a", "[b"]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, "Tell me a story\n{\"rendered_prompt\":\"[a\"}\n");
    std::fs::remove_file(&path).unwrap();
}

#[test]
#[cfg(unix)]
fn only_its_owner_reads_the_file_and_one_server_writes_it() {
    use std::os::unix::fs::PermissionsExt as _;

    let path = free_path("mode");
    let held = PromptFile::append(&path, 1).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let refused = PromptFile::append(&path, 1).unwrap_err().to_string();
    assert_eq!(refused, "another process records to it");
    drop(held);
    PromptFile::append(&path, 1).unwrap();
    std::fs::remove_file(&path).unwrap();
    let refused = PromptFile::append(Path::new("/dev/null"), 1).unwrap_err().to_string();
    assert_eq!(refused, "it is no regular file");
}

#[test]
fn what_is_left_out_is_counted_by_its_reason() {
    let path = free_path("reasons");
    let metrics = record(&path, 9, &["hi", "[a"]);
    let unrecorded = |reason: &str| {
        let labels = format!("{{model_name=\"m\",reason=\"{reason}\"}}");
        count(&metrics, &format!("forerun:prompts_unrecorded_total{labels}"))
    };
    assert_eq!(count(&metrics, "forerun:prompts_recorded_total"), 1);
    assert_eq!(unrecorded("no_text"), 1);
    // Nobody writes: as with a disk that hangs, prompts wait, and then are left out.
    let (entries, queue) = mpsc::sync_channel(1);
    let recorder = PromptRecorder { entries, metrics: Arc::clone(&metrics) };
    recorder.record(&[parsed("[a"), parsed("[b")], true);
    assert_eq!(unrecorded("queue_full"), 1);
    recorder.record(&[parsed("[a")], false);
    assert_eq!(unrecorded("opted_out"), 1);
    drop(queue);
    recorder.record(&[parsed("[a")], true);
    assert_eq!(unrecorded("stopped"), 1);
    std::fs::remove_file(&path).unwrap();
}

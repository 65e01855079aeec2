//! Gaps in texts, in llama-server's form.

use forerun_decode::{InfillTokens, SpecialToken};

use super::*;

const INFILL: &str = "/infill";

/// The marks of [`Coder`], from token 97 on.
const MARKS: [&str; 5] = ["<PRE>", "<SUF>", "<MID>", "<REP>", "<SEP>"];

/// [`Ascii`] with tokens for gaps.
struct Coder;

fn mark(index: u32) -> Token {
    Token(97 + index)
}

impl Tokenizer for Coder {
    fn vocab_len(&self) -> usize {
        VOCAB + MARKS.len()
    }
    fn tokenize(&self, text: &str, special: Special) -> Result<Vec<Token>, TokenizeError> {
        let found = (0..).zip(MARKS).find_map(|(index, it)| Some((index, text.split_once(it)?)));
        match found.filter(|_| special == Special::Parse) {
            Some((index, (before, after))) => {
                let mut tokens = self.tokenize(before, special)?;
                tokens.push(mark(index));
                tokens.extend(self.tokenize(after, special)?);
                Ok(tokens)
            }
            None => Ascii.tokenize(text, special),
        }
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        Ascii.is_end(token)
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        Ascii.bytes(token, out);
    }
    fn special_tokens(&self) -> Vec<SpecialToken> {
        (0..).zip(MARKS).map(|(index, text)| SpecialToken::control(mark(index), text)).collect()
    }
    fn infill_tokens(&self) -> InfillTokens {
        InfillTokens {
            prefix: Some(mark(0)),
            suffix: Some(mark(1)),
            middle: Some(mark(2)),
            repository: Some(mark(3)),
            file: Some(mark(4)),
            end: Some(END),
        }
    }
}

/// A server whose model fills gaps.
fn coder(change: impl FnOnce(&mut ServeConfig)) -> Api {
    let vocab_len = Coder.vocab_len();
    let target = ToyEngine::new(fixtures::model(vocab_len, 1), CONTEXT_LEN).slots(3).paths(1);
    Api::serving(fixtures::engine_of(Arc::new(Coder), Box::new(target)), change)
}

/// A gap of 12 tokens.
fn gap(more: Value) -> Value {
    let body = json!({ "input_prefix": "before", "input_suffix": "after", "n_predict": 12 });
    with(with(body, json!({ "ignore_eos": true, "seed": 5 })), more)
}

#[tokio::test]
async fn a_gap_is_filled_with_a_completion_of_llama_servers_prompt() {
    let api = coder(|_| {});
    let extra = json!([{ "filename": "a.h", "text": "one", "time": [1, 2] }, { "text": "<PRE>" }]);
    let body = gap(json!({ "input_extra": extra, "prompt": " begun" }));
    let reply = api.post(INFILL, body.clone()).await;
    assert!(reply.headers.get(notes::IGNORED).is_none(), "{:?}", reply.headers);
    let filled = reply.json();
    let prompt = "<REP>myproject\n<SEP>a.h\none<SEP>tmp\n<PRE><SEP>filename\n<PRE>before begun<SUF>after<MID>";
    assert_eq!(filled["prompt"], prompt);
    // A mark in a file is text.
    assert_eq!(filled["tokens_evaluated"], prompt.len() - 7 * 4);
    assert_eq!(filled["tokens_predicted"], 12);
    // The same by hand: the mark of the file is five tokens.
    let by_hand = |text: &str| Coder.tokenize(text, Special::Parse).unwrap();
    let mut tokens = by_hand("<REP>myproject\n<SEP>a.h\none<SEP>tmp\n");
    tokens.extend(Ascii.tokenize("<PRE>", Special::AsText).unwrap());
    tokens.extend(by_hand("<SEP>filename\n<PRE>before begun<SUF>after<MID>"));
    let ids: Vec<u32> = tokens.iter().map(|token| token.0).collect();
    let body = json!({ "prompt": ids, "n_predict": 12, "ignore_eos": true, "seed": 5 });
    let completion = api.ok("/completion", body.clone()).await;
    assert_eq!(filled["content"], completion["content"]);
    assert_eq!(filled["tokens_evaluated"], completion["tokens_evaluated"]);
}

#[tokio::test]
async fn texts_around_a_gap_are_strings_or_tokens() {
    let api = coder(|_| {});
    let plain = api.ok(INFILL, gap(json!({}))).await;
    assert_eq!(plain["prompt"], "<REP>myproject\n<SEP>filename\n<PRE>before<SUF>after<MID>");
    // 'a' is token 65.
    let mixed = json!({ "input_prefix": ["bef", 79, "re"], "input_suffix": [65, 70, "ter"] });
    assert_eq!(api.ok(INFILL, gap(mixed)).await["content"], plain["content"]);
    let empty = json!({ "input_prefix": "", "input_suffix": "", "input_extra": [], "prompt": "" });
    let empty = api.ok(INFILL, gap(empty)).await;
    assert_eq!(empty["prompt"], "<REP>myproject\n<SEP>filename\n<PRE><SUF><MID>");
    let reversed = coder(|config| config.infill_suffix_first = true);
    let reversed = reversed.ok(INFILL, gap(json!({}))).await;
    assert_eq!(reversed["prompt"], "<REP>myproject\n<SEP>filename\n<SUF>after<PRE>before<MID>");
}

#[tokio::test]
async fn a_gap_is_streamed_and_has_the_fields_of_completions() {
    let api = coder(|_| {});
    let whole = api.ok(INFILL, gap(json!({}))).await;
    let stream = api.post(INFILL, gap(json!({ "stream": true }))).await;
    let chunks: Vec<Value> =
        stream.events().into_iter().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(joined(&chunks, "/content"), whole["content"].as_str().unwrap());
    assert_eq!(chunks.last().unwrap()["stop"], true);
    let several = api.ok(INFILL, gap(json!({ "n_cmpl": 2 }))).await;
    assert_eq!(several[0]["content"], whole["content"]);
    let warm = gap(json!({ "n_predict": 0, "samplers": [], "response_fields": [""] }));
    assert_eq!(api.ok(INFILL, warm).await, json!({}));
}

#[tokio::test]
async fn what_is_wrong_with_a_gap_is_said() {
    let api = coder(|_| {});
    for (body, param) in [
        (json!({ "input_suffix": "b" }), "input_prefix"),
        (json!({ "input_prefix": "a" }), "input_suffix"),
        (gap(json!({ "prompt": ["a"] })), "prompt"),
        (gap(json!({ "input_prefix": 5 })), "input_prefix"),
        (gap(json!({ "input_suffix": ["a", 102] })), "input_suffix"),
        (gap(json!({ "input_extra": {} })), "input_extra"),
        (gap(json!({ "input_extra": [{}] })), "input_extra[0].text"),
        (gap(json!({ "input_extra": [{ "filename": "a" }] })), "input_extra[0].text"),
        (
            gap(json!({ "input_extra": [{ "filename": 1, "text": "a" }] })),
            "input_extra[0].filename",
        ),
        (gap(json!({ "input_extra": [{ "text": "\u{e9}" }] })), "input_extra"),
        (gap(json!({ "input_suffix": "\u{e9}" })), "input_suffix"),
    ] {
        assert_eq!(api.error(INFILL, body.clone(), 400).await["param"], param, "{body}");
    }
    let error = Api::new().error(INFILL, gap(json!({})), 501).await;
    let message = "Infill is not supported by this model: prefix token is missing. suffix token is \
                   missing. middle token is missing.";
    assert_eq!(
        (&error["message"], &error["type"]),
        (&json!(message), &json!("not_supported_error"))
    );
}

#[tokio::test]
async fn the_sampler_for_gaps_is_on_if_it_is_named() {
    let api = coder(|_| {});
    let named = |samplers: Value, more: Value| {
        with(gap(json!({ "samplers": samplers, "ignore_eos": false, "n_predict": 40 })), more)
    };
    let vim = json!({ "top_k": 40, "top_p": 0.9 });
    let early = api.ok(INFILL, named(json!(["top_k", "top_p", "infill"]), vim.clone())).await;
    let late = api.ok(INFILL, named(json!(["top_k", "top_p"]), vim.clone())).await;
    let len = |response: &Value| response["tokens_predicted"].as_u64().unwrap();
    // No token of the toy is certain, so that the text ends at once.
    assert!(len(&early) < len(&late), "{early} {late}");
    assert_eq!(early["stop_type"], "eos");
    let settings = &early["generation_settings"]["samplers"];
    assert_eq!(*settings, json!(["top_k", "top_p", "infill"]));
    // Drafts change nothing.
    let plain = with(vim.clone(), json!({ "speculative": { "enabled": false } }));
    let plain = api.ok(INFILL, named(json!(["top_k", "top_p", "infill"]), plain)).await;
    assert_eq!(plain["content"], early["content"]);
    for (samplers, more, param) in [
        (json!(["infill"]), json!({}), "samplers"),
        (json!(["top_k", "infill"]), json!({ "top_k": 0 }), "top_k"),
        (json!(["top_k", "infill"]), json!({ "top_k": 257 }), "top_k"),
    ] {
        assert_eq!(api.error(INFILL, named(samplers, more), 400).await["param"], param);
    }
    let body = json!({ "prompt": "abc", "samplers": ["top_k", "infill"] });
    let error = Api::new().error("/completion", body, 400).await;
    assert_eq!(error["param"], "samplers");
}

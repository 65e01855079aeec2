//! Text completions: prompts, chunks, log-probabilities.

use super::*;

#[tokio::test]
async fn a_completion_has_openais_fields() {
    let api = Api::new();
    let response = api.ok(COMPLETIONS, completion(json!({}))).await;
    assert!(response["id"].as_str().unwrap().starts_with("cmpl-"), "{response}");
    assert_eq!(
        (&response["object"], &response["model"]),
        (&json!("text_completion"), &json!("toy"))
    );
    let choice = &response["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert!(choice["logprobs"].is_null() && choice.get("token_ids").is_none());
    assert_eq!((text(&response).len(), &response["usage"]["total_tokens"]), (12, &json!(15)));
    assert_eq!(response["timings"]["prompt_n"], 3);
    // OpenAI's default.
    let short = json!({ "prompt": "abc", "ignore_eos": true });
    assert_eq!(api.ok(COMPLETIONS, short).await["usage"]["completion_tokens"], 16);
    let strict = Api::with(|config| config.strict = true);
    let error = strict.error(COMPLETIONS, completion(json!({ "model": "other" })), 404).await;
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
}

#[tokio::test]
async fn a_stream_has_the_same_text_in_chunks() {
    let api = Api::new();
    let whole = api.ok(COMPLETIONS, completion(json!({}))).await;
    let options = json!({ "include_usage": true });
    let body = completion(json!({ "stream": true, "stream_options": options }));
    let chunks = api.post(COMPLETIONS, body).await.chunks();
    assert_eq!(joined(&chunks, "/choices/0/text"), text(&whole));
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(15)));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert!(chunks.iter().all(|it| it["object"] == "text_completion" && it.get("usage").is_none()));
    // Drafts change nothing.
    for speculative in [json!({ "enabled": false }), json!({ "length": 1 })] {
        let other = api.ok(COMPLETIONS, completion(json!({ "speculative": speculative }))).await;
        assert_eq!(text(&other), text(&whole));
    }
}

#[tokio::test]
async fn prompts_are_texts_or_tokens_one_or_several() {
    let api = Api::new();
    let of = async |prompt: Value| {
        api.ok(COMPLETIONS, completion(json!({ "prompt": prompt, "n": 2 }))).await
    };
    let texts = of(json!(["abc", "de"])).await;
    let ids = |text: &str| -> Vec<u32> {
        Ascii.tokenize(text, Special::AsText).unwrap().iter().map(|token| token.0).collect()
    };
    let tokens = of(json!([ids("abc"), ids("de")])).await;
    assert_eq!(texts["choices"], tokens["choices"]);
    assert_eq!(texts["choices"].as_array().unwrap().len(), 4);
    // Each prompt counts once.
    assert_eq!(texts["usage"]["prompt_tokens"], 5);
    let (one, other) = (of(json!("abc")).await, of(json!(ids("de"))).await);
    assert_eq!(texts["choices"][0]["text"], text(&one));
    assert_ne!(text(&one), text(&other));
    // The prompt's tokens are those of each choice.
    let body = completion(json!({ "prompt": ["abc", "de"], "n": 2, "return_token_ids": true }));
    let response = api.ok(COMPLETIONS, body.clone()).await;
    for (index, prompt) in ["abc", "abc", "de", "de"].iter().enumerate() {
        let choice = &response["choices"][index];
        assert_eq!(choice["prompt_token_ids"], json!(ids(prompt)));
        assert_eq!(choice["token_ids"], json!(ids(choice["text"].as_str().unwrap())));
    }
    let chunks = api.post(COMPLETIONS, with(body, json!({ "stream": true }))).await.chunks();
    let prompts = chunks.iter().filter(|it| it["choices"][0].get("prompt_token_ids").is_some());
    assert_eq!(prompts.count(), 4);
}

#[tokio::test]
async fn prompts_that_cannot_be_continued_are_rejected() {
    let api = Api::new();
    for prompt in
        [json!([]), json!(""), json!([[1], []]), json!([1, 97]), json!("\u{e9}"), json!([1, "a"])]
    {
        let error = api.error(COMPLETIONS, completion(json!({ "prompt": prompt })), 400).await;
        assert_eq!(error["param"], "prompt", "{error}");
    }
    let long = completion(json!({ "prompt": "a".repeat(CONTEXT_LEN + 1) }));
    let error = api.error(COMPLETIONS, long, 400).await;
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(error["message"].as_str().unwrap().contains("1025 tokens"), "{error}");
    let error = api.error(COMPLETIONS, json!({}), 400).await;
    assert_eq!(error["param"], "prompt");
}

#[tokio::test]
async fn a_sequence_that_fills_the_context_finishes_by_its_length() {
    let api = Api::new();
    let body = completion(json!({ "prompt": "a".repeat(CONTEXT_LEN - 12), "max_tokens": -1 }));
    let response = api.ok(COMPLETIONS, body).await;
    assert_eq!(response["choices"][0]["finish_reason"], "length");
    assert_eq!(response["usage"]["completion_tokens"], 13);
}

#[tokio::test]
async fn logprobs_have_offsets_that_go_on_over_chunks() {
    let api = Api::new();
    let body = completion(json!({ "logprobs": 2 }));
    let response = api.ok(COMPLETIONS, body.clone()).await;
    let logprobs = &response["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    assert_eq!(tokens.iter().map(|it| it.as_str().unwrap()).collect::<String>(), text(&response));
    assert_eq!(logprobs["text_offset"], json!((0..12).collect::<Vec<_>>()));
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    let chunks = api.post(COMPLETIONS, with(body, json!({ "stream": true }))).await.chunks();
    for field in ["tokens", "token_logprobs", "text_offset"] {
        let lists = chunks.iter().filter_map(|it| it["choices"][0]["logprobs"][field].as_array());
        let all: Vec<Value> = lists.flatten().cloned().collect();
        assert_eq!(json!(all), logprobs[field], "{field}");
    }
    assert_eq!(
        api.error(COMPLETIONS, completion(json!({ "logprobs": 21 })), 400).await["param"],
        "logprobs"
    );
}

#[tokio::test]
async fn a_stream_that_broke_off_is_resumed_where_it_was() {
    let api = Api::new();
    let body = completion(json!({ "stream": true, "return_token_ids": true, "logprobs": 0 }));
    let whole = api.post(COMPLETIONS, body.clone()).await.chunks();
    let ids: Vec<Value> = whole
        .iter()
        .filter_map(|it| it["choices"][0]["token_ids"].as_array())
        .flatten()
        .cloned()
        .collect();
    let text = joined(&whole, "/choices/0/text");
    for cut in [1, 5, 11, 12] {
        let resumed = with(body.clone(), json!({ "resume_token_ids": ids[..cut] }));
        let rest = api.post(COMPLETIONS, resumed).await.chunks();
        assert_eq!(joined(&rest, "/choices/0/text"), text[cut..], "after {cut}");
        assert_eq!(rest.last().unwrap()["choices"][0]["finish_reason"], "length");
        if cut < 12 {
            assert_eq!(rest[0]["choices"][0]["logprobs"]["text_offset"][0], cut);
        }
    }
    let wrong = json!({ "resume_token_ids": [97] });
    let long = json!({ "resume_token_ids": vec![1; 13] });
    let whole = json!({ "resume_token_ids": [1], "stream": false });
    let several = json!({ "resume_token_ids": [1], "n": 2 });
    let past_stop = json!({ "resume_token_ids": [1, 2, 3], "stop": "!" });
    let form = json!({ "resume_token_ids": [1, 2], "structured_outputs": { "regex": "a+" } });
    for more in [wrong, long, whole, several, past_stop, form] {
        let error = api.error(COMPLETIONS, with(body.clone(), more), 400).await;
        assert_eq!(error["param"], "resume_token_ids", "{error}");
    }
}

//! Parameters that both endpoints have: their effect, and values that are rejected.

use super::*;

/// The text of a completion with these parameters, and its finish reason.
async fn output(api: &Api, more: Value) -> (String, Value) {
    let response = api.ok(COMPLETIONS, completion(more)).await;
    (text(&response).to_owned(), response["choices"][0]["finish_reason"].clone())
}

#[tokio::test]
async fn stop_strings_end_the_output_and_are_no_part_of_it() {
    let api = Api::new();
    let (all, _) = output(&api, json!({})).await;
    let stop = &all[4..6];
    let expected = (all[..all.find(stop).unwrap()].to_owned(), json!("stop"));
    assert_eq!(output(&api, json!({ "stop": stop })).await, expected);
    assert_eq!(output(&api, json!({ "stop": ["nothing", stop] })).await, expected);
    let body = completion(json!({ "stop": stop, "stream": true }));
    let chunks = api.post(COMPLETIONS, body).await.chunks();
    assert_eq!(joined(&chunks, "/choices/0/text"), expected.0);
    let (chat_all, stopped) = (
        api.ok(CHAT, chat(json!({}))).await,
        api.ok(CHAT, chat(json!({ "stop": "\u{e9}" }))).await,
    );
    assert_eq!(text(&chat_all), text(&stopped));
    assert_eq!(
        api.error(COMPLETIONS, completion(json!({ "stop": "" })), 400).await["param"],
        "stop"
    );
}

#[tokio::test]
async fn an_end_token_ends_the_output_unless_it_is_ignored() {
    let api = Api::new();
    let end = json!({ "96": 100 });
    let body = json!({ "logit_bias": end, "ignore_eos": false });
    let response = api.ok(COMPLETIONS, completion(body.clone())).await;
    assert_eq!((text(&response), &response["choices"][0]["finish_reason"]), ("", &json!("stop")));
    assert_eq!(response["usage"]["completion_tokens"], 1);
    let chunks = api.post(CHAT, chat(with(body, json!({ "stream": true })))).await.chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert_eq!(output(&api, json!({})).await.1, "length");
}

#[tokio::test]
async fn stop_tokens_end_the_output_and_are_no_part_of_it() {
    let api = Api::new();
    let (all, _) = output(&api, json!({})).await;
    let id = |letter: u8| u32::from(letter - b' ');
    let stop = all.as_bytes()[4];
    let expected = (all[..all.find(char::from(stop)).unwrap()].to_owned(), json!("stop"));
    assert_eq!(output(&api, json!({ "stop_token_ids": [id(stop)] })).await, expected);
    let chunks =
        api.post(CHAT, chat(json!({ "stop_token_ids": [1, 2, 3], "stream": true }))).await.chunks();
    let streamed = joined(&chunks, "/choices/0/delta/content");
    assert!(!streamed.contains(['!', '"', '#']), "{streamed}");
    // They may not come before the least length, nor may an end token.
    let end = json!({ "96": 100, id(b'a').to_string(): 90 });
    let least = json!({ "logit_bias": end, "ignore_eos": false, "min_tokens": 5 });
    assert_eq!(output(&api, least.clone()).await, ("aaaaa".to_owned(), json!("stop")));
    let body = with(least, json!({ "stop_token_ids": [id(b'a')] }));
    let (text, _) = output(&api, body).await;
    assert!(text.len() >= 5 && !text[..5].contains('a'), "{text}");
    // A form that can only end does.
    let form = json!({ "structured_outputs": { "choice": ["no"] }, "min_tokens": 5 });
    let ending = with(form, json!({ "ignore_eos": false }));
    assert_eq!(output(&api, ending).await, ("no".to_owned(), json!("stop")));
}

#[tokio::test]
async fn sampling_parameters_shape_the_output() {
    let api = Api::new();
    let (plain, _) = output(&api, json!({})).await;
    // A seed determines the output; without one, no two are alike.
    assert_eq!(output(&api, json!({})).await.0, plain);
    assert_ne!(
        output(&api, json!({ "seed": null })).await.0,
        output(&api, json!({ "seed": null })).await.0
    );
    // Several ways to take the likeliest token.
    let (greedy, _) = output(&api, json!({ "temperature": 0 })).await;
    assert_ne!(greedy, plain);
    for more in [json!({ "top_k": 1 }), json!({ "top_p": 0.0001 }), json!({ "min_p": 1 })] {
        assert_eq!(output(&api, more.clone()).await.0, greedy, "{more}");
    }
    assert_eq!(output(&api, json!({ "top_k": -1, "top_p": 1, "min_p": 0 })).await.0, plain);
    // 'a' is token 65.
    assert_eq!(output(&api, json!({ "logit_bias": { "65": 100 } })).await.0, "a".repeat(12));
    let banned: serde_json::Map<String, Value> = (0..95)
        .filter(|id| *id != 65 && *id != 66)
        .map(|id| (id.to_string(), json!(-100)))
        .collect();
    let (two, _) =
        output(&api, json!({ "logit_bias": with(json!(banned), json!({ "95": -100 })) })).await;
    assert!(
        two.chars().all(|it| it == 'a' || it == 'b') && two.contains('a') && two.contains('b'),
        "{two}"
    );
    // With all other tokens banned, only a penalty brings the other one.
    let pushed = with(json!(banned), json!({ "95": -100, "65": 5 }));
    let pushed =
        json!({ "logit_bias": pushed, "temperature": 0, "prompt": "xyz", "max_tokens": 40 });
    assert_eq!(output(&api, pushed.clone()).await.0, "a".repeat(40));
    for penalty in
        [json!({ "presence_penalty": 2, "repeat_penalty": 40 }), json!({ "frequency_penalty": 2 })]
    {
        let penalized = with(pushed.clone(), penalty);
        assert!(output(&api, penalized.clone()).await.0.contains('b'), "{penalized}");
        let off = with(penalized, json!({ "repeat_last_n": 0 }));
        assert_eq!(output(&api, off.clone()).await.0, "a".repeat(40), "{off}");
    }
}

#[tokio::test]
async fn values_out_of_range_are_rejected_by_name() {
    let api = Api::with(|config| config.strict = true);
    for (body, param) in [
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 17 }), "n"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": -2 }), "max_tokens"),
        (json!({ "max_tokens": null, "n_predict": -2 }), "n_predict"),
        (json!({ "min_tokens": 13 }), "min_tokens"),
        (json!({ "stop_token_ids": [97] }), "stop_token_ids"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "top_p": 2 }), "top_p"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "min_p": -0.5 }), "min_p"),
        (json!({ "typical_p": 1.5 }), "typical_p"),
        (json!({ "repeat_penalty": 0 }), "repeat_penalty"),
        (json!({ "repeat_last_n": -2 }), "repeat_last_n"),
        (json!({ "logit_bias": { "a": 1 } }), "logit_bias"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias"),
        (json!({ "logit_bias": { "97": 1 } }), "logit_bias"),
        (json!({ "store": true }), "store"),
        (json!({ "cache_salt": "" }), "cache_salt"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (json!({ "prediction": { "type": "content", "content": "\u{e9}" } }), "prediction"),
    ] {
        for (path, body) in [(COMPLETIONS, completion(body.clone())), (CHAT, chat(body))] {
            let error = api.error(path, body, 400).await;
            assert_eq!(error["param"], param, "{error}");
        }
    }
    // Fields that clients send and nothing depends on.
    let ignored = json!({ "user": "me", "metadata": { "a": 1 }, "store": false });
    assert_eq!(output(&api, ignored).await, output(&api, json!({})).await);
}

#[tokio::test]
async fn speculation_is_what_a_request_says() {
    let api = Api::new();
    let speculation = async |speculative: Value| {
        let response = api.ok(COMPLETIONS, completion(json!({ "speculative": speculative }))).await;
        response["speculative"].clone()
    };
    let default = speculation(json!({})).await;
    let expected = json!({
        "enabled": true, "rule": "coupled", "lossless": true, "drafters": ["draft-model"],
        "length": 3, "paths": 1, "adaptive": false,
    });
    assert_eq!(default, expected);
    let off = speculation(json!({ "enabled": false })).await;
    assert_eq!((&off["enabled"], &off["drafters"]), (&json!(false), &json!([])));
    let block =
        speculation(json!({ "rule": "block", "length": 1, "drafter": "draft-model" })).await;
    assert_eq!((&block["rule"], &block["length"]), (&json!("block"), &json!(1)));
    for (speculative, param) in [
        (json!({ "length": 4 }), "length"),
        (json!({ "length": 0 }), "length"),
        (json!({ "paths": 2 }), "paths"),
        (json!({ "drafter": "none" }), "drafter"),
        (json!({ "drafter": ["draft-model", "draft-model"] }), "drafter"),
        (json!({ "drafter": "predicted" }), "drafter"),
        (json!({ "drafter": ["draft-model", "edit"] }), "drafter"),
        (json!({ "drafter": "edit", "length": 9 }), "length"),
        (json!({ "rule": "none" }), "rule"),
        (json!({ "enabled": false, "length": 1 }), "length"),
    ] {
        let body = completion(json!({ "speculative": speculative }));
        let error = api.error(COMPLETIONS, body, 400).await;
        assert_eq!(error["param"], format!("speculative.{param}"), "{error}");
    }
}

#[tokio::test]
async fn predictions_are_drafted_from_and_counted() {
    let api = Api::new();
    for (path, body) in [(COMPLETIONS, completion(json!({}))), (CHAT, chat(json!({})))] {
        let expected = api.ok(path, body.clone()).await;
        let prediction = json!({ "type": "content", "content": text(&expected) });
        let response = api.ok(path, with(body, json!({ "prediction": prediction }))).await;
        assert_eq!(text(&response), text(&expected));
        assert_eq!(response["speculative"]["drafters"], json!(["edit"]));
        let details = &response["usage"]["completion_tokens_details"];
        let accepted = details["accepted_prediction_tokens"].as_u64().unwrap();
        assert!(accepted >= 6, "{details}");
        assert_eq!(details["rejected_prediction_tokens"], 12 - accepted);
    }
}

#[tokio::test]
async fn code_in_a_prompt_is_drafted_from() {
    let api = Api::of(Box::new(toy().paths(2)), |_| {});
    let code = "```\nabcdef\n```";
    for (path, body) in [
        (COMPLETIONS, completion(json!({ "prompt": code }))),
        (CHAT, chat(json!({ "messages": [{ "role": "user", "content": code }] }))),
    ] {
        let response = api.ok(path, body).await;
        assert_eq!(response["speculative"]["drafters"], json!(["draft-model", "edit"]));
        let details = &response["usage"]["completion_tokens_details"];
        assert_eq!(details["accepted_prediction_tokens"], 0, "nothing was predicted");
    }
    // Without room for both, the drafter that was named has it; an edit is drafted if it is named.
    let narrow = Api::new();
    let drafters = |speculative: Value| {
        let body = completion(json!({ "prompt": code, "speculative": speculative }));
        async { narrow.ok(COMPLETIONS, body).await["speculative"]["drafters"].clone() }
    };
    assert_eq!(drafters(json!({})).await, json!(["draft-model"]));
    assert_eq!(drafters(json!({ "drafter": "edit", "length": 8 })).await, json!(["edit"]));
}

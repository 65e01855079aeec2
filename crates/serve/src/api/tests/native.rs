//! llama-server's own form of text completions.

use super::*;

const NATIVE: &str = "/completion";

/// A completion of 3 prompt tokens and 12 of output.
fn native(more: Value) -> Value {
    with(json!({ "prompt": "abc", "n_predict": 12, "ignore_eos": true, "seed": 5 }), more)
}

fn content(response: &Value) -> &str {
    response["content"].as_str().unwrap_or_else(|| panic!("no content: {response}"))
}

/// The chunks of a stream, which ends without a mark.
fn streamed(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
    assert_eq!(reply.headers[header::CONTENT_TYPE], "text/event-stream");
    reply.events().into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

#[tokio::test]
async fn a_completion_has_llama_servers_fields() {
    let api = Api::new();
    let response = api.ok(NATIVE, native(json!({}))).await;
    let openai = api.ok(COMPLETIONS, completion(json!({}))).await;
    assert_eq!(content(&response), text(&openai));
    for (name, value) in [
        ("index", json!(0)),
        ("stop", json!(true)),
        ("stop_type", json!("limit")),
        ("stopping_word", json!("")),
        ("tokens_predicted", json!(12)),
        ("tokens_evaluated", json!(3)),
        ("tokens_cached", json!(14)),
        ("tokens", json!([])),
        ("truncated", json!(false)),
        ("prompt", json!("abc")),
        ("model", json!("toy")),
    ] {
        assert_eq!(response[name], value, "{name}");
    }
    assert_eq!(response["has_new_line"], content(&response).contains('\n'));
    assert!(response["id_slot"].as_u64().unwrap() < 3, "{response}");
    assert!(response.get("completion_probabilities").is_none());
    assert_eq!(response["timings"]["predicted_n"], 12);
    for name in ["prompt_per_token_ms", "prompt_per_second", "predicted_per_token_ms"] {
        assert!(response["timings"][name].is_number(), "{name}");
    }
    let settings = &response["generation_settings"];
    for (name, value) in [
        ("n_predict", json!(12)),
        ("seed", json!(5)),
        ("temperature", json!(1.0)),
        ("ignore_eos", json!(true)),
        ("stream", json!(false)),
        ("mirostat", json!(0)),
        ("stop", json!([])),
        ("grammar", json!("")),
        ("logit_bias", json!([{ "token": 96, "bias": null }])),
    ] {
        assert_eq!(settings[name], value, "{name}");
    }
    assert_eq!(settings["samplers"][5], "temperature");
    // By its other path, and with its other names.
    let other = json!({ "prompt": "abc", "max_tokens": 12, "ignore_eos": true, "seed": 5 });
    assert_eq!(content(&api.ok("/completions", other).await), content(&response));
}

#[tokio::test]
async fn a_stream_has_the_same_text_and_ends_with_the_statistics() {
    let api = Api::new();
    let whole = api.ok(NATIVE, native(json!({ "return_tokens": true }))).await;
    let body = native(json!({ "stream": true, "timings_per_token": true }));
    let chunks = streamed(&api.post(NATIVE, body).await);
    let (last, parts) = chunks.split_last().unwrap();
    assert_eq!(joined(&chunks, "/content"), content(&whole));
    let tokens: Vec<Value> =
        parts.iter().flat_map(|it| it["tokens"].as_array().unwrap()).cloned().collect();
    assert_eq!(json!(tokens), whole["tokens"]);
    assert!(parts.iter().all(|it| it["stop"] == false && it["timings"].is_object()));
    assert_eq!(parts.last().unwrap()["tokens_predicted"], 12);
    assert_eq!((&last["stop"], &last["content"]), (&json!(true), &json!("")));
    for name in ["stop_type", "tokens_predicted", "tokens_evaluated", "prompt", "has_new_line"] {
        assert_eq!(last[name], whole[name], "{name}");
    }
    assert_eq!(last["generation_settings"]["stream"], true);
}

#[tokio::test]
async fn prompts_are_texts_tokens_or_both() {
    let api = Api::new();
    let of = async |prompt: Value, n: u32| {
        api.ok(NATIVE, native(json!({ "prompt": prompt, "n_cmpl": n }))).await
    };
    let one = of(json!("abc"), 1).await;
    // 'a' is token 65.
    for prompt in [
        json!([65, 66, 67]),
        json!([65, "bc"]),
        json!(["a", 66, "c"]),
        json!(["abc"]),
        json!([["ab", 67]]),
        json!({ "prompt_string": "abc" }),
        json!([{ "prompt_string": "abc", "multimodal_data": [] }]),
    ] {
        assert_eq!(content(&of(prompt.clone(), 1).await), content(&one), "{prompt}");
    }
    let several = of(json!(["abc", [68, 69]]), 2).await;
    let several = several.as_array().unwrap();
    let about: Vec<(&Value, &Value)> =
        several.iter().map(|it| (&it["index"], &it["prompt"])).collect();
    let [abc, de] = [json!("abc"), json!("de")];
    let indices = [json!(0), json!(1), json!(2), json!(3)];
    let expected = indices.iter().zip([&abc, &abc, &de, &de]).collect::<Vec<_>>();
    assert_eq!(about, expected);
    assert_eq!(content(&several[0]), content(&one));
    assert_ne!(content(&several[0]), content(&several[1]));
    for prompt in [json!([]), json!(""), json!([[1], []]), json!([1, 97]), json!("\u{e9}")] {
        let error = api.error(NATIVE, native(json!({ "prompt": prompt })), 400).await;
        assert_eq!(error["param"], "prompt", "{error}");
    }
    api.error(NATIVE, native(json!({ "n_cmpl": 17 })), 400).await;
}

#[tokio::test]
async fn the_end_of_a_completion_is_named() {
    let api = Api::new();
    let whole = content(&api.ok(NATIVE, native(json!({}))).await).to_owned();
    let stop = &whole[4..6];
    // Empty stop strings are none.
    let stopped = api.ok(NATIVE, native(json!({ "stop": ["", "nothing", stop] }))).await;
    assert_eq!(content(&stopped), &whole[..whole.find(stop).unwrap()]);
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(stop)));
    assert_eq!(stopped["generation_settings"]["stop"], json!(["nothing", stop]));
    let body = native(json!({ "stop": stop, "stream": true }));
    assert_eq!(streamed(&api.post(NATIVE, body).await).last().unwrap()["stopping_word"], stop);
    let end = json!({ "logit_bias": [[96, 100]], "ignore_eos": false });
    let ended = api.ok(NATIVE, native(end)).await;
    assert_eq!((content(&ended), &ended["stop_type"]), ("", &json!("eos")));
    let long = json!({ "prompt": "a".repeat(CONTEXT_LEN - 12), "n_predict": -1 });
    let full = api.ok(NATIVE, native(long)).await;
    assert_eq!((&full["stop_type"], &full["truncated"]), (&json!("limit"), &json!(true)));
    assert_eq!(full["generation_settings"]["n_predict"], -1);
}

#[tokio::test]
async fn a_completion_of_no_tokens_caches_its_prompt() {
    let api = Api::new();
    let prompt = "a prompt that is read before anybody knows what is asked";
    let warm = api.ok(NATIVE, native(json!({ "prompt": prompt, "n_predict": 0 }))).await;
    assert_eq!((content(&warm), &warm["tokens_predicted"]), ("", &json!(0)));
    assert_eq!(
        (&warm["stop_type"], &warm["tokens_cached"]),
        (&json!("limit"), &json!(prompt.len()))
    );
    assert_eq!(warm["timings"]["prompt_n"], prompt.len());
    let next = api.ok(NATIVE, native(json!({ "prompt": prompt }))).await;
    assert_eq!(next["timings"]["cache_n"], prompt.len() - 1, "{next}");
    let fresh = Api::new().ok(NATIVE, native(json!({ "prompt": prompt }))).await;
    assert_eq!(content(&next), content(&fresh));
    // A conversation can be cached too, as llama.vim does.
    let chat = chat(json!({ "max_tokens": null, "n_predict": 0, "samplers": [] }));
    let warm = api.ok(CHAT, chat).await;
    assert_eq!(warm["usage"]["completion_tokens"], 0);
    let chunks =
        streamed(&api.post(NATIVE, native(json!({ "n_predict": 0, "stream": true }))).await);
    assert_eq!((chunks.len(), &chunks[0]["stop"]), (1, &json!(true)));
}

#[tokio::test]
async fn a_response_has_the_fields_that_were_asked_for() {
    let api = Api::new();
    let fields = json!(["content", "timings/predicted_n", "generation_settings/seed", "nothing"]);
    let response = api.ok(NATIVE, native(json!({ "response_fields": fields }))).await;
    let names: Vec<&String> = response.as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 3, "{response}");
    assert_eq!(
        (&response["timings/predicted_n"], &response["generation_settings/seed"]),
        (&json!(12), &json!(5))
    );
    assert_eq!(api.ok(NATIVE, native(json!({ "response_fields": [""] }))).await, json!({}));
    let body = native(json!({ "response_fields": ["stop"], "stream": true }));
    let chunks = streamed(&api.post(NATIVE, body).await);
    assert_eq!(chunks.last().unwrap(), &json!({ "stop": true }));
}

#[tokio::test]
async fn probabilities_have_ids_and_the_likeliest_beside() {
    let api = Api::new();
    let body = native(json!({ "n_probs": 2, "return_tokens": true }));
    let response = api.ok(NATIVE, body.clone()).await;
    let probs = response["completion_probabilities"].as_array().unwrap();
    let ids: Vec<&Value> = probs.iter().map(|it| &it["id"]).collect();
    assert_eq!(json!(ids), response["tokens"]);
    for it in probs {
        assert!(it["logprob"].as_f64().unwrap() <= 0.0, "{it}");
        assert_eq!(it["top_logprobs"].as_array().unwrap().len(), 2);
        assert!(it["top_logprobs"][0]["id"].is_u64() && it["bytes"].is_array(), "{it}");
    }
    let stream = with(body, json!({ "stream": true }));
    let chunks = streamed(&api.post(NATIVE, stream).await);
    let lists = chunks.iter().filter_map(|it| it["completion_probabilities"].as_array());
    assert_eq!(lists.map(Vec::len).sum::<usize>(), 12);
    for (more, param) in [
        (json!({ "n_probs": 21 }), "n_probs"),
        (json!({ "post_sampling_probs": true }), "post_sampling_probs"),
    ] {
        assert_eq!(api.error(NATIVE, native(more), 400).await["param"], param);
    }
}

#[tokio::test]
async fn samplers_that_are_not_named_are_off() {
    let api = Api::new();
    let of = async |more: Value| content(&api.ok(NATIVE, native(more)).await).to_owned();
    let (plain, greedy) = (of(json!({})).await, of(json!({ "temperature": 0 })).await);
    assert_ne!(plain, greedy);
    let cold = json!({ "temperature": 0, "top_k": 1 });
    for (samplers, expected) in [
        (json!([]), &plain),
        (json!(["penalties", "dry", "xtc"]), &plain),
        (json!(["top_k"]), &greedy),
        (json!(["temperature"]), &greedy),
    ] {
        let more = with(cold.clone(), json!({ "samplers": samplers }));
        assert_eq!(&of(more.clone()).await, expected, "{more}");
    }
    let response = api.ok(NATIVE, native(json!({ "samplers": ["top-k", "temp"] }))).await;
    let samplers = &response["generation_settings"]["samplers"];
    assert_eq!(samplers, &json!(["top_k", "temperature"]));
    // All endpoints have them.
    for (path, body) in [(NATIVE, native(json!({}))), (COMPLETIONS, completion(json!({})))] {
        let body = with(body, json!({ "samplers": ["temperature", "top_k"] }));
        assert_eq!(api.error(path, body, 400).await["param"], "samplers");
    }
}

#[tokio::test]
async fn lines_that_are_indented_too_little_and_late_lines_end_the_output() {
    let api = Api::new();
    // Only 'a', a space and a line break are left: tokens 65, 0 and 95.
    let bans = (0..96).filter(|id| ![0, 65, 95].contains(id)).map(|id| json!([id, false]));
    let few = json!({ "logit_bias": bans.collect::<Vec<_>>(), "n_predict": 200 });
    let whole = api.ok(NATIVE, native(few.clone())).await;
    assert_eq!(content(&whole).len(), 200);
    let cut = api.ok(NATIVE, native(with(few.clone(), json!({ "n_indent": 1 })))).await;
    let (kept, rest) = content(&whole).split_at(content(&cut).len());
    assert_eq!(kept, content(&cut));
    assert!(kept.split('\n').skip(1).all(|it| it.is_empty() || it.starts_with(' ')), "{kept:?}");
    assert!(kept.ends_with('\n') && !rest.starts_with(' '), "{rest:?}");
    assert_eq!((&cut["stop_type"], &cut["has_new_line"]), (&json!("limit"), &json!(true)));
    // The toy is fast, but not so fast that many tokens take no time.
    let hurried = api.ok(NATIVE, native(with(few.clone(), json!({ "t_max_predict_ms": 1 })))).await;
    let said = content(&hurried);
    assert!(content(&whole).starts_with(said) && (said.len() == 200 || said.ends_with('\n')));
    let patient = with(few, json!({ "t_max_predict_ms": 60_000 }));
    assert_eq!(content(&api.ok(NATIVE, native(patient)).await), content(&whole));
}

#[tokio::test]
async fn what_would_change_the_output_is_refused_by_name() {
    let api = Api::new();
    let plain = content(&api.ok(NATIVE, native(json!({}))).await).to_owned();
    for (name, value) in [
        ("mirostat", json!(2)),
        ("min_keep", json!(3)),
        ("lora", json!([{ "id": 0, "scale": 1.0 }])),
        ("adaptive_target", json!(0.5)),
        ("grammar_lazy", json!(true)),
        ("dynatemp_range", json!(0.5)),
    ] {
        let error = api.error(NATIVE, native(json!({ name: value })), 400).await;
        assert_eq!(error["param"], name);
        assert!(error["message"].as_str().unwrap().contains("leave it out"), "{error}");
    }
    for more in [
        json!({ "id_slot": 0, "t_max_prompt_ms": 500, "n_keep": 4, "n_cache_reuse": 256 }),
        json!({ "mirostat": 0, "min_keep": 1, "lora": [], "adaptive_target": -1.0, "grammar": "" }),
    ] {
        let reply = api.post(NATIVE, native(more.clone())).await;
        assert_eq!((reply.status, reply.headers.get("forerun-ignored")), (StatusCode::OK, None));
        assert_eq!(content(&reply.json()), plain, "{more}");
    }
    let reply = api.post(NATIVE, native(json!({ "verbose": true }))).await;
    assert_eq!(reply.headers["forerun-ignored"], "verbose");
}

#[tokio::test]
async fn a_seed_of_minus_one_is_none_and_grammars_hold() {
    let api = Api::new();
    for seed in [-1_i64, 4_294_967_295] {
        let body = native(json!({ "seed": seed }));
        let (one, other) = (api.ok(NATIVE, body.clone()).await, api.ok(NATIVE, body).await);
        assert_ne!(content(&one), content(&other));
        assert_eq!(one["generation_settings"]["seed"], 4_294_967_295_u32);
    }
    let own = json!({ "ignore_eos": false, "n_predict": 50 });
    let grammar = "root ::= \"left\" | \"right\"";
    let held = api.ok(NATIVE, native(with(own.clone(), json!({ "grammar": grammar })))).await;
    assert!(["left", "right"].contains(&content(&held)), "{held}");
    assert_eq!(held["generation_settings"]["grammar"], grammar);
    let schema = json!({ "json_schema": { "enum": ["left", "right"] } });
    let held = api.ok(NATIVE, native(with(own, schema))).await;
    assert!(["\"left\"", "\"right\""].contains(&content(&held)), "{held}");
}

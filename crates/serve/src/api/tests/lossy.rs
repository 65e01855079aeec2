//! What requests for loss get: the promise and what was spent of it, or a refusal that says what to do.

use super::*;

/// A request without a seed, whose drafts are verified with loss.
fn lossy(body: Value, mode: Value) -> Value {
    with(body, json!({ "seed": null, "max_tokens": 200, "speculative": { "lossy": mode } }))
}

fn account() -> Value {
    json!({ "mode": "account", "per_token": 0.05 })
}

#[tokio::test]
async fn a_promise_is_kept_and_what_was_spent_is_said() {
    let api = Api::lossy(0.1);
    for (path, body) in [(COMPLETIONS, completion(json!({}))), (CHAT, chat(json!({})))] {
        let reply = api.post(path, lossy(body.clone(), account())).await;
        let response = reply.json();
        let speculative = &response["speculative"];
        let said = &speculative["lossy"];
        assert_eq!(speculative["lossless"], false, "{speculative}");
        assert_eq!(speculative["rule"], "lossy-block");
        assert_eq!((&said["mode"], &said["promised"]), (&json!("account"), &json!(0.05)));
        assert_eq!((&said["tokens"], &said["kept"]), (&json!(200), &json!(true)));
        let number = |name: &str| said[name].as_f64().unwrap();
        assert!(0.0 < number("spent") && number("spent") <= 0.05, "{said}");
        assert!((number("spent_sum") - 200.0 * number("spent")).abs() < 1e-9, "{said}");
        assert!(number("spent_most") <= 0.25 && number("factor_most") <= 4.0, "{said}");
        let header = reply.headers["forerun-lossy"].to_str().unwrap();
        let spent: f64 = header.strip_prefix("account=0.05; spent=").unwrap().parse().unwrap();
        assert!((spent - number("spent")).abs() <= 1e-4, "{header}: {said}");
        // A stream says in front what it promises, and at its end what it spent.
        let usage = json!({ "stream": true, "stream_options": { "include_usage": true } });
        let streamed = with(lossy(body, account()), usage);
        let reply = api.post(path, streamed).await;
        assert_eq!(reply.headers["forerun-lossy"], "account=0.05");
        let chunks = reply.chunks();
        let last = chunks.iter().filter_map(|it| it.pointer("/speculative/lossy")).next_back();
        assert!(last.is_some_and(|it| it["tokens"] == 200 && it["kept"] == true), "{last:?}");
    }
    assert_eq!(api.metric("forerun:lossy_tokens_total").await, 800.0);
    let spent = api.metric("forerun:lossy_spend_total").await;
    assert!(0.0 < spent && spent <= 40.0, "{spent}");
}

#[tokio::test]
async fn at_temperature_0_the_tokens_that_differ_are_named() {
    let api = Api::lossy(0.1);
    let near = json!({ "mode": "near", "per_token": 0.1, "gap": 2.0 });
    let own = json!({ "temperature": 0, "return_token_ids": true });
    let body = completion(own);
    let mut asked = lossy(body.clone(), near);
    asked["speculative"]["trace"] = json!(true);
    let response = api.ok(COMPLETIONS, asked).await;
    let said = &response["speculative"]["lossy"];
    let forgiven: Vec<usize> = serde_json::from_value(said["forgiven"].clone()).unwrap();
    assert!((1..=20).contains(&forgiven.len()) && said["kept"] == true, "{said}");
    let pieces = response["choices"][0]["speculative"]["pieces"].as_array().unwrap();
    let marked = |(place, piece): (usize, &Value)| (piece["origin"] == "forgiven").then_some(place);
    let traced: Vec<usize> = pieces.iter().enumerate().filter_map(marked).collect();
    assert_eq!(traced, forgiven);
    // Up to the first of them, it is what the target says.
    let plain = with(body, json!({ "max_tokens": 200, "speculative": { "enabled": false } }));
    let plain = api.ok(COMPLETIONS, plain).await;
    let ids = |response: &Value| response["choices"][0]["token_ids"].as_array().unwrap().clone();
    let (ours, plain, first) = (ids(&response), ids(&plain), forgiven[0]);
    assert_eq!(ours[..first], plain[..first]);
    assert_ne!(ours[first], plain[first]);
    assert_eq!(api.metric("forerun:lossy_forgiven_tokens_total").await, forgiven.len() as f64);
}

/// A server whose draft model is nearly its target.
fn deferring() -> Api {
    use forerun_decode::{Decoder, Drafter, EditDrafter, ModelDrafter, ToyModel};
    let mut engine = fixtures::engine_of(Arc::new(Ascii), Box::new(toy()));
    engine.drafts.lossy_max = Some(0.1);
    let model = ToyModel { spread: 1.8, ..fixtures::model(VOCAB, 1) };
    let model = ToyEngine::new(model, CONTEXT_LEN).slots(3).paths(1);
    let model: Box<dyn Drafter> = Box::new(ModelDrafter::new(Box::new(model)));
    let drafters = vec![model, Box::new(EditDrafter::default())];
    engine.decoder = Decoder::new(Box::new(toy()), drafters).unwrap();
    Api::serving(engine, |_| {})
}

#[tokio::test]
async fn tokens_are_shown_before_they_are_scored_and_paid_for() {
    let api = deferring();
    let defer = json!({ "mode": "defer", "per_token": 0.1 });
    let speculative = json!({ "lossy": defer, "rule": "block", "trace": true });
    let asked = completion(json!({ "max_tokens": 200, "speculative": speculative }));
    let reply = api.post(COMPLETIONS, asked.clone()).await;
    let response = reply.json();
    let (speculative, said) = (&response["speculative"], &response["speculative"]["lossy"]);
    assert_eq!(
        (&speculative["rule"], &speculative["adaptive"]),
        (&json!("lossy-defer"), &json!(false))
    );
    assert_eq!((&said["promised"], &said["allowance"]), (&json!(0.1), &json!(16.0)));
    assert_eq!((&said["tokens"], &said["kept"]), (&json!(200), &json!(true)), "{said}");
    assert!(said.get("factor_most").is_none(), "{said}");
    let pieces = response["choices"][0]["speculative"]["pieces"].as_array().unwrap();
    let deferred = pieces.iter().filter(|it| it["origin"] == "deferred").count();
    assert!(deferred > 0 && said["spent_sum"].as_f64().unwrap() > 0.0, "{said}");
    let header = reply.headers["forerun-lossy"].to_str().unwrap();
    assert!(header.starts_with("defer=0.1; spent="), "{header}");
    // A text that ends in a stretch is scored before it is over: the books are whole.
    let mut stopped = 0;
    for text in ["a", "b", "c", "d", "e"] {
        let ended = with(asked.clone(), json!({ "stop": text, "return_token_ids": true }));
        let response = api.ok(COMPLETIONS, ended).await;
        let ids = response["choices"][0]["token_ids"].as_array().unwrap();
        let tokens = &response["speculative"]["lossy"]["tokens"];
        assert_eq!(tokens.as_u64(), Some(ids.len() as u64), "{text}");
        stopped += usize::from(response["choices"][0]["finish_reason"] == "stop");
    }
    assert!(stopped > 0);
}

#[tokio::test]
async fn what_cannot_be_promised_is_refused() {
    let refused = async |api: &Api, more: Value, says: &str| {
        let body = with(lossy(completion(json!({})), account()), more);
        let error = api.error(COMPLETIONS, body, 400).await;
        assert_eq!(error["param"], "speculative.lossy", "{error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{says}: {error}");
    };
    let speculative = |more: Value| {
        let lossy = with(account(), more);
        json!({ "speculative": { "lossy": lossy } })
    };
    refused(&Api::new(), json!({}), "this server decodes without loss").await;
    let api = Api::lossy(0.1);
    refused(&api, speculative(json!({ "per_token": 0.2 })), "at most 0.1").await;
    refused(&api, speculative(json!({ "per_token": -0.1 })), "expected 0 to 1").await;
    refused(&api, speculative(json!({ "factor": 0.5 })), "factor").await;
    refused(&api, speculative(json!({ "mode": "typical" })), "no lossy mode").await;
    refused(&api, speculative(json!({ "mode": "near" })), "is for temperature 0").await;
    refused(&api, json!({ "temperature": 0 }), "near:").await;
    refused(&api, json!({ "seed": 5 }), "a seed determines the output").await;
    for rule in ["coupled", "pooled", "nss"] {
        let named = json!({ "speculative": { "lossy": account(), "rule": rule } });
        refused(&api, named, "leave the rule out").await;
    }
    let defer = |more: Value| {
        let lossy = json!({ "mode": "defer", "per_token": 0.1 });
        with(json!({ "speculative": { "lossy": lossy } }), more)
    };
    refused(&api, defer(json!({ "logprobs": 1 })), "log-probabilities").await;
    refused(&api, defer(json!({ "min_tokens": 5 })), "use account:0.02 there").await;
    let object = json!({ "response_format": { "type": "json_object" } });
    refused(&api, defer(object), "whether a form").await;
    let bounded = json!({ "mode": "defer", "per_token": 0.1, "factor": 2 });
    refused(&api, json!({ "speculative": { "lossy": bounded } }), "leave the factor out").await;
    let off = json!({ "speculative": { "lossy": account(), "enabled": false } });
    refused(&api, off, "would do nothing").await;
    // With another rule named, a seed fixes the random choices alone.
    let seeded = json!({ "seed": 5, "speculative": { "lossy": account(), "rule": "block" } });
    let response = api.ok(COMPLETIONS, completion(seeded)).await;
    assert_eq!(response["speculative"]["lossless"], false);
}

#[tokio::test]
async fn without_a_request_for_loss_there_is_none() {
    let api = Api::lossy(0.1);
    let reply = api.post(COMPLETIONS, completion(json!({}))).await;
    assert_eq!(reply.json()["speculative"]["lossless"], true);
    assert!(reply.json()["speculative"].get("lossy").is_none());
    assert!(!reply.headers.contains_key("forerun-lossy"));
    assert_eq!(api.metric("forerun:lossy_tokens_total").await, 0.0);
}

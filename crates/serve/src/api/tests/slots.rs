//! What is shown of the slots, and to whom.

use super::*;

/// A completion whose sequence holds a slot until the gate is opened.
fn slow(prompt: &str) -> Value {
    let body =
        json!({ "prompt": prompt, "max_tokens": 50, "temperature": 0.5, "cache_prompt": false });
    with(completion(body), json!({ "speculative": { "enabled": false } }))
}

fn keyed(mut request: Request, key: &str) -> Request {
    request.headers_mut().insert(API_KEY, key.parse().unwrap());
    request
}

/// Waits until the slots are as they should be.
async fn slots(api: &Api, key: &str, busy: usize) -> Vec<Value> {
    loop {
        let reply = api.send(keyed(get_request("/slots"), key)).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
        let slots = reply.json().as_array().unwrap().clone();
        if slots.iter().filter(|it| it["is_processing"] == true).count() == busy {
            return slots;
        }
        tokio::task::yield_now().await;
    }
}

/// The first slot that is busy.
fn busy(slots: &[Value]) -> &Value {
    slots.iter().find(|it| it["is_processing"] == true).unwrap()
}

#[tokio::test]
async fn a_slot_says_what_it_does_and_nothing_of_the_text() {
    let (api, gate) = Api::gated(|_| {});
    assert!(slots(&api, "", 0).await.iter().all(|it| it.get("params").is_none()));
    let router = api.router.clone();
    let request = post_request(COMPLETIONS, &slow("secret"));
    let asked = tokio::spawn(async move { router.oneshot(request).await.unwrap() });
    // A slot is busy as soon as its first pass begins.
    until(|| gate.arrivals() == 1).await;
    let all = slots(&api, "", 1).await;
    let first = &busy(&all)["next_token"][0];
    assert_eq!((&first["n_decoded"], &first["n_remain"]), (&json!(0), &json!(50)), "{first}");
    // The prompt and a token.
    gate.passes(1);
    until(|| gate.arrivals() == 2).await;
    let all = slots(&api, "", 1).await;
    assert_eq!(all.len(), 3);
    let busy = busy(&all);
    for (name, value) in [
        ("n_ctx", json!(CONTEXT_LEN)),
        ("speculative", json!(false)),
        ("id_task", json!(1)),
        ("n_prompt_tokens", json!(6)),
        ("n_prompt_tokens_processed", json!(6)),
        ("n_prompt_tokens_cache", json!(0)),
    ] {
        assert_eq!(busy[name], value, "{name}: {busy}");
    }
    assert_eq!(
        (&busy["params"]["temperature"], &busy["params"]["n_predict"]),
        (&json!(0.5), &json!(50))
    );
    let next = &busy["next_token"][0];
    assert_eq!((&next["n_decoded"], &next["n_remain"]), (&json!(1), &json!(49)), "{busy}");
    assert!(!json!(all).to_string().contains("secret"));
    drop(gate);
    assert_eq!(asked.await.unwrap().status(), StatusCode::OK);
    slots(&api, "", 0).await;
}

#[tokio::test]
async fn a_tenant_sees_its_own_sequences_and_that_others_are_served() {
    let keys = || vec!["first".to_owned(), "second".to_owned()];
    let (api, gate) = Api::gated(|config| config.api_keys = keys());
    assert_eq!(api.get("/slots").await.status, StatusCode::UNAUTHORIZED);
    let mut asked = Vec::new();
    let mut send = |key: &str| {
        let request = keyed(post_request(COMPLETIONS, &slow("abc")), key);
        let router = api.router.clone();
        asked.push(tokio::spawn(async move { router.oneshot(request).await.unwrap() }));
    };
    // One is in its first pass and the other waits: both have a part in the next.
    send("first");
    until(|| gate.arrivals() == 1).await;
    send("second");
    while api.metric("vllm:num_requests_waiting").await == 0.0 {
        tokio::task::yield_now().await;
    }
    gate.passes(2);
    for key in ["first", "second"] {
        let seen = slots(&api, key, 2).await;
        let details: Vec<&Value> = seen.iter().filter(|it| it.get("id_task").is_some()).collect();
        assert_eq!(details.len(), 1, "{key} sees its own: {seen:?}");
        let other =
            seen.iter().find(|it| it["is_processing"] == true && it.get("id_task").is_none());
        let names: Vec<&String> = other.unwrap().as_object().unwrap().keys().collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }
    drop(gate);
    for asked in asked {
        assert_eq!(asked.await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_client_may_ask_for_an_error_if_no_slot_is_idle() {
    let (api, gate) = Api::gated(|_| {});
    assert_eq!(api.get("/slots?fail_on_no_slot=1").await.status, StatusCode::OK);
    let (router, request) =
        (api.router.clone(), post_request(COMPLETIONS, &with(slow("abc"), json!({ "n": 3 }))));
    let asked = tokio::spawn(async move { router.oneshot(request).await.unwrap() });
    gate.passes(1);
    slots(&api, "", 3).await;
    assert_eq!(api.get("/slots?fail_on_no_slot=1").await.error(503)["code"], "no_slot");
    for other in ["/slots", "/slots?fail_on_no_slot=", "/slots?a=1&b"] {
        assert_eq!(api.get(other).await.status, StatusCode::OK, "{other}");
    }
    drop(gate);
    assert_eq!(asked.await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_server_may_keep_its_slots_to_itself() {
    let api = Api::with(|config| config.slots = false);
    let error = api.get("/slots").await.error(501);
    assert!(error["message"].as_str().unwrap().contains("--slots"), "{error}");
    assert_eq!(error["type"], "not_supported_error");
    assert_eq!(api.get("/props").await.json()["endpoint_slots"], false);
    assert_eq!(Api::new().get("/props").await.json()["endpoint_slots"], true);
}

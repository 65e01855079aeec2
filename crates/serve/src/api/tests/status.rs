//! The model, the condition of the server, and what describes them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::*;

#[tokio::test]
async fn a_server_that_is_ready_says_so() {
    let api = Api::new();
    for path in ["/health", "/v1/health", "/readyz", "/livez"] {
        let reply = api.get(path).await;
        assert_eq!((reply.status, reply.json()), (StatusCode::OK, json!({ "status": "ok" })));
    }
}

#[tokio::test]
async fn a_server_without_its_model_says_that_it_is_loading() {
    let app = App::new(config(), None);
    let router = router(Arc::new(app));
    let send = async |request| Reply::read(router.clone().oneshot(request).await.unwrap()).await;
    let live = send(get_request("/livez")).await;
    assert_eq!((live.status, live.json()), (StatusCode::OK, json!({ "status": "loading" })));
    for path in ["/health", "/readyz", "/v1/models", "/props", "/slots", "/metrics", "/v1/loads"] {
        let reply = send(get_request(path)).await;
        assert_eq!(reply.error(503)["code"], "loading_model", "{path}");
        assert_eq!(reply.headers[header::RETRY_AFTER], "1");
    }
    for path in [CHAT, COMPLETIONS, "/completion", "/tokenize", "/detokenize", "/apply-template"] {
        let reply = send(post_request(path, &json!({}))).await;
        assert_eq!(reply.error(503)["message"], "Loading model", "{path}");
    }
    for path in ["/", "/version", "/openapi.json"] {
        assert_eq!(send(get_request(path)).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn a_server_that_drains_rejects_requests_and_says_so() {
    let api = Api::new();
    api.service.stopping.store(true, Ordering::Relaxed);
    assert_eq!(api.get("/livez").await.json(), json!({ "status": "draining" }));
    for reply in [api.get("/health").await, api.post(CHAT, chat(json!({}))).await] {
        assert_eq!(reply.error(503)["code"], "shutting_down");
        assert_eq!(reply.headers[header::RETRY_AFTER], "5");
    }
}

#[tokio::test]
async fn a_server_whose_engine_has_ended_is_not_alive() {
    let api = Api::new();
    api.service.worker.close();
    let Api { router, service, thread } = api;
    thread.join().unwrap();
    let api = Api { router, service, thread: std::thread::spawn(|| ()) };
    assert!(api.get("/livez").await.error(500)["message"].as_str().unwrap().contains("restart"));
    assert_eq!(api.get("/health").await.error(503)["code"], "shutting_down");
    assert_eq!(api.error(CHAT, chat(json!({})), 500).await["type"], "server_error");
}

#[tokio::test]
async fn models_are_listed_by_every_name() {
    let api = Api::new();
    let models = api.get("/v1/models").await.json();
    assert_eq!(models["object"], "list");
    let names: Vec<&Value> =
        models["data"].as_array().unwrap().iter().map(|it| &it["id"]).collect();
    assert_eq!(names, ["toy", "alias"]);
    let model = api.get("/v1/models/alias").await.json();
    assert_eq!((&model["id"], &model["object"]), (&json!("alias"), &json!("model")));
    assert_eq!(
        (&model["max_model_len"], &model["meta"]["n_vocab"]),
        (&json!(CONTEXT_LEN), &json!(VOCAB))
    );
    let error = api.get("/v1/models/other").await.error(404);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    assert!(error["message"].as_str().unwrap().contains("toy or alias"), "{error}");
    assert_eq!(api.get("/v1/models/%ff").await.error(400)["param"], "model");
}

#[tokio::test]
async fn props_are_the_defaults() {
    let props = Api::new().get("/props").await.json();
    assert_eq!((&props["model_alias"], &props["total_slots"]), (&json!("toy"), &json!(3)));
    assert_eq!(props["chat_template"], TEMPLATE);
    assert_eq!(props["default_generation_settings"]["n_ctx"], CONTEXT_LEN);
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 1.0);
    assert_eq!(props["speculative"]["drafters"], json!(["draft-model", "edit"]));
    assert_eq!(props["speculative"]["length_max"], 3);
}

#[tokio::test]
async fn the_page_loads_nothing_from_other_sites() {
    let api = Api::new();
    let page = api.get("/").await;
    assert!(page.text.contains("<html"));
    let policy = page.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert_eq!(api.get("/favicon.ico").await.status, StatusCode::NO_CONTENT);
    let version = api.get("/version").await.json();
    assert_eq!(version, json!({ "version": env!("CARGO_PKG_VERSION") }));
}

#[tokio::test]
async fn metrics_and_loads_count_what_was_served() {
    let api = Api::new();
    let loads = api.get("/v1/loads").await.json();
    assert_eq!(loads["loads"][0]["num_total_reqs"], 0);
    for _ in 0..2 {
        api.ok(COMPLETIONS, completion(json!({}))).await;
    }
    api.ok(CHAT, chat(json!({ "n": 2 }))).await;
    api.error(CHAT, chat(json!({ "n": 99 })), 400).await;
    // A sequence is counted once its last tokens were sent.
    api.service.idle().await;
    for (name, value) in [
        ("vllm:request_success_total", 4.0),
        ("vllm:generation_tokens_total", 48.0),
        ("vllm:prompt_tokens_total", 24.0),
        ("vllm:num_requests_waiting", 0.0),
        ("forerun:requests_failed_total", 0.0),
        ("forerun:requests_refused_total", 1.0),
    ] {
        assert_eq!(api.metric(name).await, value, "{name}");
    }
    let metrics = api.get("/metrics").await;
    let kind = metrics.headers[header::CONTENT_TYPE].to_str().unwrap();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    assert!(metrics.text.ends_with("# EOF\n") && metrics.text.contains("model_name=\"toy\""));
    let load = api.get("/loads").await.json()["loads"][0].take();
    assert_eq!(
        (&load["max_total_num_tokens"], &load["max_running_requests"]),
        (&json!(3 * CONTEXT_LEN), &json!(3))
    );
    assert!(load["cache_hit_rate"].as_f64().unwrap() > 0.0, "{load}");
}

#[tokio::test]
async fn the_document_describes_every_path_there_is() {
    let api = Api::new();
    let document = api.get("/openapi.json").await.json();
    let documented: BTreeSet<&str> =
        document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    // Other names of documented paths, the page, and the document.
    let beside = ["/", "/favicon.ico", "/v1/health", "/readyz", "/loads", "/openapi.json"];
    let beside = [&beside[..], &["/reranking", "/v1/reranking"]].concat();
    // `/completions`, beside, is documented as OpenAI's with a prefix and as `/completion` without.
    let source = include_str!("../../api.rs");
    let routes = source.split(".route(\"").skip(1).map(|it| it.split('"').next().unwrap());
    let routes: BTreeSet<&str> = routes.filter(|path| !beside.contains(path)).collect();
    // OpenAI's paths are documented with their prefix, and routed with it and without.
    let plain = |path: &&str| path.strip_prefix("/v1").unwrap_or(path).to_owned();
    let without_prefix =
        |paths: &BTreeSet<&str>| paths.iter().map(plain).collect::<BTreeSet<String>>();
    assert_eq!(without_prefix(&documented), without_prefix(&routes));
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{model}", "toy");
        let reply = match methods.get("get") {
            Some(_) => api.get(&path).await,
            None => api.post(&path, json!({})).await,
        };
        assert_ne!(reply.status, StatusCode::NOT_FOUND, "{path}");
        assert_ne!(reply.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_rejected() {
    let api = Api::new();
    api.get("/v1/nothing").await.error(404);
    api.error("/v1/nothing", json!({}), 404).await;
    api.error("/health", json!({}), 405).await;
    let reply = api.get(CHAT).await;
    reply.error(405);
    assert_eq!(reply.headers[header::ALLOW], "POST");
}

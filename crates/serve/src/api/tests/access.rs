//! API keys and host names.

use super::*;

fn keyed() -> Api {
    Api::with(|config| config.api_keys = vec!["first".to_owned(), "second".to_owned()])
}

/// A request with this header for its key, from anywhere.
fn authorized(mut request: Request, authorization: Option<&str>) -> Request {
    request.headers_mut().insert(header::HOST, "anything.example".parse().unwrap());
    if let Some(value) = authorization {
        request.headers_mut().insert(header::AUTHORIZATION, value.parse().unwrap());
    }
    request
}

/// Every path that needs a key.
fn guarded_requests() -> Vec<Request> {
    let posts = [
        CHAT,
        COMPLETIONS,
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/tokenize",
        "/detokenize",
        "/apply-template",
    ];
    let gets = ["/v1/models", "/v1/models/toy", "/props"];
    let posts = posts.iter().map(|path| post_request(path, &json!({})));
    posts.chain(gets.iter().map(|path| get_request(path))).collect()
}

#[tokio::test]
async fn every_guarded_path_needs_a_key() {
    let api = keyed();
    for authorization in [None, Some("Bearer wrong"), Some("Basic first"), Some("Bearer ")] {
        for request in guarded_requests() {
            let path = request.uri().path().to_owned();
            let reply = api.send(authorized(request, authorization)).await;
            let error = reply.error(401);
            assert_eq!(error["code"], "invalid_api_key", "{path}");
            assert_eq!(error["type"], "authentication_error", "{path}");
            assert_eq!(reply.headers[header::WWW_AUTHENTICATE], "Bearer");
            let wrong = error["message"].as_str().unwrap().contains("not valid");
            assert_eq!(wrong, authorization == Some("Bearer wrong"), "{error}");
        }
    }
    for authorization in ["Bearer first", "Bearer second", "bearer  first "] {
        for request in guarded_requests() {
            let path = request.uri().path().to_owned();
            let reply = api.send(authorized(request, Some(authorization))).await;
            assert_ne!(reply.status, StatusCode::UNAUTHORIZED, "{path} {authorization}");
        }
    }
}

#[tokio::test]
async fn probes_and_the_page_need_no_key() {
    let api = keyed();
    let open = ["/", "/favicon.ico", "/health", "/v1/health", "/readyz", "/livez", "/metrics"];
    for path in open.into_iter().chain(["/v1/loads", "/loads", "/version", "/openapi.json"]) {
        let reply = api.send(authorized(get_request(path), None)).await;
        assert!(reply.status.is_success(), "{path}");
    }
}

#[tokio::test]
async fn a_server_without_keys_answers_to_its_own_names_only() {
    let api = Api::with(|config| config.allowed_hosts = vec!["gateway".to_owned()]);
    for request in guarded_requests() {
        let path = request.uri().path().to_owned();
        let error = api.send(authorized(request, None)).await.error(403);
        assert_eq!(error["code"], "host_not_allowed", "{path}");
        assert!(error["message"].as_str().unwrap().contains("anything.example"), "{error}");
    }
    for host in ["localhost", "127.0.0.1:80", "[::1]:8080", "gateway:1"] {
        let mut request = get_request("/v1/models");
        request.headers_mut().insert(header::HOST, host.parse().unwrap());
        assert_eq!(api.send(request).await.status, StatusCode::OK, "{host}");
    }
}

#[tokio::test]
async fn prefixes_are_cached_for_the_same_key_only() {
    let api = keyed();
    let cached = async |key: &str, more: Value| {
        let request =
            post_request(COMPLETIONS, &completion(with(json!({ "prompt": "abcdefgh" }), more)));
        let reply = api.send(authorized(request, Some(&format!("Bearer {key}")))).await;
        reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached("first", json!({})).await, 0);
    assert_eq!(cached("first", json!({})).await, 7);
    assert_eq!(cached("second", json!({})).await, 0);
    assert_eq!(cached("first", json!({ "cache_salt": "x" })).await, 0);
    assert_eq!(cached("first", json!({ "cache_salt": "x" })).await, 7);
    assert_eq!(cached("first", json!({ "cache_prompt": false })).await, 0);
}

#[tokio::test]
async fn a_key_may_come_as_anthropics_clients_send_it() {
    let api = keyed();
    for (bearer, other, status) in [
        (None, Some("second"), 200),
        (None, Some("wrong"), 401),
        (Some("Bearer "), Some("first"), 200),
        // The usual header goes first.
        (Some("Bearer wrong"), Some("first"), 401),
        (Some("Bearer first"), Some("wrong"), 200),
    ] {
        let mut request = authorized(get_request("/v1/models"), bearer);
        request.headers_mut().extend(other.map(|key| (API_KEY, key.parse().unwrap())));
        assert_eq!(api.send(request).await.status.as_u16(), status, "{bearer:?} {other:?}");
    }
}

#[tokio::test]
async fn paths_may_go_without_their_prefix() {
    let api = Api::new();
    let (path, body) = ("/chat/completions", chat(json!({})));
    let prefixed = api.ok(&format!("/v1{path}"), body.clone()).await;
    assert_eq!(text(&api.ok(path, body).await), text(&prefixed));
    assert_eq!(api.get("/models").await.json(), api.get("/v1/models").await.json());
    assert_eq!(api.get("/models/toy").await.json()["id"], "toy");
    // They need a key where the others do.
    let keyed = keyed();
    for request in [
        post_request("/chat/completions", &json!({})),
        post_request("/completion", &json!({})),
        post_request("/completions", &json!({})),
        get_request("/models"),
    ] {
        assert_eq!(keyed.send(authorized(request, None)).await.status, StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn requests_have_ids() {
    let api = Api::new();
    let id = async |sent: Option<&str>, mut request: Request| {
        request.headers_mut().extend(sent.map(|id| (request_id::HEADER, id.parse().unwrap())));
        let reply = api.send(request).await;
        reply.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    let (chats, wrong) = (post_request(CHAT, &chat(json!({}))), post_request(CHAT, &json!({})));
    assert_eq!(id(Some("abc-1"), chats).await, "abc-1");
    assert_eq!(id(Some("abc-2"), wrong).await, "abc-2");
    assert_eq!(id(Some("abc-3"), get_request("/nothing")).await, "abc-3");
    let (first, second) =
        (id(None, get_request("/health")).await, id(None, get_request("/health")).await);
    assert!(first.starts_with("req_") && first != second, "{first} {second}");
    // One that a log could not hold is replaced.
    for odd in ["a b", "", &"x".repeat(129)] {
        assert!(id(Some(odd), get_request("/health")).await.starts_with("req_"), "{odd}");
    }
}

/// What a browser is told that asks for a page of this origin.
async fn allowed_origin(api: &Api, origin: &str) -> Option<String> {
    let preflight = Request::options(CHAT)
        .header(header::HOST, "localhost")
        .header(header::ORIGIN, origin)
        .header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST")
        .header(header::ACCESS_CONTROL_REQUEST_HEADERS, "content-type,x-api-key");
    let reply = api.send(preflight.body(Body::empty()).unwrap()).await;
    assert_eq!(reply.status, StatusCode::OK);
    let mut request = post_request(CHAT, &chat(json!({})));
    request.headers_mut().insert(header::ORIGIN, origin.parse().unwrap());
    let sent = api.send(request).await;
    let allowed = |reply: &Reply| {
        let value = reply.headers.get(header::ACCESS_CONTROL_ALLOW_ORIGIN)?;
        Some(value.to_str().unwrap().to_owned())
    };
    assert_eq!(allowed(&reply), allowed(&sent), "{origin}");
    if allowed(&reply).is_some() {
        let headers = &reply.headers[header::ACCESS_CONTROL_ALLOW_HEADERS];
        assert_eq!(headers, "content-type,x-api-key");
        let exposed = sent.headers[header::ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap();
        assert!(exposed.contains("x-request-id") && exposed.contains("forerun-ignored"));
    }
    allowed(&reply)
}

#[tokio::test]
async fn pages_of_this_machine_may_use_the_server_and_others_if_they_are_listed() {
    let local =
        ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443", "http://a.localhost"];
    let foreign = [
        "https://evil.example",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://10.0.0.1",
        "null",
    ];
    let api = Api::new();
    for origin in local {
        assert_eq!(allowed_origin(&api, origin).await.as_deref(), Some(origin));
    }
    for origin in foreign {
        assert_eq!(allowed_origin(&api, origin).await, None, "{origin}");
    }
    let chat = "https://chat.example";
    let listed = Api::with(|config| config.origins = Origins::Listed(vec![chat.to_owned()]));
    assert_eq!(allowed_origin(&listed, chat).await.as_deref(), Some(chat));
    for origin in local.into_iter().chain(foreign) {
        assert_eq!(allowed_origin(&listed, origin).await, None, "{origin}");
    }
    let any = Api::with(|config| config.origins = Origins::Any);
    assert_eq!(allowed_origin(&any, "https://evil.example").await.as_deref(), Some("*"));
    let none = Api::with(|config| config.origins = Origins::Listed(Vec::new()));
    assert_eq!(allowed_origin(&none, "http://localhost").await, None);
}

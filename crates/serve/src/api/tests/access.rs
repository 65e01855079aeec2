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
    let posts = [CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/apply-template"];
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

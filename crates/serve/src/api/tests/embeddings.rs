//! `/v1/embeddings` and `/v1/rerank`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::*;
use crate::embedding::EmbeddingModel;
use crate::fixtures::Counting;
use crate::tenants::{TenantConfig, TenantLimits};

const EMBEDDINGS: &str = "/v1/embeddings";
const RERANK: &str = "/v1/rerank";

fn api(ranks: bool, change: impl FnOnce(&mut ServeConfig)) -> Api {
    let mut engine = fixtures::engine_of(Arc::new(Ascii), Box::new(toy()));
    let embedder = Box::new(Counting { ranks, passes: 0 });
    engine.embedding = Some(EmbeddingModel { name: "counting".to_owned(), embedder });
    Api::serving(engine, change)
}

/// The numbers of all embeddings of a response.
fn numbers(response: &Value) -> Vec<Vec<f32>> {
    let data = response["data"].as_array().unwrap().iter().enumerate();
    let row = data.map(|(index, it)| {
        assert_eq!((&it["object"], &it["index"]), (&json!("embedding"), &json!(index)));
        serde_json::from_value(it["embedding"].clone()).unwrap()
    });
    row.collect()
}

#[tokio::test]
async fn embeddings_have_length_one_and_the_order_of_the_inputs() {
    let api = api(false, |_| {});
    let response = api.ok(EMBEDDINGS, json!({ "input": ["b", "de"], "model": "any" })).await;
    // The first has the sum 1, the second 7, and both are of the first pass.
    let expected = [[1.0, 1.0], [7.0, 1.0]].map(|[one, other]: [f32; 2]| {
        let length = one.hypot(other);
        vec![one / length, other / length]
    });
    for (row, expected) in numbers(&response).iter().zip(&expected) {
        assert!(row.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-6), "{row:?}");
    }
    assert_eq!(response["usage"], json!({ "prompt_tokens": 3, "total_tokens": 3 }));
    assert_eq!((&response["object"], &response["model"]), (&json!("list"), &json!("any")));
    let ids = api.ok(EMBEDDINGS, json!({ "input": [[1], [3, 4]] })).await;
    assert_eq!(ids["usage"], response["usage"]);
    assert_eq!(ids["model"], "counting");
}

#[tokio::test]
async fn base64_holds_the_same_numbers() {
    let api = api(false, |_| {});
    let body = |format: &str| json!({ "input": "e", "encoding_format": format });
    let coded = api.ok(EMBEDDINGS, body("base64")).await;
    let bytes = BASE64_STANDARD.decode(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let four = |it: &[u8]| f32::from_le_bytes(it.try_into().unwrap());
    let row: Vec<f32> = bytes.chunks(4).map(four).collect();
    assert!((row[0] - 4.0 / 17.0_f32.sqrt()).abs() < 1e-6, "{row:?}");
    assert_eq!(api.error(EMBEDDINGS, body("int8"), 400).await["param"], "encoding_format");
}

#[tokio::test]
async fn what_cannot_be_embedded_is_refused() {
    let api = api(false, |_| {});
    for (body, param) in [
        (json!({ "input": "a", "dimensions": 1 }), "dimensions"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": "" }), "input"),
        (json!({ "input": ["a", "abcdeabcde"] }), "input"),
        (json!({ "input": [99] }), "input"),
        (json!({}), "input"),
    ] {
        assert_eq!(api.error(EMBEDDINGS, body.clone(), 400).await["param"], param, "{body}");
    }
    assert!(api.ok(EMBEDDINGS, json!({ "input": "a", "dimensions": 2 })).await.is_object());
    let error = api.error(RERANK, json!({ "query": "a", "documents": ["b"] }), 400).await;
    assert!(error["message"].as_str().unwrap().contains("--embedding-model"), "{error}");
    let error = Api::new().error(EMBEDDINGS, json!({ "input": "a" }), 400).await;
    assert!(error["message"].as_str().unwrap().contains("--embedding-model"), "{error}");
}

#[tokio::test]
async fn the_best_documents_come_first() {
    let api = api(true, |_| {});
    let body = json!({ "query": "a", "documents": ["b", { "text": "e" }, "c"] });
    let response = api.ok(RERANK, body.clone()).await;
    let order = json!([
        { "index": 1, "relevance_score": 4.0 },
        { "index": 2, "relevance_score": 2.0 },
        { "index": 0, "relevance_score": 1.0 },
    ]);
    assert_eq!(response["results"], order);
    assert_eq!(response["usage"]["total_tokens"], 6);
    for path in ["/rerank", "/reranking", "/v1/reranking"] {
        assert_eq!(api.ok(path, body.clone()).await["results"], order);
    }
    let best = api.ok(RERANK, with(body, json!({ "top_n": 1, "return_documents": true }))).await;
    let expected = json!([{ "index": 1, "relevance_score": 4.0, "document": { "text": "e" } }]);
    assert_eq!(best["results"], expected);
    let texts = json!({ "query": "a", "texts": ["b", "e"], "return_text": true });
    let texts = api.ok(RERANK, texts).await;
    let expected = json!([{ "index": 1, "score": 4.0, "text": "e" }, { "index": 0, "score": 1.0, "text": "b" }]);
    assert_eq!(texts, expected);
    let both = json!({ "query": "a", "texts": ["b"], "documents": ["b"] });
    assert_eq!(api.error(RERANK, both, 400).await["param"], "documents");
    let error = api.error(EMBEDDINGS, json!({ "input": "a" }), 400).await;
    assert!(error["message"].as_str().unwrap().contains("reranker"), "{error}");
}

#[tokio::test]
async fn a_strict_server_knows_the_model_by_its_names_alone() {
    let api = api(false, |config| config.strict = true);
    for name in ["counting", "toy", "alias"] {
        assert!(api.ok(EMBEDDINGS, json!({ "input": "a", "model": name })).await.is_object());
    }
    let error = api.error(EMBEDDINGS, json!({ "input": "a", "model": "other" }), 404).await;
    assert_eq!(error["code"], "model_not_found");
}

#[tokio::test]
async fn embedded_tokens_count_for_the_tenant() {
    let limits =
        TenantLimits { tokens_per_minute: Some(4.try_into().unwrap()), ..TenantLimits::default() };
    let tenant = TenantConfig { limits, ..TenantConfig::of_key("key".to_owned()) };
    let api = api(false, |config| config.tenants.push(tenant));
    let send = async || {
        let mut request = post_request(EMBEDDINGS, &json!({ "input": "abcde" }));
        request.headers_mut().insert("x-api-key", "key".parse().unwrap());
        api.send(request).await
    };
    assert_eq!(send().await.status, StatusCode::OK);
    assert_eq!(send().await.error(429)["type"], "tokens");
}

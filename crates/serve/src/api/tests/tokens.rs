//! Tokens of a text and text of tokens.

use super::*;

#[tokio::test]
async fn texts_are_tokenized_by_either_name_of_the_field() {
    let api = Api::new();
    for field in ["content", "prompt"] {
        let response = api.ok("/tokenize", json!({ field: "ab!", "model": "any" })).await;
        let expected = json!({ "count": 3, "max_model_len": CONTEXT_LEN, "tokens": [65, 66, 1] });
        assert_eq!(response, expected);
    }
    for field in ["with_pieces", "return_token_strs"] {
        let response = api.ok("/tokenize", json!({ "content": "ab!", field: true })).await;
        assert_eq!(response["token_strs"], json!(["a", "b", "!"]));
    }
    for body in
        [json!({}), json!({ "content": "a", "prompt": "b" }), json!({ "content": "\u{e9}" })]
    {
        assert_eq!(api.error("/tokenize", body, 400).await["param"], "content");
    }
}

#[tokio::test]
async fn tokens_are_turned_into_text() {
    let api = Api::new();
    let response = api.ok("/detokenize", json!({ "tokens": [65, 66, 1, 96] })).await;
    assert_eq!(response, json!({ "content": "ab!", "prompt": "ab!" }));
    let error = api.error("/detokenize", json!({ "tokens": [65, 97] }), 400).await;
    assert_eq!(error["param"], "tokens");
    assert!(error["message"].as_str().unwrap().contains("97"), "{error}");
}

#[tokio::test]
async fn templates_are_rendered() {
    let api = Api::new();
    let messages = json!([{ "role": "user", "content": "abc" }]);
    let response = api.ok("/apply-template", json!({ "messages": messages })).await;
    assert_eq!(response, json!({ "prompt": "[user]abc" }));
    let kwargs = json!({ "bos_token": "x" });
    let body = json!({ "messages": messages, "chat_template_kwargs": kwargs });
    assert_eq!(api.error("/apply-template", body, 400).await["param"], "chat_template_kwargs");
    assert_eq!(
        api.error("/apply-template", json!({ "messages": [] }), 400).await["param"],
        "messages"
    );
}

//! `POST /v1/embeddings` and `/v1/rerank`: what a second model makes of texts.

use std::sync::Arc;
use std::time::Instant;

use axum::{Extension, Json};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::notes::Notes;
use super::types::Prompt;
use crate::audit::{Outcome, Tokens};
use crate::embedding::{Embedded, Embeddings, Input};
use crate::error::Failure;
use crate::request::Caller;
use crate::service::{Admitted, Service};

/// Most inputs of a request; OpenAI's limit.
const INPUTS_MAX: usize = 2048;

/// Texts to embed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbeddingRequest {
    /// One text or several, as strings or as token ids.
    input: Prompt,
    /// The model.
    model: Option<String>,
    /// How numbers are written.
    #[serde(default)]
    encoding_format: EncodingFormat,
    /// How many numbers an embedding has: as many as the model gives.
    dimensions: Option<usize>,
}

/// How the numbers of an embedding are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncodingFormat {
    /// As a list.
    #[default]
    Float,
    /// As the bytes of 32-bit floats, the lowest first.
    Base64,
}

/// The embeddings of a request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingList {
    /// `list`.
    object: &'static str,
    /// In the order of the inputs.
    data: Vec<EmbeddingObject>,
    /// The model.
    model: String,
    /// Tokens.
    usage: EmbeddingUsage,
}

/// An embedding. Its length is 1.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingObject {
    /// `embedding`.
    object: &'static str,
    /// Which input it is of.
    index: usize,
    /// Its numbers.
    embedding: Numbers,
}

/// The numbers of an embedding.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Numbers {
    /// As a list.
    List(Vec<f32>),
    /// As base64.
    Base64(String),
}

/// Tokens of a request for embeddings or scores.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct EmbeddingUsage {
    /// Of all inputs.
    prompt_tokens: usize,
    /// The same.
    total_tokens: usize,
}

/// Embeds texts.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    request_body = EmbeddingRequest,
    responses(
        (status = 200, description = "The embeddings", body = EmbeddingList),
        (status = "4XX", description = "What is wrong with the request", body = ErrorBody),
        (status = "5XX", description = "What went wrong here", body = ErrorBody),
    )
)]
pub(crate) async fn embeddings(
    Shared(service): Shared,
    Extension(caller): Extension<Caller>,
    Extension(notes): Extension<Notes>,
    Body(request): Body<EmbeddingRequest>,
) -> Result<Json<EmbeddingList>, ApiError> {
    let model = model_for(&service, false)?;
    let name = check_name(&service, model, request.model, &notes)?;
    if let Some(asked) = request.dimensions.filter(|asked| *asked != model.row_len) {
        let has = model.row_len;
        let message =
            format!("{asked} dimensions were asked for, and this model's embeddings have {has}");
        return Err(ApiError::field("dimensions", message));
    }
    let text = |text: String| Input::Text(text);
    let inputs: Vec<Input> = match request.input {
        Prompt::Text(one) => vec![text(one)],
        Prompt::Texts(texts) => texts.into_iter().map(text).collect(),
        Prompt::Tokens(ids) => vec![Input::Tokens(ids)],
        Prompt::TokenLists(lists) => lists.into_iter().map(Input::Tokens).collect(),
    };
    let (embedded, usage) = run(&service, model, caller, inputs, "input").await?;
    let object = |(index, it): (usize, Embedded)| {
        let numbers = normalised(it.row);
        let embedding = match request.encoding_format {
            EncodingFormat::Float => Numbers::List(numbers),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
                Numbers::Base64(BASE64_STANDARD.encode(bytes))
            }
        };
        EmbeddingObject { object: "embedding", index, embedding }
    };
    let data = embedded.into_iter().enumerate().map(object).collect();
    Ok(Json(EmbeddingList { object: "list", data, model: name, usage }))
}

/// Documents to score.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RerankRequest {
    /// What they are to answer.
    query: String,
    /// The documents; Jina's and Cohere's name.
    documents: Option<Vec<Document>>,
    /// The documents; the name of Text Embeddings Inference, whose form the response then has.
    texts: Option<Vec<String>>,
    /// Most documents of the response, the best ones.
    top_n: Option<usize>,
    /// Whether the response has the documents.
    return_documents: Option<bool>,
    /// The same, by the name of Text Embeddings Inference.
    return_text: Option<bool>,
    /// The model.
    model: Option<String>,
}

/// A document to score.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Document {
    /// Its text.
    Text(String),
    /// Its text, in an object.
    Object {
        /// The text.
        text: String,
    },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// Documents by their scores, the best first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RerankList {
    /// `list`.
    object: &'static str,
    /// The best first.
    results: Vec<Ranked>,
    /// The model.
    model: String,
    /// Tokens.
    usage: EmbeddingUsage,
}

/// A document's score.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ranked {
    /// Which document.
    index: usize,
    /// How well it answers the query, as the model's head says; only order and differences mean something.
    relevance_score: f32,
    /// The document, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RankedDocument>,
}

/// A document of a response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RankedDocument {
    /// Its text.
    text: String,
}

/// A document's score, by the names of Text Embeddings Inference.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Scored {
    /// Which document.
    index: usize,
    /// How well it answers the query.
    score: f32,
    /// The document, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Documents by their scores, in the form of the request.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum RerankResponse {
    /// If they were given as `documents`.
    List(RerankList),
    /// If they were given as `texts`.
    Texts(Vec<Scored>),
}

/// Scores documents.
#[utoipa::path(
    post,
    path = "/v1/rerank",
    request_body = RerankRequest,
    responses(
        (status = 200, description = "The documents by their scores", body = RerankResponse),
        (status = "4XX", description = "What is wrong with the request", body = ErrorBody),
        (status = "5XX", description = "What went wrong here", body = ErrorBody),
    )
)]
pub(crate) async fn rerank(
    Shared(service): Shared,
    Extension(caller): Extension<Caller>,
    Extension(notes): Extension<Notes>,
    Body(request): Body<RerankRequest>,
) -> Result<Json<RerankResponse>, ApiError> {
    let model = model_for(&service, true)?;
    let name = check_name(&service, model, request.model, &notes)?;
    let (mut documents, as_texts, field) = match (request.documents, request.texts) {
        (Some(documents), None) => {
            (documents.into_iter().map(Document::into_text).collect(), false, "documents")
        }
        (None, Some(texts)) => (texts, true, "texts"),
        _ => return Err(ApiError::field("documents", "give `documents`, or `texts`")),
    };
    let query: Arc<str> = request.query.into();
    let input =
        |document: &String| Input::Pair { query: query.clone(), document: document.clone() };
    let inputs = documents.iter().map(input).collect();
    let (scored, usage) = run(&service, model, caller, inputs, field).await?;
    // A head of several labels has the score of the first.
    let scores = scored.into_iter().map(|it| it.row.first().copied().unwrap_or(f32::NAN));
    let mut order: Vec<(usize, f32)> = scores.enumerate().collect();
    order.sort_by(|one, other| other.1.total_cmp(&one.1));
    order.truncate(request.top_n.unwrap_or(usize::MAX));
    let shown = request.return_documents.or(request.return_text).unwrap_or(false);
    let mut text = |index: usize| shown.then(|| std::mem::take(&mut documents[index]));
    if as_texts {
        let scored = |(index, score): (usize, f32)| Scored { index, score, text: text(index) };
        return Ok(Json(RerankResponse::Texts(order.into_iter().map(scored).collect())));
    }
    let ranked = |(index, relevance_score): (usize, f32)| {
        let document = text(index).map(|text| RankedDocument { text });
        Ranked { index, relevance_score, document }
    };
    let results = order.into_iter().map(ranked).collect();
    let list = RerankList { object: "list", results, model: name, usage };
    Ok(Json(RerankResponse::List(list)))
}

/// The model that embeds, or that scores.
fn model_for(service: &Service, ranks: bool) -> Result<&Embeddings, ApiError> {
    let flag = "--embedding-model FILE";
    let model = service.embeddings.as_ref().ok_or_else(|| {
        ApiError::invalid(format!("this server has no embedding model: start it with {flag}"))
    })?;
    match (ranks, model.ranks) {
        (true, false) => Err(ApiError::invalid(format!(
            "the embedding model of this server scores no documents: start it with a reranker as {flag}"
        ))),
        (false, true) => Err(ApiError::invalid(format!(
            "the embedding model of this server is a reranker, which gives scores: start it with another {flag}"
        ))),
        _ => Ok(model),
    }
}

/// The name of the model in the response. A server that is strict knows no others.
fn check_name(
    service: &Service,
    model: &Embeddings,
    asked: Option<String>,
    notes: &Notes,
) -> Result<String, ApiError> {
    let Some(asked) = asked else { return Ok(model.name.clone()) };
    let known = asked == model.name || service.model.names.contains(&asked);
    if notes.is_strict() && !known {
        return Err(ApiError::no_model(&asked, std::slice::from_ref(&model.name)));
    }
    Ok(asked)
}

/// Runs a request as one sequence of its client, within the server's time.
async fn run(
    service: &Service,
    model: &Embeddings,
    caller: Caller,
    inputs: Vec<Input>,
    field: &'static str,
) -> Result<(Vec<Embedded>, EmbeddingUsage), ApiError> {
    let count = inputs.len();
    if count == 0 || count > INPUTS_MAX {
        let message = format!("{count} inputs were given; this server takes 1 to {INPUTS_MAX}");
        return Err(ApiError::field(field, message));
    }
    let Admitted { caller, permit } = service.admit(caller, 1, 1)?;
    if let Some(record) = &caller.reports.record {
        record.begun(&model.name, 1);
    }
    let embedding = tokio::time::timeout(service.config.timeout, model.embed(inputs, field));
    let embedded = embedding.await.map_err(|_| ApiError::from(Failure::Expired))??;
    drop(permit);
    let tokens = embedded.iter().map(|it| it.len).sum();
    service.tenants.embedded(caller.client, tokens, Instant::now());
    let told = Tokens { prompt: tokens, ..Tokens::default() };
    if let Some(record) = &caller.reports.record {
        record.ended(Outcome::Finished, told);
    }
    if let Some(span) = &caller.reports.span {
        span.ended(Outcome::Finished, told);
    }
    Ok((embedded, EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens }))
}

/// A row of length 1, as llama-server and OpenAI give embeddings.
fn normalised(mut row: Vec<f32>) -> Vec<f32> {
    let square: f64 = row.iter().map(|it| f64::from(*it).powi(2)).sum();
    if square > 0.0 {
        #[expect(clippy::cast_possible_truncation, reason = "rounded to what responses hold")]
        let scale = square.sqrt().recip() as f32;
        row.iter_mut().for_each(|it| *it *= scale);
    }
    row
}

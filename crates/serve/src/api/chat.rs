//! `POST /v1/chat/completions`: continues a conversation.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use forerun_decode::{ChatOptions, Fields, Message, RenderedPrompt, Token};
use tokio::sync::OwnedSemaphorePermit;

use super::answer::{
    AnswerMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatLogprobs, Delta,
    Head, Trace, token_ids,
};
use super::error::{ApiError, ErrorBody};
use super::extract::{Body, Shared};
use super::stream::{self, Sink};
use super::tools::{self, Calling};
use super::types::{ChatMessage, ChatRequest, Role};
use super::{form_of, off_thread, token_limit};
use crate::ask::{Asked, TOP_LOGPROBS_MAX, Wanted};
use crate::job::Client;
use crate::state::State;
use crate::texts::{Texts, Whole};
use crate::worker::finish_reason;

/// Variables of templates that no request can set.
const OWN_VARIABLES: [&str; 5] =
    ["messages", "add_generation_prompt", "bos_token", "eos_token", "strftime_now"];

/// Continues a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    request_body = ChatRequest,
    responses(
        (
            status = 200,
            description = "The answer, or a stream of chunks",
            content((ChatCompletion = "application/json"), (ChatChunk = "text/event-stream"))
        ),
        (status = "4XX", description = "What cannot be honoured, and why", body = ErrorBody),
        (status = "5XX", description = "What went wrong here", body = ErrorBody),
    )
)]
pub(crate) async fn chat_completions(
    Shared(state): Shared,
    Extension(client): Extension<Client>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let place = state.place(client, request.n.unwrap_or(1), 1)?;
    let building = Arc::clone(&state);
    let (asked, calling) = off_thread(move || ask(&building, place, request)).await?;
    let stream = asked.about.stream;
    let object = if stream { "chat.completion.chunk" } else { "chat.completion" };
    let head = Head::new("chatcmpl-", object, asked.model.clone());
    let mut texts = Texts::begin(&state, asked.of(client)).await?;
    if stream {
        texts.begun().await?;
        return Ok(stream::respond(|sink| chunks(state, head, texts, calling, sink)));
    }
    whole(&state, head, texts, calling).await
}

fn ask(
    state: &State,
    place: OwnedSemaphorePermit,
    mut request: ChatRequest,
) -> Result<(Asked, Calling), ApiError> {
    let common = request.common();
    let logprobs = match (request.logprobs, request.top_logprobs) {
        (Some(true), top) => Some(top.unwrap_or(0)),
        (_, None) => None,
        (_, Some(_)) => {
            let message = "`top_logprobs` needs `logprobs`: true";
            return Err(ApiError::field("top_logprobs", message));
        }
    };
    if logprobs.is_some_and(|top| top > TOP_LOGPROBS_MAX) {
        let message = format!("at most {TOP_LOGPROBS_MAX} log-probabilities are given");
        return Err(ApiError::field("top_logprobs", message));
    }
    let len_max = match (request.max_completion_tokens, request.max_tokens) {
        (Some(tokens), _) => token_limit("max_completion_tokens", tokens)?,
        (None, Some(tokens)) => token_limit("max_tokens", tokens)?,
        (None, None) => None,
    };
    let own = form_of(request.response_format.take())?;
    let calling = Calling::new(request.tools.take(), request.tool_choice.take())?;
    let form = match (own, calling.form()?) {
        (Some(_), Some(_)) => {
            let message = "an answer that must call a function has no other form";
            return Err(ApiError::field("response_format", message));
        }
        (own, called) => own.or(called),
    };
    let text = state.render(&request.messages, request.chat_template_kwargs.as_ref(), &calling)?;
    let prompts = vec![state.chat_prompt(&text)?];
    let asked = state.ask(place, common, Wanted { prompts, len_max, logprobs, form })?;
    Ok((asked, calling))
}

impl State {
    /// The prompt of a conversation.
    pub(crate) fn render(
        &self,
        messages: &[ChatMessage],
        variables: Option<&std::collections::BTreeMap<String, serde_json::Value>>,
        calling: &Calling,
    ) -> Result<RenderedPrompt, ApiError> {
        let Some(template) = &self.template else {
            let message = "this model has no chat template: start the server with --chat-template";
            return Err(ApiError::invalid(message));
        };
        if messages.is_empty() {
            return Err(ApiError::field("messages", "there is no message: say something"));
        }
        if messages.iter().any(|said| said.audio.is_some() || said.function_call.is_some()) {
            let message = "`audio` and `function_call` cannot be read: leave them out, or call by \
                           `tool_calls`";
            return Err(ApiError::field("messages", message));
        }
        let mut rendered: Vec<Message> = messages.iter().map(message).collect();
        calling.instruct(&mut rendered);
        let mut fields = Fields::default();
        for (name, value) in variables.into_iter().flatten() {
            if OWN_VARIABLES.contains(&name.as_str()) {
                let message = format!("{name} is what the server gives the template: leave it out");
                return Err(ApiError::field("chat_template_kwargs", message));
            }
            fields.set(name, value);
        }
        let now = Some(crate::now());
        let options = ChatOptions { now, fields, ..ChatOptions::default() };
        let prompt = template.render_content_as_text(&rendered, &options, &self.specials);
        prompt.map_err(|error| ApiError::field("messages", error))
    }

    /// The tokens of a conversation's prompt.
    fn chat_prompt(&self, prompt: &RenderedPrompt) -> Result<Vec<Token>, ApiError> {
        let tokens = self.specials.tokenize(&*self.tokenizer, prompt);
        Ok(self.started(tokens.map_err(|error| ApiError::field("messages", error))?))
    }
}

fn message(said: &ChatMessage) -> Message {
    let role = match said.role {
        Role::System | Role::Developer => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut content = said.content.as_ref().map(|it| it.text()).unwrap_or_default();
    content.push_str(said.refusal.as_deref().unwrap_or_default());
    tools::write_calls(&mut content, said.tool_calls.as_deref().unwrap_or_default());
    let mut message = Message::new(role, content);
    if let Some(name) = &said.name {
        message.extra.set("name", name);
    }
    if let Some(id) = &said.tool_call_id {
        message.extra.set("tool_call_id", id);
    }
    message
}

async fn whole(
    state: &State,
    head: Head,
    mut texts: Texts,
    calling: Calling,
) -> Result<Response, ApiError> {
    let all = texts.all().await?;
    let about = &texts.about;
    let choice = |(index, text): (usize, Whole)| {
        let (content, tool_calls) = calling.parse(text.text);
        let reason = text.finish.map_or("stop", finish_reason);
        ChatChoice {
            index,
            logprobs: about.logprobs.then(|| ChatLogprobs::new(&text.pieces, &*state.tokenizer)),
            token_ids: about.token_ids.then(|| token_ids(&text.pieces)),
            speculative: about.trace.then(|| Trace::new(&text.pieces)),
            finish_reason: if tool_calls.is_empty() { reason } else { "tool_calls" },
            message: AnswerMessage { role: "assistant", content, refusal: None, tool_calls },
        }
    };
    let choices = all.into_iter().enumerate().map(choice).collect();
    let foot = about.foot(&texts.tallies);
    let prompt_token_ids = about.prompt_ids(0);
    Ok(Json(ChatCompletion { head, choices, prompt_token_ids, foot }).into_response())
}

/// A chunk without anything but these parts.
fn chunk(head: &Head, choices: Vec<ChatChunkChoice>) -> ChatChunk {
    ChatChunk {
        head: head.clone(),
        choices,
        prompt_token_ids: None,
        usage: None,
        timings: None,
        speculative: None,
        metrics: None,
    }
}

/// A part of an answer without anything but this.
fn part(index: usize, delta: Delta) -> ChatChunkChoice {
    ChatChunkChoice {
        index,
        delta,
        logprobs: None,
        finish_reason: None,
        token_ids: None,
        speculative: None,
    }
}

async fn chunks(state: Arc<State>, head: Head, mut texts: Texts, calling: Calling, sink: Sink) {
    let mut filters: Vec<tools::CallFilter> =
        (0..texts.about.choices).map(|_| calling.filter()).collect();
    // What the client has of an answer it resumes went through a filter before.
    filters.iter_mut().for_each(|it| it.push(&texts.about.resumed, &mut String::new()));
    for index in 0..texts.about.choices {
        let content = Some(String::new());
        let delta = Delta { role: Some("assistant"), content, ..Delta::default() };
        let mut first = chunk(&head, vec![part(index, delta)]);
        first.prompt_token_ids = texts.about.prompt_ids(0);
        first.speculative = texts.about.trace.then(|| texts.about.speculation.clone());
        if !sink.send(&first).await {
            return;
        }
    }
    while let Some(progress) = sink.next(&mut texts).await {
        let progress = match progress {
            Ok(progress) => progress,
            Err(error) => return sink.fail(error).await,
        };
        let (about, index) = (&texts.about, progress.choice);
        let filter = &mut filters[index];
        let mut content = String::new();
        progress.pieces.iter().for_each(|piece| filter.push(&piece.text, &mut content));
        // Calls come with the last tokens; where only the end was lost, the client has them.
        let tool_calls = match progress.finish {
            Some(_) if !progress.pieces.is_empty() => filter.finish(&mut content),
            _ => Vec::new(),
        };
        let says = !content.is_empty() || !tool_calls.is_empty();
        if says || about.trace || about.logprobs || about.token_ids {
            let content = (!content.is_empty()).then_some(content);
            let mut choice = part(index, Delta { role: None, content, tool_calls });
            choice.logprobs =
                about.logprobs.then(|| ChatLogprobs::new(&progress.pieces, &*state.tokenizer));
            choice.token_ids = about.token_ids.then(|| token_ids(&progress.pieces));
            choice.speculative = about.trace.then(|| Trace::new(&progress.pieces));
            let mut chunk = chunk(&head, vec![choice]);
            chunk.usage = about.continuous_usage.then(|| about.usage(&texts.tallies));
            chunk.timings = about.timings.then(|| about.timings(&texts.tallies));
            if !sink.send(&chunk).await {
                return;
            }
        }
        if let Some(finish) = progress.finish {
            let mut choice = part(index, Delta::default());
            let reason = if filter.called() { "tool_calls" } else { finish_reason(finish) };
            choice.finish_reason = Some(reason);
            if !sink.send(&chunk(&head, vec![choice])).await {
                return;
            }
        }
    }
    if texts.about.include_usage {
        let foot = texts.about.foot(&texts.tallies);
        let mut last = chunk(&head, Vec::new());
        (last.usage, last.timings) = (Some(foot.usage), Some(foot.timings));
        (last.speculative, last.metrics) = (Some(foot.speculative), Some(foot.metrics));
        sink.send(&last).await;
    }
    sink.done().await;
}

//! Responses in llama-server's own form.

use axum::http::HeaderMap;
use forerun_decode::{Finish, Piece, Slot};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::api::error::ApiError;
use crate::api::logprobs::NativeLogprob;
use crate::api::response::ApiResponse;
use crate::api::settings::settings_of_client;
use crate::api::stream::Sink;
use crate::api::usage::{Speculation, Timings};
use crate::response::FinishedSequence;

/// Writes the responses to one request.
pub(super) struct Writer {
    /// The grammar of the request, as it was sent.
    pub(super) grammar: String,
    /// The fields of a response, by their paths; all if there are none.
    pub(super) fields: Vec<String>,
    /// Whether it has token ids.
    pub(super) tokens: bool,
}

/// A whole completion, or what ends a stream.
#[derive(Debug, Serialize)]
struct Completion {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    id_slot: Option<u32>,
    stop: bool,
    model: String,
    tokens_predicted: u64,
    tokens_evaluated: usize,
    generation_settings: Value,
    prompt: String,
    has_new_line: bool,
    truncated: bool,
    stop_type: &'static str,
    stopping_word: String,
    /// Tokens of the sequence in the KV cache.
    tokens_cached: usize,
    timings: Timings,
    speculative: Speculation,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<NativeLogprob>>,
}

/// A part of a completion.
#[derive(Debug, Serialize)]
struct Chunk {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    stop: bool,
    id_slot: u32,
    tokens_predicted: u64,
    tokens_evaluated: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<NativeLogprob>>,
}

/// How a completion ended, by llama-server's words.
fn stop_type(finish: Option<Finish>) -> &'static str {
    match finish {
        None => "none",
        Some(Finish::End) => "eos",
        Some(Finish::Stop) => "word",
        Some(Finish::Length | Finish::Context) => "limit",
    }
}

/// The parts of an object at these paths, by their paths; all of it if there are none.
fn chosen(object: Value, paths: &[String]) -> Value {
    if paths.is_empty() {
        return object;
    }
    let at = |path: &String| {
        let found = path.split('/').try_fold(&object, |at, name| at.get(name))?;
        Some((path.clone(), found.clone()))
    };
    Value::Object(paths.iter().filter_map(at).collect::<Map<_, _>>())
}

impl Writer {
    fn tokens(&self, pieces: &[Piece]) -> Vec<u32> {
        let ids = pieces.iter().map(|piece| piece.token.0);
        if self.tokens { ids.collect() } else { Vec::new() }
    }

    /// The object of a sequence that has finished.
    fn object(&self, response: &ApiResponse, index: usize, sequence: FinishedSequence) -> Value {
        let FinishedSequence { text, pieces, finish, stopped_by, slot } = sequence;
        let (summary, stats) = (&response.sequences.summary, &response.sequences.stats[index]);
        let prompt = &summary.prompts[index / summary.n];
        let predicted = stats.rounds.output_len;
        let stream = response.options.stream;
        let completion = Completion {
            index,
            tokens: if stream { Vec::new() } else { self.tokens(&pieces) },
            id_slot: slot.map(|slot| slot.0),
            stop: true,
            model: response.meta.model.clone(),
            tokens_predicted: predicted,
            tokens_evaluated: prompt.len(),
            generation_settings: settings_of_client(&summary.settings, stream, &self.grammar),
            prompt: response.written(prompt),
            has_new_line: text.contains('\n'),
            truncated: finish == Some(Finish::Context),
            stop_type: stop_type(finish),
            stopping_word: stopped_by.unwrap_or_default(),
            // The last token was not run.
            tokens_cached: prompt.len() + usize::try_from(predicted).unwrap_or(0).saturating_sub(1),
            timings: Timings::new(std::slice::from_ref(stats)),
            speculative: Speculation::new(summary),
            completion_probabilities: (response.options.logprobs && !stream)
                .then(|| NativeLogprob::all(&pieces, response.tokenizer())),
            // What was streamed is not said again.
            content: if stream { String::new() } else { text },
        };
        let object = serde_json::to_value(completion).expect("numbers, strings and lists of them");
        chosen(object, &self.fields)
    }

    /// Waits for the whole response: an object, or a list if there are several sequences.
    pub(super) async fn whole(
        &self,
        mut response: ApiResponse,
    ) -> Result<(Value, HeaderMap), ApiError> {
        let sequences = response.sequences.collect().await?;
        let object = |(index, sequence)| self.object(&response, index, sequence);
        let mut objects: Vec<Value> = sequences.into_iter().enumerate().map(object).collect();
        let header = response.lossy_header(true);
        let body = match objects.len() {
            1 => objects.remove(0),
            _ => Value::Array(objects),
        };
        Ok((body, header))
    }

    /// Sends the response in parts. It ends without a mark, as llama-server's does.
    pub(super) async fn send(self, mut response: ApiResponse, sink: Sink) {
        let mut sequences: Vec<FinishedSequence> =
            (0..response.choices()).map(|_| FinishedSequence::default()).collect();
        while let Some(progress) = sink.next(&mut response.sequences).await {
            let progress = match progress {
                Ok(progress) => progress,
                Err(error) => return sink.fail(error.into()).await,
            };
            let (index, finish) = (progress.choice, progress.finish);
            if !progress.pieces.is_empty() {
                let chunk = self.chunk(&response, index, &progress.pieces, progress.slot);
                sequences[index].text.push_str(&chunk.content);
                if !sink.send(&chunk).await {
                    return;
                }
            }
            if finish.is_some() {
                let mut sequence = std::mem::take(&mut sequences[index]);
                (sequence.finish, sequence.slot) = (finish, Some(progress.slot));
                sequence.stopped_by = progress.stopped_by;
                if !sink.send(&self.object(&response, index, sequence)).await {
                    return;
                }
            }
        }
    }

    /// The part of a round.
    fn chunk(&self, response: &ApiResponse, index: usize, pieces: &[Piece], slot: Slot) -> Chunk {
        let (summary, stats) = (&response.sequences.summary, &response.sequences.stats[index]);
        let timings = || Timings::new(std::slice::from_ref(stats));
        let logprobs = || NativeLogprob::all(pieces, response.tokenizer());
        Chunk {
            index,
            content: pieces.iter().map(|piece| piece.text.as_str()).collect(),
            tokens: self.tokens(pieces),
            stop: false,
            id_slot: slot.0,
            tokens_predicted: stats.rounds.output_len,
            tokens_evaluated: summary.prompts[index / summary.n].len(),
            timings: response.options.timings.then(timings),
            completion_probabilities: response.options.logprobs.then(logprobs),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_chosen_by_their_paths() {
        let object = json!({ "content": "a", "timings": { "n": 1, "list": [2] }, "stop": true });
        let choose = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(|it| (*it).to_owned()).collect();
            chosen(object.clone(), &paths)
        };
        assert_eq!(choose(&[]), object);
        assert_eq!(choose(&[""]), json!({}));
        assert_eq!(
            choose(&["content", "timings/n", "timings/list/0", "nothing", "stop/more"]),
            json!({ "content": "a", "timings/n": 1 })
        );
        assert_eq!(choose(&["timings"]), json!({ "timings": { "n": 1, "list": [2] } }));
    }
}

//! The response to a request: its sequences as they are decoded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forerun_decode::{Finish, Piece, Slot};
use tokio::sync::mpsc;

use crate::audit::{Outcome, Tokens};
use crate::blocking::off_thread;
use crate::error::{Failure, RequestError};
use crate::event::{Event, Progress, SequenceStats};
use crate::prepare::constrain;
use crate::request::{PreparedRequest, Reports, RequestSummary, SequenceRequest};
use crate::service::Service;
use crate::trace::Decoding;

/// How much later than the engine's thread the response notices that its deadline has passed.
const MARGIN: Duration = Duration::from_millis(500);

/// The sequences of a request as they are decoded. Dropping it cancels them.
pub(crate) struct ResponseStream {
    events: mpsc::Receiver<Event>,
    /// What the request was.
    pub(crate) summary: RequestSummary,
    /// The statistics of each sequence.
    pub(crate) stats: Vec<SequenceStats>,
    finished: usize,
    deadline: Instant,
    /// The first progress, if it was waited for.
    first: Option<Progress>,
    /// Whether a form could not be compiled, which the request did not need.
    pub(crate) unconstrained: bool,
    /// What is told of it, and what became of it.
    reports: Reports,
    outcome: Outcome,
}

impl ResponseStream {
    /// Puts a request into the queue, once its form is compiled.
    pub(crate) async fn begin(
        service: &Service,
        mut request: PreparedRequest,
    ) -> Result<Self, RequestError> {
        let mut unconstrained = false;
        let calls = request.calls.take();
        let form = request.form.take().or_else(|| calls.as_ref().map(|calls| calls.form.clone()));
        // A request that resumes a finished sequence has nothing to decode.
        if let Some(form) = form.filter(|_| !request.sequences.is_empty()) {
            match service.forms.get(form, request.deadline).await {
                Ok(form) => {
                    let sequences = std::mem::take(&mut request.sequences);
                    let (leads, tokenizer) =
                        (service.leads.clone(), Arc::clone(&service.tokenizer));
                    let hold = move |inner| match &calls {
                        Some(calls) => leads.hold(calls, &tokenizer, inner),
                        None => inner,
                    };
                    request.sequences =
                        off_thread(move || constrain(sequences, &form, hold)).await?;
                }
                Err(RequestError::Form(reason))
                    if calls.as_ref().is_some_and(|calls| !calls.needed) =>
                {
                    tracing::warn!(reason, "calls are not held to their schemas");
                    unconstrained = true;
                }
                Err(error) => return Err(error),
            }
        }
        request.sequences.iter_mut().for_each(SequenceRequest::constrain_length);
        service.submit(&mut request)?;
        let PreparedRequest { events, summary, deadline, reports, .. } = request;
        if let Some(recorder) = &service.recorder {
            recorder.record(&summary.prompts, summary.recordable);
        }
        if let Some(record) = &reports.record {
            record.begun(&service.model.names[0], summary.choices);
        }
        if let Some(span) = &reports.span {
            span.begun(Decoding {
                model: service.model.names[0].clone(),
                choices: summary.choices,
                max_tokens: summary.settings.max_tokens,
                seed: summary.settings.seed,
                sampling: summary.settings.sampling.clone(),
            });
        }
        let stats = vec![SequenceStats::default(); summary.choices];
        Ok(Self {
            events,
            summary,
            stats,
            finished: 0,
            deadline,
            first: None,
            unconstrained,
            reports,
            outcome: Outcome::Cancelled,
        })
    }

    /// Waits for the first token. Until then a failure can still have a status of its own, and a
    /// gateway can send the request to another server if this one dies.
    pub(crate) async fn wait_for_first(&mut self) -> Result<(), RequestError> {
        self.first = self.next().await.transpose()?;
        Ok(())
    }

    /// Returns what was decoded next, and `None` once all sequences have finished.
    pub(crate) async fn next(&mut self) -> Option<Result<Progress, RequestError>> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        if self.finished == self.summary.choices {
            return None;
        }
        // The engine's thread checks deadlines too, but not of what is still in its channel.
        let deadline = (self.deadline + MARGIN).into();
        let Ok(event) = tokio::time::timeout_at(deadline, self.events.recv()).await else {
            return Some(Err(self.fail(Failure::Expired)));
        };
        Some(match event {
            Some(Event::Progress(progress)) => {
                if let Some(span) = &self.reports.span {
                    span.round(&progress, &self.stats[progress.choice].rounds);
                }
                self.stats[progress.choice] = progress.stats.clone();
                self.finished += usize::from(progress.finish.is_some());
                if self.finished == self.summary.choices {
                    self.outcome = Outcome::Finished;
                }
                Ok(*progress)
            }
            Some(Event::Failed(failure)) => Err(self.fail(failure)),
            // The thread is gone, or gave up a client that did not read.
            None => Err(self.fail(RequestError::Internal("the answer was broken off"))),
        })
    }

    /// Nothing comes after an error.
    fn fail(&mut self, error: impl Into<RequestError>) -> RequestError {
        (self.finished, self.outcome) = (self.summary.choices, Outcome::Failed);
        error.into()
    }

    /// Waits until all sequences have finished.
    pub(crate) async fn collect(&mut self) -> Result<Vec<FinishedSequence>, RequestError> {
        let new = |_| FinishedSequence::default();
        let mut sequences: Vec<FinishedSequence> = (0..self.summary.choices).map(new).collect();
        while let Some(progress) = self.next().await {
            let progress = progress?;
            let sequence = &mut sequences[progress.choice];
            progress.pieces.iter().for_each(|piece| sequence.text.push_str(&piece.text));
            sequence.pieces.extend(progress.pieces);
            sequence.finish = progress.finish.or(sequence.finish);
            (sequence.stopped_by, sequence.slot) = (progress.stopped_by, Some(progress.slot));
        }
        Ok(sequences)
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        let Reports { record, span } = &self.reports;
        if record.is_none() && span.is_none() {
            return;
        }
        let (summary, stats) = (&self.summary, &self.stats);
        let prompts: usize = summary.prompts.iter().map(Vec::len).sum();
        let completion: u64 = stats.iter().map(|it| it.rounds.output_len).sum();
        let tokens = Tokens {
            prompt: prompts + summary.resumed.tokens.len(),
            cached: stats.iter().step_by(summary.n).map(|it| it.cached).sum(),
            completion: usize::try_from(completion).unwrap_or(usize::MAX),
        };
        if let Some(record) = record {
            record.ended(self.outcome, tokens);
        }
        if let Some(span) = span {
            span.ended(self.outcome, tokens);
        }
    }
}

/// A sequence that has finished.
#[derive(Debug, Default)]
pub(crate) struct FinishedSequence {
    pub(crate) text: String,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) finish: Option<Finish>,
    /// The stop string that it finished with, if there is one.
    pub(crate) stopped_by: Option<String>,
    /// Its slot, the last if it had several.
    pub(crate) slot: Option<Slot>,
}

//! The answers of a request as they come.

use std::time::{Duration, Instant};

use forerun_decode::Finish;

use crate::api::error::ApiError;
use crate::api::off_thread;
use crate::ask::{About, Asked, hold_all};
use crate::job::{Event, Failure, Progress, Tally};
use crate::state::State;
use tokio::sync::mpsc;

/// How much later than the engine's thread this one notices that time is up.
const MARGIN: Duration = Duration::from_millis(500);

/// The answers of a request.
pub(crate) struct Texts {
    events: mpsc::Receiver<Event>,
    /// What they say of themselves.
    pub(crate) about: About,
    /// The sums of each.
    pub(crate) tallies: Vec<Tally>,
    finished: usize,
    deadline: Instant,
    /// What came first, where it was waited for.
    first: Option<Progress>,
}

impl Texts {
    /// Begins them, once their form is compiled.
    pub(crate) async fn begin(state: &State, mut asked: Asked) -> Result<Self, ApiError> {
        // If only the end of an answer was lost, nothing is to be decoded.
        if let Some(form) = asked.form.take().filter(|_| !asked.jobs.is_empty()) {
            let form = state.forms.get(form, asked.deadline).await?;
            let jobs = std::mem::take(&mut asked.jobs);
            asked.jobs = off_thread(move || hold_all(jobs, &form)).await?;
        }
        state.queue(&mut asked)?;
        let Asked { events, about, deadline, .. } = asked;
        let tallies = vec![Tally::default(); about.choices];
        Ok(Self { events, about, tallies, finished: 0, deadline, first: None })
    }

    /// Waits for the first token. A stream begins with it: until then a failure has a status of its own,
    /// and where the server dies a gateway can ask another one.
    pub(crate) async fn begun(&mut self) -> Result<(), ApiError> {
        self.first = self.next().await.transpose()?;
        Ok(())
    }

    /// What comes next; `None` once all have ended.
    pub(crate) async fn next(&mut self) -> Option<Result<Progress, ApiError>> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        if self.finished == self.about.choices {
            return None;
        }
        // The engine's thread says so itself, but not of what is still in the queue.
        let deadline = (self.deadline + MARGIN).into();
        let Ok(event) = tokio::time::timeout_at(deadline, self.events.recv()).await else {
            self.finished = self.about.choices;
            return Some(Err(Failure::Late.into()));
        };
        match event {
            Some(Event::Round(progress)) => {
                self.tallies[progress.choice] = progress.tally.clone();
                self.finished += usize::from(progress.finish.is_some());
                Some(Ok(*progress))
            }
            Some(Event::Failed(failure)) => {
                self.finished = self.about.choices;
                Some(Err(failure.into()))
            }
            None => {
                self.finished = self.about.choices;
                // The thread that makes them is gone, or gave up a client that did not read.
                Some(Err(ApiError::internal("the answer was broken off")))
            }
        }
    }

    /// All of them, whole.
    pub(crate) async fn all(&mut self) -> Result<Vec<Whole>, ApiError> {
        let mut texts: Vec<Whole> = (0..self.about.choices).map(|_| Whole::default()).collect();
        while let Some(progress) = self.next().await {
            let progress = progress?;
            let text = &mut texts[progress.choice];
            progress.pieces.iter().for_each(|piece| text.text.push_str(&piece.text));
            text.pieces.extend(progress.pieces);
            text.finish = progress.finish.or(text.finish);
        }
        Ok(texts)
    }
}

/// A whole answer.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) text: String,
    pub(crate) pieces: Vec<forerun_decode::Piece>,
    pub(crate) finish: Option<Finish>,
}

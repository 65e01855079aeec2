//! Forerun as a worker of NVIDIA Dynamo: token ids in, several tokens a chunk out.
//!
//! [`ForerunEngine`] implements Dynamo's [`LLMEngine`] over [`Host`], the thread that owns the models. Where a
//! worker dies, Dynamo's front end sends prompt and tokens so far to another one as a longer prompt; with a seed
//! the text goes on exactly, as coupled noise is a function of seed and absolute position alone.

mod blocks;
mod load;
mod request;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use dynamo_backend_common::{
    BackendError, ComponentSnapshot, DynamoError, EngineConfig, ErrorType, FinishReason,
    GenerateContext, KvEventSource, LLMEngine, LLMEngineOutput, LLMEngineOutputExt,
    LlmRegistration, MetricsBindings, MetricsCtx, PreprocessedRequest, SnapshotPublisher,
    TopLogprob, usage,
};
use forerun_decode::{Finish, TokenLogprob};
use forerun_serve::{Host, HostError, TokenChunk};
use futures::stream::BoxStream;
use parking_lot::Mutex;

pub use blocks::BLOCK;
use blocks::{BLOCK_LEN, Blocks};
pub use load::ModelFlags;
pub use request::Moves;
use request::token_request;

/// The one rank of a worker.
const RANK: u32 = 0;

/// How often a worker that stops looks whether it may.
const POLL: Duration = Duration::from_millis(50);

/// Models behind Dynamo's trait.
pub struct ForerunEngine {
    flags: ModelFlags,
    /// What the model is called.
    name: String,
    moves: Moves,
    host: Mutex<Option<Arc<Host>>>,
    blocks: Blocks,
    load: LoadReport,
}

impl ForerunEngine {
    /// Nothing is loaded before it is started.
    pub fn new(flags: ModelFlags, name: String, moves: Moves) -> Self {
        Self {
            flags,
            name,
            moves,
            host: Mutex::default(),
            blocks: Blocks::default(),
            load: LoadReport::default(),
        }
    }

    fn host(&self) -> Result<Arc<Host>, DynamoError> {
        let host = self.host.lock().clone();
        host.ok_or_else(|| backend_error(BackendError::EngineShutdown, "the engine is not running"))
    }
}

fn backend_error(kind: BackendError, message: impl ToString) -> DynamoError {
    dynamo_error(ErrorType::Backend(kind), message)
}

fn dynamo_error(kind: ErrorType, message: impl ToString) -> DynamoError {
    // Users are to read it, and not only who reads the front end's log.
    let message = message.to_string();
    DynamoError::builder().error_type(kind).public_message(message.clone()).message(message).build()
}

/// A text that did not begin. Unless the request is at fault, Dynamo tries another worker.
fn refused(failure: HostError) -> DynamoError {
    let kind = if failure.of_request {
        ErrorType::Backend(BackendError::InvalidArgument)
    } else {
        ErrorType::WorkerOverloaded
    };
    dynamo_error(kind, failure.message)
}

/// A text that broke off. Unless the request is at fault, Dynamo goes on at another worker.
fn broken(failure: HostError) -> DynamoError {
    let kind = if failure.of_request {
        BackendError::InvalidArgument
    } else {
        BackendError::StreamIncomplete
    };
    backend_error(kind, failure.message)
}

#[async_trait]
impl LLMEngine for ForerunEngine {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let (flags, name, blocks) = (self.flags.clone(), self.name.clone(), self.blocks.clone());
        let loaded = tokio::task::spawn_blocking(move || flags.host(&name, blocks)).await;
        let host =
            loaded.map_err(|panic| backend_error(BackendError::EngineShutdown, panic))?.map_err(
                |failure| backend_error(BackendError::InvalidArgument, format!("{failure:#}")),
            )?;
        let (context_len, slots) = (host.context_len(), host.slot_count());
        *self.host.lock() = Some(Arc::new(host));
        Ok(EngineConfig {
            model: self.name.clone(),
            served_model_name: Some(self.name.clone()),
            llm: Some(LlmRegistration {
                context_length: u32::try_from(context_len).ok(),
                kv_cache_block_size: Some(BLOCK),
                total_kv_blocks: Some((slots * context_len / BLOCK_LEN) as u64),
                max_num_seqs: Some(slots as u64),
                ..LlmRegistration::default()
            }),
            ..EngineConfig::default()
        })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        ctx: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let host = self.host()?;
        let prompt_len = u32::try_from(request.token_ids.len()).unwrap_or(u32::MAX);
        let asked = token_request(&request, self.moves)
            .map_err(|reason| backend_error(BackendError::InvalidArgument, reason))?;
        let mut text = host.begin(asked).await.map_err(refused)?;
        let load = self.load.clone();
        // A text that is not read to its end does not keep the engine from being released.
        let host = Arc::downgrade(&host);
        Ok(Box::pin(async_stream::stream! {
            let mut made = 0;
            loop {
                let next = tokio::select! {
                    biased;
                    () = ctx.stopped() => {
                        yield Ok(LLMEngineOutput::cancelled().with_usage(usage(prompt_len, made)));
                        break;
                    }
                    next = text.next() => next,
                };
                load.publish(&host);
                let chunk = match next {
                    Some(Ok(chunk)) => chunk,
                    Some(Err(failure)) => {
                        yield Err(broken(failure));
                        break;
                    }
                    None => {
                        yield Err(backend_error(BackendError::StreamIncomplete, "the text broke off"));
                        break;
                    }
                };
                made += u32::try_from(chunk.tokens.len()).unwrap_or(u32::MAX);
                let ended = chunk.finish.is_some();
                let output = output(chunk);
                yield Ok(if ended { output.with_usage(usage(prompt_len, made)) } else { output });
                if ended {
                    break;
                }
            }
        }))
    }

    async fn cleanup(&self) -> Result<(), DynamoError> {
        let Some(mut host) = self.host.lock().take() else { return Ok(()) };
        // Dynamo sends nothing new; what was begun may end here, and the rest goes on elsewhere.
        let deadline = Instant::now() + self.flags.shutdown_timeout();
        while host.load().unfinished() > 0 && Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
        }
        // Others have it only for as long as it takes to ask for its load.
        let host = loop {
            match Arc::try_unwrap(host) {
                Ok(host) => break host,
                Err(shared) => host = shared,
            }
            tokio::time::sleep(POLL).await;
        };
        tokio::task::spawn_blocking(move || host.stop())
            .await
            .map_err(|panic| backend_error(BackendError::Unknown, panic))
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let blocks = self.blocks.clone();
        let on_ready = Box::new(move |publisher| {
            blocks.publish_to(publisher);
            Ok(())
        });
        Ok(vec![KvEventSource::Push { on_ready, dp_rank: RANK }])
    }

    async fn setup_metrics(&self, ctx: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        // Metrics do not keep the engine from being released.
        let host = Arc::downgrade(&self.host()?);
        ctx.metrics.add_expfmt_callback(Arc::new(move || {
            Ok(host.upgrade().map(|host| host.metrics()).unwrap_or_default())
        }));
        let load = self.load.clone();
        let on_publisher_ready = Box::new(move |publisher| {
            *load.0.lock() = Some(publisher);
            Ok(())
        });
        Ok(MetricsBindings { dp_ranks: vec![RANK], on_publisher_ready: Some(on_publisher_ready) })
    }
}

/// Tells the router how full the cache is.
#[derive(Clone, Default)]
struct LoadReport(Arc<Mutex<Option<Arc<SnapshotPublisher>>>>);

impl LoadReport {
    #[expect(clippy::cast_possible_truncation, reason = "a share needs no more digits")]
    fn publish(&self, host: &Weak<Host>) {
        let (Some(publisher), Some(host)) = (self.0.lock().clone(), host.upgrade()) else { return };
        let load = host.load();
        let snapshot = ComponentSnapshot {
            kv_used_blocks: load.cache_used_len.div_ceil(BLOCK_LEN) as u64,
            kv_total_blocks: (load.cache_len / BLOCK_LEN) as u64,
            gpu_cache_usage: load.cache_used_len as f32 / load.cache_len as f32,
            kv_cache_hit_rate: Some(load.hit_rate as f32),
            dp_rank: RANK,
        };
        publisher.publish(RANK, snapshot);
    }
}

/// What a round brought, as Dynamo has it.
fn output(chunk: TokenChunk) -> LLMEngineOutput {
    let wanted = !chunk.logprobs.is_empty();
    LLMEngineOutput {
        token_ids: chunk.tokens,
        finish_reason: chunk.finish.map(reason),
        log_probs: wanted.then(|| chunk.logprobs.iter().map(|it| it.logprob).collect()),
        top_logprobs: wanted.then(|| chunk.logprobs.iter().map(likeliest).collect()),
        ..LLMEngineOutput::default()
    }
}

/// The likeliest tokens; the front end puts their text in.
fn likeliest(said: &TokenLogprob) -> Vec<TopLogprob> {
    let ranked = (1..).zip(&said.top);
    ranked
        .map(|(rank, (token, logprob))| TopLogprob {
            rank,
            token_id: token.0,
            token: None,
            logprob: *logprob,
            bytes: None,
        })
        .collect()
}

fn reason(finish: Finish) -> FinishReason {
    match finish {
        Finish::End => FinishReason::EoS,
        Finish::Stop => FinishReason::Stop,
        Finish::Length | Finish::Context => FinishReason::Length,
    }
}

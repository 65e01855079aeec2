//! Why a request is rejected or fails, and why there is no server. Nothing here knows HTTP:
//! `api/error.rs` turns these errors into status codes.

use std::net::SocketAddr;

use forerun_decode::{DecodeError, EngineError};

use crate::limits::LimitReached;

/// Why a sequence ended before it was finished.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum Failure {
    /// The decoder failed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The deadline of its request passed.
    #[error("the request took longer than this server allows (--timeout)")]
    Expired,
    /// The server is shutting down.
    #[error("the server is shutting down: try again")]
    Stopping,
}

/// Why a request is rejected, or fails once it has begun.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum RequestError {
    /// The value of a parameter is not supported.
    #[error("{message}")]
    Parameter {
        /// The parameter, as requests name it.
        name: String,
        /// What is wrong, and what to do.
        message: String,
    },
    /// The prompt is longer than the context.
    #[error(
        "the prompt has {len} tokens, and this server's context holds {context_len}: shorten it, or \
         start the server with a larger --ctx-size"
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        len: usize,
        /// Tokens of the context.
        context_len: usize,
    },
    /// The schema or grammar cannot be compiled, or not in time.
    #[error("{0}")]
    Form(String),
    /// Too many sequences wait.
    #[error("the queue is full: try again later")]
    QueueFull,
    /// Its tenant has used what it may for now.
    #[error(transparent)]
    LimitReached(#[from] LimitReached),
    /// Too many schemas and grammars wait to be compiled.
    #[error("too many schemas and grammars are being compiled: try again later")]
    CompilersBusy,
    /// A mistake of the server.
    #[error("{0}")]
    Internal(&'static str),
    /// One of its sequences failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl RequestError {
    /// The value of a parameter is not supported.
    pub(crate) fn parameter(name: impl Into<String>, message: impl ToString) -> Self {
        Self::Parameter { name: name.into(), message: message.to_string() }
    }

    /// Whether the request is at fault, so that sending it again fails again.
    pub(crate) fn is_of_request(&self) -> bool {
        match self {
            Self::Parameter { .. } | Self::ContextExceeded { .. } | Self::Form(_) => true,
            // The request needs what cannot be done: its constraint, its length.
            Self::Failed(Failure::Decode(
                DecodeError::Constraint(_)
                | DecodeError::ContextFull { .. }
                | DecodeError::EmptyPrompt
                | DecodeError::Rule(_)
                | DecodeError::Row(_)
                | DecodeError::Engine(EngineError::Full { .. }),
            )) => true,
            Self::QueueFull
            | Self::LimitReached(_)
            | Self::CompilersBusy
            | Self::Internal(_)
            | Self::Failed(_) => false,
        }
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The vocabulary cannot be used for grammars.
    #[error("the vocabulary cannot be used for grammars: {0}")]
    Grammar(String),
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

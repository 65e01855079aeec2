//! GGUF models by name, as llama.cpp's users name them: `user/repo` or `user/repo:quant`.
//!
//! Files come from a model hub and go to the cache that llama.cpp and Python's `huggingface_hub`
//! use, so that each finds what another brought. Every file is checked against the hub's checksum
//! while it arrives, a download that broke off is continued, and the access token is sent to the
//! hub alone. Models that other programs have stored are found too, and never changed.
//!
//! No engine, no command line and no terminal: progress goes to an [`Observer`].
//!
//! ```
//! use forerun_hub::ModelName;
//!
//! let name: ModelName = "ggml-org/SmolLM3-3B-GGUF:q8_0".parse()?;
//! assert_eq!(name.repo.as_str(), "ggml-org/SmolLM3-3B-GGUF");
//! assert_eq!(name.quant.as_deref(), Some("q8_0"));
//! # Ok::<(), forerun_hub::Error>(())
//! ```

mod cache;
mod client;
mod download;
mod error;
mod file_names;
mod hub;
mod listing;
mod lock;
mod name;
mod observer;
mod settings;
mod stores;

pub use cache::{Cache, CachedFile, Removed};
pub use error::{Error, Result};
pub use file_names::HeadKind;
pub use hub::{Fetched, Hub, Request, Want};
pub use name::{ModelName, RepoId};
pub use observer::{Event, Observer, Silent};
pub use settings::{Settings, Token};
pub use stores::{LocalModel, Store};

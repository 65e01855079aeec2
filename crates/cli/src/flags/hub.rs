//! Models by their names on the hub, with llama.cpp's flags for them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::FalseyValueParser;
use forerun_hub::{Error, Hub, ModelName, Request, Settings, Token, Want};

use super::ConfigError;
use crate::download::Bar;

/// The variables that name a repository and a file of it.
const REPO_VARIABLE: &str = "LLAMA_ARG_HF_REPO";
const FILE_VARIABLE: &str = "LLAMA_ARG_HF_FILE";

/// A target on the hub, as given.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Target")]
pub(crate) struct HubFlags {
    /// Download the target model from the hub unless it is cached; the quantisation defaults to
    /// Q4_K_M, else Q8_0, else the first file [-hf] [-hfr]
    #[arg(long, env = REPO_VARIABLE, value_name = "USER/REPO[:QUANT]")]
    hf_repo: Option<ModelName>,
    /// File of --hf-repo to use, instead of a quantisation [-hff]
    #[arg(long, env = FILE_VARIABLE, value_name = "FILE")]
    hf_file: Option<String>,
    #[command(flatten)]
    pub(crate) access: AccessFlags,
}

/// How the hub is asked, as given.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Target")]
pub(crate) struct AccessFlags {
    /// Access token for gated and private models [-hft] [default: HF_TOKEN, or the one that `hf auth
    /// login` stored]
    #[arg(long, value_name = "TOKEN")]
    hf_token: Option<SecretText>,
    /// Use cached models only; never ask the hub
    #[arg(long, env = "LLAMA_ARG_OFFLINE", value_parser = FalseyValueParser::new())]
    offline: bool,
}

/// A text that no message shows.
#[derive(Clone)]
struct SecretText(String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl HubFlags {
    /// The repository, if the command line names one; that of the environment yields to a file that
    /// the command line names.
    pub(crate) fn name(&self) -> Option<&ModelName> {
        self.hf_repo.as_ref()
    }

    /// Whether the command line itself names a repository.
    pub(crate) fn is_said(&self) -> bool {
        self.hf_repo.as_ref().is_some_and(|name| !is_of(REPO_VARIABLE, &name.to_string()))
    }

    /// Brings the target that is named.
    pub(crate) fn fetch(&self) -> Result<Option<PathBuf>, ConfigError> {
        let Some(name) = self.hf_repo.clone() else {
            self.check_file_has_a_repo()?;
            return Ok(None);
        };
        let want = self.hf_file.clone().map_or(Want::Model, Want::File);
        self.access.fetch(Request { name, want }).map(Some)
    }

    /// Refuses a file without a repository that it could be in.
    pub(crate) fn check_file_has_a_repo(&self) -> Result<(), ConfigError> {
        match &self.hf_file {
            Some(file) if !is_of(FILE_VARIABLE, file) => Err(ConfigError::Unused {
                flag: "--hf-file",
                reason: "no repository is named",
                instead: "add --hf-repo USER/REPO",
            }),
            _ => Ok(()),
        }
    }
}

impl AccessFlags {
    /// The settings of the environment, and what was said besides.
    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        let mut settings = Settings::from_environment()?;
        if let Some(SecretText(token)) = &self.hf_token {
            settings.token = Token::new(token)?;
        }
        settings.offline |= self.offline;
        Ok(settings)
    }

    /// Finds a model in the cache or brings it, and shows how far that is.
    pub(crate) fn fetch(&self, request: Request) -> Result<PathBuf, ConfigError> {
        let hub = Hub::new(&self.settings()?);
        Ok(hub.fetch(&request, &mut Bar::default())?.location)
    }

    /// The same, or nothing if the repository has none.
    pub(crate) fn fetch_if_any(&self, request: Request) -> Result<Option<PathBuf>, ConfigError> {
        match self.fetch(request) {
            Ok(path) => Ok(Some(path)),
            Err(ConfigError::Hub(HubError(error)))
                if matches!(*error, Error::NoModel { .. } | Error::Offline { .. }) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a value is the one that the environment says.
fn is_of(variable: &str, value: &str) -> bool {
    std::env::var_os(variable).is_some_and(|said| said == *value)
}

/// Why a model could not be brought. Equal to none, not even to itself.
#[derive(Debug, Clone)]
pub(crate) struct HubError(Arc<Error>);

impl PartialEq for HubError {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl fmt::Display for HubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for HubError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl From<Error> for ConfigError {
    fn from(error: Error) -> Self {
        Self::Hub(HubError(Arc::new(error)))
    }
}

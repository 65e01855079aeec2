//! What a model is called.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Longest name of a repository, as in llama.cpp.
const NAME_LEN_MAX: usize = 256;

/// What folders of models begin with in the cache.
const FOLDER_PREFIX: &str = "models--";

/// A repository: `user/repo`.
///
/// ```
/// use forerun_hub::RepoId;
///
/// assert!("acme/tiny-GGUF".parse::<RepoId>().is_ok());
/// assert!("../etc".parse::<RepoId>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId(String);

impl RepoId {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The folder of the repository in the cache.
    pub(crate) fn folder(&self) -> String {
        format!("{FOLDER_PREFIX}{}", self.0.replace('/', "--"))
    }

    /// The repository of a folder in the cache, if it is one of a model.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        folder.strip_prefix(FOLDER_PREFIX)?.replace("--", "/").parse().ok()
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RepoId {
    type Err = Error;

    /// As llama.cpp reads it: one slash; slashes, dots and dashes stand between other characters.
    fn from_str(text: &str) -> Result<Self> {
        let mut between = true;
        let mut is_name = text.len() <= NAME_LEN_MAX;
        for byte in text.bytes() {
            let separates = matches!(byte, b'/' | b'.' | b'-');
            is_name &= byte.is_ascii_alphanumeric() || byte == b'_' || (separates && !between);
            between = separates;
        }
        is_name &= !between && text.matches('/').count() == 1;
        if is_name { Ok(Self(text.to_owned())) } else { Err(Error::Name { text: text.to_owned() }) }
    }
}

/// A model of a repository: `user/repo` or `user/repo:quant`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    /// The repository.
    pub repo: RepoId,
    /// How its numbers are stored, such as `Q4_K_M`, in upper or lower case.
    pub quant: Option<String>,
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.quant {
            Some(quant) => write!(f, "{}:{quant}", self.repo),
            None => self.repo.fmt(f),
        }
    }
}

impl FromStr for ModelName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::Name { text: text.to_owned() };
        let (repo, quant) = text.split_once(':').map_or((text, None), |(r, q)| (r, Some(q)));
        let is_quant = |quant: &str| {
            let letter =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
            !quant.is_empty() && quant.bytes().all(letter)
        };
        if quant.is_some_and(|quant| !is_quant(quant)) {
            return Err(wrong());
        }
        let repo = repo.parse().map_err(|_| wrong())?;
        Ok(Self { repo, quant: quant.map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_cache_are_refused() {
        for text in
            ["", "tiny", "/tiny", "acme/", "acme/../x", "../x", "a/b/c", "acme/ti ny", "a//b"]
        {
            assert!(text.parse::<RepoId>().is_err(), "{text:?}");
        }
        let long = format!("acme/{}", "x".repeat(300));
        assert!(long.parse::<RepoId>().is_err());
    }

    #[test]
    fn a_folder_gives_its_repository_back() {
        let repo: RepoId = "acme/tiny-1.5B_GGUF".parse().unwrap();
        assert_eq!(repo.folder(), "models--acme--tiny-1.5B_GGUF");
        assert_eq!(RepoId::of_folder(&repo.folder()), Some(repo));
        assert_eq!(RepoId::of_folder("datasets--acme--tiny"), None);
        assert_eq!(RepoId::of_folder("models--gpt2"), None);
    }

    #[test]
    fn a_quantisation_is_read_after_the_colon() {
        let name: ModelName = "acme/tiny:Q4_K_M".parse().unwrap();
        assert_eq!((name.repo.as_str(), name.quant.as_deref()), ("acme/tiny", Some("Q4_K_M")));
        assert_eq!(name.to_string(), "acme/tiny:Q4_K_M");
        for text in ["acme/tiny:", "acme/tiny:a:b", "acme/tiny:a*", "acme/tiny:../x"] {
            assert!(text.parse::<ModelName>().is_err(), "{text:?}");
        }
    }
}

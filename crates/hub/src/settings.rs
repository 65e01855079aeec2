//! Where the hub and the caches are: what the environment says, by llama.cpp's names and
//! `huggingface_hub`'s.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Error, Result};

/// The hub, unless another is named.
const ENDPOINT: &str = "https://huggingface.co/";

/// How long to wait for the next bytes unless told otherwise, as `huggingface_hub` does.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time that can be named.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// How long to wait before the second attempt in a row; each further one waits twice as long.
const BACK_OFF: Duration = Duration::from_secs(1);

/// An access token. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, or none if nothing but white space was said.
    ///
    /// # Errors
    /// If it has characters that no token has.
    pub fn new(text: &str) -> Result<Option<Self>> {
        let text = text.trim();
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true if text.is_empty() => Ok(None),
            true => Ok(Some(Self(text.to_owned()))),
            false => Err(Error::Token),
        }
    }

    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Where models come from and where they are kept.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The hub, with a slash at the end.
    pub endpoint: String,
    /// Who asks.
    pub token: Option<Token>,
    /// Whether nothing may be downloaded.
    pub offline: bool,
    /// The hub's cache.
    pub cache: PathBuf,
    /// Folders of Ollama's store; those that are not there do not matter.
    pub ollama: Vec<PathBuf>,
    /// Folders of LM Studio's models.
    pub lm_studio: Vec<PathBuf>,
    /// How long to wait for the next bytes of a file.
    pub timeout: Duration,
    /// How long to wait for other answers.
    pub answer_timeout: Duration,
    /// How long to wait before the second attempt in a row.
    pub back_off: Duration,
}

impl Settings {
    /// The variables that are read.
    pub const VARIABLES: [&str; 14] = [
        "HF_ENDPOINT",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_HUB_DOWNLOAD_TIMEOUT",
        "HF_HUB_ETAG_TIMEOUT",
        "HF_HUB_OFFLINE",
        "HF_TOKEN",
        "HF_TOKEN_PATH",
        "HUGGINGFACE_HUB_CACHE",
        "HUGGING_FACE_HUB_TOKEN",
        "LLAMA_ARG_OFFLINE",
        "LLAMA_CACHE",
        "MODEL_ENDPOINT",
        "OLLAMA_MODELS",
    ];

    /// What the environment says.
    ///
    /// # Errors
    /// If there is no folder for the cache, or the token is none.
    pub fn from_environment() -> Result<Self> {
        let environment = Environment { lookup: &|name| std::env::var_os(name) };
        environment.settings(std::env::home_dir())
    }

    #[cfg(test)]
    pub(crate) fn for_tests(endpoint: &str) -> Self {
        let lookup = |name: &str| match name {
            "HF_ENDPOINT" => Some(endpoint.into()),
            _ => None,
        };
        Environment { lookup: &lookup }.settings(Some("/nowhere".into())).unwrap()
    }
}

struct Environment<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Environment<'_> {
    fn settings(&self, home: Option<PathBuf>) -> Result<Settings> {
        let endpoint = self.text("MODEL_ENDPOINT").or_else(|| self.text("HF_ENDPOINT"));
        let mut endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned());
        if !endpoint.ends_with('/') {
            endpoint.push('/');
        }
        let home = home.filter(|home| !home.as_os_str().is_empty());
        let in_home = |names: &[&str]| -> Vec<PathBuf> {
            home.iter().flat_map(|home| names.iter().map(|name| home.join(name))).collect()
        };
        let ollama = match self.path("OLLAMA_MODELS") {
            Some(folder) => vec![folder],
            // Ollama's installer runs it as a user of its own.
            None => [in_home(&[".ollama/models"]), vec!["/usr/share/ollama/.ollama/models".into()]]
                .concat(),
        };
        Ok(Settings {
            endpoint,
            token: self.token(home.as_ref())?,
            offline: self.is_on("LLAMA_ARG_OFFLINE") || self.is_on("HF_HUB_OFFLINE"),
            cache: self.cache(home.as_ref())?,
            ollama,
            lm_studio: in_home(&[".lmstudio/models", ".cache/lm-studio/models"]),
            timeout: self.seconds("HF_HUB_DOWNLOAD_TIMEOUT"),
            answer_timeout: self.seconds("HF_HUB_ETAG_TIMEOUT"),
            back_off: BACK_OFF,
        })
    }

    /// The cache, found as llama.cpp finds it.
    fn cache(&self, home: Option<&PathBuf>) -> Result<PathBuf> {
        let named = ["LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"];
        if let Some(folder) = named.into_iter().find_map(|name| self.path(name)) {
            return Ok(folder);
        }
        Ok(self.hub_home(home).ok_or(Error::NoHome)?.join("hub"))
    }

    /// The folder with the hub's cache and token.
    fn hub_home(&self, home: Option<&PathBuf>) -> Option<PathBuf> {
        let cache = || self.path("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")));
        self.path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")))
    }

    /// The token, from a variable or from the file that `hf auth login` writes.
    fn token(&self, home: Option<&PathBuf>) -> Result<Option<Token>> {
        let said = self.text("HF_TOKEN").or_else(|| self.text("HUGGING_FACE_HUB_TOKEN"));
        let file = || {
            let path = self.path("HF_TOKEN_PATH");
            let path = path.or_else(|| Some(self.hub_home(home)?.join("token")))?;
            std::fs::read_to_string(path).ok()
        };
        said.or_else(file).map_or(Ok(None), |text| Token::new(&text))
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name)?.into_string().ok().filter(|text| !text.trim().is_empty())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        (self.lookup)(name).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    fn is_on(&self, name: &str) -> bool {
        let text = self.text(name).unwrap_or_default().to_ascii_lowercase();
        matches!(&*text, "1" | "on" | "yes" | "true")
    }

    fn seconds(&self, name: &str) -> Duration {
        let said = self.text(name).and_then(|text| text.parse::<f64>().ok());
        said.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .filter(|time| !time.is_zero())
            .map_or(TIMEOUT, |time| time.min(TIMEOUT_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        Environment { lookup: &lookup }.settings(Some("/home/me".into())).unwrap()
    }

    #[test]
    fn the_cache_is_where_llama_cpp_looks_for_it() {
        let mut variables = vec![
            ("LLAMA_CACHE", "/1", "/1"),
            ("HF_HUB_CACHE", "/2", "/2"),
            ("HUGGINGFACE_HUB_CACHE", "/3", "/3"),
            ("HF_HOME", "/4", "/4/hub"),
            ("XDG_CACHE_HOME", "/5", "/5/huggingface/hub"),
        ];
        while !variables.is_empty() {
            let set: Vec<_> = variables.iter().map(|(name, value, _)| (*name, *value)).collect();
            assert_eq!(settings(&set).cache, PathBuf::from(variables[0].2), "{set:?}");
            variables.remove(0);
        }
        assert_eq!(settings(&[]).cache, PathBuf::from("/home/me/.cache/huggingface/hub"));
        assert_eq!(settings(&[("HF_HOME", "")]).cache, settings(&[]).cache);
        let nowhere = Environment { lookup: &|_| None }.settings(None);
        assert!(matches!(nowhere, Err(Error::NoHome)));
    }

    #[test]
    fn every_variable_that_is_read_is_listed() {
        let asked = std::cell::RefCell::new(vec!["XDG_CACHE_HOME".to_owned()]);
        let lookup = |name: &str| {
            asked.borrow_mut().push(name.to_owned());
            None
        };
        Environment { lookup: &lookup }.settings(Some("/nowhere".into())).unwrap();
        let mut listed = Settings::VARIABLES.to_vec();
        listed.push("XDG_CACHE_HOME");
        let mut asked = asked.into_inner();
        listed.sort_unstable();
        asked.sort();
        asked.dedup();
        assert_eq!(asked, listed);
    }

    #[test]
    fn the_hub_may_be_another() {
        assert_eq!(settings(&[]).endpoint, "https://huggingface.co/");
        let mirror = [("HF_ENDPOINT", "https://mirror.example")];
        assert_eq!(settings(&mirror).endpoint, "https://mirror.example/");
        let both = [("HF_ENDPOINT", "https://a.example"), ("MODEL_ENDPOINT", "https://b.example/")];
        assert_eq!(settings(&both).endpoint, "https://b.example/");
    }

    #[test]
    fn a_token_is_never_shown() {
        let settings = settings(&[("HF_TOKEN", " hf_secret\n")]);
        assert_eq!(settings.token, Token::new("hf_secret").unwrap());
        assert!(!format!("{settings:?}").contains("secret"));
        assert!(Token::new("hf_a\r\nHost: b").is_err());
    }

    #[test]
    fn offline_is_said_by_either_name() {
        assert!(!settings(&[("HF_HUB_OFFLINE", "0")]).offline);
        assert!(settings(&[("HF_HUB_OFFLINE", "1")]).offline);
        assert!(settings(&[("LLAMA_ARG_OFFLINE", "True")]).offline);
    }

    #[test]
    fn a_time_that_is_none_is_the_usual_one() {
        for text in ["", "-1", "0", "NaN", "soon"] {
            assert_eq!(settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", text)]).timeout, TIMEOUT, "{text}");
        }
        let short = settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", "0.5")]);
        assert_eq!(short.timeout, Duration::from_millis(500));
        assert_eq!(short.answer_timeout, TIMEOUT);
    }
}

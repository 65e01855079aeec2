//! From a model's name to its files.

use std::path::{Path, PathBuf};

use crate::cache::{Cache, CachedFile};
use crate::client::Client;
use crate::download::Download;
use crate::file_names::{HeadKind, best_head, best_model, parts};
use crate::listing::RepoFile;
use crate::lock::Lock;
use crate::observer::{Event, Observer};
use crate::{Error, ModelName, RepoId, Result, Settings};

/// A hub and the cache for what comes from it.
#[derive(Debug)]
pub struct Hub {
    client: Client,
    cache: Cache,
    offline: bool,
}

/// What is wanted of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// The model of the quantisation that is named, or of the usual one.
    Model,
    /// The file with this path.
    File(String),
    /// What drafts: a draft head if there is one, else the model.
    Drafter,
    /// A draft head of one of these kinds, the first that there is.
    Head(Vec<HeadKind>),
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The repository, and which quantisation.
    pub name: ModelName,
    /// What of it.
    pub want: Want,
}

/// What was wanted, on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The file, or the first part of it.
    pub location: PathBuf,
    /// Its path in the repository.
    pub path: String,
    /// Bytes of all parts.
    pub size: u64,
    /// Bytes that had to be downloaded.
    pub downloaded: u64,
}

impl Hub {
    /// A hub as the settings have it. Nothing is asked or written yet.
    pub fn new(settings: &Settings) -> Self {
        Self {
            client: Client::new(settings),
            cache: Cache::new(&settings.cache),
            offline: settings.offline,
        }
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Finds what is wanted in the cache, or brings it. If the hub cannot be asked, what the cache
    /// has is taken as it is.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn fetch(&self, request: &Request, observer: &mut dyn Observer) -> Result<Fetched> {
        let repo = &request.name.repo;
        if self.offline {
            return self.cached(request);
        }
        let (branch, commit, files) = match self.client.listing(repo, observer) {
            Ok(listing) => listing,
            Err(error @ Error::Hostile { .. }) => return Err(error),
            Err(error) => {
                let cached = self.cached(request).map_err(|_| None::<()>);
                let Ok(cached) = cached else { return Err(error) };
                observer.event(Event::FromCache { cause: &error.to_string() });
                return Ok(cached);
            }
        };
        let paths: Vec<&str> = files.iter().map(|file| &*file.path).collect();
        let chosen = request.choose(&paths)?;
        let chosen = chosen.iter().map(|path| {
            files.iter().find(|file| file.path == **path).expect("it was chosen among these")
        });
        let chosen: Vec<&RepoFile> = chosen.collect();
        let mut downloaded = 0;
        for (index, file) in chosen.iter().enumerate() {
            let place = (index + 1, chosen.len());
            downloaded += self.bring((repo, &commit), file, place, observer)?;
        }
        // Only now: whoever looks into the cache meanwhile finds the files that the branch had before.
        self.cache.write_ref(repo, &branch, &commit)?;
        let first = chosen[0];
        Ok(Fetched {
            location: self.cache.pointer(repo, &commit, &first.path),
            path: first.path.clone(),
            size: chosen.iter().map(|file| file.size).sum(),
            downloaded,
        })
    }

    /// Sees to it that a file of a commit is in the cache; returns how many bytes had to come.
    fn bring(
        &self,
        (repo, commit): (&RepoId, &str),
        file: &RepoFile,
        (part, parts): (usize, usize),
        observer: &mut dyn Observer,
    ) -> Result<u64> {
        let pointer = self.cache.pointer(repo, commit, &file.path);
        let blob = self.cache.blob(repo, &file.checksum);
        if is_whole(&pointer, file) {
            return Ok(0);
        }
        let mut waits = false;
        let lock = self.cache.lock(repo, &file.checksum);
        let _lock = Lock::take(&lock, || {
            if !std::mem::replace(&mut waits, true) {
                observer.event(Event::Waiting { file: &file.path });
            }
        })?;
        let missing = !is_whole(&blob, file);
        if missing {
            let (file_path, size) = (&*file.path, file.size);
            observer.event(Event::Begin { file: file_path, part, parts, size });
            let url = self.client.file_url(repo, commit, &file.path);
            Download { client: &self.client, repo, url, file, blob: blob.clone() }.run(observer)?;
            observer.event(Event::End);
        }
        // Where links cannot be made, another process has moved the content there meanwhile.
        if !is_whole(&pointer, file) {
            self.cache.point(&pointer, &blob)?;
        }
        Ok(if missing { file.size } else { 0 })
    }

    /// What the cache has of it.
    fn cached(&self, request: &Request) -> Result<Fetched> {
        let repo = &request.name.repo;
        let files = self.cache.files(repo);
        let paths: Vec<&str> = files.iter().map(|file| &*file.path).collect();
        let chosen = request.choose(&paths).map_err(|_| Error::Offline {
            name: request.to_string(),
            cache: self.cache.root().to_owned(),
            available: paths.iter().map(|path| (*path).to_owned()).collect(),
        })?;
        let find = |path: &&str| files.iter().find(|file| file.path == **path);
        let chosen: Vec<&CachedFile> = chosen.iter().filter_map(find).collect();
        Ok(Fetched {
            location: chosen[0].location.clone(),
            path: chosen[0].path.clone(),
            size: chosen.iter().map(|file| file.size).sum(),
            downloaded: 0,
        })
    }
}

/// Whether a file is there with all its bytes. Files get their name only when they are whole and
/// checked, so another size is a sign that something else wrote it.
fn is_whole(path: &Path, file: &RepoFile) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == file.size)
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.want {
            Want::File(path) => write!(f, "{path} of {}", self.name.repo),
            Want::Head(kinds) => write!(f, "{} of {}", head_files(kinds), self.name.repo),
            _ => self.name.fmt(f),
        }
    }
}

/// What files of draft heads are called.
fn head_files(kinds: &[HeadKind]) -> String {
    let names: Vec<String> = kinds.iter().map(|kind| format!("{}*.gguf", kind.prefix())).collect();
    format!("file {}", names.join(" or "))
}

impl Request {
    /// The files that are meant, in order.
    fn choose<'a>(&self, paths: &[&'a str]) -> Result<Vec<&'a str>> {
        let quant = self.name.quant.as_deref();
        let model = || best_model(paths, quant);
        let head = |kind| best_head(paths, kind, model().unwrap_or(""), quant);
        let first = match &self.want {
            Want::Model => model(),
            Want::File(file) => paths.iter().copied().find(|path| *path == file),
            Want::Drafter => HeadKind::ALL.into_iter().find_map(head).or_else(model),
            Want::Head(kinds) => kinds.iter().copied().find_map(head),
        };
        let repo = self.name.repo.to_string();
        let Some(first) = first else {
            let wanted = match (&self.want, quant) {
                (Want::File(file), _) => format!("file {file}"),
                (Want::Head(kinds), _) => head_files(kinds),
                (_, Some(quant)) => format!("model with {quant} in its name"),
                (_, None) => "GGUF model".to_owned(),
            };
            let available = paths.iter().map(|path| (*path).to_owned()).collect();
            return Err(Error::NoModel { repo, wanted, available });
        };
        let (found, count) = parts(paths, first);
        match found.len() == count {
            true => Ok(found),
            false => {
                let file = first.to_owned();
                Err(Error::PartMissing { repo, file, found: found.len(), count })
            }
        }
    }
}

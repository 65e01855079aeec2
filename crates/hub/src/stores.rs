//! Models that are on this machine already: the hub's cache, Ollama's store, LM Studio's folder.
//!
//! Nothing is ever written to the stores of other programs.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cache::{Cache, names, walk};
use crate::file_names::{FileName, head_kind, is_model, parts};
use crate::listing::is_hex;
use crate::{ModelName, Settings};

/// The layer of an Ollama model that is its GGUF file.
const OLLAMA_MODEL: &str = "application/vnd.ollama.image.model";

/// Whose models Ollama calls by a name without a host, and without a user.
const OLLAMA_HOST: &str = "registry.ollama.ai";
const OLLAMA_USER: &str = "library";

/// Folders inside folders that are looked into.
const DEPTH_MAX: usize = 4;

/// Who keeps a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Store {
    /// The hub's cache, which this crate, llama.cpp and `huggingface_hub` share.
    Hub,
    /// Ollama.
    Ollama,
    /// LM Studio.
    LmStudio,
    /// A folder of the user's.
    Folder,
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LocalModel {
    /// Who keeps it.
    pub store: Store,
    /// What it is called there; for the hub's cache, what `-hf` takes.
    pub name: String,
    /// The file, or the first part of it.
    pub location: PathBuf,
    /// Bytes of all parts.
    pub size: u64,
    /// Whether it is a draft head, which answers nothing on its own.
    pub is_head: bool,
}

impl LocalModel {
    /// All models on this machine, by store and name.
    pub fn all(settings: &Settings) -> Vec<Self> {
        let mut models = hub_models(&Cache::new(&settings.cache));
        models.extend(settings.ollama.iter().flat_map(|folder| ollama_models(folder)));
        models.extend(settings.lm_studio.iter().flat_map(|folder| lm_studio_models(folder)));
        models
            .sort_by(|a, b| (a.store, &a.name, &a.location).cmp(&(b.store, &b.name, &b.location)));
        models
    }
}

impl LocalModel {
    /// The models in the folder of a file, that file too.
    pub fn beside(file: &Path) -> Vec<Self> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let files = names(listed);
        let paths: Vec<&str> = files.iter().map(|name| &**name).collect();
        let first = |path: &&&str| FileName::read(path).is_some_and(|about| about.part == 1);
        let model = |path: &&str| {
            let (of_model, count) = parts(&paths, path);
            let is_head = head_kind(path).is_some();
            if !(is_head || is_model(path)) || of_model.len() < count {
                return None;
            }
            let size =
                |part: &&str| std::fs::metadata(folder.join(part)).map_or(0, |about| about.len());
            Some(Self {
                store: Store::Folder,
                name: (*path).to_owned(),
                location: folder.join(path),
                size: of_model.iter().map(size).sum(),
                is_head,
            })
        };
        paths.iter().filter(first).filter_map(model).collect()
    }
}

fn hub_models(cache: &Cache) -> Vec<LocalModel> {
    let mut models = Vec::new();
    for repo in cache.repos() {
        let files = cache.files(&repo);
        let paths: Vec<&str> = files.iter().map(|file| &*file.path).collect();
        for file in &files {
            let Some(about) = FileName::read(&file.path).filter(|about| about.part == 1) else {
                continue;
            };
            let is_head = head_kind(&file.path).is_some();
            let (of_model, count) = parts(&paths, &file.path);
            if !(is_head || is_model(&file.path)) || of_model.len() < count {
                continue;
            }
            let is_part = |path: &str| of_model.contains(&path);
            let parts = files.iter().filter(|file| is_part(&file.path));
            let quant = Some(about.quant).filter(|quant| !quant.is_empty());
            models.push(LocalModel {
                store: Store::Hub,
                name: ModelName { repo: repo.clone(), quant }.to_string(),
                location: file.location.clone(),
                size: parts.map(|file| file.size).sum(),
                is_head,
            });
        }
    }
    models
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

fn ollama_models(folder: &Path) -> Vec<LocalModel> {
    let root = folder.join("manifests");
    let mut manifests = Vec::new();
    walk(&root, DEPTH_MAX, &mut manifests);
    let read = |path: &PathBuf| -> Option<LocalModel> {
        let place: Vec<&str> = path
            .strip_prefix(&root)
            .ok()?
            .iter()
            .map(|name| name.to_str())
            .collect::<Option<_>>()?;
        let [host, user, model, tag] = place[..] else { return None };
        let name = match (host, user) {
            (OLLAMA_HOST, OLLAMA_USER) => format!("{model}:{tag}"),
            (OLLAMA_HOST, user) => format!("{user}/{model}:{tag}"),
            (host, user) => format!("{host}/{user}/{model}:{tag}"),
        };
        let manifest: Manifest = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        let layer = manifest.layers.into_iter().find(|layer| layer.media_type == OLLAMA_MODEL)?;
        let hex = layer.digest.strip_prefix("sha256:").filter(|hex| is_hex(hex, 64))?;
        let location = folder.join("blobs").join(format!("sha256-{hex}"));
        let size = std::fs::metadata(&location).ok()?.len();
        Some(LocalModel { store: Store::Ollama, name, location, size, is_head: false })
    };
    manifests.iter().filter_map(read).collect()
}

fn lm_studio_models(root: &Path) -> Vec<LocalModel> {
    let mut models = Vec::new();
    for user in names(root) {
        for repo in names(&root.join(&user)) {
            let folder = root.join(&user).join(&repo);
            let mut found = Vec::new();
            walk(&folder, DEPTH_MAX, &mut found);
            let mut paths: Vec<&str> = found.iter().filter_map(|path| path.to_str()).collect();
            paths.sort_unstable();
            for path in &paths {
                let is_first = FileName::read(path).is_some_and(|about| about.part == 1);
                let is_head = head_kind(path).is_some();
                let (of_model, count) = parts(&paths, path);
                if !is_first || !(is_model(path) || is_head) || of_model.len() < count {
                    continue;
                }
                let size = |path: &&str| std::fs::metadata(path).map_or(0, |about| about.len());
                let file = path.rsplit(['/', '\\']).next().unwrap_or(path);
                models.push(LocalModel {
                    store: Store::LmStudio,
                    name: format!("{user}/{repo}/{file}"),
                    location: PathBuf::from(path),
                    size: of_model.iter().map(size).sum(),
                    is_head,
                });
            }
        }
    }
    models
}

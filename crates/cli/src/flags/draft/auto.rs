//! `-md auto`: a draft model for a target, found by its vocabulary.
//!
//! A head in the target's own file, then one in its repository, then the smallest model on this
//! machine with the target's vocabulary, then a known one of the hub. Whether its drafts pay is for
//! the controller to find out, and for `forerun tune` to say beforehand.

use std::path::{Path, PathBuf};

use forerun_hub::{HeadKind, LocalModel, ModelName, Request, Want};
use forerun_lab::bytes;
use forerun_llama::{LlamaHead, Model, TokenNames};

use super::DraftFlags;
use crate::download::say;
use crate::flags::ConfigError;
use crate::flags::hub::HubFlags;
use crate::flags::spec_type::SpecType;

/// What is said instead of a file.
const AUTO: &str = "auto";

/// A target has at least this many times the bytes of its draft model: a larger one hardly pays.
const TIMES_MIN: u64 = 2;

/// A family of models, and the smallest of it on the hub.
struct Family {
    /// Its vocabulary: see [`TokenNames::sha256`].
    vocab: &'static str,
    /// The draft model.
    drafter: &'static str,
    /// About as many bytes as that has.
    bytes: u64,
}

/// Families whose vocabulary was read from a file of theirs; a test reads it again.
const FAMILIES: &[Family] = &[
    Family {
        // Read from Qwen2.5-Coder-1.5B; the pair is llama.cpp's own (--fim-qwen-7b-spec).
        vocab: "7bc99057b03e2db2528e60f5bd62dc595e30878d254d7a5bb9eaeb410034140d",
        drafter: "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF",
        bytes: 531 << 20,
    },
    Family {
        vocab: "e3f79317b457a91937391f6e0ee99d97ba2a3adae02bc26db8f59710ddb27ffe",
        drafter: "bartowski/SmolLM2-135M-Instruct-GGUF",
        bytes: 105 << 20,
    },
    Family {
        vocab: "1d661caba46c15ce7e0478e6ada2990a19a0f3f3aa23a6ab5a4371df9ad31e72",
        drafter: "unsloth/gemma-3-270m-it-GGUF",
        bytes: 253 << 20,
    },
];

/// A draft model that was found.
pub(crate) struct Candidate {
    /// Its file.
    pub(crate) path: PathBuf,
    /// What it is called where it was found.
    name: String,
    size: u64,
}

/// Whether a file's name asks for one to be found.
pub(crate) fn is_auto(path: &Path) -> bool {
    path == Path::new(AUTO)
}

impl DraftFlags {
    /// The same with a draft model for the target instead of `auto`, and what was found said in a
    /// line. If there is none, the text itself is drafted from.
    pub(super) fn found(mut self, hub: &HubFlags, target: &Path) -> Result<Self, ConfigError> {
        let auto = self.spec_draft_model.as_deref().is_some_and(is_auto);
        // A file of that name in a repository is no word of ours, nor is a list without a model.
        let types = self.spec_type.as_deref();
        let is_for_models = types.is_none_or(|types| types.iter().any(|kind| kind.is_model()));
        if !auto || self.spec_draft_hf.is_some() || !is_for_models {
            return Ok(self);
        }
        self.spec_draft_model = None;
        // Heads that are wanted by name are looked for below.
        if types.is_some_and(|types| !types.contains(&SpecType::DraftModel)) {
            return Ok(self);
        }
        // What is wrong with the target is said when it is loaded.
        let Ok(header) = Model::check(target) else { return Ok(self) };
        let shown = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !header.can_be_drafted_for() {
            say(&format!("no drafts: {shown} cannot forget tokens that are rejected"));
            return Ok(self);
        }
        if LlamaHead::is_in(&header) && self.spec_type.is_none() {
            say(&format!("drafting with the head in {shown}"));
            return Ok(self);
        }
        match candidates(target, hub)?.into_iter().next() {
            Some(Candidate { path, name, size }) => {
                say(&format!("drafting with {name} ({}), found for {shown}", bytes(size)));
                self.spec_draft_model = Some(path);
            }
            None => {
                let free = self.spec_type.is_none() && self.prediction.is_none();
                if free {
                    self.spec_type = Some(vec![SpecType::Ngram]);
                }
                let instead = if free { ": drafting from the text alone" } else { "" };
                say(&format!(
                    "no draft model was found that has the vocabulary of {shown} and at most half \
                     its size{instead}"
                ));
            }
        }
        Ok(self)
    }
}

/// The draft models for a target, the likeliest to pay first. If the hub cannot be asked, those
/// that are here.
pub(crate) fn candidates(target: &Path, hub: &HubFlags) -> Result<Vec<Candidate>, ConfigError> {
    let Ok(names) = TokenNames::read(target) else { return Ok(Vec::new()) };
    let settings = hub.access.settings()?;
    let mut here = LocalModel::all(&settings);
    here.extend(LocalModel::beside(target));
    let target_size = here.iter().find(|model| is_same(&model.location, target));
    let target_size = target_size.map_or_else(|| size(target), |model| model.size);
    let fits = |path: &Path| TokenNames::read(path).is_ok_and(|own| own.agrees_with(&names));
    let mut found: Vec<Candidate> = Vec::new();
    if let Some(name) = hub.name() {
        let want = Want::Head(HeadKind::ALL.to_vec());
        let head = hub.access.fetch_if_any(Request { name: name.clone(), want });
        let head = head.unwrap_or_else(|error| {
            say(&format!("no draft head was looked for: {error}"));
            None
        });
        found.extend(head.filter(|path| fits(path)).map(Candidate::of_file));
    }
    here.sort_by_key(|model| model.size);
    here.dedup_by(|a, b| is_same(&a.location, &b.location));
    for model in here {
        let small = TIMES_MIN * model.size <= target_size && !model.is_head;
        if small && is_model(&model.location) && fits(&model.location) {
            let LocalModel { location, name, size, .. } = model;
            found.push(Candidate { path: location, name, size });
        }
    }
    let known = FAMILIES.iter().find(|family| {
        found.is_empty()
            && hub.name().is_some_and(|name| name.repo.as_str() != family.drafter)
            && TIMES_MIN * family.bytes <= target_size
            && names.sha256() == family.vocab
    });
    if let Some(family) = known {
        let name: ModelName = family.drafter.parse()?;
        match hub.access.fetch(Request { name, want: Want::Model }) {
            Ok(path) if fits(&path) => {
                let size = size(&path);
                found.push(Candidate { path, name: family.drafter.to_owned(), size });
            }
            Ok(_) => say(&format!("{} has another vocabulary: it is not used", family.drafter)),
            Err(error) => say(&format!("{} is not used: {error}", family.drafter)),
        }
    }
    Ok(found)
}

impl Candidate {
    fn of_file(path: PathBuf) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { size: size(&path), name, path }
    }
}

/// Whether a file is a model that can draft, and no head of another.
fn is_model(path: &Path) -> bool {
    let heads = ["eagle3", "dflash", "gemma4-assistant"];
    Model::check(path).is_ok_and(|header| {
        !header.head_only && !heads.contains(&&*header.architecture) && header.can_be_drafted_for()
    })
}

fn is_same(one: &Path, two: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(two)
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |about| about.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vocabularies_of_families_are_those_of_their_models() {
        let folder = std::env::var_os("FORERUN_MODELS").map_or_else(
            || std::env::home_dir().unwrap().join(".cache/forerun/models"),
            PathBuf::from,
        );
        let files = [
            ("Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf", "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"),
            ("SmolLM2-135M-Instruct.Q4_1.gguf", "bartowski/SmolLM2-135M-Instruct-GGUF"),
            ("gemma-3-270m.Q4_K_M.gguf", "unsloth/gemma-3-270m-it-GGUF"),
        ];
        for (file, drafter) in files {
            let family = FAMILIES.iter().find(|family| family.drafter == drafter).unwrap();
            let _: ModelName = drafter.parse().unwrap();
            // `just models` brings all but the first; `just models --all` that too.
            if let Ok(names) = TokenNames::read(&folder.join(file)) {
                assert_eq!(names.sha256(), family.vocab, "{file}");
            }
        }
        assert_eq!(FAMILIES.len(), files.len(), "each is read from a file");
    }

    #[test]
    fn only_the_word_itself_asks_for_a_search() {
        assert!(is_auto(Path::new("auto")));
        assert!(!is_auto(Path::new("./auto")) && !is_auto(Path::new("auto.gguf")));
    }
}

//! What a repository holds, as the hub lists it, checked before anything is done with it.

use std::fmt;

use serde::Deserialize;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::{Error, RepoId, Result};

/// Longest path of a file, and of one of its folders.
const PATH_LEN_MAX: usize = 1024;
const NAME_LEN_MAX: usize = 255;

/// How a file is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256 of the content: all files that the hub stores outside git, which models are.
    Sha256,
    /// SHA-1 as git computes it: small files.
    GitSha1,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "SHA-256",
            Self::GitSha1 => "git SHA-1",
        })
    }
}

/// What a file's content must come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checksum {
    pub(crate) algorithm: Algorithm,
    /// In lower case; also the name of the file in the cache.
    pub(crate) hex: String,
}

impl Checksum {
    fn new(algorithm: Algorithm, hex: &str) -> Option<Self> {
        let len = match algorithm {
            Algorithm::Sha256 => 64,
            Algorithm::GitSha1 => 40,
        };
        let hex = hex.to_ascii_lowercase();
        is_hex(&hex, len).then_some(Self { algorithm, hex })
    }

    /// Computes it over a file of that size.
    pub(crate) fn hasher(&self, size: u64) -> Hasher {
        match self.algorithm {
            Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            Algorithm::GitSha1 => {
                Hasher::GitSha1(Sha1::new().chain_update(format!("blob {size}\0")))
            }
        }
    }
}

/// A checksum being computed.
#[derive(Clone)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitSha1(Sha1),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::GitSha1(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn hex(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(hasher) => hex(&hasher.finalize()),
            Self::GitSha1(hasher) => hex(&hasher.finalize()),
        }
    }
}

/// A GGUF file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepoFile {
    /// Its path there, which leads nowhere else.
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) checksum: Checksum,
}

/// The branches of a repository, as the hub answers.
#[derive(Debug, Deserialize)]
pub(crate) struct Refs {
    #[serde(default)]
    branches: Vec<Branch>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Branch {
    name: String,
    target_commit: String,
}

impl Refs {
    /// The main branch, or the first one, and its newest commit.
    pub(crate) fn head(self, repo: &RepoId) -> Result<(String, String)> {
        let mut branches = self.branches;
        let main = branches.iter().position(|branch| branch.name == "main").unwrap_or(0);
        if branches.is_empty() {
            return Err(Error::NoModel {
                repo: repo.to_string(),
                wanted: "branch".to_owned(),
                available: Vec::new(),
            });
        }
        let Branch { name, target_commit } = branches.swap_remove(main);
        let hostile = |what| Error::Hostile { repo: repo.to_string(), what };
        if !is_hex(&target_commit, 40) {
            return Err(hostile(format!("the commit {target_commit:?}")));
        }
        if !is_safe_path(&name) {
            return Err(hostile(format!("the branch {name:?}")));
        }
        Ok((name, target_commit))
    }
}

/// An entry of a repository, as the hub answers.
#[derive(Debug, Deserialize)]
pub(crate) struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Entry {
    /// The GGUF file it is, if it is one.
    ///
    /// # Errors
    /// If its path would lead elsewhere, or it cannot be checked.
    pub(crate) fn file(self, repo: &RepoId) -> Result<Option<RepoFile>> {
        if self.kind != "file" || !self.path.ends_with(".gguf") {
            return Ok(None);
        }
        let hostile = |what| Error::Hostile { repo: repo.to_string(), what };
        if !is_safe_path(&self.path) {
            return Err(hostile(format!("the file {:?}", self.path)));
        }
        let (size, checksum) = match &self.lfs {
            Some(lfs) => (lfs.size, Checksum::new(Algorithm::Sha256, &lfs.oid)),
            None => (self.size, Checksum::new(Algorithm::GitSha1, &self.oid)),
        };
        let checksum = checksum
            .ok_or_else(|| hostile(format!("{:?} with a checksum that is none", self.path)))?;
        Ok(Some(RepoFile { path: self.path, size, checksum }))
    }
}

pub(crate) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a path stays inside the folder it is joined to, on every system.
pub(crate) fn is_safe_path(path: &str) -> bool {
    let is_safe_name = |name: &str| {
        let odd = |letter: char| letter.is_control() || matches!(letter, '\\' | ':');
        !name.is_empty()
            && name != "."
            && name != ".."
            && name.len() <= NAME_LEN_MAX
            && !name.contains(odd)
    };
    path.len() <= PATH_LEN_MAX && path.split('/').all(is_safe_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> RepoId {
        "acme/tiny".parse().unwrap()
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_refused() {
        for path in [
            "",
            "/etc/x.gguf",
            "../x.gguf",
            "a/../../x.gguf",
            "a//x.gguf",
            "./x.gguf",
            "a/./x.gguf",
            "..\\x.gguf",
            "C:\\x.gguf",
            "C:x.gguf",
            "a\0.gguf",
            "a\n.gguf",
            "a\u{1b}[2J.gguf",
            "x/",
        ] {
            assert!(!is_safe_path(path), "{path:?}");
        }
        assert!(!is_safe_path(&"x".repeat(256)));
        assert!(!is_safe_path(&"x/".repeat(600)));
        for path in ["x.gguf", "a/b/x..y.gguf", "..x.gguf", "ä b.gguf", "a%2e%2e/x.gguf"] {
            assert!(is_safe_path(path), "{path:?}");
        }
    }

    #[test]
    fn a_file_is_checked_by_the_hash_of_its_content() {
        let sha256 = "A".repeat(64);
        let entry = format!(
            r#"{{"type":"file","path":"x.gguf","size":130,"oid":"{}","lfs":{{"oid":"{sha256}","size":9}}}}"#,
            "b".repeat(40)
        );
        let entry: Entry = serde_json::from_str(&entry).unwrap();
        let file = entry.file(&repo()).unwrap().unwrap();
        assert_eq!((file.size, file.checksum.algorithm), (9, Algorithm::Sha256));
        assert_eq!(file.checksum.hex, "a".repeat(64));
        let mut hasher = file.checksum.hasher(3);
        hasher.update(b"ab");
        hasher.update(b"c");
        assert!(hasher.hex().starts_with("ba7816bf8f01cfea"));
    }

    #[test]
    fn a_small_file_is_checked_as_git_does() {
        // printf hello | git hash-object --stdin
        let hex = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        let checksum = Checksum::new(Algorithm::GitSha1, hex).unwrap();
        let mut hasher = checksum.hasher(5);
        hasher.update(b"hello");
        assert_eq!(hasher.hex(), hex);
    }

    #[test]
    fn what_cannot_be_checked_is_refused() {
        for lfs in [r#"{"oid":"../../x","size":1}"#, r#"{"oid":"","size":1}"#] {
            let entry = format!(r#"{{"type":"file","path":"x.gguf","oid":"","lfs":{lfs}}}"#);
            let entry: Entry = serde_json::from_str(&entry).unwrap();
            assert!(matches!(entry.file(&repo()), Err(Error::Hostile { .. })), "{lfs}");
        }
    }

    #[test]
    fn the_main_branch_is_taken_and_its_commit_is_checked() {
        let commit = "0".repeat(40);
        let refs = |branches: &str| -> Result<(String, String)> {
            let text = format!(r#"{{"branches":[{branches}]}}"#);
            serde_json::from_str::<Refs>(&text).unwrap().head(&repo())
        };
        let branch =
            |name: &str, commit: &str| format!(r#"{{"name":"{name}","targetCommit":"{commit}"}}"#);
        let two = [branch("dev", &"1".repeat(40)), branch("main", &commit)].join(",");
        assert_eq!(refs(&two).unwrap(), ("main".to_owned(), commit.clone()));
        assert_eq!(refs(&branch("dev", &commit)).unwrap().0, "dev");
        assert!(matches!(refs(&branch("main", "../x")), Err(Error::Hostile { .. })));
        assert!(matches!(refs(&branch("../../x", &commit)), Err(Error::Hostile { .. })));
        assert!(refs("").is_err());
    }
}

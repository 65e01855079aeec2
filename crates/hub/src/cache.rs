//! The hub's cache on disk, as llama.cpp and `huggingface_hub` lay it out.
//!
//! ```text
//! models--user--repo/blobs/<checksum>                 content, named by what it must hash to
//! models--user--repo/snapshots/<commit>/<path>        links to it, by the names of a commit
//! models--user--repo/refs/main                        the commit that a branch had when last asked
//! .locks/models--user--repo/<checksum>.lock           held while a file is downloaded
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::download::free_space;
use crate::file_names::FileName;
use crate::listing::{Checksum, is_hex};
use crate::{Error, ModelName, RepoId, Result};

/// Folders inside folders that are looked into.
const DEPTH_MAX: usize = 8;

/// The hub's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

/// A file in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedFile {
    /// Its path in the repository.
    pub path: String,
    /// Where it is.
    pub location: PathBuf,
    /// Its bytes.
    pub size: u64,
}

/// What was taken out of the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Paths in the repository.
    pub files: Vec<String>,
    /// Bytes that are free again.
    pub bytes: u64,
    /// Whether other files of the repository are still there.
    pub rest: bool,
}

impl Cache {
    /// The cache in a folder, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Looks whether files can be written here, without leaving one.
    ///
    /// # Errors
    /// If they cannot.
    pub fn check_writable(&self) -> Result<()> {
        let Some(folder) = self.root.ancestors().find(|folder| folder.exists()) else {
            return Ok(());
        };
        let probe = folder.join(format!(".forerun-{}.tmp", std::process::id()));
        fs::write(&probe, "").map_err(Error::io("cannot write to the cache", &self.root))?;
        fs::remove_file(&probe).map_err(Error::io("cannot remove", &probe))
    }

    /// Bytes that are free on its disk, if the system says so.
    pub fn free_bytes(&self) -> Option<u64> {
        free_space(self.root.ancestors().find(|folder| folder.exists())?)
    }

    /// How many downloads broke off, and the bytes they take.
    pub fn partial(&self) -> (usize, u64) {
        let (mut count, mut size) = (0, 0);
        for repo in self.repos() {
            let blobs = self.repo(&repo).join("blobs");
            for name in names(&blobs).iter().filter(|name| name.ends_with(".incomplete")) {
                count += 1;
                size += fs::metadata(blobs.join(name)).map_or(0, |about| about.len());
            }
        }
        (count, size)
    }

    fn repo(&self, repo: &RepoId) -> PathBuf {
        self.root.join(repo.folder())
    }

    pub(crate) fn blob(&self, repo: &RepoId, checksum: &Checksum) -> PathBuf {
        self.repo(repo).join("blobs").join(&checksum.hex)
    }

    pub(crate) fn lock(&self, repo: &RepoId, checksum: &Checksum) -> PathBuf {
        self.root.join(".locks").join(repo.folder()).join(format!("{}.lock", checksum.hex))
    }

    /// Where a file of a commit is to be found; the path was checked when it was listed.
    pub(crate) fn pointer(&self, repo: &RepoId, commit: &str, path: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit).join(path)
    }

    /// Remembers the commit of a branch.
    pub(crate) fn write_ref(&self, repo: &RepoId, branch: &str, commit: &str) -> Result<()> {
        let path = self.repo(repo).join("refs").join(branch);
        // A cache that is complete need not be writable.
        if fs::read_to_string(&path).is_ok_and(|known| known.trim() == commit) {
            return Ok(());
        }
        let folder = path.parent().expect("a ref is in a folder");
        let temporary = folder.join(format!(".{}.tmp", std::process::id()));
        fs::create_dir_all(folder).map_err(Error::io("cannot make the folder", folder))?;
        fs::write(&temporary, commit).map_err(Error::io("cannot write", &temporary))?;
        fs::rename(&temporary, &path).map_err(Error::io("cannot write", &path))
    }

    /// Makes a file's content known by its name. Where links cannot be made, the content goes there.
    pub(crate) fn point(&self, pointer: &Path, blob: &Path) -> Result<()> {
        let folder = pointer.parent().expect("a pointer is in a folder");
        fs::create_dir_all(folder).map_err(Error::io("cannot make the folder", folder))?;
        let depth =
            folder.strip_prefix(blob.parent().and_then(Path::parent).expect("a blob's repo"));
        let depth = depth.expect("pointer and blob are of one repository").components().count();
        let name = blob.file_name().expect("a blob has a name");
        let target: PathBuf = std::iter::repeat_n("..", depth).collect();
        let target = target.join("blobs").join(name);
        if pointer.symlink_metadata().is_ok() {
            fs::remove_file(pointer).map_err(Error::io("cannot replace", pointer))?;
        }
        match symlink(&target, pointer) {
            Ok(()) => Ok(()),
            // Another process may have made the same link.
            Err(_) if pointer.exists() => Ok(()),
            Err(_) => fs::rename(blob, pointer).map_err(Error::io("cannot rename", blob)),
        }
    }

    /// The repositories of models that have a folder here.
    pub fn repos(&self) -> Vec<RepoId> {
        let mut repos: Vec<RepoId> =
            names(&self.root).iter().filter_map(|folder| RepoId::of_folder(folder)).collect();
        repos.sort();
        repos
    }

    /// The GGUF files of a repository, sorted by path: those of the branch that was last asked for,
    /// and those of other commits that it does not have.
    pub fn files(&self, repo: &RepoId) -> Vec<CachedFile> {
        let mut files = BTreeMap::new();
        for (path, location) in self.pointers(repo) {
            // A link to content that is gone, or has not come yet, is no file.
            let Ok(about) = fs::metadata(&location) else { continue };
            if about.is_file() && path.ends_with(".gguf") {
                let file = CachedFile { path: path.clone(), location, size: about.len() };
                files.entry(path).or_insert(file);
            }
        }
        files.into_values().collect()
    }

    /// All files of all commits, those of the branch that was last asked for first.
    fn pointers(&self, repo: &RepoId) -> Vec<(String, PathBuf)> {
        let folder = self.repo(repo);
        let head = |branch: &str| fs::read_to_string(folder.join("refs").join(branch)).ok();
        let main = head("main").or_else(|| {
            let branches = names(&folder.join("refs"));
            branches.iter().find_map(|branch| head(branch))
        });
        let main = main.map(|commit| commit.trim().to_owned());
        let mut commits = names(&folder.join("snapshots"));
        commits.retain(|commit| is_hex(commit, 40));
        commits.sort_by_key(|commit| Some(commit) != main.as_ref());
        let mut pointers = Vec::new();
        for commit in commits {
            let root = folder.join("snapshots").join(commit);
            let mut found = Vec::new();
            walk(&root, DEPTH_MAX, &mut found);
            found.sort();
            for location in found {
                let path = location.strip_prefix(&root).expect("it was found there");
                if let Some(path) = path.to_str() {
                    pointers.push((path.replace('\\', "/"), location));
                }
            }
        }
        pointers
    }

    /// Removes the GGUF files of a model, or all of a repository, and their content unless another
    /// name needs it. Nothing but GGUF files is touched.
    ///
    /// # Errors
    /// If there are none, or a file cannot be removed.
    pub fn remove(&self, name: &ModelName) -> Result<Removed> {
        let quant = name.quant.as_ref().map(|quant| quant.to_ascii_uppercase());
        let is_meant = |path: &str| match (FileName::read(path), &quant) {
            (Some(file), Some(quant)) => file.quant == *quant,
            (found, _) => found.is_some(),
        };
        let (meant, others): (Vec<_>, Vec<_>) =
            self.pointers(&name.repo).into_iter().partition(|(path, _)| is_meant(path));
        let blobs = self.repo(&name.repo).join("blobs");
        let content = |pointer: &PathBuf| -> Option<PathBuf> {
            // Only what is in this cache: a link may lead anywhere.
            let target = fs::read_link(pointer).ok()?;
            Some(blobs.join(target.file_name()?))
        };
        let needed: Vec<PathBuf> = others.iter().filter_map(|(_, it)| content(it)).collect();
        let mut removed = Removed { rest: !others.is_empty(), ..Removed::default() };
        for (path, pointer) in meant {
            let blob = content(&pointer);
            let taken = blob.as_ref().is_none_or(|blob| !needed.contains(blob));
            let size = fs::metadata(&pointer).map_or(0, |about| about.len());
            fs::remove_file(&pointer).map_err(Error::io("cannot remove", &pointer))?;
            if let Some(blob) = blob.filter(|blob| taken && blob.exists()) {
                fs::remove_file(&blob).map_err(Error::io("cannot remove", &blob))?;
            }
            removed.bytes += if taken { size } else { 0 };
            if !removed.files.contains(&path) {
                removed.files.push(path);
            }
        }
        if removed.files.is_empty() {
            return Err(Error::NotCached { name: name.to_string(), cache: self.root.clone() });
        }
        if quant.is_none() && !removed.rest {
            self.clear(&name.repo, &mut removed)?;
        }
        Ok(removed)
    }

    /// Removes what is left of a repository without files: partial downloads, refs and folders.
    fn clear(&self, repo: &RepoId, removed: &mut Removed) -> Result<()> {
        let folder = self.repo(repo);
        for name in names(&folder.join("blobs")) {
            let size = fs::metadata(folder.join("blobs").join(name)).map_or(0, |it| it.len());
            removed.bytes += size;
        }
        fs::remove_dir_all(&folder).map_err(Error::io("cannot remove", &folder))?;
        // Locks are files without content; one that is held keeps its holder safe without a name.
        let _ = fs::remove_dir_all(self.root.join(".locks").join(repo.folder()));
        Ok(())
    }
}

/// The names in a folder; none if it cannot be read.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Everything in a folder that is no folder. Links to folders are not followed.
pub(crate) fn walk(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(std::result::Result::ok) {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => walk(&entry.path(), depth - 1, found),
            Ok(kind) if !kind.is_dir() => found.push(entry.path()),
            _ => {}
        }
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

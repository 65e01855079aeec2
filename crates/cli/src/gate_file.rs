//! What gates learned, in a file.

use std::path::Path;

use anyhow::Context;
use forerun_decode::Gates;

/// A file of gates is far smaller.
const SIZE_MAX: u64 = 16 << 20;

/// Takes over what a file holds; nothing if there is none yet.
///
/// # Errors
/// Where the file holds anything else than gates.
pub(crate) fn read(path: &Path, gates: &mut Gates) -> anyhow::Result<()> {
    let about = || format!("gate file {}", path.display());
    let size = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.with_context(about)?.len(),
    };
    if size > SIZE_MAX {
        let what = format!("{size} bytes; expected at most {SIZE_MAX}: is it another file?");
        return Err(anyhow::anyhow!(what)).with_context(about);
    }
    let text = std::fs::read_to_string(path).with_context(about)?;
    let saved = serde_json::from_str(&text)
        .context("it holds no gates: delete it to begin anew, or name another file")
        .with_context(about)?;
    gates.load(&saved).with_context(about)
}

/// Writes what gates know. A reader sees the old file or the new one, never half of either.
///
/// # Errors
/// Where it cannot be written.
pub(crate) fn write(path: &Path, gates: &Gates) -> anyhow::Result<()> {
    let about = || format!("cannot write the gate file {}", path.display());
    let text = serde_json::to_string_pretty(&gates.save()).with_context(about)?;
    let mut name = path.file_name().with_context(about)?.to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // It may not even be there.
        let _ = std::fs::remove_file(&beside);
    }
    written.with_context(about)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use forerun_decode::DrafterId;

    use super::*;

    fn gates() -> Gates {
        Gates::new([(DrafterId(0), "small for large".to_owned())])
    }

    /// A folder of this test's own, gone at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("forerun-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_that_is_not_there_yet_is_made() {
        let folder = Folder::new("gate-made");
        let path = folder.0.join("gate.json");
        read(&path, &mut gates()).unwrap();
        assert!(!path.exists(), "reading makes none");
        write(&path, &gates()).unwrap();
        read(&path, &mut gates()).unwrap();
        let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_broken_file_is_refused_and_stays_as_it_was() {
        let folder = Folder::new("gate-broken");
        let path = folder.0.join("gate.json");
        for text in ["", "{", "[1, 2]", "{\"format\": 7, \"gates\": []}", "{\"gates\": []}"] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", read(&path, &mut gates()).unwrap_err());
            assert!(error.contains("gate.json") && error.contains("to begin anew"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_said() {
        let error = write(Path::new("/nowhere/gate.json"), &gates()).unwrap_err();
        assert!(error.to_string().contains("/nowhere/gate.json"), "{error}");
    }
}

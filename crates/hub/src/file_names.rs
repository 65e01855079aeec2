//! Which GGUF file of a repository is meant, by the names that such files have.
//!
//! The choices are llama.cpp's (`common/download.cpp`), so that the same words bring the same file.

/// Quantisations that are taken if none is named, the first that there is.
const DEFAULT_QUANTS: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// What is in the name of a GGUF file that is no model on its own.
const NO_MODELS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// Most parts of a model.
const PARTS_MAX: usize = 1024;

/// A kind of draft head that repositories ship in a file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeadKind {
    /// Blocks for multi-token prediction.
    Mtp,
    /// DSpark.
    Dspark,
    /// DFlash.
    Dflash,
    /// EAGLE-3.
    Eagle3,
}

impl HeadKind {
    /// All, the one that llama.cpp prefers first.
    pub const ALL: [Self; 4] = [Self::Mtp, Self::Dspark, Self::Dflash, Self::Eagle3];

    /// What the names of its files have in them.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Mtp => "mtp-",
            Self::Dspark => "dspark-",
            Self::Dflash => "dflash-",
            Self::Eagle3 => "eagle3-",
        }
    }
}

/// What a GGUF file's name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileName<'a> {
    /// The path less the number of the part.
    pub(crate) stem: &'a str,
    /// The quantisation in upper case; empty if the name has none.
    pub(crate) quant: String,
    /// Which part it is, from one on.
    pub(crate) part: usize,
    /// How many parts there are.
    pub(crate) parts: usize,
}

impl<'a> FileName<'a> {
    /// Reads a path of a GGUF file.
    pub(crate) fn read(path: &'a str) -> Option<Self> {
        let whole = path.strip_suffix(".gguf")?;
        let (stem, part, parts) = split(whole).unwrap_or((whole, 1, 1));
        let last = stem.rsplit(['-', '.']).next().unwrap_or_default();
        let is_quant = last.len() < stem.len()
            && !last.is_empty()
            && last.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let quant = if is_quant { last.to_ascii_uppercase() } else { String::new() };
        Some(Self { stem, quant, part, parts })
    }

    /// Bits of a number, as the quantisation's name has them.
    fn bits(&self) -> i64 {
        bits(&self.quant)
    }
}

/// `x-00002-of-00005` as `x`, 2, 5.
fn split(whole: &str) -> Option<(&str, usize, usize)> {
    let number = |digits: &str| {
        let is_number = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { digits.parse::<usize>().ok() } else { None }
    };
    let (rest, parts) = whole.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let (part, parts) = (number(part)?, number(parts)?);
    let possible = !stem.is_empty() && (1..=parts).contains(&part) && parts <= PARTS_MAX;
    possible.then_some((stem, part, parts))
}

fn bits(quant: &str) -> i64 {
    let digits = quant.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

/// Whether a path is one of a model, and not of something that goes with it.
pub(crate) fn is_model(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.ends_with(".gguf") && !NO_MODELS.iter().any(|mark| file.contains(mark))
}

/// Which kind of draft head a path is one of.
pub(crate) fn head_kind(path: &str) -> Option<HeadKind> {
    let file = path.rsplit('/').next().unwrap_or(path);
    let is = |kind: &HeadKind| file.contains(kind.prefix());
    HeadKind::ALL.into_iter().find(|kind| file.ends_with(".gguf") && is(kind))
}

/// The model that is meant: the first with the quantisation, or with a default one, or any.
pub(crate) fn best_model<'a>(paths: &[&'a str], quant: Option<&str>) -> Option<&'a str> {
    let first_with = |quant: Option<&str>| {
        paths.iter().copied().find(|path| {
            let is_first = FileName::read(path).is_some_and(|name| name.part == 1);
            is_first && is_model(path) && quant.is_none_or(|quant| has_quant(path, quant))
        })
    };
    match quant {
        Some(quant) => first_with(Some(quant)),
        None => DEFAULT_QUANTS
            .iter()
            .find_map(|quant| first_with(Some(quant)))
            .or_else(|| first_with(None)),
    }
}

/// Whether a path has the quantisation in it, followed by a dot or a dash.
fn has_quant(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_ascii_lowercase(), quant.to_ascii_lowercase());
    path.match_indices(&quant)
        .any(|(at, found)| matches!(path.as_bytes().get(at + found.len()), Some(b'.' | b'-')))
}

/// The draft head of a kind that fits a model best: deepest in the model's own folders, then of the
/// quantisation that was named, then with the nearest number of bits.
pub(crate) fn best_head<'a>(
    paths: &[&'a str],
    kind: HeadKind,
    model: &str,
    quant: Option<&str>,
) -> Option<&'a str> {
    let model_bits = match quant {
        Some(quant) => bits(quant),
        None => FileName::read(model).map_or(0, |name| name.bits()),
    };
    let folders = |path: &'a str| path.rsplit_once('/').map_or("", |(folders, _)| folders);
    let model_folder = model.rsplit_once('/').map_or("", |(folders, _)| folders);
    let mut best: Option<(&str, (usize, bool, i64))> = None;
    for path in paths.iter().copied().filter(|path| head_kind(path) == Some(kind)) {
        let folder = folders(path);
        let inside = folder.is_empty()
            || model_folder == folder
            || model_folder.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        if !inside {
            continue;
        }
        let depth = folder.split('/').filter(|name| !name.is_empty()).count();
        let exact = quant.is_some_and(|quant| {
            path.to_ascii_uppercase().contains(&format!("-{}.", quant.to_ascii_uppercase()))
        });
        let distance = (FileName::read(path).map_or(0, |name| name.bits()) - model_bits).abs();
        let fit = (depth, exact, -distance);
        if best.is_none_or(|(_, least)| fit > least) {
            best = Some((path, fit));
        }
    }
    best.map(|(path, _)| path)
}

/// All parts of a model in order, and how many there should be.
pub(crate) fn parts<'a>(paths: &[&'a str], first: &'a str) -> (Vec<&'a str>, usize) {
    let Some(name) = FileName::read(first).filter(|name| name.parts > 1) else {
        return (vec![first], 1);
    };
    let is_sibling = |path: &str| {
        FileName::read(path)
            .is_some_and(|other| (other.stem, other.parts) == (name.stem, name.parts))
    };
    let mut found: Vec<&str> = paths.iter().copied().filter(|path| is_sibling(path)).collect();
    found.sort_unstable();
    found.dedup();
    (found, name.parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_quantisation_and_part() {
        let name = FileName::read("a/tiny-1.5b-q4_k_m-00002-of-00003.gguf").unwrap();
        assert_eq!((name.stem, &*name.quant), ("a/tiny-1.5b-q4_k_m", "Q4_K_M"));
        assert_eq!((name.part, name.parts), (2, 3));
        let name = FileName::read("tiny.Q8_0.gguf").unwrap();
        assert_eq!((&*name.quant, name.part, name.parts), ("Q8_0", 1, 1));
        assert_eq!(FileName::read("tiny.gguf").unwrap().quant, "");
        assert_eq!(FileName::read("README.md"), None);
    }

    #[test]
    fn a_number_of_a_part_that_cannot_be_is_part_of_the_name() {
        for path in ["x-00004-of-00003.gguf", "x-00000-of-00002.gguf", "x-1-of-2.gguf"] {
            let name = FileName::read(path).unwrap();
            assert_eq!((name.part, name.parts), (1, 1), "{path}");
        }
    }

    #[test]
    fn the_usual_quantisation_is_taken_unless_another_is_named() {
        let paths = ["m-F16.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-Q2_K.gguf"];
        assert_eq!(best_model(&paths, None), Some("m-Q4_K_M.gguf"));
        assert_eq!(best_model(&paths, Some("q8_0")), Some("m-Q8_0.gguf"));
        assert_eq!(best_model(&paths, Some("Q2_K")), None);
        assert_eq!(best_model(&["m-F16.gguf", "m-Q8_0.gguf"], None), Some("m-Q8_0.gguf"));
        assert_eq!(best_model(&["mtp-m-F16.gguf", "m-F16.gguf"], None), Some("m-F16.gguf"));
        assert_eq!(best_model(&["README.md"], None), None);
    }

    #[test]
    fn a_quantisation_is_no_beginning_of_another() {
        let paths = ["m-Q4_K_M.gguf", "m-Q4_K.gguf", "m-IQ4_K.gguf"];
        assert_eq!(best_model(&paths, Some("Q4_K")), Some("m-Q4_K.gguf"));
        // In a folder of its own, as large models come.
        let paths = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"];
        assert_eq!(best_model(&paths, Some("Q8_0")), Some(paths[0]));
    }

    #[test]
    fn all_parts_are_found_and_those_of_other_models_are_not() {
        let paths = [
            "m-Q8_0-00002-of-00002.gguf",
            "m-Q4_0-00001-of-00002.gguf",
            "m-Q8_0-00001-of-00002.gguf",
            "m-Q8_0-00001-of-00003.gguf",
        ];
        let found = parts(&paths, paths[2]);
        assert_eq!(found, (vec![paths[2], paths[0]], 2));
        assert_eq!(parts(&paths, "m-F16.gguf"), (vec!["m-F16.gguf"], 1));
    }

    #[test]
    fn a_head_beside_the_model_and_nearest_in_bits_is_taken() {
        let paths =
            ["mtp-m-Q8_0.gguf", "mtp-m-Q4_0.gguf", "x/mtp-m-Q4_0.gguf", "y/mtp-m-Q4_0.gguf"];
        let best = |model, quant| best_head(&paths, HeadKind::Mtp, model, quant);
        assert_eq!(best("m-Q4_K_M.gguf", None), Some("mtp-m-Q4_0.gguf"));
        assert_eq!(best("m-Q4_K_M.gguf", Some("Q8_0")), Some("mtp-m-Q8_0.gguf"));
        assert_eq!(best("x/m-Q8_0.gguf", None), Some("x/mtp-m-Q4_0.gguf"));
        assert_eq!(best_head(&paths, HeadKind::Eagle3, "m.gguf", None), None);
    }
}

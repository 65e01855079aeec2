//! A walk over a GGUF file's header, to tell a file cut short from one that is damaged.
//!
//! llama.cpp reads the header again and judges what it means; here only lengths are followed, and
//! the two mistakes looked for on which llama.cpp ends the process instead of giving an error: two
//! tokens of one name, and a number of layers that cannot be.

use std::collections::HashSet;
use std::io::{self, BufReader, Read, Seek};

/// No string, array or list of a header in use comes near.
const STRING_MAX: u64 = 1 << 30;
const ITEMS_MAX: u64 = 1 << 30;
const ENTRIES_MAX: u64 = 1 << 20;
const DIMENSIONS_MAX: u32 = 4;
const LAYERS_MAX: u32 = 512;

/// Bytes read at once: a header has some million short strings at most.
const BUFFER_LEN: usize = 1 << 18;

// The types of values that matter here.
const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// What is wrong with a file.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It does not start as GGUF files do.
    NotGguf,
    /// It ends before this many bytes.
    Truncated(u64),
    /// Its header contradicts itself.
    Damaged(String),
    /// It could not be read.
    Unreadable(io::Error),
}

/// The elements of a block of a tensor type and the bytes it takes, if the type exists.
pub(crate) type BlockOf = fn(u32) -> Option<(u64, u64)>;

/// What a model file says of itself before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// Its architecture, as llama.cpp names it.
    pub architecture: String,
    /// How many of its blocks predict tokens after the next, and can draft.
    pub prediction_layers: u32,
    /// Whether it has nothing but those: they draft for the model they were taken from.
    pub head_only: bool,
    /// Whether it has a recurrent state, which cannot forget by itself what is rejected.
    pub recurrent: bool,
    /// Whether it has weights that score a whole text, as models that rank documents have.
    pub scores: bool,
    /// Whether a draft head's rows in a block depend on each other (DSpark).
    pub(crate) chained: bool,
}

/// Architectures whose recurrent state llama.cpp can take back by some tokens.
const TAKEN_BACK: [&str; 8] = [
    "bailingmoe3",
    "deepseek4",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
];

impl Header {
    /// Whether its memory can forget rejected tokens.
    pub fn can_be_drafted_for(&self) -> bool {
        !self.recurrent || TAKEN_BACK.contains(&&*self.architecture)
    }
}

/// Checks that a file of `len` bytes has all that its header promises, and reads the names of its
/// tokens.
pub(crate) fn read(
    file: impl Read + Seek,
    len: u64,
    block_of: BlockOf,
) -> Result<(Header, Vec<Vec<u8>>), Fault> {
    let mut walk = Walk { file: BufReader::with_capacity(BUFFER_LEN, file), at: 0, len };
    let mut magic = [0; 4];
    if len < 4 || walk.read(&mut magic).is_err() || magic != *b"GGUF" {
        return Err(Fault::NotGguf);
    }
    let version = walk.u32()?;
    if version == 0 || version > 0xFFFF {
        return damaged(format!("version {version}, or the byte order of another machine"));
    }
    let tensors = walk.up_to(ENTRIES_MAX, "tensors")?;
    let entries = walk.up_to(ENTRIES_MAX, "entries")?;
    let mut alignment = 32;
    let (mut header, mut names) = (Header::default(), Vec::new());
    for _ in 0..entries {
        let key = walk.string()?;
        let kind = walk.u32()?;
        let has = |part: &[u8]| key.windows(part.len()).any(|window| window == part);
        header.recurrent |= has(b".ssm.") || has(b".shortconv.") || has(b".wkv.");
        match (key.as_slice(), kind) {
            (b"general.alignment", U32) => alignment = u64::from(walk.u32()?),
            (b"general.architecture", STRING) => {
                header.architecture = String::from_utf8_lossy(&walk.string()?).into_owned();
            }
            (b"tokenizer.ggml.tokens", ARRAY) => names = walk.token_names()?,
            (key, U32) if key.ends_with(b".block_count") => walk.layers()?,
            _ => walk.skip_value(kind)?,
        }
    }
    if !alignment.is_power_of_two() {
        return damaged(format!("an alignment of {alignment} bytes"));
    }
    let (mut data_len, mut has_first_block) = (0, false);
    for _ in 0..tensors {
        let name = walk.string()?;
        header.chained |= name == b"markov_w1.weight";
        header.scores |= name == b"cls.weight" || name == b"cls.output.weight";
        // By its tensors: they may be in another file than the model that speaks of them.
        header.prediction_layers += u32::from(name.ends_with(b".nextn.eh_proj.weight"));
        has_first_block |= name.starts_with(b"blk.0.");
        data_len = data_len.max(walk.tensor_end(block_of)?);
    }
    header.head_only = header.prediction_layers > 0 && !has_first_block;
    let needed = walk.at.next_multiple_of(alignment).checked_add(data_len);
    match needed {
        None => damaged("its tensors are larger than any file".to_owned()),
        // The last tensor's padding may be missing, and nothing follows an empty list.
        Some(needed) if data_len > 0 && needed > len => Err(Fault::Truncated(needed)),
        Some(_) => Ok((header, names)),
    }
}

fn damaged<T>(reason: String) -> Result<T, Fault> {
    Err(Fault::Damaged(reason))
}

struct Walk<F> {
    file: BufReader<F>,
    at: u64,
    len: u64,
}

impl<F: Read + Seek> Walk<F> {
    /// Moves on, if the file is long enough.
    fn advance(&mut self, by: u64) -> Result<(), Fault> {
        let end = self.at.saturating_add(by);
        if end > self.len {
            return Err(Fault::Truncated(end));
        }
        self.at = end;
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Fault> {
        self.advance(bytes.len() as u64)?;
        self.file.read_exact(bytes).map_err(Fault::Unreadable)
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Fault> {
        self.advance(bytes)?;
        let bytes = i64::try_from(bytes).expect("within a file that exists");
        self.file.seek_relative(bytes).map_err(Fault::Unreadable)
    }

    fn u32(&mut self) -> Result<u32, Fault> {
        let mut bytes = [0; 4];
        self.read(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.read(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A count that is not larger than any in use.
    fn up_to(&mut self, max: u64, of_what: &str) -> Result<u64, Fault> {
        match self.u64()? {
            count if count <= max => Ok(count),
            count => damaged(format!("{count} {of_what}")),
        }
    }

    fn skip_string(&mut self) -> Result<(), Fault> {
        let len = self.up_to(STRING_MAX, "bytes of text")?;
        self.skip(len)
    }

    fn string(&mut self) -> Result<Vec<u8>, Fault> {
        let len = self.up_to(STRING_MAX, "bytes of text")?;
        // Before any memory is taken, the file must be that long.
        self.advance(len)?;
        let mut bytes = vec![0; usize::try_from(len).expect("at most 2^30")];
        self.file.read_exact(&mut bytes).map_err(Fault::Unreadable)?;
        Ok(bytes)
    }

    /// Reads the number of layers, which llama.cpp has a table for.
    fn layers(&mut self) -> Result<(), Fault> {
        match self.u32()? {
            1..=LAYERS_MAX => Ok(()),
            layers => damaged(format!("{layers} layers, and there must be 1 to {LAYERS_MAX}")),
        }
    }

    /// Reads the vocabulary, in which no name may occur twice.
    fn token_names(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        let (kind, items) = (self.u32()?, self.up_to(ITEMS_MAX, "items")?);
        if kind != STRING {
            return damaged(format!("tokens named by values of type {kind}"));
        }
        // Room for the largest vocabularies in use, so that nothing grows step by step.
        let room = usize::try_from(items.min(1 << 19)).unwrap_or(0);
        let mut names = Vec::with_capacity(room);
        for _ in 0..items {
            let mut name = self.string()?;
            // llama.cpp reads up to the first zero, and gives the nameless names of their own.
            name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
            names.push(name);
        }
        let mut known: HashSet<&[u8]> = HashSet::with_capacity(room);
        let twice = names.iter().position(|name| !name.is_empty() && !known.insert(name));
        match twice {
            Some(item) => damaged(format!("token {item} has the name of another")),
            None => Ok(names),
        }
    }

    fn skip_value(&mut self, kind: u32) -> Result<(), Fault> {
        match kind {
            STRING => self.skip_string(),
            ARRAY => {
                let (kind, items) = (self.u32()?, self.up_to(ITEMS_MAX, "items")?);
                if kind == STRING {
                    return (0..items).try_for_each(|_| self.skip_string());
                }
                self.skip(items * scalar_len(kind)?)
            }
            _ => self.skip(scalar_len(kind)?),
        }
    }

    /// Where the data of the tensor whose name was read ends, from the start of all data.
    fn tensor_end(&mut self, block_of: BlockOf) -> Result<u64, Fault> {
        let dimensions = self.u32()?;
        if dimensions > DIMENSIONS_MAX {
            return damaged(format!("a tensor of {dimensions} dimensions"));
        }
        let mut elements = 1_u64;
        for _ in 0..dimensions {
            let size = self.u64()?;
            elements = match elements.checked_mul(size) {
                Some(product) => product,
                None => return damaged("a tensor larger than any file".to_owned()),
            };
        }
        let kind = self.u32()?;
        let Some((block, bytes)) = block_of(kind) else {
            return damaged(format!("a tensor of the unknown type {kind}"));
        };
        let offset = self.u64()?;
        let end = (elements / block).checked_mul(bytes).and_then(|len| len.checked_add(offset));
        end.map_or_else(|| damaged("a tensor larger than any file".to_owned()), Ok)
    }
}

fn scalar_len(kind: u32) -> Result<u64, Fault> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => damaged(format!("a value of the unknown type {kind}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    /// A file with one text, one list and one tensor of four floats.
    fn small() -> Vec<u8> {
        let mut file = [b"GGUF".as_slice(), &3_u32.to_le_bytes()].concat();
        file.extend([1_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat());
        file.extend([string("general.name"), 8_u32.to_le_bytes().into(), string("a")].concat());
        file.extend(
            [string("list"), 9_u32.to_le_bytes().into(), 5_u32.to_le_bytes().into()].concat(),
        );
        file.extend([2_u64.to_le_bytes(), [0; 8]].concat());
        file.extend(
            [string("weight"), 1_u32.to_le_bytes().into(), 4_u64.to_le_bytes().into()].concat(),
        );
        file.extend([0_u32.to_le_bytes().as_slice(), &0_u64.to_le_bytes()].concat());
        file.resize(file.len().next_multiple_of(32) + 16, 0);
        file
    }

    fn walk(bytes: &[u8]) -> Result<Header, Fault> {
        let block_of: BlockOf = |kind| (kind == 0).then_some((1, 4));
        Ok(read(Cursor::new(bytes), bytes.len() as u64, block_of)?.0)
    }

    #[test]
    fn a_whole_file_passes() {
        walk(&small()).unwrap();
    }

    #[test]
    fn a_file_cut_anywhere_is_truncated() {
        let file = small();
        for len in 4..file.len() {
            let fault = walk(&file[..len]).unwrap_err();
            let Fault::Truncated(needed) = fault else { panic!("cut to {len}: {fault:?}") };
            assert!(needed > len as u64 && needed <= file.len() as u64, "cut to {len}: {needed}");
        }
        assert!(matches!(walk(&file[..3]), Err(Fault::NotGguf)));
    }

    #[test]
    fn two_tokens_of_one_name_are_refused() {
        let file = |names: [&str; 3]| {
            let head = [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &[0; 8]].concat();
            let list = [8_u32.to_le_bytes().as_slice(), &3_u64.to_le_bytes()].concat();
            let key = [string("tokenizer.ggml.tokens"), 9_u32.to_le_bytes().into()].concat();
            [head, 1_u64.to_le_bytes().into(), key, list, names.map(string).concat()].concat()
        };
        walk(&file(["a", "b", "c"])).unwrap();
        walk(&file(["a", "", ""])).unwrap();
        for names in [["a", "b", "a"], ["a", "b\0c", "b"]] {
            assert!(matches!(walk(&file(names)), Err(Fault::Damaged(_))), "{names:?}");
        }
    }

    #[test]
    fn no_single_wrong_byte_makes_the_walk_panic() {
        for at in 0..small().len() {
            for bit in 0..8 {
                let mut file = small();
                file[at] ^= 1 << bit;
                let _ = walk(&file);
            }
        }
    }
}

//! A loaded model and its vocabulary.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::ptr::{self, NonNull};

use llama_cpp_sys_2 as sys;

use super::{hidden, log};
use crate::options::{GpuLayers, LoadMode, ModelOptions, Progress};

/// A model in memory. Never changed once loaded, so it can be shared between threads.
#[derive(Debug)]
pub(crate) struct RawModel {
    raw: NonNull<sys::llama_model>,
    vocab: NonNull<sys::llama_vocab>,
}

// SAFETY: llama.cpp reads a loaded model from any thread; what changes lives in contexts.
unsafe impl Send for RawModel {}
// SAFETY: as above; llama.h calls tokenisation, the one call with work behind it, thread-safe.
unsafe impl Sync for RawModel {}

impl Drop for RawModel {
    fn drop(&mut self) {
        // SAFETY: `raw` came from a load, and contexts hold an `Arc` of this, so none is left.
        unsafe { sys::llama_model_free(self.raw.as_ptr()) };
    }
}

/// What a load callback has seen.
struct Watch<'a> {
    progress: &'a mut Progress,
    stopped: bool,
    panic: Option<Box<dyn Any + Send>>,
}

/// Why there is no model.
pub(crate) enum NoModel {
    /// The progress callback stopped it.
    Stopped,
    /// llama.cpp's own reason.
    Rejected(String),
}

impl RawModel {
    /// Loads the file at `options.path`.
    pub(crate) fn load(options: &mut ModelOptions) -> Result<Self, NoModel> {
        log::start();
        #[cfg(feature = "portable")]
        if let Some(missing) = super::backends::missing() {
            return Err(NoModel::Rejected(missing));
        }
        let path = c_path(&options.path).map_err(NoModel::Rejected)?;
        // SAFETY: takes nothing and returns a plain struct.
        let mut params = unsafe { sys::llama_model_default_params() };
        params.n_gpu_layers = match options.gpu_layers {
            GpuLayers::All => -1,
            GpuLayers::Last(layers) => i32::from(layers),
        };
        params.load_mode = match options.load_mode {
            LoadMode::Map => sys::LLAMA_LOAD_MODE_MMAP,
            LoadMode::MapAndLock => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
            LoadMode::Read => sys::LLAMA_LOAD_MODE_NONE,
        };
        params.check_tensors = options.check_tensors;
        params.load_mtp = options.prediction_layers;
        let mut watch = options.progress.as_mut().map(|progress| Watch {
            progress,
            stopped: false,
            panic: None,
        });
        if let Some(watch) = &mut watch {
            params.progress_callback = Some(watched);
            params.progress_callback_user_data = ptr::from_mut(watch).cast();
        }
        log::forget();
        // SAFETY: `path` is a C string and `watch`, which `params` points to, outlives the call.
        let raw = NonNull::new(unsafe { sys::llama_model_load_from_file(path.as_ptr(), params) });
        // A model that came all the same is freed before the panic goes on.
        let model = raw.map(Self::own);
        if let Some(watch) = watch {
            if let Some(panic) = watch.panic {
                drop(model);
                resume_unwind(panic);
            }
            if watch.stopped {
                return Err(NoModel::Stopped);
            }
        }
        model.ok_or_else(|| NoModel::Rejected(log::reason()))
    }

    fn own(raw: NonNull<sys::llama_model>) -> Self {
        // SAFETY: `raw` is a live model; its vocabulary is part of it and lives as long.
        let vocab = unsafe { sys::llama_model_get_vocab(raw.as_ptr()) };
        let vocab = NonNull::new(vocab.cast_mut()).expect("a loaded model has a vocabulary");
        Self { raw, vocab }
    }

    /// For the calls in this module's siblings.
    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.raw.as_ptr()
    }

    /// How many tokens the vocabulary has.
    pub(crate) fn vocab_len(&self) -> usize {
        // SAFETY: the vocabulary is live while `self` is.
        count(unsafe { sys::llama_vocab_n_tokens(self.vocab.as_ptr()) })
    }

    /// Whether the model has a vocabulary at all.
    pub(crate) fn has_vocab(&self) -> bool {
        // SAFETY: the vocabulary is live while `self` is.
        let kind = unsafe { sys::llama_vocab_type(self.vocab.as_ptr()) };
        kind != sys::LLAMA_VOCAB_TYPE_NONE
    }

    /// How many numbers a hidden row has.
    pub(crate) fn hidden_len(&self) -> usize {
        // SAFETY: the model is live while `self` is.
        count(unsafe { sys::llama_model_n_embd(self.raw.as_ptr()) })
    }

    /// How many numbers the hidden row before the output has.
    pub(crate) fn last_hidden_len(&self) -> usize {
        // SAFETY: the model is live while `self` is.
        count(unsafe { sys::llama_model_n_embd_out(self.raw.as_ptr()) })
    }

    /// Which of its target's layers a head reads; empty if it is none.
    pub(crate) fn target_layers(&self) -> Vec<u32> {
        let mut count = 0;
        // SAFETY: the model is live while `self` is, and `count` is written to.
        let layers = unsafe { hidden::forerun_target_layers(self.raw.as_ptr(), &raw mut count) };
        if layers.is_null() {
            return Vec::new();
        }
        // SAFETY: llama.cpp gives so many numbers, which are part of the model.
        let layers = unsafe { std::slice::from_raw_parts(layers, count as usize) };
        layers.iter().filter_map(|layer| u32::try_from(*layer).ok()).collect()
    }

    /// The token that stands for one to come, if there is one.
    pub(crate) fn mask(&self) -> Option<u32> {
        // SAFETY: the vocabulary is live while `self` is.
        u32::try_from(unsafe { sys::llama_vocab_mask(self.vocab.as_ptr()) }).ok()
    }

    /// How many of its blocks predict tokens after the next, beside the model proper.
    pub(crate) fn prediction_layers(&self) -> usize {
        // SAFETY: the model is live while `self` is.
        count(unsafe { sys::llama_model_n_layer_nextn(self.raw.as_ptr()) })
    }

    /// How many tokens of context it was trained with.
    pub(crate) fn context_len(&self) -> usize {
        // SAFETY: the model is live while `self` is.
        count(unsafe { sys::llama_model_n_ctx_train(self.raw.as_ptr()) })
    }

    /// How many parameters it has.
    pub(crate) fn parameter_count(&self) -> u64 {
        // SAFETY: the model is live while `self` is.
        unsafe { sys::llama_model_n_params(self.raw.as_ptr()) }
    }

    /// The size of its tensors in bytes.
    pub(crate) fn size(&self) -> u64 {
        // SAFETY: the model is live while `self` is.
        unsafe { sys::llama_model_size(self.raw.as_ptr()) }
    }

    /// How many layers it has.
    pub(crate) fn layer_count(&self) -> usize {
        // SAFETY: the model is live while `self` is.
        count(unsafe { sys::llama_model_n_layer(self.raw.as_ptr()) })
    }

    /// Whether it needs an encoder pass before decoding.
    pub(crate) fn has_encoder(&self) -> bool {
        // SAFETY: the model is live while `self` is.
        unsafe { sys::llama_model_has_encoder(self.raw.as_ptr()) }
    }

    /// Whether it decodes at all.
    pub(crate) fn has_decoder(&self) -> bool {
        // SAFETY: the model is live while `self` is.
        unsafe { sys::llama_model_has_decoder(self.raw.as_ptr()) }
    }

    /// Whether its memory is recurrent.
    pub(crate) fn is_recurrent(&self) -> bool {
        // SAFETY: the model is live while `self` is.
        unsafe { sys::llama_model_is_recurrent(self.raw.as_ptr()) }
    }

    /// Whether some of its layers forget what is far back.
    pub(crate) fn has_window(&self) -> bool {
        // SAFETY: the model is live while `self` is.
        unsafe { sys::llama_model_n_swa(self.raw.as_ptr()) > 0 }
    }

    /// Whether it caches what keys and values are made of (latent attention, as DeepSeek's).
    pub(crate) fn caches_latent(&self) -> bool {
        let architecture = self.metadata("general.architecture").unwrap_or_default();
        self.metadata(&format!("{architecture}.attention.key_length_mla")).is_some()
    }

    /// Whether its memory is partly recurrent.
    pub(crate) fn is_hybrid(&self) -> bool {
        // SAFETY: the model is live while `self` is.
        unsafe { sys::llama_model_is_hybrid(self.raw.as_ptr()) }
    }

    /// Whether it fills in text in any order.
    pub(crate) fn is_diffusion(&self) -> bool {
        // SAFETY: the model is live while `self` is.
        unsafe { sys::llama_model_is_diffusion(self.raw.as_ptr()) }
    }

    /// What llama.cpp calls it: architecture, size, number format.
    pub(crate) fn description(&self) -> String {
        text_of(|buffer, len| {
            // SAFETY: the buffer has `len` bytes, and llama.h ends what it writes with a zero.
            unsafe { sys::llama_model_desc(self.raw.as_ptr(), buffer, len) }
        })
        .unwrap_or_default()
    }

    /// The value of a metadata key, arrays excepted.
    pub(crate) fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        text_of(|buffer, len| {
            let model = self.raw.as_ptr();
            // SAFETY: `key` is a C string, the buffer has `len` bytes, the model is live.
            unsafe { sys::llama_model_meta_val_str(model, key.as_ptr(), buffer, len) }
        })
    }

    /// The model's chat template.
    pub(crate) fn chat_template(&self) -> Option<String> {
        // SAFETY: the model is live; without a name llama.h gives the default template or null.
        let text = unsafe { sys::llama_model_chat_template(self.raw.as_ptr(), ptr::null()) };
        owned(text)
    }

    /// The text around a query and a document, if the model scores documents and has one.
    pub(crate) fn rank_template(&self) -> Option<String> {
        // SAFETY: the model is live and the name a C string; llama.h gives null if there is none.
        let text = unsafe { sys::llama_model_chat_template(self.raw.as_ptr(), c"rerank".as_ptr()) };
        owned(text)
    }

    /// How many scores the model gives, if it does.
    pub(crate) fn score_count(&self) -> usize {
        // SAFETY: the model is live while `self` is.
        unsafe { sys::llama_model_n_cls_out(self.raw.as_ptr()) as usize }
    }

    /// The token that starts a sequence, if the model wants one.
    pub(crate) fn start(&self) -> Option<u32> {
        // SAFETY: the vocabulary is live while `self` is.
        let wanted = unsafe { sys::llama_vocab_get_add_bos(self.vocab.as_ptr()) };
        // SAFETY: as above.
        let token = unsafe { sys::llama_vocab_bos(self.vocab.as_ptr()) };
        u32::try_from(token).ok().filter(|_| wanted)
    }

    /// The token that ends a text of its own, if the model wants one: the end of generation, else the
    /// separator.
    pub(crate) fn text_end(&self) -> Option<u32> {
        // SAFETY: the vocabulary is live while `self` is.
        let wanted = unsafe { sys::llama_vocab_get_add_eos(self.vocab.as_ptr()) };
        // SAFETY: as above.
        let end = unsafe { sys::llama_vocab_eos(self.vocab.as_ptr()) };
        // SAFETY: as above.
        let separator = unsafe { sys::llama_vocab_sep(self.vocab.as_ptr()) };
        u32::try_from(end).or(u32::try_from(separator)).ok().filter(|_| wanted)
    }

    /// The token between two texts, if the model wants one.
    pub(crate) fn separator(&self) -> Option<u32> {
        // SAFETY: the vocabulary is live while `self` is.
        let wanted = unsafe { sys::llama_vocab_get_add_sep(self.vocab.as_ptr()) };
        // SAFETY: as above.
        let token = unsafe { sys::llama_vocab_sep(self.vocab.as_ptr()) };
        u32::try_from(token).ok().filter(|_| wanted)
    }

    /// A token for filling in text, if the vocabulary has it.
    pub(crate) fn infill_token(&self, which: InfillToken) -> Option<u32> {
        let find = match which {
            InfillToken::Prefix => sys::llama_vocab_fim_pre,
            InfillToken::Suffix => sys::llama_vocab_fim_suf,
            InfillToken::Middle => sys::llama_vocab_fim_mid,
            InfillToken::Repository => sys::llama_vocab_fim_rep,
            InfillToken::File => sys::llama_vocab_fim_sep,
            InfillToken::TurnEnd => sys::llama_vocab_eot,
            InfillToken::End => sys::llama_vocab_eos,
        };
        // SAFETY: the vocabulary is live while `self` is; a token that it does not have is negative.
        let token = unsafe { find(self.vocab.as_ptr()) };
        u32::try_from(token).ok()
    }

    /// Whether a token ends a generation. Out of range, none does.
    pub(crate) fn is_end(&self, token: u32) -> bool {
        let Some(token) = self.in_range(token) else { return false };
        // SAFETY: the vocabulary is live and the token in range.
        unsafe { sys::llama_vocab_is_eog(self.vocab.as_ptr(), token) }
    }

    /// Whether a token is one of control. Out of range, none is.
    pub(crate) fn is_control(&self, token: u32) -> bool {
        let Some(token) = self.in_range(token) else { return false };
        // SAFETY: the vocabulary is live and the token in range; llama.cpp asserts both.
        unsafe { sys::llama_vocab_is_control(self.vocab.as_ptr(), token) }
    }

    /// How llama.cpp finds a token by its text before it splits the rest; `None` for a token that it
    /// does not find so.
    pub(crate) fn special_kind(&self, token: u32) -> Option<SpecialKind> {
        let token = self.in_range(token)?;
        // SAFETY: the vocabulary is live and the token in range.
        let attributes = unsafe { sys::llama_vocab_get_attr(self.vocab.as_ptr(), token) };
        let has = |attribute| attributes & attribute != 0;
        let control = has(sys::LLAMA_TOKEN_ATTR_CONTROL) || has(sys::LLAMA_TOKEN_ATTR_UNKNOWN);
        let special = control || has(sys::LLAMA_TOKEN_ATTR_USER_DEFINED);
        special.then(|| SpecialKind {
            control,
            strip_left: has(sys::LLAMA_TOKEN_ATTR_LSTRIP),
            strip_right: has(sys::LLAMA_TOKEN_ATTR_RSTRIP),
        })
    }

    /// A token as the vocabulary writes it.
    pub(crate) fn token_text(&self, token: u32) -> Option<String> {
        let token = self.in_range(token)?;
        // SAFETY: the vocabulary is live and the token in range.
        owned(unsafe { sys::llama_vocab_get_text(self.vocab.as_ptr(), token) })
    }

    /// Appends a token's bytes; control tokens have some only if `special`.
    pub(crate) fn token_bytes(&self, token: u32, special: bool, out: &mut Vec<u8>) {
        let Some(token) = self.in_range(token) else { return };
        let start = out.len();
        let mut room = 32;
        loop {
            out.resize(start + room, 0);
            let len = i32::try_from(room).unwrap_or(i32::MAX);
            let buffer = out[start..].as_mut_ptr().cast();
            let vocab = self.vocab.as_ptr();
            // SAFETY: the buffer has `len` bytes, the vocabulary is live, the token in range.
            let n = unsafe { sys::llama_token_to_piece(vocab, token, buffer, len, 0, special) };
            match usize::try_from(n) {
                Ok(written) => return out.truncate(start + written),
                // Less than zero: the room it takes.
                Err(_) => room = count(n.saturating_neg()),
            }
        }
    }

    /// The tokens of a text, or `None` if llama.cpp cannot tell.
    ///
    /// # Panics
    /// If the text is longer than `i32::MAX` bytes.
    pub(crate) fn tokenize(&self, text: &str, around: bool, special: bool) -> Option<Vec<u32>> {
        let len = i32::try_from(text.len()).expect("the caller has checked the length");
        // A token has a byte at least; some vocabularies put a space in front.
        let mut tokens: Vec<sys::llama_token> = vec![0; text.len() + 8];
        for _ in 0..2 {
            let room = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
            let (vocab, out) = (self.vocab.as_ptr(), tokens.as_mut_ptr());
            let text = text.as_ptr().cast();
            // SAFETY: `text` has `len` bytes, `out` room for `room` tokens, the vocabulary is live.
            let n = unsafe { sys::llama_tokenize(vocab, text, len, out, room, around, special) };
            match usize::try_from(n) {
                Ok(written) => {
                    let token = |token| u32::try_from(token).ok();
                    return tokens[..written].iter().copied().map(token).collect();
                }
                Err(_) if n == i32::MIN => return None,
                Err(_) => tokens.resize(count(-n), 0),
            }
        }
        None
    }

    fn in_range(&self, token: u32) -> Option<sys::llama_token> {
        let token = i32::try_from(token).ok()?;
        (count(token) < self.vocab_len()).then_some(token)
    }
}

/// The tokens for filling in text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InfillToken {
    Prefix,
    Suffix,
    Middle,
    Repository,
    /// Separates files.
    File,
    /// Ends a turn.
    TurnEnd,
    /// Ends a sequence.
    End,
}

/// How a token is found by its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpecialKind {
    /// Only if control tokens are parsed.
    pub(crate) control: bool,
    /// With the white space before it.
    pub(crate) strip_left: bool,
    /// With the white space after it.
    pub(crate) strip_right: bool,
}

/// Passes a load's progress on, and keeps a panic from crossing C++.
unsafe extern "C" fn watched(share: f32, data: *mut c_void) -> bool {
    // SAFETY: `data` is the `Watch` of the load that is calling, which nobody else uses meanwhile.
    let watch = unsafe { &mut *data.cast::<Watch<'_>>() };
    match catch_unwind(AssertUnwindSafe(|| (watch.progress)(share))) {
        Ok(on) => {
            watch.stopped |= !on;
            on
        }
        Err(panic) => {
            watch.panic = Some(panic);
            false
        }
    }
}

/// A path as C wants it.
pub(super) fn c_path(path: &Path) -> Result<CString, String> {
    let text = path.to_str().ok_or_else(|| "the path is not UTF-8".to_owned())?;
    CString::new(text).map_err(|_| "the path holds a zero byte".to_owned())
}

/// A count C gives as a signed number; below zero means none.
fn count(n: i32) -> usize {
    usize::try_from(n).unwrap_or(0)
}

/// A copy of a C string that may be null.
fn owned(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, and llama.h gives C strings that live as long as the model.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}

/// A text from a call in the manner of `snprintf`: it gives the length and writes what has room.
fn text_of(call: impl Fn(*mut c_char, usize) -> i32) -> Option<String> {
    let mut buffer = vec![0_u8; 256];
    for _ in 0..2 {
        let len = usize::try_from(call(buffer.as_mut_ptr().cast(), buffer.len())).ok()?;
        if len < buffer.len() {
            return Some(String::from_utf8_lossy(&buffer[..len]).into_owned());
        }
        buffer.resize(len + 1, 0);
    }
    None
}

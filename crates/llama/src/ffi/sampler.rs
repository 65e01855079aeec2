//! llama.cpp's own sampler for gaps, to compare ours with.
#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

use std::path::PathBuf;
use std::sync::Arc;

use forerun_decode::{InfillSampler, Sampling, Token, Tokenizer as _};
use forerun_verify::Philox;
use forerun_verify::rand_core::Rng as _;
use llama_cpp_sys_2 as sys;

use super::model::RawModel;
use crate::options::ModelOptions;
use crate::vocab::Vocab;

/// Which of the candidates llama.cpp keeps.
fn kept(model: &RawModel, candidates: &[(Token, f32)]) -> Vec<Token> {
    let data = |(token, logit): &(Token, f32)| sys::llama_token_data {
        id: i32::try_from(token.0).unwrap(),
        logit: *logit,
        p: 0.0,
    };
    let mut data: Vec<_> = candidates.iter().map(data).collect();
    let mut array = sys::llama_token_data_array {
        data: data.as_mut_ptr(),
        size: data.len(),
        selected: -1,
        sorted: false,
    };
    // SAFETY: the model is live; its vocabulary is part of it.
    let vocab = unsafe { sys::llama_model_get_vocab(model.as_ptr()) };
    // SAFETY: the vocabulary is live until the sampler is freed.
    let sampler = unsafe { sys::llama_sampler_init_infill(vocab) };
    // SAFETY: the sampler is live, and `array` says how many entries `data` has.
    unsafe { sys::llama_sampler_apply(sampler, &raw mut array) };
    // SAFETY: it was made above and is not used again.
    unsafe { sys::llama_sampler_free(sampler) };
    let left = data[..array.size].iter().filter(|it| it.logit > f32::NEG_INFINITY);
    let mut left: Vec<Token> = left.map(|it| Token(u32::try_from(it.id).unwrap())).collect();
    left.sort_unstable();
    left
}

#[test]
fn gaps_are_sampled_as_by_llama_cpp() {
    let dir = std::env::var_os("FORERUN_MODELS").map(PathBuf::from).or_else(|| {
        std::env::home_dir().map(|home| home.join(".cache").join("forerun").join("models"))
    });
    let path = dir.unwrap().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.is_file(), "{} is missing: run `just models`", path.display());
    let Ok(model) = RawModel::load(&mut ModelOptions::new(path)) else { panic!("no model") };
    let model = Arc::new(model);
    let vocab = Vocab::new(Arc::clone(&model));
    let end = vocab.infill_tokens().end.unwrap();
    let sampler = InfillSampler::new(Arc::new(vocab.clone()), end);
    let sampling = Sampling { infill: Some(sampler), ..Sampling::unshaped() };

    // Tokens that begin as another of them does.
    let mut alike: Vec<(Vec<u8>, Token)> = (0..)
        .map(Token)
        .take(vocab.vocab_len())
        .map(|token| {
            let mut bytes = Vec::new();
            vocab.bytes(token, &mut bytes);
            (bytes, token)
        })
        .collect();
    alike.retain(|(bytes, _)| !bytes.is_empty());
    alike.sort_unstable();
    let ends: Vec<Token> =
        (0..).map(Token).take(vocab.vocab_len()).filter(|it| vocab.is_end(*it)).collect();

    let mut random = Philox::new(7);
    let mut seen = [0; 4];
    for _ in 0..4000 {
        let below = |random: &mut Philox, count: usize| random.next_u32() as usize % count;
        let logit = |random: &mut Philox| f64::from(random.next_u32()) / f64::from(u32::MAX);
        let (first, spread) = (below(&mut random, alike.len() - 40), 12.0 * logit(&mut random));
        let mut tokens: Vec<Token> =
            alike[first..first + 1 + below(&mut random, 39)].iter().map(|it| it.1).collect();
        if below(&mut random, 3) == 0 {
            tokens.push(ends[below(&mut random, ends.len())]);
        }
        tokens.sort_unstable();
        #[expect(clippy::cast_possible_truncation, reason = "logits are f32")]
        let candidates: Vec<(Token, f32)> =
            tokens.iter().map(|token| (*token, (spread * logit(&mut random)) as f32)).collect();
        let mut row = vec![f32::NEG_INFINITY; vocab.vocab_len()];
        candidates.iter().for_each(|(token, logit)| row[token.index()] = *logit);
        // It ends a text where no token is sure, also if it is no candidate: top-k leaves it out.
        let forced = row[end.index()] == f32::NEG_INFINITY;
        row[end.index()] = row[end.index()].max(-1.0);
        let sampling = Sampling { top_k: candidates.len(), ..sampling.clone() };
        let ours: Vec<Token> =
            sampling.row(&mut row, &[], &[]).unwrap().support().map(|it| it.0).collect();
        let theirs = kept(&model, &candidates);
        assert_eq!(ours, theirs, "of {candidates:?}");
        seen[match theirs[..] {
            [one] if one == end && forced => 0,
            [one] if vocab.is_end(one) => 1,
            [_] => 2,
            _ => 3,
        }] += 1;
    }
    assert!(seen.iter().all(|count| *count > 100), "what was seen how often: {seen:?}");
}

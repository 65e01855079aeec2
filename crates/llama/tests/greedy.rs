//! At temperature 0 drafted text is plain text, token for token, where rows do not depend on the
//! shape of a pass: quantised weights, flash attention, cached keys and values not both in f16
//! (llama.cpp then splits the sums of single tokens among threads from 256 cached tokens on), and one
//! path (a tree leaves the accepted path scattered over the cache). `just drift` measures these.

#![allow(clippy::unwrap_used, reason = "a test says what failed by where it panics")]

mod common;

use std::sync::Arc;

use common::{MODEL, model_path, options};
use forerun_decode::{
    ChatOptions, ChatTemplate, Decoder, DraftPolicy, Drafter, DrafterId, Limits, Message,
    ModelDrafter, Sampling, Sequence, Slot, Special, Token, Tokenizer, Turn,
};
use forerun_llama::{LlamaEngine, Model, ModelOptions};
use forerun_verify::{BlockRule, Philox, Random};

const LEN: usize = 32;

/// The prompts, as chats.
fn prompts(model: &Model) -> Vec<Vec<Token>> {
    let template = model.chat_template().unwrap();
    let template = ChatTemplate::new(&template, None, None).unwrap();
    let lines = include_str!("../../../bench/prompts/greedy_50.jsonl").lines();
    let chat = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let messages = [Message::new("user", line["prompt"].as_str().unwrap())];
        let text = template.render(&messages, &ChatOptions::default()).unwrap();
        model.vocab().tokenize(&text, Special::Parse).unwrap()
    };
    lines.map(chat).collect()
}

fn text(
    decoder: &mut Decoder,
    sequence: &mut Sequence,
    prompt: &[Token],
    policy: &DraftPolicy,
) -> Vec<Token> {
    let chance = &mut Random(Philox::new(1));
    let (plan, limits) = (&policy.plan(), Limits::default());
    sequence.begin(prompt.to_vec(), LEN);
    while sequence.wanted() > 0 {
        decoder.round(&mut [Turn { sequence, policy, plan, limits, chance }]).unwrap();
    }
    sequence.output()[..LEN].to_vec()
}

#[test]
fn greedy_text_is_the_same_with_and_without_drafts_on_fifty_prompts() {
    let target = Model::load(ModelOptions::new(model_path(MODEL))).unwrap();
    let draft = Model::load(ModelOptions::new(model_path("SmolLM2-pruned-14+13.gguf"))).unwrap();
    let drafter = ModelDrafter::new(Box::new(LlamaEngine::new(&draft, &options(1, 1)).unwrap()));
    let drafters: Vec<Box<dyn Drafter>> = vec![Box::new(drafter)];
    let engine = Box::new(LlamaEngine::new(&target, &options(1, 1)).unwrap());
    let mut decoder = Decoder::new(engine, drafters).unwrap();
    let mut sequence = Sequence::new(Slot(0), Sampling::greedy());
    let block = DraftPolicy::drafted(vec![DrafterId(0)], 4, Arc::new(BlockRule));
    let prompts = prompts(&target);
    assert_eq!(prompts.len(), 50);
    for (index, prompt) in prompts.iter().enumerate() {
        let mut decode = |policy: &DraftPolicy| text(&mut decoder, &mut sequence, prompt, policy);
        let plain = decode(&DraftPolicy::plain());
        assert_eq!(plain, decode(&block), "prompt {index}");
    }
}

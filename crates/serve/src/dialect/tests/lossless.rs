//! Calls under drafts, by enumeration: every rule leaves the distribution of plain decoding with the same
//! grammar, before the mark, at it and inside the call.

use std::collections::HashMap;

use forerun_decode::{
    Constraint, Decoder, DraftPolicy, Drafter, DrafterId, Limits, ModelDrafter, NgramDrafter,
    Sampling, Sequence, Slot, Special, Token, TokenizeError, Tokenizer, ToyEngine, ToyModel, Turn,
};
use forerun_grammar::{CompiledForm, GrammarEnv};
use forerun_verify::check::outcomes;
use forerun_verify::{BlockRule, Chance, PooledRule, Rule, TokenRule};

use super::*;

/// Words that make text, a call, and calls that are none.
const WORDS: [&str; 4] = ["x", "<c>", "f:{}</c>", "<c>x"];
const END: Token = Token(4);
const VOCAB: usize = WORDS.len() + 1;

/// Tokens of output whose law is compared: text, a mark, a call, an end.
const HORIZON: usize = 4;

struct Words;

impl Tokenizer for Words {
    fn vocab_len(&self) -> usize {
        VOCAB
    }
    fn tokenize(&self, _: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Err(TokenizeError::Failed { backend: "words" })
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        token == END
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(WORDS.get(token.index()).map_or("", |word| *word).bytes());
    }
}

/// What outputs are held to.
struct Held {
    call: CallForm,
    compiled: CompiledForm,
    leads: Leads,
}

impl Held {
    fn constraint(&self) -> Box<dyn Constraint> {
        let tokenizer: Arc<dyn Tokenizer> = Arc::new(Words);
        self.leads.hold(&self.call, &tokenizer, Box::new(self.compiled.constrain()))
    }
}

fn held(required: bool) -> Held {
    let calls = CallFormat {
        call: Marks::new("<c>", "</c>"),
        body: Body::Named { middle: vec![Gap::Text(":".to_owned())] },
        ..CallFormat::described()
    };
    let dialect = Dialect { calls, ..Dialect::default() };
    let parameters = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let functions = [Callable { name: "f".to_owned(), parameters: Some(parameters) }];
    let rules = CallRules {
        dialect: &dialect,
        functions: &functions,
        required,
        several: true,
        opened: false,
        answer: None,
    };
    let call = rules.form().unwrap();
    let compiled = GrammarEnv::new(&Words).unwrap().compile(&call.form).unwrap();
    Held { call, compiled, leads: Leads::new(&Words, &dialect) }
}

type Law = HashMap<Vec<Token>, f64>;

/// The law of an output decoded in rounds, up to its end.
fn law(
    form: &Held,
    seed: u64,
    drafter: Option<fn() -> Box<dyn Drafter>>,
    rule: impl Rule + Clone + 'static,
) -> Law {
    let model = |seed| ToyModel { vocab_len: VOCAB, order: 2, seed, spread: 1.5 };
    let mut law = Law::new();
    let run = |chance: &mut dyn Chance| {
        let drafters: Vec<Box<dyn Drafter>> = drafter.into_iter().map(|make| make()).collect();
        let ids = (0..drafters.len()).map(DrafterId).collect();
        let policy = DraftPolicy::drafted(ids, 2, Arc::new(rule.clone()));
        let target = Box::new(ToyEngine::new(model(seed), 64));
        let mut decoder = Decoder::new(target, drafters).unwrap();
        let mut sequence = Sequence::new(Slot(0), Sampling::unshaped());
        sequence.constraint = Some(form.constraint());
        sequence.begin([0, 1, 2, 0, 1].map(Token).to_vec(), 100);
        while sequence.output().len() < HORIZON && !sequence.output().contains(&END) {
            let (plan, limits) = (&policy.plan(), Limits::default());
            let (sequence, policy) = (&mut sequence, &policy);
            decoder.round(&mut [Turn { sequence, policy, plan, limits, chance }]).unwrap();
        }
        let end = sequence.output().iter().position(|token| *token == END);
        let len = end.map_or(HORIZON, |end| end + 1).min(HORIZON);
        sequence.output()[..len].to_vec()
    };
    outcomes(run, |probability, output| *law.entry(output).or_default() += probability);
    law
}

fn draft_model() -> Box<dyn Drafter> {
    let model = ToyModel { vocab_len: VOCAB, order: 2, seed: 99, spread: 1.0 };
    Box::new(ModelDrafter::new(Box::new(ToyEngine::new(model, 64))))
}

fn ngram() -> Box<dyn Drafter> {
    Box::<NgramDrafter>::default()
}

fn worst(one: &Law, other: &Law) -> f64 {
    let of = |law: &Law, output: &Vec<Token>| law.get(output).copied().unwrap_or(0.0);
    let outputs = one.keys().chain(other.keys());
    outputs.map(|output| (of(one, output) - of(other, output)).abs()).fold(0.0, f64::max)
}

#[test]
fn calls_follow_the_law_of_plain_decoding_under_every_rule() {
    for required in [false, true] {
        let form = held(required);
        // Where text is free there is much more to enumerate.
        for seed in 0..if required { 4 } else { 1 } {
            let plain = law(&form, seed, None, BlockRule);
            let calls = plain.keys().filter(|it| it.starts_with(&[1, 2].map(Token)));
            assert!(calls.count() > 0, "calls are among what is compared");
            let wrong = |it: &Vec<Token>| it.starts_with(&[1, 0].map(Token));
            assert!(!plain.keys().any(wrong), "and nothing but a call after a mark");
            assert_eq!(plain.keys().any(|it| it[0] == Token(0)), !required);
            assert!(!plain.keys().any(|it| it.contains(&Token(3))), "nor a mark inside a token");
            let model: Option<fn() -> Box<dyn Drafter>> = Some(draft_model);
            let ngram: Option<fn() -> Box<dyn Drafter>> = Some(ngram);
            for (what, drafted) in [
                ("block", law(&form, seed, model, BlockRule)),
                ("token", law(&form, seed, model, TokenRule)),
                ("pooled", law(&form, seed, model, PooledRule)),
                ("fixed drafts", law(&form, seed, ngram, BlockRule)),
            ] {
                let worst = worst(&plain, &drafted);
                assert!(worst < 1e-12, "{what}, seed {seed}, required {required}: {worst:e}");
            }
            let other = law(&form, seed + 10, None, BlockRule);
            assert!(worst(&plain, &other) > 1e-3, "the check has teeth");
        }
    }
}

//! What the grammar of calls allows is read as calls that follow their schemas, whatever is drawn.

use forerun_decode::{Constraint, ConstraintError, Special, Token, TokenizeError, Tokenizer};
use forerun_grammar::{Form, GrammarEnv};

use super::*;

/// A token for each byte, and an end.
struct Bytes;

const END: Token = Token(256);

impl Tokenizer for Bytes {
    fn vocab_len(&self) -> usize {
        257
    }
    fn tokenize(&self, text: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Ok(text.bytes().map(|byte| Token(byte.into())).collect())
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        token == END
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token.0));
    }
}

/// Functions whose arguments are soon written at random.
fn small() -> Vec<Callable> {
    let go = json!({
        "type": "object",
        "properties": {
            "side": { "type": "string", "enum": ["left", "right"] },
            "steps": { "$ref": "#/$defs/Steps" },
        },
        "required": ["side", "steps"],
        "additionalProperties": false,
        "$defs": { "Steps": { "enum": [1, 2, 3] } },
    });
    let stop = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let one =
        |name: &str, parameters| Callable { name: name.to_owned(), parameters: Some(parameters) };
    vec![one("go", go), one("stop", stop)]
}

/// Holds an output to the calls of a dialect.
struct Holder {
    env: GrammarEnv,
    tokenizer: Arc<dyn Tokenizer>,
}

impl Holder {
    fn new() -> Self {
        Self { env: GrammarEnv::new(&Bytes).unwrap(), tokenizer: Arc::new(Bytes) }
    }

    /// Constraints of outputs that have not begun.
    fn holds(&self, dialect: &Dialect, wanted: Wanted) -> impl Fn() -> Box<dyn Constraint> {
        let Wanted { required, several, opened, answer } = wanted;
        let (functions, schema) = (&small(), answer_schema());
        let answer = answer.then_some(&schema);
        let rules = CallRules { dialect, functions, required, several, opened, answer };
        let call = rules.form().unwrap();
        let compiled = self.env.compile(&call.form).unwrap();
        let leads = Leads::new(&Bytes, dialect);
        let tokenizer = Arc::clone(&self.tokenizer);
        move || leads.hold(&call, &tokenizer, Box::new(compiled.constrain()))
    }

    fn hold(&self, dialect: &Dialect, wanted: Wanted) -> Box<dyn Constraint> {
        self.holds(dialect, wanted)()
    }
}

#[derive(Clone, Copy)]
struct Wanted {
    required: bool,
    several: bool,
    opened: bool,
    /// Whether an answer that is no call has a form.
    answer: bool,
}

/// A call may come, and others after it.
const AUTO: Wanted = Wanted { required: false, several: true, opened: false, answer: false };
const REQUIRED: Wanted = Wanted { required: true, several: false, opened: false, answer: false };

/// The form of an answer.
fn answer_schema() -> Value {
    json!({ "type": "object", "properties": { "name": { "enum": ["go", "Ann"] } },
        "required": ["name"], "additionalProperties": false })
}

/// A small generator of numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % most
    }
}

/// A text drawn from what is allowed; `None` if it does not end soon.
fn drawn(mut constraint: Box<dyn Constraint>, seed: u64) -> Option<String> {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut bytes = Vec::new();
    for _ in 0..600 {
        let mut row = vec![0.0; 257];
        constraint.mask(&[], &mut row).unwrap();
        let allowed: Vec<u32> =
            (0..257u32).filter(|id| row[*id as usize] > f32::NEG_INFINITY).collect();
        // Ends are taken where they may be, and white space seldom.
        let token = match allowed.contains(&256) {
            true => END,
            false => {
                let words: Vec<u32> =
                    allowed.iter().copied().filter(|id| ![9, 10, 32].contains(id)).collect();
                let from = if words.is_empty() { &allowed } else { &words };
                Token(from[dice.below(from.len())])
            }
        };
        if token == END {
            return Some(String::from_utf8(bytes).unwrap());
        }
        constraint.commit(&[token]);
        bytes.push(u8::try_from(token.0).unwrap());
    }
    None
}

#[test]
fn a_required_call_is_one_by_its_schema_in_every_family() {
    let holder = Holder::new();
    for family in &FAMILIES {
        // Thoughts are as long as one likes, which chance never ends.
        let dialect = Dialect { thoughts: None, ..family.dialect() };
        let shared = Arc::new(dialect);
        let held = holder.holds(&shared, REQUIRED);
        let mut names = std::collections::BTreeSet::new();
        for seed in 0..12 {
            let text = drawn(held(), seed).unwrap_or_else(|| panic!("{}", family.name));
            let functions: Arc<[Callable]> = small().into();
            let mut splitter = Splitter::new(Arc::clone(&shared), functions, false);
            let mut parts = Vec::new();
            splitter.push(&text, &mut parts);
            splitter.finish(&mut parts);
            assert!(splitter.calls() > 0 && !splitter.is_cut(), "{}: {text:?}", family.name);
            let mut arguments = String::new();
            for (index, part) in parts.iter().enumerate() {
                match part {
                    Part::Call(name) => {
                        names.insert(name.clone());
                        arguments.clear();
                    }
                    Part::Arguments(text) => {
                        arguments.push_str(text);
                        if matches!(parts.get(index + 1), Some(Part::Arguments(_))) {
                            continue;
                        }
                        let value: Value = serde_json::from_str(&arguments).unwrap();
                        let fields = value.as_object().unwrap();
                        assert!(fields.is_empty() || fields.len() == 2, "{text}");
                        if !fields.is_empty() {
                            assert!(["left", "right"].map(Value::from).contains(&value["side"]));
                            assert!((1..=3).contains(&value["steps"].as_u64().unwrap()));
                        }
                    }
                    other => panic!("{}: {other:?} in {text:?}", family.name),
                }
            }
        }
        assert_eq!(names.len(), 2, "{}: both functions can be called", family.name);
    }
}

/// How much of a text is allowed, and whether it may end there.
fn allowed(mut constraint: Box<dyn Constraint>, text: &str) -> (usize, bool) {
    let mut tokens = Bytes.tokenize(text, Special::AsText).unwrap();
    let len = tokens.len();
    tokens.push(END);
    let admitted = constraint.admitted(&tokens);
    (admitted.min(len), admitted == len + 1)
}

#[test]
fn text_is_free_up_to_the_mark_of_a_call_and_calls_are_not() {
    let holder = Holder::new();
    for family in &FAMILIES {
        let dialect = family.dialect();
        let auto = holder.holds(&dialect, AUTO);
        let text = "Anything, \"even\" <this> or [that] {and} so on.\n";
        assert_eq!(allowed(auto(), text), (text.len(), true), "{}", family.name);
        let native = dialect.native.unwrap();
        let call = |side: &str| {
            let arguments = json!({ "side": side, "steps": 2 });
            let (text, opened) =
                written(family, calling(native, "", &[("go", arguments)]), &dialect);
            let end = dialect.thoughts.as_ref().map_or("", |marks| marks.end.as_str());
            match text.split_once(end).filter(|_| opened && !end.is_empty()) {
                Some((_, rest)) => rest.to_owned(),
                None => text,
            }
        };
        let right = call("right");
        assert_eq!(allowed(auto(), &right), (right.len(), true), "{}: {right:?}", family.name);
        let wrong = call("wrong");
        let (len, ends) = allowed(auto(), &wrong);
        assert!(
            !ends && wrong[..len].ends_with(['w', '"', '>', '\n']),
            "{}: {wrong:?}",
            family.name
        );
        assert!(len < wrong.len(), "{}", family.name);
    }
}

#[test]
fn a_mark_inside_a_thought_begins_no_call() {
    let holder = Holder::new();
    let dialect = family("qwen3").dialect();
    let hold = |wanted| holder.hold(&dialect, wanted);
    let opened = Wanted { opened: true, ..AUTO };
    let thought = "<think>\nmaybe <tool_call> so\n</think>\n\nYes.";
    assert_eq!(allowed(hold(AUTO), thought), (thought.len(), true));
    assert_eq!(allowed(hold(opened), &thought[7..]), (thought.len() - 7, true));
    let call = "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";
    for (wanted, lead) in [(AUTO, thought), (opened, &thought[7..]), (AUTO, "No thought. ")] {
        let text = format!("{lead}{call}");
        assert_eq!(allowed(hold(wanted), &text), (text.len(), true), "{text}");
        let wrong = format!("{lead}<tool_call>\n{{\"name\": \"run\"");
        assert!(allowed(hold(wanted), &wrong).0 < wrong.len(), "{wrong}");
    }
    // A required call may be thought about first, and must be made.
    for (opened, lead) in [(false, ""), (false, thought), (true, &thought[7..])] {
        let wanted = Wanted { opened, ..REQUIRED };
        let lead = lead.trim_end_matches("Yes.");
        let text = format!("{lead}{call}");
        assert_eq!(allowed(hold(wanted), &text), (text.len(), true), "{text}");
        assert!(!allowed(hold(wanted), &format!("{lead}No.")).1);
        assert!(!allowed(hold(wanted), lead).1, "{lead:?}");
    }
}

#[test]
fn an_answer_with_a_form_is_that_or_a_call_in_every_family() {
    let holder = Holder::new();
    let either = Wanted { answer: true, ..AUTO };
    // Calls whose mark is JSON cannot be told from answers.
    let marked = FAMILIES.iter().filter(|family| !family.dialect().calls.first_only);
    for family in marked {
        let dialect = family.dialect();
        let held = holder.holds(&dialect, either);
        let arguments = json!({ "side": "left", "steps": 2 });
        let native = family.native();
        let (call, opened) = written(family, calling(native, "", &[("go", arguments)]), &dialect);
        let end = dialect.thoughts.as_ref().map_or("", |marks| marks.end.as_str());
        let call = match call.split_once(end).filter(|_| opened && !end.is_empty()) {
            Some((_, rest)) => rest.to_owned(),
            None => call,
        };
        assert_eq!(allowed(held(), &call), (call.len(), true), "{}: {call:?}", family.name);
        let answer = "\n{\"name\": \"Ann\"}";
        assert_eq!(allowed(held(), answer), (answer.len(), true), "{}", family.name);
        for wrong in ["Ann", "{\"name\": \"Bob\"}", "{}", ""] {
            assert!(!allowed(held(), wrong).1, "{}: {wrong}", family.name);
        }
    }
}

#[test]
fn an_answer_with_a_form_may_be_thought_about() {
    let holder = Holder::new();
    let dialect = family("qwen3").dialect();
    let thought = "<think>\nmaybe <tool_call> or {\"name\"} so\n</think>\n\n";
    let call = "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>";
    for (opened, lead) in [(false, ""), (false, thought), (true, &thought[7..])] {
        let held = holder.holds(&dialect, Wanted { opened, answer: true, ..AUTO });
        for said in [call, "{\"name\": \"Ann\"}"] {
            let text = format!("{lead}{said}");
            assert_eq!(allowed(held(), &text), (text.len(), true), "{text}");
        }
        let text = format!("{lead}Ann.");
        assert_eq!(allowed(held(), &text), (lead.len(), false), "{text}");
    }
    // A thought that the prompt began ends before the form begins, if no function can be called.
    let form = Form::JsonSchema(answer_schema());
    let compiled = holder.env.compile(&form).unwrap();
    let leads = Leads::new(&Bytes, &dialect);
    for (opened, lead) in [(false, ""), (true, "so\n</think>")] {
        let call = CallForm::of_answer(form.clone(), opened);
        let held = || leads.hold(&call, &holder.tokenizer, Box::new(compiled.constrain()));
        let text = format!("{lead}{{\"name\": \"Ann\"}}");
        assert_eq!(allowed(held(), &text), (text.len(), true), "{text}");
        assert_eq!(allowed(held(), &format!("{lead}Ann")), (lead.len(), false));
    }
}

#[test]
fn one_call_is_all_there_is_where_several_are_not_wanted() {
    let holder = Holder::new();
    for family in FAMILIES.iter().filter(|family| family.dialect().calls.several) {
        let dialect = Dialect { thoughts: None, ..family.dialect() };
        let calls = [("stop", json!({})), ("stop", json!({}))];
        let two = written(family, calling(family.native(), "", &calls), &dialect).0;
        let two = two.rsplit_once("</think>").map_or(two.as_str(), |(_, rest)| rest);
        let one = Wanted { several: false, ..AUTO };
        let (several, one) = (holder.hold(&dialect, AUTO), holder.hold(&dialect, one));
        assert_eq!(allowed(several, two), (two.len(), true), "{}: {two:?}", family.name);
        assert!(allowed(one, two).0 < two.len(), "{}: {two:?}", family.name);
    }
}

/// Tokens that cut a mark in several ways.
struct Pieces;

const PIECES: [&str; 7] = ["<", "<tool_", "call>", "call>\n", "<tool_call>", "a<b", "call>a"];

impl Tokenizer for Pieces {
    fn vocab_len(&self) -> usize {
        PIECES.len() + 1
    }
    fn tokenize(&self, _: &str, _: Special) -> Result<Vec<Token>, TokenizeError> {
        Err(TokenizeError::Failed { backend: "pieces" })
    }
    fn start(&self) -> Option<Token> {
        None
    }
    fn is_end(&self, token: Token) -> bool {
        token.index() == PIECES.len()
    }
    fn bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(PIECES.get(token.index()).map_or("", |piece| *piece).bytes());
    }
}

/// Allows nothing but the first token.
struct First;

impl Constraint for First {
    fn mask(&mut self, _: &[Token], logits: &mut [f32]) -> Result<(), ConstraintError> {
        logits[1..].fill(f32::NEG_INFINITY);
        Ok(())
    }
    fn admitted(&mut self, path: &[Token]) -> usize {
        path.iter().take_while(|token| **token == Token(0)).count()
    }
    fn commit(&mut self, _: &[Token]) {}
}

#[test]
fn a_mark_is_found_however_tokens_cut_it_and_none_reaches_beyond_it() {
    let dialect = family("qwen3").dialect();
    let functions = &small();
    let rules = CallRules {
        dialect: &dialect,
        functions,
        required: false,
        several: true,
        opened: false,
        answer: None,
    };
    let call = rules.form().unwrap();
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(Pieces);
    let leads = Leads::new(&Pieces, &dialect);
    // After these tokens, these others are forbidden.
    let all: &[u32] = &[1, 2, 3, 4, 5, 6, 7];
    for (before, forbidden) in [
        (&[][..], &[][..]),
        (&[1], &[3, 6]),
        (&[0, 1], &[3, 6]),
        (&[5, 0], &[]),
        (&[1, 0], &[]),
        (&[1, 2], all),
        (&[4], all),
        (&[5, 1, 2, 0], all),
    ] {
        let before: Vec<Token> = before.iter().map(|id| Token(*id)).collect();
        // As a draft, and as output.
        for committed in 0..=before.len() {
            let mut held = leads.hold(&call, &tokenizer, Box::new(First));
            assert_eq!(held.admitted(&before), before.len());
            held.commit(&before[..committed]);
            let mut logits = [0.0; 8];
            held.mask(&before[committed..], &mut logits).unwrap();
            let found: Vec<u32> = (0..8u32).filter(|id| logits[*id as usize] != 0.0).collect();
            assert_eq!(found, forbidden, "{before:?}, {committed} committed");
            for id in 0..8u32 {
                let path: Vec<Token> =
                    before[committed..].iter().copied().chain([Token(id)]).collect();
                assert_eq!(held.admitted(&path) == path.len(), !forbidden.contains(&id), "{id}");
            }
        }
    }
}

//! What a template renders is read back as what it was rendered from, at every split into pieces.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

/// What was read, joined.
#[derive(Debug, Default, PartialEq)]
struct Read {
    thought: String,
    text: String,
    calls: Vec<(String, Value)>,
}

fn read(dialect: &Arc<Dialect>, pieces: &[&str], opened: bool) -> Read {
    let mut splitter = Splitter::new(Arc::clone(dialect), functions(), opened);
    let mut parts = Vec::new();
    for piece in pieces {
        // A round's parts are sent before the next comes.
        let mut new = Vec::new();
        splitter.push(piece, &mut new);
        parts.extend(new);
    }
    splitter.finish(&mut parts);
    let mut read = Read::default();
    let mut written = Vec::new();
    for part in parts {
        match part {
            Part::Thought(text) => read.thought.push_str(&text),
            Part::Text(text) => read.text.push_str(&text),
            Part::Call(name) => written.push((name, String::new())),
            Part::Arguments(text) => written.last_mut().unwrap().1.push_str(&text),
        }
    }
    let parsed = |(name, text): (String, String)| {
        let arguments = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        (name, arguments)
    };
    read.calls = written.into_iter().map(parsed).collect();
    read
}

/// Reads a text whole, in two pieces at every place, and in pieces of one character and more.
fn read_at_every_split(dialect: &Arc<Dialect>, text: &str, opened: bool, what: &str) -> Read {
    let whole = read(dialect, &[text], opened);
    for (at, _) in text.char_indices() {
        let (one, other) = text.split_at(at);
        assert_eq!(read(dialect, &[one, other], opened), whole, "{what}: {one:?} + {other:?}");
    }
    let chars: Vec<char> = text.chars().collect();
    for size in 1..chars.len().min(12) {
        let pieces: Vec<String> = chars.chunks(size).map(|it| it.iter().collect()).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        assert_eq!(read(dialect, &pieces, opened), whole, "{what}: in pieces of {size}");
    }
    whole
}

/// Arguments whose texts look like marks and like JSON.
fn difficult() -> Value {
    json!({
        "path": "a/b \"c\".txt",
        "text": "if (a < b) { return \"</tool\"; }\n\n\tünd [x] `y` ]} </par",
        "lines": 12,
        "options": { "deep": [1, { "x": "}{" }], "none": null },
    })
}

#[test]
fn one_call_is_read_back_at_every_split() {
    for family in &FAMILIES {
        let dialect = Arc::new(family.dialect());
        let calls = [("write_file", difficult())];
        let message = calling(family.native(), "", &calls);
        let (text, opened) = written(family, message, &dialect);
        let read = read_at_every_split(&dialect, &text, opened, family.name);
        assert_eq!(read.text, "", "{}: {text:?}", family.name);
        assert_eq!(read.calls, calls.map(|(name, it)| (name.to_owned(), it)), "{text:?}");
    }
}

#[test]
fn several_calls_are_read_back_at_every_split() {
    for family in FAMILIES.iter().filter(|family| family.dialect().calls.several) {
        let dialect = Arc::new(family.dialect());
        let calls = [
            ("look", json!({})),
            ("write_file", json!({ "path": "a", "text": "b" })),
            ("look", json!({})),
        ];
        let (text, opened) = written(family, calling(family.native(), "", &calls), &dialect);
        let read = read_at_every_split(&dialect, &text, opened, family.name);
        assert_eq!(read.calls, calls.map(|(name, it)| (name.to_owned(), it)), "{text:?}");
        assert_eq!(read.text, "", "{}: {text:?}", family.name);
    }
}

#[test]
fn text_and_thoughts_before_a_call_are_told_from_it() {
    for family in &FAMILIES {
        let dialect = Arc::new(family.dialect());
        let said = "Let me see: a < b, [c] and {d}.";
        let mut message = Message::new("assistant", said);
        message.extra.set("reasoning_content", "I should <answer>.\nYes.");
        let (text, opened) = written(family, message, &dialect);
        let read = read_at_every_split(&dialect, &text, opened, family.name);
        assert_eq!((read.text.trim(), read.calls.len()), (said, 0), "{}: {text:?}", family.name);
        if text.contains("Yes.") {
            assert_eq!(read.thought, "I should <answer>.\nYes.", "{}: {text:?}", family.name);
        }
        if dialect.calls.first_only || family.name == "command_r7b" || family.name == "granite3" {
            continue;
        }
        let calls = [("look", json!({}))];
        let (text, opened) = written(family, calling(family.native(), said, &calls), &dialect);
        if !text.contains(said) {
            continue;
        }
        let read = read_at_every_split(&dialect, &text, opened, family.name);
        assert_eq!((read.text.trim(), read.calls.len()), (said, 1), "{}: {text:?}", family.name);
    }
}

#[test]
fn what_is_no_call_is_text() {
    let dialect = Arc::new(family("qwen3").dialect());
    for text in [
        "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>no",
        "<tool_call>[1]",
        "a < b <tool_cal",
        "{\"name\": \"look\", \"arguments\": {}}",
    ] {
        let read = read_at_every_split(&dialect, text, false, text);
        assert_eq!((read.text.as_str(), read.calls.len()), (text, 0));
    }
    // A thought that never ends is a thought.
    let read = read_at_every_split(&dialect, "<think>\nhm <tool_call>", false, "thought");
    assert_eq!((read.thought.as_str(), read.text.as_str()), ("hm <tool_call>", ""));
    let none = Splitter::new(Arc::clone(&dialect), Arc::new([]), false);
    let (mut none, mut parts) = (none, Vec::new());
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>";
    none.push(call, &mut parts);
    none.finish(&mut parts);
    assert_eq!(parts, [Part::Text(call.to_owned())], "without functions there are no calls");
}

#[test]
fn arguments_come_as_they_are_written() {
    for (name, text) in [
        ("qwen3", "<tool_call>\n{\"name\": \"write_file\", \"arguments\": {\"path\": \"abc"),
        ("mistral_small", "[TOOL_CALLS]write_file[CALL_ID]abcdefgh1[ARGS]{\"path\": \"abc"),
        ("qwen3_coder", "<tool_call>\n<function=write_file>\n<parameter=path>\nabc"),
    ] {
        let mut splitter = Splitter::new(Arc::new(family(name).dialect()), functions(), false);
        let mut parts = Vec::new();
        splitter.push(text, &mut parts);
        let written =
            [Part::Call("write_file".to_owned()), Part::Arguments("{\"path\": \"abc".to_owned())];
        assert_eq!(parts, written, "{name}");
        splitter.finish(&mut parts);
        assert!(splitter.is_cut() && splitter.calls() == 1, "{name}");
    }
}

#[test]
fn the_channels_of_harmony_are_told_apart_at_every_split() {
    let source = "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}";
    let template = ChatTemplate::new(source, None, None).unwrap();
    let dialect = Arc::new(Dialect::of(&template, source, Vec::new()));
    assert!(dialect.native.is_some());
    let thought = "<|channel|>analysis<|message|>hm <b><|end|><|start|>assistant";
    let call = "<|channel|>commentary to=functions.write_file <|constrain|>json<|message|>";
    let arguments = json!({ "path": "a<|b" });
    for (text, said, calls) in [
        (format!("{thought}<|channel|>final<|message|>Yes."), "Yes.", vec![]),
        ("<|channel|>final<|message|>Yes.".to_owned(), "Yes.", vec![]),
        (format!("{thought}{call}{arguments}"), "", vec![("write_file".to_owned(), arguments)]),
    ] {
        let read = read_at_every_split(&dialect, &text, false, "harmony");
        assert_eq!((read.text.as_str(), &read.calls), (said, &calls), "{text}");
        let thinks = text.starts_with(thought);
        assert_eq!(read.thought, if thinks { "hm <b>" } else { "" }, "{text}");
    }
}

/// Strings with all that marks and JSON are made of.
fn strings() -> impl Strategy<Value = String> {
    "([ -~\n\u{e9}\u{1F600}]|</?(tool_call|think|parameter|function|arg_value)=?>?|[\\[\\]{}\"\\\\<|]){0,24}"
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any arguments, cut anywhere. Values that hold a mark of their own format are no property of
    /// formats that do not escape: those are made of JSON here.
    #[test]
    fn random_calls_are_read_back_however_they_are_cut(
        index in 0..FAMILIES.len(),
        text in strings(),
        lines in any::<i32>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let family = &FAMILIES[index];
        let dialect = Arc::new(family.dialect());
        let tagged = matches!(dialect.calls.body, Body::Tagged(_));
        let text = if tagged { text.replace(['<', '\n'], "_") } else { text };
        let calls = [("write_file", json!({ "path": "p", "text": text, "lines": lines }))];
        let (output, opened) = written(family, calling(family.native(), "", &calls), &dialect);
        let mut places: Vec<usize> = cuts
            .iter()
            .map(|cut| cut.index(output.len() + 1))
            .map(|at| (at..=output.len()).find(|at| output.is_char_boundary(*at)).unwrap())
            .chain([0, output.len()])
            .collect();
        places.sort_unstable();
        let pieces: Vec<&str> = places.windows(2).map(|pair| &output[pair[0]..pair[1]]).collect();
        let read = read(&dialect, &pieces, opened);
        prop_assert_eq!(read.calls, calls.map(|(name, it)| (name.to_owned(), it)), "{}", output);
        prop_assert_eq!(read.text, "");
    }
}

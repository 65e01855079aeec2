//! Grammars in llama.cpp's format: what they match, and what is wrong with malformed ones.

mod common;

use common::*;

/// llama.cpp's grammar of JSON, but for its names.
const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#;

/// Grammars, texts that they match, and texts that they do not.
const GRAMMARS: &[(&str, &[&str], &[&str])] = &[
    (r#"root ::= "yes" | "no""#, &["yes", "no"], &["", "y", "yesno"]),
    (r#"root ::= "a"* "ab""#, &["ab", "aab", "aaaab"], &["a", "aaa", "b"]),
    ("root ::= [a-c] [^a-c] .", &["ax.", "c\n\n", "bé日"], &["aax", "dxx", "ax"]),
    ("root ::= [-a] [a-] [\\]\\[^] [^^]", &["--]a", "aa[]", "-a^x"], &["b-]a", "--xa", "--]^"]),
    (r#"root ::= "\"\\\n\t\r\x41\u00e9\U0001F600""#, &["\"\\\n\t\rAé😀"], &["\"\\"]),
    (r"root ::= [\x30-\x39\u4e00-\u9fff]+", &["7日3本"], &["", "a", "ぁ"]),
    ("root ::= a b?\na ::= \"x\"{2}\nb ::= \"y\"{1,2}", &["xx", "xxy", "xxyy"], &["x", "xxyyy"]),
    ("root ::= \"x\"{2,} [0-9]{0,1}", &["xx", "xxxxx", "xx1"], &["x", "xx11"]),
    ("root ::= \"x\"{0} \"y\"{0,0} \"z\"", &["z"], &["", "xz", "yz"]),
    ("root ::= (\"a\" | \"b\" \"c\")+ (\"d\")*", &["a", "bca", "abcdd"], &["", "b", "da"]),
    ("root ::= ", &[""], &["a"]),
    ("root ::= ( | ) \"\" | \"a\"", &["", "a"], &["aa"]),
    ("root ::= |\"a\"|", &["", "a"], &["aa"]),
    // Over lines, with and without something that says so, and with comments.
    ("root ::= \"a\"\n  | \"b\"\n  c # here\n\n# there\nc ::= \"c\"", &["a", "bc"], &["b", "ac"]),
    ("root ::=\n\"a\" |\r\n\"b\" item-2 \r\nitem-2 ::= \"#\"", &["a", "b#"], &["b"]),
    ("root ::= (\n \"a\" # (\n \"b\"\n)\n", &["ab"], &["a"]),
    ("root::=A_b\nA_b::=\"x\" # end", &["x"], &[""]),
    ("root ::= \"a\n#\"", &["a\n#"], &["a"]),
    // Recursion: to the right, to the left, in the middle, through another, without a base of text.
    ("root ::= \"a\" root | \"b\"", &["b", "aab"], &["a", "ba"]),
    ("root ::= root \"a\" | \"b\"", &["b", "baa"], &["", "a", "ab"]),
    ("root ::= \"(\" root \")\" root |", &["", "()", "(())()"], &["(", ")(", "())"]),
    (
        "root ::= \"[\" list \"]\"\nlist ::= root | root \",\" list | ",
        &["[]", "[[],[]]"],
        &["[", "[,]"],
    ),
    ("root ::= root root | \"a\" | \"\"", &["", "a", "aaaa"], &["b"]),
    // What a lexeme read as long as can be would get wrong: `aa` is two items, `éè` one and more.
    ("root ::= i root i | \".\"\ni ::= \"a\" \"a\"?", &["a.a", "aaa.aa"], &["aa.", "a.aaa"]),
    ("root ::= i root i | \".\"\ni ::= \"é\"? \"a\" \"a\"?", &["aaa.aa", "éaa.éa"], &["é.é"]),
    (
        "root ::= i (\"(\" root \")\")* t\ni ::= \"a\" \"ab\"?\nt ::= \"ac\" t | \"d\"",
        &["aacd", "aabd", "a(ad)(aacd)acd"],
        &["aab", "a(d)d"],
    ),
    (
        "root ::= i p root i | \".\"\ni ::= \"a\" \"a\"?\np ::= \"(\" p \")\" |",
        &["aaa.aa", "a(()).a"],
        &["a(.a"],
    ),
    ("root ::= \"é\"* p \"è\"\np ::= \"(\" p \")\" |", &["è", "éè", "éé(())è"], &["é", "éè)"]),
    ("root ::= \"a\"* root \"b\" | \"a\"* \"ab\" ", &["ab", "aabb", "aaabbb"], &["aa", "b", "ba"]),
    (
        "root ::= x root x | \".\"\nx ::= \"a\" | \"aa\" | \"ab\"",
        &["a.a", "aa.ab", "aab.aa"],
        &[".a", "ab.b"],
    ),
    (
        "root ::= w \"(\" root \")\" w | w \"x\" w\nw ::= [ \\n]*",
        &["x", " ( x ) ", "( (x )\n\n)"],
        &["()"],
    ),
    ("root ::= \"é\"* root \"è\" | \"x\"", &["x", "ééxè", "éxèè"], &["è", "éx\u{e9}"]),
    (
        "root ::= t (\"+\" t)*\nt ::= n | \"(\" root \")\"\nn ::= [0-9]+ (\".\" [0-9]+)?",
        &["1", "1.5+(2+33)", "((1))"],
        &["1.", "+1", "(1"],
    ),
    (
        JSON,
        &[
            "{}",
            "{\"a\": [1, -2.5e7, \"n\\u00e9\\n\"], \"b\":{\"c\":null}}",
            "{\n\t\"a\":[\n    [ ]]\n}\n",
        ],
        &["[]", "{\"a\":}", "{\"a\":1,}", "{\"a\"  : 1}", "{\"\\q\":1}", "{  }", "{\"a\":[1 2]}"],
    ),
];

#[test]
fn grammars_match_their_texts_and_no_others() {
    for (text, right, wrong) in GRAMMARS {
        let form = grammar(text);
        for text in *right {
            assert!(accepts(&form, text), "{form:?} should match {text:?}");
        }
        for text in *wrong {
            assert!(!accepts(&form, text), "{form:?} should not match {text:?}");
        }
    }
}

#[test]
fn malformed_grammars_are_refused_with_the_line() {
    for (text, message) in [
        ("", "line 1: rule `root` is not defined"),
        ("a ::= \"x\"\n", "line 2: rule `root` is not defined"),
        ("root ::= a\n\nb ::= a c", "line 1: rule `a` is not defined"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: rule `root` is defined twice"),
        (
            "root ::= \"a\"\n\"b\" ::= x",
            "line 2: `:` where a name, a literal, a class or a group should be",
        ),
        ("root = \"a\"", "line 1: `=` where `::=` should be"),
        ("root", "line 1: the grammar ends where `::=` should be"),
        ("| \"a\"", "line 1: `|` where a rule's name should be"),
        ("root ::= (\"a\"\n\nb ::= \"c\"", "line 1: unclosed `(`"),
        ("root ::= \"a\")", "line 1: `)` without `(`"),
        ("root ::= \"a", "line 1: unclosed `\"`"),
        ("root ::= \"a\\", "line 1: unclosed `\"`"),
        ("root ::= \"a\"\n [a-", "line 2: unclosed `[`"),
        ("root ::= [a", "line 1: unclosed `[`"),
        ("root ::= []", "line 1: a class of no characters"),
        ("root ::= [^\\x00-\\U0010FFFF]", "line 1: a class of no characters"),
        ("root ::= [z-a]", "line 1: the range `z-a` is backwards"),
        ("root ::= \"\\q\"", "line 1: unknown escape `\\q`"),
        ("root ::= \"\\x4\"", "line 1: an escape with fewer than 2 hexadecimal digits"),
        ("root ::= \"\\u+041\"", "line 1: an escape with fewer than 4 hexadecimal digits"),
        ("root ::= \"\\ud800\"", "line 1: U+d800 is no character"),
        ("root ::= \"\\U00110000\"", "line 1: U+00110000 is no character"),
        ("root ::= * \"a\"", "line 1: there is nothing before `*` to repeat"),
        ("root ::= (+)", "line 1: there is nothing before `+` to repeat"),
        ("root ::= \"a\"{", "line 1: the grammar ends where a number of repetitions should be"),
        ("root ::= \"a\"{x}", "line 1: `x` where a number of repetitions should be"),
        ("root ::= \"a\"{2;3}", "line 1: `;` where `}` should be"),
        ("root ::= \"a\"{3,2}", "line 1: a repetition whose least is more than its most"),
        ("root ::= \"a\"{10001}", "line 1: more than 10000 repetitions"),
        ("root ::= \"a\"{99999999999}", "line 1: more than 10000 repetitions"),
        ("root ::= <[123]>", "line 1: token literals are not supported"),
        ("root ::= \"a\"\n  <think>", "line 2: token literals are not supported"),
        ("root ::= !<think>", "line 1: token literals are not supported"),
        ("root ::= \"a\" root", "line 1: rule `root` can never end"),
        ("root ::= \"a\" | b\nb ::= c \"x\"\nc ::= b", "line 2: rule `b` can never end"),
    ] {
        assert_eq!(refusal(&grammar(text)), format!("grammar, {message}"), "{text:?}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(257), ")".repeat(257));
    let message = "grammar, line 1: more than 256 parentheses inside each other";
    assert_eq!(refusal(&grammar(&deep)), message);
    let many: String = (0..4097).map(|rule| format!("r{rule} ::= \"a\"\n")).collect();
    assert_eq!(refusal(&grammar(&many)), "grammar, line 4097: more than 4096 rules");
}

#[test]
fn groups_may_be_as_deep_as_is_said() {
    let deep = format!("root ::= {}\"a\" root{} | \"b\"", "(\"x\" ".repeat(256), ")".repeat(256));
    let text = format!("{}ab", "x".repeat(256));
    assert!(accepts(&grammar(&deep), &text));
    assert!(!accepts(&grammar(&deep), &text[1..]));
}

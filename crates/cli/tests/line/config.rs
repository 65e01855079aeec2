//! Flags from a file.

use clap::CommandFactory as _;

use super::*;
use crate::Cli;

/// The flags of a file for a command, where a line says something already.
fn beside(text: &str, line: &str) -> Result<Vec<String>, String> {
    let command = Cli::command();
    let table: Table = text.parse().unwrap();
    check(&table, &command).map_err(|error| error.to_string())?;
    let argv = ["forerun"].into_iter().chain(line.split_whitespace());
    let said = command.clone().ignore_errors(true).try_get_matches_from(argv).unwrap();
    let (name, said) = said.subcommand().unwrap();
    let is_said =
        |arg: &Arg| said.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let flags = flags(&table, command.find_subcommand(name).unwrap(), is_said);
    let flags = flags.map_err(|error| error.to_string())?;
    Ok(flags.into_iter().map(|flag| flag.into_string().unwrap()).collect())
}

fn of(text: &str) -> Result<Vec<String>, String> {
    beside(text, "serve")
}

#[test]
fn a_table_becomes_flags() {
    let text = "model = 'a.gguf'\nparallel = 8\nlog-prompts = true\nmlock = false\n\
                api-key = ['one', 'two']\nkv-unified = false\ntemp = 0.5";
    let mut flags = of(text).unwrap();
    flags.sort();
    assert_eq!(
        flags,
        [
            "--api-key=one",
            "--api-key=two",
            "--kv-unified=off",
            "--log-prompts",
            "--model=a.gguf",
            "--parallel=8",
            "--temp=0.5",
        ]
    );
}

#[test]
fn a_key_is_for_every_command_that_has_it() {
    let text = "temp = 0.5\nport = 1\nsystem-prompt = 'Be brief.'";
    assert_eq!(of(text).unwrap(), ["--port=1", "--temp=0.5"]);
    assert_eq!(beside(text, "chat").unwrap(), ["--system-prompt=Be brief.", "--temp=0.5"]);
    assert_eq!(beside(text, "pull").unwrap(), Vec::<String>::new());
}

#[test]
fn a_command_s_own_table_goes_before_what_is_for_all() {
    let text = "temp = 0.5\nthreads = 2\n[chat]\ntemp = 1";
    assert_eq!(of(text).unwrap(), ["--temp=0.5", "--threads=2"]);
    assert_eq!(beside(text, "chat").unwrap(), ["--temp=1", "--threads=2"]);
    // Another name of the same flag is no other flag.
    let text = "draft-max = 3\n[chat]\nspec-draft-n-max = 5";
    assert_eq!(beside(text, "chat").unwrap(), ["--spec-draft-n-max=5"]);
}

#[test]
fn what_is_said_in_the_same_or_another_way_goes_before_the_file() {
    for (text, line, flags) in [
        ("parallel = 8\nport = 1", "serve --parallel 2", &["--port=1"][..]),
        ("api-key = ['one', 'two']", "serve --api-key three", &[]),
        ("model = 'a.gguf'", "chat b.gguf", &[]),
        ("model = 'a.gguf'", "chat --hf-repo acme/tiny", &[]),
        ("hf-repo = 'acme/tiny'\nhf-file = 'a.gguf'", "chat --model b.gguf", &[]),
        ("hf-repo = 'acme/tiny'\nhf-file = 'a.gguf'", "chat --hf-repo acme/big", &[]),
        (
            "hf-repo = 'acme/tiny'\nhf-file = 'a.gguf'",
            "chat --hf-file b.gguf",
            &["--hf-repo=acme/tiny"],
        ),
        ("model-draft = 'a.gguf'", "chat --spec-draft-hf acme/tiny", &[]),
        ("mlock = true", "chat --no-mmap", &[]),
        ("no-mmap = true", "chat --mlock", &[]),
        ("model = 'a.gguf'\nthreads = 2", "certify --url http://a", &[]),
        ("model = 'a.gguf'\nthreads = 2", "bench --url http://a", &["--threads=2"]),
    ] {
        assert_eq!(beside(text, line).unwrap(), flags, "{line}");
    }
}

#[test]
fn what_no_flag_means_is_refused_with_the_nearest_name() {
    for (text, said) in [
        ("modl = 'a'", "there is no flag --modl: did you mean model?"),
        ("xyzzy = 1", "there is no flag --xyzzy: see `forerun serve --help`"),
        ("config = 'b'", "there is no flag --config"),
        ("port = [1, 2]", "port is a list; expected text"),
        ("[certify]\napi-key = ['a']", "api-key is a list; expected text"),
        ("mlock = 'yes'", "mlock is \"yes\"; expected true or false"),
        ("[server]\nport = 1", "[server] is no command: tables are generate, chat, serve"),
        ("[doctor]\njson = true", "[doctor] is no command"),
        ("[serve]\nprt = 1", "there is no flag --prt in [serve]: did you mean port?"),
        ("[serve]\nsystem-prompt = 'a'", "there is no flag --system-prompt in [serve]"),
        ("[serve]\nport = { a = 1 }", "port is a table; expected text"),
        ("port = [1, 2]", "port is a list; expected text"),
        ("parallel = 'many'", "invalid value 'many' for '--parallel <N>'"),
        ("[chat]\nverify = 'blocky'", "invalid value 'blocky' for '--verify <RULE>'"),
    ] {
        let message = of(text).unwrap_err();
        assert!(message.contains(said), "{text}: {message}");
    }
}

#[test]
fn the_file_is_the_one_named_else_that_of_the_usual_place() {
    let home = std::env::temp_dir();
    let find = |named: Option<&str>, folder: Option<&str>| {
        let variable = |name: &str| {
            let own = name == "XDG_CONFIG_HOME" || name == "APPDATA";
            folder.filter(|_| own).map(OsString::from)
        };
        Source::find_in(named.map(OsStr::new), variable, Some(home.clone()))
    };
    let missing = |folder: PathBuf| Source::Missing(folder.join("forerun").join("config.toml"));
    let other = home.join("no-such-folder");
    assert_eq!(find(Some("a.toml"), other.to_str()), Source::File("a.toml".into()));
    assert_eq!(find(Some(""), other.to_str()), Source::None);
    assert_eq!(find(None, other.to_str()), missing(other.clone()));
    assert_eq!(find(None, Some("relative")), missing(home.join(".config")));
    assert_eq!(find(None, None), missing(home.join(".config")));
    assert_eq!(Source::find_in(None, |_| None, None), Source::None);
}

#[test]
fn flags_are_put_behind_their_command() {
    let argv = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
    assert_eq!(place(&argv("forerun chat --temp 1"), "chat"), Some(2));
    assert_eq!(place(&argv("forerun --config a chat --temp 1"), "chat"), Some(4));
    assert_eq!(place(&argv("forerun --config chat chat"), "chat"), Some(4));
    assert_eq!(place(&argv("forerun --config=chat chat"), "chat"), Some(3));
}

#[test]
fn the_schema_is_the_committed_one() {
    let now = format!("{:#}\n", schema::schema(&Cli::command()));
    let committed = include_str!("../../../../docs/reference/config.schema.json");
    assert!(now == committed, "run `just reference`");
}

#[test]
fn the_schema_knows_what_each_flag_takes() {
    let schema = schema::schema(&Cli::command());
    let kind = |name: &str, word: &str| schema["properties"][name][word].clone();
    assert_eq!(kind("parallel", "type"), "integer");
    assert_eq!(kind("min-p", "type"), "number");
    assert_eq!(kind("mlock", "type"), "boolean");
    assert_eq!(kind("hf-file", "type"), "string");
    assert_eq!(kind("api-key", "anyOf")[1]["type"], "array");
    // Several rules can be compared, and one used.
    let rules = kind("verify", "anyOf")[0]["enum"].clone();
    assert!(rules.as_array().unwrap().contains(&"block".into()), "{rules}");
    let serve = &schema["properties"]["serve"];
    assert_eq!(serve["additionalProperties"], false);
    assert_eq!(serve["properties"]["port"]["$ref"], "#/properties/port");
    assert_eq!(schema["properties"]["config"], serde_json::Value::Null);
    assert_eq!(schema["properties"]["doctor"], serde_json::Value::Null);
}

//! The examples in C and C++, compiled against the header with sanitizers, say what Rust says.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::Command;

use forerun_verify as verify;
use verify::{Batch, BatchVerifier, Layout, PathRule, PathVerdict, Rows, Values};

/// The static library that cargo built beside this test.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let libraries = files.filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("libforerun_verify_c") && name.ends_with(".a")
    });
    let newest = libraries.max_by_key(|entry| entry.metadata().unwrap().modified().unwrap());
    newest.expect("cargo builds the static library for its tests").path()
}

/// GCC brings its sanitizers; clang's are a package of their own.
fn run(compiler: &str, example: &str, standard: &str) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = std::env::temp_dir().join(format!("forerun-{}-{example}", std::process::id()));
    let built = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"])
        .args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
        .arg("-I")
        .arg(here.join("include"))
        .arg(here.join("examples").join(example))
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&out)
        .output()
        .unwrap();
    assert!(built.status.success(), "{compiler}: {}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&out).output().unwrap();
    std::fs::remove_file(&out).unwrap();
    assert!(ran.status.success(), "{example}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

#[cfg(unix)]
#[test]
fn a_path_in_c() {
    let (draft, target) =
        ([0.2, 0.2, 0.6, 0.7, 0.2, 0.1], [0.1, 0.3, 1.9, 2.0, 0.1, 0.3, 0.5, 0.5, 0.5]);
    let path = verify::Path::new(
        &[2, 0],
        Some(Rows::weights(Values::F32(&draft), 3)),
        Rows::logits(Values::F32(&target), 3, 1.0),
    );
    let mut expected = String::new();
    for seed in 0..4 {
        let verdict = verify::verify_path(&path, PathRule::Block, seed).unwrap();
        let line = format!("seed {seed}: {} accepted, then {}\n", verdict.accepted, verdict.next.0);
        expected.push_str(&line);
    }
    expected.push_str(
        "status 4: sequence 0: target row 2 is missing or cut short; expected 3 rows of 3 numbers\n\
         status 1: target is null\n",
    );
    assert_eq!(run("gcc", "path.c", "-std=c11"), expected);
}

#[cfg(unix)]
#[test]
fn a_batch_in_cpp() {
    let number = |i: usize| (i * 37 % 911) as f32 * 0.01;
    let logits: Vec<u16> =
        (0..32_000).map(|i| u16::try_from(number(i).to_bits() >> 16).unwrap()).collect();
    let tokens: Vec<u32> = (0..24).map(|i| i * 131 % 1_000).collect();
    let batch = Batch::new(
        Layout::Padded { len_max: 3, lengths: &[3, 0, 1, 2, 3, 3, 2, 1] },
        &tokens,
        None,
        Rows::logits(Values::Bf16(&logits), 1_000, 0.8),
    );
    let mut expected = String::new();
    for (number, rule) in PathRule::ALL.into_iter().enumerate() {
        let mut verdicts = [PathVerdict::NONE; 8];
        let seeds = [1, 2, 3, 4, 5, 6, 7, 8];
        BatchVerifier::on_one_thread().verify(&batch, rule, &seeds, &mut verdicts).unwrap();
        expected.push_str(&format!("rule {number}:"));
        for verdict in verdicts {
            expected.push_str(&format!(" {}/{}", verdict.accepted, verdict.next.0));
        }
        expected.push('\n');
    }
    expected.push_str("status 3: sequence 5: target row 0: entry of token 17 is NaN\n");
    assert_eq!(run("g++", "batch.cpp", "-std=c++17"), expected);
}

/// The header is written by hand: what it says of layouts and values is compared with Rust's.
#[cfg(unix)]
#[test]
fn the_header_says_what_rust_says() {
    use forerun_verify_c::{RawBatch, RawRows, RawVerdict, Status};
    use std::mem::{offset_of, size_of};

    let statuses = [
        ("OK", Status::Ok),
        ("NULL", Status::Null),
        ("ARGUMENT", Status::Argument),
        ("ROW", Status::Row),
        ("PATH", Status::Path),
        ("PANIC", Status::Panic),
    ];
    let mut checks = vec![
        ("sizeof(forerun_rows)".to_owned(), size_of::<RawRows>()),
        ("sizeof(forerun_batch)".to_owned(), size_of::<RawBatch>()),
        ("sizeof(forerun_verdict)".to_owned(), size_of::<RawVerdict>()),
    ];
    checks.extend(statuses.map(|(name, status)| (format!("FORERUN_{name}"), status as usize)));
    macro_rules! fields {
        ($raw:ty, $c:literal: $($field:ident)*) => {
            $(checks.push((
                format!("offsetof({}, {})", $c, stringify!($field)),
                offset_of!($raw, $field),
            ));)*
        };
    }
    fields!(RawRows, "forerun_rows": values len number meaning temperature stride sequence_stride);
    fields!(RawBatch, "forerun_batch": sequences tokens token_count offsets len_max lengths seeds
        positions temperatures draft target vocab_len);
    fields!(RawVerdict, "forerun_verdict": accepted next);
    let asserts: String = checks
        .iter()
        .map(|(what, value)| format!("_Static_assert({what} == {value}, \"{what}\");\n"))
        .collect();
    let source = std::env::temp_dir().join(format!("forerun-{}-layout.c", std::process::id()));
    std::fs::write(&source, format!("#include \"forerun.h\"\n{asserts}")).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let checked = Command::new("gcc")
        .args(["-std=c11", "-fsyntax-only", "-I"])
        .arg(include)
        .arg(&source)
        .output()
        .unwrap();
    std::fs::remove_file(&source).unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

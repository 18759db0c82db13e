//! `broker/core` has no clock, randomness, float, hash-ordered map, I/O, logging or async.
//!
//! Its Clippy file bans most of this by type; here are the words Clippy cannot ban (primitive
//! floats, keywords, crates) and the modules of `std` as a whole. Its tests are held to it too.

use crate::lexer::{Kind, Token, crate_mentions, lex, reads, std_modules};
use crate::tree::{SourceFile, Tree, Violation, assert_clean, lines};

const FOLDER: &str = "broker/core/src/";

/// Words that must not occur, and what to do instead.
const WORDS: [(&[&str], &str); 7] = [
    (&["f32", "f64"], "no floats: integers with a unit"),
    (&["HashMap", "HashSet"], "no hash order: BTreeMap, BTreeSet"),
    (&["Instant", "SystemTime"], "no clock: time arrives with the command"),
    (&["RandomState", "DefaultHasher"], "no randomness"),
    (&["async", "await"], "no async: return what is to be done"),
    (&["Mutex", "RwLock", "OnceLock", "LazyLock", "thread_local", "static"], "no globals or locks"),
    (&["unsafe"], "no unsafe code"),
];

/// Crates that must not be named, even where another crate brings them in.
const CRATES: [&str; 10] = [
    "chrono",
    "fastrand",
    "futures",
    "getrandom",
    "jiff",
    "log",
    "rand",
    "tempfile",
    "tokio",
    "tracing",
];

const PRINTS: [&str; 4] = ["print", "println", "eprint", "eprintln"];

const STD_MODULES: [&str; 8] = ["fs", "net", "io", "env", "process", "thread", "os", "time"];

fn check(file: &SourceFile) -> Vec<Violation> {
    if !file.path.starts_with(FOLDER) || !file.is_rust() {
        return Vec::new();
    }
    let tokens = match lex(file) {
        Ok(tokens) => tokens,
        Err(violation) => return vec![violation],
    };
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let text = token.text.as_str();
        if let Some(why) = forbidden(&tokens, i) {
            found.push(file.violation(token.line, format!("`{text}`: {why}")));
        }
        if PRINTS.contains(&text) && reads(&tokens, i + 1, &["!"]) {
            found.push(file.violation(token.line, format!("`{text}!`: return an event")));
        }
        if is_float_literal(&tokens, i) {
            found.push(file.violation(token.line, format!("float `{text}`")));
        }
    }
    for name in CRATES {
        let lines = crate_mentions(&tokens, name).into_iter();
        found.extend(lines.map(|line| file.violation(line, format!("crate `{name}`"))));
    }
    for (module, line) in std_modules(&tokens) {
        if STD_MODULES.contains(&module.as_str()) {
            found.push(file.violation(line, format!("`std::{module}`: no I/O, clock or machine")));
        }
    }
    found
}

/// Why the word at `i` must not stand there, if so. The lifetime `'static` is no global.
fn forbidden(tokens: &[Token], i: usize) -> Option<&'static str> {
    let token = &tokens[i];
    let is_lifetime = i >= 1 && tokens[i - 1].text == "'";
    if token.kind != Kind::Word || is_lifetime {
        return None;
    }
    let row = WORDS.iter().find(|(words, _)| words.contains(&token.text.as_str()));
    row.map(|(_, why)| *why)
}

/// `1.5`, `1e9` and `2f64`; not `0x1e9`, and not `pair.0.1`, whose `0.1` lexes as a literal.
fn is_float_literal(tokens: &[Token], i: usize) -> bool {
    let text = tokens[i].text.as_str();
    let is_number =
        tokens[i].kind == Kind::Literal && text.starts_with(|c: char| c.is_ascii_digit());
    let follows_a_dot = i >= 1 && tokens[i - 1].text == ".";
    let has_radix = ["0x", "0b", "0o"].iter().any(|radix| text.starts_with(radix));
    let is_float =
        text.contains('.') || text.ends_with("f32") || text.ends_with("f64") || has_exponent(text);
    is_number && is_float && !follows_a_dot && !has_radix
}

fn has_exponent(text: &str) -> bool {
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    text[digits_end..].starts_with(['e', 'E'])
}

#[test]
fn the_rules_are_functions_of_their_arguments() {
    assert_clean(&Tree::real().check(check));
}

#[test]
fn the_strict_clippy_file_and_the_denied_floats_are_in_place() {
    let tree = Tree::real();
    assert!(tree.has("broker/core/clippy.toml"));
    let root = tree.file("broker/core/src/lib.rs").expect("core has a crate root");
    for line in ["#![forbid(unsafe_code)]", "#![deny(clippy::float_arithmetic"] {
        assert!(root.text.contains(line), "{}: `{line}` is missing", root.path);
    }
}

#[test]
fn each_forbidden_word_is_caught_in_core_and_nowhere_else() {
    let planted = [
        "fn f(a: f64) {}",
        "const A: u8 = 1.5;",
        "const A: u8 = 1e9;",
        "const A: u8 = 2_f32;",
        "use std::collections::HashMap;",
        "fn f() { let t = Instant::now(); }",
        "use std::fs;",
        "use std::{fmt, io::Read};",
        "fn f() { println!(); }",
        "fn f() { log::info!(); }",
        "async fn f() {}",
        "static A: u8 = 1;",
        "fn f() { rand::random(); }",
        "fn f() { unsafe { g() } }",
        "fn f() { std::env::var(a); }",
    ];
    for text in planted {
        let text = format!("//! x\n{text}\n");
        let in_core = check(&SourceFile::planted("broker/core/src/rules.rs", &text));
        assert!(!in_core.is_empty() && lines(&in_core).iter().all(|l| *l == 2), "{text}");
        assert_eq!(check(&SourceFile::planted("broker/src/http.rs", &text)), [], "{text}");
    }
}

#[test]
fn words_in_comments_and_look_alikes_are_let_through() {
    let fine = [
        "/// No f64, no HashMap.\nfn f(pair: P) { pair.0.1 }",
        "const A: u64 = 0x1e9;",
        "const A: u64 = 1_000;",
        "fn f(log: u8) -> &'static str { g(log) }",
        "use std::collections::BTreeMap;",
        "fn f() { (0..5).sum() }",
        "const A: u64 = 2u64;",
    ];
    for text in fine {
        let file = SourceFile::planted("broker/core/src/rules.rs", text);
        assert_eq!(check(&file), [], "{text}");
    }
}

//! `protocol` without its feature `transport` has no I/O: words, units and bytes only.

use crate::lexer::{Kind, lex_shipped, std_modules};
use crate::tree::{SourceFile, Tree, Violation, assert_clean, lines};

const FOLDER: &str = "protocol/src/";
const TRANSPORT: [&str; 2] = ["protocol/src/transport/", "protocol/src/transport.rs"];
const GATE: &str = "#[cfg(feature = \"transport\")]";

const STD_MODULES: [&str; 7] = ["fs", "net", "io", "env", "process", "thread", "os"];
const WORDS: [&str; 9] = [
    "Instant",
    "SystemTime",
    "async",
    "await",
    "tokio",
    "async_nats",
    "println",
    "eprintln",
    "unsafe",
];

fn check(file: &SourceFile) -> Vec<Violation> {
    let is_transport = TRANSPORT.iter().any(|path| file.path.starts_with(path));
    if !file.path.starts_with(FOLDER) || !file.is_rust() || is_transport {
        return Vec::new();
    }
    let tokens = match lex_shipped(file) {
        Ok(tokens) => tokens,
        Err(violation) => return vec![violation],
    };
    let words = tokens.iter().filter(|t| t.kind == Kind::Word);
    let words = words.filter(|t| WORDS.contains(&t.text.as_str()));
    let words = words.map(|t| file.violation(t.line, format!("`{}` outside transport", t.text)));
    let modules = std_modules(&tokens).into_iter();
    let modules = modules.filter(|(module, _)| STD_MODULES.contains(&module.as_str()));
    let modules = modules
        .map(|(module, line)| file.violation(line, format!("`std::{module}` outside transport")));
    words.chain(modules).chain(ungated(file)).collect()
}

/// The line that declares the transport module must stand directly behind its feature gate.
fn ungated(file: &SourceFile) -> Option<Violation> {
    let mut before = "";
    for (number, line) in file.numbered_lines() {
        if line.trim_end().ends_with("mod transport;") && before.trim() != GATE {
            return Some(file.violation(number, format!("`mod transport` without {GATE}")));
        }
        before = line;
    }
    None
}

#[test]
fn protocol_without_transport_has_no_io() {
    let tree = Tree::real();
    assert_clean(&tree.check(check));
    let root = tree.file("protocol/src/lib.rs").expect("protocol has a crate root");
    assert!(root.text.contains("#![forbid(unsafe_code)]"), "{}: no forbid", root.path);
}

#[test]
fn io_outside_transport_is_caught() {
    let planted = [
        "use std::fs::File;",
        "use std::{fmt, net::IpAddr};",
        "use tokio::sync::mpsc;",
        "pub async fn f() {}",
        "fn f() { SystemTime::now(); }",
        "pub mod transport;",
    ];
    for text in planted {
        let text = format!("//! x\n{text}\n");
        assert_eq!(lines(&check(&SourceFile::planted("protocol/src/a.rs", &text))), [2], "{text}");
    }
}

#[test]
fn transport_and_tests_may_do_io() {
    let text = "//! x\nuse tokio::sync::mpsc;\n";
    assert_eq!(check(&SourceFile::planted("protocol/src/transport/in_process.rs", text)), []);
    assert_eq!(check(&SourceFile::planted("protocol/tests/golden.rs", "use std::fs;")), []);
    let gated = format!("//! x\n{GATE}\npub mod transport;\n");
    assert_eq!(check(&SourceFile::planted("protocol/src/lib.rs", &gated)), []);
}

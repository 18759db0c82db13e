//! `unsafe` stands only in the files listed here, and each use says why it is sound.

use crate::lexer::{lex, reads};
use crate::tree::{SourceFile, Tree, Violation, assert_clean, lines};

/// The small adapters that may hold `unsafe`, and what they need it for.
const ADAPTERS: [(&str, &str); 2] = [
    ("agent/src/probe/nvml/raw.rs", "NVML calls that nvml-wrapper does not wrap"),
    ("tests/fake-nvml/src/exports.rs", "C symbols that write through their callers' pointers"),
];

/// How far above a use its `SAFETY:` comment may start, in lines.
const COMMENT_LINES: usize = 6;

fn check(file: &SourceFile) -> Vec<Violation> {
    check_with(file, &ADAPTERS)
}

fn check_with(file: &SourceFile, adapters: &[(&str, &str)]) -> Vec<Violation> {
    if !file.is_rust() {
        return Vec::new();
    }
    let tokens = match lex(file) {
        Ok(tokens) => tokens,
        Err(violation) => return vec![violation],
    };
    let is_adapter = adapters.iter().any(|(path, _)| *path == file.path);
    let uses = tokens.iter().enumerate().filter(|(_, token)| token.text == "unsafe");
    let mut found = Vec::new();
    for (i, token) in uses {
        if !is_adapter {
            found.push(file.violation(token.line, "`unsafe` outside the adapters listed in tidy"));
        } else if reads(&tokens, i + 1, &["{"]) && !says_why(file, token.line) {
            found.push(file.violation(token.line, "`unsafe` block without a `// SAFETY:` comment"));
        }
    }
    found
}

fn says_why(file: &SourceFile, line: usize) -> bool {
    let first = line.saturating_sub(COMMENT_LINES);
    file.numbered_lines()
        .any(|(number, text)| (first..=line).contains(&number) && text.contains("SAFETY:"))
}

#[test]
fn unsafe_stands_only_in_the_listed_adapters_with_its_reason() {
    let tree = Tree::real();
    assert_clean(&tree.check(check));
    for (path, _) in ADAPTERS {
        let file = tree.file(path).expect("a listed adapter exists");
        assert!(file.text.contains("unsafe"), "{path} needs its place in the list no longer");
    }
}

#[test]
fn unsafe_elsewhere_or_without_a_reason_is_caught() {
    let adapters = [("agent/src/a.rs", "signals")];
    let bare = "//! x\nfn f() { unsafe { g() } }\n";
    let argued = "//! x\n// SAFETY: g has no preconditions.\nfn f() { unsafe { g() } }\n";
    let stranger = SourceFile::planted("agent/src/b.rs", argued);
    assert_eq!(lines(&check_with(&stranger, &adapters)), [3]);
    assert_eq!(lines(&check_with(&SourceFile::planted("agent/src/a.rs", bare), &adapters)), [2]);
    assert_eq!(check_with(&SourceFile::planted("agent/src/a.rs", argued), &adapters), []);
    let comment = SourceFile::planted("agent/src/b.rs", "//! no unsafe code\n");
    assert_eq!(check_with(&comment, &adapters), []);
}

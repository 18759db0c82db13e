//! Nothing half-done is committed: placeholders, debug output, ignored or empty tests, notes
//! without an issue, merge markers, files that do not say what they are for.

use crate::lexer::{Token, lex, reads};
use crate::tree::{SourceFile, Tree, Violation, assert_clean, lines};

/// Token sequences that must not occur in any Rust file, tests included.
const SEQUENCES: [(&[&str], &str); 6] = [
    (&["todo", "!"], "write it, or leave it out"),
    (&["unimplemented", "!"], "write it, or leave it out"),
    (&["dbg", "!"], "debug output"),
    (&["#", "[", "ignore"], "a test that does not run proves nothing"),
    (&["assert", "!", "(", "true", ")"], "asserts nothing"),
    (&["assert", "!", "(", "true", ","], "asserts nothing"),
];

/// How the reason of an ignored test begins if it is not a test.
const CHILD_BODY: &str = "\"the body of a child process";

/// The longest line a Rust file should have; longer ones are listed, not refused.
const COLUMNS: usize = 100;

fn placeholders(file: &SourceFile) -> Vec<Violation> {
    if !file.is_rust() {
        return Vec::new();
    }
    let tokens = match lex(file) {
        Ok(tokens) => tokens,
        Err(violation) => return vec![violation],
    };
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        for (sequence, why) in SEQUENCES {
            if reads(&tokens, i, sequence) && !is_child_body(&tokens, i) {
                found.push(file.violation(token.line, format!("`{}`: {why}", sequence.concat())));
            }
        }
    }
    found
}

/// The one use of `#[ignore]`: a test binary starts itself as a child, and the child's body has to
/// look like a test.
fn is_child_body(tokens: &[Token], at: usize) -> bool {
    reads(tokens, at, &["#", "[", "ignore", "="])
        && tokens.get(at + 4).is_some_and(|reason| reason.text.starts_with(CHILD_BODY))
}

/// Files whose comments are notes to ourselves. Prose in Markdown may speak about such notes, and
/// this folder has to spell them.
fn may_hold_notes(file: &SourceFile) -> bool {
    let is_code = file.is_rust()
        || [".toml", ".sh", ".yml", ".yaml", ".js", ".css", ".html"]
            .iter()
            .any(|end| file.path.ends_with(end))
        || file.text.starts_with("#!/");
    is_code && !file.path.starts_with("tests/tidy/")
}

fn notes(file: &SourceFile) -> Vec<Violation> {
    if !may_hold_notes(file) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in file.numbered_lines() {
        if has_word(line, "FIXME") || has_word(line, "XXX") {
            found.push(file.violation(number, "fix it, or file an issue"));
        }
        if has_word(line, "TODO") && !has_issue_number(line) {
            found.push(file.violation(number, "a TODO carries the number of its issue: TODO(#12)"));
        }
    }
    found
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

fn has_issue_number(line: &str) -> bool {
    let rest = line.split("TODO").nth(1).unwrap_or_default();
    let rest = rest.trim_start_matches([' ', '(']);
    rest.strip_prefix('#').is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()))
}

fn merge_markers(file: &SourceFile) -> Vec<Violation> {
    let markers = ["<<<<<<< ", ">>>>>>> ", "||||||| "];
    let marked = file.numbered_lines().filter(|(_, l)| markers.iter().any(|m| l.starts_with(m)));
    marked.map(|(number, _)| file.violation(number, "merge marker")).collect()
}

fn missing_header(file: &SourceFile) -> Vec<Violation> {
    if !file.is_rust() || file.text.trim_start().starts_with("//!") {
        return Vec::new();
    }
    vec![file.violation(1, "opens without `//!`: what is it for, and what does it not do?")]
}

fn trailing_whitespace(file: &SourceFile) -> Vec<Violation> {
    // Fixtures and snapshots are bytes as they were produced.
    let is_written_by_hand = file.is_rust() || file.is_markdown() || may_hold_notes(file);
    if !is_written_by_hand {
        return Vec::new();
    }
    let untidy = file.numbered_lines().filter(|(_, l)| l.ends_with([' ', '\t', '\r']));
    untidy.map(|(number, _)| file.violation(number, "white space at the end of the line")).collect()
}

fn long_lines(file: &SourceFile) -> Vec<Violation> {
    if !file.is_rust() {
        return Vec::new();
    }
    let long = file.numbered_lines().map(|(number, line)| (number, line.chars().count()));
    let long = long.filter(|(_, columns)| *columns > COLUMNS);
    long.map(|(number, columns)| file.violation(number, format!("{columns} columns"))).collect()
}

#[test]
fn nothing_half_done_is_left() {
    assert_clean(&Tree::real().check(placeholders));
}

#[test]
fn notes_carry_an_issue_number() {
    assert_clean(&Tree::real().check(notes));
}

#[test]
fn no_merge_marker_is_left() {
    assert_clean(&Tree::real().check(merge_markers));
}

#[test]
fn every_rust_file_says_what_it_is_for() {
    assert_clean(&Tree::real().check(missing_header));
}

#[test]
fn no_line_ends_in_white_space() {
    assert_clean(&Tree::real().check(trailing_whitespace));
}

/// A report, not a gate: a long line may be the clearer one. Shown by `tests/check`.
#[test]
fn lines_over_100_columns_are_listed() {
    for violation in Tree::real().check(long_lines) {
        eprintln!("note: {violation}");
    }
}

#[test]
fn each_placeholder_is_caught() {
    let planted = [
        "fn f() { todo!() }",
        "fn f() { unimplemented!(\"x\") }",
        "fn f() { dbg!(a); }",
        "#[test] #[ignore] fn f() {}",
        "#[test] #[ignore = \"slow\"] fn f() {}",
        "fn f() { assert!(true); }",
        "fn f() { assert!(true, \"x\"); }",
    ];
    for text in planted {
        let file = SourceFile::planted("a/src/lib.rs", text);
        assert_eq!(lines(&placeholders(&file)), [1], "{text}");
    }
    let fine = [
        "// todo!\nfn f() { assert!(a); ignore(\"dbg!\") }",
        "#[test] #[ignore = \"the body of a child process that tests start\"] fn f() {}",
    ];
    for text in fine {
        assert_eq!(placeholders(&SourceFile::planted("a/src/lib.rs", text)), [], "{text}");
    }
}

#[test]
fn a_note_without_an_issue_is_caught() {
    let caught = |path: &str, text: &str| !notes(&SourceFile::planted(path, text)).is_empty();
    assert!(caught("a/src/lib.rs", "// TODO: later"));
    assert!(caught("a/src/lib.rs", "// TODO(me): later"));
    assert!(caught("a/src/lib.rs", "// FIXME(#3)"));
    assert!(caught("tests/run", "#!/usr/bin/env bash\n# TODO later"));
    assert!(!caught("a/src/lib.rs", "// TODO(#12): later"));
    assert!(!caught("a/src/lib.rs", "// TODO #12: later"));
    assert!(!caught("a/src/lib.rs", "// the TODOS of others"));
    assert!(!caught("CONTRIBUTING.md", "A TODO carries an issue number."));
}

#[test]
fn merge_markers_headers_white_space_and_long_lines_are_caught() {
    let file = |text: &str| SourceFile::planted("a/src/lib.rs", text);
    assert_eq!(
        lines(&merge_markers(&file("//! x\n<<<<<<< ours\n=======\n>>>>>>> theirs\n"))),
        [2, 4]
    );
    assert_eq!(lines(&missing_header(&file("\nuse std::fmt;\n"))), [1]);
    assert_eq!(missing_header(&file("//! For x.\n")), []);
    assert_eq!(lines(&trailing_whitespace(&file("//! x\nfn f() {} \n\t\n"))), [2, 3]);
    assert_eq!(lines(&long_lines(&file(&format!("//! x\n// {}\n", "é".repeat(98))))), [2]);
    assert_eq!(long_lines(&file(&format!("//! x\n// {}\n", "é".repeat(97)))), []);
}

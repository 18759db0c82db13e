//! The docs hold together: links lead somewhere, decision records are complete and listed, and the
//! tests that are named for a feature are there.

use std::collections::BTreeSet;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

use crate::tree::{Tree, Violation, assert_clean, lines};

const RECORDS: &str = "docs/adr/";
const INDEX: &str = "docs/adr/README.md";
/// Pages that name tests, each as code.
const SHOWN: [&str; 2] = ["docs/features.md", "docs/matching.md"];
/// A name of so many words is a sentence: that of a test, not of a field or a reason.
const SENTENCE: usize = 5;
const SECTIONS: [&str; 4] = ["Context", "Decision", "Consequences", "Alternatives"];

/// The links and images of a Markdown text, with their lines.
fn links(text: &str) -> Vec<(String, usize)> {
    let events = Parser::new(text).into_offset_iter();
    events
        .filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                let line = text[..range.start].matches('\n').count() + 1;
                Some((dest_url.to_string(), line))
            }
            _ => None,
        })
        .collect()
}

/// The headings of a Markdown text, as plain text.
fn headings(text: &str) -> Vec<String> {
    let mut headings = Vec::new();
    let mut open: Option<String> = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => open = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => headings.extend(open.take()),
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut open {
                    heading.push_str(&part);
                }
            }
            _ => {}
        }
    }
    headings
}

/// The anchor that common Markdown renderers give a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn broken_links(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_markdown()) {
        for (target, line) in links(&file.text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, fragment) = target.split_once('#').unwrap_or((&target, ""));
            let path =
                if path.is_empty() { Some(file.path.clone()) } else { join(&file.path, path) };
            let Some(path) = path.filter(|path| tree.has(path)) else {
                found.push(file.violation(line, format!("link to `{target}`, which is not here")));
                continue;
            };
            let Some(page) = tree.file(&path).filter(|page| page.is_markdown()) else { continue };
            let has_anchor = headings(&page.text).iter().any(|h| anchor(h) == fragment);
            if !fragment.is_empty() && !has_anchor {
                found.push(file.violation(line, format!("{path} has no heading `#{fragment}`")));
            }
        }
    }
    found
}

/// `target` seen from the folder of `from`; nothing if it leaves the tree or starts at its root.
fn join(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        return None;
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

fn unlisted_records(tree: &Tree) -> Vec<Violation> {
    let listed = tree.file(INDEX).map(|index| links(&index.text)).unwrap_or_default();
    let records = tree.files.iter().filter(|file| file.path.starts_with(RECORDS));
    let mut found = Vec::new();
    for (i, record) in records.filter(|file| file.path != INDEX).enumerate() {
        let name = &record.path[RECORDS.len()..];
        if !name.starts_with(&format!("{:04}-", i + 1)) {
            found.push(record.violation(0, format!("records count up: expected {:04}-…", i + 1)));
        }
        if !listed.iter().any(|(target, _)| target == name) {
            found.push(record.violation(0, format!("not linked from {INDEX}")));
        }
        let headings = headings(&record.text);
        let missing = SECTIONS.iter().filter(|section| !headings.iter().any(|h| h == *section));
        found.extend(missing.map(|section| record.violation(0, format!("no section `{section}`"))));
    }
    found
}

/// Tests that are named in the docs and are nowhere.
fn missing_tests(tree: &Tree) -> Vec<Violation> {
    let code = tree.files.iter().filter(|file| file.is_rust()).flat_map(|file| file.text.lines());
    let tests = code.filter_map(|line| line.trim_start_matches(' ').split_once("fn "));
    // A property has arguments.
    let tests = tests.filter_map(|(_, rest)| rest.split_once('(')).map(|(name, _)| name);
    let tests: BTreeSet<&str> = tests.collect();
    let pages = SHOWN.iter().filter_map(|page| tree.file(page));
    let mut found = Vec::new();
    for page in pages {
        for (line, text) in page.numbered_lines() {
            for name in text.split('`').skip(1).step_by(2) {
                let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                let is_sentence = name.split('_').count() >= SENTENCE && name.chars().all(is_word);
                if is_sentence && !tests.contains(name) {
                    found.push(page.violation(line, format!("there is no test `{name}`")));
                }
            }
        }
    }
    found
}

#[test]
fn every_test_that_the_docs_name_is_there() {
    assert!(SHOWN.iter().all(|page| Tree::real().has(page)), "a page has moved");
    assert_clean(&missing_tests(Tree::real()));
}

#[test]
fn a_test_that_is_named_and_gone_is_caught() {
    let page = "| what | `a_lease_ends_in_time`, `it_is_no_longer_here_at_all` | `max_price` |\n";
    let code = "    #[test]\n    fn a_lease_ends_in_time() {}\n";
    let tree = Tree::planted([("docs/features.md", page), ("core/src/tests.rs", code)]);
    let found = missing_tests(&tree);
    assert_eq!(lines(&found), [1]);
    assert!(found[0].message.contains("it_is_no_longer_here_at_all"), "{found:?}");
}

#[test]
fn every_link_leads_somewhere() {
    assert_clean(&broken_links(Tree::real()));
}

#[test]
fn every_decision_record_is_complete_and_listed() {
    let tree = Tree::real();
    assert!(tree.has(INDEX), "{INDEX} is missing");
    assert_clean(&unlisted_records(tree));
}

#[test]
fn a_broken_link_is_caught() {
    let tree = Tree::planted([
        ("README.md", "# Top\n\n[a](docs/gone.md)\n[b](docs/a.md#nowhere)\n[c](#top) [d](docs)\n"),
        ("docs/a.md", "# The `first` step\n\n[up](../README.md#top) [x](../../README.md)\n"),
        (
            "docs/b.md",
            "[ok](a.md#the-first-step) [web](https://example.org)\n```\n[no](link.md)\n```\n",
        ),
    ]);
    let found = broken_links(&tree);
    let places: Vec<_> = found.iter().map(|v| (v.path.as_str(), v.line)).collect();
    assert_eq!(places, [("README.md", 3), ("README.md", 4), ("docs/a.md", 3)]);
}

#[test]
fn an_unlisted_misnumbered_or_incomplete_record_is_caught() {
    let whole = "# T\n## Context\n## Decision\n## Consequences\n## Alternatives\n";
    let planted = |index: &str, second: &str, text: &str| {
        let second = format!("{RECORDS}{second}");
        let files = [(INDEX, index), ("docs/adr/0001-one.md", whole), (&second, text)];
        unlisted_records(&Tree::planted(files))
    };
    let index = "[1](0001-one.md) [2](0002-two.md)";
    assert_eq!(planted(index, "0002-two.md", whole), []);
    assert_eq!(lines(&planted("[1](0001-one.md)", "0002-two.md", whole)), [0]);
    assert_eq!(planted("[1](0001-one.md) [3](0003-x.md)", "0003-x.md", whole).len(), 1);
    assert_eq!(planted(index, "0002-two.md", "# T\n## Context\n").len(), 3);
}

//! The files the rules look at, and how a rule reports what it found.
//!
//! Files are those git would commit: everything under the root of the workspace that
//! `.gitignore` does not name. Files that are not UTF-8 text are left out.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A text file, with its path from the root of the workspace (`broker/core/src/lib.rs`).
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl SourceFile {
    /// A made-up file, for planting violations.
    pub(crate) fn planted(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(crate) fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    /// Whether the whole file is code that does not ship: in a folder `tests`, `benches` or
    /// `examples`, or a module file named `tests.rs` or `…_tests.rs`.
    pub(crate) fn is_test_code(&self) -> bool {
        let mut parts = self.path.split('/').rev();
        let file = parts.next().unwrap_or_default();
        file == "tests.rs"
            || file.ends_with("_tests.rs")
            || parts.any(|folder| ["tests", "benches", "examples"].contains(&folder))
    }

    /// The lines with their numbers, counted from 1.
    pub(crate) fn numbered_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(i, line)| (i + 1, line))
    }

    pub(crate) fn violation(&self, line: usize, message: impl Into<String>) -> Violation {
        Violation { path: self.path.clone(), line, message: message.into() }
    }
}

/// The workspace as the rules see it.
pub(crate) struct Tree {
    pub(crate) files: Vec<SourceFile>,
    paths: BTreeSet<String>,
}

impl Tree {
    /// The tree this test was built from, read once per process.
    pub(crate) fn real() -> &'static Self {
        static TREE: OnceLock<Tree> = OnceLock::new();
        TREE.get_or_init(|| Self::read(&root()))
    }

    /// A made-up tree, for planting violations.
    pub(crate) fn planted<const N: usize>(files: [(&str, &str); N]) -> Self {
        let files: Vec<_> =
            files.into_iter().map(|(path, text)| SourceFile::planted(path, text)).collect();
        let paths = files.iter().flat_map(|file| with_parents(&file.path)).collect();
        Self { files, paths }
    }

    fn read(root: &Path) -> Self {
        let mut files = Vec::new();
        let mut paths = BTreeSet::new();
        let walk = ignore::WalkBuilder::new(root)
            .hidden(false)
            .parents(false)
            .git_global(false)
            .require_git(false)
            .filter_entry(|entry| entry.file_name() != ".git")
            .build();
        for entry in walk {
            let entry = entry.expect("the source tree can be read");
            if !entry.file_type().is_some_and(|kind| kind.is_file()) {
                continue;
            }
            let relative = entry.path().strip_prefix(root).expect("the walk stays in the root");
            let path = relative.to_string_lossy().replace('\\', "/");
            paths.extend(with_parents(&path));
            let bytes = std::fs::read(entry.path()).expect("a file of the tree can be read");
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(SourceFile { path, text });
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        assert!(files.len() > 20, "{} files under {}: not the tree", files.len(), root.display());
        Self { files, paths }
    }

    /// Whether a file or folder of that path is in the tree. The root is the empty path.
    pub(crate) fn has(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    pub(crate) fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Runs a rule that looks at one file at a time.
    pub(crate) fn check(&self, rule: impl Fn(&SourceFile) -> Vec<Violation>) -> Vec<Violation> {
        self.files.iter().flat_map(rule).collect()
    }
}

/// The root of the workspace: the folder of the package this test belongs to.
pub(crate) fn root() -> PathBuf {
    // At run time, so that the tree may be moved after it was built.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| ".".into());
    PathBuf::from(folder)
}

fn with_parents(path: &str) -> Vec<String> {
    let folders = path.match_indices('/').map(|(end, _)| path[..end].to_owned());
    folders.chain([path.to_owned()]).collect()
}

/// One broken rule at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) path: String,
    /// Counted from 1; 0 when the whole file is meant.
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Fails with every violation on a line of its own, so that an editor can jump to it.
#[track_caller]
pub(crate) fn assert_clean(violations: &[Violation]) {
    let lines: Vec<String> = violations.iter().map(|v| format!("\n  {v}")).collect();
    assert!(violations.is_empty(), "{} violations:{}", violations.len(), lines.concat());
}

/// The lines of the violations, for tests that plant some.
pub(crate) fn lines(violations: &[Violation]) -> Vec<usize> {
    violations.iter().map(|v| v.line).collect()
}

#[test]
fn the_walk_sees_dot_files_and_leaves_out_what_git_ignores() {
    let tree = Tree::real();
    assert!(tree.has(".gitignore"));
    assert!(tree.has("broker/core/src"));
    assert!(!tree.has("target") && !tree.has(".git"));
}

#[test]
fn test_code_is_told_from_its_path() {
    let is_test = |path: &str| SourceFile::planted(path, "").is_test_code();
    assert!(is_test("tests/it/main.rs"));
    assert!(is_test("broker/src/raft/tests.rs"));
    assert!(is_test("ledger/src/store_tests.rs"));
    assert!(is_test("ledger/benches/append.rs"));
    assert!(is_test("ledger/examples/append_rate.rs"));
    assert!(!is_test("ledger/src/store/sled.rs"));
    assert!(!is_test("protocol/src/attests.rs"));
}

//! No text file holds a path of the machine it was written on, or the host of a package registry:
//! neither means anything to the next reader.

use crate::tree::{SourceFile, Tree, Violation, assert_clean, lines};

/// Folders at the root of a file system that are somebody's own.
const FOLDERS: [&str; 5] = ["work", "root", "home", "tmp", "Users"];

/// Registry hosts, spelt in halves so that this file does not hold one.
const HOSTS: [(&str, &str); 8] = [
    ("crates", ".io"),
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("npmjs", ".org"),
    ("npmjs", ".com"),
    ("deb.debian", ".org"),
    ("archive.ubuntu", ".com"),
    ("proxy.golang", ".org"),
];

fn check(file: &SourceFile) -> Vec<Violation> {
    // Cargo writes the registry into the lock file itself.
    if file.path == "Cargo.lock" {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in file.numbered_lines() {
        for folder in FOLDERS {
            if has_absolute(line, &format!("/{folder}/")) {
                found.push(file.violation(number, format!("a path under /{folder}")));
            }
        }
        for (name, end) in HOSTS {
            if line.contains(&[name, end].concat()) {
                found.push(file.violation(number, format!("the host of a registry ({name})")));
            }
        }
    }
    found
}

/// Whether `path` occurs in `line` at the start of a path: `../work/` and `a/tmp/` do not count.
fn has_absolute(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-/}$>)".contains(c))
    })
}

#[test]
fn no_file_names_a_place_of_its_writer() {
    assert_clean(&Tree::real().check(check));
}

#[test]
fn machine_paths_and_registry_hosts_are_caught() {
    for folder in FOLDERS {
        let text = format!("first\nsee /{folder}/me\nor \"/{folder}/me\"\n");
        assert_eq!(lines(&check(&SourceFile::planted("README.md", &text))), [2, 3], "{folder}");
    }
    for (name, end) in HOSTS {
        let text = format!("first\nfrom {name}{end}\n");
        assert_eq!(lines(&check(&SourceFile::planted("README.md", &text))), [2], "{name}");
    }
}

#[test]
fn relative_paths_and_longer_names_are_let_through() {
    let fine =
        ["../work/x", "target/tmp/x", "https://example.org/home/x", "$ROOT/tmp/x", "/tmpfs/x"];
    for text in fine {
        assert_eq!(check(&SourceFile::planted("README.md", text)), [], "{text}");
    }
}

//! Every dependency of the workspace has its reason in `docs/dependencies.md`, and every reason
//! there its dependency.

use std::collections::BTreeSet;

use toml::{Table, Value};

use crate::tree::{Tree, Violation, assert_clean};

const PAGE: &str = "docs/dependencies.md";
const ROOT: &str = "Cargo.toml";

fn check(tree: &Tree) -> Vec<Violation> {
    let (Some(page), Some(root)) = (tree.file(PAGE), tree.file(ROOT)) else {
        panic!("{PAGE} and {ROOT} are there");
    };
    let manifest: Table = root.text.parse().expect("cargo has read the same manifest");
    let listed = manifest.get("workspace").and_then(|w| w.get("dependencies"));
    let listed = listed.and_then(Value::as_table).expect("the workspace lists its dependencies");
    let names: BTreeSet<&str> =
        listed.keys().map(String::as_str).filter(|name| !name.starts_with("sublet-")).collect();

    let mut found = Vec::new();
    let mut explained = BTreeSet::new();
    for (number, line) in page.numbered_lines() {
        let Some(row) = line.strip_prefix("| `") else { continue };
        let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
        let in_first: Vec<&str> = cells[0].split('`').filter(|name| is_crate_name(name)).collect();
        if cells.len() < 4 || cells[1..].iter().any(|cell| cell.is_empty()) {
            found.push(page.violation(number, "a row has: crate, what it saves, keeper, trap"));
        }
        for name in in_first.iter().filter(|name| !names.contains(*name)) {
            found.push(page.violation(number, format!("`{name}` is no dependency any more")));
        }
        explained.extend(in_first);
    }
    let unexplained = names.iter().filter(|name| !explained.contains(*name));
    found.extend(unexplained.map(|n| root.violation(0, format!("`{n}` has no row in {PAGE}"))));

    for name in names {
        let manifests = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
        if !manifests.filter_map(|f| f.text.parse::<Table>().ok()).any(|m| uses(&m, name)) {
            found.push(root.violation(0, format!("`{name}` is used by no package")));
        }
    }
    found
}

fn is_crate_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') && !text.is_empty()
}

fn uses(manifest: &Table, name: &str) -> bool {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let targets = targets.filter_map(|(_, target)| target.as_table());
    targets.chain([manifest]).any(|table| {
        ["dependencies", "dev-dependencies", "build-dependencies"].iter().any(|kind| {
            table.get(*kind).and_then(Value::as_table).is_some_and(|deps| deps.contains_key(name))
        })
    })
}

#[test]
fn every_dependency_has_its_reason() {
    assert_clean(&check(Tree::real()));
}

#[test]
fn a_dependency_without_reason_row_or_user_is_caught() {
    let root = "[workspace.dependencies]\nserde = \"1\"\nhex = \"1\"\n";
    let user = "[dependencies]\nserde.workspace = true\n[dev-dependencies]\nhex.workspace = true\n";
    let messages = |root: &str, page: &str| {
        let tree = Tree::planted([(ROOT, root), ("a/Cargo.toml", user), (PAGE, page)]);
        check(&tree).into_iter().map(|v| v.message).collect::<Vec<_>>()
    };
    let page = "| `serde`, `hex` | less code | known people | none |\n";
    assert!(messages(root, page).is_empty());
    assert!(messages(root, "| `serde` | a | b | c |\n")[0].contains("`hex` has no row"));
    assert!(messages(root, &page.replace("hex", "hax"))[0].contains("`hax` is no dependency"));
    assert!(messages(root, &page.replace("known people", ""))[0].contains("a row has"));
    let more = format!("{root}csv = \"1\"\n");
    let page = page.replace("`hex`", "`hex`, `csv`");
    assert!(messages(&more, &page)[0].contains("`csv` is used by no package"));
}

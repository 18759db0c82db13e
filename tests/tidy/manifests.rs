//! Manifests share what the workspace says once: versions, lints, licence.

use toml::{Table, Value};

use crate::tree::{SourceFile, Tree, Violation, assert_clean};

const TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
const SHARED: [&str; 4] = ["version", "edition", "license", "publish"];

fn check(file: &SourceFile) -> Vec<Violation> {
    if !file.path.ends_with("Cargo.toml") {
        return Vec::new();
    }
    let manifest: Table = match file.text.parse() {
        Ok(manifest) => manifest,
        Err(_) => return vec![file.violation(0, "not TOML")],
    };
    let Some(package) = manifest.get("package").and_then(Value::as_table) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for key in SHARED {
        if !is_inherited(package.get(key)) {
            found.push(file.violation(0, format!("`{key}.workspace = true` is missing")));
        }
    }
    if !is_inherited(manifest.get("lints")) {
        found.push(file.violation(0, "`[lints] workspace = true` is missing"));
    }
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let targets = targets.filter_map(|(_, target)| target.as_table());
    for table in targets.chain([&manifest]) {
        for name in TABLES {
            let dependencies = table.get(name).and_then(Value::as_table).into_iter().flatten();
            let own = dependencies.filter(|(_, dependency)| !is_inherited(Some(dependency)));
            found.extend(own.map(|(dependency, _)| {
                file.violation(0, format!("`{dependency}`: its version belongs to the root"))
            }));
        }
    }
    found
}

fn is_inherited(value: Option<&Value>) -> bool {
    value.and_then(|v| v.get("workspace")).and_then(Value::as_bool) == Some(true)
}

#[test]
fn every_member_takes_versions_and_lints_from_the_workspace() {
    assert_clean(&Tree::real().check(check));
}

#[test]
fn a_manifest_that_goes_its_own_way_is_caught() {
    let whole = "[package]\nname = \"a\"\nversion.workspace = true\nedition.workspace = true\n\
                 license.workspace = true\npublish.workspace = true\n[lints]\nworkspace = true\n";
    let check = |text: &str| check(&SourceFile::planted("a/Cargo.toml", text)).len();
    assert_eq!(check(&format!("{whole}[dependencies]\nserde.workspace = true\n")), 0);
    assert_eq!(check(&format!("{whole}[dependencies]\nserde = \"1\"\n")), 1);
    assert_eq!(check(&format!("{whole}[target.'cfg(unix)'.dependencies]\nnix = \"1\"\n")), 1);
    assert_eq!(check(&whole.replace("edition.workspace = true", "edition = \"2021\"")), 1);
    assert_eq!(check(&whole.replace("[lints]\nworkspace = true\n", "")), 1);
}

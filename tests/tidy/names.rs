//! Only X names Y: each heavy dependency is named in one place, so that it can be replaced there.
//!
//! The code that ships is checked; tests and benches may name what they like.

use crate::lexer::{crate_mentions, lex_shipped};
use crate::tree::{SourceFile, Tree, Violation, assert_clean, lines};

/// A crate as code spells it, and the path prefix (a folder) or file that alone may name it.
const OWNERS: [(&str, &str); 10] = [
    ("openraft", "broker/src/raft/"),
    ("raft_log", "broker/src/raft/"),
    ("sled", "ledger/src/store/sled.rs"),
    ("parquet", "ledger/src/export/"),
    ("async_nats", "protocol/src/transport/nats.rs"),
    ("bincode", "protocol/src/codec.rs"),
    ("ort", "predictor/src/onnx.rs"),
    ("ort_tract", "predictor/src/onnx.rs"),
    ("nvml_wrapper", "agent/src/probe/nvml/"),
    ("nvml_wrapper_sys", "agent/src/probe/nvml/"),
];

fn check(file: &SourceFile) -> Vec<Violation> {
    if !file.is_rust() {
        return Vec::new();
    }
    let tokens = match lex_shipped(file) {
        Ok(tokens) => tokens,
        Err(violation) => return vec![violation],
    };
    let strangers = OWNERS.iter().filter(|(_, owner)| !file.path.starts_with(owner));
    strangers
        .flat_map(|(name, owner)| {
            let message = format!("names `{name}`, which only {owner} may");
            let lines = crate_mentions(&tokens, name);
            lines.into_iter().map(move |line| file.violation(line, message.clone()))
        })
        .collect()
}

#[test]
fn each_heavy_dependency_is_named_by_its_owner_only() {
    assert_clean(&Tree::real().check(check));
}

#[test]
fn a_stranger_that_names_a_heavy_dependency_is_caught() {
    for (name, owner) in OWNERS {
        let text = format!("//! x\nuse {name}::Thing;\n");
        let stranger = SourceFile::planted("broker/src/http/leases.rs", &text);
        assert_eq!(lines(&check(&stranger)), [2], "{name}");
        let inside = if owner.ends_with('/') { format!("{owner}log.rs") } else { owner.to_owned() };
        assert_eq!(check(&SourceFile::planted(&inside, &text)), [], "{name}");
    }
}

#[test]
fn tests_and_benches_may_name_a_heavy_dependency() {
    let text = "//! x\nuse sled::Db;\n";
    assert_eq!(check(&SourceFile::planted("ledger/benches/append.rs", text)), []);
    let module = "//! x\n#[cfg(test)]\nmod tests { use sled::Db; }\n";
    assert_eq!(check(&SourceFile::planted("ledger/src/journal.rs", module)), []);
}

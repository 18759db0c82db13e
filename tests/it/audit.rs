//! The ledger of a real broker, as an auditor finds it.

use std::fs;
use std::path::Path;

use serde_json::Value;
use sublet_ledger::audit::{Audit, Folder, Prover, Trust};
use sublet_ledger::note::PublicKey;
use sublet_ledger::proof::Proof;

use crate::support::{Dev, Home, text};

fn key(data: &Path) -> PublicKey {
    fs::read_to_string(data.join("cell/ledger/archive/ledger.pub")).unwrap().parse().unwrap()
}

#[test]
fn a_broker_leaves_a_signed_ledger_and_what_its_receipts_name_is_in_it() {
    let home = Home::new();
    let data = home.path().join("data");
    let flags = ["--data-dir", data.to_str().unwrap()];
    let dev = Dev::start(&home, &flags);
    let file = home.path().join("receipt.json");
    home.ok(&["--receipt", file.to_str().unwrap(), "policy", "set", "pledge=2h"]);
    let receipt: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let index = receipt["index"].as_u64().unwrap();
    dev.stop();

    let (folder, key) = (Folder::find(&data).unwrap(), key(&data));
    assert_eq!(text(&receipt, "/origin"), key.name());
    let trust = Trust { key: Some(key.clone()), ..Trust::default() };
    let outcome = Audit::new(&folder).trusting(trust).run(|_| ()).unwrap();
    assert!(outcome.first_bad.is_none(), "{:?}", outcome.first_bad);
    assert!(outcome.sealed > index && outcome.signatures.signed == outcome.sealed);
    let proof = Prover::new(&folder, Some(key.clone())).unwrap().inclusion(index).unwrap();
    let leaf = proof.check(&key, None).unwrap();
    assert_eq!(text(&receipt, "/leaf"), leaf.to_string());

    // The same from the broker, once it runs again.
    let dev = Dev::start(&home, &flags);
    let proven = home.ok(&["ledger", "prove", "--index", &index.to_string()]);
    let Proof::Inclusion(proven) = proven.parse().unwrap() else { panic!("{proven}") };
    assert_eq!(proven.check(&key, Some(&leaf)), Ok(leaf));
    let checkpoint = home.ok(&["ledger", "checkpoint"]);
    assert_eq!(checkpoint.lines().next(), Some(key.name()));
    // While it runs, what is sealed can be audited.
    let outcome = Audit::new(&Folder::find(&data).unwrap()).run(|_| ()).unwrap();
    assert!(outcome.first_bad.is_none() && outcome.sealed > index);
    dev.kill();
}

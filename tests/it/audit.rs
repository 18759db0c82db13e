//! The ledger of a real broker, as an auditor finds it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

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
    assert_eq!(dev.stop(), 0);

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

#[test]
fn a_witness_signs_what_extends_what_it_saw_and_an_auditor_looks_for_it() {
    let home = Home::new();
    let data = home.path().join("data");
    let flags = ["--data-dir", data.to_str().unwrap()];
    assert_eq!(Dev::start(&home, &flags).stop(), 0, "its end seals");
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let public = home.ok(&["witness", "key", "--name", "w1.example.net", "--key", &path("w.key")]);
    let ledger = data.join("cell/ledger/archive/ledger.pub");
    let mut witness = home
        .command(&["witness", "serve", "--key", &path("w.key"), "--dir", &path("seen")])
        .args(["--ledger", ledger.to_str().unwrap(), "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(witness.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    let url =
        said.trim().rsplit_once(' ').unwrap().1.trim_end_matches("/add-checkpoint").to_owned();
    let ask = |out: &str| {
        let flags = ["--url", &url, "--witness", public.trim(), "--out", &path(out)];
        home.ok(&[&["witness", "ask"], &flags[..]].concat());
        let note = fs::read_to_string(path(out)).unwrap();
        note.parse::<sublet_ledger::checkpoint::Checkpoint>().unwrap()
    };
    let dev = Dev::start(&home, &flags);
    let first = ask("first");
    assert_eq!(ask("again").head(), first.head(), "nothing new is signed again");
    dev.stop();
    let dev = Dev::start(&home, &flags);
    let second = ask("second");
    assert!(second.head().size > first.head().size);
    dev.stop();
    let key: PublicKey = public.trim().parse().unwrap();
    let trust = |against| Trust {
        key: Some(self::key(&data)),
        witnesses: vec![key.clone()],
        witnesses_required: 1,
        against,
    };
    let folder = Folder::find(&data).unwrap();
    let check = |against| Audit::new(&folder).trusting(trust(against)).run(|_| ()).unwrap();
    let outcome = check(vec![second.clone()]);
    assert!(outcome.first_bad.is_none(), "{:?}", outcome.first_bad);
    assert_eq!(outcome.signatures.witnessed, second.head().size);
    assert!(check(vec![]).first_bad.is_some(), "no checkpoint of the folder is witnessed");
    witness.kill().unwrap();
    witness.wait().unwrap();
}

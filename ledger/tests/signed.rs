//! `sublet-audit` on signed ledgers: edits, forks, old copies, proofs and receipts.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

#[allow(dead_code, reason = "shared with the unit tests and the measurement")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_ledger::Journal;
use sublet_ledger::journal::Cursor;
use sublet_ledger::merkle::Hash;
use sublet_ledger::note::{Kind, PrivateKey};
use sublet_protocol::api::Time;
use sublet_protocol::codec::encode_record;
use sublet_protocol::ids::CommandId;
use sublet_protocol::records::Record;
use tempfile::TempDir;

const SEALS: [(u64, u64); 3] = [(0, 100), (100, 200), (200, 250)];

fn key(seed: u8) -> PrivateKey {
    PrivateKey::new("example.org/berlin", Kind::Log, &[seed; 32]).unwrap()
}

/// The history, with another cause for the record at which it is forked.
fn record(index: u64, forked_at: Option<u64>) -> Record {
    let mut record = support::record(index);
    if forked_at == Some(index) {
        record.cause = CommandId::new(7);
    }
    record
}

/// A ledger of as many segments, forked at a record, signed by this key.
fn ledger(segments: usize, forked_at: Option<u64>, signer: Option<PrivateKey>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
    if let Some(signer) = signer {
        journal.sign_with(signer).unwrap();
    }
    for (from, end) in &SEALS[..segments] {
        let records: Vec<Record> = (*from..*end).map(|index| record(index, forked_at)).collect();
        journal.append(Cursor { log_index: *end, term: 1 }, &records).unwrap();
        journal.seal(end - 1).unwrap();
    }
    journal.sync().unwrap();
    dir
}

fn checkpoint(dir: &Path, number: u32) -> PathBuf {
    dir.join("archive").join(format!("{number:010}.ckpt"))
}

/// Exit code, standard output and error of `sublet-audit`, run in `dir`.
fn audit(dir: &Path, arguments: &[&str]) -> (i32, String, String) {
    let program = env!("CARGO_BIN_EXE_sublet-audit");
    let output = Command::new(program).args(arguments).current_dir(dir).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Exit code and JSON.
fn json(dir: &Path, arguments: &[&str]) -> (i32, serde_json::Value) {
    let (code, out, error) = audit(dir, &[arguments, &["--json"]].concat());
    assert!(!out.is_empty(), "{error}");
    (code, serde_json::from_str(&out).unwrap())
}

/// `verify` with the right key pinned.
fn verify(dir: &Path, more: &[&str]) -> (i32, serde_json::Value) {
    let key = key(1).public().to_string();
    json(dir, &[&["verify", ".", "--key", &key], more].concat())
}

#[test]
fn a_signed_ledger_is_good_under_its_key_and_under_no_other() {
    let dir = ledger(3, None, Some(key(1)));
    let (code, said) = verify(dir.path(), &[]);
    assert_eq!((code, &said["signed"], &said["key_is_pinned"]), (0, &250.into(), &true.into()));
    let other = key(2).public().to_string();
    let (code, said) = json(dir.path(), &["verify", ".", "--key", &other]);
    assert_eq!((code, &said["first_bad"]["index"]), (2, &0.into()), "{said}");
    let unsigned = ledger(3, None, None);
    assert_eq!(verify(unsigned.path(), &[]).0, 2, "what is not signed is not good under a key");
}

#[test]
fn without_a_key_it_says_that_signatures_prove_nothing() {
    let dir = ledger(3, None, Some(key(1)));
    let (code, out, _) = audit(dir.path(), &["verify", "."]);
    assert_eq!(code, 0);
    assert!(out.contains("SIGNATURES PROVE NOTHING"), "{out}");
    assert!(out.contains(&key(1).public().to_string()), "{out}");
    let unsigned = ledger(3, None, None);
    let (_, out, _) = audit(unsigned.path(), &["verify", "."]);
    assert!(out.contains("SIGNATURES WERE NOT CHECKED"), "{out}");
}

/// Everything recomputed after an edit, the checkpoints left as they were.
#[test]
fn an_edit_under_old_signatures_is_damage_from_the_last_good_signature_on() {
    for (at, index) in [(5, 0), (150, 100), (249, 200)] {
        let dir = ledger(3, None, Some(key(1)));
        let edited = ledger(3, Some(at), None);
        for (number, _) in (0_u32..).zip(SEALS) {
            fs::copy(checkpoint(dir.path(), number), checkpoint(edited.path(), number)).unwrap();
        }
        fs::copy(dir.path().join("archive/ledger.pub"), edited.path().join("archive/ledger.pub"))
            .unwrap();
        let (code, said) = verify(edited.path(), &[]);
        assert_eq!((code, &said["first_bad"]["index"]), (2, &index.into()), "{said}");
        // The folder's own key is enough to see that.
        assert_eq!(audit(edited.path(), &["verify", "."]).0, 2);
    }
}

#[test]
fn each_letter_of_a_checkpoint_that_is_changed_is_damage() {
    let dir = ledger(1, None, Some(key(1)));
    let file = checkpoint(dir.path(), 0);
    let good = fs::read(&file).unwrap();
    for at in (0..good.len()).step_by(7).chain(good.len() - 8..good.len()) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&file, bad).unwrap();
        let (code, said) = verify(dir.path(), &[]);
        assert_eq!((code, &said["first_bad"]["index"]), (2, &0.into()), "byte {at}: {said}");
    }
}

/// What later signatures cover is good; that a checkpoint is missing or changed is told.
#[test]
fn a_middle_checkpoint_that_is_missing_or_anothers_is_told_with_its_segment() {
    let dir = ledger(3, None, Some(key(1)));
    let told = |dir: &Path| {
        let (code, said) = verify(dir, &[]);
        assert_eq!(code, 0, "{said}");
        (said["without_checkpoint"].clone(), said["notes"].to_string())
    };
    assert_eq!(told(dir.path()).0, serde_json::json!([]));
    let file = checkpoint(dir.path(), 1);
    let good = fs::read_to_string(&file).unwrap();
    for bad in [
        good.replacen("example", "exbmple", 1),
        good.replace("\u{2014} example", "\u{2014} exbmple"),
    ] {
        fs::write(&file, bad).unwrap();
        let (segments, notes) = told(dir.path());
        assert_eq!(segments, serde_json::json!([1]));
        assert!(notes.contains("NO CHECKPOINT THAT THE KEY SIGNED"), "{notes}");
    }
    fs::remove_file(&file).unwrap();
    assert_eq!(told(dir.path()).0, serde_json::json!([1]));
}

#[test]
fn a_stolen_key_is_shown_by_an_earlier_checkpoint_and_the_proof_convinces() {
    let kept = ledger(2, None, Some(key(1)));
    let stolen = ledger(3, Some(42), Some(key(1)));
    assert_eq!(verify(stolen.path(), &[]).0, 0, "by itself it is a ledger like any other");
    let earlier = checkpoint(kept.path(), 1);
    let (code, said) = verify(stolen.path(), &["--against", earlier.to_str().unwrap()]);
    assert_eq!((code, &said["verdict"]), (3, &"fork".into()), "{said}");
    let proof = said["proof"].as_str().unwrap();
    let key = key(1).public().to_string();
    let (code, out, _) = audit(stolen.path(), &["check-proof", proof, "--key", &key]);
    assert_eq!(code, 3, "{out}");
    let bytes = fs::metadata(stolen.path().join(proof)).unwrap().len();
    assert!(bytes <= 2_048, "{bytes}");
    // A checkpoint of before the edit is extended by it.
    let before = ledger(1, None, Some(self::key(1)));
    let forked_later = ledger(3, Some(142), Some(self::key(1)));
    let (earlier, later) = (checkpoint(before.path(), 0), checkpoint(kept.path(), 1));
    let against = ["--against", earlier.to_str().unwrap()];
    assert_eq!(verify(forked_later.path(), &against).0, 0);
    let both = [against.as_slice(), &["--against", later.to_str().unwrap()]].concat();
    let (code, said) = verify(forked_later.path(), &both);
    assert_eq!((code, &said["first_bad"]["index"]), (3, &100.into()), "{said}");
}

#[test]
fn yesterdays_copy_is_shown_by_todays_checkpoint() {
    let (yesterday, today) = (ledger(2, None, Some(key(1))), ledger(3, None, Some(key(1))));
    assert_eq!(verify(yesterday.path(), &[]).0, 0);
    let newest = checkpoint(today.path(), 2);
    let (code, said) = verify(yesterday.path(), &["--against", newest.to_str().unwrap()]);
    assert_eq!((code, &said["first_bad"]["index"]), (2, &200.into()), "{said}");
    let older = checkpoint(yesterday.path(), 1);
    let (code, said) = verify(today.path(), &["--against", older.to_str().unwrap()]);
    assert_eq!((code, &said["confirmed"]), (0, &200.into()), "{said}");
}

#[test]
fn a_checkpoint_that_the_key_did_not_sign_is_no_evidence() {
    let dir = ledger(2, None, Some(key(1)));
    let strange = ledger(2, Some(3), Some(key(2)));
    let made_up = checkpoint(strange.path(), 1);
    let key = key(1).public().to_string();
    let arguments = ["verify", ".", "--key", &key, "--against", made_up.to_str().unwrap()];
    let (code, _, error) = audit(dir.path(), &arguments);
    assert_eq!(code, 1);
    assert!(error.contains("is not signed by the key"), "{error}");
}

#[test]
fn two_ledgers_are_the_same_or_extend_or_contradict_each_other() {
    let (short, long) = (ledger(2, None, Some(key(1))), ledger(3, None, Some(key(1))));
    let forked = ledger(3, Some(123), Some(key(1)));
    let foreign = ledger(3, Some(123), Some(key(2)));
    let dir = tempfile::tempdir().unwrap();
    let key = key(1).public().to_string();
    let diff = |a: &Path, b: &Path| {
        let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
        json(dir.path(), &["diff", a, b, "--key", &key])
    };
    let (short, long, forked, foreign) = (short.path(), long.path(), forked.path(), foreign.path());
    assert_eq!(diff(long, long).1["verdict"], "same");
    assert_eq!(diff(short, long).1["verdict"], "b_extends_a");
    assert_eq!(diff(long, &checkpoint(short, 1)).1["verdict"], "a_extends_b");
    for (a, b) in [(short, forked), (forked, short), (long, forked)] {
        let (code, said) = diff(a, b);
        assert_eq!((code, &said["first_difference"]), (3, &123.into()), "{said}");
        let proof = said["proof"].as_str().unwrap();
        assert_eq!(audit(dir.path(), &["check-proof", proof, "--key", &key]).0, 3);
        fs::remove_file(dir.path().join(proof)).unwrap();
    }
    let (code, said) = diff(&checkpoint(long, 2), &checkpoint(forked, 2));
    assert_eq!((code, &said["verdict"]), (3, &"fork".into()), "{said}");
    let (code, said) = diff(long, foreign);
    assert_eq!((code, &said["verdict"]), (2, &"differ".into()), "a stranger's signature");
    let (code, _, error) = audit(
        dir.path(),
        &["diff", checkpoint(short, 1).to_str().unwrap(), checkpoint(long, 2).to_str().unwrap()],
    );
    assert!(code == 1 && error.contains("takes its ledger"), "{error}");
}

#[test]
fn a_lease_is_proven_with_all_its_records_and_a_receipt_names_one_of_them() {
    let dir = ledger(3, None, Some(key(1)));
    let (lease, public) = (support::lease(3).to_string(), key(1).public().to_string());
    let made = json(dir.path(), &["prove", ".", "--lease", &lease, "--out", "lease.proof"]);
    let named =
        (0..250).filter(|index| support::record(*index).event.lease() == Some(support::lease(3)));
    let named: Vec<u64> = named.collect();
    assert_eq!((made.0, &made.1["proofs"]), (0, &named.len().into()), "{made:?}");
    let (code, said) = json(dir.path(), &["check-proof", "lease.proof", "--key", &public]);
    assert_eq!(code, 0, "{said}");
    let indexes = said.as_array().unwrap().iter().map(|one| one["index"].as_u64().unwrap());
    assert_eq!(indexes.collect::<Vec<_>>(), named);
    assert_eq!(said[0]["record"]["index"], named[0], "the record itself is shown");

    let index = named[1];
    let (code, _, _) =
        audit(dir.path(), &["prove", ".", "--index", &index.to_string(), "--out", "p"]);
    assert_eq!(code, 0);
    let bytes = fs::metadata(dir.path().join("p")).unwrap().len();
    assert!(bytes <= 2_048, "{bytes} bytes");
    let leaf = Hash::of_leaf(&encode_record(&support::record(index)).unwrap());
    let at = Time(support::record(index).time);
    let receipt_of = |index: u64, leaf: Hash, time: Time| {
        let origin = "example.org/berlin";
        format!(r#"{{"origin":"{origin}","index":{index},"leaf":"{leaf}","time":"{time}"}}"#)
    };
    let receipt = |index, leaf| receipt_of(index, leaf, at);
    let check = |receipt: String| {
        fs::write(dir.path().join("r"), receipt).unwrap();
        audit(dir.path(), &["check-proof", "p", "--receipt", "r", "--key", &public])
    };
    assert_eq!(check(receipt(index, leaf)).0, 0);
    assert_eq!(check(receipt(index, Hash::of_leaf(b"other"))).0, 2);
    assert_eq!(check(receipt(index + 1, leaf)).0, 2);
    assert_eq!(check("{}".to_owned()).0, 2);
    let (code, out, _) = check(receipt_of(index, leaf, Time(support::record(index + 1).time)));
    assert!(code == 2 && out.contains("as its time"), "{out}");
}

#[test]
fn a_later_ledger_is_proven_to_extend_an_earlier_checkpoint() {
    let (short, long) = (ledger(1, None, Some(key(1))), ledger(3, None, Some(key(1))));
    let (old, public) = (checkpoint(short.path(), 0), key(1).public().to_string());
    let old = old.to_str().unwrap();
    let arguments = ["prove", ".", "--against", old, "--key", &public, "--out", "c"];
    let (code, _, error) = audit(long.path(), &arguments);
    assert_eq!(code, 0, "{error}");
    let (code, said) = json(long.path(), &["check-proof", "c", "--key", &public]);
    assert_eq!((code, &said[0]["sizes"]), (0, &vec![100, 250].into()), "{said}");
    let forked = ledger(3, Some(50), Some(key(1)));
    let (code, _, error) = audit(forked.path(), &arguments);
    assert!(code == 1 && error.contains("does not extend"), "{error}");
}

#[test]
fn no_changed_byte_of_a_proof_proves_anything_else() {
    let dir = ledger(2, None, Some(key(1)));
    let public = key(1).public().to_string();
    assert_eq!(audit(dir.path(), &["prove", ".", "--index", "150", "--out", "p"]).0, 0);
    let good = fs::read(dir.path().join("p")).unwrap();
    for at in (0..good.len()).step_by(11) {
        let mut bad = good.clone();
        bad[at] ^= 2;
        fs::write(dir.path().join("p"), &bad).unwrap();
        let (code, out, _) = audit(dir.path(), &["check-proof", "p", "--key", &public]);
        assert_eq!(code, 2, "byte {at}: {out}");
    }
}

#[test]
fn what_cannot_be_proven_is_told() {
    let dir = ledger(2, None, Some(key(1)));
    let nobodys = support::lease(9_999).to_string();
    for (arguments, words) in [
        (["prove", ".", "--index", "200"], "record 200 is not covered"),
        (["prove", ".", "--lease", &nobodys], "no sealed record names"),
    ] {
        let (code, _, error) = audit(dir.path(), &arguments);
        assert!(code == 1 && error.contains(words), "{error}");
    }
    let unsigned = ledger(2, None, None);
    let (code, _, error) = audit(unsigned.path(), &["prove", ".", "--index", "5"]);
    assert!(code == 1 && error.contains("nothing can be proven"), "{error}");
    let (code, _, error) = audit(dir.path(), &["check-proof", "nothing-there"]);
    assert!(code == 1 && error.contains("give --key or --trust"), "{error}");
}

#[test]
fn witnesses_are_pinned_in_a_file_and_their_signatures_looked_for() {
    let dir = ledger(2, None, None);
    let witness =
        |seed| PrivateKey::new(&format!("w{seed}.example"), Kind::Witness, &[seed; 32]).unwrap();
    let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
    journal.sign_with(key(1)).unwrap();
    let newest = journal.checkpoint().unwrap().clone();
    assert!(journal.cosign(newest.head(), witness(5).sign(newest.note().text(), 9)).unwrap());
    drop(journal);
    let trust = |required: u8, witnesses: &[u8]| {
        let keys: Vec<String> =
            witnesses.iter().map(|seed| format!("\"{}\"", witness(*seed).public())).collect();
        let text = format!(
            "key = \"{}\"\norigin = \"example.org/berlin\"\nwitnesses = [{}]\n\
             witnesses_required = {required}\n",
            key(1).public(),
            keys.join(", ")
        );
        fs::write(dir.path().join("audit.toml"), text).unwrap();
        json(dir.path(), &["verify", ".", "--trust", "audit.toml"])
    };
    let (code, said) = trust(1, &[5, 6]);
    assert_eq!((code, &said["witnessed"]), (0, &200.into()), "{said}");
    assert_eq!(audit(dir.path(), &["prove", ".", "--index", "5", "--out", "p"]).0, 0);
    let proven = || audit(dir.path(), &["check-proof", "p", "--trust", "audit.toml"]);
    assert_eq!(proven().0, 0);
    for (required, witnesses) in [(2, &[5, 6][..]), (1, &[6][..])] {
        assert_eq!(trust(required, witnesses).0, 2);
        let (code, out, _) = proven();
        assert!(code == 2 && out.contains("witnesses signed it"), "{out}");
    }
}

#[test]
fn a_fork_is_told_also_where_its_proof_cannot_be_written() {
    let (one, other) = (ledger(3, None, Some(key(1))), ledger(3, Some(123), Some(key(1))));
    let (kept, public) = (checkpoint(other.path(), 2), key(1).public().to_string());
    let (kept, other) = (kept.to_str().unwrap(), other.path().to_str().unwrap());
    let verify = ["verify", ".", "--key", &public, "--against", kept, "--proof", "no/where"];
    for arguments in [&verify[..], &["diff", ".", other, "--proof", "no/where"]] {
        let (code, out, error) = audit(one.path(), arguments);
        assert_eq!(code, 3, "{out}{error}");
        assert!(error.contains("could not write the proof of the fork to no/where"), "{error}");
    }
}

#[test]
fn books_are_read_with_the_auditors_own_key_or_with_a_warning() {
    let dir = ledger(2, None, Some(key(1)));
    let (own, foreign) = (key(1).public().to_string(), key(2).public().to_string());
    let replay = |more: &[&str]| audit(dir.path(), &[&["replay", "."], more].concat());
    assert!(replay(&[]).2.contains("give the cell's key with --key"));
    assert!(!replay(&["--key", &own]).2.contains("note:"));
    assert_eq!(replay(&["--key", &foreign]).0, 2);
}

/// The script of docs/audit.md, with nothing of ours in it.
#[test]
fn the_script_of_the_documentation_arrives_at_the_same_root() {
    let dir = ledger(3, None, Some(key(1)));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/audit.md");
    let page = fs::read_to_string(page).unwrap();
    let script = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let run = |archive: &Path| {
        let python = Command::new("python3").arg("-c").arg(script).arg(archive).output();
        python.map(|output| (output.status.success(), String::from_utf8(output.stdout).unwrap()))
    };
    let Ok((is_good, said)) = run(&dir.path().join("archive")) else {
        println!("left out: the script of docs/audit.md, for there is no python3 here");
        return;
    };
    let root = Journal::open(dir.path(), support::cell()).unwrap().root();
    assert!(is_good);
    assert_eq!(said.trim(), format!("250 {root}"));
    let file = dir.path().join("archive/0000000001.seg");
    let mut bytes = fs::read(&file).unwrap();
    bytes[500] ^= 1;
    fs::write(file, bytes).unwrap();
    assert!(!run(&dir.path().join("archive")).unwrap().0);
}

#[test]
fn a_record_that_a_proof_shows_leads_back_to_its_leaf_hash() {
    let dir = ledger(1, None, Some(key(1)));
    let public = key(1).public().to_string();
    assert_eq!(audit(dir.path(), &["prove", ".", "--index", "64", "--out", "p"]).0, 0);
    let (_, said) = json(dir.path(), &["check-proof", "p", "--key", &public]);
    fs::write(dir.path().join("record.json"), said[0]["record"].to_string()).unwrap();
    let (code, computed) = json(dir.path(), &["leaf", "record.json"]);
    assert_eq!((code, &computed["leaf"]), (0, &said[0]["leaf"]));
}

//! Receipts, checkpoints and proofs.

use serde_json::{Value, json};
use sublet_ledger::checkpoint::Checkpoint;
use sublet_ledger::merkle::{Hash, TreeHead, is_consistent};
use sublet_ledger::note::PublicKey;
use sublet_ledger::proof::Proof;
use sublet_protocol::api::Receipt;
use sublet_protocol::codec::encode_record;
use sublet_protocol::commands::{Actor, Command};

use super::support::{Call, World};

fn ask(key: &str) -> Call {
    let body = json!({"project": "vision", "count": 1, "models": ["a100"], "duration": 3_600});
    Call::new("post", "/v1/requests").tenant("initech").key(key).json(&body)
}

fn key_of(checkpoint: &Value) -> PublicKey {
    checkpoint["key"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_receipt_names_the_record_and_its_proof_follows_once_it_is_sealed() {
    let world = World::new().await;
    let answer = world.call(ask("one")).await.expect(201);
    let receipt: Receipt = serde_json::from_str(answer.header("sublet-receipt")).unwrap();
    let record = world.cell.record(receipt.index).unwrap().unwrap();
    assert_eq!(receipt.leaf, Hash::of_leaf(&encode_record(&record).unwrap()).to_string());
    assert_eq!((receipt.origin.as_str(), receipt.time.0), ("lab.sublet/ledger", record.time));
    let again = world.call(ask("one")).await;
    assert_eq!(again.header("sublet-receipt"), answer.header("sublet-receipt"), "a repeat");
    let looked = world.call(Call::get("/v1/requests").tenant("initech")).await.expect(200);
    assert!(!looked.headers.contains_key("sublet-receipt"), "nothing was changed");

    let proof = || Call::get(&format!("/v1/ledger/proofs/{}", receipt.index));
    world.call(proof().tenant("initech")).await.expect(404);
    world.call(Call::get("/v1/ledger/checkpoint").tenant("initech")).await.expect(404);
    world.must(Actor::Leader, Command::SealTail).await;
    let checkpoint = world.call(Call::get("/v1/ledger/checkpoint").tenant("initech")).await;
    let checkpoint = checkpoint.expect(200).json();
    let proven = world.call(proof().tenant("initech")).await.expect(200).json();
    let text = proven["proof"].as_str().unwrap();
    assert!(text.len() <= 2_048, "{} bytes", text.len());
    let Proof::Inclusion(proof_of) = text.parse().unwrap() else { panic!("another kind") };
    let leaf = Hash::of_leaf(&encode_record(&record).unwrap());
    assert_eq!(proof_of.check(&key_of(&checkpoint), Some(&leaf)), Ok(leaf));

    // Another tenant's record looks like one that is not there.
    let foreign = world.call(proof().tenant("umbrella")).await.expect(404);
    let absent = world.call(Call::get("/v1/ledger/proofs/999999").tenant("umbrella")).await;
    assert_eq!(foreign.faceless(), absent.expect(404).faceless());
}

#[tokio::test]
async fn a_refused_request_has_a_receipt_too() {
    let world = World::new().await;
    let body = json!({"project": "vision", "count": 1, "models": ["no-such"], "duration": 3_600});
    let call = Call::new("post", "/v1/requests").tenant("initech").key("k").json(&body);
    let answer = world.call(call).await;
    assert!(answer.status.is_client_error(), "{}", answer.text());
    let receipt: Receipt = serde_json::from_str(answer.header("sublet-receipt")).unwrap();
    assert_eq!(world.cell.record(receipt.index).unwrap().unwrap().event.name(), "request_refused");
}

#[tokio::test]
async fn a_later_checkpoint_is_shown_to_extend_an_earlier_one() {
    let world = World::new().await;
    world.must(Actor::Leader, Command::SealTail).await;
    let get = |path: &str| world.call(Call::get(path).operator());
    let first = get("/v1/ledger/checkpoint").await.expect(200).json();
    world.call(ask("one")).await.expect(201);
    world.must(Actor::Leader, Command::SealTail).await;
    let old: Checkpoint = first["note"].as_str().unwrap().parse().unwrap();
    assert!(old.is_of(&key_of(&first)));
    let size = old.head().size;
    let shown = get(&format!("/v1/ledger/extension?from={size}")).await.expect(200).json();
    let new: Checkpoint = shown["note"].as_str().unwrap().parse().unwrap();
    assert!(new.is_of(&key_of(&first)) && new.head().size > size);
    let hash = |text: &Value| {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap());
        Hash::from_bytes(bytes.unwrap().try_into().unwrap())
    };
    let path: Vec<Hash> = shown["hashes"].as_array().unwrap().iter().map(hash).collect();
    assert!(is_consistent(&old.head(), &new.head(), &path));
    let other = TreeHead { root: Hash::of_leaf(b"x"), ..old.head() };
    assert!(!is_consistent(&other, &new.head(), &path));
    get("/v1/ledger/extension").await.expect(400);
    get("/v1/ledger/extension?from=1000000").await.expect(404);
}

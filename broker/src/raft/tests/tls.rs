//! Mutual TLS between nodes. The certificates are fixtures for this test alone, good until 2120; the
//! stranger's is for the same name as broker 2's, of another authority.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::network::Security;
use super::super::{
    Begin, Endpoint, Error, Identity, IdentityError, MembersError, Raft, TlsFiles, broker_name,
};
use super::peers::{free_port, settings};
use super::{Diary, propose, until};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/raft/tests/certificates").join(name)
}

/// The files of `broker`, which trusts `authority`.
fn files(broker: &str, authority: &str) -> TlsFiles {
    TlsFiles {
        authority: file(&format!("{authority}.pem")),
        certificate: file(&format!("{broker}.pem")),
        key: file(&format!("{broker}.key")),
    }
}

async fn start(folder: &Path, id: u64, files: TlsFiles) -> Raft {
    let begin = if id == 1 { Begin::Found } else { Begin::Wait };
    let mut options = settings(folder, id, begin, free_port());
    let identity = Identity::load(&Security::Tls(files), "test", id).unwrap();
    options.peers.as_mut().unwrap().identity = identity;
    Raft::open(options, Diary::new()).await.unwrap()
}

fn endpoint(raft: &Raft) -> Endpoint {
    Endpoint { peer: raft.listens().unwrap().to_string(), api: String::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_certificates_of_one_authority_form_a_cell() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let one = start(folders[0].path(), 1, files("broker-1", "authority")).await;
    let two = start(folders[1].path(), 2, files("broker-2", "authority")).await;
    one.add_member(2, endpoint(&two), Duration::from_secs(20)).await.unwrap();
    let at = propose(&one, "secret").await;
    until(|| two.status().applied >= Some(at)).await;
    assert!(two.read_index().await.unwrap() >= at);
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_authority_or_without_tls_is_not_taken_in() {
    let folder = tempfile::tempdir().unwrap();
    let one = start(folder.path(), 1, files("broker-1", "authority")).await;
    // Its certificate is for the right name, but its authority and ours are strangers.
    for is_plain in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let two = match is_plain {
            false => start(folder.path(), 2, files("stranger-2", "stranger")).await,
            true => {
                let options = settings(folder.path(), 2, Begin::Wait, free_port());
                Raft::open(options, Diary::new()).await.unwrap()
            }
        };
        let added = one.add_member(2, endpoint(&two), Duration::from_secs(1)).await;
        assert!(matches!(added, Err(Error::Members(MembersError::Behind))), "{added:?}");
        one.remove_member(2, Duration::from_secs(5)).await.unwrap();
        assert_eq!(two.status().term, 0, "it heard of the cell");
        two.shutdown().await;
    }
    propose(&one, "still works").await;
    one.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_read_again_count_for_new_connections() {
    let (folder, other, place) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = start(folder.path(), 1, files("broker-1", "authority")).await;
    let own = TlsFiles {
        authority: place.path().join("authority.pem"),
        certificate: place.path().join("own.pem"),
        key: place.path().join("own.key"),
    };
    let put = |name: &str| {
        std::fs::copy(file(&format!("{name}.pem")), &own.certificate).unwrap();
        std::fs::copy(file(&format!("{name}.key")), &own.key).unwrap();
    };
    let trust = |name: &str| {
        std::fs::copy(file(&format!("{name}.pem")), &own.authority).unwrap();
    };
    put("stranger-2");
    trust("stranger");
    let identity = Identity::load(&Security::Tls(own.clone()), "test", 2).unwrap();
    let mut options = settings(other.path(), 2, Begin::Wait, free_port());
    options.peers.as_mut().unwrap().identity = identity.clone();
    let two = Raft::open(options, Diary::new()).await.unwrap();
    let added = one.add_member(2, endpoint(&two), Duration::from_secs(1)).await;
    assert!(matches!(added, Err(Error::Members(MembersError::Behind))), "{added:?}");

    // What cannot be used changes nothing.
    std::fs::write(&own.key, "no key").unwrap();
    assert!(matches!(identity.reload(), Err(IdentityError::File { .. })));
    put("broker-1");
    assert!(matches!(identity.reload(), Err(IdentityError::OtherName { .. })));
    // Nor does one that the others would refuse: its authority is not the one that is trusted.
    put("broker-2");
    assert!(matches!(identity.reload(), Err(IdentityError::Refused { .. })));
    trust("authority");
    identity.reload().unwrap();
    one.add_member(2, endpoint(&two), Duration::from_secs(20)).await.unwrap();
    let at = propose(&one, "with the new one").await;
    until(|| two.status().applied >= Some(at)).await;
    one.shutdown().await;
    two.shutdown().await;
}

#[test]
fn a_certificate_must_be_there_and_for_the_broker_itself() {
    let load = |files: TlsFiles, id| Identity::load(&Security::Tls(files), "test", id);
    load(files("broker-1", "authority"), 1).unwrap();
    let other = load(files("broker-1", "authority"), 2).unwrap_err();
    let name = broker_name("test", 2);
    assert!(matches!(&other, IdentityError::OtherName { name: n, .. } if *n == name), "{other}");
    let missing = load(files("broker-3", "authority"), 3).unwrap_err();
    assert!(matches!(missing, IdentityError::File { .. }), "{missing}");
    // A file without what it should hold.
    let mut wrong = files("broker-1", "authority");
    wrong.certificate = wrong.key.clone();
    assert!(matches!(load(wrong, 1), Err(IdentityError::File { .. })));
    let mut wrong = files("broker-1", "authority");
    wrong.key = file("broker-2.key");
    assert!(matches!(load(wrong, 1), Err(IdentityError::Unusable { .. })));
    let odd = Identity::load(&Security::Tls(files("broker-1", "authority")), "odd-", 1);
    assert!(matches!(odd, Err(IdentityError::CellName)), "{odd:?}");
}

#[tokio::test]
async fn without_certificates_a_node_listens_on_a_loopback_address_only() {
    let folder = tempfile::tempdir().unwrap();
    let listen = "0.0.0.0:0".parse().unwrap();
    let options = settings(folder.path(), 1, Begin::Found, listen);
    let opened = Raft::open(options, Diary::new()).await;
    let is_refused = matches!(&opened, Err(Error::Options { option: "peers.listen", .. }));
    assert!(is_refused, "{opened:?}");
}

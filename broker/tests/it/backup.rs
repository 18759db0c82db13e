//! A backup of a running cell, a cell made of it, and backups that were changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sublet_broker::backup::{self, Checked, Error, Fault, Founder, Place};
use sublet_broker::clock::ClockKind;
use sublet_broker::raft::Endpoint;
use sublet_broker::{Cell, Config};
use sublet_protocol::commands::Outcome;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{CellId, CommandId};
use sublet_protocol::transport::in_process;
use sublet_protocol::units::Timestamp;

use crate::agent::Agent;
use crate::world::{address, cell_id, config, key, set_up, submit, user};

const NEW: u64 = 9;

fn founder() -> Founder {
    Founder {
        cell: cell_id(),
        broker: NEW,
        endpoint: Endpoint::default(),
        now: Timestamp::new(0),
        cause: CommandId::new(77),
    }
}

fn restored_config(folder: &Path) -> Config {
    let mut config = config(Some(folder), ClockKind::Real);
    config.node_id = NEW;
    config
}

/// Takes a backup of a running cell.
async fn take(cell: &Cell, file: &Path) -> Checked {
    let pieces = cell.backup().await.unwrap();
    let bytes = tokio::task::spawn_blocking(move || {
        pieces.map(Result::unwrap).collect::<Vec<_>>().concat()
    });
    backup::keep(&bytes.await.unwrap()[..], file).unwrap()
}

/// Lends until `leases` have ended.
async fn lend(cell: &Cell, boot: u64, leases: u128) {
    let (hub, link) = in_process::link();
    cell.attach(link).await.unwrap();
    let agent = tokio::spawn(Agent::connect(&hub, address(0), boot).run(4));
    let goal = cell.counters().leases_ended_total() + u64::try_from(leases).unwrap();
    for number in 0..leases {
        let number = u128::from(boot) * 1_000 + number;
        let asked = cell.propose(user("acme"), Some(key(number)), submit(number, None)).await;
        assert!(matches!(asked, Ok(Outcome::Done { .. })), "{asked:?}");
    }
    for _ in 0..6_000 {
        if cell.counters().leases_ended_total() >= goal {
            return agent.abort();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("leases do not end");
}

/// A cell that has lent, stopped; and a backup of it that was taken while it ran.
async fn backed_up(folder: &Path) -> (Checked, PathBuf) {
    let (old, file) = (folder.join("old"), folder.join("backup"));
    let cell = Cell::open(config(Some(&old), ClockKind::Real)).await.unwrap();
    set_up(&cell).await;
    lend(&cell, 1, 12).await;
    let kept = take(&cell, &file).await;
    // It goes on, and what it gives out now the backup does not know of.
    lend(&cell, 2, 4).await;
    let size = kept.header.records;
    let root = cell.journal(|journal| journal.root_at(size)).unwrap().unwrap();
    assert_eq!(kept.header.root, root.to_string());
    assert!(cell.head().unwrap().size > size);
    cell.shutdown().await;
    (kept, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_restored_from_a_backup_has_its_ledger_and_goes_on_in_a_new_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let (kept, file) = backed_up(folder.path()).await;
    let new = folder.path().join("new");
    let made = backup::restore(&file, &new, founder()).unwrap();
    assert_eq!(made.header, kept.header);
    for round in 0..2_u64 {
        let cell = Cell::open(restored_config(&new)).await.unwrap();
        let size = kept.header.records;
        let root = cell.journal(|journal| journal.root_at(size)).unwrap().unwrap();
        assert_eq!(root.to_string(), kept.header.root);
        let record = cell.record(size).unwrap().unwrap();
        assert_eq!(record.event, Event::CellRestored { epoch: 1 });
        assert_eq!(cell.read(sublet_core::State::cell).await.unwrap(), Some((cell_id(), 1)));
        // Neither the old number nor the new one is ever given to another broker.
        let numbers = cell.read(|state| state.brokers().clone()).await.unwrap();
        assert_eq!(numbers.into_iter().collect::<Vec<_>>(), [1, NEW]);
        let members: Vec<u64> = cell.status().members.iter().map(|m| m.node_id).collect();
        assert_eq!(members, [NEW]);
        // What was asked for before the backup was done; what came after it is not known.
        let again = cell.propose(user("acme"), Some(key(1_000)), submit(1_000, None)).await;
        assert!(matches!(again, Ok(Outcome::Repeated { .. })), "{again:?}");
        lend(&cell, 5 + round, 4).await;
        let tokens: Vec<u32> = cell
            .records(size, 1_000)
            .unwrap()
            .iter()
            .filter_map(|record| match &record.event {
                Event::LeaseGranted { terms, .. } => Some(terms.token.epoch),
                _other => None,
            })
            .collect();
        assert!(tokens.len() >= 4 && tokens.iter().all(|epoch| *epoch == 1), "{tokens:?}");
        assert_eq!(cell.violations(), Vec::<String>::new());
        let report = cell.verify().await.unwrap();
        assert!(report.is_good() && report.accounts == cell.accounts(), "{:?}", report.first_bad);
        cell.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_cell_is_backed_up_and_restored_again() {
    let folder = tempfile::tempdir().unwrap();
    let (_, file) = backed_up(folder.path()).await;
    let (new, newer) = (folder.path().join("new"), folder.path().join("newer"));
    backup::restore(&file, &new, founder()).unwrap();
    let cell = Cell::open(restored_config(&new)).await.unwrap();
    let second = folder.path().join("second");
    let kept = take(&cell, &second).await;
    cell.shutdown().await;
    assert_eq!((kept.header.epoch, kept.header.brokers), (1, vec![1, NEW]));
    let same = backup::restore(&second, &newer, founder());
    assert!(matches!(same, Err(Error::OldBroker { broker: NEW })), "{same:?}");
    backup::restore(&second, &newer, Founder { broker: 10, ..founder() }).unwrap();
    let cell = Cell::open(Config { node_id: 10, ..restored_config(&newer) }).await.unwrap();
    assert_eq!(cell.read(sublet_core::State::cell).await.unwrap(), Some((cell_id(), 2)));
    cell.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_is_not_restored_over_data_or_with_a_number_of_old_or_as_another() {
    let folder = tempfile::tempdir().unwrap();
    let (_, file) = backed_up(folder.path()).await;
    let old = folder.path().join("old");
    let before = fs::read_dir(&old).unwrap().count();
    let over = backup::restore(&file, &old, founder());
    assert!(matches!(over, Err(Error::Occupied { .. })), "{over:?}");
    assert_eq!(fs::read_dir(&old).unwrap().count(), before);
    let new = folder.path().join("new");
    let number = backup::restore(&file, &new, Founder { broker: 1, ..founder() });
    assert!(matches!(number, Err(Error::OldBroker { broker: 1 })), "{number:?}");
    let paris = CellId::new("paris").unwrap();
    let other = backup::restore(&file, &new, Founder { cell: paris, ..founder() });
    assert!(matches!(other, Err(Error::OtherCell { .. })), "{other:?}");
    let twice = backup::keep(&b""[..], &file);
    assert!(matches!(twice, Err(Error::Exists { .. })), "{twice:?}");
    // A link that leads nowhere is a name that is taken, and half a backup is not kept.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &link).unwrap();
    let over = backup::keep(&fs::read(&file).unwrap()[..], &link);
    assert!(matches!(over, Err(Error::Exists { .. })), "{over:?}");
    fs::remove_file(&link).unwrap();
    let half = backup::keep(&fs::read(&file).unwrap()[..99], &folder.path().join("half"));
    assert!(matches!(half, Err(Error::Damaged { .. })), "{half:?}");
    // What another attempt left aside is no hindrance, and does not lend the copy its mode.
    let copy = folder.path().join("copy");
    fs::write(folder.path().join("copy.part"), "left").unwrap();
    backup::keep(&fs::read(&file).unwrap()[..], &copy).unwrap();
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    fs::remove_file(&copy).unwrap();
    // Nothing half done is left behind.
    let left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_was_changed_cut_or_added_to_is_refused_with_what_and_where() {
    let folder = tempfile::tempdir().unwrap();
    let (_, file) = backed_up(folder.path()).await;
    let good = fs::read(&file).unwrap();
    let bad = folder.path().join("bad");
    let refused = |bytes: &[u8]| {
        fs::write(&bad, bytes).unwrap();
        match backup::check(&bad) {
            Err(Error::Damaged { place, fault, .. }) => Some((place, fault)),
            Err(Error::Newer { .. }) => Some((Place::Header, Fault::Magic)),
            Err(error) => panic!("{error:?}"),
            Ok(_) => None,
        }
    };
    assert_eq!(refused(&good), None);
    let mut seen = 0;
    for at in (0..good.len()).step_by(101) {
        assert!(refused(&good[..at]).is_some(), "cut at byte {at}");
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
    assert_eq!(refused(&[&good[..], b"x"].concat()), Some((Place::End, Fault::Trailing)));
    assert_eq!(refused(b"SBLBKUP"), Some((Place::Header, Fault::Short)));
    assert_eq!(refused(b"something else"), Some((Place::Header, Fault::Magic)));
    // Nothing is made of it.
    let new = folder.path().join("new");
    fs::write(&bad, &good[..good.len() - 40]).unwrap();
    assert!(matches!(backup::restore(&bad, &new, founder()), Err(Error::Damaged { .. })));
    assert!(!new.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_flipped_bit_of_a_backup_is_answered_as_damage_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let (old, file) = (folder.path().join("old"), folder.path().join("backup"));
    let cell = Cell::open(config(Some(&old), ClockKind::Real)).await.unwrap();
    set_up(&cell).await;
    take(&cell, &file).await;
    cell.shutdown().await;
    let good = fs::read(&file).unwrap();
    let (bad, mut impossible) = (folder.path().join("bad"), 0);
    for bit in (0..good.len() * 8).step_by(7) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&bad, &bytes).unwrap();
        match backup::check(&bad) {
            Err(Error::Damaged { fault: Fault::Impossible, .. }) => impossible += 1,
            Err(Error::Damaged { .. } | Error::Newer { .. }) => {}
            other => panic!("bit {bit}: {other:?}"),
        }
    }
    assert!(impossible > 0, "no flip stops the rules");
}

/// The digest alone would let pass what somebody changed who can compute a digest.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_with_a_good_digest_over_other_records_is_refused_by_its_root() {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir().unwrap();
    let (kept, file) = backed_up(folder.path()).await;
    let good = fs::read(&file).unwrap();
    let header = 12 + usize::try_from(u32::from_be_bytes(good[8..12].try_into().unwrap())).unwrap();
    let body = good.len() - 32;
    let signed = |bytes: &[u8]| [bytes, Sha256::digest(bytes).as_slice()].concat();
    assert_eq!(signed(&good[..body]), good);
    // The last record is left out, and the header says so.
    let mut at = header;
    let mut last = at;
    while at < body {
        last = at;
        at +=
            4 + usize::try_from(u32::from_be_bytes(good[at..at + 4].try_into().unwrap())).unwrap();
    }
    let mut shorter = kept.header.clone();
    shorter.records -= 1;
    let json = serde_json::to_vec(&shorter).unwrap();
    let length = u32::try_from(json.len()).unwrap().to_be_bytes();
    let forged = signed(&[&good[..8], &length, &json, &good[header..last]].concat());
    let bad = folder.path().join("bad");
    fs::write(&bad, forged).unwrap();
    let refused = backup::check(&bad);
    assert!(
        matches!(&refused, Err(Error::Damaged { fault: Fault::Root { .. }, .. })),
        "{refused:?}"
    );
}

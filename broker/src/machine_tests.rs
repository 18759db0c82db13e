//! The machine must find every planted fault, and restore what it was.

use super::*;
use sublet_protocol::commands::{Actor, Command};
use sublet_protocol::ids::{CommandId, KeyId, TenantId};
use sublet_protocol::money::{Account, Line, MicroCredits};
use sublet_protocol::policy::Policy;
use sublet_protocol::units::Timestamp;

fn cell(name: &str) -> CellId {
    CellId::new(name).unwrap()
}

fn machine(journal: Journal) -> CellMachine {
    CellMachine::new(journal.cell(), journal, Checks::Always, u64::MAX)
}

fn stamped(id: u128, actor: Actor, command: Command) -> Vec<u8> {
    let (id, now) = (CommandId::new(id), Timestamp::new(1_000));
    codec::encode(&Stamped { id, actor, now, term: 1, key: None, command }).unwrap()
}

fn found(policy: Policy) -> Vec<u8> {
    stamped(1, Actor::Leader, Command::CreateCell { cell: cell("berlin"), policy })
}

fn tenant(id: u128, name: &str) -> Vec<u8> {
    let actor = Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() };
    let tenant = TenantId::new(name).unwrap();
    stamped(id, actor, Command::CreateTenant { tenant, parent: None })
}

fn seal(id: u128) -> Vec<u8> {
    stamped(id, Actor::Leader, Command::SealTail)
}

fn at(index: u64) -> LogPosition {
    LogPosition { term: 1, index }
}

fn in_memory() -> CellMachine {
    machine(Journal::in_memory(cell("berlin")))
}

fn other_policy() -> Policy {
    Policy { start_retries: 9, ..Policy::default() }
}

#[test]
fn a_state_that_is_not_the_fold_of_the_journal_is_found() {
    for is_replayed in [false, true] {
        let (one, other) = (in_memory(), in_memory());
        one.apply(at(1), &[found(Policy::default())]).unwrap();
        other.apply(at(1), &[found(other_policy())]).unwrap();
        if !is_replayed {
            one.go_live();
        }
        assert!(one.violations().is_empty());
        // The planted bug: something but `evolve` has changed the state.
        one.replica_mut().state = other.replica().state.clone();
        one.apply(at(2), &[tenant(2, "acme")]).unwrap();
        if is_replayed {
            assert!(one.violations().is_empty(), "a replay is checked as a whole, at its end");
            one.go_live();
        }
        let violations = one.violations();
        assert!(violations[0].starts_with("INV-12"), "{violations:?}");
        assert!(one.counters().invariant_violations > 0);
    }
}

#[test]
fn a_posting_that_does_not_balance_is_found() {
    let machine = in_memory();
    machine.apply(at(1), &[found(Policy::default())]).unwrap();
    let mut record = machine.journal(|journal| journal.record(0)).unwrap().unwrap().unwrap();
    let terms_of = sublet_protocol::ids::LeaseId::new(1);
    let acme = TenantId::new("acme").unwrap();
    record.event = Event::LeaseEnded {
        lease: terms_of,
        request: sublet_protocol::ids::RequestId::new(1),
        tenant: acme,
        owner: acme,
        reason: sublet_protocol::leases::EndReason::Completed,
        settlement: sublet_protocol::events::Settlement {
            billed: sublet_protocol::units::Millis::ZERO,
            cost: MicroCredits::ZERO,
            fee: MicroCredits::ZERO,
        },
        lines: vec![Line::debit(Account::Expense(acme), MicroCredits::new(1))],
    };
    let mut replica = machine.replica_mut();
    replica.shadow = None;
    replica.post(&[record]).unwrap();
    drop(replica);
    assert!(machine.violations()[0].starts_with("INV-4"), "{:?}", machine.violations());
}

#[test]
fn a_replay_that_differs_from_the_journal_is_an_error_and_an_equal_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let open = || machine(Journal::open(dir.path(), cell("berlin")).unwrap());
    let first = open();
    first.apply(at(1), &[found(Policy::default())]).unwrap();
    first.close().unwrap();
    let equal = open();
    equal.apply(at(1), &[found(Policy::default())]).unwrap();
    assert_eq!(equal.read(State::next_index), 1);
    equal.close().unwrap();
    let unequal = open();
    let error = unequal.apply_entry(at(1), &[found(other_policy())]).unwrap_err();
    assert!(matches!(error, Failure::Ledger(sublet_ledger::Error::Diverged { index: 0, .. })));
}

#[test]
fn a_command_that_cannot_be_read_is_an_error() {
    let error = in_memory().apply_entry(at(1), &[vec![99, 1, 2]]).unwrap_err();
    assert!(matches!(error, Failure::Command(_)));
}

#[test]
fn a_snapshot_restores_state_books_and_the_records_after_the_seal() {
    let dir = tempfile::tempdir().unwrap();
    let open = || machine(Journal::open_or_rebuild(dir.path(), cell("berlin")).unwrap().journal);
    let first = open();
    first.apply(at(1), &[found(Policy::default()), tenant(2, "acme")]).unwrap();
    assert_eq!(first.apply(at(2), &[seal(3)]).unwrap().sealed, None, "not wanted and not due");
    first.want_snapshot();
    let sealed = first.apply(at(3), &[tenant(4, "other"), seal(5)]).unwrap().sealed.unwrap();
    first.apply(at(4), &[tenant(6, "late")]).unwrap();
    let root = first.journal(Journal::root).unwrap();
    let state = first.read(State::clone);
    first.close().unwrap();
    std::fs::remove_dir_all(dir.path().join("sled")).unwrap();

    let second = open();
    second.restore(at(3), &sealed).unwrap();
    assert_eq!(second.read(State::next_index), state.next_index() - 1);
    second.apply(at(4), &[tenant(6, "late")]).unwrap();
    assert_eq!(second.read(State::clone), state);
    assert_eq!(second.journal(Journal::root), Some(root));
    second.go_live();
    assert!(second.violations().is_empty());
}

#[test]
fn a_snapshot_over_another_archive_or_of_another_cell_is_refused() {
    let first = in_memory();
    first.want_snapshot();
    let sealed = first.apply(at(1), &[found(Policy::default()), seal(2)]).unwrap().sealed.unwrap();
    let error = in_memory().restore_from(at(1), &sealed).unwrap_err();
    assert!(matches!(error, Failure::Segment { number: 0 }), "{error}");
    let other = machine(Journal::in_memory(cell("paris")));
    assert!(matches!(other.restore_from(at(1), &sealed), Err(Failure::OtherCell)));
    let error = in_memory().restore_from(at(1), &sealed[..sealed.len() - 1]).unwrap_err();
    assert!(matches!(error, Failure::Snapshot(_)));
}

#[test]
fn nothing_is_applied_after_the_end() {
    let machine = in_memory();
    machine.close().unwrap();
    let error = machine.apply_entry(at(1), &[found(Policy::default())]).unwrap_err();
    assert!(matches!(error, Failure::Closed));
}

#[test]
fn the_root_after_an_entry_stays_what_it_was_when_the_log_is_replayed() {
    let commands = [found(Policy::default()), tenant(2, "acme"), tenant(3, "initech")];
    let replay = |machine: &CellMachine| {
        for (index, command) in (999..).zip(&commands) {
            machine.apply(at(index), std::slice::from_ref(command)).unwrap();
        }
        machine.root_after(1_000).unwrap()
    };
    let before = in_memory();
    let root = replay(&before);
    let journal = before.journal.write().unwrap().take().unwrap();
    assert!(journal.size() > root.0, "the journal is ahead of the entry");
    assert_eq!(replay(&machine(journal)), root);
}

#[test]
fn names_survive_a_snapshot_and_are_in_no_record() {
    let named = |id, name: Option<&str>| {
        let actor =
            Actor::Operator { subject: "op".parse().unwrap(), key: KeyId::new("k").unwrap() };
        let (tenant, name) =
            (TenantId::new("acme").unwrap(), name.map(|name| name.parse().unwrap()));
        stamped(id, actor, Command::NameTenant { tenant, name })
    };
    let one = in_memory();
    one.apply(at(1), &[found(Policy::default()), tenant(2, "acme")]).unwrap();
    one.apply(at(2), &[named(3, Some("Jane Doe"))]).unwrap();
    one.want_snapshot();
    let sealed = one.apply(at(3), &[seal(4)]).unwrap().sealed.expect("a snapshot");
    let other = in_memory();
    for piece in one.pieces() {
        let bytes = one.piece(piece.number).unwrap();
        other.keep(piece, &bytes).unwrap();
    }
    other.restore(at(3), &sealed).unwrap();
    let acme = TenantId::new("acme").unwrap();
    assert_eq!(other.name_of(acme).map(String::from), Some("Jane Doe".to_owned()));
    let records = one.records(0, 100).unwrap();
    for record in &records {
        let bytes = encode_record(record).unwrap();
        assert!(!bytes.windows(4).any(|window| window == b"Jane"), "{record:?}");
    }
    other.apply(at(4), &[named(5, None)]).unwrap();
    assert_eq!(other.name_of(acme), None);
}

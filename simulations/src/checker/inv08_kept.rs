//! INV-8: everything that was acknowledged is in the final journal of every replica, once, at the
//! same place; the replicas' journals are equal to the byte.

use std::collections::BTreeMap;

use sublet_core::State;
use sublet_ledger::accounts::Accounts;
use sublet_ledger::journal::Journal;
use sublet_protocol::commands::Outcome;
use sublet_protocol::ids::CommandId;
use sublet_protocol::records::Record;

use super::Checker;

/// Where the records of acknowledged commands must be.
#[derive(Debug)]
pub(super) struct Kept {
    /// The command of the entry that was applied last.
    pub(super) cause: CommandId,
    places: BTreeMap<CommandId, (u64, u64)>,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept { cause: CommandId::new(0), places: BTreeMap::new() }
    }
}

impl Kept {
    /// A client was told that the command applied last is done.
    pub(super) fn acknowledge(&mut self, outcome: &Outcome) {
        if let Outcome::Done { first, count, .. } = outcome
            && *count > 0
        {
            self.places.insert(self.cause, (*first, u64::from(*count)));
        }
    }
}

/// What each replica has at the end.
pub(crate) type Books<'a> = (&'a Journal, &'a State, &'a Accounts);

impl Checker {
    /// Compares the replicas, and what was promised with what is in the journal. `empty` is the
    /// state before the first record.
    pub(crate) fn at_the_end(&mut self, books: &[Books<'_>], empty: State) {
        let Some((journal, state, accounts)) = books.first() else { return };
        for (place, (other, its_state, its_accounts)) in books.iter().enumerate() {
            self.check(8, other.head() == journal.head(), || {
                format!("the journal of replica {place} differs")
            });
            self.check(12, its_state == state, || format!("the state of replica {place} differs"));
            self.check(4, its_accounts == accounts, || {
                format!("the books of replica {place} differ")
            });
        }
        let records = match journal.range(0, usize::MAX) {
            Ok(records) => records,
            Err(error) => return self.fail(8, format!("the journal cannot be read: {error}")),
        };
        self.fold_again(&records, state, accounts, empty);
        self.find_acknowledged(&records);
    }

    fn find_acknowledged(&mut self, records: &[Record]) {
        let mut found: BTreeMap<CommandId, (u64, u64)> = BTreeMap::new();
        for record in records {
            let entry = found.entry(record.cause).or_insert((record.index, 0));
            entry.1 += 1;
        }
        let lost = self.kept.places.iter().find(|(id, place)| found.get(id) != Some(place));
        if let Some((id, (first, count))) = lost {
            let is = found.get(id);
            let what = format!("{id} was acknowledged at {first} with {count} records, is {is:?}");
            self.fail(8, what);
        }
    }
}

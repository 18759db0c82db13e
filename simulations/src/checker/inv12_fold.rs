//! INV-12: the state is the fold of the journal and nothing else; INV-4: the books are the replay of
//! its lines; INV-13: open holds are those of the leases that have not ended.

use sublet_core::{State, fold};
use sublet_ledger::accounts::Accounts;
use sublet_protocol::records::Record;

use super::Checker;

impl Checker {
    pub(super) fn fold_again(
        &mut self,
        records: &[Record],
        state: &State,
        accounts: &Accounts,
        empty: State,
    ) {
        let (mut folded, mut books) = (empty, Accounts::new());
        for record in records {
            fold(&mut folded, record);
            if let Err(error) = books.post(record) {
                self.fail(4, format!("record {} cannot be posted: {error}", record.index));
            }
        }
        self.check(12, folded == *state, || "the state is not the fold of the journal".into());
        self.check(4, books == *accounts, || "the books are not the replay of the journal".into());
        self.check(4, books.is_balanced(), || "the books do not balance".into());
        let holds = books.open_holds().count();
        let leases = state.leases().values().filter(|lease| lease.terms().hold.get() > 0).count();
        self.check(13, holds == leases, || format!("{holds} open holds, {leases} leases"));
    }
}

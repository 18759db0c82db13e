//! Roots of the journal after some entries of the log, to compare replicas by.

use std::collections::VecDeque;

use sublet_ledger::Journal;

/// The root is noted after every entry whose index is a multiple of this.
pub(crate) const EVERY: u64 = 1_000;
/// Noted roots that are kept. A replica that is further behind compares later ones.
const KEPT: usize = 64;

/// Size and root of the journal.
type Root = (u64, [u8; 32]);

/// The noted roots, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Roots(VecDeque<(u64, Root)>);

impl Roots {
    /// Notes the root of the first `size` records, which are those up to the entry at `entry`, if it
    /// is one of those that are compared. The journal may hold more: the log is replayed into it after
    /// a start.
    ///
    /// # Errors
    /// What the journal says.
    pub(crate) fn note(
        &mut self,
        entry: u64,
        size: u64,
        journal: &Journal,
    ) -> Result<(), sublet_ledger::Error> {
        if !entry.is_multiple_of(EVERY) || self.last().is_some_and(|(last, _)| last >= entry) {
            return Ok(());
        }
        if let Some(root) = journal.root_at(size)? {
            self.keep(entry, (size, *root.as_bytes()));
        }
        Ok(())
    }

    fn keep(&mut self, entry: u64, root: Root) {
        self.0.push_back((entry, root));
        if self.0.len() > KEPT {
            self.0.pop_front();
        }
    }

    #[cfg(test)]
    pub(crate) fn plant(&mut self, entry: u64, root: Root) {
        self.keep(entry, root);
    }

    pub(crate) fn after(&self, entry: u64) -> Option<Root> {
        self.0.iter().find(|(noted, _)| *noted == entry).map(|(_, root)| *root)
    }

    pub(crate) fn last(&self) -> Option<(u64, Root)> {
        self.0.back().copied()
    }
}

#[cfg(test)]
mod tests {
    use sublet_protocol::ids::CellId;

    use super::*;

    #[test]
    fn every_thousandth_root_is_noted_once_and_old_ones_are_let_go() {
        let journal = Journal::in_memory(CellId::new("berlin").unwrap());
        let head = journal.head();
        let root = Some((head.size, *head.root.as_bytes()));
        let mut roots = Roots::default();
        for entry in 0..100 * EVERY {
            roots.note(entry, 0, &journal).unwrap();
        }
        // Replayed after a restart from a snapshot: nothing new.
        roots.note(99 * EVERY, 0, &journal).unwrap();
        assert_eq!(roots.last().map(|(entry, _)| entry), Some(99 * EVERY));
        assert_eq!(roots.after(99 * EVERY), root);
        assert_eq!(roots.after(36 * EVERY), root);
        assert_eq!(roots.after(35 * EVERY), None);
        assert_eq!(roots.after(99 * EVERY - 1), None);
    }
}

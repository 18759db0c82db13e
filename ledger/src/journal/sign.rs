//! Signing: a checkpoint beside each segment, `archive/NNNNNNNNNN.ckpt`.
//!
//! A signature is no part of what replicas agree on: a broker without the key seals the same
//! segments. With it, it signs the tree up to the end of every segment that it seals, before the
//! seal is acknowledged, and once more for the newest one when it opens, in case it died between.

use super::Journal;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, SegmentFault};
use crate::merkle::{Hash, TreeHead};
use crate::note::{PrivateKey, PublicKey, SignatureLine, Signed};
use crate::proof::Inclusion;
use crate::segment::Seal;

/// The key and what it signed last.
pub(super) struct Signer {
    key: PrivateKey,
    /// The checkpoint of the newest segment, with its segment's number.
    newest: Option<(u32, Checkpoint)>,
}

impl Journal {
    /// Signs each seal with `key` from now on, and the newest one now if it is not signed yet.
    /// Writes the public key to `archive/ledger.pub`, for readers who have none from elsewhere.
    ///
    /// # Errors
    /// [`Error::Segment`] when the key has signed another root for the newest segment: the archive
    /// was put back or exchanged. [`Error::Io`].
    pub fn sign_with(&mut self, key: PrivateKey) -> Result<(), Error> {
        self.archive.write_public_key(key.public())?;
        let newest = match self.last_seal().copied() {
            Some(seal) => Some((seal.number, self.signed(&seal, &key)?)),
            None => None,
        };
        self.signer = Some(Signer { key, newest });
        Ok(())
    }

    /// The signed checkpoint of the newest segment, if this journal has a key and a segment.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        let newest = self.signer.as_ref()?.newest.as_ref();
        newest.map(|(_, checkpoint)| checkpoint)
    }

    /// Under which name the ledger is known: that of its key, else the cell's.
    pub fn origin(&self) -> &str {
        self.signer.as_ref().map_or(self.cell.as_str(), |signer| signer.key.public().name())
    }

    /// Whose signatures its checkpoints carry.
    pub fn public_key(&self) -> Option<&PublicKey> {
        self.signer.as_ref().map(|signer| signer.key.public())
    }

    /// The proof that record `index` is in the ledger of the newest checkpoint; `None` while it is
    /// not sealed, or without a key. [`Journal::prepare_proofs`] makes it quick.
    ///
    /// # Errors
    /// As [`Journal::record`].
    pub fn prove_inclusion(&self, index: u64) -> Result<Option<Inclusion>, Error> {
        let Some(checkpoint) = self.checkpoint() else { return Ok(None) };
        let size = checkpoint.head().size;
        let Some(path) = self.inclusion_proof(index, size)? else { return Ok(None) };
        let record = Some(self.with_record(index, <[u8]>::to_vec)?);
        Ok(Some(Inclusion { index, path, record, checkpoint: checkpoint.clone() }))
    }

    /// The hashes that lead from the first `old` records to the newest checkpoint, and that
    /// checkpoint; `None` if it is not as long, or without a key.
    ///
    /// # Errors
    /// As [`Journal::record`].
    pub fn prove_extension(&self, old: u64) -> Result<Option<(Vec<Hash>, Checkpoint)>, Error> {
        let Some(checkpoint) = self.checkpoint() else { return Ok(None) };
        let path = self.consistency_proof(old, checkpoint.head().size)?;
        Ok(path.map(|path| (path, checkpoint.clone())))
    }

    /// Keeps a witness's signature under the newest checkpoint. `false` if that is another one by
    /// now, or its signer is not to be told from the key's.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn cosign(&mut self, head: TreeHead, line: SignatureLine) -> Result<bool, Error> {
        let Some(Signer { key, newest: Some((number, checkpoint)) }) = &mut self.signer else {
            return Ok(false);
        };
        let mut with = checkpoint.clone();
        with.note_mut().add(line);
        if with.head() != head || !with.is_of(key.public()) {
            return Ok(false);
        }
        self.archive.write_checkpoint(*number, &with)?;
        *checkpoint = with;
        Ok(true)
    }

    /// Signs the segment that was sealed last, if there is a key.
    pub(super) fn sign_last(&mut self) -> Result<(), Error> {
        let (Some(seal), Some(signer)) = (self.archive.seals().last(), &mut self.signer) else {
            return Ok(());
        };
        let charges = self.charged.chains.head();
        let checkpoint = Checkpoint::sign_with_charges(head(seal), charges, &signer.key);
        self.archive.write_checkpoint(seal.number, &checkpoint)?;
        signer.newest = Some((seal.number, checkpoint));
        Ok(())
    }

    /// The checkpoint of a segment: the one on the disk, else a new one.
    fn signed(&self, seal: &Seal, key: &PrivateKey) -> Result<Checkpoint, Error> {
        let charges = self.charged.chains.head();
        let is_ours =
            |found: &Checkpoint| found.head() == head(seal) && found.charges() == Some(charges);
        let found = self.archive.read_checkpoint(seal.number)?;
        if let Some(found) = found.filter(|found| found.origin() == key.public().name()) {
            match found.signed_by(key.public()) {
                Signed::Yes { .. } if is_ours(&found) => return Ok(found),
                // Of the time before there were chains: signed again.
                Signed::Yes { .. } if found.head() == head(seal) && found.charges().is_none() => {}
                Signed::Yes { .. } => {
                    return Err(self.archive.bad(seal.number, SegmentFault::OtherRootSigned));
                }
                Signed::No | Signed::Forged => {}
            }
        }
        let checkpoint = Checkpoint::sign_with_charges(head(seal), charges, key);
        self.archive.write_checkpoint(seal.number, &checkpoint)?;
        Ok(checkpoint)
    }
}

/// The tree up to the end of a segment.
fn head(seal: &Seal) -> TreeHead {
    TreeHead { size: seal.end(), root: seal.root }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Cursor;
    use crate::note::Kind;
    use crate::support;

    fn key(seed: u8) -> PrivateKey {
        PrivateKey::new("example.org/berlin", Kind::Log, &[seed; 32]).unwrap()
    }

    fn grown(journal: &mut Journal, from: u64, end: u64) {
        journal.append(Cursor { log_index: end, term: 1 }, &support::records(from..end)).unwrap();
        journal.seal(end - 1).unwrap();
    }

    #[test]
    fn each_seal_is_signed_and_a_seal_without_its_signature_when_the_journal_opens() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
        journal.sign_with(key(1)).unwrap();
        assert_eq!(journal.checkpoint(), None);
        grown(&mut journal, 0, 30);
        grown(&mut journal, 30, 70);
        let newest = journal.checkpoint().unwrap().clone();
        assert!(newest.is_of(key(1).public()));
        assert_eq!(newest.head(), journal.head());
        drop(journal);
        let file = dir.path().join("archive/0000000001.ckpt");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), newest.to_string());
        std::fs::remove_file(&file).unwrap();
        let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
        assert_eq!(journal.checkpoint(), None, "without the key nothing is signed");
        journal.sign_with(key(1)).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), newest.to_string());
        let public = std::fs::read_to_string(dir.path().join("archive/ledger.pub")).unwrap();
        assert_eq!(public, format!("{}\n", key(1).public()));
    }

    #[test]
    fn an_archive_that_contradicts_what_its_key_signed_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
        grown(&mut journal, 0, 30);
        let other = TreeHead { size: 30, root: Hash::of_leaf(b"another history") };
        let file = dir.path().join("archive/0000000000.ckpt");
        std::fs::write(&file, Checkpoint::sign(other, &key(1)).to_string()).unwrap();
        let error = journal.sign_with(key(1)).unwrap_err();
        let is_it = |error: &Error| {
            matches!(error, Error::Segment { fault: SegmentFault::OtherRootSigned, .. })
        };
        assert!(is_it(&error), "{error}");
        journal.sign_with(key(2)).unwrap();
        assert!(journal.checkpoint().unwrap().is_of(key(2).public()), "a stranger's is replaced");
    }

    #[test]
    fn proofs_convince_whether_they_were_prepared_or_not() {
        let mut journal = Journal::in_memory(support::cell());
        journal.sign_with(key(1)).unwrap();
        for (from, end) in [(0, 300), (300, 700), (700, 1_100)] {
            grown(&mut journal, from, end);
        }
        let old = TreeHead { size: 300, root: journal.root_at(300).unwrap().unwrap() };
        for prepared in [0, 512, 4_096] {
            assert_eq!(journal.prepare_proofs(prepared).unwrap(), prepared == 4_096);
            for index in [0, 1, 299, 300, 511, 512, 1_099] {
                let proof = journal.prove_inclusion(index).unwrap().unwrap();
                assert!(proof.check(key(1).public(), None).is_ok(), "{index}");
            }
            let (path, new) = journal.prove_extension(300).unwrap().unwrap();
            assert!(crate::merkle::is_consistent(&old, &new.head(), &path));
            assert_eq!(journal.root_at(1_100).unwrap(), Some(journal.root()));
        }
        assert_eq!(journal.prove_inclusion(1_100).unwrap(), None);
        assert_eq!(journal.prove_extension(1_101).unwrap(), None);
    }

    #[test]
    fn a_cosignature_is_kept_under_its_checkpoint_only() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
        journal.sign_with(key(1)).unwrap();
        grown(&mut journal, 0, 30);
        let witness = PrivateKey::new("example.net/w", Kind::Witness, &[9; 32]).unwrap();
        let line = witness.sign(journal.checkpoint().unwrap().note().text(), 77);
        let head = journal.head();
        assert!(!journal.cosign(TreeHead { size: 29, ..head }, line.clone()).unwrap());
        assert!(journal.cosign(head, line).unwrap());
        drop(journal);
        let mut journal = Journal::open(dir.path(), support::cell()).unwrap();
        journal.sign_with(key(1)).unwrap();
        let kept = journal.checkpoint().unwrap();
        assert_eq!(kept.signed_by(witness.public()), Signed::Yes { time: 77 });
    }
}

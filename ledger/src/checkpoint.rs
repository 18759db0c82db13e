//! Checkpoints after C2SP `tlog-checkpoint`: origin, size and root of a ledger, signed.
//!
//! ```text
//! example.org/berlin
//! 4096
//! CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=
//! charges 12 9Xa3mDQmFCuQjyfO2kFqYnAyAk3G0oPCnPtu5lPpNsk=
//!
//! — example.org/berlin Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeO…
//! ```
//!
//! The key of a cell signs the tree up to the end of each segment. The origin is the key's name. The
//! extension line `charges` has the number of tenants and the root over their chains of charges
//! ([`chains`](crate::chains)); other readers of checkpoints pass over it.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::merkle::{Hash, TreeHead};
use crate::note::{Note, NoteError, PrivateKey, PublicKey, Signed};

const CHARGES: &str = "charges ";

/// A checkpoint that could be read. Who signed it is asked by [`Checkpoint::signed_by`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    origin: String,
    head: TreeHead,
    charges: Option<TreeHead>,
    note: Note,
}

impl Checkpoint {
    /// The checkpoint of `head` that `key` signs, with nothing about charges.
    pub fn sign(head: TreeHead, key: &PrivateKey) -> Self {
        Self::signed(head, None, key)
    }

    /// The checkpoint of `head` that `key` signs; `charges` are those of the same records.
    pub fn sign_with_charges(head: TreeHead, charges: TreeHead, key: &PrivateKey) -> Self {
        Self::signed(head, Some(charges), key)
    }

    fn signed(head: TreeHead, charges: Option<TreeHead>, key: &PrivateKey) -> Self {
        let origin = key.public().name().to_owned();
        let mut text = format!("{origin}\n{}\n{}\n", head.size, to_base64(&head.root));
        if let Some(TreeHead { size, root }) = charges {
            text.push_str(&format!("{CHARGES}{size} {}\n", to_base64(&root)));
        }
        let line = key.sign(&text, 0);
        Self { origin, head, charges, note: Note::new(text, vec![line]) }
    }

    /// Which ledger it is of.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The tree that it is about.
    pub const fn head(&self) -> TreeHead {
        self.head
    }

    /// How many tenants have chains of charges and the root over them, if it names one.
    pub const fn charges(&self) -> Option<TreeHead> {
        self.charges
    }

    /// The note as it is sent and kept.
    pub const fn note(&self) -> &Note {
        &self.note
    }

    /// The note, to add a cosignature to.
    pub const fn note_mut(&mut self) -> &mut Note {
        &mut self.note
    }

    /// What `key` says about it. The key of another origin says nothing.
    pub fn signed_by(&self, key: &PublicKey) -> Signed {
        self.note.signed_by(key)
    }

    /// True if it is of the ledger whose key `key` is, and `key` signed it.
    pub fn is_of(&self, key: &PublicKey) -> bool {
        self.origin == key.name() && matches!(self.signed_by(key), Signed::Yes { .. })
    }
}

impl std::fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.note.fmt(f)
    }
}

impl FromStr for Checkpoint {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let note: Note = text.parse()?;
        let mut lines = note.text().split('\n');
        let mut line = || lines.next().filter(|line| !line.is_empty()).ok_or(NoteError::Malformed);
        let (origin, size, root) = (line()?.to_owned(), line()?, line()?);
        let size = number(size).ok_or(NoteError::Malformed)?;
        let root = from_base64(root).ok_or(NoteError::Malformed)?;
        let mut charges = None;
        for line in lines.filter_map(|line| line.strip_prefix(CHARGES)) {
            let read = line.split_once(' ').and_then(|(size, root)| {
                Some(TreeHead { size: number(size)?, root: from_base64(root)? })
            });
            // Two of them would say two things.
            if read.is_none() || charges.is_some() {
                return Err(NoteError::Malformed);
            }
            charges = read;
        }
        Ok(Self { origin, head: TreeHead { size, root }, charges, note })
    }
}

/// A whole number in decimal, without a sign or zeros in front.
pub(crate) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

/// The hash in base64.
pub(crate) fn to_base64(hash: &Hash) -> String {
    STANDARD.encode(hash.as_bytes())
}

/// The hash that [`to_base64`] wrote.
pub(crate) fn from_base64(text: &str) -> Option<Hash> {
    let bytes = STANDARD.decode(text).ok()?;
    bytes.try_into().ok().map(Hash::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::Kind;

    fn key() -> PrivateKey {
        PrivateKey::new("example.org/berlin", Kind::Log, &[7; 32]).unwrap()
    }

    #[test]
    fn a_checkpoint_survives_its_text_and_is_of_its_key_only() {
        let head = TreeHead { size: 4_096, root: Hash::of_leaf(b"root") };
        let checkpoint = Checkpoint::sign(head, &key());
        let again: Checkpoint = checkpoint.to_string().parse().unwrap();
        assert_eq!(again, checkpoint);
        assert!(again.is_of(key().public()));
        let other = PrivateKey::new("example.org/paris", Kind::Log, &[7; 32]).unwrap();
        assert!(!again.is_of(other.public()));
        assert_eq!(again.to_string().lines().take(2).last(), Some("4096"));
    }

    #[test]
    fn no_changed_letter_of_the_text_keeps_the_signature() {
        let head = TreeHead { size: 4_096, root: Hash::of_leaf(b"root") };
        let good = Checkpoint::sign(head, &key()).to_string();
        let body = good.find("\n\n").unwrap();
        for at in 0..body {
            let mut bad = good.clone().into_bytes();
            bad[at] = if bad[at] == b'1' { b'2' } else { b'1' };
            let bad = String::from_utf8(bad).unwrap();
            assert!(!bad.parse::<Checkpoint>().is_ok_and(|bad| bad.is_of(key().public())), "{bad}");
        }
    }

    #[test]
    fn the_root_over_all_charges_is_signed_with_it_and_stands_there_once() {
        let head = TreeHead { size: 4_096, root: Hash::of_leaf(b"root") };
        let charges = TreeHead { size: 3, root: Hash::of_leaf(b"charges") };
        let checkpoint = Checkpoint::sign_with_charges(head, charges, &key());
        let text = checkpoint.to_string();
        let again: Checkpoint = text.parse().unwrap();
        assert_eq!((again.head(), again.charges()), (head, Some(charges)));
        assert!(again.is_of(key().public()));
        let other: Checkpoint = text.replace("\ncharges 3 ", "\ncharges 4 ").parse().unwrap();
        assert!(!other.is_of(key().public()));
        let line = text.lines().nth(3).unwrap();
        for bad in [format!("{line}\n{line}"), "charges 3".into(), "charges 03 AA==".into()] {
            assert!(text.replace(line, &bad).parse::<Checkpoint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_size_has_one_spelling() {
        for bad in ["01", "+1", "", "-1", " 1", "18446744073709551616"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
        assert_eq!(number("18446744073709551615"), Some(u64::MAX));
    }
}

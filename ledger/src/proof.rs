//! Proofs as files: what a tenant, a lender or a court checks with nothing but a public key.
//!
//! * [`Inclusion`]: this record is number *n* of the ledger that this checkpoint signs; the form is
//!   C2SP `tlog-proof`, with the record's canonical bytes as its extra data.
//! * [`Consistency`]: the ledger of the later checkpoint extends that of the earlier one.
//! * [`Fork`]: one key signed two ledgers of which neither extends the other.
//!
//! All are text: a first line that says what it is, hashes in base64 one a line, an empty line, and
//! one or two checkpoints.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::checkpoint::{Checkpoint, from_base64, number, to_base64};
use crate::merkle::{Hash, TreeHead, is_consistent, is_included};
use crate::note::{NoteError, PublicKey};

const INCLUSION: &str = "c2sp.org/tlog-proof@v1";
const CONSISTENCY: &str = "sublet-consistency-proof@v1";
const FORK: &str = "sublet-fork-proof@v1";

/// Hashes of a proof at most: a tree of 2⁶⁴ leaves needs no more.
const PATH_MAX: usize = 66;
/// Bytes of a file with one proof at most: a record of 1 MiB in base64 fits.
pub const PROOF_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Why a text is no proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// It is of no known kind or does not have the form of its kind.
    #[error("it is not a proof, or only a part of one")]
    Form,
    /// Its checkpoint cannot be read.
    #[error("its checkpoint cannot be read")]
    Checkpoint(#[source] NoteError),
}

/// Why a proof proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unproven {
    /// A checkpoint is of another ledger than the key.
    #[error("a checkpoint is of another ledger than the key")]
    OtherOrigin,
    /// The key did not sign a checkpoint.
    #[error("a checkpoint is not signed by the key")]
    NotSigned,
    /// The hashes do not lead from the record to the root.
    #[error("the hashes do not lead from the record to the checkpoint's root")]
    NotIncluded,
    /// The hashes do not lead from one root to the other.
    #[error("the hashes do not lead from the earlier root to the later one")]
    NotConsistent,
    /// The two ledgers agree.
    #[error("the two checkpoints do not contradict each other")]
    NoFork,
    /// There are no record's bytes in it, and no leaf hash was given.
    #[error("the proof holds no record and no receipt was given")]
    NoLeaf,
    /// The record is not the one that the receipt names.
    #[error("the record is not the one that the receipt names")]
    OtherLeaf,
}

/// A record is in a ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inclusion {
    /// Its index.
    pub index: u64,
    /// The hashes from its neighbour to the root.
    pub path: Vec<Hash>,
    /// The canonical bytes of the record, if they come along.
    pub record: Option<Vec<u8>>,
    /// The ledger that it is in.
    pub checkpoint: Checkpoint,
}

impl Inclusion {
    /// Checks it with the ledger's public key; the leaf hash that is proven. `leaf` is the one that
    /// is expected, from a receipt.
    ///
    /// # Errors
    /// It proves nothing.
    pub fn check(&self, key: &PublicKey, leaf: Option<&Hash>) -> Result<Hash, Unproven> {
        signed(&self.checkpoint, key)?;
        let own = self.record.as_deref().map(Hash::of_leaf);
        let proven = match (own, leaf) {
            (Some(own), Some(leaf)) if own != *leaf => return Err(Unproven::OtherLeaf),
            (Some(own), _) => own,
            (None, Some(leaf)) => *leaf,
            (None, None) => return Err(Unproven::NoLeaf),
        };
        let is_in = is_included(&proven, self.index, &self.checkpoint.head(), &self.path);
        if is_in { Ok(proven) } else { Err(Unproven::NotIncluded) }
    }
}

/// A later ledger extends an earlier one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Consistency {
    /// The hashes of RFC 6962, 2.1.2.
    pub path: Vec<Hash>,
    /// The earlier ledger.
    pub old: Checkpoint,
    /// The later one.
    pub new: Checkpoint,
}

impl Consistency {
    /// Checks it with the ledger's public key.
    ///
    /// # Errors
    /// It proves nothing.
    pub fn check(&self, key: &PublicKey) -> Result<(), Unproven> {
        signed(&self.old, key)?;
        signed(&self.new, key)?;
        let is_good = is_consistent(&self.old.head(), &self.new.head(), &self.path);
        if is_good { Ok(()) } else { Err(Unproven::NotConsistent) }
    }
}

/// Two ledgers were signed of which neither extends the other: the later one's first records, as many
/// as the earlier one has, have another root than the earlier one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fork {
    /// The root over as many records of the later ledger as the earlier one has.
    pub prefix: Hash,
    /// The hashes that lead from it to the later ledger.
    pub path: Vec<Hash>,
    /// The earlier ledger, or one as long.
    pub one: Checkpoint,
    /// The later ledger.
    pub other: Checkpoint,
}

impl Fork {
    /// Checks with the ledger's public key that there are two histories.
    ///
    /// # Errors
    /// It proves nothing.
    pub fn check(&self, key: &PublicKey) -> Result<(), Unproven> {
        signed(&self.one, key)?;
        signed(&self.other, key)?;
        let prefix = TreeHead { size: self.one.head().size, root: self.prefix };
        if self.prefix == self.one.head().root {
            return Err(Unproven::NoFork);
        }
        let is_good = is_consistent(&prefix, &self.other.head(), &self.path);
        if is_good { Ok(()) } else { Err(Unproven::NotConsistent) }
    }
}

pub(crate) fn signed(checkpoint: &Checkpoint, key: &PublicKey) -> Result<(), Unproven> {
    if checkpoint.origin() != key.name() {
        return Err(Unproven::OtherOrigin);
    }
    if checkpoint.is_of(key) { Ok(()) } else { Err(Unproven::NotSigned) }
}

/// Any proof.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Proof {
    /// A record is in a ledger.
    Inclusion(Inclusion),
    /// A ledger extends an earlier one.
    Consistency(Consistency),
    /// Two ledgers contradict each other.
    Fork(Fork),
}

impl Proof {
    /// Reads the proofs of a file, one behind the other.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read_all(text: &str) -> Result<Vec<Self>, Malformed> {
        let is_first = |line: &str| [INCLUSION, CONSISTENCY, FORK].contains(&line);
        let mut proofs: Vec<String> = Vec::new();
        for line in text.split_inclusive('\n') {
            match proofs.last_mut() {
                Some(proof) if !is_first(line.trim_end_matches('\n')) => proof.push_str(line),
                _ => proofs.push(line.to_owned()),
            }
        }
        proofs.iter().map(|proof| proof.parse()).collect()
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inclusion(Inclusion { index, path, record, checkpoint }) => {
                writeln!(f, "{INCLUSION}")?;
                if let Some(record) = record {
                    writeln!(f, "extra {}", STANDARD.encode(record))?;
                }
                writeln!(f, "index {index}")?;
                hashes(f, path)?;
                write!(f, "\n{checkpoint}")
            }
            Self::Consistency(Consistency { path, old, new }) => {
                writeln!(f, "{CONSISTENCY}")?;
                hashes(f, path)?;
                write!(f, "\n{old}\n{new}")
            }
            Self::Fork(Fork { prefix, path, one, other }) => {
                writeln!(f, "{FORK}\nprefix {}", to_base64(prefix))?;
                hashes(f, path)?;
                write!(f, "\n{one}\n{other}")
            }
        }
    }
}

fn hashes(f: &mut fmt::Formatter<'_>, path: &[Hash]) -> fmt::Result {
    path.iter().try_for_each(|hash| writeln!(f, "{}", to_base64(hash)))
}

impl FromStr for Proof {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let (first, rest) = text.split_once('\n').ok_or(Malformed::Form)?;
        let (header, rest) = match rest.strip_prefix('\n') {
            Some(rest) => ("", rest),
            None => rest.split_once("\n\n").ok_or(Malformed::Form)?,
        };
        let mut lines = header.split('\n').filter(|line| !line.is_empty()).peekable();
        match first {
            INCLUSION => {
                let extra = lines.next_if(|line| line.starts_with("extra "));
                let record = match extra.and_then(|line| line.strip_prefix("extra ")) {
                    Some(bytes) => Some(STANDARD.decode(bytes).map_err(|_| Malformed::Form)?),
                    None => None,
                };
                let index = lines.next().and_then(|line| line.strip_prefix("index "));
                let index = index.and_then(number).ok_or(Malformed::Form)?;
                let checkpoint = rest.parse().map_err(Malformed::Checkpoint)?;
                Ok(Self::Inclusion(Inclusion { index, path: path(lines)?, record, checkpoint }))
            }
            CONSISTENCY => {
                let (old, new) = two(rest)?;
                Ok(Self::Consistency(Consistency { path: path(lines)?, old, new }))
            }
            FORK => {
                let prefix = lines.next().and_then(|line| line.strip_prefix("prefix "));
                let prefix = prefix.and_then(from_base64).ok_or(Malformed::Form)?;
                let (one, other) = two(rest)?;
                Ok(Self::Fork(Fork { prefix, path: path(lines)?, one, other }))
            }
            _ => Err(Malformed::Form),
        }
    }
}

fn path<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Vec<Hash>, Malformed> {
    let path: Option<Vec<Hash>> = lines.take(PATH_MAX + 1).map(from_base64).collect();
    path.filter(|path| path.len() <= PATH_MAX).ok_or(Malformed::Form)
}

/// Two checkpoints with an empty line between them; each has one within it.
fn two(text: &str) -> Result<(Checkpoint, Checkpoint), Malformed> {
    let mut breaks = text.match_indices("\n\n").map(|(at, _)| at);
    let middle = breaks.nth(1).ok_or(Malformed::Form)?;
    let read = |text: &str| text.parse().map_err(Malformed::Checkpoint);
    Ok((read(&text[..=middle])?, read(&text[middle + 2..])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merkle::{Frontier, consistency_ranges, inclusion_ranges};
    use crate::note::{Kind, PrivateKey};

    fn key(seed: u8) -> PrivateKey {
        PrivateKey::new("example.org/berlin", Kind::Log, &[seed; 32]).unwrap()
    }

    fn record(index: u64, history: u8) -> Vec<u8> {
        // The second history changes record 11 and nothing before it.
        format!("record {index} of {}", if index < 11 { 0 } else { history }).into_bytes()
    }

    fn root(range: std::ops::Range<u64>, history: u8) -> Hash {
        let mut tree = Frontier::new();
        range.for_each(|index| tree.append(Hash::of_leaf(&record(index, history))));
        tree.root()
    }

    fn checkpoint(size: u64, history: u8) -> Checkpoint {
        Checkpoint::sign(TreeHead { size, root: root(0..size, history) }, &key(1))
    }

    fn inclusion(index: u64, size: u64) -> Inclusion {
        let ranges = inclusion_ranges(index, size).unwrap();
        let path = ranges.into_iter().map(|range| root(range, 0)).collect();
        let record = Some(record(index, 0));
        Inclusion { index, path, record, checkpoint: checkpoint(size, 0) }
    }

    fn hashes(old: u64, new: u64, history: u8) -> Vec<Hash> {
        let ranges = consistency_ranges(old, new).unwrap();
        ranges.into_iter().map(|range| root(range, history)).collect()
    }

    fn again(proof: &Proof) -> Proof {
        let read: Proof = proof.to_string().parse().unwrap();
        assert_eq!(read, *proof, "{proof}");
        read
    }

    #[test]
    fn an_inclusion_proof_survives_its_text_and_proves_its_record() {
        for (index, size) in [(0, 1), (0, 20), (13, 20), (19, 20)] {
            let Proof::Inclusion(read) = again(&Proof::Inclusion(inclusion(index, size))) else {
                panic!("another kind");
            };
            let leaf = Hash::of_leaf(&record(index, 0));
            assert_eq!(read.check(key(1).public(), None), Ok(leaf));
            assert_eq!(read.check(key(1).public(), Some(&leaf)), Ok(leaf));
            assert_eq!(read.check(key(2).public(), None), Err(Unproven::NotSigned));
            let other = Hash::of_leaf(b"another");
            assert_eq!(read.check(key(1).public(), Some(&other)), Err(Unproven::OtherLeaf));
            let bare = Inclusion { record: None, ..read.clone() };
            assert_eq!(bare.check(key(1).public(), None), Err(Unproven::NoLeaf));
            assert_eq!(bare.check(key(1).public(), Some(&leaf)), Ok(leaf));
            let edited = Inclusion { record: Some(record(index, 0).to_ascii_uppercase()), ..read };
            assert_eq!(edited.check(key(1).public(), None), Err(Unproven::NotIncluded));
        }
    }

    #[test]
    fn a_consistency_proof_survives_its_text_and_proves_no_fork() {
        for (old, new) in [(1, 20), (8, 20), (13, 20), (20, 20)] {
            let (one, other) = (checkpoint(old, 0), checkpoint(new, 0));
            let path = hashes(old, new, 0);
            let proof = Consistency { path: path.clone(), old: one.clone(), new: other.clone() };
            let Proof::Consistency(read) = again(&Proof::Consistency(proof)) else { panic!() };
            assert_eq!(read.check(key(1).public()), Ok(()));
            let turned = Consistency { old: read.new.clone(), new: read.old.clone(), ..read };
            assert_eq!(turned.check(key(1).public()).is_ok(), old == new);
            let fork = Fork { prefix: one.head().root, path, one, other };
            assert_eq!(fork.check(key(1).public()), Err(Unproven::NoFork));
        }
    }

    #[test]
    fn a_fork_is_proven_to_whoever_has_the_key_and_to_nobody_when_there_is_none() {
        for (old, new) in [(12, 20), (16, 20), (20, 20)] {
            let (one, other) = (checkpoint(old, 0), checkpoint(new, 1));
            let (prefix, path) = (root(0..old, 1), hashes(old, new, 1));
            let Proof::Fork(read) = again(&Proof::Fork(Fork { prefix, path, one, other })) else {
                panic!("another kind");
            };
            assert_eq!(read.check(key(1).public()), Ok(()));
            assert_eq!(read.check(key(2).public()), Err(Unproven::NotSigned));
            let made_up = Fork { prefix: Hash::of_leaf(b"x"), ..read };
            assert_eq!(made_up.check(key(1).public()), Err(Unproven::NotConsistent));
        }
        // Both histories have the same first eleven records.
        let (one, other) = (checkpoint(11, 0), checkpoint(20, 1));
        let (prefix, path) = (root(0..11, 1), hashes(11, 20, 1));
        let fork = Fork { prefix, path, one, other };
        assert_eq!(fork.check(key(1).public()), Err(Unproven::NoFork));
    }

    /// What a lying server may send in place of a proof.
    #[test]
    fn empty_cut_huge_and_foreign_proofs_are_refused() {
        let good = Proof::Inclusion(inclusion(13, 20)).to_string();
        for end in (0..good.len()).filter(|end| good.is_char_boundary(*end)) {
            let cut = good[..end].parse::<Proof>();
            assert!(cut.is_err(), "{end}: {cut:?}");
        }
        let hash = format!("{}\n", to_base64(&Hash::of_leaf(b"x")));
        let huge = good.replace("index 13\n", &format!("index 13\n{}", hash.repeat(70)));
        assert!(huge.parse::<Proof>().is_err());
        let longer: Proof =
            good.replace("index 13\n", &format!("index 13\n{hash}")).parse().unwrap();
        let Proof::Inclusion(longer) = longer else { panic!() };
        assert_eq!(longer.check(key(1).public(), None), Err(Unproven::NotIncluded));
        let foreign = Inclusion { index: 12, ..inclusion(13, 20) };
        assert_eq!(foreign.check(key(1).public(), None), Err(Unproven::NotIncluded));
    }

    #[test]
    fn several_proofs_stand_in_one_file() {
        let proofs = [inclusion(3, 20), inclusion(13, 20)].map(Proof::Inclusion);
        let text = format!("{}{}", proofs[0], proofs[1]);
        assert_eq!(Proof::read_all(&text).unwrap(), proofs);
        assert!(Proof::read_all(&format!("x\n{text}")).is_err());
        assert_eq!(Proof::read_all("").unwrap(), []);
    }
}

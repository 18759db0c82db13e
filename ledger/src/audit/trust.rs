//! Whom an auditor believes: the cell's public key, witnesses, checkpoints kept from before.

use crate::checkpoint::Checkpoint;
use crate::note::{PublicKey, Signed};

/// What an auditor brings along. Empty, everything is checked against itself only.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// The cell's key, from elsewhere than the folder. With it every sealed record has to be
    /// covered by a signature of it.
    pub key: Option<PublicKey>,
    /// Witnesses, each with a key of its own.
    pub witnesses: Vec<PublicKey>,
    /// How many of them have to have signed some checkpoint, of the folder or of those kept.
    pub witnesses_required: usize,
    /// Checkpoints of this ledger that were kept from before or come from elsewhere.
    pub against: Vec<Checkpoint>,
}

impl Trust {
    /// Whether enough witnesses have signed `checkpoint`; false if there are none.
    pub fn is_witnessed(&self, checkpoint: &Checkpoint) -> bool {
        let signed = |key: &&PublicKey| matches!(checkpoint.signed_by(key), Signed::Yes { .. });
        self.witnesses.iter().filter(signed).count() >= self.witnesses_required.max(1)
    }
}

/// Whose signatures were checked, and how far they reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signatures {
    /// The key; `None` if the auditor brought none and the folder names none.
    pub key: Option<PublicKey>,
    /// Whether the auditor brought it. A key that the folder itself names proves nothing against
    /// whoever wrote the folder.
    pub is_pinned: bool,
    /// Records up to the newest checkpoint that the key signed.
    pub signed: u64,
    /// Records up to the newest checkpoint that enough witnesses signed.
    pub witnessed: u64,
    /// Segments beside which there is no checkpoint that the key signed, in order. The signatures of
    /// later ones reach over them.
    pub without: Vec<u32>,
    /// The newest checkpoint that the key signed.
    pub newest: Option<Checkpoint>,
}

//! Signed notes after C2SP `signed-note`: a text and lines of signatures under it.
//!
//! ```text
//! text, its last line ended
//!
//! — NAME BASE64(key id u32, big-endian ‖ signature)
//! ```
//!
//! Two kinds of keys are known: Ed25519 over the text (kind 1), with which a ledger signs, and
//! Ed25519 over the text with a time before it (kind 4, C2SP `tlog-cosignature`), with which a
//! witness does. The kept crate (`signed_note` 0.2) brings a second `ed25519-dalek`, `sha2`, `base64`
//! and `rand_core` for these few lines, and knows no witness.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature as Ed25519, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest, Sha256};

/// Bytes of a note at most.
pub const NOTE_BYTES_MAX: usize = 64 * 1024;
/// Signatures of a note at most; C2SP asks for 16 at least.
pub const SIGNATURES_MAX: usize = 64;

const PRIVATE: &str = "PRIVATE+KEY+";
const DASH: &str = "\u{2014} ";

/// Why a text is no note or no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// It is longer than notes are, or has too many signatures.
    #[error("the note is too long")]
    TooLong,
    /// It is no text with signatures under it.
    #[error("it is not a signed note")]
    Malformed,
    /// It is no key as C2SP writes them.
    #[error("it is not a key: one line NAME+HASH+KEY is expected")]
    Key,
    /// A key of a kind that is not known here.
    #[error("it is a key of kind {0}, which is not used here")]
    Kind(u8),
    /// A name that cannot be a key's name.
    #[error("a key's name is 1 to 128 characters without spaces and plus signs")]
    Name,
}

/// What a key signs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// The text: the key of a log.
    Log,
    /// The text as of a time: the key of a witness.
    Witness,
}

impl Kind {
    const fn byte(self) -> u8 {
        match self {
            Self::Log => 1,
            Self::Witness => 4,
        }
    }

    fn of(byte: u8) -> Result<Self, NoteError> {
        match byte {
            1 => Ok(Self::Log),
            4 => Ok(Self::Witness),
            other => Err(NoteError::Kind(other)),
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_good = |c: char| !c.is_whitespace() && !c.is_control() && c != '+';
    !name.is_empty() && name.len() <= 128 && name.chars().all(is_good)
}

/// The first four bytes of `SHA-256(name ‖ 0x0A ‖ kind ‖ key)`.
fn key_id(name: &str, kind: Kind, key: &VerifyingKey) -> [u8; 4] {
    let mut hash = Sha256::new();
    hash.update(name.as_bytes());
    hash.update([b'\n', kind.byte()]);
    hash.update(key.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let [a, b, c, d, ..] = digest;
    [a, b, c, d]
}

/// A public key with its name, written `NAME+HASH+KEY`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublicKey {
    name: String,
    kind: Kind,
    id: [u8; 4],
    key: VerifyingKey,
}

impl PublicKey {
    fn new(name: &str, kind: Kind, key: VerifyingKey) -> Self {
        Self { name: name.to_owned(), kind, id: key_id(name, kind, &key), key }
    }

    /// Its name; that of a log's key is the log's origin.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it signs.
    pub const fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = [&[self.kind.byte()], self.key.as_bytes().as_slice()].concat();
        let id = u32::from_be_bytes(self.id);
        write!(f, "{}+{id:08x}+{}", self.name, STANDARD.encode(key))
    }
}

impl FromStr for PublicKey {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let Parts { name, id, kind, key } = parts(text.trim())?;
        let key = VerifyingKey::from_bytes(&key).map_err(|_| NoteError::Key)?;
        let public = Self::new(name, kind, key);
        if public.id == id && !key.is_weak() { Ok(public) } else { Err(NoteError::Key) }
    }
}

/// What a written key is made of.
struct Parts<'a> {
    name: &'a str,
    id: [u8; 4],
    kind: Kind,
    key: [u8; 32],
}

/// The parts of `NAME+HASH+KEY`.
fn parts(text: &str) -> Result<Parts<'_>, NoteError> {
    let (name, rest) = text.split_once('+').ok_or(NoteError::Key)?;
    let (id, key) = rest.split_once('+').ok_or(NoteError::Key)?;
    if !is_name(name) {
        return Err(NoteError::Name);
    }
    let is_id = id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = u32::from_str_radix(id, 16).ok().filter(|_| is_id).ok_or(NoteError::Key)?;
    let key = STANDARD.decode(key).map_err(|_| NoteError::Key)?;
    let (kind, key) = key.split_first().ok_or(NoteError::Key)?;
    let kind = Kind::of(*kind)?;
    let key = key.try_into().map_err(|_| NoteError::Key)?;
    Ok(Parts { name, id: id.to_be_bytes(), kind, key })
}

/// A private key with its name, written `PRIVATE+KEY+NAME+HASH+KEY`. Not shown by `Debug`.
#[derive(Clone)]
pub struct PrivateKey {
    public: PublicKey,
    key: SigningKey,
}

impl PrivateKey {
    /// The key made from 32 random bytes.
    ///
    /// # Errors
    /// [`NoteError::Name`].
    pub fn new(name: &str, kind: Kind, random: &[u8; 32]) -> Result<Self, NoteError> {
        if !is_name(name) {
            return Err(NoteError::Name);
        }
        let key = SigningKey::from_bytes(random);
        Ok(Self { public: PublicKey::new(name, kind, key.verifying_key()), key })
    }

    /// Its public half.
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The line to be kept in a file that only its owner reads.
    pub fn to_secret_line(&self) -> String {
        let PublicKey { name, kind, id, .. } = &self.public;
        let key = [&[kind.byte()], self.key.as_bytes().as_slice()].concat();
        format!("{PRIVATE}{name}+{:08x}+{}", u32::from_be_bytes(*id), STANDARD.encode(key))
    }

    /// The signature line under `text`; `time` in seconds since 1970 is used by a witness only.
    pub fn sign(&self, text: &str, time: u64) -> SignatureLine {
        let (PublicKey { name, kind, id, .. }, mut bytes) = (&self.public, Vec::new());
        let message = match kind {
            Kind::Log => text.to_owned(),
            Kind::Witness => {
                bytes.extend_from_slice(&time.to_be_bytes());
                cosigned(text, time)
            }
        };
        bytes.extend_from_slice(&self.key.sign(message.as_bytes()).to_bytes());
        SignatureLine { name: name.clone(), id: *id, signature: bytes }
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrivateKey").field(&self.public.name).finish()
    }
}

impl FromStr for PrivateKey {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let rest = text.trim().strip_prefix(PRIVATE).ok_or(NoteError::Key)?;
        let Parts { name, id, kind, key } = parts(rest)?;
        let private = Self::new(name, kind, &key)?;
        if private.public.id == id { Ok(private) } else { Err(NoteError::Key) }
    }
}

/// What a witness signs.
fn cosigned(text: &str, time: u64) -> String {
    format!("cosignature/v1\ntime {time}\n{text}")
}

/// One line under a note.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignatureLine {
    name: String,
    id: [u8; 4],
    signature: Vec<u8>,
}

impl fmt::Display for SignatureLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [self.id.as_slice(), &self.signature].concat();
        write!(f, "{DASH}{} {}", self.name, STANDARD.encode(bytes))
    }
}

impl FromStr for SignatureLine {
    type Err = NoteError;

    fn from_str(line: &str) -> Result<Self, NoteError> {
        let rest = line.strip_prefix(DASH).ok_or(NoteError::Malformed)?;
        let (name, signature) = rest.split_once(' ').ok_or(NoteError::Malformed)?;
        let bytes = STANDARD.decode(signature).map_err(|_| NoteError::Malformed)?;
        let (id, signature) = bytes.split_first_chunk().ok_or(NoteError::Malformed)?;
        if !is_name(name) || signature.is_empty() {
            return Err(NoteError::Malformed);
        }
        Ok(Self { name: name.to_owned(), id: *id, signature: signature.to_vec() })
    }
}

/// What a key says about a note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signed {
    /// It signed it. The time is a witness's, in seconds since 1970.
    Yes {
        /// When the witness signed; 0 for a log.
        time: u64,
    },
    /// No line is of this key.
    No,
    /// A line names this key and is not its signature over this text.
    Forged,
}

/// A text with its signatures. That it could be read says nothing about who signed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    text: String,
    signatures: Vec<SignatureLine>,
}

impl Note {
    /// A note of `text`, which ends its last line, with these signatures.
    pub const fn new(text: String, signatures: Vec<SignatureLine>) -> Self {
        Self { text, signatures }
    }

    /// The text, its last line ended.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Adds a signature, unless the same line is there.
    pub fn add(&mut self, line: SignatureLine) {
        if !self.signatures.contains(&line) {
            self.signatures.push(line);
        }
    }

    /// What `key` says about it: [`Signed::Forged`] if any line of its name and id is wrong.
    pub fn signed_by(&self, key: &PublicKey) -> Signed {
        let mut said = Signed::No;
        let of_key = |line: &&SignatureLine| line.name == key.name && line.id == key.id;
        for line in self.signatures.iter().filter(of_key) {
            match checked(&self.text, key, &line.signature) {
                Some(time) => said = Signed::Yes { time },
                None => return Signed::Forged,
            }
        }
        said
    }
}

/// The witness's time, or 0, if `signature` is `key`'s over `text`.
fn checked(text: &str, key: &PublicKey, signature: &[u8]) -> Option<u64> {
    let (message, time, signature) = match key.kind {
        Kind::Log => (text.to_owned(), 0, signature),
        Kind::Witness => {
            let (time, signature) = signature.split_first_chunk()?;
            let time = u64::from_be_bytes(*time);
            (cosigned(text, time), time, signature)
        }
    };
    let signature = Ed25519::from_slice(signature).ok()?;
    key.key.verify_strict(message.as_bytes(), &signature).ok().map(|()| time)
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.text)?;
        self.signatures.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl FromStr for Note {
    type Err = NoteError;

    fn from_str(note: &str) -> Result<Self, NoteError> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(NoteError::TooLong);
        }
        if note.chars().any(|c| c < ' ' && c != '\n') {
            return Err(NoteError::Malformed);
        }
        let split = note.rfind("\n\n").ok_or(NoteError::Malformed)?;
        let (text, lines) = (&note[..=split], &note[split + 2..]);
        let lines = lines.strip_suffix('\n').ok_or(NoteError::Malformed)?;
        if lines.split('\n').count() > SIGNATURES_MAX {
            return Err(NoteError::TooLong);
        }
        let signatures = lines.split('\n').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), signatures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Go's `sumdb/note`, whose keys and signatures every implementation must read.
    const PETER: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
    const PETER_NOTE: &str = "If you think cryptography is the answer to your problem,\n\
        then you don't know what your problem is.\n\n\
        \u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";

    fn key(kind: Kind) -> PrivateKey {
        PrivateKey::new("example.org/berlin", kind, &[7; 32]).unwrap()
    }

    #[test]
    fn a_note_that_another_implementation_signed_is_read_and_written_alike() {
        let (key, note): (PublicKey, Note) = (PETER.parse().unwrap(), PETER_NOTE.parse().unwrap());
        assert_eq!(note.signed_by(&key), Signed::Yes { time: 0 });
        assert_eq!((key.to_string(), note.to_string()), (PETER.to_owned(), PETER_NOTE.to_owned()));
    }

    #[test]
    fn keys_survive_their_text_and_none_with_another_letter_passes() {
        for kind in [Kind::Log, Kind::Witness] {
            let private = key(kind);
            let again: PrivateKey = private.to_secret_line().parse().unwrap();
            assert_eq!(again.public(), private.public());
            let public = private.public().to_string();
            assert_eq!(public.parse::<PublicKey>().unwrap(), *private.public());
            for at in 0..public.len() {
                let mut other = public.clone().into_bytes();
                other[at] = if other[at] == b'A' { b'B' } else { b'A' };
                let other = String::from_utf8(other).unwrap();
                assert!(other.parse::<PublicKey>().is_err(), "{other}");
            }
            assert!(!format!("{private:?}").contains(&private.to_secret_line()[40..]));
        }
    }

    #[test]
    fn a_signature_counts_for_its_key_and_its_text_only() {
        let (log, witness) = (key(Kind::Log), key(Kind::Witness));
        let text = "origin\n1\nroot\n".to_owned();
        let lines = vec![log.sign(&text, 5), witness.sign(&text, 5)];
        let note: Note = Note::new(text, lines).to_string().parse().unwrap();
        assert_eq!(note.signed_by(log.public()), Signed::Yes { time: 0 });
        assert_eq!(note.signed_by(witness.public()), Signed::Yes { time: 5 });
        let stranger = PrivateKey::new("example.org/berlin", Kind::Log, &[8; 32]).unwrap();
        assert_eq!(note.signed_by(stranger.public()), Signed::No);
        let edited: Note = note.to_string().replace("\n1\n", "\n2\n").parse().unwrap();
        assert_eq!(edited.signed_by(log.public()), Signed::Forged);
        assert_eq!(edited.signed_by(witness.public()), Signed::Forged);
    }

    #[test]
    fn what_is_no_note_is_refused() {
        let good = key(Kind::Log).sign("a\n", 0).to_string();
        for bad in [
            String::new(),
            "a\n".to_owned(),
            "a\n\n".to_owned(),
            format!("a\n{good}\n"),
            format!("a\n\n{good}"),
            format!("a\r\n\n{good}\n"),
            format!("a\n\n{good}\nb\n"),
            format!("a\n\n{}\n", good.replace("\u{2014}", "-")),
        ] {
            assert!(bad.parse::<Note>().is_err(), "{bad:?}");
        }
        let many = format!("{good}\n").repeat(SIGNATURES_MAX + 1);
        assert_eq!(format!("a\n\n{many}").parse::<Note>(), Err(NoteError::TooLong));
    }
}

//! Bytes: canonical, versioned, capped. The only file that names bincode.
//!
//! Everything that is stored or sent begins with one version byte, then bincode 2 `standard`
//! (little-endian, variable-length integers) over serde types without maps. A decoder refuses a
//! version it does not know, more bytes than its cap and bytes left over.

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::agent::{DownEnvelope, MESSAGE_MAX, Reply, UpEnvelope};
use crate::commands::{Outcome, Stamped};
use crate::records::Record;

/// Largest command in bytes: a plan of 256 gangs of 1,024 would be larger and is refused.
pub const COMMAND_MAX: usize = 8 * 1_024 * 1_024;
/// Largest record in bytes: a lease of 1,024 members fits.
pub const RECORD_MAX: usize = 1_024 * 1_024;

/// Why bytes are not what they should be.
#[derive(Debug, Error)]
pub enum Error {
    /// No bytes at all.
    #[error("no bytes")]
    Empty,
    /// More bytes than are ever written.
    #[error("{length} bytes, more than the largest {what} ({max})")]
    TooLong {
        /// What was to be read.
        what: &'static str,
        /// How many bytes there are.
        length: usize,
        /// How many there may be.
        max: usize,
    },
    /// Written by a version this program does not know.
    #[error("version {found} of {what} is not known (this program knows {known})")]
    Version {
        /// What was to be read.
        what: &'static str,
        /// The version byte.
        found: u8,
        /// The newest version this program knows.
        known: u8,
    },
    /// Not of the form.
    #[error("not a {what}")]
    Malformed {
        /// What was to be read.
        what: &'static str,
        /// What the decoder says.
        #[source]
        source: bincode::error::DecodeError,
    },
    /// Bytes left over.
    #[error("{left} bytes left over after a {what}")]
    Trailing {
        /// What was to be read.
        what: &'static str,
        /// How many.
        left: usize,
    },
    /// Cannot be written.
    #[error("a {what} cannot be written")]
    Unwritable {
        /// What was to be written.
        what: &'static str,
        /// What the encoder says.
        #[source]
        source: bincode::error::EncodeError,
    },
}

/// What can be turned into bytes and back. The version grows when the form changes.
pub trait Format: Serialize + DeserializeOwned {
    /// What it is, for messages.
    const WHAT: &'static str;
    /// The version that is written.
    const VERSION: u8;
    /// Most bytes it may have.
    const MAX: usize;
}

impl Format for Record {
    const WHAT: &'static str = "record";
    const VERSION: u8 = 1;
    const MAX: usize = RECORD_MAX;
}

impl Format for Stamped {
    const WHAT: &'static str = "command";
    const VERSION: u8 = 1;
    const MAX: usize = COMMAND_MAX;
}

impl Format for Outcome {
    const WHAT: &'static str = "outcome";
    const VERSION: u8 = 1;
    const MAX: usize = COMMAND_MAX;
}

impl Format for UpEnvelope {
    const WHAT: &'static str = "message from an agent";
    const VERSION: u8 = 1;
    const MAX: usize = MESSAGE_MAX;
}

impl Format for DownEnvelope {
    const WHAT: &'static str = "message to an agent";
    const VERSION: u8 = 1;
    const MAX: usize = MESSAGE_MAX;
}

impl Format for Reply {
    const WHAT: &'static str = "reply";
    const VERSION: u8 = 1;
    const MAX: usize = MESSAGE_MAX;
}

/// The decoder's own limit guards against claimed lengths; it is the largest cap of all formats.
/// A state of 10⁶ requests takes about 300 MiB.
const LIMIT: usize = 1_024 * 1_024 * 1_024;

const CONFIGURATION: Configuration<LittleEndian, Varint, Limit<LIMIT>> =
    bincode::config::standard().with_limit::<LIMIT>();

/// The canonical bytes, the version byte first.
pub fn encode<T: Format>(value: &T) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![T::VERSION];
    bincode::serde::encode_into_std_write(value, &mut bytes, CONFIGURATION)
        .map_err(|source| Error::Unwritable { what: T::WHAT, source })?;
    if bytes.len() > T::MAX {
        return Err(Error::TooLong { what: T::WHAT, length: bytes.len(), max: T::MAX });
    }
    Ok(bytes)
}

/// Reads what [`encode`] wrote.
pub fn decode<T: Format>(bytes: &[u8]) -> Result<T, Error> {
    if bytes.len() > T::MAX {
        return Err(Error::TooLong { what: T::WHAT, length: bytes.len(), max: T::MAX });
    }
    let (version, body) = bytes.split_first().ok_or(Error::Empty)?;
    if *version != T::VERSION {
        return Err(Error::Version { what: T::WHAT, found: *version, known: T::VERSION });
    }
    let (value, used) = bincode::serde::decode_from_slice(body, CONFIGURATION)
        .map_err(|source| Error::Malformed { what: T::WHAT, source })?;
    match body.len() - used {
        0 => Ok(value),
        left => Err(Error::Trailing { what: T::WHAT, left }),
    }
}

/// The canonical bytes of a record: the leaf that the Merkle tree hashes.
pub fn encode_record(record: &Record) -> Result<Vec<u8>, Error> {
    encode(record)
}

/// Reads the canonical bytes of a record.
pub fn decode_record(bytes: &[u8]) -> Result<Record, Error> {
    decode(bytes)
}

//! The public keys that tokens may be signed with, by their id.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use sublet_protocol::ids::KeyId;

/// Why a key is not taken.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not the public half of an Ed25519 key as SPKI in PEM.
    #[error("key {id} is not a public Ed25519 key in PEM")]
    Pem {
        /// The key's id.
        id: KeyId,
        /// What the reader says.
        #[source]
        source: jsonwebtoken::errors::Error,
    },
    /// The bytes are not a point that a signature can be checked with.
    #[error("key {id} is not a public Ed25519 key")]
    Bytes {
        /// The key's id.
        id: KeyId,
        /// What the reader says.
        #[source]
        source: jsonwebtoken::errors::Error,
    },
    /// The id is there already.
    #[error("key {id} is given twice")]
    Twice {
        /// The key's id.
        id: KeyId,
    },
}

/// Public Ed25519 keys by their id (`kid`).
#[derive(Debug, Clone, Default)]
pub struct KeySet {
    keys: BTreeMap<KeyId, DecodingKey>,
}

impl KeySet {
    /// Adds the key in this PEM text (`BEGIN PUBLIC KEY`).
    ///
    /// # Errors
    /// [`KeyError::Pem`], [`KeyError::Twice`].
    pub fn add_pem(&mut self, id: KeyId, pem: &[u8]) -> Result<(), KeyError> {
        let key = DecodingKey::from_ed_pem(pem).map_err(|source| KeyError::Pem { id, source })?;
        self.add(id, key)
    }

    /// Adds the key with these 32 bytes.
    ///
    /// # Errors
    /// [`KeyError::Bytes`], [`KeyError::Twice`].
    pub fn add_bytes(&mut self, id: KeyId, bytes: &[u8; 32]) -> Result<(), KeyError> {
        let key = DecodingKey::from_ed_components(&URL_SAFE_NO_PAD.encode(bytes));
        self.add(id, key.map_err(|source| KeyError::Bytes { id, source })?)
    }

    fn add(&mut self, id: KeyId, key: DecodingKey) -> Result<(), KeyError> {
        if self.keys.contains_key(&id) {
            return Err(KeyError::Twice { id });
        }
        self.keys.insert(id, key);
        Ok(())
    }

    /// The key of this id.
    pub(super) fn get(&self, id: KeyId) -> Option<&DecodingKey> {
        self.keys.get(&id)
    }
}

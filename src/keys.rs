//! Signing keys of a development server: made once, kept in a file that only its owner can read.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, EncodePrivateKey};

use crate::failure::{Exit, Failure, Outcome};

/// Reads the key in `file`, or makes one there.
pub(crate) fn create(file: &Path) -> Outcome<SigningKey> {
    let failure = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(Exit::Failed, format!("cannot {what} the key {}", file.display()))
            .because(error)
    };
    if file.exists() {
        let pem = fs::read_to_string(file).map_err(|error| failure("read", &error))?;
        let key = SigningKey::from_pkcs8_pem(&pem).map_err(|error| failure("use", &error))?;
        return Ok(key);
    }
    let key = SigningKey::from_bytes(&crate::random::bytes()?);
    let pem = key.to_pkcs8_pem(LineEnding::LF).map_err(|error| failure("write", &error))?;
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(file);
    let written = opened.and_then(|mut file| {
        file.write_all(pem.as_bytes())?;
        file.sync_all()
    });
    written.map_err(|error| failure("write", &error))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        let first = create(&file).unwrap();
        let second = create(&file).unwrap();
        assert_eq!(first.to_bytes(), second.to_bytes());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

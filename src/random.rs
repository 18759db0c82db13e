//! Random names for things that must not be guessed or repeated: idempotency keys, token ids.

use crate::failure::{Exit, Failure, Outcome};

/// 128 random bits as 32 hexadecimal digits.
pub(crate) fn hex() -> Outcome<String> {
    bytes::<16>().map(hex::encode)
}

/// Random bytes from the operating system.
pub(crate) fn bytes<const N: usize>() -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(Exit::Failed, "the operating system gives no random numbers").because(error)
    })?;
    Ok(bytes)
}

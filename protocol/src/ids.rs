//! Ids: one type for each thing that has a name, none of them a bare string or number.
//!
//! *Names* are chosen by people (`[a-z0-9-]`, 1 to 32 characters) and are stored inline, so they are
//! `Copy`. *Numbers* are 128 bits made at the edge (or derived), shown with a prefix that says what
//! they are: `l-` a lease, `r-` a request, `c-` a command.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdError {
    /// Empty, or longer than the kind of id allows.
    #[error("{kind} must have 1 to {max} characters, this has {length}")]
    Length {
        /// What kind of id was expected.
        kind: &'static str,
        /// How many characters are allowed.
        max: usize,
        /// How many bytes were given.
        length: usize,
    },
    /// A character that the kind of id does not allow.
    #[error("{kind} may hold only {allowed}, not {found:?}")]
    Character {
        /// What kind of id was expected.
        kind: &'static str,
        /// Which characters are allowed.
        allowed: &'static str,
        /// The first character that is not allowed.
        found: char,
    },
    /// Not of the form the kind of id is written in.
    #[error("{kind} is written {form}")]
    Form {
        /// What kind of id was expected.
        kind: &'static str,
        /// How it is written.
        form: &'static str,
    },
}

const NAME_MAX: usize = 32;
const NAME_CHARACTERS: &str = "a-z, 0-9 and -";

/// A name of 1 to 32 characters of `[a-z0-9-]`, zero-padded, compared byte by byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Name([u8; NAME_MAX]);

impl Name {
    fn parse(kind: &'static str, text: &str) -> Result<Name, IdError> {
        let length = text.len();
        if length == 0 || length > NAME_MAX {
            return Err(IdError::Length { kind, max: NAME_MAX, length });
        }
        let allowed = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-';
        if let Some(found) = text.chars().find(|c| !allowed(c)) {
            return Err(IdError::Character { kind, allowed: NAME_CHARACTERS, found });
        }
        let mut bytes = [0; NAME_MAX];
        bytes[..length].copy_from_slice(text.as_bytes());
        Ok(Name(bytes))
    }

    fn as_str(&self) -> &str {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_MAX);
        std::str::from_utf8(&self.0[..length]).expect("a name holds only ASCII: checked by parse")
    }
}

/// Reads any `FromStr` id from a serde string.
struct TextVisitor<T>(std::marker::PhantomData<T>);

impl<T: FromStr<Err = IdError>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id as text")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! name_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Name);

        impl $name {
            /// Reads the id; refuses what is not 1 to 32 characters of `[a-z0-9-]`.
            pub fn new(text: &str) -> Result<Self, IdError> {
                Name::parse($kind, text).map($name)
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(TextVisitor(std::marker::PhantomData))
            }
        }
    };
}

name_id!(
    /// Who pays or earns. May own clusters, borrow, or both.
    TenantId,
    "a tenant id"
);
name_id!(
    /// A set of GPU nodes of one owner.
    ClusterId,
    "a cluster id"
);
name_id!(
    /// One machine of a cluster. Unique within its cluster only.
    NodeId,
    "a node id"
);
name_id!(
    /// A GPU model, as `a100-80gb` or `h200`. Quotas and prices are kept for each.
    GpuModel,
    "a GPU model"
);
name_id!(
    /// Where a cluster stands, for rules about where data may be.
    Region,
    "a region"
);
name_id!(
    /// What a request is for, chosen by its tenant; statements are split by it.
    Project,
    "a project"
);
name_id!(
    /// One raft group of brokers and all it serves.
    CellId,
    "a cell id"
);
name_id!(
    /// Which key signed the caller's token (`kid`).
    KeyId,
    "a key id"
);

/// Crockford's base 32, lower case: no i, l, o, u.
const BASE32: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 26 characters of 5 bits hold 128 bits; the first character is at most `7`.
const BASE32_LENGTH: usize = 26;

fn base32_of(value: u128) -> String {
    let mut text = [b'0'; BASE32_LENGTH];
    let mut rest = value;
    for place in text.iter_mut().rev() {
        let digit = usize::try_from(rest & 31).expect("five bits fit a usize");
        *place = BASE32[digit];
        rest >>= 5;
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn base32_read(text: &str) -> Option<u128> {
    let bytes = text.as_bytes();
    if bytes.len() != BASE32_LENGTH || bytes[0] > b'7' {
        return None;
    }
    bytes.iter().try_fold(0_u128, |value, byte| {
        let digit = BASE32.iter().position(|known| known == byte)?;
        Some((value << 5) | u128::try_from(digit).ok()?)
    })
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// The letter and dash that the text form begins with.
            pub const PREFIX: &'static str = $prefix;

            /// The id with this number.
            #[must_use]
            pub const fn new(value: u128) -> Self {
                $name(value)
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> u128 {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let form = concat!("`", $prefix, "` and 26 characters of 0-9a-z without i, l, o, u");
                let number = text.strip_prefix($prefix).and_then(base32_read);
                number.map($name).ok_or(IdError::Form { kind: $kind, form })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!("{}{}", $prefix, base32_of(self.0)))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    self.0.to_be_bytes().serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    deserializer.deserialize_str(TextVisitor(std::marker::PhantomData))
                } else {
                    <[u8; 16]>::deserialize(deserializer).map(|b| $name(u128::from_be_bytes(b)))
                }
            }
        }
    };
}

number_id!(
    /// One request for capacity. Made at the edge when the request is submitted.
    RequestId,
    "a request id",
    "r-"
);
number_id!(
    /// One lease. Derived from its request and attempt, so a plan needs no randomness.
    LeaseId,
    "a lease id",
    "l-"
);
number_id!(
    /// One command in the log; the cause of the records it makes.
    CommandId,
    "a command id",
    "c-"
);

number_id!(
    /// One rollback. Made at the edge when an operator asks for it.
    RollbackId,
    "a rollback id",
    "b-"
);

impl LeaseId {
    /// The id of the lease that serves `request` at its `attempt`-th grant (1, 2, …).
    ///
    /// A bijection of the request's number for each attempt (xor, odd multiplication and xor-shift
    /// are each invertible), so two requests never share a lease id at the same attempt; across
    /// attempts a clash has probability 2⁻¹²⁸ and the rules refuse it (`LeaseExists`).
    #[must_use]
    pub const fn derive(request: RequestId, attempt: u32) -> LeaseId {
        // The 128-bit golden ratio and an odd multiplier of PCG (O'Neill 2014).
        const GOLDEN: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        const ODD: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        #[allow(clippy::as_conversions, reason = "u32 to u128 loses nothing; `from` is not const")]
        let salted = request.0 ^ GOLDEN.wrapping_mul(attempt as u128 + 1);
        let mixed = (salted ^ (salted >> 67)).wrapping_mul(ODD);
        LeaseId(mixed ^ (mixed >> 61))
    }
}

/// A physical GPU, by the UUID the driver gives it; never by its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(u128);

impl DeviceId {
    /// The device with this UUID.
    #[must_use]
    pub const fn new(uuid: u128) -> Self {
        DeviceId(uuid)
    }

    /// The UUID as a number.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        f.pad(&format!("GPU-{a}-{b}-{c}-{d}-{e}"))
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for DeviceId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let form = IdError::Form { kind: "a device id", form: "GPU- and a UUID as 8-4-4-4-12" };
        let uuid = text.strip_prefix("GPU-").ok_or_else(|| form.clone())?;
        let dashed = [8, 13, 18, 23].iter().all(|at| uuid.as_bytes().get(*at) == Some(&b'-'));
        let digits: String = uuid.chars().filter(|c| *c != '-').collect();
        let is_hex = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if uuid.len() != 36 || !dashed || !is_hex {
            return Err(form);
        }
        u128::from_str_radix(&digits, 16).map(DeviceId).map_err(|_| form)
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.to_be_bytes().serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            deserializer.deserialize_str(TextVisitor(std::marker::PhantomData))
        } else {
            <[u8; 16]>::deserialize(deserializer).map(|b| DeviceId(u128::from_be_bytes(b)))
        }
    }
}

/// Who acts: the `sub` of a token, 1 to 64 characters of `[A-Za-z0-9._@:-]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(String);

const SUBJECT_MAX: usize = 64;

impl Subject {
    /// The subject as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Subject {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let kind = "a subject";
        if text.is_empty() || text.len() > SUBJECT_MAX {
            return Err(IdError::Length { kind, max: SUBJECT_MAX, length: text.len() });
        }
        let allowed = |c: &char| c.is_ascii_alphanumeric() || "._@:-".contains(*c);
        if let Some(found) = text.chars().find(|c| !allowed(c)) {
            let allowed = "A-Z, a-z, 0-9 and . _ @ : -";
            return Err(IdError::Character { kind, allowed, found });
        }
        Ok(Subject(text.to_owned()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Subject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(std::marker::PhantomData))
    }
}

/// Fencing token of a lease: strictly increasing over slices, leaders and restores from backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// How often the cell was restored from a backup.
    pub epoch: u32,
    /// Counted in the replicated state, one per grant.
    pub counter: u64,
}

impl Token {
    /// Lower than every token a broker issues.
    pub const NONE: Token = Token { epoch: 0, counter: 0 };
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}

/// How often an agent has started; fsynced before it speaks.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Boot(u64);

impl Boot {
    /// The boot with this count.
    #[must_use]
    pub const fn new(count: u64) -> Self {
        Boot(count)
    }

    /// The count.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The boot after this one. A `u64` of boots outlasts any machine.
    #[must_use]
    pub const fn next(self) -> Boot {
        Boot(self.0.saturating_add(1))
    }
}

/// A hash of the machine id: tells two machines apart that claim one node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostHash(pub [u8; 16]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_and_shown_unchanged() {
        assert_eq!(TenantId::new("acme-2").unwrap().to_string(), "acme-2");
    }

    #[test]
    fn a_name_with_a_foreign_character_is_refused_and_says_which() {
        for bad in ["", "Acme", "a.b", "a*", "a>", "a b", "a\n", "é", &"x".repeat(33)] {
            assert!(TenantId::new(bad).is_err(), "{bad:?} was accepted");
        }
        let error = TenantId::new("a_b").unwrap_err().to_string();
        assert_eq!(error, "a tenant id may hold only a-z, 0-9 and -, not '_'");
    }

    #[test]
    fn a_number_id_survives_its_text_form() {
        for value in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
            let id = LeaseId::new(value);
            assert_eq!(id.to_string().parse::<LeaseId>().unwrap(), id);
        }
        assert!(
            "r-00000000000000000000000000".parse::<LeaseId>().is_err(),
            "another kind's prefix"
        );
        assert!("l-80000000000000000000000000".parse::<LeaseId>().is_err(), "more than 128 bits");
    }

    #[test]
    fn a_device_id_is_read_in_the_drivers_form() {
        let text = "GPU-0a1b2c3d-0000-1111-2222-333344445555";
        assert_eq!(text.parse::<DeviceId>().unwrap().to_string(), text);
        for bad in [
            "GPU-1",
            "0a1b2c3d-0000-1111-2222-333344445555",
            "GPU-0a1b2c3d0000111122223333444455556666",
        ] {
            assert!(bad.parse::<DeviceId>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn leases_of_different_attempts_and_requests_differ() {
        let mut seen = std::collections::BTreeSet::new();
        for request in 0..1_000 {
            for attempt in 1..=3 {
                assert!(seen.insert(LeaseId::derive(RequestId::new(request), attempt)));
            }
        }
    }
}

//! Numbers and money as bodies hold them: a wrong one says what is allowed.

use std::fmt;

use serde::de::{self, IntoDeserializer, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::money::{Currency, MicroCredits};

/// A number outside the range of its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{value} is not a whole number from {min} to {max}")]
pub struct OutOfRange {
    /// What was given.
    pub value: u64,
    /// The least that is allowed.
    pub min: u64,
    /// The most that is allowed.
    pub max: u64,
}

/// A whole number from `MIN` to `MAX`. Any other JSON value is refused with a text that says so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Whole<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Whole<MIN, MAX> {
    /// The least.
    pub const LEAST: Self = Whole(MIN);

    /// This number, if it is in the range.
    pub const fn new(value: u64) -> Result<Self, OutOfRange> {
        if value < MIN || value > MAX {
            return Err(OutOfRange { value, min: MIN, max: MAX });
        }
        Ok(Whole(value))
    }

    /// The number in the range that is nearest to this one.
    #[must_use]
    pub const fn clamped(value: u64) -> Self {
        if value < MIN {
            return Whole(MIN);
        }
        Whole(if value > MAX { MAX } else { value })
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number as 32 bits, at most [`u32::MAX`].
    #[must_use]
    pub fn get_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

impl<const MIN: u64, const MAX: u64> TryFrom<u64> for Whole<MIN, MAX> {
    type Error = OutOfRange;
    fn try_from(value: u64) -> Result<Self, OutOfRange> {
        Whole::new(value)
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Whole<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Debug for Whole<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Whole<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// A word of a closed list, as text. By itself serde would also take it as an object of one field,
/// `{"batch": null}`, which no document allows.
pub(super) fn word<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
    T::deserialize(text.into_deserializer())
}

struct WholeVisitor<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Visitor<'_> for WholeVisitor<MIN, MAX> {
    type Value = Whole<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Whole::new(value).map_err(|_| E::invalid_value(Unexpected::Unsigned(value), &self))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        let whole = u64::try_from(value).ok().and_then(|value| Whole::new(value).ok());
        whole.ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        Err(E::invalid_value(Unexpected::Float(value), &self))
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeVisitor::<MIN, MAX>)
    }
}

/// An amount of money: `{"amount": "1.250000", "currency": "EUR"}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Money {
    /// A decimal text with at most six places.
    #[serde(with = "decimal")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "1.250000"))]
    pub amount: MicroCredits,
    /// The cell's currency, as an ISO 4217 code.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "EUR"))]
    pub currency: Currency,
}

impl Money {
    /// This amount of this currency.
    #[must_use]
    pub const fn new(amount: MicroCredits, currency: Currency) -> Money {
        Money { amount, currency }
    }
}

impl fmt::Display for Money {
    /// As `1.250000 EUR`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} {}", self.amount, self.currency))
    }
}

mod decimal {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::money::MicroCredits;

    pub(super) fn serialize<S: Serializer>(
        amount: &MicroCredits,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(amount)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<MicroCredits, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

//! Money: whole micro-units of the cell's one currency, accounts, and the lines of a posting.
//!
//! A posting debits and credits the same total. Rounding happens once, half to even, where a price
//! meets a duration ([`cost_half_even`]).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::TenantId;
use crate::units::{GpuMilli, Millis, Permille};

/// Millionths of one unit of the cell's currency. Never saturates.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MicroCredits(i64);

impl MicroCredits {
    /// Nothing.
    pub const ZERO: MicroCredits = MicroCredits(0);
    /// How many make one unit of the currency.
    pub const PER_UNIT: i64 = 1_000_000;

    /// This many millionths.
    #[must_use]
    pub const fn new(value: i64) -> Self {
        MicroCredits(value)
    }

    /// How many millionths.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The sum, or nothing if it cannot be written.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(value) => Some(MicroCredits(value)),
            None => None,
        }
    }

    /// The difference (may be negative), or nothing if it cannot be written.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(value) => Some(MicroCredits(value)),
            None => None,
        }
    }
}

impl fmt::Display for MicroCredits {
    /// As a decimal with six places, as `-1.500000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        let per_unit = Self::PER_UNIT.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        f.pad(&format!("{sign}{}.{:06}", magnitude / per_unit, magnitude % per_unit))
    }
}

/// Why a text is not an amount of money.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not an amount: write a decimal with at most six places, as 1.25")]
pub struct AmountError(String);

impl FromStr for MicroCredits {
    type Err = AmountError;
    fn from_str(text: &str) -> Result<Self, AmountError> {
        let error = || AmountError(text.chars().take(40).collect());
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (units, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let bare_point = digits.ends_with('.');
        if units.is_empty()
            || fraction.len() > 6
            || bare_point
            || !is_number(units)
            || !is_number(fraction)
        {
            return Err(error());
        }
        let micros: i64 = format!("{fraction:0<6}").parse().map_err(|_| error())?;
        let whole: i64 = units.parse().map_err(|_| error())?;
        let value = whole.checked_mul(Self::PER_UNIT).and_then(|v| v.checked_add(micros));
        let value = value.ok_or_else(error)?;
        Ok(MicroCredits(if negative { -value } else { value }))
    }
}

/// An ISO 4217 code, three capital letters; a cell has one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency([u8; 3]);

impl Currency {
    /// Euro.
    pub const EUR: Currency = Currency(*b"EUR");

    /// The code.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a currency holds only ASCII: checked when made")
    }

    /// How many decimal places its smallest unit has, 0 to 4: a cent is two, a yen none. Codes that
    /// are not known have two. Source: ISO 4217, list one, as of 2024.
    #[must_use]
    pub const fn minor_places(self) -> u8 {
        match &self.0 {
            b"BIF" | b"CLP" | b"DJF" | b"GNF" | b"ISK" | b"JPY" | b"KMF" | b"KRW" | b"PYG"
            | b"RWF" | b"UGX" | b"UYI" | b"VND" | b"VUV" | b"XAF" | b"XOF" | b"XPF" => 0,
            b"BHD" | b"IQD" | b"JOD" | b"KWD" | b"LYD" | b"OMR" | b"TND" => 3,
            b"CLF" | b"UYW" => 4,
            _two_places => 2,
        }
    }
}

/// Why a text is not a currency.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a currency is an ISO 4217 code of three capital letters, as EUR")]
pub struct CurrencyError;

impl TryFrom<String> for Currency {
    type Error = CurrencyError;
    fn try_from(text: String) -> Result<Self, CurrencyError> {
        match text.as_bytes() {
            &[a, b, c] if [a, b, c].iter().all(u8::is_ascii_uppercase) => Ok(Currency([a, b, c])),
            _ => Err(CurrencyError),
        }
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> String {
        currency.as_str().to_owned()
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One account of the double-entry books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Account {
    /// What a borrower has spent or set aside. Debit balance.
    Expense(TenantId),
    /// What is set aside for running leases and not yet spent. Credit balance, never below zero.
    Hold(TenantId),
    /// What a lender has earned. Credit balance.
    Revenue(TenantId),
    /// What the platform keeps. Credit balance.
    Fee,
    /// Fractions that rounding left over.
    Rounding,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Account::Expense(tenant) => write!(f, "{tenant}:expense"),
            Account::Hold(tenant) => write!(f, "{tenant}:hold"),
            Account::Revenue(tenant) => write!(f, "{tenant}:revenue"),
            Account::Fee => f.write_str("platform:fee"),
            Account::Rounding => f.write_str("rounding"),
        }
    }
}

/// One line of a posting. One of the two amounts is zero, neither is negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Which account.
    pub account: Account,
    /// What goes in on the debit side.
    pub debit: MicroCredits,
    /// What goes in on the credit side.
    pub credit: MicroCredits,
}

impl Line {
    /// A line on the debit side.
    #[must_use]
    pub const fn debit(account: Account, amount: MicroCredits) -> Line {
        Line { account, debit: amount, credit: MicroCredits::ZERO }
    }

    /// A line on the credit side.
    #[must_use]
    pub const fn credit(account: Account, amount: MicroCredits) -> Line {
        Line { account, debit: MicroCredits::ZERO, credit: amount }
    }
}

/// A posted price: micro-units for one GPU (1,000 milli) for one hour, with its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Micro-units per GPU-hour, zero or more.
    pub per_gpu_hour: MicroCredits,
    /// How often this price was set; frozen into a lease with it.
    pub version: u32,
}

const MILLIS_PER_HOUR: i128 = 3_600_000;

fn divide_half_even(numerator: i128, denominator: i128) -> i128 {
    let (quotient, rest) = (numerator.div_euclid(denominator), numerator.rem_euclid(denominator));
    match (rest * 2).cmp(&denominator) {
        std::cmp::Ordering::Less => quotient,
        std::cmp::Ordering::Greater => quotient + 1,
        std::cmp::Ordering::Equal => quotient + quotient.rem_euclid(2),
    }
}

/// What `span` on `amount` of GPU costs at `price`, rounded half to even to a micro-unit.
///
/// `span × amount × price / (3,600,000 ms × 1,000 milli)`. Nothing if it cannot be written.
#[must_use]
pub fn cost_half_even(price: Price, amount: GpuMilli, span: Millis) -> Option<MicroCredits> {
    let usage = i128::from(amount.get()).checked_mul(i128::from(span.get()))?;
    let total = usage.checked_mul(i128::from(price.per_gpu_hour.get()))?;
    let micros = divide_half_even(total, MILLIS_PER_HOUR * i128::from(GpuMilli::DEVICE.get()));
    i64::try_from(micros).ok().map(MicroCredits)
}

/// `share` thousandths of `amount`, rounded half to even to a micro-unit.
#[must_use]
pub fn part_half_even(amount: MicroCredits, share: Permille) -> Option<MicroCredits> {
    let micros = divide_half_even(i128::from(amount.get()) * i128::from(share.get()), 1_000);
    i64::try_from(micros).ok().map(MicroCredits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(micros: i64) -> Price {
        Price { per_gpu_hour: MicroCredits::new(micros), version: 1 }
    }

    #[test]
    fn an_hour_of_a_whole_gpu_costs_the_price() {
        let cost = cost_half_even(price(2_500_000), GpuMilli::DEVICE, Millis::new(3_600_000));
        assert_eq!(cost, Some(MicroCredits::new(2_500_000)));
    }

    #[test]
    fn half_a_micro_unit_goes_to_the_even_neighbour() {
        let half_hour = Millis::new(1_800_000);
        for (micros, cost) in [(1, 0), (3, 2), (5, 2), (7, 4)] {
            let got = cost_half_even(price(micros), GpuMilli::DEVICE, half_hour);
            assert_eq!(got, Some(MicroCredits::new(cost)), "{micros}");
        }
    }

    #[test]
    fn a_cost_that_cannot_be_written_is_nothing() {
        assert_eq!(cost_half_even(price(i64::MAX), GpuMilli::MAX, Millis::MAX), None);
    }

    #[test]
    fn amounts_are_read_and_shown_as_decimals() {
        for text in ["0.000000", "1.250000", "-3.000001", "9223372036854.775807"] {
            assert_eq!(text.parse::<MicroCredits>().unwrap().to_string(), text);
        }
        assert_eq!("2.5".parse::<MicroCredits>().unwrap(), MicroCredits::new(2_500_000));
        for bad in ["", ".", "1.", ".5", "1.0000001", "1e3", "--1", "9223372036855", "€1"] {
            assert!(bad.parse::<MicroCredits>().is_err(), "{bad:?} was accepted");
        }
    }
}

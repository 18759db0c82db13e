//! Memory: `80GB` is 80 × 10⁹ bytes, `80GiB` is 80 × 2³⁰; both become MiB, rounded up. The spellings
//! of Kubernetes mean the same: `80G` is `80GB`, `80Gi` is `80GiB`. Nothing is guessed: a number
//! without a unit, bits and milli-bytes are refused.

use sublet_protocol::units::MiB;

use super::split_number;

const BYTES_PER_MIB: u128 = 1_024 * 1_024;

/// Units and their bytes; small and capital letters differ in meaning, so they must be right.
const UNITS: [(&str, u128); 18] = [
    ("TiB", 1_024 * 1_024 * BYTES_PER_MIB),
    ("GiB", 1_024 * BYTES_PER_MIB),
    ("MiB", BYTES_PER_MIB),
    ("KiB", 1_024),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("kB", 1_000),
    ("B", 1),
    ("Ti", 1_024 * 1_024 * BYTES_PER_MIB),
    ("Gi", 1_024 * BYTES_PER_MIB),
    ("Mi", BYTES_PER_MIB),
    ("Ki", 1_024),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// The units that a refusal names.
const KNOWN: &str = "MiB, GiB, TiB (powers of 1024) or MB, GB, TB (powers of 1000)";

/// An amount of memory and how it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    /// In whole MiB, rounded up.
    pub(crate) mib: MiB,
    /// As it was given.
    pub(crate) text: String,
}

/// Reads an amount of memory and keeps how it was written.
pub(crate) fn parse_memory(text: &str) -> Result<Memory, String> {
    parse_mib(text).map(|mib| Memory { mib, text: text.trim().to_owned() })
}

/// From how much to how much: `8GiB..80GiB`, both ends included; a single amount is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryRange {
    /// At least this much.
    pub(crate) least: MiB,
    /// At most this much, if there is a limit.
    pub(crate) most: Option<MiB>,
}

/// Reads a range of memory, or a single amount as its lower end.
pub(crate) fn parse_memory_range(text: &str) -> Result<MemoryRange, String> {
    let Some((least, most)) = text.split_once("..") else {
        return parse_mib(text).map(|least| MemoryRange { least, most: None });
    };
    let (least, most) = (parse_mib(least)?, parse_mib(most)?);
    match least <= most {
        true => Ok(MemoryRange { least, most: Some(most) }),
        false => Err(format!("{text:?} ends before it begins")),
    }
}

/// Reads an amount of memory; rounds up to whole MiB, so that it always holds what was asked for.
/// Zero means any.
fn parse_mib(text: &str) -> Result<MiB, String> {
    let text = text.trim();
    if text.contains("..") {
        return Err(format!("{text:?} is a range: one amount is wanted here"));
    }
    if text.contains(',') {
        return Err(format!("{text:?} has a comma: write digits only, as 40960MiB"));
    }
    let (whole, fraction, places, unit) = split_number(text).ok_or_else(|| {
        format!("{text:?} is no amount of memory: write a number and a unit, as 20GiB or 80GB")
    })?;
    let known = UNITS.iter().find(|(name, _)| *name == unit);
    let Some((_, bytes)) = known else {
        return Err(unknown_unit(text, unit));
    };
    let scale = 10_u128.pow(places);
    let total = whole.checked_mul(scale).and_then(|w| w.checked_add(fraction));
    let total =
        total.and_then(|t| t.checked_mul(*bytes)).map(|b| b.div_ceil(scale * BYTES_PER_MIB));
    let mib = total.and_then(|mib| u64::try_from(mib).ok());
    mib.map(MiB::new).ok_or_else(|| format!("{text:?} is more memory than can be written"))
}

fn unknown_unit(text: &str, unit: &str) -> String {
    let is_bits = |unit: &str| {
        unit.len() > 1 && unit.ends_with('b') && unit.as_bytes()[0].is_ascii_uppercase()
    };
    match unit {
        "" => format!("{text:?} has no unit: write one of {KNOWN}"),
        "m" => format!("{text:?} are thousandths of a byte: write one of {KNOWN}"),
        bits if is_bits(bits) => {
            format!("{unit:?} means bits: write {}B for bytes", bits.trim_end_matches('b'))
        }
        _ if unit.starts_with(['e', 'E']) => {
            format!("{text:?} has an exponent: write the digits out, as 1000MiB")
        }
        _ => {
            let alike = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
            match alike {
                Some((name, _)) => {
                    format!("{unit:?} is no unit of memory: did you mean {name}? Known are {KNOWN}")
                }
                None => format!("{unit:?} is no unit of memory: use {KNOWN}"),
            }
        }
    }
}

/// As people read it: whole GiB where it is whole, else tenths of GiB or MiB.
pub(crate) fn show_memory(memory: MiB) -> String {
    let mib = memory.get();
    match mib {
        0 => "0".to_owned(),
        _ if mib.is_multiple_of(1_024) => format!("{} GiB", mib / 1_024),
        _ if mib < 1_024 => format!("{mib} MiB"),
        _ => format!("{}.{} GiB", mib / 1_024, mib % 1_024 * 10 / 1_024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_units_are_told_apart_and_rounded_up() {
        let rows = [
            ("80GiB", 81_920),
            ("80Gi", 81_920),
            ("80GB", 76_294),
            ("80G", 76_294),
            ("81559MiB", 81_559),
            ("81559 MiB", 81_559),
            ("81920M", 78_125),
            ("1MiB", 1),
            ("1B", 1),
            ("1048577B", 2),
            ("1.5GiB", 1_536),
            ("0.5GiB", 512),
            ("20 GiB", 20_480),
            ("1TiB", 1_048_576),
            ("0.5TB", 476_838),
            ("0GiB", 0),
        ];
        for (text, mib) in rows {
            let read = parse_memory(text).unwrap();
            assert_eq!((read.mib, read.text.as_str()), (MiB::new(mib), text));
        }
    }

    #[test]
    fn what_is_no_memory_is_refused_with_what_to_write() {
        let rows = [
            ("16384", "has no unit: write one of MiB, GiB"),
            ("24gb", "did you mean GB?"),
            ("24Gb", "means bits: write GB"),
            ("80g", "did you mean G?"),
            ("1000m", "thousandths of a byte"),
            ("40,960MiB", "has a comma"),
            ("1e3MiB", "has an exponent"),
            ("80 parsecs", "use MiB, GiB"),
            ("8GiB..80GiB", "is a range"),
            ("-4GiB", "write a number"),
            ("", "write a number"),
            ("1.GiB", "write a number"),
            ("99999999999999999999999TiB", "more memory than"),
        ];
        for (text, expected) in rows {
            let error = parse_memory(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_range_has_both_ends_or_the_lower_one() {
        let range = |least, most: Option<u64>| MemoryRange {
            least: MiB::new(least),
            most: most.map(MiB::new),
        };
        assert_eq!(parse_memory_range("8GiB..80GiB"), Ok(range(8_192, Some(81_920))));
        assert_eq!(parse_memory_range("8GiB"), Ok(range(8_192, None)));
        for text in ["80GiB..8GiB", "8GiB..", "..8GiB", "8..80GiB"] {
            assert!(parse_memory_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_is_shown_in_gib() {
        assert_eq!(show_memory(MiB::new(81_920)), "80 GiB");
        assert_eq!(show_memory(MiB::new(76_294)), "74.5 GiB");
        assert_eq!(show_memory(MiB::new(512)), "512 MiB");
    }
}

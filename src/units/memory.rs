//! Memory: `80GB` is 80 × 10⁹ bytes, `80GiB` is 80 × 2³⁰; both become MiB, rounded up.

use sublet_protocol::units::MiB;

use super::split_number;

const BYTES_PER_MIB: u128 = 1_024 * 1_024;

/// Units and their bytes, longest spelling first where one is a prefix of another.
const UNITS: [(&str, u128); 10] = [
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
];

/// Reads an amount of memory; rounds up to whole MiB, so that it always holds what was asked for.
pub(crate) fn parse_memory(text: &str) -> Result<MiB, String> {
    let (whole, fraction, places, unit) = split_number(text.trim()).ok_or_else(|| {
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
    if unit.is_empty() {
        return format!(
            "{text:?} has no unit: write {text}GiB (2³⁰ bytes) or {text}GB (10⁹ bytes)"
        );
    }
    let by_letter = UNITS.iter().find(|(name, _)| {
        let short = name.trim_end_matches('B').trim_end_matches('i');
        name.eq_ignore_ascii_case(unit) || (!short.is_empty() && short.eq_ignore_ascii_case(unit))
    });
    match by_letter {
        Some((name, _)) => format!("{unit:?} is no unit of memory: did you mean {name}?"),
        None => format!("{unit:?} is no unit of memory: use MiB, GiB, TiB, MB, GB or TB"),
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
            ("80GB", 76_294),
            ("1MiB", 1),
            ("1B", 1),
            ("1048577B", 2),
            ("1.5GiB", 1_536),
            ("20 GiB", 20_480),
            ("1TiB", 1_048_576),
            ("0.5TB", 476_838),
            ("0GiB", 0),
        ];
        for (text, mib) in rows {
            assert_eq!(parse_memory(text), Ok(MiB::new(mib)), "{text}");
        }
    }

    #[test]
    fn what_is_no_memory_is_refused_with_what_to_write() {
        let rows = [
            ("80", "has no unit"),
            ("80gb", "did you mean GB?"),
            ("80g", "did you mean GiB?"),
            ("80 parsecs", "use MiB, GiB"),
            ("-1GiB", "write a number"),
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
    fn memory_is_shown_in_gib() {
        assert_eq!(show_memory(MiB::new(81_920)), "80 GiB");
        assert_eq!(show_memory(MiB::new(76_294)), "74.5 GiB");
        assert_eq!(show_memory(MiB::new(512)), "512 MiB");
    }
}

//! One value as `nvidia-smi` prints it: a number with or without its unit, or a reason why not.

use serde::Serialize;

/// Why a value is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    /// The device or the driver does not report it.
    NotReported,
    /// The reader may not see it.
    Permission,
    /// The device failed to answer.
    DeviceError,
    /// The device is not on the bus any more.
    Lost,
    /// The text is not a value of this kind.
    Unreadable,
}

/// Text of a value, or why there is none.
///
/// The words are those of `nvidia-smi` and of localised spreadsheets made from it: with and
/// without brackets, in any case.
///
/// # Errors
/// The reason why there is no value.
pub fn text(cell: &str) -> Result<&str, Unknown> {
    let bare = cell.trim().trim_matches('"').trim();
    let word = bare.trim_start_matches('[').trim_end_matches(']').trim().to_ascii_lowercase();
    match word.as_str() {
        ""
        | "n/a"
        | "not supported"
        | "not available"
        | "not active"
        | "unknown"
        | "none"
        | "deprecated"
        | "requested functionality has been deprecated" => Err(Unknown::NotReported),
        "insufficient permissions" | "no permission" | "no permissions" => Err(Unknown::Permission),
        "gpu is lost" | "lost" => Err(Unknown::Lost),
        "unknown error" | "err!" | "error" | "gpu requires reset" | "unknown_error" => {
            Err(Unknown::DeviceError)
        }
        _ if word.starts_with("gpu is lost") => Err(Unknown::Lost),
        _ => Ok(bare),
    }
}

/// A number in thousandths of its unit: `68.42 W`, `68,42`, `0 %`, `81559 MiB`.
///
/// A comma is a decimal mark, as locales that use one print it; digits past the third are cut off.
///
/// # Errors
/// The reason why there is no number; [`Unknown::Unreadable`] for a negative one, too: no value
/// that is read here can be below zero.
pub fn thousandths(cell: &str) -> Result<u64, Unknown> {
    let bare = text(cell)?;
    let end = bare.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','));
    let (number, unit) = bare.split_at(end.unwrap_or(bare.len()));
    if !is_unit(unit) {
        return Err(Unknown::Unreadable);
    }
    let (whole, part) = number.split_once(['.', ',']).unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| Unknown::Unreadable)?;
    if !part.chars().all(|c| c.is_ascii_digit()) {
        return Err(Unknown::Unreadable);
    }
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    let part: u64 = part.parse().map_err(|_| Unknown::Unreadable)?;
    whole.checked_mul(1_000).and_then(|w| w.checked_add(part)).ok_or(Unknown::Unreadable)
}

/// A whole number, rounded down: `81559 MiB`, `97 %`.
///
/// # Errors
/// As [`thousandths`].
pub fn whole(cell: &str) -> Result<u64, Unknown> {
    thousandths(cell).map(|number| number / 1_000)
}

/// An amount of memory in whole MiB, rounded down. A bare number is MiB, as `nounits` prints it.
///
/// # Errors
/// As [`thousandths`].
pub fn mebibytes(cell: &str) -> Result<u64, Unknown> {
    let number = thousandths(cell)?;
    let unit = cell.trim().trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    Ok(match unit {
        "GiB" => number.saturating_mul(1_024) / 1_000,
        "KiB" => number / 1_024_000,
        _ => number / 1_000,
    })
}

/// A percentage, 0 to 100.
///
/// # Errors
/// As [`thousandths`]; more than 100 is [`Unknown::Unreadable`].
pub fn percent(cell: &str) -> Result<u8, Unknown> {
    let number = u8::try_from(whole(cell)?).map_err(|_| Unknown::Unreadable)?;
    if number > 100 { Err(Unknown::Unreadable) } else { Ok(number) }
}

/// `Enabled`/`Yes` or `Disabled`/`No`.
///
/// # Errors
/// The reason why it is neither.
pub fn switch(cell: &str) -> Result<bool, Unknown> {
    match text(cell)?.to_ascii_lowercase().as_str() {
        "enabled" | "yes" | "true" | "1" | "on" => Ok(true),
        "disabled" | "no" | "false" | "0" | "off" => Ok(false),
        _ => Err(Unknown::Unreadable),
    }
}

fn is_unit(text: &str) -> bool {
    matches!(text.trim(), "" | "MiB" | "GiB" | "KiB" | "MB" | "%" | "W" | "C" | "MHz" | "mJ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_the_same_with_and_without_its_unit() {
        for cell in ["81559 MiB", " 81559", "\"81559 MiB\"", "81559"] {
            assert_eq!(mebibytes(cell), Ok(81_559), "{cell}");
        }
        assert_eq!(thousandths("68.42 W"), thousandths("68,42"));
        assert_eq!(percent("0 %"), Ok(0));
    }

    #[test]
    fn what_is_not_known_keeps_its_reason_and_is_never_zero() {
        for (cell, why) in [
            ("[N/A]", Unknown::NotReported),
            ("N/A", Unknown::NotReported),
            ("[Not Supported]", Unknown::NotReported),
            ("", Unknown::NotReported),
            ("[Insufficient Permissions]", Unknown::Permission),
            ("Insufficient Permissions", Unknown::Permission),
            ("[Unknown Error]", Unknown::DeviceError),
            ("ERR!", Unknown::DeviceError),
            ("[GPU is lost]", Unknown::Lost),
            ("many", Unknown::Unreadable),
            ("-2", Unknown::Unreadable),
            ("1.2.3", Unknown::Unreadable),
            ("99999999999999999999 MiB", Unknown::Unreadable),
        ] {
            assert_eq!(whole(cell), Err(why), "{cell}");
        }
        assert_eq!(percent("101 %"), Err(Unknown::Unreadable));
    }
}

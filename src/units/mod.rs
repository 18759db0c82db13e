//! Amounts as people write them on the command line, turned into the integers of the protocol.
//!
//! Each is rounded once, here, in the direction that never gives less than was asked for.

mod duration;
mod gpus;
mod hours;
mod memory;
mod when;

#[cfg(test)]
mod case_d12;

pub(crate) use duration::{parse_seconds, show_seconds};
pub(crate) use gpus::{Gpus, parse_gpus, parse_quota, show_gpus};
pub(crate) use hours::{parse_hours, show_hours};
pub(crate) use memory::{Memory, MemoryRange, parse_memory, parse_memory_range, show_memory};
pub(crate) use when::{When, parse_when};

/// Splits `12.5GB` into the digits before and after the point and the unit behind them.
fn split_number(text: &str) -> Option<(u128, u128, u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || number.ends_with('.') || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let places = u32::try_from(fraction.len()).ok()?;
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some((whole.parse().ok()?, fraction, places, unit.trim()))
}

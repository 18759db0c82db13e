//! Rounding to the currency's minor unit, once, and lines that add up to it.
//!
//! The ledger counts micro-units. What is shown on paper has cents. A total is rounded once, half to
//! even; its lines are rounded down and the units that are missing go to the lines with the largest
//! rests (the method of largest remainders, A. Hamilton 1792), so that they add up to the total
//! whatever they are.

use std::cmp::Reverse;

use sublet_protocol::money::{Currency, MicroCredits};

use crate::charges::divide_half_even;

/// Decimal places of a micro-unit.
const MICRO_PLACES: u32 = 6;

/// The smallest amount of a currency that is paid, as a cent, in micro-units.
#[must_use]
pub fn minor_unit(currency: Currency) -> i64 {
    10_i64.pow(MICRO_PLACES - u32::from(currency.minor_places()))
}

/// `sum` micro-units rounded half to even to whole minor units, in micro-units. `None` if that
/// cannot be written.
#[must_use]
pub fn round_half_even(sum: i128, currency: Currency) -> Option<MicroCredits> {
    let unit = i128::from(minor_unit(currency));
    let rounded = divide_half_even(sum, unit).checked_mul(unit)?;
    i64::try_from(rounded).ok().map(MicroCredits::new)
}

/// The amounts of the lines, in their order: whole minor units that add up to the rounded sum of
/// `exact`. Rests that are equal are served in the order of the keys. `None` if the sum cannot be
/// written.
///
/// Each amount differs from the exact one by less than a minor unit; one that is whole already
/// stays.
#[must_use]
pub fn apportion<K: Ord>(
    exact: &[(K, MicroCredits)],
    currency: Currency,
) -> Option<Vec<MicroCredits>> {
    let unit = minor_unit(currency);
    let sum: i128 = exact.iter().map(|(_, amount)| i128::from(amount.get())).sum();
    let total = round_half_even(sum, currency)?;
    let floor = |amount: MicroCredits| amount.get().checked_sub(amount.get().rem_euclid(unit));
    let amounts: Option<Vec<i64>> = exact.iter().map(|(_, amount)| floor(*amount)).collect();
    let mut amounts = amounts?;
    let floors: i128 = amounts.iter().copied().map(i128::from).sum();
    let missing = (i128::from(total.get()) - floors) / i128::from(unit);
    let missing = usize::try_from(missing).expect("at most one for each line: rests are below it");
    let mut order: Vec<usize> = (0..exact.len()).collect();
    let rest = |place: usize| exact[place].1.get().rem_euclid(unit);
    order.sort_by(|a, b| (Reverse(rest(*a)), &exact[*a].0).cmp(&(Reverse(rest(*b)), &exact[*b].0)));
    for place in order.into_iter().take(missing) {
        amounts[place] = amounts[place].checked_add(unit)?;
    }
    Some(amounts.into_iter().map(MicroCredits::new).collect())
}

/// An amount with as many places as its currency has: `188.55`. The amount must be whole minor units,
/// else it is shown with all six places.
#[must_use]
pub fn minor_text(amount: MicroCredits, currency: Currency) -> String {
    let text = amount.to_string();
    if amount.get() % minor_unit(currency) != 0 {
        return text;
    }
    let places = usize::from(currency.minor_places());
    let (units, fraction) = text.split_once('.').unwrap_or((&text, ""));
    match fraction.get(..places) {
        Some(shown) if places > 0 => format!("{units}.{shown}"),
        Some(_) | None => units.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn currency(code: &str) -> Currency {
        Currency::try_from(code.to_owned()).unwrap()
    }

    fn cents(exact: &[i64]) -> Vec<i64> {
        let exact: Vec<_> =
            exact.iter().enumerate().map(|(k, m)| (k, MicroCredits::new(*m))).collect();
        let amounts = apportion(&exact, Currency::EUR).unwrap();
        amounts.into_iter().map(|amount| amount.get() / 10_000).collect()
    }

    #[test]
    fn what_rounding_leaves_goes_to_the_largest_rests_then_to_the_first_key() {
        assert_eq!(cents(&[3_333, 3_333, 3_334]), [0, 0, 1]);
        assert_eq!(cents(&[5_000, 5_000, 5_000, 5_000]), [1, 1, 0, 0]);
        assert_eq!(cents(&[14_000, 6_000]), [1, 1]);
        assert_eq!(cents(&[-4_000, -6_000]), [0, -1]);
        assert_eq!(cents(&[]), [0; 0]);
    }

    #[test]
    fn half_a_cent_goes_to_the_even_neighbour() {
        for (micros, cents) in [(5_000, 0), (15_000, 2), (25_000, 2), (-5_000, 0), (-15_000, -2)] {
            let rounded = round_half_even(micros, Currency::EUR).unwrap();
            assert_eq!(rounded.get(), cents * 10_000, "{micros}");
        }
    }

    #[test]
    fn a_currency_is_shown_with_its_own_places() {
        let text = |micros, code| minor_text(MicroCredits::new(micros), currency(code));
        assert_eq!(text(4_800_000, "EUR"), "4.80");
        assert_eq!(text(-4_800_000, "EUR"), "-4.80");
        assert_eq!(text(5_000_000, "JPY"), "5");
        assert_eq!(text(5_001_000, "KWD"), "5.001");
        assert_eq!(text(4_800_001, "EUR"), "4.800001");
    }

    #[test]
    fn a_sum_that_cannot_be_written_is_refused() {
        let most = (0, MicroCredits::new(i64::MAX));
        assert_eq!(apportion(&[most, (1, MicroCredits::new(1))], Currency::EUR), None);
        assert_eq!(apportion(&[(0, MicroCredits::new(i64::MIN))], Currency::EUR), None);
    }

    proptest! {
        #[test]
        fn lines_add_up_to_the_total_that_was_rounded_once(
            exact in prop::collection::vec(-1_000_000_000_i64..1_000_000_000, 0..200),
            code in prop::sample::select(vec!["EUR", "JPY", "KWD"]),
        ) {
            let currency = currency(code);
            let unit = minor_unit(currency);
            let keyed: Vec<_> =
                exact.iter().enumerate().map(|(k, m)| (k, MicroCredits::new(*m))).collect();
            let amounts = apportion(&keyed, currency).unwrap();
            let total = round_half_even(exact.iter().copied().map(i128::from).sum(), currency);
            let sum: i64 = amounts.iter().map(|amount| amount.get()).sum();
            prop_assert_eq!(sum, total.unwrap().get());
            for (amount, exact) in amounts.iter().zip(&exact) {
                prop_assert_eq!(amount.get() % unit, 0);
                prop_assert!((amount.get() - exact).abs() < unit);
            }
        }
    }
}

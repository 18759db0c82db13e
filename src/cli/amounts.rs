//! Values of flags: amounts and words, each with a message that says what to write.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sublet_protocol::api::Whole;
use sublet_protocol::ids::{ClusterId, GpuModel, NodeId, Project, Region, TenantId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::quotas::Reclaim;
use sublet_protocol::requests::{Class, OnRecall, Placement, Tier};

/// Words for each class of work.
pub(super) const CLASSES: [&str; 4] = ["latency", "training", "batch", "experiment"];
/// Words for each tier.
pub(super) const TIERS: [&str; 3] = ["opportunistic", "standard", "reserved"];
/// Words for each placement.
pub(super) const PLACEMENTS: [&str; 3] = ["cluster", "node", "island"];
/// Words for what happens on a recall.
pub(super) const RECALLS: [&str; 2] = ["requeue", "close"];

/// Words for what members of a group take back of what they have lent.
pub(super) const RECLAIMS: [&str; 3] = ["never", "lower_priority", "any"];

/// A parser of the words of a closed list of the protocol; clap suggests the nearest one.
fn words<T>(known: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(known).try_map(|word| serde_json::from_value(word.into()))
}

/// Reads a class of work.
pub(super) fn class() -> impl TypedValueParser<Value = Class> {
    words(&CLASSES)
}

/// Reads a tier.
pub(super) fn tier() -> impl TypedValueParser<Value = Tier> {
    words(&TIERS)
}

/// Reads a placement.
pub(super) fn placement() -> impl TypedValueParser<Value = Placement> {
    words(&PLACEMENTS)
}

/// Reads what happens on a recall.
pub(super) fn on_recall() -> impl TypedValueParser<Value = OnRecall> {
    words(&RECALLS)
}

/// Reads what members of a group take back of what they have lent.
pub(super) fn reclaim() -> impl TypedValueParser<Value = Reclaim> {
    words(&RECLAIMS)
}

/// The word the API uses for a value of a closed list.
pub(super) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Reads an amount of money that is not negative.
pub(super) fn money(text: &str) -> Result<MicroCredits, String> {
    let amount: MicroCredits = text.parse().map_err(|error| format!("{error}"))?;
    match amount < MicroCredits::ZERO {
        true => Err(format!("{text} is below zero")),
        false => Ok(amount),
    }
}

/// A value, or the word `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OrNone<T> {
    /// The word.
    None,
    /// The value.
    Some(T),
}

/// Reads an amount of money that is not negative, or `none`.
pub(super) fn money_or_none(text: &str) -> Result<OrNone<MicroCredits>, String> {
    if text == "none" { Ok(OrNone::None) } else { money(text).map(OrNone::Some) }
}

/// Reads whole hours, or `none`.
pub(super) fn hours_or_none(text: &str) -> Result<OrNone<u64>, String> {
    let hours = || format!("{text:?} is no number of hours: write a whole number, or none");
    match text {
        "none" => Ok(OrNone::None),
        number => number.parse().map(OrNone::Some).map_err(|_| hours()),
    }
}

/// Reads a weight from 0 to 1,000, in thousandths.
pub(super) fn weight(text: &str) -> Result<Whole<0, 1_000_000>, String> {
    let error = || format!("{text:?} is no weight: write a number from 0 to 1000, as 1.5");
    let thousandths = cores(text).map_err(|_| error())?;
    Whole::new(thousandths).map_err(|_| error())
}

/// Reads how many of a list are wanted: at least one.
pub(super) fn limit(text: &str) -> Result<usize, String> {
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| format!("{text:?} is no limit: write a whole number from 1"))
}

/// Money without idle zeros behind two places: `1.25`.
pub(super) fn show_money(amount: MicroCredits) -> String {
    let text = amount.to_string();
    let keep = text.find('.').map_or(text.len(), |point| point + 3);
    let end = text.trim_end_matches('0').len().max(keep);
    text[..end].to_owned()
}

/// Reads a share of cores: `4` or `0.5`, in thousandths.
pub(super) fn cores(text: &str) -> Result<u64, String> {
    let error = || format!("{text:?} is no number of cores: write 4 or 0.5");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 3 {
        return Err(error());
    }
    let thousandths: u64 = format!("{fraction:0<3}").parse().map_err(|_| error())?;
    let whole: u64 = whole.parse().map_err(|_| error())?;
    whole.checked_mul(1_000).and_then(|w| w.checked_add(thousandths)).ok_or_else(error)
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        $($(#[$doc])*
        pub(super) fn $name(text: &str) -> Result<$type, String> {
            <$type>::new(text).map_err(|error| error.to_string())
        })*
    };
}

names! {
    /// Reads a tenant's id.
    tenant: TenantId;
    /// Reads a cluster's id.
    cluster: ClusterId;
    /// Reads a node's id.
    node: NodeId;
    /// Reads a GPU model.
    model: GpuModel;
    /// Reads a region.
    region: Region;
    /// Reads a project.
    project: Project;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_one_of_the_protocol() {
        for known in CLASSES {
            assert_eq!(word(&serde_json::from_value::<Class>(known.into()).unwrap()), known);
        }
        for known in TIERS {
            assert_eq!(word(&serde_json::from_value::<Tier>(known.into()).unwrap()), known);
        }
        for known in PLACEMENTS {
            assert_eq!(word(&serde_json::from_value::<Placement>(known.into()).unwrap()), known);
        }
        for known in RECALLS {
            assert_eq!(word(&serde_json::from_value::<OnRecall>(known.into()).unwrap()), known);
        }
    }

    #[test]
    fn money_keeps_two_places_and_what_is_not_zero() {
        for (text, shown) in [("1.25", "1.25"), ("0.0001", "0.0001"), ("3", "3.00")] {
            assert_eq!(show_money(money(text).unwrap()), shown);
        }
        assert!(money("-1").is_err());
    }

    #[test]
    fn weights_and_budgets_are_read_or_said_to_be_none() {
        assert_eq!(weight("1.5").map(Whole::get), Ok(1_500));
        assert_eq!(weight("0").map(Whole::get), Ok(0));
        for bad in ["1000.001", "-1", "", "much"] {
            assert!(weight(bad).is_err(), "{bad:?} was accepted");
        }
        assert_eq!(money_or_none("none"), Ok(OrNone::None));
        assert_eq!(money_or_none("2.5"), Ok(OrNone::Some(MicroCredits::new(2_500_000))));
        assert!(money_or_none("-1").is_err());
        assert_eq!(hours_or_none("none"), Ok(OrNone::None));
        assert_eq!(hours_or_none("24"), Ok(OrNone::Some(24)));
        assert!(hours_or_none("1.5").is_err());
    }

    #[test]
    fn cores_are_read_in_thousandths() {
        assert_eq!(cores("4"), Ok(4_000));
        assert_eq!(cores("0.5"), Ok(500));
        for bad in ["", "-1", "1.2345", "four", "99999999999999999999"] {
            assert!(cores(bad).is_err(), "{bad}");
        }
    }
}

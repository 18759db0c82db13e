//! GPUs: `4` is four whole ones, `0.5` or `500m` is half of one. Nothing between, as nothing could
//! serve it. `h100:2`, `gpu:h100:2` and `gpu:2` are understood as Slurm means them.

use sublet_protocol::ids::GpuModel;
use sublet_protocol::units::GpuMilli;

use super::split_number;

/// How many slices, how much of a GPU each is, and of which model if that was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gpus {
    /// How many.
    pub(crate) count: u32,
    /// Of which size.
    pub(crate) each: GpuMilli,
    /// Of which model.
    pub(crate) model: Option<GpuModel>,
}

/// Reads a number of GPUs: a whole number, or a share of one GPU in steps of a thousandth.
pub(crate) fn parse_gpus(text: &str) -> Result<Gpus, String> {
    let text = text.trim();
    if let Some(digit) = text.chars().find(|c| c.is_numeric() && !c.is_ascii_digit()) {
        return Err(format!("{digit:?} is no digit of 0 to 9: write it as 1, 2, 3 …"));
    }
    let named = text.strip_prefix("gpu:").unwrap_or(text);
    let Some((model, count)) = named.split_once(':') else { return number(named) };
    let model = GpuModel::new(model).map_err(|_| format!("{model:?} is no name of a GPU model"))?;
    Ok(Gpus { model: Some(model), ..number(count)? })
}

fn number(text: &str) -> Result<Gpus, String> {
    let error = || format!("{text:?} is no number of GPUs: write 1, 4 or, for half of one, 0.5");
    let (whole, fraction, places, unit) = split_number(text).ok_or_else(error)?;
    let model = None;
    let (whole, fraction, scale) = match (unit, fraction) {
        ("", _) => (whole, fraction, 10_u128.pow(places)),
        // Thousandths of a GPU, as in Kubernetes.
        ("m", 0) => (whole / 1_000, whole % 1_000, 1_000),
        _ => return Err(error()),
    };
    match (whole, fraction) {
        (0, 0) => Err("0 GPUs is nothing to lease: ask for at least 0.001".to_owned()),
        (0, part) if part * 1_000 % scale != 0 => {
            Err(format!("{text:?} is finer than a thousandth of a GPU"))
        }
        (0, part) => {
            let milli = u64::try_from(part * 1_000 / scale).map_err(|_| error())?;
            Ok(Gpus { count: 1, each: GpuMilli::new(milli), model })
        }
        (count, 0) => {
            let count = u32::try_from(count);
            let count = count.map_err(|_| format!("{text} GPUs are more than can be written"))?;
            Ok(Gpus { count, each: GpuMilli::DEVICE, model })
        }
        _ => Err(format!("{text:?} is neither a whole number nor a share of one GPU")),
    }
}

/// Reads an amount of GPUs as quotas have it: any number of thousandths, also of none, as `8`, `2.5` or
/// `500m`.
pub(crate) fn parse_quota(text: &str) -> Result<GpuMilli, String> {
    let error = || format!("{text:?} is no number of GPUs: write 8 or, with thousandths, 2.5");
    let (whole, fraction, places, unit) = split_number(text.trim()).ok_or_else(error)?;
    let per_gpu = match (unit, fraction) {
        ("", _) => 1_000_u128,
        // Thousandths of a GPU, as in Kubernetes.
        ("m", 0) => 1,
        _ => return Err(error()),
    };
    let scale = 10_u128.pow(places);
    if fraction * per_gpu % scale != 0 {
        return Err(format!("{text:?} is finer than a thousandth of a GPU"));
    }
    let milli = whole
        .checked_mul(per_gpu)
        .and_then(|milli| u64::try_from(milli.checked_add(fraction * per_gpu / scale)?).ok());
    milli.map(GpuMilli::new).ok_or_else(|| format!("{text} GPUs are more than can be written"))
}

/// As people read it: `4`, `0.5`.
pub(crate) fn show_gpus(total: GpuMilli) -> String {
    let milli = total.get();
    let text = format!("{}.{:03}", milli / 1_000, milli % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_any_number_of_thousandths_and_nothing_else() {
        let rows =
            [("0", 0), ("8", 8_000), ("2.5", 2_500), ("0.001", 1), ("500m", 500), ("8.0", 8_000)];
        for (text, milli) in rows {
            assert_eq!(parse_quota(text), Ok(GpuMilli::new(milli)), "{text}");
        }
        for text in ["-1", "1e3", "0.0005", "1.5m", "8 GiB", "", ".5", "99999999999999999999"] {
            let error = parse_quota(text).unwrap_err();
            assert!(error.contains("GPU"), "{text}: {error}");
        }
    }

    #[test]
    fn whole_gpus_and_shares_are_read() {
        let rows = [
            ("1", 1, 1_000),
            ("8", 8, 1_000),
            ("0.5", 1, 500),
            ("0.125", 1, 125),
            ("2.0", 2, 1_000),
            ("gpu:1", 1, 1_000),
            ("1000m", 1, 1_000),
            ("2000m", 2, 1_000),
            ("500m", 1, 500),
        ];
        for (text, count, each) in rows {
            let read = Gpus { count, each: GpuMilli::new(each), model: None };
            assert_eq!(parse_gpus(text), Ok(read), "{text}");
        }
    }

    #[test]
    fn a_model_may_stand_before_the_number() {
        let model = Some(GpuModel::new("h100").unwrap());
        for text in ["gpu:h100:2", "h100:2"] {
            let read = Gpus { count: 2, each: GpuMilli::DEVICE, model };
            assert_eq!(parse_gpus(text), Ok(read), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_leased_is_refused() {
        for text in [
            "0",
            "-1",
            "1.5",
            "0.0001",
            "many",
            "",
            "1 gpu",
            "99999999999",
            "1x",
            "２",
            "1500m",
            "0.5m",
            "h100:",
            ":2",
        ] {
            assert!(parse_gpus(text).is_err(), "{text}");
        }
    }

    #[test]
    fn gpus_are_shown_without_idle_zeros() {
        for (milli, text) in [(1_000, "1"), (500, "0.5"), (12_000, "12"), (10, "0.01")] {
            assert_eq!(show_gpus(GpuMilli::new(milli)), text);
        }
    }
}

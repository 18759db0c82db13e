//! The plots, as SVG text.

use plotters::prelude::*;
use sublet_protocol::units::Seconds;

use super::Curve;
use crate::lending::Hour;

/// A plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("a plot cannot be drawn: {0}")]
pub struct PlotError(String);

/// Okabe and Ito's colours, which people with any colour vision can tell apart.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(0, 0, 0),
    RGBColor(240, 228, 66),
];
const SIZE: (u32, u32) = (860, 380);
/// Points of a curve: more cannot be seen.
const POINTS: usize = 400;
/// Waits below this are drawn here: a logarithmic axis has no zero.
const SHORTEST: f64 = 1.0;

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(
    plot: impl FnOnce(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Drawn,
) -> Result<String, PlotError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| plot(&area));
        drawn
            .and_then(|()| area.present().map_err(Into::into))
            .map_err(|error| PlotError(error.to_string()))?;
    }
    Ok(svg)
}

fn colour(ordinal: usize) -> RGBColor {
    COLOURS[ordinal % COLOURS.len()]
}

/// The colour of the curve of this number, as CSS.
pub(super) fn css(ordinal: usize) -> String {
    let RGBColor(red, green, blue) = colour(ordinal);
    format!("rgb({red},{green},{blue})")
}

/// Exact enough for a plot.
#[allow(clippy::as_conversions, reason = "there is no lossless conversion of u64 to f64")]
fn float(value: u64) -> f64 {
    value as f64
}

fn count(value: usize) -> f64 {
    float(u64::try_from(value).unwrap_or(u64::MAX))
}

/// For each wait, the share of jobs that waited at most as long.
pub(super) fn waits(curves: &[Curve]) -> Result<String, PlotError> {
    let longest = curves.iter().filter_map(|curve| curve.waits.last()).max();
    let longest = longest.map_or(10.0, |longest| float(longest.get()).max(10.0));
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d((SHORTEST..longest).log_scale(), 0.0..1.0)?;
        chart
            .configure_mesh()
            .x_desc("seconds, logarithmic")
            .y_desc("share of jobs")
            .light_line_style(WHITE)
            .draw()?;
        for (ordinal, curve) in curves.iter().enumerate() {
            let colour = colour(ordinal);
            chart
                .draw_series(LineSeries::new(distribution(&curve.waits), colour.stroke_width(2)))?;
        }
        Ok(())
    })
}

fn distribution(waits: &[Seconds]) -> Vec<(f64, f64)> {
    let step = waits.len().div_ceil(POINTS).max(1);
    let last = waits.len().saturating_sub(1);
    let places = (0..waits.len()).step_by(step).chain(std::iter::once(last));
    let point = |place: usize| {
        (float(waits[place].get()).max(SHORTEST), count(place + 1) / count(waits.len()))
    };
    places.filter(|place| *place < waits.len()).map(point).collect()
}

/// The mean wait of each tenant under each policy.
pub(super) fn tenants(names: &[String], curves: &[Curve]) -> Result<String, PlotError> {
    let means = curves.iter().flat_map(|curve| &curve.tenants);
    let longest = means.fold(10.0_f64, |longest, mean| longest.max(*mean));
    let label = |x: &f64| {
        let near =
            names.iter().enumerate().find(|(ordinal, _)| (count(*ordinal) + 0.5 - x).abs() < 0.26);
        near.map_or(String::new(), |(_, name)| name.clone())
    };
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..count(names.len()), (SHORTEST..longest * 3.0).log_scale())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels(names.len() * 2 + 1)
            .x_label_formatter(&label)
            .x_desc("tenant")
            .y_desc("mean wait, seconds, logarithmic")
            .draw()?;
        let width = 0.8 / count(curves.len().max(1));
        for (ordinal, curve) in curves.iter().enumerate() {
            let colour = colour(ordinal);
            let bar = |(tenant, mean): (usize, &f64)| {
                let left = count(tenant) + 0.1 + width * count(ordinal);
                Rectangle::new(
                    [(left, SHORTEST), (left + width, mean.max(SHORTEST))],
                    colour.filled(),
                )
            };
            chart.draw_series(curve.tenants.iter().enumerate().map(bar))?;
        }
        Ok(())
    })
}

/// A use of GPUs, with its GPU-seconds in an hour.
pub(super) type Use = (&'static str, fn(&Hour) -> u64);

/// What GPUs did, each with what stands below it.
pub(super) const USES: [Use; 3] = [
    ("owners' jobs", |hour| hour.own),
    ("with guests", |hour| hour.own + hour.held),
    ("with what was offered", |hour| hour.own + hour.held + hour.offered),
];

/// What the GPUs did, hour by hour.
pub(super) fn hours(gpus: u64, hours: &[Hour]) -> Result<String, PlotError> {
    let days = |hour: usize| count(hour) / 24.0;
    let busy = |seconds: u64| float(seconds) / 3_600.0;
    draw(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..days(hours.len().max(1)), 0.0..float(gpus))?;
        chart.configure_mesh().x_desc("day").y_desc("GPUs").light_line_style(WHITE).draw()?;
        for (ordinal, (_, value)) in USES.into_iter().enumerate() {
            let colour = colour(ordinal);
            // The last hour is cut off by the last submission.
            let whole = &hours[..hours.len().saturating_sub(1)];
            let points = whole.iter().enumerate().map(|(at, hour)| (days(at), busy(value(hour))));
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(waits: &[u64]) -> Curve {
        let waits = waits.iter().copied().map(Seconds::new).collect();
        Curve::new("p".to_owned(), 0.0, waits, vec![0.0, 5.0])
    }

    #[test]
    fn a_distribution_reaches_one_and_never_falls() {
        let waits: Vec<u64> = (0..5_003).collect();
        let points = distribution(&curve(&waits).waits);
        assert!(points.len() <= POINTS + 2, "{}", points.len());
        assert_eq!(points.last(), Some(&(5_002.0, 1.0)));
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
    }

    #[test]
    fn plots_of_nothing_are_drawn_too() {
        assert!(waits(&[curve(&[])]).unwrap().starts_with("<svg"));
        assert!(
            tenants(&["a".to_owned(), "b".to_owned()], &[curve(&[0])]).unwrap().contains("\nb\n")
        );
        assert!(hours(8, &[]).unwrap().starts_with("<svg"));
    }
}

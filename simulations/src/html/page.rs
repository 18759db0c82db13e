//! The page.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Comparison, Curve, PlotError, plots};
use crate::lending;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#111}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .7em;border-bottom:1px solid #ccc;text-align:right}\
th:first-child,td:first-child{text-align:left}figure{margin:1.5em 0}figcaption{color:#444}\
.legend span{margin-right:1.2em;white-space:nowrap}.legend i{display:inline-block;width:1em;height:.7em;margin-right:.4em}svg{max-width:100%;height:auto}";

/// The whole page.
///
/// # Errors
/// If a plot cannot be drawn.
pub fn page(comparison: &Comparison<'_>) -> Result<String, PlotError> {
    let workload = comparison.workload;
    let names: Vec<String> = workload.pools.iter().map(|pool| pool.tenant.to_string()).collect();
    let load = f64::from(comparison.load.get()) / 1_000.0;
    let title = format!("Replay at load {load}");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p {
                    (workload.jobs.len()) " jobs of " (workload.pools.len()) " tenants on "
                    (workload.gpus()) " GPUs, " (comparison.window.days) " days from "
                    (comparison.window.first) ". Every grant was judged by the rules of production."
                }
                h2 { "How long jobs waited" }
                (policies(&comparison.curves))
                figure {
                    (legend(comparison.curves.iter().map(|curve| curve.name.as_str())))
                    (PreEscaped(plots::waits(&comparison.curves)?))
                    figcaption { "Share of jobs that waited at most so long." }
                }
                figure {
                    (legend(comparison.curves.iter().map(|curve| curve.name.as_str())))
                    (PreEscaped(plots::tenants(&names, &comparison.curves)?))
                    figcaption { "Each tenant's mean wait. A tenant should never wait longer than in its own pool (static-fifo)." }
                }
                @if !comparison.charged.is_empty() {
                    h2 { "With what lending costs" }
                    p {
                        "Owners run their own queues on their own GPUs. A GPU is offered once it has been idle "
                        "long enough, and taken back at once when its owner's next job fits. The delay of a job is "
                        "all that it took beyond its work: waiting, starting, and work done twice."
                    }
                    (charged(comparison))
                }
                @for (report, hours) in &comparison.charged {
                    figure {
                        (legend(plots::USES.into_iter().map(|(name, _)| name)))
                        (PreEscaped(plots::hours(workload.gpus(), hours)?))
                        figcaption { "GPUs in use, staging " (report.friction.staging) " s." }
                    }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn legend<'a>(names: impl Iterator<Item = &'a str>) -> Markup {
    html! {
        p class="legend" {
            @for (ordinal, name) in names.enumerate() {
                span { i style={ "background:" (plots::css(ordinal)) } {} (name) }
            }
        }
    }
}

fn policies(curves: &[Curve]) -> Markup {
    html! {
        table {
            tr { th { "policy" } th { "mean, s" } th { "median, s" } th { "p95, s" } th { "longest, s" } }
            @for curve in curves {
                tr {
                    td { (curve.name) }
                    td { (format!("{:.1}", curve.mean)) }
                    @for permille in [500, 950, 1_000] { td { (at(curve, permille)) } }
                }
            }
        }
    }
}

/// The smallest wait that at least `permille` of the waits do not exceed.
fn at(curve: &Curve, permille: usize) -> u64 {
    let rank = (curve.waits.len() * permille).div_ceil(1_000).max(1);
    curve.waits.get(rank - 1).map_or(0, |wait| wait.get())
}

fn charged(comparison: &Comparison<'_>) -> Markup {
    type Row = (&'static str, fn(&lending::Report) -> String);
    let rows: [Row; 14] = [
        ("staging, s", |report| report.friction.staging.to_string()),
        ("mean delay, s", |report| format!("{:.1}", report.delay.mean)),
        ("leases", |report| report.leases.to_string()),
        ("taken back by owners", |report| report.reclaims.to_string()),
        ("preempted for a higher rank", |report| report.preemptions.to_string()),
        ("owners' starts after a guest had to go", |report| report.home_starts_delayed.to_string()),
        ("owners' delay p95 over all starts, s", |report| report.owner_delay.p95.to_string()),
        ("owners' longest delay, s", |report| report.owner_delay.max.to_string()),
        ("GPU-hours left idle by owners", |report| report.gpu_hours.idle.to_string()),
        ("of these offered or lent", |report| report.gpu_hours.offered.to_string()),
        ("recovered (unallocated GPUs)", |report| report.gpu_hours.recovered.to_string()),
        ("lost with reclaims", |report| report.gpu_hours.lost.to_string()),
        ("spent on starts", |report| report.gpu_hours.overhead.to_string()),
        ("goodput of guests, ‰", |report| report.gpu_hours.goodput_permille.to_string()),
    ];
    html! {
        table {
            @for (name, value) in rows {
                tr {
                    td { (name) }
                    @for (report, _) in &comparison.charged { td { (value(report)) } }
                }
            }
        }
        p {
            "Nothing is recovered by right-sizing or soft sharing here: the trace does not say what a job used."
        }
    }
}

//! One self-contained page about a comparison of policies: no script, no font, nothing fetched.

mod page;
mod plots;

use sublet_protocol::units::{Permille, Seconds};

use crate::lending;
use crate::replay::{self, Window, Workload};

pub use page::page;
pub use plots::PlotError;

/// What one policy gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The policy's name.
    pub name: String,
    /// Its mean wait, in seconds.
    pub mean: f64,
    /// The waits of the jobs that ran, in ascending order.
    pub waits: Vec<Seconds>,
    /// The mean wait of each tenant, in the order of the workload.
    pub tenants: Vec<f64>,
}

impl Curve {
    /// Of a replay without friction.
    pub fn of(report: &replay::Report, replayed: &replay::Replayed) -> Curve {
        Curve::new(
            report.policy.to_owned(),
            report.avg_queue_seconds,
            replayed.waits.iter().copied().flatten().collect(),
            report.tenants.iter().map(|tenant| tenant.avg_queue_seconds).collect(),
        )
    }

    /// Of a charged replay: delays instead of waits.
    pub fn charged(report: &lending::Report, lent: &lending::Lent) -> Curve {
        Curve::new(
            format!("sublet, staging {} s", report.friction.staging),
            report.delay.mean,
            lent.delays.iter().copied().flatten().collect(),
            report.tenants.iter().map(|tenant| tenant.mean).collect(),
        )
    }

    fn new(name: String, mean: f64, mut waits: Vec<Seconds>, tenants: Vec<f64>) -> Curve {
        waits.sort_unstable();
        Curve { name, mean, waits, tenants }
    }
}

/// What is compared.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// The jobs and pools.
    pub workload: &'a Workload,
    /// The days.
    pub window: Window,
    /// The load that pools were sized for.
    pub load: Permille,
    /// Every policy, baselines first.
    pub curves: Vec<Curve>,
    /// The charged replays, with what the GPUs did.
    pub charged: Vec<(lending::Report, Vec<lending::Hour>)>,
}

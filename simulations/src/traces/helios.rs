//! The Helios trace (SenseTime, 2020; Hu et al., SC'21): one row per virtual cluster and minute.

use std::path::Path;

use jiff::civil::DateTime;

use super::philly::until_error;
use super::source::find;
use super::table::{Columns, Row, Table};
use super::{Error, Problem, VcName};

/// Most jobs or GPUs of one virtual cluster taken for real.
const COUNT_MAX: u32 = 1_000_000;
const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S";
const TIME_EXAMPLE: &str = "2020-05-01 00:07:00";
const COLUMNS: Columns = &[
    "vc",
    "time",
    "total_job_num",
    "running_job_num",
    "pending_job_num",
    "total_gpujob_num",
    "running_gpujob_num",
    "pending_gpujob_num",
    "total_gpu_num",
    "running_gpu_num",
    "pending_gpu_num",
    "idle_gpu_num",
    "gpu_utilization",
    "running_gpu_num_noless_8",
    "running_gpu_num_less_8",
    "pending_gpu_num_noless_8",
    "pending_gpu_num_less_8",
    "total_gpu_num_noless_8",
    "total_gpu_num_less_8",
    "running_job_num_noless_8",
    "running_job_num_less_8",
    "pending_job_num_noless_8",
    "pending_job_num_less_8",
    "total_job_num_noless_8",
    "total_job_num_less_8",
];

/// One minute of one virtual cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Minute {
    /// Whose minute.
    pub vc: VcName,
    /// Local time of the cluster (UTC+8, no summer time).
    pub time: DateTime,
    /// All jobs.
    pub jobs: Counts,
    /// Jobs that ask for a GPU.
    pub gpu_jobs: Counts,
    /// GPUs of running and pending jobs; `total` is the capacity.
    pub gpus: Counts,
    /// GPUs that no job holds.
    pub idle_gpus: u32,
    /// Allocated GPUs in thousandths of the capacity.
    pub allocated_permille: u32,
    /// Jobs that ask for 8 GPUs or more.
    pub large: SizeClass,
    /// Jobs that ask for fewer than 8 GPUs.
    pub small: SizeClass,
}

/// How many, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Running and pending ones, or the capacity.
    pub total: u32,
    /// Running ones.
    pub running: u32,
    /// Waiting ones.
    pub pending: u32,
}

/// The part of the jobs that are of one size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeClass {
    /// GPUs of these jobs.
    pub gpus: Counts,
    /// The jobs.
    pub jobs: Counts,
}

/// Streams the minutes of `stem`.csv.xz or `stem`.csv in `folder`, such as `earth_vc_minute`; ends after
/// the first error.
pub fn minutes(
    folder: &Path,
    stem: &'static str,
) -> Result<impl Iterator<Item = Result<Minute, Error>>, Error> {
    let mut table = Table::open(&find(folder, stem)?, &[COLUMNS])?;
    Ok(until_error(move || table.next_row()?.map(|row| minute(&row)).transpose()))
}

fn minute(row: &Row<'_>) -> Result<Minute, Error> {
    let count = |column| row.whole_u32(column, 0..=COUNT_MAX);
    let counts = |total, running, pending| {
        Ok(Counts { total: count(total)?, running: count(running)?, pending: count(pending)? })
    };
    let time = DateTime::strptime(TIME_FORMAT, row.text(1)?)
        .map_err(|_| row.wrong(1, Problem::NotTime { example: TIME_EXAMPLE }))?;
    let minute = Minute {
        vc: row.name(0)?,
        time,
        jobs: counts(2, 3, 4)?,
        gpu_jobs: counts(5, 6, 7)?,
        gpus: counts(8, 9, 10)?,
        idle_gpus: count(11)?,
        allocated_permille: row.permille(12)?,
        large: SizeClass { gpus: counts(17, 13, 15)?, jobs: counts(23, 19, 21)? },
        small: SizeClass { gpus: counts(18, 14, 16)?, jobs: counts(24, 20, 22)? },
    };
    let expected = u64::from(minute.gpus.running) + u64::from(minute.idle_gpus);
    if u64::from(minute.gpus.total) != expected {
        let rule = "running_gpu_num + idle_gpu_num";
        return Err(row.wrong(8, Problem::Contradicts { rule, expected }));
    }
    Ok(minute)
}

//! The Philly trace (Microsoft, 2017; Jeon et al., ATC'19) in the form its users know: jobs by
//! virtual cluster, attempts, and nodes per virtual cluster.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

use super::source::find;
use super::table::{Columns, Row, Table};
use super::{Error, Problem, VcName};

/// GPUs in every node of the cluster.
pub const GPUS_PER_NODE: u32 = 8;
/// Longest duration taken for real, seconds: ten years.
pub const DURATION_SECONDS_MAX: u64 = 10 * 365 * 86_400;
/// Most GPUs of one job taken for real: the largest gang that a request can ask for.
pub const JOB_GPUS_MAX: u32 = sublet_protocol::requests::COUNT_MAX;
/// Most nodes of one virtual cluster taken for real.
pub const NODES_MAX: u32 = 100_000;
/// Latest Unix second taken for real: the year 2100.
const UNIX_SECONDS_MAX: u64 = 4_102_444_800;

const ZONE: &str = "America/New_York";
/// How the job file writes local times, for `strftime`.
pub const TIME_FORMAT: &str = "%Y-%m-%d %H:%M:%S";
const TIME_EXAMPLE: &str = "2017-10-03 14:05:59";
const JOB_COLUMNS: Columns = &["timestamp", "duration", "num_gpus", "gpu_time", "cluster"];
const ATTEMPT_COLUMNS: Columns = &["submit_unix_utc", "wait_s", "run_s", "gpu_num", "vc"];
const NODE_COLUMNS: Columns = &["vc", "node num"];

/// One job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its line in the file, counting the header as 1.
    pub line: u64,
    /// When it was submitted. The file has local time; in the hour that the clocks repeat in autumn the
    /// earlier reading is taken.
    pub submit: Timestamp,
    /// How long it ran, seconds, at least 1; a fraction is rounded up.
    pub duration_seconds: u64,
    /// How many GPUs, at least 1.
    pub gpus: u32,
    /// Whose job.
    pub vc: VcName,
}

/// One attempt to run a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// When its job was submitted.
    pub submit: Timestamp,
    /// How long it waited, seconds; what exactly counts as waiting is undocumented.
    pub wait_seconds: u64,
    /// How long it ran, seconds.
    pub run_seconds: u64,
    /// How many GPUs, at least 1.
    pub gpus: u32,
    /// Whose job; `None` where the public join found no job.
    pub vc: Option<VcName>,
}

/// The zone of the job file's local times, US/Eastern.
pub fn zone() -> TimeZone {
    TimeZone::get(ZONE).expect("the zone database is compiled in")
}

/// The job file in `folder`, xz or plain.
pub fn jobs_file(folder: &Path) -> Result<PathBuf, Error> {
    find(folder, "philly_jobs")
}

/// Streams the jobs of `file`; ends after the first error.
pub fn jobs(file: &Path) -> Result<impl Iterator<Item = Result<Job, Error>>, Error> {
    let mut table = Table::open(file, &[JOB_COLUMNS])?;
    let zone = zone();
    Ok(until_error(move || table.next_row()?.map(|row| job(&row, &zone)).transpose()))
}

/// Nodes of [`GPUS_PER_NODE`] GPUs per virtual cluster, from `folder`, in the order of the file.
pub fn nodes(folder: &Path) -> Result<Vec<(VcName, u32)>, Error> {
    let mut table = Table::open(&find(folder, "philly_vc_nodes")?, &[NODE_COLUMNS])?;
    let (mut nodes, mut seen) = (Vec::new(), BTreeSet::new());
    while let Some(row) = table.next_row()? {
        let name = row.name(0)?;
        // Tenants' ids have no capitals: names that differ in nothing else would be one tenant.
        if !seen.insert(name.tenant()) {
            return Err(row.wrong(0, Problem::Twice));
        }
        nodes.push((name, row.whole_u32(1, 1..=NODES_MAX)?));
    }
    Ok(nodes)
}

/// Streams the attempts of `folder`; ends after the first error.
pub fn attempts(folder: &Path) -> Result<impl Iterator<Item = Result<Attempt, Error>>, Error> {
    let mut table = Table::open(&find(folder, "philly_attempts_with_vc")?, &[ATTEMPT_COLUMNS])?;
    Ok(until_error(move || table.next_row()?.map(|row| attempt(&row)).transpose()))
}

/// Turns a fallible "next" into an iterator that is over after its first error.
pub(super) fn until_error<T>(
    mut next: impl FnMut() -> Result<Option<T>, Error>,
) -> impl Iterator<Item = Result<T, Error>> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let item = next().transpose();
        is_over = !matches!(item, Some(Ok(_)));
        item
    })
}

fn job(row: &Row<'_>, zone: &TimeZone) -> Result<Job, Error> {
    let submit = local_time(row, 0, zone)?;
    let duration_seconds = row.rounded_up(1, 1..=DURATION_SECONDS_MAX)?;
    let gpus = row.whole_u32(2, 1..=JOB_GPUS_MAX)?;
    let expected = duration_seconds * u64::from(gpus);
    // Durations may have been rounded on the way: each GPU may be off by the rounded second.
    let gpu_time = row.rounded_up(3, 0..=u64::MAX)?;
    if gpu_time.abs_diff(expected) > u64::from(gpus) {
        return Err(row.wrong(3, Problem::Contradicts { rule: "duration × num_gpus", expected }));
    }
    Ok(Job { line: row.line(), submit, duration_seconds, gpus, vc: row.name(4)? })
}

fn attempt(row: &Row<'_>) -> Result<Attempt, Error> {
    let submit = row.whole(0, 1..=UNIX_SECONDS_MAX)?;
    let submit =
        i64::try_from(submit).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    Ok(Attempt {
        submit: submit.expect("a second before 2100 is a timestamp"),
        wait_seconds: row.whole(1, 0..=DURATION_SECONDS_MAX)?,
        run_seconds: row.whole(2, 0..=DURATION_SECONDS_MAX)?,
        gpus: row.whole_u32(3, 1..=JOB_GPUS_MAX)?,
        vc: if row.text(4)?.is_empty() { None } else { Some(row.name(4)?) },
    })
}

fn local_time(row: &Row<'_>, column: usize, zone: &TimeZone) -> Result<Timestamp, Error> {
    let not_time = || row.wrong(column, Problem::NotTime { example: TIME_EXAMPLE });
    let local = DateTime::strptime(TIME_FORMAT, row.text(column)?).map_err(|_| not_time())?;
    let ambiguous = zone.to_ambiguous_timestamp(local);
    if matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. }) {
        return Err(row.wrong(column, Problem::SkippedTime { zone: ZONE }));
    }
    ambiguous.earlier().map_err(|_| not_time())
}

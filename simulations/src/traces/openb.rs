//! The openb trace (Alibaba, 2023; Weng et al., "FGD", ATC'23): nodes and pods with shares of GPUs.

use std::path::{Path, PathBuf};

use super::philly::until_error;
use super::source::find;
use super::table::{Columns, Row, Table};
use super::{Error, Problem};

/// Milli-GPUs of a whole GPU.
pub const WHOLE_GPU_MILLI: u32 = 1_000;
/// Most CPU of a node taken for real, milli-cores.
const CPU_MILLI_MAX: u32 = 10_000_000;
/// Most memory of a node taken for real, MiB.
const MEMORY_MIB_MAX: u32 = 1 << 28;
/// Most GPUs of a node or pod taken for real.
const GPUS_MAX: u32 = 64;
/// Latest second of the trace taken for real: ten years.
const SECONDS_MAX: u64 = 10 * 365 * 86_400;
/// Longest name of a node, pod or GPU model, bytes.
const NAME_BYTES_MAX: usize = 64;

const NODE_COLUMNS: Columns = &["sn", "cpu_milli", "memory_mib", "gpu", "model"];
const POD_COLUMNS: Columns = &[
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
];
/// The lists with more multi-GPU pods say only what a pod needs.
const NEED_COLUMNS: Columns = &["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// CPU, milli-cores.
    pub cpu_milli: u32,
    /// Memory, MiB.
    pub memory_mib: u32,
    /// GPUs, may be 0.
    pub gpus: u32,
    /// The GPUs' model; `None` exactly where there are no GPUs.
    pub model: Option<String>,
}

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// CPU, milli-cores.
    pub cpu_milli: u32,
    /// Memory, MiB; a few pods of the trace say 0.
    pub memory_mib: u32,
    /// GPUs, may be 0.
    pub gpus: u32,
    /// Milli-GPUs on each of them: 0 without GPUs, 1 to 1,000 with one, 1,000 with more.
    pub gpu_milli: u32,
    /// When it lived and under which terms; the multi-GPU lists do not say.
    pub life: Option<Life>,
}

/// A pod's terms and times, seconds since the trace's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Models it may run on; empty = any.
    pub models: Vec<String>,
    /// Quality of service.
    pub qos: Qos,
    /// How it stood at the end of the trace.
    pub phase: Phase,
    /// Created.
    pub created: u64,
    /// Deleted, not before it was created.
    pub deleted: u64,
    /// Placed on a node, if it ever was.
    pub scheduled: Option<u64>,
}

/// Quality of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qos {
    /// Latency sensitive.
    LatencySensitive,
    /// Burstable.
    Burstable,
    /// Best effort.
    BestEffort,
    /// Guaranteed.
    Guaranteed,
}

/// How a pod stood at the end of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Never placed.
    Pending,
    /// Still there.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly.
    Failed,
}

/// The default pod list in `folder`, xz or plain.
pub fn pod_list(folder: &Path) -> Result<PathBuf, Error> {
    find(folder, "openb_pod_list_default")
}

/// Streams the nodes of `file`, plain or xz; ends after the first error.
pub fn nodes(file: &Path) -> Result<impl Iterator<Item = Result<Node, Error>>, Error> {
    let mut table = Table::open(file, &[NODE_COLUMNS])?;
    Ok(until_error(move || table.next_row()?.map(|row| node(&row)).transpose()))
}

/// Streams the pods of `file`, plain or xz; ends after the first error.
pub fn pods(file: &Path) -> Result<impl Iterator<Item = Result<Pod, Error>>, Error> {
    let mut table = Table::open(file, &[POD_COLUMNS, NEED_COLUMNS])?;
    let has_life = table.columns().len() == POD_COLUMNS.len();
    Ok(until_error(move || {
        let Some(row) = table.next_row()? else { return Ok(None) };
        let pod = pod(&row)?;
        Ok(Some(if has_life { Pod { life: Some(life(&row)?), ..pod } } else { pod }))
    }))
}

fn node(row: &Row<'_>) -> Result<Node, Error> {
    let gpus = row.whole_u32(3, 0..=GPUS_MAX)?;
    let model = match (gpus, row.text(4)?) {
        (0, "") => None,
        (0, _) => {
            let rule = "the model's length without GPUs";
            return Err(row.wrong(4, Problem::Contradicts { rule, expected: 0 }));
        }
        _ => Some(name(row, 4)?),
    };
    Ok(Node {
        name: name(row, 0)?,
        cpu_milli: row.whole_u32(1, 0..=CPU_MILLI_MAX)?,
        memory_mib: row.whole_u32(2, 0..=MEMORY_MIB_MAX)?,
        gpus,
        model,
    })
}

fn pod(row: &Row<'_>) -> Result<Pod, Error> {
    let gpus = row.whole_u32(3, 0..=GPUS_MAX)?;
    let milli = match gpus {
        0 => 0..=0,
        1 => 1..=WHOLE_GPU_MILLI,
        _ => WHOLE_GPU_MILLI..=WHOLE_GPU_MILLI,
    };
    Ok(Pod {
        name: name(row, 0)?,
        cpu_milli: row.whole_u32(1, 0..=CPU_MILLI_MAX)?,
        memory_mib: row.whole_u32(2, 0..=MEMORY_MIB_MAX)?,
        gpus,
        gpu_milli: row.whole_u32(4, milli)?,
        life: None,
    })
}

fn life(row: &Row<'_>) -> Result<Life, Error> {
    let models = row.text(5)?;
    let qos = match row.text(6)? {
        "LS" => Qos::LatencySensitive,
        "Burstable" => Qos::Burstable,
        "BE" => Qos::BestEffort,
        "Guaranteed" => Qos::Guaranteed,
        _ => {
            let allowed = "LS, Burstable, BE, Guaranteed";
            return Err(row.wrong(6, Problem::NotOneOf { allowed }));
        }
    };
    let phase = match row.text(7)? {
        "Pending" => Phase::Pending,
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        _ => {
            let allowed = "Pending, Running, Succeeded, Failed";
            return Err(row.wrong(7, Problem::NotOneOf { allowed }));
        }
    };
    let created = row.whole(8, 0..=SECONDS_MAX)?;
    let from_creation = created..=SECONDS_MAX;
    Ok(Life {
        models: models.split('|').filter(|model| !model.is_empty()).map(str::to_owned).collect(),
        qos,
        phase,
        created,
        deleted: row.whole(9, from_creation.clone())?,
        scheduled: if row.text(10)?.is_empty() {
            None
        } else {
            Some(row.whole(10, from_creation)?)
        },
    })
}

fn name(row: &Row<'_>, column: usize) -> Result<String, Error> {
    let text = row.text(column)?;
    let is_name =
        (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if is_name { Ok(text.to_owned()) } else { Err(row.wrong(column, Problem::NotName)) }
}

//! B11: a broker that was killed opens a folder of a million records again.
//!
//! The folder is filled by a process of its own: tenants submit requests and take them back. It is
//! killed with SIGKILL and a new process opens the folder; what counts is the time until it leads and
//! has applied its log. First no snapshot was ever taken, so that the whole log is applied and compared
//! with the journal; then the log goes back to the last snapshot only. Beside it: all bytes of the
//! folder read and hashed by one SHA-256, in this process. All of it is in the page cache.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};
use sublet_broker::{Cell, Config};
use sublet_protocol::commands::{Actor, Command as Asked};
use sublet_protocol::ids::{CellId, KeyId, RequestId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::requests::Tier;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::cell::{model, quota, spec, tenant};
use crate::processes::{self, start};
use crate::report;

/// The first argument of a process that fills or opens a folder.
pub(crate) const WORD: &str = "recovery";
/// Records of the folder unless the command line says otherwise.
pub(crate) const RECORDS: u64 = 1_000_000;
/// What is aimed at: at most so many times reading and hashing the folder.
const TARGET: f64 = 3.0;
/// The same with a snapshot.
const TARGET_SNAPSHOT: f64 = 0.2;
/// Pairs of commands on their way at once.
const AT_ONCE: u64 = 512;
const TENANTS: u64 = 64;
/// How long filling and opening may take.
const PATIENCE: Duration = Duration::from_secs(170);
/// A seal yields a snapshot after so many records in production.
const OFTEN: u64 = 16_384;

/// Fills, kills, opens and prints.
///
/// # Errors
/// A process does not start or breaks off.
pub(crate) async fn measure(records: u64) -> anyhow::Result<()> {
    println!("B11: a folder of {records} records is opened after a kill");
    let folder = processes::folder()?;
    let data = folder.path().join("data");
    let begun = Instant::now();
    let (filled, _) = until_filled(&data, u64::MAX, records).await?;
    kill(filled).await?;
    println!("  filled in {:.1?}", begun.elapsed());
    let (bytes, hashed) = hash(&data)?;
    let (opened, whole) = until_filled(&data, u64::MAX, 0).await?;
    kill(opened).await?;
    let (snapshot, _) = until_filled(&data, OFTEN, records + 2 * OFTEN).await?;
    kill(snapshot).await?;
    let (opened, short) = until_filled(&data, OFTEN, 0).await?;
    kill(opened).await?;
    report::load("at the end");
    println!("  {bytes} bytes read and hashed in {hashed:.2?}");
    let against = |name: &str, time: Duration, target: f64| {
        let times = time.as_secs_f64() / hashed.as_secs_f64();
        let reached = if times <= target { "reached" } else { "NOT reached" };
        println!("  {name}: {time:.2?}, {times:.2} times, target at most {target}: {reached}");
    };
    against("without a snapshot", whole, TARGET);
    against("with one", short, TARGET_SNAPSHOT);
    println!("  with one, of without: {:.3}", short.as_secs_f64() / whole.as_secs_f64());
    Ok(())
}

/// A process that has opened `data`, how long that took, once there are `records`.
async fn until_filled(
    data: &Path,
    snapshots: u64,
    records: u64,
) -> anyhow::Result<(Child, Duration)> {
    let log = data.with_extension("log");
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WORD).arg(data).args([snapshots.to_string(), records.to_string()]);
    let mut child = start(&mut command, &log)?;
    let begun = Instant::now();
    loop {
        let said = std::fs::read_to_string(&log)?;
        let line = |word| said.lines().find_map(|line| line.strip_prefix(word));
        if line("filled").is_some() {
            let micros = line("opened ").context("filled before it was opened")?;
            return Ok((child, Duration::from_micros(micros.parse()?)));
        }
        if child.try_wait()?.is_some() || begun.elapsed() > PATIENCE {
            bail!("it did not come so far:\n{said}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn kill(mut child: Child) -> anyhow::Result<()> {
    Ok(child.kill().await?)
}

/// How many bytes all files below `folder` have, and how long it takes to read and hash them.
fn hash(folder: &Path) -> anyhow::Result<(u64, Duration)> {
    // Once to have them in the page cache, as the process that opens them has.
    let mut measured = (0, Duration::ZERO);
    for _ in 0..2 {
        let begun = Instant::now();
        let (mut bytes, mut sum, mut folders) = (0, Sha256::new(), vec![folder.to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let mut file = std::fs::File::open(path)?;
                bytes += std::io::copy(&mut file, &mut HashWriter(&mut sum))?;
            }
        }
        std::hint::black_box(sum.finalize());
        measured = (bytes, begun.elapsed());
    }
    Ok(measured)
}

/// Takes bytes into a hash.
struct HashWriter<'s>(&'s mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Opens the folder, fills it and stays until it is killed.
///
/// # Errors
/// It cannot be opened, or something is refused.
pub(crate) async fn run(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut next = || arguments.next().context("too few arguments");
    let (folder, snapshots, records) = (next()?, next()?.parse()?, next()?.parse::<u64>()?);
    let mut config = Config::new(CellId::new("partners")?);
    (config.data_dir, config.snapshot_records) = (Some(folder.into()), snapshots);
    let begun = Instant::now();
    let cell = Cell::open(config).await?;
    println!("opened {}", begun.elapsed().as_micros());
    if cell.head()?.size < records {
        furnish(&cell).await?;
        fill(&cell, records).await?;
    }
    println!("filled");
    tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin())).await??;
    Ok(())
}

/// Tenants with quotas, and a price; those that are there are refused, which is as good.
async fn furnish(cell: &Cell) -> anyhow::Result<()> {
    let owner = tenant("t0")?;
    for number in 0..TENANTS {
        let tenant = tenant(&format!("t{number}"))?;
        operate(cell, Asked::CreateTenant { tenant, parent: None }).await?;
        operate(cell, Asked::SetQuota { tenant, model: model()?, quota: quota(64) }).await?;
    }
    let per_gpu_hour = MicroCredits::new(2_000_000);
    let (model, tier) = (model()?, Tier::Standard);
    operate(cell, Asked::SetPrice { owner, model, tier, per_gpu_hour }).await
}

async fn operate(cell: &Cell, command: Asked) -> anyhow::Result<()> {
    let operator = Actor::Operator { subject: "op".parse()?, key: KeyId::new("k")? };
    cell.propose(operator, None, command).await?;
    Ok(())
}

/// Submits requests and takes them back until there are `records`.
async fn fill(cell: &Cell, records: u64) -> anyhow::Result<()> {
    // Ids of an earlier filling are not used again.
    let next = Arc::new(AtomicU64::new(cell.head()?.size));
    let mut tasks = JoinSet::new();
    for number in 0..AT_ONCE {
        let (cell, next) = (cell.clone(), Arc::clone(&next));
        let tenant = tenant(&format!("t{}", number % TENANTS))?;
        tasks.spawn(async move {
            while cell.head()?.size < records {
                let request = next.fetch_add(1, Ordering::Relaxed);
                let request = RequestId::new(u128::from(request) << 32 | u128::from(records));
                let (subject, key) = ("someone".parse()?, KeyId::new("k")?);
                let actor = Actor::Tenant { tenant, subject, key };
                let spec = spec(1, 3_600, 0)?;
                let submit = Asked::SubmitRequest { request, tenant, spec };
                cell.propose(actor.clone(), None, submit).await?;
                cell.propose(actor, None, Asked::CancelRequest { request }).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

//! PostgreSQL as a queue of jobs, loaded by its own `pgbench`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::unistd::{User, chown, geteuid};
use tokio::process::{Child, Command};

use crate::processes::{free_port, listening, program, start};
use crate::report::Measured;

/// The account that Debian makes for it: it does not run as root.
const ACCOUNT: &str = "postgres";

/// One job for a worker: the first that nobody else looks at, durable when the statement returns.
const CLAIM: &str = "UPDATE jobs SET worker = :client_id WHERE id = (SELECT id FROM jobs \
    WHERE worker IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING payload;\n";

/// Jobs that wait, as many bytes each as a demand takes in our log, with an index of those that wait.
const TABLE: &str = "DROP TABLE IF EXISTS jobs;
    CREATE TABLE jobs (id bigint PRIMARY KEY, worker integer, payload bytea NOT NULL);
    INSERT INTO jobs SELECT id, NULL, decode(repeat('78', 200), 'hex') FROM generate_series(1, 200000) AS id;
    CREATE INDEX waiting ON jobs (id) WHERE worker IS NULL;
    VACUUM ANALYZE jobs;
    CHECKPOINT;";

/// A running server; it ends when this is dropped.
pub(crate) struct Postgres {
    _server: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Postgres {
    /// Starts a server with its defaults (`fsync` and `synchronous_commit` are on) below `folder`.
    ///
    /// # Errors
    /// PostgreSQL is not installed or does not come up.
    pub(crate) async fn start(folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.join("postgres");
        std::fs::create_dir(&folder)?;
        if geteuid().is_root() {
            let account = User::from_name(ACCOUNT)?.context("there is no account postgres")?;
            chown(&folder, Some(account.uid), Some(account.gid))?;
        }
        let data = folder.join("data");
        let made = unprivileged("initdb")?
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D"])
            .arg(&data)
            .current_dir(&folder)
            .output()
            .await?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let address = free_port()?;
        let log = folder.join("log");
        let mut command = unprivileged("postgres")?;
        command.arg("-D").arg(&data).arg("-k").arg(&folder).current_dir(&folder);
        command.args(["-h", "127.0.0.1", "-p", &address.port().to_string()]);
        let mut server = start(&mut command, &log)?;
        listening(&mut server, address, &log).await?;
        Ok(Self { _server: server, address, folder })
    }

    /// `workers` connections that each claim one job after the other for `time`, from a full queue.
    ///
    /// # Errors
    /// `pgbench` fails.
    pub(crate) async fn claims(&self, workers: usize, time: Duration) -> anyhow::Result<Measured> {
        // Asked until it takes questions: it listens a moment before that.
        self.psql("SELECT 1").await?;
        for statement in TABLE.split_inclusive(';') {
            self.psql(statement).await?;
        }
        let script = self.folder.join("claim.sql");
        std::fs::write(&script, CLAIM)?;
        let mut command = self.client("pgbench")?;
        command.args(["--no-vacuum", "--protocol=prepared", "--jobs=2", "--log"]);
        command.arg(format!("--client={workers}")).arg(format!("--time={}", time.as_secs()));
        command.arg("--file").arg(&script).arg("postgres").current_dir(&self.folder);
        let ran = command.output().await?;
        ensure!(ran.status.success(), "pgbench: {}", String::from_utf8_lossy(&ran.stderr));
        self.times(time)
    }

    /// The version, as the program tells it.
    ///
    /// # Errors
    /// PostgreSQL is not installed.
    pub(crate) async fn version() -> anyhow::Result<String> {
        let asked = unprivileged("postgres")?.arg("--version").output().await?;
        Ok(String::from_utf8_lossy(&asked.stdout).trim().to_owned())
    }

    /// What `pgbench` wrote of each transaction: the third word is its time in microseconds.
    fn times(&self, time: Duration) -> anyhow::Result<Measured> {
        let mut times = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.starts_with("pgbench_log.") {
                continue;
            }
            for line in std::fs::read_to_string(&path)?.lines() {
                let micros = line.split_whitespace().nth(2).context("a short line of pgbench")?;
                times.push(Duration::from_micros(micros.parse()?));
            }
            std::fs::remove_file(path)?;
        }
        Measured::of(times, time)
    }

    async fn psql(&self, statement: &str) -> anyhow::Result<()> {
        let mut last = String::new();
        for _ in 0..100 {
            let mut command = self.client("psql")?;
            command.args(["--no-psqlrc", "--quiet", "--command", statement, "postgres"]);
            let ran = command.output().await?;
            if ran.status.success() {
                return Ok(());
            }
            last = String::from_utf8_lossy(&ran.stderr).into_owned();
            if !last.contains("starting up") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("psql: {last}")
    }

    fn client(&self, name: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(program(name, &folders())?);
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-p"]);
        command.arg(self.address.port().to_string());
        Ok(command)
    }
}

/// The program `name` of PostgreSQL, run by its account if this process is root.
fn unprivileged(name: &str) -> anyhow::Result<Command> {
    let binary = program(name, &folders())?;
    let mut command = Command::new(&binary);
    if geteuid().is_root() {
        let account = User::from_name(ACCOUNT)?.context("there is no account postgres")?;
        command.uid(account.uid.as_raw()).gid(account.gid.as_raw());
    }
    Ok(command)
}

/// Where Debian keeps the programs of each version, newest first.
fn folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    folders
}

//! Processes that are started by hand and end with the run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// How long a process may take until it listens.
const START: Duration = Duration::from_secs(30);

/// A folder beside the program: the system's temporary folder may be in memory.
pub(crate) fn folder() -> anyhow::Result<TempDir> {
    let binary = std::env::current_exe()?;
    let beside = binary.parent().context("the program lies in no folder")?;
    let folder = tempfile::Builder::new().prefix("partners-").tempdir_in(beside)?;
    // PostgreSQL runs as another user.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode)?;
    Ok(folder)
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Starts `command`, which ends with this process. What it says goes to the file `log`.
pub(crate) fn start(command: &mut Command, log: &Path) -> anyhow::Result<Child> {
    let output = std::fs::File::create(log)?;
    command.stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(output);
    let name = command.as_std().get_program().to_owned();
    command.kill_on_drop(true).spawn().with_context(|| format!("starting {}", name.display()))
}

/// Waits until `address` takes connections.
pub(crate) async fn listening(
    child: &mut Child,
    address: SocketAddr,
    log: &Path,
) -> anyhow::Result<()> {
    let end = tokio::time::Instant::now() + START;
    while TcpStream::connect(address).await.is_err() {
        let ended = child.try_wait()?;
        if ended.is_some() || tokio::time::Instant::now() > end {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            bail!("it does not listen on {address} ({ended:?}):\n{said}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Where the program `name` is, in the search path or in one of the `other` folders.
///
/// # Errors
/// It is not installed.
pub(crate) fn program(name: &str, other: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(other.iter().cloned());
    let found = folders.find(|folder| folder.join(name).is_file());
    found.map(|folder| folder.join(name)).with_context(|| {
        format!(
            "{name} is not installed, so there is nothing to compare with: run tests/bench, which \
             installs it, or leave the partner out by --without"
        )
    })
}

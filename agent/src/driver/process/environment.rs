//! A guest's environment: empty but for a short list, what the lease says and what the workload
//! adds.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sublet_protocol::agent::Workload;
use sublet_protocol::units::Millis;

use super::super::{Guest, StartFailure};

/// Variables of the agent that a guest gets, too.
const INHERITED: [&str; 4] = ["PATH", "LANG", "LC_ALL", "TZ"];
/// Where a program is looked for if the agent has no path of its own.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";
/// The guest's own folder; also the mark by which what is left of it is found.
pub(super) const FOLDER: &str = "SUBLET_SCRATCH";
const DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The whole environment of a guest, without a name twice. `left` is real time until the bought
/// end.
///
/// `SUBLET_LEASE` is the lease's id, `SUBLET_DEADLINE` its bought end in Unix seconds.
pub(super) fn of(
    guest: &Guest,
    workload: &Workload,
    folder: &Path,
    left: Millis,
) -> Result<Vec<(String, String)>, StartFailure> {
    let forbidden = |name: &str| !is_name(name) || name == DEVICES || name.starts_with("SUBLET_");
    if let Some((name, _)) = workload.env.iter().find(|(name, _)| forbidden(name)) {
        return Err(StartFailure::Variable { name: name.clone() });
    }
    let mut env: Vec<(String, String)> = Vec::new();
    for name in INHERITED {
        let value = std::env::var(name).ok();
        let value = value.or_else(|| (name == "PATH").then(|| PATH_DEFAULT.to_owned()));
        env.extend(value.map(|value| (name.to_owned(), value)));
    }
    let folder = folder.to_string_lossy().into_owned();
    let devices: Vec<String> = guest.devices.iter().map(ToString::to_string).collect();
    let end = SystemTime::now() + Duration::from_millis(left.get());
    let end = end.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    env.extend([
        ("HOME".to_owned(), folder.clone()),
        ("TMPDIR".to_owned(), folder.clone()),
        (FOLDER.to_owned(), folder),
        (DEVICES.to_owned(), devices.join(",")),
        ("SUBLET_LEASE".to_owned(), guest.lease.to_string()),
        ("SUBLET_DEADLINE".to_owned(), end.to_string()),
    ]);
    for (name, value) in &workload.env {
        env.retain(|(known, _)| known != name);
        env.push((name.clone(), value.clone()));
    }
    Ok(env)
}

fn is_name(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

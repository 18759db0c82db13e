//! Profiles: one TOML file each under the user's configuration folder, readable by its owner only.
//!
//! `sublet dev` writes the profile `dev`. If several run at once the newest wins: it sets the file of
//! the one before aside and puts it back at its end, if that one still runs.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sublet_protocol::ids::TenantId;

use super::token::Role;
use crate::failure::{Exit, Failure, Outcome};
use crate::suggest::nearest;

/// The profile that is used when none is named: the user's own, else the one of `sublet dev`.
const DEFAULTS: [&str; 2] = ["default", "dev"];

/// One profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// The server's URL.
    pub(crate) server: String,
    /// The key that signs tokens (PEM, PKCS #8, Ed25519); without one a token must be given.
    pub(crate) key: Option<PathBuf>,
    /// The key's id (`kid`).
    pub(crate) key_id: Option<String>,
    /// Who issues the tokens (`iss`).
    pub(crate) issuer: Option<String>,
    /// For whom they are (`aud`).
    pub(crate) audience: Option<String>,
    /// Who the caller is (`sub`).
    pub(crate) subject: Option<String>,
    /// For which tenant the caller acts, unless told otherwise.
    pub(crate) tenant: Option<TenantId>,
    /// Which rights its tokens have.
    #[serde(default)]
    pub(crate) roles: Vec<Role>,
    /// The process that wrote the profile, if it was `sublet dev`.
    pub(crate) pid: Option<u32>,
}

/// The profile to use and its name. Only one that was named must exist.
pub(super) fn choose(name: Option<&str>) -> Outcome<Option<(String, Profile)>> {
    if let Some(name) = name {
        return read(name).map(|profile| Some((name.to_owned(), profile)));
    }
    let Some(folder) = folder() else { return Ok(None) };
    match DEFAULTS.iter().find(|name| file(&folder, name).exists()) {
        Some(name) => read(name).map(|profile| Some(((*name).to_owned(), profile))),
        None => Ok(None),
    }
}

/// `$XDG_CONFIG_HOME/sublet/profiles`, or that under `~/.config`.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    base.map(|base| base.join("sublet").join("profiles"))
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.toml"))
}

fn read(name: &str) -> Outcome<Profile> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(Failure::usage(format!("{name:?} is not the name of a profile")));
    }
    let folder = folder().ok_or_else(no_folder)?;
    let path = file(&folder, name);
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => missing(name, &folder),
        _ => Failure::usage(format!("cannot read the profile {}", path.display())).because(error),
    })?;
    toml::from_str(&text).map_err(|error| {
        Failure::usage(format!("the profile {} is wrong", path.display())).because(error)
    })
}

fn missing(name: &str, folder: &Path) -> Failure {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let names: Vec<String> = files
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|file| file.strip_suffix(".toml").map(str::to_owned))
        .collect();
    let failure = Failure::new(Exit::NotFound, format!("there is no profile {name:?}"))
        .because(format!("no file {}", file(folder, name).display()));
    match nearest(name, names.iter().map(String::as_str)).first() {
        Some(best) => failure.hint(format!("did you mean {best}?")),
        None if name == "dev" => failure.hint("`sublet dev` writes it while it runs"),
        None => failure,
    }
}

fn no_folder() -> Failure {
    Failure::usage("there is no folder for profiles: neither XDG_CONFIG_HOME nor HOME is set")
}

/// Writes a profile so that only its owner can read it; returns where. The file is replaced whole.
pub(crate) fn write(name: &str, profile: &Profile) -> Outcome<PathBuf> {
    let folder = folder().ok_or_else(no_folder)?;
    let path = file(&folder, name);
    let failure = |error: &dyn std::fmt::Display| {
        let what = format!("cannot write the profile {}", path.display());
        Failure::new(Exit::Failed, what).because(error)
    };
    let text = toml::to_string(profile).map_err(|error| failure(&error))?;
    fs::create_dir_all(&folder).map_err(|error| failure(&error))?;
    if let Some(earlier) = living(&folder, &path, name) {
        fs::rename(earlier, aside(&folder, name, std::process::id()))
            .map_err(|error| failure(&error))?;
    }
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary);
    let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&temporary, &path)).map_err(|error| failure(&error))?;
    Ok(path)
}

/// Whether the user has a profile of their own that is used when none is named.
pub(crate) fn has_default() -> bool {
    folder().is_some_and(|folder| file(&folder, DEFAULTS[0]).exists())
}

/// Where the process `pid` sets the profile of the one before it aside.
fn aside(folder: &Path, name: &str, pid: u32) -> PathBuf {
    folder.join(format!(".{name}.before-{pid}"))
}

/// Whether there is a process with this id; where there is no `/proc` to ask, none.
fn runs(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// The newest profile, from `path` down through those set aside, whose process still runs and is not
/// this one. Those of processes that have ended are removed.
fn living(folder: &Path, path: &Path, name: &str) -> Option<PathBuf> {
    let mut path = path.to_owned();
    loop {
        let text = fs::read_to_string(&path).ok()?;
        let pid = toml::from_str::<Profile>(&text).ok()?.pid?;
        let is_own = pid == std::process::id();
        if !is_own && runs(pid) {
            return Some(path);
        }
        // Should it be gone already, that is what was wanted.
        let _ = fs::remove_file(&path);
        path = aside(folder, name, pid);
    }
}

/// Removes the profile if this process wrote it last; what was there before comes back.
pub(crate) fn remove_if_ours(name: &str) {
    let ours = |profile: &Profile| profile.pid == Some(std::process::id());
    if read(name).is_ok_and(|profile| ours(&profile))
        && let Some(folder) = folder()
    {
        let path = file(&folder, name);
        if let Some(earlier) = living(&folder, &path, name) {
            // At worst the earlier server is found by its URL only.
            let _ = fs::rename(earlier, path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_survives_its_text_form_and_an_unknown_field_is_refused() {
        let profile = Profile {
            server: "http://127.0.0.1:1".into(),
            key: Some("key.pem".into()),
            key_id: Some("dev".into()),
            issuer: None,
            audience: None,
            subject: None,
            tenant: Some(TenantId::new("initech").unwrap()),
            roles: vec![Role::Tenant],
            pid: Some(7),
        };
        let text = toml::to_string(&profile).unwrap();
        assert_eq!(toml::from_str::<Profile>(&text).unwrap(), profile);
        assert!(toml::from_str::<Profile>(&format!("{text}\nservre = 1\n")).is_err());
    }

    #[test]
    fn a_profile_set_aside_is_found_if_its_process_still_runs() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let write = |path: &Path, pid: u32| {
            fs::write(path, format!("server = \"http://127.0.0.1:1\"\npid = {pid}\n")).unwrap();
        };
        // The first process of the machine always runs, one with this number never.
        let (runs, ended) = (1, u32::MAX);
        let path = file(folder, "dev");
        write(&path, std::process::id());
        write(&aside(folder, "dev", std::process::id()), ended);
        write(&aside(folder, "dev", ended), runs);
        assert_eq!(living(folder, &path, "dev"), Some(aside(folder, "dev", ended)));
        assert!(!path.exists() && !aside(folder, "dev", std::process::id()).exists());
        assert_eq!(living(folder, &path, "dev"), None);
    }
}

//! Where the server is and who the caller is: flags, then environment, then the profile file.
//!
//! clap reads flags and environment (`SUBLET_SERVER`, `SUBLET_TOKEN`, `SUBLET_PROFILE`); this
//! module adds the profile and decides.

mod profile;
mod token;

use crate::failure::{Exit, Failure, Outcome};

pub(crate) use profile::{Profile, has_default, remove_if_ours, write};
pub(crate) use token::{Credentials, Role, TOKEN_LIFE, Wanted};

/// What flags and environment say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given {
    /// `--server` or `SUBLET_SERVER`.
    pub(crate) server: Option<String>,
    /// `--token` or `SUBLET_TOKEN`.
    pub(crate) token: Option<String>,
    /// `--profile` or `SUBLET_PROFILE`.
    pub(crate) profile: Option<String>,
}

/// What holds after all.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The server's URL, without a slash at its end.
    pub(crate) server: String,
    /// How the caller proves who it is.
    pub(crate) credentials: Credentials,
    /// Where the server's URL came from, for messages.
    pub(crate) origin: String,
}

impl Settings {
    /// Puts flags, environment and profile together.
    pub(crate) fn resolve(given: &Given) -> Outcome<Settings> {
        let profile = profile::choose(given.profile.as_deref())?;
        let (server, origin) = match (&given.server, &profile) {
            (Some(server), _) => (server.clone(), "--server or SUBLET_SERVER".to_owned()),
            (None, Some((name, profile))) => (profile.server.clone(), describe(name, profile)),
            (None, None) => return Err(no_server()),
        };
        let credentials = match (&given.token, &profile) {
            (Some(token), _) => Credentials::Given(token.trim().to_owned()),
            (None, Some((_, profile))) => Credentials::Profile(profile.clone()),
            (None, None) => Credentials::None,
        };
        let server = check_url(&server)?;
        Ok(Settings { server, credentials, origin })
    }
}

fn describe(name: &str, profile: &Profile) -> String {
    match profile.pid {
        Some(pid) => {
            format!("profile {name:?}, written by the newest `sublet dev` (process {pid})")
        }
        None => format!("profile {name:?}"),
    }
}

fn no_server() -> Failure {
    Failure::new(Exit::Temporary, "no server is configured")
        .hint("start one on this machine in another terminal: sublet dev")
        .hint("or name one: --server URL, or the variable SUBLET_SERVER")
}

fn check_url(server: &str) -> Outcome<String> {
    let trimmed = server.trim_end_matches('/');
    let host = trimmed.strip_prefix("http://").or_else(|| trimmed.strip_prefix("https://"));
    match host {
        Some(host) if !host.is_empty() && !host.contains(char::is_whitespace) => {
            Ok(trimmed.to_owned())
        }
        _ => Err(Failure::usage(format!("{server:?} is not the URL of a server"))
            .hint("write it as http://127.0.0.1:8080")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_needs_a_scheme_and_a_host() {
        assert_eq!(check_url("http://127.0.0.1:1/").unwrap(), "http://127.0.0.1:1");
        for bad in ["127.0.0.1:80", "ftp://x", "http://", "", "http://a b"] {
            assert_eq!(check_url(bad).unwrap_err().exit(), Exit::Usage, "{bad}");
        }
    }
}

//! The configuration file of a broker.
//!
//! ```toml
//! cell = "berlin"                     # the cell's name
//! broker = 1                          # this broker's number in it, from 1
//! data_dir = "/var/lib/sublet"        # log and ledger
//!
//! [peers]                             # how brokers of the cell talk to one another
//! listen = "0.0.0.0:7500"
//! address = "10.0.0.1:7500"           # where the others find it
//! authority = "ca.pem"                # the cell's own authority
//! certificate = "broker-1.pem"        # for the name broker-1.berlin.sublet
//! key = "broker-1.key"
//!
//! [api]
//! listen = "127.0.0.1:8080"           # plain HTTP: TLS is the reverse proxy's
//! url = "http://10.0.0.1:8080"        # where callers find it
//!
//! [ledger]                            # may be left out
//! key = "ledger.key"                  # signs checkpoints; default: ledger.key in data_dir
//!
//! [disk]                              # may be left out: these are the defaults
//! grants_above_percent = 10           # nothing new is granted with less of the disk free
//! reserve_mib = 64                    # kept back for ends; 0: nothing, and a full disk ends the broker
//!
//! [auth]                              # whose tokens are taken
//! issuer = "ops"
//! audience = "sublet"                 # default
//!
//! [auth.keys]                         # public keys (PEM, Ed25519) by their `kid`
//! ops-1 = "ops-1.pub.pem"
//! ```
//!
//! Paths are relative to the file's folder. Without the three files under `peers` a broker talks in
//! the clear, which it does on a loopback address only, and if `plain = true` says so.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sublet_broker::config::Peers;
use sublet_broker::raft::{Endpoint, Security, TlsFiles};
use sublet_broker::space;
use sublet_protocol::ids::{CellId, KeyId};

use crate::failure::{Failure, Outcome};
use crate::suggest::nearest;

/// The key that signs the ledger's checkpoints, in a broker's data folder.
pub(crate) const LEDGER_KEY: &str = "ledger.key";

/// The audience of tokens unless it is said.
const AUDIENCE: &str = "sublet";
/// Most that can be kept back: 64 GiB.
const RESERVE_MIB_MAX: u64 = 65_536;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cell: CellId,
    broker: u64,
    data_dir: PathBuf,
    peers: PeersTable,
    api: ApiTable,
    #[serde(default)]
    ledger: LedgerTable,
    auth: AuthTable,
    #[serde(default)]
    disk: DiskTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerTable {
    key: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeersTable {
    listen: SocketAddr,
    address: String,
    authority: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    #[serde(default)]
    plain: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApiTable {
    listen: SocketAddr,
    url: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DiskTable {
    grants_above_percent: u16,
    reserve_mib: u64,
}

impl Default for DiskTable {
    fn default() -> Self {
        Self { grants_above_percent: 10, reserve_mib: 64 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthTable {
    issuer: String,
    #[serde(default = "audience")]
    audience: String,
    keys: BTreeMap<KeyId, PathBuf>,
}

fn audience() -> String {
    AUDIENCE.to_owned()
}

/// A broker's settings, checked.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) cell: CellId,
    pub(super) broker: u64,
    pub(super) data_dir: PathBuf,
    pub(super) peers_listen: SocketAddr,
    pub(super) address: String,
    pub(super) security: Security,
    pub(super) api_listen: SocketAddr,
    pub(super) url: String,
    pub(super) issuer: String,
    pub(super) audience: String,
    /// Where the key that signs the ledger's checkpoints is, if this broker has it.
    pub(super) ledger_key: PathBuf,
    pub(super) keys: BTreeMap<KeyId, PathBuf>,
    pub(super) space: space::Settings,
}

impl Settings {
    /// Reads and checks `path`.
    pub(super) fn read(path: &Path) -> Outcome<Settings> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("cannot read the configuration {}", path.display()))
                .because(error)
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Settings::parse(&text, folder).map_err(|Wrong { what, hint }| {
            let wrong = format!("the configuration {} is wrong", path.display());
            let failure = Failure::usage(wrong).because(what);
            match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        })
    }

    fn parse(text: &str, folder: &Path) -> Result<Settings, Wrong> {
        let File { cell, broker, data_dir, peers, api, ledger, auth, disk } =
            toml::from_str(text).map_err(|error| Wrong::of(&error))?;
        if broker == 0 {
            return Err(Wrong::new("broker: brokers are numbered from 1"));
        }
        let is_address = peers.address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && port.parse().is_ok_and(|port: u16| port > 0)
        });
        if !is_address {
            return Err(Wrong::new("peers.address: write it as host:port"));
        }
        if !api.url.starts_with("http://") && !api.url.starts_with("https://") {
            return Err(Wrong::new("api.url: write it as http://host:port"));
        }
        if disk.grants_above_percent > 90 {
            return Err(Wrong::new("disk.grants_above_percent: between 0 and 90"));
        }
        if disk.reserve_mib > RESERVE_MIB_MAX {
            return Err(Wrong::new("disk.reserve_mib: at most 65536"));
        }
        if auth.keys.is_empty() {
            return Err(Wrong::new("auth.keys: without a key nobody can call the API"));
        }
        let from_here = |path: PathBuf| folder.join(path);
        let keys = auth.keys.into_iter().map(|(id, path)| (id, from_here(path)));
        let data_dir = from_here(data_dir);
        Ok(Settings {
            cell,
            broker,
            ledger_key: ledger.key.map_or_else(|| data_dir.join(LEDGER_KEY), from_here),
            data_dir,
            security: security(&peers, folder)?,
            peers_listen: peers.listen,
            address: peers.address,
            api_listen: api.listen,
            url: api.url.trim_end_matches('/').to_owned(),
            issuer: auth.issuer,
            audience: auth.audience,
            keys: keys.collect(),
            space: space::Settings {
                low_permille: disk.grants_above_percent * 10,
                reserve_bytes: disk.reserve_mib * 1024 * 1024,
                ..space::Settings::default()
            },
        })
    }

    /// How the broker talks to others.
    pub(super) fn peers(&self) -> Peers {
        let endpoint = Endpoint { peer: self.address.clone(), api: self.url.clone() };
        Peers { listen: self.peers_listen, endpoint, security: self.security.clone() }
    }

    /// Whether the data folder is that of a broker.
    pub(super) fn holds_a_broker(&self) -> bool {
        ["raft", "ledger"].iter().any(|name| self.data_dir.join(name).exists())
    }
}

fn security(peers: &PeersTable, folder: &Path) -> Result<Security, Wrong> {
    match (&peers.authority, &peers.certificate, &peers.key) {
        (Some(authority), Some(certificate), Some(key)) if !peers.plain => {
            Ok(Security::Tls(TlsFiles {
                authority: folder.join(authority),
                certificate: folder.join(certificate),
                key: folder.join(key),
            }))
        }
        (None, None, None) if peers.plain && peers.listen.ip().is_loopback() => Ok(Security::Plain),
        (None, None, None) if peers.plain => Err(Wrong::new(
            "peers.plain: brokers talk in the clear on a loopback address only; \
             peers.listen is not one",
        )),
        (None, None, None) => Err(Wrong::new(
            "peers: name authority, certificate and key; \
             on a loopback address plain = true does without",
        )),
        _ if peers.plain => {
            Err(Wrong::new("peers.plain: with plain = true no file of a certificate is used"))
        }
        _ => Err(Wrong::new("peers: authority, certificate and key go together")),
    }
}

/// What is wrong, and what may have been meant.
#[derive(Debug)]
struct Wrong {
    what: String,
    hint: Option<String>,
}

impl Wrong {
    fn new(what: &str) -> Wrong {
        Wrong { what: what.to_owned(), hint: None }
    }

    /// With line and column, as the reader of the file tells them.
    fn of(error: &toml::de::Error) -> Wrong {
        let what = error.to_string().trim_end().to_owned();
        // "unknown field `peer`, expected one of `cell`, `broker`, …"
        let mut words = error.message().split('`').skip(1).step_by(2);
        let hint = error.message().starts_with("unknown field").then(|| {
            let word = words.next().unwrap_or_default();
            nearest(word, words).first().map(|best| format!("did you mean {best}?"))
        });
        Wrong { what, hint: hint.flatten() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
cell = "berlin"
broker = 1
data_dir = "data"
[peers]
listen = "127.0.0.1:7500"
address = "127.0.0.1:7500"
plain = true
[api]
listen = "127.0.0.1:8080"
url = "http://127.0.0.1:8080/"
[auth]
issuer = "ops"
[auth.keys]
ops-1 = "ops-1.pub.pem"
"#;

    fn parse(text: &str) -> Result<Settings, Wrong> {
        Settings::parse(text, Path::new("/etc/sublet"))
    }

    #[test]
    fn a_good_file_is_taken_with_its_paths_beside_it() {
        let settings = parse(GOOD).unwrap();
        assert_eq!(settings.data_dir, Path::new("/etc/sublet/data"));
        assert_eq!(settings.security, Security::Plain);
        assert_eq!(settings.url, "http://127.0.0.1:8080");
        assert_eq!(settings.audience, "sublet");
        assert_eq!(settings.ledger_key, Path::new("/etc/sublet/data/ledger.key"));
        let named = parse(&format!("{GOOD}[ledger]\nkey = \"keys/l\"\n")).unwrap();
        assert_eq!(named.ledger_key, Path::new("/etc/sublet/keys/l"));
        assert_eq!(settings.space.low_permille, 100);
        assert_eq!(settings.space.reserve_bytes, 64 * 1024 * 1024);
        let disk = GOOD.replace("[auth]\n", "[disk]\nreserve_mib = 0\n[auth]\n");
        assert_eq!(parse(&disk).unwrap().space.reserve_bytes, 0);
        let tls = GOOD.replace(
            "plain = true",
            "authority = \"ca.pem\"\ncertificate = \"/keys/b.pem\"\nkey = \"b.key\"",
        );
        let Security::Tls(files) = parse(&tls).unwrap().security else { panic!() };
        assert_eq!(files.authority, Path::new("/etc/sublet/ca.pem"));
        assert_eq!(files.certificate, Path::new("/keys/b.pem"));
    }

    #[test]
    fn a_misspelt_key_is_told_with_its_line_and_what_was_meant() {
        let wrong = parse(&GOOD.replace("listen = \"127.0.0.1:7500\"", "listne = 7")).unwrap_err();
        assert!(wrong.what.contains("line 6, column 1"), "{}", wrong.what);
        assert_eq!(wrong.hint.as_deref(), Some("did you mean listen?"));
        let wrong = parse(&GOOD.replace("broker = 1", "brokr = 1")).unwrap_err();
        assert!(wrong.what.contains("line 3, column 1"), "{}", wrong.what);
        assert_eq!(wrong.hint.as_deref(), Some("did you mean broker?"));
    }

    #[test]
    fn what_does_not_fit_together_is_refused_by_name() {
        for (from, to, name) in [
            ("broker = 1", "broker = 0", "broker"),
            ("address = \"127.0.0.1:7500\"", "address = \"7500\"", "peers.address"),
            ("plain = true", "", "peers"),
            ("plain = true", "key = \"k\"", "peers"),
            ("plain = true", "plain = true\nkey = \"k\"", "peers.plain"),
            ("listen = \"127.0.0.1:7500\"", "listen = \"0.0.0.0:7500\"", "peers.plain"),
            ("http://127.0.0.1:8080/", "127.0.0.1:8080", "api.url"),
            ("ops-1 = \"ops-1.pub.pem\"", "", "auth.keys"),
            ("[auth]\n", "[disk]\nreserve_mib = 70000\n[auth]\n", "disk.reserve_mib"),
            ("[auth]\n", "[disk]\ngrants_above_percent = 91\n[auth]\n", "disk.grants"),
        ] {
            let wrong = parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(wrong.what.starts_with(name), "{to}: {}", wrong.what);
        }
    }
}

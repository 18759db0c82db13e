//! `sublet witness`: sign that ledgers only grow; what it does is in [`crate::witness`].

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::global::Context;
use crate::failure::{Exit, Failure, Outcome};
use crate::{output, witness};

/// Watch that ledgers only grow, and sign that they did (C2SP tlog-witness).
#[derive(Debug, Subcommand)]
pub(super) enum Witness {
    /// Make the key of a witness.
    Key(Key),
    /// Run a witness.
    Serve(Serve),
    /// Have a witness sign the newest checkpoint of the ledger.
    Ask(Ask),
}

/// Make the key of a witness; its public half is printed.
#[derive(Debug, Args)]
pub(super) struct Key {
    /// Its name, as a URL without the scheme: w1.example.net.
    #[arg(long)]
    name: String,
    /// The file it is written to. It must not be there.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

/// Run a witness. It is worth something where somebody else runs it than the brokers.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// The file with its key.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The public key of a ledger, or a file with it. May be given several times.
    #[arg(long = "ledger", value_name = "KEY", required = true)]
    ledgers: Vec<String>,
    /// The folder in which it keeps what it saw. Lost, it would sign any history: keep it.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Where it listens, in plain HTTP: TLS is the reverse proxy's.
    #[arg(long, default_value = "127.0.0.1:7600")]
    listen: SocketAddr,
}

/// Have a witness sign the newest checkpoint, and keep the checkpoint with both signatures: give it
/// to auditors, for `sublet-audit verify --against`.
#[derive(Debug, Args)]
pub(super) struct Ask {
    /// Where the witness is, as http://w1.example.net.
    #[arg(long)]
    url: String,
    /// Its public key, or a file with it.
    #[arg(long, value_name = "KEY")]
    witness: String,
    /// Where to write the checkpoint. Default: standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Witness {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<Exit> {
        match self {
            Witness::Key(Key { name, key }) => {
                let public = witness::make_key(&name, &key)?;
                output::print(&format!("{public}\n"))?;
                Ok(Exit::Done)
            }
            Witness::Serve(Serve { key, ledgers, dir, listen }) => {
                witness::serve(&witness::Settings { key, logs: ledgers, dir, listen })
            }
            Witness::Ask(Ask { url, witness, out }) => {
                let key = witness::public_key(&witness)?;
                let note = witness::ask(&context.client()?, &url, &key)?.to_string();
                match out {
                    None => output::print(&note)?,
                    Some(path) => std::fs::write(&path, note).map_err(|error| {
                        let what = format!("cannot write {}", path.display());
                        Failure::new(Exit::Failed, what).because(error)
                    })?,
                }
                Ok(Exit::Done)
            }
        }
    }
}

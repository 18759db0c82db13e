//! `sublet server`: one broker of a cell; what it does is in [`crate::server`].

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Exit, Outcome};

/// Run one broker of a cell.
///
/// A broker with an empty data folder waits until a cell takes it in (`sublet cell join`); the first
/// of a cell is founded by `sublet cell init`.
#[derive(Debug, Args)]
pub(super) struct Server {
    /// Its configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

impl Server {
    /// Runs until it is told to stop.
    pub(super) fn run(self) -> Outcome<Exit> {
        crate::server::run(&self.config)
    }
}

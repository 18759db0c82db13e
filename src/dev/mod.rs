//! `sublet dev`: a whole cell in one process, for a try and for the tests.
//!
//! The broker with real consensus log and ledger, the API, the in-process link, and on the other
//! side of it three clusters of simulated GPUs with the real agent's session. Load comes from the
//! generator or from a public trace. Only GPUs, owners and guests without a workload are simulated;
//! a guest with one (`sublet lease run`) is a real process. With `--nvml` the GPUs are this machine's.

mod agents;
mod folder;
mod live;
mod load;
mod owners;
mod pace;
mod real;
mod setup;
mod site;
mod summary;
mod trace;
mod world;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use sublet_protocol::units::{Permille, Seconds};

use crate::failure::{Exit, Failure, Outcome};

/// What `sublet dev` is asked for.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Where the API listens.
    pub(crate) listen: SocketAddr,
    /// Where state is kept; a temporary folder if not given.
    pub(crate) data_dir: Option<PathBuf>,
    /// Seconds of lease time in one second.
    pub(crate) speed: NonZeroU32,
    /// What the load is drawn from.
    pub(crate) seed: u64,
    /// When it ends by itself, in real time.
    pub(crate) duration: Option<Seconds>,
    /// Whether standard output is for one line of JSON at the end.
    pub(crate) is_json: bool,
    /// The trace that drives the load instead of the generator.
    pub(crate) trace: Option<Trace>,
    /// Whether anybody asks for GPUs by themselves.
    pub(crate) has_load: bool,
    /// The driver of this machine's GPUs, which then take the place of simulated ones.
    pub(crate) nvml: Option<Nvml>,
}

/// The driver of this machine's GPUs.
#[derive(Debug, Clone)]
pub(crate) struct Nvml {
    /// Its library, if not the one that the system finds.
    pub(crate) library: Option<PathBuf>,
}

/// A trace to drive the load with.
#[derive(Debug)]
pub(crate) struct Trace {
    /// The folder with its files.
    pub(crate) data: PathBuf,
    /// How much of the lendable GPU time its jobs ask for.
    pub(crate) rho: Permille,
}

/// Runs until it is told to stop, or its time is over.
pub(crate) fn run(settings: &Settings) -> Outcome<Exit> {
    // openraft warns of the usual course of an election.
    crate::logging::init("warn,openraft=error");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Failure::new(Exit::Failed, "cannot start worker threads").because(error)
    })?;
    let result = runtime.block_on(world::run(settings));
    // Tasks that still wind down must not hold up the end.
    runtime.shutdown_background();
    result
}

//! `sublet-sim fit`: makes the generator's tables from the traces.

use std::path::PathBuf;

use clap::ValueEnum;
use sublet_simulations::generator::fit;
use sublet_simulations::traces;

use super::{Failure, print};

/// Fit the generator's shapes to a trace and print the table that is kept in the repository.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Which trace.
    #[arg(long)]
    trace: Trace,
    /// The folder that holds its files.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Trace {
    Philly,
    Helios,
    Openb,
}

/// Prints the table.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let folder = arguments.data.as_path();
    let table = match arguments.trace {
        Trace::Philly => fit::philly(folder),
        Trace::Helios => fit::helios(folder),
        Trace::Openb => traces::openb::pod_list(folder).and_then(|list| fit::openb(&list)),
    };
    let table = table.map_err(|error| Failure::Input(error.into()))?;
    print(&table.to_string())
}

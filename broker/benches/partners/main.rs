//! Sublet beside others that people would use in its place: etcd, PostgreSQL, and the bare disk.
//!
//! `cargo bench -p sublet-broker --bench partners` measures what is quick, `-- b6` one figure. The
//! partners run in the same run on the same disk, in turns. A partner that is not installed ends the
//! run with an error, unless it is named: `-- --without etcd,postgres`. `tests/bench` installs them.
//!
//! Prints, asserts nothing. All processes listen on loopback only, on ports that are free, and keep
//! their files in a folder below the build folder, which is removed at the end.
#![allow(
    clippy::print_stdout,
    clippy::as_conversions,
    reason = "a measurement is told on the terminal, in floats"
)]

mod admissions;
mod cell;
mod commits;
mod etcd;
mod floor;
mod grants;
mod load;
mod node;
mod postgres;
mod processes;
mod recovery;
mod report;

use anyhow::{Context, bail};

/// What to do, from the command line.
#[derive(Debug, Default)]
struct Asked {
    figures: Vec<String>,
    without: Vec<String>,
    rounds: usize,
    records: u64,
}

/// The figures that can be asked for.
const FIGURES: [&str; 5] = ["b6", "b7", "b11", "b14", LONG];
/// Runs only if it is named: today it is broken off after three minutes.
const LONG: &str = "b14-large";
/// Partners that can be left out.
const PARTNERS: [&str; 2] = ["etcd", "postgres"];
/// Rounds of a comparison unless the command line says otherwise. The median counts.
const ROUNDS: usize = 5;

impl Asked {
    fn parse(arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut asked = Self { rounds: ROUNDS, records: recovery::RECORDS, ..Self::default() };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // What `cargo bench` adds.
                "--bench" => {}
                "--without" => {
                    let named = arguments.next().context("--without names partners")?;
                    asked.without.extend(named.split(',').map(str::to_owned));
                }
                "--rounds" => {
                    let count = arguments.next().context("--rounds has a number")?;
                    asked.rounds = count.parse().context("--rounds has a number")?;
                }
                "--records" => {
                    let count = arguments.next().context("--records has a number")?;
                    asked.records = count.parse().context("--records has a number")?;
                }
                figure if FIGURES.contains(&figure) => asked.figures.push(figure.to_owned()),
                other => bail!("{other}: there are {FIGURES:?}, --without, --rounds, --records"),
            }
        }
        if let Some(unknown) = asked.without.iter().find(|name| !PARTNERS.contains(&&***name)) {
            bail!("--without {unknown}: the partners are {PARTNERS:?}");
        }
        if asked.figures.is_empty() {
            let all = FIGURES.iter().filter(|figure| **figure != LONG);
            asked.figures = all.map(|figure| (*figure).to_owned()).collect();
        }
        Ok(asked)
    }

    fn leaves_out(&self, partner: &str) -> bool {
        self.without.iter().any(|name| name == partner)
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if_eq(node::WORD).is_some() {
        return node::run(arguments).await;
    }
    if arguments.next_if_eq(recovery::WORD).is_some() {
        return recovery::run(arguments).await;
    }
    if arguments.next_if_eq(cell::WORD).is_some() {
        return cell::run(arguments).await;
    }
    let asked = Asked::parse(arguments)?;
    report::machine();
    for figure in &asked.figures {
        match figure.as_str() {
            "b6" => commits::compare(&asked).await.context("b6")?,
            "b7" => grants::compare(&asked).await.context("b7")?,
            "b11" => recovery::measure(asked.records).await.context("b11")?,
            "b14" => admissions::measure(false).await.context("b14")?,
            "b14-large" => admissions::measure(true).await.context("b14-large")?,
            other => bail!("{other} is no figure"),
        }
    }
    Ok(())
}

//! `sublet cell`: the brokers of a cell.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use sublet_protocol::api::{BrokerAdd, BrokerRole, CellView, DiskRoom, DiskView};
use sublet_protocol::units::Seconds;

use super::global::Context;
use crate::client::Client;
use crate::failure::{Exit, Failure, Outcome};
use crate::output::{self, Column, Table};
use crate::units::parse_seconds;

/// Between two questions whether a broker has caught up.
const PAUSE: Duration = Duration::from_secs(1);

/// Found a cell; show, add, replace and remove its brokers.
#[derive(Debug, Subcommand)]
pub(super) enum Cell {
    /// Found a cell of the one broker that a configuration describes.
    Init(Init),
    /// Show who leads, who lags behind, versions and roots of the ledgers.
    Status,
    /// Take a running broker in: it copies the log, then it votes.
    Join(Join),
    /// Take a broker in and another one out. The new one has a number of its own.
    Replace(Replace),
    /// Take a broker out. Do not use its number again.
    Remove(Remove),
    /// Let the cell use what needs a feature level that every broker can do. There is no way back.
    Raise(Raise),
}

/// Found a cell.
#[derive(Debug, Args)]
pub(super) struct Init {
    /// The configuration of its first broker.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Take a broker in.
#[derive(Debug, Args)]
pub(super) struct Join {
    /// Its number, as in its configuration, from 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    id: u64,
    /// Where other brokers find it, as host:port.
    #[arg(long, value_name = "ADDRESS")]
    peer: String,
    /// The URL of its API.
    #[arg(long, value_name = "URL", default_value = "")]
    api: String,
    /// How long it may take to catch up.
    #[arg(long, value_parser = parse_seconds, default_value = "10min", value_name = "SPAN")]
    timeout: Seconds,
}

/// Take a broker in for another one.
#[derive(Debug, Args)]
pub(super) struct Replace {
    /// The number of the one that goes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    old: u64,
    #[command(flatten)]
    new: Join,
}

/// Take a broker out.
#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Its number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    id: u64,
}

/// Let the cell use what needs a feature level.
#[derive(Debug, Args)]
pub(super) struct Raise {
    /// The level. Default: the highest that every broker can do.
    #[arg(long, value_name = "N")]
    level: Option<u16>,
}

impl Cell {
    /// Does it.
    pub(super) fn run(self, context: &Context) -> Outcome<Exit> {
        let view = match self {
            Cell::Init(Init { config }) => return crate::server::init(&config),
            Cell::Status => context.client()?.cell()?,
            Cell::Join(join) => join.run(&context.client()?)?,
            Cell::Replace(Replace { old, new }) => {
                let client = context.client()?;
                if new.id == old {
                    let what = "the new broker needs a number of its own";
                    return Err(Failure::usage(what)
                        .because("a number stands for one disk and the votes written on it"));
                }
                // Before anything is done: a wrong number would leave both in.
                let view = client.cell()?;
                if !view.brokers.iter().any(|broker| broker.id == old) {
                    let there: Vec<u64> = view.brokers.iter().map(|broker| broker.id).collect();
                    let what = format!("broker {old} is not one of the cell; nothing was changed");
                    return Err(Failure::new(Exit::NotFound, what)
                        .because(format!("the cell has brokers {there:?}")));
                }
                new.run(&client)?;
                client.remove_broker(old)?
            }
            Cell::Remove(Remove { id }) => context.client()?.remove_broker(id)?,
            Cell::Raise(raise) => raise.run(&context.client()?)?,
        };
        show(context, &view)?;
        Ok(Exit::Done)
    }
}

impl Raise {
    fn run(&self, client: &Client) -> Outcome<CellView> {
        if let Some(level) = self.level {
            return client.raise_level(level);
        }
        let view = client.cell()?;
        let silent = view.brokers.iter().find(|broker| broker.feature_level.is_none());
        if let Some(broker) = silent {
            let what = format!("broker {} does not say what it can do", broker.id);
            return Err(Failure::new(Exit::Temporary, what)
                .because("BROKER_SILENT: the cell is raised only if every broker can follow")
                .hint("start it, or take it out: sublet cell remove"));
        }
        let can = view.brokers.iter().filter_map(|broker| broker.feature_level).min();
        match can {
            Some(level) if level > view.feature_level => client.raise_level(level),
            _ => {
                output::note(&format!(
                    "nothing to raise: the cell is at feature level {}, the highest that every \
                     broker can do",
                    view.feature_level
                ));
                Ok(view)
            }
        }
    }
}

impl Join {
    /// Asks until the broker votes, and says what it waits for.
    fn run(&self, client: &Client) -> Outcome<CellView> {
        let give_up = Instant::now() + Duration::from_secs(self.timeout.get());
        let broker = BrokerAdd { id: self.id, peer: self.peer.clone(), api: self.api.clone() };
        let mut told = String::new();
        loop {
            let failure = match client.add_broker(&broker) {
                Ok(view) => return Ok(view),
                Err(failure) if failure.exit() == Exit::Temporary => failure,
                Err(failure) => return Err(failure),
            };
            if Instant::now() >= give_up {
                let failure = failure.ending(Exit::TimedOut).because("the time for it is over");
                return Err(self.left(client, failure));
            }
            let waits_for = self.waits_for(&failure);
            if waits_for != told {
                output::note(&waits_for);
                told = waits_for;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn waits_for(&self, failure: &Failure) -> String {
        let Join { id, peer, .. } = self;
        if failure.has_code("BROKER_UNREACHED") {
            format!("waiting for broker {id} to answer at {peer}")
        } else if failure.has_code("BROKER_BEHIND") {
            format!("waiting for broker {id}: it copies the log, and has no vote yet")
        } else if failure.has_code("CHANGE_UNDER_WAY") {
            "waiting for another change of the members to end".to_owned()
        } else {
            let first = failure.to_string();
            format!("waiting for the cell: {}", first.lines().next().unwrap_or_default())
        }
    }

    /// Says so if the broker is in already, without a vote.
    fn left(&self, client: &Client, failure: Failure) -> Failure {
        let is_left = client.cell().is_ok_and(|view| {
            view.brokers.iter().any(|b| b.id == self.id && b.role == BrokerRole::Learner)
        });
        match is_left {
            true => failure
                .because(format!("broker {} is in the cell, without a vote", self.id))
                .hint(format!("take it out: sublet cell remove --id {}", self.id))
                .hint("or go on: the same command again"),
            false => failure.because("nothing was changed"),
        }
    }
}

fn show(context: &Context, view: &CellView) -> Outcome<()> {
    let columns = [
        Column::number("BROKER"),
        Column::text("ROLE"),
        Column::text("REACHED"),
        Column::number("LAG"),
        Column::number("APPLIED"),
        Column::number("RECORDS"),
        Column::text("ROOT"),
        Column::text("DISK"),
        Column::text("VERSION"),
        Column::number("LEVEL"),
        Column::text("PEER"),
        Column::text("API").wide(),
    ];
    let mut table = Table::new(&columns, "no cell has taken this broker in yet");
    let number = |value: Option<u64>| value.map_or_else(|| "?".to_owned(), |v| v.to_string());
    for broker in &view.brokers {
        let role = match broker.role {
            BrokerRole::Leader => "leader",
            BrokerRole::Voter => "voter",
            BrokerRole::Learner => "learner",
        };
        table.row([
            broker.id.to_string(),
            role.to_owned(),
            if broker.reached { "yes" } else { "no" }.to_owned(),
            number(broker.lag),
            number(broker.applied),
            number(broker.records),
            broker.root.as_deref().map_or("?", |root| root.get(..16).unwrap_or(root)).to_owned(),
            broker.disk.map_or_else(|| "?".to_owned(), disk),
            broker.version.clone().unwrap_or_else(|| "?".to_owned()),
            number(broker.feature_level.map(u64::from)),
            broker.peer.clone(),
            broker.api.clone(),
        ]);
    }
    let cell = view.cell.map_or_else(|| "not founded".to_owned(), |cell| cell.to_string());
    let leader = view.leader.map_or_else(|| "nobody".to_owned(), |id| format!("broker {id}"));
    table.footer(format!(
        "cell {cell} at feature level {}, as broker {} sees it: {leader} leads in term {}",
        view.feature_level, view.broker, view.term
    ));
    context.printer.list(view, &table)
}

/// What a disk has room for, and how much of it is free.
fn disk(DiskView { room, free_bytes, total_bytes }: DiskView) -> String {
    let percent = u128::from(free_bytes) * 100 / u128::from(total_bytes.max(1));
    let room = match room {
        DiskRoom::Full => "FULL",
        DiskRoom::Low => "low",
        DiskRoom::Plenty => "ok",
    };
    format!("{room}, {percent} % free")
}

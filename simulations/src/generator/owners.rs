//! When the owners' own work is on their nodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sublet_protocol::units::{Permille, Seconds};

use super::profile::EVERYONE;
use super::random::Random;
use super::shape::Quantiles;
use super::table::{Table, TableError};

const HELIOS: &str = include_str!("tables/helios.csv");
/// Owners' streams of chance lie far from the tenants'.
const FIRST_STREAM: u64 = 1 << 32;
/// Shapes by the quarter of the day in which a turn begins.
pub(crate) const QUARTERS: usize = 4;
/// Names of the shapes, by quarter.
pub(crate) const BUSY_SHAPES: [&str; QUARTERS] =
    ["busy_minutes_0_6", "busy_minutes_6_12", "busy_minutes_12_18", "busy_minutes_18_24"];
/// Names of the shapes, by quarter.
pub(crate) const IDLE_SHAPES: [&str; QUARTERS] =
    ["idle_minutes_0_6", "idle_minutes_6_12", "idle_minutes_12_18", "idle_minutes_18_24"];

/// Whether the owner's work is on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerState {
    /// All GPUs of the node are free to lend.
    Idle,
    /// The owner wants the node.
    Busy,
}

/// From when on a node is in which state, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Which node, from 0.
    pub node: usize,
    /// From when, after the start of the story.
    pub at: Seconds,
    /// The state.
    pub state: OwnerState,
    /// How long it lasts.
    pub lasts: Seconds,
}

/// How long owners' work stays and stays away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerProfile {
    /// Minutes of work, by the quarter of the day in which it begins.
    pub busy_minutes: [Quantiles; QUARTERS],
    /// Minutes without work, by the quarter of the day in which they begin.
    pub idle_minutes: [Quantiles; QUARTERS],
    /// How many nodes are idle at the start.
    pub idle: Permille,
    /// The hour at second 0.
    pub first_hour: u8,
}

impl OwnerProfile {
    /// Nodes of 8 GPUs of the Helios "Earth" cluster in May 2020.
    pub fn helios() -> OwnerProfile {
        let table = Table::parse(HELIOS).expect("the table in the repository is read by a test");
        OwnerProfile::from_table(&table).expect("the table in the repository is read by a test")
    }

    /// For a demonstration: as Helios, in the late morning, with no turn shorter than ten or longer than
    /// ninety minutes, so that an hour shows owners coming and going.
    pub fn demo() -> OwnerProfile {
        const LEAST_MINUTES: u64 = 10;
        const MOST_MINUTES: u64 = 90;
        let bounded = |quantiles: &Quantiles| quantiles.capped(MOST_MINUTES).raised(LEAST_MINUTES);
        let helios = OwnerProfile::helios();
        OwnerProfile {
            busy_minutes: helios.busy_minutes.each_ref().map(bounded),
            idle_minutes: helios.idle_minutes.each_ref().map(bounded),
            idle: Permille::new(600),
            first_hour: 10,
        }
    }

    /// Reads the table that [`fit::helios`](super::fit::helios) makes.
    pub fn from_table(table: &Table) -> Result<OwnerProfile, TableError> {
        let quarters =
            |shapes: [&'static str; QUARTERS]| -> Result<[Quantiles; QUARTERS], TableError> {
                let [a, b, c, d] = shapes.map(|shape| table.quantiles(EVERYONE, shape));
                Ok([a?, b?, c?, d?])
            };
        Ok(OwnerProfile {
            busy_minutes: quarters(BUSY_SHAPES)?,
            idle_minutes: quarters(IDLE_SHAPES)?,
            idle: table.permille(EVERYONE, "idle_permille", 0)?,
            first_hour: 0,
        })
    }
}

/// An endless sequence of turns of `nodes` nodes by time, the same for the same seed and profile.
#[derive(Debug, Clone)]
pub struct Owners {
    profile: OwnerProfile,
    randoms: Vec<Random>,
    /// When each node turns, and into what.
    next: BinaryHeap<Reverse<(Seconds, usize, bool)>>,
}

impl Owners {
    /// The turns of `nodes` nodes for `seed`; every node has its first at second 0.
    pub fn new(seed: u64, profile: OwnerProfile, nodes: usize) -> Self {
        let randoms = (FIRST_STREAM..).map(|stream| Random::new(seed, stream));
        let mut randoms: Vec<Random> = randoms.take(nodes).collect();
        let starts_idle = |random: &mut Random| random.chance(u64::from(profile.idle.get()), 1_000);
        let first = randoms.iter_mut().enumerate();
        let next = first
            .map(|(node, random)| Reverse((Seconds::ZERO, node, starts_idle(random))))
            .collect();
        Self { profile, randoms, next }
    }
}

impl Iterator for Owners {
    type Item = Turn;

    fn next(&mut self) -> Option<Turn> {
        let Reverse((at, node, is_idle)) = self.next.pop()?;
        let hour = (at.get() / 3_600 + u64::from(self.profile.first_hour)) % 24;
        let quarter = usize::try_from(hour / 6).expect("a quarter of a day");
        let (state, minutes) = match is_idle {
            true => (OwnerState::Idle, &self.profile.idle_minutes[quarter]),
            false => (OwnerState::Busy, &self.profile.busy_minutes[quarter]),
        };
        let random = &mut self.randoms[node];
        let seconds = minutes.draw(random).max(1) * 60;
        // The first turn of a node is met somewhere in its course.
        let seconds = if at == Seconds::ZERO { 1 + random.below(seconds) } else { seconds };
        let lasts = Seconds::new(seconds);
        self.next.push(Reverse((at.saturating_add(lasts), node, !is_idle)));
        Some(Turn { node, at, state, lasts })
    }
}

//! One owner's GPUs: who uses each, and where the owner's next job fits.

use std::collections::BTreeSet;

use sublet_protocol::ids::LeaseId;
use sublet_protocol::units::Seconds;

use crate::replay::GPUS_PER_NODE;

/// Who uses a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gpu {
    /// The owner's job.
    Own,
    /// Nobody; not offered yet.
    Idle,
    /// Nobody; offered.
    Offered,
    /// A guest.
    Lent(LeaseId),
    /// A guest that is being stopped, for the owner's job.
    Clearing(LeaseId),
}

/// Where an owner's job will run: places of GPUs, and guests that must go first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Berth {
    pub(super) places: Vec<usize>,
    pub(super) guests: BTreeSet<LeaseId>,
}

/// One owner's nodes of [`GPUS_PER_NODE`] GPUs.
#[derive(Debug)]
pub(super) struct Home {
    gpus: Vec<Gpu>,
    /// Since when the owner has had no job on it.
    idle_since: Vec<Seconds>,
}

fn per_node() -> usize {
    usize::try_from(GPUS_PER_NODE).expect("a small number")
}

impl Home {
    pub(super) fn new(nodes: u32) -> Home {
        let gpus = usize::try_from(nodes).expect("nodes fit memory") * per_node();
        Home { gpus: vec![Gpu::Idle; gpus], idle_since: vec![Seconds::ZERO; gpus] }
    }

    pub(super) fn gpu(&self, place: usize) -> Gpu {
        self.gpus[place]
    }

    pub(super) fn set(&mut self, place: usize, gpu: Gpu) {
        self.gpus[place] = gpu;
    }

    pub(super) fn len(&self) -> usize {
        self.gpus.len()
    }

    pub(super) fn idle_since(&self, place: usize) -> Seconds {
        self.idle_since[place]
    }

    /// The owner's job is over on this GPU.
    pub(super) fn vacate(&mut self, place: usize, now: Seconds) {
        self.gpus[place] = Gpu::Idle;
        self.idle_since[place] = now;
    }

    /// Room for the owner's job of so many GPUs, as the static baseline finds it: up to one node's worth
    /// where the fewest stay free, more as whole nodes and a best fit of the rest. Guests are in the way
    /// only where there is no room without them.
    pub(super) fn berth(&self, gpus: u32) -> Option<Berth> {
        let gpus = usize::try_from(gpus).ok()?;
        let (whole, rest) = match gpus <= per_node() {
            true => (0, gpus),
            false => (gpus / per_node(), gpus % per_node()),
        };
        let nodes = self.gpus.len() / per_node();
        let counts: Vec<(usize, usize)> = (0..nodes).map(|node| self.counts(node)).collect();
        let mut emptiest: Vec<usize> =
            (0..nodes).filter(|node| counts[*node].0 + counts[*node].1 == per_node()).collect();
        emptiest.sort_by_key(|node| (counts[*node].1, *node));
        let mut chosen: Vec<(usize, usize)> =
            emptiest.into_iter().take(whole).map(|node| (node, per_node())).collect();
        if chosen.len() < whole {
            return None;
        }
        if rest > 0 {
            let is_chosen = |node: &usize| chosen.iter().any(|(other, _)| other == node);
            let fits = (0..nodes).filter(|node| {
                let (free, lent) = counts[*node];
                free + lent >= rest && !is_chosen(node)
            });
            let best = fits.min_by_key(|node| {
                let (free, _) = counts[*node];
                (rest.saturating_sub(free), free, *node)
            })?;
            chosen.push((best, rest));
        }
        Some(self.take(&chosen))
    }

    /// Free and lent GPUs of a node.
    fn counts(&self, node: usize) -> (usize, usize) {
        let gpus = &self.gpus[node * per_node()..(node + 1) * per_node()];
        let free = gpus.iter().filter(|gpu| matches!(gpu, Gpu::Idle | Gpu::Offered)).count();
        (free, gpus.iter().filter(|gpu| matches!(gpu, Gpu::Lent(_))).count())
    }

    /// The chosen nodes' GPUs: those that nobody was promised first, guests' last and whole guests
    /// together.
    fn take(&self, chosen: &[(usize, usize)]) -> Berth {
        let mut berth = Berth { places: Vec::new(), guests: BTreeSet::new() };
        for (node, count) in chosen {
            let mut places: Vec<usize> = (node * per_node()..(node + 1) * per_node()).collect();
            places.sort_by_key(|place| match self.gpus[*place] {
                Gpu::Idle => (0, None, *place),
                Gpu::Offered => (1, None, *place),
                Gpu::Lent(lease) => (2, Some(lease), *place),
                Gpu::Own | Gpu::Clearing(_) => (3, None, *place),
            });
            places.truncate(*count);
            berth.guests.extend(places.iter().filter_map(|place| match self.gpus[*place] {
                Gpu::Lent(lease) => Some(lease),
                Gpu::Own | Gpu::Idle | Gpu::Offered | Gpu::Clearing(_) => None,
            }));
            berth.places.extend(places);
        }
        berth
    }
}

#[cfg(test)]
mod tests {
    use sublet_protocol::ids::RequestId;

    use super::*;

    fn lease(number: u128) -> LeaseId {
        LeaseId::derive(RequestId::new(number), 1)
    }

    #[test]
    fn an_owners_job_takes_the_fullest_node_without_guests_first() {
        let mut home = Home::new(3);
        for place in 0..6 {
            home.set(place, Gpu::Own);
        }
        for place in 8..14 {
            home.set(place, Gpu::Lent(lease(1)));
        }
        let two = home.berth(2).unwrap();
        assert_eq!((two.places, two.guests.len()), (vec![6, 7], 0));
        // Three fit on the third node without asking anyone to go.
        assert_eq!(home.berth(3).unwrap().places, [16, 17, 18]);
    }

    #[test]
    fn guests_go_where_there_is_no_room_without_them_and_nobody_elses() {
        let mut home = Home::new(2);
        for place in 0..7 {
            home.set(place, Gpu::Own);
        }
        for place in 8..11 {
            home.set(place, Gpu::Lent(lease(1)));
        }
        for place in 11..14 {
            home.set(place, Gpu::Lent(lease(2)));
        }
        let three = home.berth(3).unwrap();
        assert_eq!(three.places.len(), 3);
        assert_eq!(three.guests.len(), 1);
        let mut eight = home.berth(8).unwrap();
        eight.places.sort_unstable();
        assert_eq!((eight.places, eight.guests.len()), ((8..16).collect(), 2));
        assert_eq!(home.berth(9).unwrap().places.len(), 9);
        assert_eq!(home.berth(10), None);
    }
}

//! Whose end gives a request what it lacks with the least harm.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use sublet_protocol::commands::PlanMember;
use sublet_protocol::ids::{ClusterId, GpuModel, RequestId};
use sublet_protocol::units::GpuMilli;

use super::fewest::{Short, fewest};
use super::lent::Lent;
use super::{Choice, Harm, Hindrance, Room, give_back};
use crate::fit;
use crate::matching::endable::{Site, Sites, Victim, Victims, site};
use crate::matching::place::{self, fitting};
use crate::matching::problem::Problem;
use crate::matching::reserve::Claim;
use crate::matching::solve::{Spent, want};
use crate::mutation::Mutation;
use crate::preemption::{self, Place};
use crate::quota::{Charges, Want};
use crate::state::Request;

/// The victims with the least harm, and what the request will take of quotas then.
pub(super) fn choose(
    problem: &Problem<'_>,
    spent: &Spent,
    id: RequestId,
    request: &Request,
) -> Result<(Want, Choice), Hindrance> {
    let sites = problem.endable.sites(&problem.closed, request).ok_or(Hindrance::Unsure)?;
    choose_of(sites, (problem, spent), id, request)
}

/// As [`choose`], of these.
pub(super) fn choose_of(
    sites: Rc<Sites>,
    (problem, spent): (&Problem<'_>, &Spent),
    id: RequestId,
    request: &Request,
) -> Result<(Want, Choice), Hindrance> {
    if sites.places.is_empty() {
        return Err(Hindrance::Victims);
    }
    let mut search = Search::of((problem, spent), sites, id, request);
    for reach in [Reach::Cluster, Reach::Everywhere] {
        search.look(reach);
        // What the budget of one cluster puts off is waited for, not taken from others.
        if search.best.is_some() || search.hindrance >= Hindrance::Budget {
            break;
        }
    }
    match search.best {
        Some((_, want, choice)) => Ok((want, choice)),
        None if search.is_unsure.get() => Err(Hindrance::Unsure),
        None => Err(search.hindrance),
    }
}

/// From where the victims of one request may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// From any one cluster.
    Cluster,
    /// From several, if no single one gives back enough.
    Everywhere,
}

/// How much of which model would be granted.
type Amount = (GpuModel, GpuMilli);

struct Search<'s, 'a> {
    problem: &'s Problem<'a>,
    spent: &'s Spent,
    id: RequestId,
    request: &'s Request,
    /// Slices that are asked for.
    count: usize,
    sites: Rc<Sites>,
    rooms: Rooms,
    /// Quotas once all that were preempted are gone.
    after_ends: OnceCell<Charges>,
    lent: OnceCell<Lent<'a>>,
    best: Option<(Harm, Want, Choice)>,
    hindrance: Hindrance,
    /// Whether this plan has looked at enough leases for quota.
    is_unsure: Cell<bool>,
}

impl<'s, 'a> Search<'s, 'a> {
    fn of(
        (problem, spent): (&'s Problem<'a>, &'s Spent),
        sites: Rc<Sites>,
        id: RequestId,
        request: &'s Request,
    ) -> Search<'s, 'a> {
        Search {
            rooms: Rooms::of(problem, &sites, id, request),
            problem,
            spent,
            id,
            request,
            count: usize::try_from(request.spec.count).unwrap_or(usize::MAX),
            sites,
            after_ends: OnceCell::new(),
            lent: OnceCell::new(),
            best: None,
            hindrance: Hindrance::Victims,
            is_unsure: Cell::new(false),
        }
    }

    fn after_ends(&self) -> &Charges {
        self.after_ends.get_or_init(|| after_ends_of(self.problem, self.spent))
    }

    fn lent(&self) -> &Lent<'a> {
        let lent =
            || Lent::of(self.problem, self.request, self.spent, || self.after_ends().clone());
        self.lent.get_or_init(lent)
    }

    /// Looks where only quota is missing, and at each site where slices are.
    fn look(&mut self, reach: Reach) {
        for amount in self.rooms.amounts.clone() {
            self.for_quota(amount, reach);
        }
        let sites = Rc::clone(&self.sites);
        for (site, victims) in &sites.at {
            self.at_site(*site, victims, reach);
        }
    }

    /// Victims where slices are missing, and perhaps quota.
    fn at_site(&mut self, site: Site, victims: &Victims, reach: Reach) {
        let (cluster, model, gpu, _, _) = site;
        let Some(total) = gpu.checked_mul(u64::from(self.request.spec.count)) else { return };
        let room = self.rooms.free.get(&site).map_or(0, |room| room.free.len());
        if room >= self.count || room.saturating_add(victims.slices) < self.count {
            return;
        }
        let state = self.problem.view.state;
        let Some(price) = fit::price(state, self.request, cluster, model) else { return };
        let mut room = self.rooms.free.get(&site).cloned().unwrap_or_default();
        let barred = victims.in_order.iter().filter(|one| !self.may_free(one));
        room.barred = barred.map(|one| (one.place.lease, one.slices.len())).collect();
        let willing = victims.in_order.iter().filter(|one| self.may_free(one));
        let is_fair = |victims: &[Victim]| self.lent().is_fair(victims, total);
        let found = match self.short((model, total)) {
            None if reach == Reach::Everywhere => return,
            None => fewest(room, willing, self.count, None, &is_fair),
            Some(short) => {
                let mut all: BTreeMap<Place, Victim> =
                    willing.map(|one| (one.place, one.clone())).collect();
                let Some(holders) = self.holders((model, total), &short) else { return };
                for (at, holder) in holders {
                    if reach == Reach::Everywhere || at == cluster {
                        all.entry(holder.place).or_insert(holder);
                    }
                }
                fewest(room, all.values(), self.count, Some(short), &is_fair)
            }
        };
        let Some(choice) = self.found(found) else { return };
        self.propose(want(self.request, model, total, price), choice);
    }

    /// What came of a look, if it is better than what is known.
    fn found(&mut self, (choice, is_over_lent): (Option<Choice>, bool)) -> Option<Choice> {
        if is_over_lent && choice.is_none() {
            self.note(Hindrance::Lent);
        }
        choice.filter(|choice| self.is_better(choice))
    }

    /// What quotas lack for a grant once all that were preempted are gone; nothing if they do not.
    fn short(&self, (model, total): Amount) -> Option<Short<'a>> {
        let (tree, whose) = (&self.problem.view.state.tree, (self.request.tenant, model));
        let lacks = |charges: &Charges| charges.lack(tree, whose, total) > 0;
        let is_short = lacks(&self.spent.charges) && lacks(self.after_ends());
        is_short.then(|| Short::of(tree, self.after_ends(), whose, total))
    }

    /// Victims for quota alone: there are slices for the request, and it gets those that a grant would.
    fn for_quota(&mut self, (model, total): Amount, reach: Reach) {
        let Some(short) = self.short((model, total)) else { return };
        let Some(holders) = self.holders((model, total), &short) else { return };
        let clusters: BTreeSet<ClusterId> = holders.iter().map(|(cluster, _)| *cluster).collect();
        let clusters: Vec<Option<ClusterId>> = match reach {
            Reach::Cluster => clusters.into_iter().map(Some).collect(),
            Reach::Everywhere => vec![None],
        };
        for cluster in clusters {
            let here = holders.iter().filter(|(at, _)| cluster.is_none_or(|only| only == *at));
            let victims = here.map(|(_, victim)| victim);
            let is_fair = |victims: &[Victim]| self.lent().is_fair(victims, total);
            let found = fewest(Room::default(), victims, 0, Some(short.clone()), &is_fair);
            let Some(mut choice) = self.found(found) else { continue };
            // Where it stands is chosen as for a grant, on quotas as they will be.
            let after = Spent::of(self.charges_after(&choice));
            let pick = place::pick(self.problem, &after, self.id, self.request);
            let Some(pick) = pick.filter(|pick| (pick.model, pick.total) == (model, total)) else {
                continue;
            };
            choice.members = pick.members(&self.problem.nodes);
            let want = want(self.request, model, total, pick.price);
            choice.pick = Some(pick);
            self.propose(want, choice);
        }
    }

    /// Who may be ended for quota, and could be fair; nobody if all of them together give back too little.
    fn holders(
        &self,
        (model, total): Amount,
        short: &Short<'_>,
    ) -> Option<Vec<(ClusterId, Victim)>> {
        let state = self.problem.view.state;
        let top = state.tree.top(self.request.tenant);
        let holders = self.sites.holders(state, &self.problem.closed, (model, top));
        if holders.is_empty() {
            return None;
        }
        if !self.problem.endable.may_look_for_quota(holders.len()) {
            self.is_unsure.set(true);
            return None;
        }
        let is_going = |victim: &Victim| self.spent.doomed.contains(&victim.place.lease);
        let holders: Vec<&(ClusterId, Victim)> =
            holders.iter().filter(|(_, victim)| !is_going(victim)).collect();
        let victims: Vec<&Victim> = holders.iter().map(|(_, victim)| victim).collect();
        let are_fair = self.lent().ever_fair(&victims, total);
        let fair = holders.into_iter().zip(are_fair).filter(|(_, is_fair)| *is_fair);
        let fair: Vec<(ClusterId, Victim)> = fair.map(|(holder, _)| holder.clone()).collect();
        let mut all = short.clone();
        let mut is_enough = fair.iter().map(|(_, victim)| {
            all.give_back(victim);
            all.is_met()
        });
        is_enough.any(|is_met| is_met).then_some(fair)
    }

    fn is_better(&self, choice: &Choice) -> bool {
        let harm = self.harm(choice);
        self.best.as_ref().is_none_or(|(known, ..)| harm < *known)
    }

    fn harm(&self, choice: &Choice) -> Harm {
        choice.harm(self.problem.view.state.leaves_out(Mutation::FirstVictims))
    }

    /// Quotas once the victims are gone, too.
    fn charges_after(&self, choice: &Choice) -> Charges {
        let mut charges = self.after_ends().clone();
        for victim in &choice.victims {
            give_back(&mut charges, self.problem.view.state, victim.place.lease);
        }
        charges
    }

    /// Takes the choice for the best, if the request may have what it frees and it may be ended now.
    fn propose(&mut self, want: Want, choice: Choice) {
        let after = Spent::of(self.charges_after(&choice));
        if after.obstacle(self.problem.view, &want).is_some() {
            return;
        }
        let (whose, reservations) = ((self.id, self.request), &self.problem.reservations);
        if !reservations.leaves_quota(&after, whose, want.model, want.gpu) {
            return;
        }
        if !is_within_budget(self.problem, self.spent, &choice.victims) {
            self.note(Hindrance::Budget);
            return;
        }
        self.best = Some((self.harm(&choice), want, choice));
    }

    /// Notes what keeps leases from being ended; of several what weighs most.
    fn note(&mut self, hindrance: Hindrance) {
        self.hindrance = self.hindrance.max(hindrance);
    }

    /// Whether this plan does not end the victim yet, and nobody else has reserved what it frees.
    fn may_free(&self, victim: &Victim) -> bool {
        self.rooms.may_free(self.problem, self.spent, victim)
    }
}

/// Whether so many more leases may be ended, in each cluster and in the cell, in this hour.
fn is_within_budget(problem: &Problem<'_>, spent: &Spent, victims: &[Victim]) -> bool {
    let more = victims.iter().map(|victim| victim.place.lease);
    let leases = spent.doomed.iter().copied().chain(more);
    preemption::are_within_budgets(problem.view.state, leases, problem.view.now)
}

/// Quotas as they will be once all that were preempted are gone.
fn after_ends_of(problem: &Problem<'_>, spent: &Spent) -> Charges {
    let mut charges = spent.charges.clone();
    for id in problem.endable.preempted().into_iter().chain(spent.doomed.iter().copied()) {
        give_back(&mut charges, problem.view.state, id);
    }
    charges
}

/// What is free already, and which victims may go.
struct Rooms {
    /// By site with victims.
    free: BTreeMap<Site, Room>,
    /// Of which there are slices enough in a cluster, as far as their number goes.
    amounts: BTreeSet<Amount>,
    claim: Claim,
}

impl Rooms {
    fn of(problem: &Problem<'_>, sites: &Sites, id: RequestId, request: &Request) -> Rooms {
        let spec = &request.spec;
        let claim = Claim::of(problem.view, id, spec);
        let mut free: BTreeMap<Site, Room> = BTreeMap::new();
        for candidate in place::reserved(problem, id, spec) {
            let site = site(spec.placement, &candidate);
            if sites.at.contains_key(&site) {
                free.entry(site).or_default().reserved += 1;
            }
        }
        let count = usize::try_from(spec.count).unwrap_or(usize::MAX);
        let mut amounts = BTreeSet::new();
        for ((_, model, gpu), groups) in fitting(problem, id, request) {
            let seats: usize = groups.iter().map(|(_, seats)| seats.len()).sum();
            let total = gpu.checked_mul(u64::from(spec.count));
            amounts.extend(total.filter(|_| seats >= count).map(|total| (model, total)));
            for (node, seats) in groups {
                for seat in seats {
                    let generation = problem.nodes[node].slots[seat.slot].generation;
                    let member = PlanMember { slice: seat.candidate.slice, generation };
                    let site = site(spec.placement, &seat.candidate);
                    if sites.at.contains_key(&site) {
                        free.entry(site).or_default().free.push(member);
                    }
                }
            }
        }
        Rooms { free, amounts, claim }
    }

    fn may_free(&self, problem: &Problem<'_>, spent: &Spent, victim: &Victim) -> bool {
        let mut freed = victim.slices.iter().chain(&victim.elsewhere);
        !spent.doomed.contains(&victim.place.lease)
            && freed.all(|slice| problem.reservations.allows(*slice, &self.claim))
    }
}

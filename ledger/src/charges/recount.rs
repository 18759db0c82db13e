//! Every hold and charge computed again from records alone.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::events::{ChargeTurn, Event, Settlement};
use sublet_protocol::ids::{CellId, ClusterId, GpuModel, LeaseId, Region, RequestId, TenantId};
use sublet_protocol::leases::{EndReason, LeaseTerms};
use sublet_protocol::money::{
    Account, Currency, Line, MicroCredits, Price, cost_half_even, part_half_even,
};
use sublet_protocol::policy::Policy;
use sublet_protocol::records::Record;
use sublet_protocol::requests::Tier;
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::{Millis, Timestamp};

use super::Charge;

/// Why a record's money is not what the records before it say it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChargeError {
    /// Money moves before the cell has a policy.
    #[error("money moves before the cell was founded")]
    NoPolicy,
    /// A posted price does not have the next version.
    #[error("the price of {owner} for {model} has version {found}, the next is {expected}")]
    PriceVersion {
        /// Who posted it.
        owner: TenantId,
        /// For which model.
        model: GpuModel,
        /// The version it has.
        found: u32,
        /// The version that comes next.
        expected: u32,
    },
    /// A lease was granted at another price than was posted then.
    #[error(
        "{lease} was granted at {} per GPU-hour (version {}), the price posted was {}",
        granted.per_gpu_hour, granted.version, Posted(*posted)
    )]
    Price {
        /// The lease.
        lease: LeaseId,
        /// The price in its terms.
        granted: Price,
        /// The price in force, if any.
        posted: Option<Price>,
    },
    /// A lease is granted twice.
    #[error("{lease} is granted twice")]
    GrantedTwice {
        /// The lease.
        lease: LeaseId,
    },
    /// A record is about a lease that is not live.
    #[error("{lease} is not live")]
    NotLive {
        /// The lease.
        lease: LeaseId,
    },
    /// The end names another borrower, lender or request than the grant.
    #[error("{lease} does not end as it was granted: another borrower, lender or request")]
    OtherParties {
        /// The lease.
        lease: LeaseId,
    },
    /// An amount is not what it must be.
    #[error("the {what} of {lease} is {found}, by the records it must be {expected}")]
    Amount {
        /// The lease.
        lease: LeaseId,
        /// Which amount: `hold`, `cost` or `fee`.
        what: &'static str,
        /// The amount recorded.
        found: MicroCredits,
        /// The amount computed.
        expected: MicroCredits,
    },
    /// An amount cannot be computed: it is too large to be written.
    #[error("the cost of {lease} is too large to be written")]
    TooLarge {
        /// The lease.
        lease: LeaseId,
    },
    /// Another time is billed than was measured and allowed.
    #[error("{lease} is billed {found} ms, by the records it must be {expected} ms")]
    Billed {
        /// The lease.
        lease: LeaseId,
        /// Milliseconds billed.
        found: Millis,
        /// Milliseconds computed.
        expected: Millis,
    },
    /// A close that does not follow the one before, or of a time that is not over.
    #[error("the close from {from} to {until} does not follow the one before, or comes too early")]
    Close {
        /// What it says was open.
        from: Timestamp,
        /// Up to when it closes.
        until: Timestamp,
    },
    /// The charge of a lease is turned that has not ended, or that was not kept.
    #[error("the charge of {lease} is turned, and no end of it is known")]
    NotEnded {
        /// The lease.
        lease: LeaseId,
    },
    /// What turns a charge does not name the newest record that says how it stands.
    #[error("the charge of {lease} is turned by naming record {found}, it stands by {expected}")]
    TurnedTwice {
        /// The lease.
        lease: LeaseId,
        /// The record that is named.
        found: u64,
        /// The newest record that says how the charge stands.
        expected: u64,
    },
    /// What turns a charge says another charge, or that it stands as it stood.
    #[error("what turns the charge of {lease} is not of that charge as it stands")]
    OtherCharge {
        /// The lease.
        lease: LeaseId,
    },
    /// The posting does not move what hold, cost and fee say.
    #[error("the posting of {lease} does not move its hold, cost and fee")]
    Posting {
        /// The lease.
        lease: LeaseId,
    },
}

/// A posted price in a message.
struct Posted(Option<Price>);

impl std::fmt::Display for Posted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(price) => write!(f, "{} (version {})", price.per_gpu_hour, price.version),
            None => f.write_str("none"),
        }
    }
}

/// A lease that has not ended, as far as money goes.
#[derive(Debug, Clone)]
struct Live {
    terms: LeaseTerms,
    granted_at: Timestamp,
    active_since: Option<Timestamp>,
    used: Millis,
    billed_max: Millis,
}

/// A charge that may be turned, and how it stands.
#[derive(Debug, Clone)]
struct Settled {
    charge: Charge,
    granted_at: Timestamp,
    standing: ChargeStanding,
    newest: u64,
}

/// Computes every hold and charge again, record by record. It holds the posted prices, the leases that
/// have not ended, and the charges that may be turned: all, or those of named leases.
#[derive(Debug, Clone, Default)]
pub struct Recount {
    cell: Option<CellId>,
    policy: Option<Policy>,
    prices: BTreeMap<(TenantId, GpuModel, Tier), Price>,
    regions: BTreeMap<ClusterId, Region>,
    live: BTreeMap<LeaseId, Live>,
    /// Whose charges are turned; any may be if nothing is said.
    turned: Option<BTreeSet<LeaseId>>,
    settled: BTreeMap<LeaseId, Settled>,
    closed_until: Timestamp,
    leases: u64,
    turns: u64,
}

impl Recount {
    /// Nothing read yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing read yet, of a ledger in which only charges of these leases are turned: no other charge is
    /// held.
    #[must_use]
    pub fn keeping(leases: BTreeSet<LeaseId>) -> Self {
        Self { turned: Some(leases), ..Self::default() }
    }

    /// The cell whose records these are, once it was founded.
    #[must_use]
    pub const fn cell(&self) -> Option<CellId> {
        self.cell
    }

    /// The cell's currency, once it was founded.
    #[must_use]
    pub fn currency(&self) -> Option<Currency> {
        self.policy.as_ref().map(|policy| policy.currency)
    }

    /// Everything before this instant is closed.
    #[must_use]
    pub const fn closed_until(&self) -> Timestamp {
        self.closed_until
    }

    /// How many leases have ended so far.
    #[must_use]
    pub const fn leases(&self) -> u64 {
        self.leases
    }

    /// How many times a charge was reversed or charged again.
    #[must_use]
    pub const fn turns(&self) -> u64 {
        self.turns
    }

    /// Takes the record that comes next. The charge, if it ended a lease or turned a charge.
    ///
    /// # Errors
    /// The money in the record is not what the records before it say. Nothing behind such a record
    /// can be relied on.
    pub fn take(&mut self, record: &Record) -> Result<Option<Charge>, ChargeError> {
        match &record.event {
            Event::CellCreated { cell, policy, .. } => {
                self.cell = Some(*cell);
                self.policy = Some(policy.clone());
            }
            Event::PolicySet { policy } => self.policy = Some(policy.clone()),
            Event::PriceSet { owner, model, tier, price } => {
                self.posted((*owner, *model, *tier), *price)?;
            }
            Event::ClusterCreated { cluster, region, .. } => {
                self.regions.insert(*cluster, *region);
            }
            Event::LeaseGranted { terms, lines } => self.granted(terms, lines, record.time)?,
            Event::LeaseActivated { lease, .. } => {
                let now = record.time;
                self.live_mut(*lease)?.active_since.get_or_insert(now);
            }
            Event::UsageRecorded { lease, used } | Event::MemberStopped { lease, used, .. } => {
                let live = self.live_mut(*lease)?;
                live.used = live.used.max(*used);
            }
            Event::LeaseCapped { lease, billed_max } => {
                let live = self.live_mut(*lease)?;
                live.billed_max = live.terms.duration.as_millis().min(*billed_max);
            }
            Event::PeriodClosed { from, until } => {
                if *from != self.closed_until || until <= from || *until > record.time {
                    return Err(ChargeError::Close { from: *from, until: *until });
                }
                self.closed_until = *until;
            }
            Event::LeaseEnded { .. } => return self.ended(record).map(Some),
            Event::ChargeTurned { turn } => return self.turned(record, turn).map(Some),
            _moves_no_money => {}
        }
        Ok(None)
    }

    fn live_mut(&mut self, lease: LeaseId) -> Result<&mut Live, ChargeError> {
        self.live.get_mut(&lease).ok_or(ChargeError::NotLive { lease })
    }

    fn posted(&mut self, of: (TenantId, GpuModel, Tier), price: Price) -> Result<(), ChargeError> {
        let last = self.prices.get(&of).map_or(0, |price| price.version);
        let expected = last.saturating_add(1);
        if price.version != expected {
            let (owner, model, _) = of;
            return Err(ChargeError::PriceVersion { owner, model, found: price.version, expected });
        }
        self.prices.insert(of, price);
        Ok(())
    }

    fn granted(
        &mut self,
        terms: &LeaseTerms,
        lines: &[Line],
        granted_at: Timestamp,
    ) -> Result<(), ChargeError> {
        let lease = terms.lease;
        if self.policy.is_none() {
            return Err(ChargeError::NoPolicy);
        }
        if self.live.contains_key(&lease) {
            return Err(ChargeError::GrantedTwice { lease });
        }
        let posted = self.prices.get(&(terms.owner, terms.model, terms.tier())).copied();
        if posted != Some(terms.price) {
            return Err(ChargeError::Price { lease, granted: terms.price, posted });
        }
        let hold = cost_half_even(terms.price, terms.gpu_total(), terms.duration.as_millis());
        let hold = hold.ok_or(ChargeError::TooLarge { lease })?;
        equal(lease, "hold", terms.hold, hold)?;
        let expected = [
            Line::debit(Account::Expense(terms.tenant), hold),
            Line::credit(Account::Hold(terms.tenant), hold),
        ];
        if !moves_the_same(lines, &expected) {
            return Err(ChargeError::Posting { lease });
        }
        let billed_max = terms.duration.as_millis();
        let (terms, active_since, used) = (terms.clone(), None, Millis::ZERO);
        let live = Live { terms, granted_at, active_since, used, billed_max };
        self.live.insert(lease, live);
        Ok(())
    }

    fn ended(&mut self, record: &Record) -> Result<Charge, ChargeError> {
        let Event::LeaseEnded { lease, request, tenant, owner, reason, settlement, lines } =
            &record.event
        else {
            unreachable!("the caller has matched the end of a lease")
        };
        let (lease, settlement) = (*lease, *settlement);
        let live = self.live.remove(&lease).ok_or(ChargeError::NotLive { lease })?;
        let policy = self.policy.as_ref().ok_or(ChargeError::NoPolicy)?;
        let parties: (RequestId, TenantId, TenantId) = (*request, *tenant, *owner);
        if parties != (live.terms.request, live.terms.tenant, live.terms.owner) {
            return Err(ChargeError::OtherParties { lease });
        }
        let window = live.active_since.map_or(Millis::ZERO, |since| record.time.since(since));
        let measured = live.used.min(window).min(live.billed_max);
        let billed = billed(policy, &live.terms, *reason, measured);
        if settlement.billed != billed {
            let found = settlement.billed;
            return Err(ChargeError::Billed { lease, found, expected: billed });
        }
        check_settlement(policy, &live.terms, &settlement)?;
        if !moves_the_same(lines, &expected_end(&live.terms, &settlement)) {
            return Err(ChargeError::Posting { lease });
        }
        self.leases = self.leases.saturating_add(1);
        let charge = Charge {
            index: record.index,
            settled_at: record.time,
            region: self.regions.get(&live.terms.cluster).copied(),
            terms: live.terms,
            active_since: live.active_since,
            reason: *reason,
            measured,
            settlement,
            turn: None,
            closed_until: self.closed_until,
        };
        if self.turned.as_ref().is_none_or(|turned| turned.contains(&lease)) {
            let (standing, newest) = (ChargeStanding::Charged, record.index);
            let (charge, granted_at) = (charge.clone(), live.granted_at);
            self.settled.insert(lease, Settled { charge, granted_at, standing, newest });
        }
        Ok(charge)
    }

    /// A charge is turned once more: by the record that says how it stands, to what it did not.
    fn turned(&mut self, record: &Record, turn: &ChargeTurn) -> Result<Charge, ChargeError> {
        let lease = turn.lease;
        let settled = self.settled.get_mut(&lease).ok_or(ChargeError::NotEnded { lease })?;
        if turn.of != settled.newest {
            let (found, expected) = (turn.of, settled.newest);
            return Err(ChargeError::TurnedTwice { lease, found, expected });
        }
        let terms = &settled.charge.terms;
        let of_terms = (terms.request, terms.tenant, terms.owner, terms.price, terms.gpu_total());
        let is_its = (turn.request, turn.tenant, turn.owner, turn.price, turn.gpu) == of_terms
            && turn.granted_at == settled.granted_at
            && turn.settlement == settled.charge.settlement
            && turn.standing == settled.standing.turned();
        if !is_its {
            return Err(ChargeError::OtherCharge { lease });
        }
        if !moves_the_same(&turn.lines, &expected_turn(terms, turn)) {
            return Err(ChargeError::Posting { lease });
        }
        (settled.standing, settled.newest) = (turn.standing, record.index);
        self.turns = self.turns.saturating_add(1);
        Ok(settled.charge.clone().turned(record, turn.standing, self.closed_until))
    }
}

/// What of the measured time is billed: none if the owner took the GPU back before the minimum run
/// time of the tier (row F9).
fn billed(policy: &Policy, terms: &LeaseTerms, reason: EndReason, measured: Millis) -> Millis {
    let min_run = policy.min_run.of(terms.tier()).as_millis();
    let is_excused = reason == EndReason::Reclaimed && measured < min_run;
    if is_excused { Millis::ZERO } else { measured }
}

fn check_settlement(
    policy: &Policy,
    terms: &LeaseTerms,
    settlement: &Settlement,
) -> Result<(), ChargeError> {
    let lease = terms.lease;
    let cost = cost_half_even(terms.price, terms.gpu_total(), settlement.billed);
    let cost = cost.ok_or(ChargeError::TooLarge { lease })?;
    equal(lease, "cost", settlement.cost, cost)?;
    let fee = part_half_even(cost, policy.fee).ok_or(ChargeError::TooLarge { lease })?;
    equal(lease, "fee", settlement.fee, fee)
}

fn equal(
    lease: LeaseId,
    what: &'static str,
    found: MicroCredits,
    expected: MicroCredits,
) -> Result<(), ChargeError> {
    if found == expected {
        return Ok(());
    }
    Err(ChargeError::Amount { lease, what, found, expected })
}

/// The hold goes back to the borrower but for the cost, which owner and platform share. Hold, cost
/// and fee have been computed: none is below the next.
fn expected_end(terms: &LeaseTerms, settlement: &Settlement) -> [Line; 4] {
    let Settlement { cost, fee, .. } = *settlement;
    let less = |from: MicroCredits, what| from.checked_sub(what).unwrap_or(MicroCredits::ZERO);
    [
        Line::debit(Account::Hold(terms.tenant), terms.hold),
        Line::credit(Account::Expense(terms.tenant), less(terms.hold, cost)),
        Line::credit(Account::Revenue(terms.owner), less(cost, fee)),
        Line::credit(Account::Fee, fee),
    ]
}

/// What hold and end posted together, the other way round if the charge is reversed.
fn expected_turn(terms: &LeaseTerms, turn: &ChargeTurn) -> [Line; 3] {
    let Settlement { cost, fee, .. } = turn.settlement;
    let earned = cost.checked_sub(fee).unwrap_or(MicroCredits::ZERO);
    let (expense, revenue) = (Account::Expense(terms.tenant), Account::Revenue(terms.owner));
    match turn.standing {
        ChargeStanding::Reversed => [
            Line::credit(expense, cost),
            Line::debit(revenue, earned),
            Line::debit(Account::Fee, fee),
        ],
        ChargeStanding::Charged => [
            Line::debit(expense, cost),
            Line::credit(revenue, earned),
            Line::credit(Account::Fee, fee),
        ],
    }
}

/// Whether two postings move the same, whatever the order of their lines.
fn moves_the_same(lines: &[Line], expected: &[Line]) -> bool {
    let sorted = |lines: &[Line]| {
        let moves = lines.iter().map(|line| (line.account, line.debit, line.credit));
        let nothing = MicroCredits::ZERO;
        let mut moves: Vec<_> =
            moves.filter(|(_, debit, credit)| (*debit, *credit) != (nothing, nothing)).collect();
        moves.sort_unstable();
        moves
    };
    sorted(lines) == sorted(expected)
}

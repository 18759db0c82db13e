//! Histories of leases whose charges are what they must be.

use sublet_protocol::commands::{Actor, GuestOutcome};
use sublet_protocol::events::{ChargeTurn, Event, Settlement};
use sublet_protocol::ids::{CellId, CommandId, GpuModel, LeaseId, RequestId, RollbackId, TenantId};
use sublet_protocol::leases::{EndReason, LeaseTerms};
use sublet_protocol::money::{Account, Line, MicroCredits, Price, cost_half_even, part_half_even};
use sublet_protocol::policy::Policy;
use sublet_protocol::records::Record;
use sublet_protocol::requests::Class;
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::{GpuMilli, Millis, Seconds, Timestamp};

/// 2026-03-01T00:00:00Z.
pub(crate) const MARCH: u64 = 1_772_323_200_000;
pub(crate) const HOUR: u64 = 3_600_000;

/// What one lease of a made-up history is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) lease: u128,
    pub(crate) gpu: u64,
    /// Micro-units per GPU-hour.
    pub(crate) price: i64,
    /// Activation in milliseconds of ledger time.
    pub(crate) begin: u64,
    /// Milliseconds that its guest runs.
    pub(crate) used: u64,
    pub(crate) reason: EndReason,
}

impl Wish {
    pub(crate) fn new(lease: u128, begin: u64, used: u64, price: i64) -> Wish {
        Wish { lease, gpu: 1_000, price, begin, used, reason: EndReason::Completed }
    }
}

pub(crate) fn borrower() -> TenantId {
    TenantId::new("vision").unwrap()
}

pub(crate) fn lender() -> TenantId {
    super::owner()
}

fn model() -> GpuModel {
    GpuModel::new("a100-80gb").unwrap()
}

/// Records of leases, one after the other, with their postings as they must be.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) records: Vec<Record>,
    version: u32,
    price: i64,
}

impl History {
    pub(crate) fn founded() -> History {
        let mut history = History::default();
        let cell = CellId::new("berlin").unwrap();
        history.push(0, Event::CellCreated { cell, epoch: 0, policy: Policy::default() });
        history
    }

    pub(crate) fn push(&mut self, time: u64, event: Event) {
        let last = self.records.last().map_or(0, |record| record.time.get());
        let index = u64::try_from(self.records.len()).unwrap();
        let (time, cause) = (Timestamp::new(time.max(last)), CommandId::new(u128::from(index)));
        let actor = Actor::Leader;
        self.records.push(Record { index, term: 1, time, cause, actor, event });
    }

    fn set_price(&mut self, time: u64, price: i64) {
        if self.price == price && self.version > 0 {
            return;
        }
        (self.price, self.version) = (price, self.version + 1);
        let price = Price { per_gpu_hour: MicroCredits::new(price), version: self.version };
        let (owner, model, tier) = (lender(), model(), Class::Batch.tier());
        self.push(time, Event::PriceSet { owner, model, tier, price });
    }

    fn terms(&self, wish: &Wish) -> LeaseTerms {
        let Event::LeaseGranted { terms, .. } = super::record(16).event else {
            panic!("record 16 of the test history grants a lease")
        };
        let price = Price { per_gpu_hour: MicroCredits::new(wish.price), version: self.version };
        let duration = Seconds::new(wish.used / 1_000 + 1);
        let gpu = GpuMilli::new(wish.gpu);
        let hold = cost_half_even(price, gpu, duration.as_millis()).unwrap();
        let (lease, request) = (LeaseId::new(wish.lease), RequestId::new(wish.lease));
        let tenant = borrower();
        LeaseTerms { lease, request, tenant, gpu, price, duration, hold, ..terms }
    }

    /// Grants, runs and ends a lease; its history begins at its activation.
    pub(crate) fn lease(&mut self, wish: &Wish) {
        self.lease_over(wish, None);
    }

    /// As [`History::lease`], with an event at an instant while it runs.
    pub(crate) fn lease_over(&mut self, wish: &Wish, meanwhile: Option<(u64, Event)>) {
        self.set_price(wish.begin, wish.price);
        let terms = self.terms(wish);
        let (lease, hold) = (terms.lease, terms.hold);
        let lines = vec![
            Line::debit(Account::Expense(terms.tenant), hold),
            Line::credit(Account::Hold(terms.tenant), hold),
        ];
        self.push(wish.begin, Event::LeaseGranted { terms: terms.clone(), lines });
        let ends_at = Timestamp::new(wish.begin).after(terms.duration);
        self.push(wish.begin, Event::LeaseActivated { lease, ends_at });
        if let Some((time, event)) = meanwhile {
            self.push(time, event);
        }
        let (slice, outcome) = (terms.members[0].slice, GuestOutcome::Exited { code: 0 });
        let (end, used) = (wish.begin + wish.used, Millis::new(wish.used));
        self.push(end, Event::MemberStopped { lease, slice, used, outcome });
        self.push(end, ended(&terms, wish));
    }
}

impl History {
    /// Turns the charge of a lease that has ended once more, as it must be.
    pub(crate) fn turn(&mut self, time: u64, lease: u128) {
        let lease = LeaseId::new(lease);
        let (mut terms, mut granted_at, mut settled) = (None, Timestamp::ZERO, None);
        let (mut of, mut standing) = (0, ChargeStanding::Charged);
        for record in self.records.iter().filter(|record| record.event.lease() == Some(lease)) {
            match &record.event {
                Event::LeaseGranted { terms: granted, .. } => {
                    (terms, granted_at) = (Some(granted.clone()), record.time);
                }
                Event::LeaseEnded { settlement, .. } => {
                    (settled, of) = (Some(*settlement), record.index);
                }
                Event::ChargeTurned { turn } => {
                    (standing, of) = (turn.standing, record.index);
                }
                _other => {}
            }
        }
        let (terms, settlement) = (terms.unwrap(), settled.unwrap());
        let Settlement { cost, fee, .. } = settlement;
        let earned = cost.checked_sub(fee).unwrap();
        let (expense, revenue) = (Account::Expense(terms.tenant), Account::Revenue(terms.owner));
        let standing = standing.turned();
        let lines = match standing {
            ChargeStanding::Reversed => vec![
                Line::credit(expense, cost),
                Line::debit(revenue, earned),
                Line::debit(Account::Fee, fee),
            ],
            ChargeStanding::Charged => vec![
                Line::debit(expense, cost),
                Line::credit(revenue, earned),
                Line::credit(Account::Fee, fee),
            ],
        };
        let turn = ChargeTurn {
            rollback: RollbackId::new(1),
            of,
            standing,
            lease,
            request: terms.request,
            tenant: terms.tenant,
            owner: terms.owner,
            granted_at,
            gpu: terms.gpu_total(),
            price: terms.price,
            settlement,
            lines,
        };
        self.push(time, Event::ChargeTurned { turn });
    }
}

fn ended(terms: &LeaseTerms, wish: &Wish) -> Event {
    let policy = Policy::default();
    let is_free = wish.reason == EndReason::Reclaimed && wish.used < 600_000;
    let billed = Millis::new(if is_free { 0 } else { wish.used });
    let cost = cost_half_even(terms.price, terms.gpu_total(), billed).unwrap();
    let fee = part_half_even(cost, policy.fee).unwrap();
    let less = |a: MicroCredits, b| a.checked_sub(b).unwrap();
    let lines = vec![
        Line::debit(Account::Hold(terms.tenant), terms.hold),
        Line::credit(Account::Expense(terms.tenant), less(terms.hold, cost)),
        Line::credit(Account::Revenue(terms.owner), less(cost, fee)),
        Line::credit(Account::Fee, fee),
    ];
    Event::LeaseEnded {
        lease: terms.lease,
        request: terms.request,
        tenant: terms.tenant,
        owner: terms.owner,
        reason: wish.reason,
        settlement: Settlement { billed, cost, fee },
        lines,
    }
}

//! What one lease cost, and how that is divided between spans of time.

use sublet_protocol::events::{Event, Settlement};
use sublet_protocol::ids::Region;
use sublet_protocol::leases::{EndReason, LeaseTerms};
use sublet_protocol::money::{MicroCredits, Price, cost_half_even};
use sublet_protocol::records::Record;
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::{GpuMilli, Millis, Timestamp};

/// The final charge of a lease that has ended, or its reversal, or what charges it again after that.
///
/// Its billed time counts from its activation on without a break, so it lies in
/// `[begin, end)`. A lease that was never active begins and ends when it was settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Index of the record that settled it.
    pub index: u64,
    /// Ledger time of that record.
    pub settled_at: Timestamp,
    /// What was granted.
    pub terms: LeaseTerms,
    /// Where its cluster stands, if a record says so.
    pub region: Option<Region>,
    /// When all its members were prepared, if ever.
    pub active_since: Option<Timestamp>,
    /// Why it ended.
    pub reason: EndReason,
    /// Time that would have been billed had its owner not taken the GPU back too early; above
    /// `settlement.billed` only then.
    pub measured: Millis,
    /// What was billed and posted. Of a reversal it is what no longer counts: see [`Charge::sign`].
    pub settlement: Settlement,
    /// How the charge stands from this record on, if the record turned it; none for the end itself.
    pub turn: Option<ChargeStanding>,
    /// Everything before this instant was closed when it was settled: what falls there is a
    /// correction. [`Timestamp::ZERO`] if nothing was.
    pub closed_until: Timestamp,
}

/// What of a charge belongs to one span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The first instant of the billed time in it.
    pub begin: Timestamp,
    /// The first instant behind it. Equal to `begin` if nothing is billed.
    pub end: Timestamp,
    /// When it counts: `begin`, or the first instant that was not closed when it was settled.
    pub booked_at: Timestamp,
    /// How much time is billed; of a reversal, how much is no longer.
    pub billed: Millis,
    /// What the borrower pays; below zero for a reversal.
    pub cost: MicroCredits,
    /// What of it the platform keeps; below zero for a reversal.
    pub fee: MicroCredits,
}

impl Part {
    /// Whether its time was closed when it was settled.
    #[must_use]
    pub fn is_correction(&self) -> bool {
        self.booked_at != self.begin
    }

    /// What the lender earns: the cost without the fee.
    #[must_use]
    pub fn earned(&self) -> MicroCredits {
        self.cost.checked_sub(self.fee).expect("a fee is a part of its cost")
    }
}

impl Charge {
    /// The charge that the records of one ended lease tell, all of them in their order, if everything
    /// before `closed_until` was closed when it was settled. `None` if they do not tell of a grant and
    /// an end. It trusts what the end says: [`Recount`](super::Recount) does not.
    #[must_use]
    pub fn of_lease(records: &[Record], closed_until: Timestamp) -> Option<Charge> {
        let granted = records.iter().find_map(|record| match &record.event {
            Event::LeaseGranted { terms, .. } => Some(terms),
            _other => None,
        });
        let terms = granted?.clone();
        let (mut active_since, mut used) = (None, Millis::ZERO);
        let mut billed_max = terms.duration.as_millis();
        for record in records {
            match &record.event {
                Event::LeaseActivated { .. } => active_since = active_since.or(Some(record.time)),
                Event::UsageRecorded { used: more, .. }
                | Event::MemberStopped { used: more, .. } => used = used.max(*more),
                Event::LeaseCapped { billed_max: most, .. } => {
                    billed_max = terms.duration.as_millis().min(*most);
                }
                Event::LeaseEnded { reason, settlement, .. } => {
                    let window =
                        active_since.map_or(Millis::ZERO, |since| record.time.since(since));
                    return Some(Charge {
                        index: record.index,
                        settled_at: record.time,
                        terms,
                        region: None,
                        active_since,
                        reason: *reason,
                        measured: used.min(window).min(billed_max),
                        settlement: *settlement,
                        turn: None,
                        closed_until,
                    });
                }
                _other => {}
            }
        }
        None
    }

    /// As [`Charge::of_lease`], for the record at `index`, which turned the charge. `None` if it did not.
    #[must_use]
    pub fn of_turn(records: &[Record], index: u64, closed_until: Timestamp) -> Option<Charge> {
        let charge = Charge::of_lease(records, closed_until)?;
        let record = records.iter().find(|record| record.index == index)?;
        let Event::ChargeTurned { turn } = &record.event else { return None };
        Some(charge.turned(record, turn.standing, closed_until))
    }

    /// The same charge as a later record turned it.
    pub(super) fn turned(
        self,
        record: &Record,
        standing: ChargeStanding,
        closed_until: Timestamp,
    ) -> Charge {
        let begin = self.begin();
        Charge {
            index: record.index,
            settled_at: record.time,
            active_since: Some(begin),
            // What was excused was never charged.
            measured: self.settlement.billed,
            turn: Some(standing),
            closed_until,
            ..self
        }
    }

    /// What its amounts count: −1 for a reversal, else 1.
    #[must_use]
    pub fn sign(&self) -> i64 {
        self.billed().sign()
    }

    /// An amount of it as it counts.
    #[must_use]
    pub fn signed(&self, amount: MicroCredits) -> MicroCredits {
        self.billed().signed(amount)
    }

    /// When the billed time begins.
    #[must_use]
    pub fn begin(&self) -> Timestamp {
        self.active_since.unwrap_or(self.settled_at)
    }

    /// The first instant behind the billed time.
    #[must_use]
    pub fn end(&self) -> Timestamp {
        self.begin().after_millis(self.settlement.billed)
    }

    /// The share of GPUs of all members together.
    #[must_use]
    pub fn gpu(&self) -> GpuMilli {
        self.terms.gpu_total()
    }

    /// Time that ran and is not billed, since its owner took the GPU back too early.
    #[must_use]
    pub fn excused(&self) -> Millis {
        self.measured.saturating_sub(self.settlement.billed)
    }

    /// Its parts that count in `[from, until)`; see [`Billed::parts`].
    #[must_use]
    pub fn parts(&self, from: Timestamp, until: Timestamp) -> Vec<Part> {
        self.billed().parts(from, until)
    }

    /// What of cost and fee falls before an instant; see [`Billed::up_to`].
    pub(crate) fn up_to(&self, instant: Timestamp) -> (MicroCredits, MicroCredits) {
        self.billed().up_to(instant)
    }

    /// All that its parts depend on.
    #[must_use]
    pub fn billed(&self) -> Billed {
        Billed {
            begin: self.begin(),
            settlement: self.settlement,
            price: self.terms.price,
            gpu: self.gpu(),
            turn: self.turn,
            closed_until: self.closed_until,
        }
    }
}

/// The billed time of a charge and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Billed {
    /// Its first instant.
    pub begin: Timestamp,
    /// How long it is, and what was posted for it.
    pub settlement: Settlement,
    /// The price frozen at the grant.
    pub price: Price,
    /// The share of GPUs of all members together.
    pub gpu: GpuMilli,
    /// How the charge stands from its record on, if the record turned it.
    pub turn: Option<ChargeStanding>,
    /// Everything before this instant was closed when it was settled.
    pub closed_until: Timestamp,
}

impl Billed {
    /// What its amounts count: −1 for a reversal, else 1.
    #[must_use]
    pub const fn sign(&self) -> i64 {
        match self.turn {
            Some(ChargeStanding::Reversed) => -1,
            Some(ChargeStanding::Charged) | None => 1,
        }
    }

    fn signed(&self, amount: MicroCredits) -> MicroCredits {
        MicroCredits::new(amount.get().saturating_mul(self.sign()))
    }

    /// The first instant behind it.
    #[must_use]
    pub fn end(&self) -> Timestamp {
        self.begin.after_millis(self.settlement.billed)
    }

    /// Its parts that count in `[from, until)`, in order: at most one that its time was closed
    /// for, and one that it was not. Parts of spans that meet add up to the charge, to the
    /// micro-unit; a charge of nothing is one part of nothing.
    #[must_use]
    pub fn parts(&self, from: Timestamp, until: Timestamp) -> Vec<Part> {
        let (begin, end) = (self.begin, self.end());
        let border = self.closed_until.clamp(begin, end);
        let is_in = |instant: Timestamp| from <= instant && instant < until;
        let mut parts = Vec::new();
        let is_nothing = begin == end;
        if (border > begin || (is_nothing && begin < self.closed_until)) && is_in(self.closed_until)
        {
            parts.push(self.part(begin, border, self.closed_until));
        }
        let (first, last) = (border.max(from), end.min(until));
        let is_open_nothing = is_nothing && begin >= self.closed_until && is_in(begin);
        if first < last || is_open_nothing {
            parts.push(self.part(first, last.max(first), first));
        }
        parts
    }

    /// What falls between two instants of its billed time.
    fn part(&self, begin: Timestamp, end: Timestamp, booked_at: Timestamp) -> Part {
        let (before, after) = (self.up_to(begin), self.up_to(end));
        let less = "what is billed up to an instant never falls";
        Part {
            begin,
            end,
            booked_at,
            billed: end.since(begin),
            cost: self.signed(after.0.checked_sub(before.0).expect(less)),
            fee: self.signed(after.1.checked_sub(before.1).expect(less)),
        }
    }

    /// What of cost and fee falls before an instant, without the sign: each rounded half to even, so
    /// that parts are differences and add up.
    pub(crate) fn up_to(&self, instant: Timestamp) -> (MicroCredits, MicroCredits) {
        let Settlement { billed, cost, fee } = self.settlement;
        let span = instant.since(self.begin).min(billed);
        if span == billed {
            return (cost, fee);
        }
        let part = cost_half_even(self.price, self.gpu, span);
        let part = part.expect("a part of a charge that was written").min(cost);
        (part, share_half_even(fee, part, cost))
    }
}

/// `amount × part / whole`, rounded half to even; nothing of nothing. `0 ≤ part ≤ whole`.
fn share_half_even(amount: MicroCredits, part: MicroCredits, whole: MicroCredits) -> MicroCredits {
    if whole == MicroCredits::ZERO {
        return MicroCredits::ZERO;
    }
    let product = i128::from(amount.get()) * i128::from(part.get());
    let share = divide_half_even(product, i128::from(whole.get()));
    MicroCredits::new(i64::try_from(share).expect("a part of an amount that was written"))
}

/// `numerator / denominator`, rounded half to even. `denominator > 0`.
pub(crate) const fn divide_half_even(numerator: i128, denominator: i128) -> i128 {
    let (quotient, rest) = (numerator.div_euclid(denominator), numerator.rem_euclid(denominator));
    let is_above = rest > denominator - rest;
    let is_tie = rest == denominator - rest;
    if is_above || (is_tie && quotient.rem_euclid(2) == 1) { quotient + 1 } else { quotient }
}

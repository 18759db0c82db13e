//! How a statement is made of charges.

use std::collections::BTreeMap;

use sublet_protocol::api::StatementSide;
use sublet_protocol::money::{Currency, MicroCredits};
use sublet_protocol::units::Millis;

use super::{DayTotal, Line, Party, Statement, StatementError};
use crate::charges::{Charge, ChargeLine, Part};
use crate::periods::{Day, Period};
use crate::rounding::{apportion, round_half_even};

/// Takes charges, in any order, and makes a statement of those that belong to it. It holds a line for
/// each.
#[derive(Debug)]
pub struct StatementBuilder {
    party: Party,
    period: Period,
    currency: Currency,
    lines: Vec<Line>,
    days: BTreeMap<Day, (i128, i128)>,
    fee: i128,
}

impl StatementBuilder {
    /// An empty statement.
    #[must_use]
    pub fn new(party: Party, period: Period, currency: Currency) -> Self {
        let (lines, days) = (Vec::new(), BTreeMap::new());
        Self { party, period, currency, lines, days, fee: 0 }
    }

    /// How many lines it has so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether it has no line yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds what of a charge belongs to the party and the period; nothing if none of it does.
    ///
    /// # Errors
    /// [`StatementError::Day`].
    pub fn add(&mut self, charge: &Charge) -> Result<(), StatementError> {
        let whose = match self.party.side {
            StatementSide::Borrower => charge.terms.tenant,
            StatementSide::Lender => charge.terms.owner,
        };
        if whose != self.party.tenant {
            return Ok(());
        }
        self.add_line(&ChargeLine::of(charge, self.party.side))
    }

    /// Adds what of a charge of the party's belongs to the period; nothing if none of it does.
    ///
    /// # Errors
    /// [`StatementError::Day`].
    pub fn add_line(&mut self, charge: &ChargeLine) -> Result<(), StatementError> {
        for part in charge.billed().parts(self.period.from(), self.period.until()) {
            self.group(charge, &part)?;
            self.fee += i128::from(part.fee.get());
            self.lines.push(line(charge, &part, self.party.side));
        }
        Ok(())
    }

    /// Adds a part to the days in which it lies.
    fn group(&mut self, charge: &ChargeLine, part: &Part) -> Result<(), StatementError> {
        let spans = self.period.days(part.begin, part.end);
        let spans = spans.map_err(|why| StatementError::Day { index: charge.index, why })?;
        for span in spans {
            let [before, after] = [span.from, span.until].map(|instant| {
                let (cost, fee) = charge.billed().up_to(instant);
                i128::from(amount(self.party.side, cost, fee).get())
            });
            let day = self.days.entry(span.day).or_default();
            let sign = i128::from(charge.billed().sign());
            day.0 += sign * i128::from(span.until.since(span.from).get());
            day.1 += sign * (after - before);
        }
        Ok(())
    }

    /// The statement.
    ///
    /// # Errors
    /// [`StatementError::TooLarge`].
    pub fn finish(self) -> Result<Statement, StatementError> {
        let Self { party, period, currency, mut lines, days, fee } = self;
        lines.sort_by_key(|line| (line.begin, line.lease, line.end, line.index));
        let sum = lines.iter().map(|line| i128::from(line.exact.get())).sum();
        let total = round_half_even(sum, currency).ok_or(StatementError::TooLarge)?;
        let keyed: Vec<_> =
            lines.iter().map(|line| ((line.lease, line.begin, line.index), line.exact)).collect();
        let amounts = apportion(&keyed, currency).ok_or(StatementError::TooLarge)?;
        for (line, amount) in lines.iter_mut().zip(amounts) {
            line.amount = amount;
        }
        let days = day_totals(&days, currency)?;
        let (exact, fee) = (micros(sum)?, micros(fee)?);
        Ok(Statement { party, period, currency, lines, days, exact, total, fee })
    }
}

fn day_totals(
    days: &BTreeMap<Day, (i128, i128)>,
    currency: Currency,
) -> Result<Vec<DayTotal>, StatementError> {
    let exact: Result<Vec<(Day, MicroCredits)>, StatementError> =
        days.iter().map(|(day, (_, sum))| Ok((*day, micros(*sum)?))).collect();
    let exact = exact?;
    let amounts = apportion(&exact, currency).ok_or(StatementError::TooLarge)?;
    // Of reversals of another period's time a day has none left.
    let billed = days.values().map(|(billed, _)| Millis::new(u64::try_from(*billed).unwrap_or(0)));
    let totals = exact.into_iter().zip(billed).zip(amounts);
    Ok(totals
        .map(|(((day, exact), billed), amount)| DayTotal { day, billed, exact, amount })
        .collect())
}

fn micros(sum: i128) -> Result<MicroCredits, StatementError> {
    i64::try_from(sum).map(MicroCredits::new).map_err(|_| StatementError::TooLarge)
}

/// What a side pays or earns of a cost and its fee.
fn amount(side: StatementSide, cost: MicroCredits, fee: MicroCredits) -> MicroCredits {
    match side {
        StatementSide::Borrower => cost,
        StatementSide::Lender => cost.checked_sub(fee).expect("a fee is at most the cost"),
    }
}

fn line(charge: &ChargeLine, part: &Part, side: StatementSide) -> Line {
    Line {
        lease: charge.lease,
        request: charge.request,
        project: charge.project,
        model: charge.model,
        gpu: charge.gpu,
        begin: part.begin,
        end: part.end,
        billed: part.billed,
        excused: charge.excused(),
        price: charge.price,
        reason: charge.reason,
        is_correction: part.is_correction(),
        turn: charge.turn,
        index: charge.index,
        exact: amount(side, part.cost, part.fee),
        amount: MicroCredits::ZERO,
    }
}

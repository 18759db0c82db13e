//! What one side of a charge is told of it.

use serde::{Deserialize, Serialize};
use sublet_protocol::api::StatementSide;
use sublet_protocol::events::Settlement;
use sublet_protocol::ids::{GpuModel, LeaseId, Project, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::{MicroCredits, Price};
use sublet_protocol::rollbacks::ChargeStanding;
use sublet_protocol::units::{GpuMilli, Millis, Timestamp};

use super::{Billed, Charge};

/// A charge as its borrower or its lender sees it: all that a statement says of it, and nothing of
/// the other side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChargeLine {
    /// Which lease.
    pub lease: LeaseId,
    /// Which request it served.
    pub request: RequestId,
    /// What it was for; a lender is not told.
    pub project: Option<Project>,
    /// The model of its GPUs.
    pub model: GpuModel,
    /// The share of GPUs of all members together.
    pub gpu: GpuMilli,
    /// The price frozen at the grant.
    pub price: Price,
    /// The first instant of the billed time.
    pub begin: Timestamp,
    /// Ledger time of the record that settled it.
    pub settled_at: Timestamp,
    /// Why it ended.
    pub reason: EndReason,
    /// Time that ran, billed or excused.
    pub measured: Millis,
    /// What was billed and posted.
    pub settlement: Settlement,
    /// How the charge stands from its record on, if the record turned it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<ChargeStanding>,
    /// Everything before this instant was closed when it was settled.
    pub closed_until: Timestamp,
    /// Index of the record that settled it.
    pub index: u64,
}

impl ChargeLine {
    /// What `side` is told of `charge`.
    #[must_use]
    pub fn of(charge: &Charge, side: StatementSide) -> Self {
        let terms = &charge.terms;
        let project = match side {
            StatementSide::Borrower => Some(terms.project),
            // The name of another tenant's project is nothing to a lender.
            StatementSide::Lender => None,
        };
        Self {
            lease: terms.lease,
            request: terms.request,
            project,
            model: terms.model,
            gpu: charge.gpu(),
            price: terms.price,
            begin: charge.begin(),
            settled_at: charge.settled_at,
            reason: charge.reason,
            measured: charge.measured,
            settlement: charge.settlement,
            turn: charge.turn,
            closed_until: charge.closed_until,
            index: charge.index,
        }
    }

    /// All that its parts depend on.
    #[must_use]
    pub const fn billed(&self) -> Billed {
        let Self { begin, settlement, price, gpu, turn, closed_until, .. } = *self;
        Billed { begin, settlement, price, gpu, turn, closed_until }
    }

    /// Time that ran and is not billed, since its owner took the GPU back too early.
    #[must_use]
    pub fn excused(&self) -> Millis {
        self.measured.saturating_sub(self.settlement.billed)
    }

    /// What `side` pays or earns for it.
    #[must_use]
    pub fn amount(&self, side: StatementSide) -> MicroCredits {
        let Settlement { cost, fee, .. } = self.settlement;
        match side {
            StatementSide::Borrower => cost,
            // What is read from a file may be anything; as a difference it is at least no panic.
            StatementSide::Lender => cost.checked_sub(fee).unwrap_or(MicroCredits::ZERO),
        }
    }
}

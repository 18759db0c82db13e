//! The fold of records into chains.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_protocol::api::StatementSide;
use sublet_protocol::events::{Event, Settlement};
use sublet_protocol::ids::{GpuModel, LeaseId, Project, RequestId, TenantId};
use sublet_protocol::leases::{EndReason, LeaseTerms};
use sublet_protocol::money::Price;
use sublet_protocol::records::Record;
use sublet_protocol::units::{GpuMilli, Millis, Timestamp};

use super::{Account, Head, Link};
use crate::charges::ChargeLine;
use crate::merkle::{Frontier, Hash, TreeHead};

/// A lease that has not ended, as far as a statement will say of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Running {
    request: RequestId,
    tenant: TenantId,
    owner: TenantId,
    project: Project,
    model: GpuModel,
    gpu: GpuMilli,
    price: Price,
    active_since: Option<Timestamp>,
    used: Millis,
    billed_max: Millis,
    bought: Millis,
}

impl Running {
    fn of(terms: &LeaseTerms) -> Self {
        let bought = terms.duration.as_millis();
        Self {
            request: terms.request,
            tenant: terms.tenant,
            owner: terms.owner,
            project: terms.project,
            model: terms.model,
            gpu: terms.gpu_total(),
            price: terms.price,
            active_since: None,
            used: Millis::ZERO,
            billed_max: bought,
            bought,
        }
    }
}

/// A tenant's chains with the leaf that they make.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    account: Account,
    leaf: Hash,
}

/// The chains of all tenants over the first records of a ledger. It holds an account for each tenant
/// (some 300 bytes) and the leases that have not ended (some 300 bytes each).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chains {
    accounts: BTreeMap<TenantId, Kept>,
    running: BTreeMap<LeaseId, Running>,
    closed_until: Timestamp,
}

/// What is kept of [`Chains`] between two starts; see `kept`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parts {
    closed_until: Timestamp,
    accounts: Vec<(TenantId, Head, Head)>,
    running: Vec<(LeaseId, Running)>,
}

/// What a record added to chains: whose, to which side, and the link.
pub type Links = Vec<(TenantId, StatementSide, Link)>;

impl Chains {
    /// Those of no records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in the record that comes next, whose canonical bytes are `bytes`. It knows no rule and
    /// refuses nothing: an end whose grant it has not seen makes no link, which `replay` finds.
    pub fn take(&mut self, record: &Record, bytes: &[u8]) -> Links {
        match &record.event {
            Event::TenantCreated { tenant, .. } => self.open(*tenant),
            Event::PeriodClosed { until, .. } => self.close(*until),
            Event::LeaseGranted { terms, .. } => {
                self.running.insert(terms.lease, Running::of(terms));
            }
            Event::LeaseActivated { lease, .. } => {
                if let Some(running) = self.running.get_mut(lease) {
                    running.active_since.get_or_insert(record.time);
                }
            }
            Event::UsageRecorded { lease, used } | Event::MemberStopped { lease, used, .. } => {
                if let Some(running) = self.running.get_mut(lease) {
                    running.used = running.used.max(*used);
                }
            }
            Event::LeaseCapped { lease, billed_max } => {
                if let Some(running) = self.running.get_mut(lease) {
                    running.billed_max = running.bought.min(*billed_max);
                }
            }
            Event::LeaseEnded { lease, reason, settlement, .. } => {
                if let Some(running) = self.running.remove(lease) {
                    let leaf = Hash::of_leaf(bytes);
                    return self.ended(record, (*lease, &running), (*reason, *settlement), leaf);
                }
            }
            _adds_no_charge => {}
        }
        Vec::new()
    }

    /// How many tenants have an account, and the root over the accounts.
    #[must_use]
    pub fn head(&self) -> TreeHead {
        let mut tree = Frontier::new();
        self.accounts.values().for_each(|kept| tree.append(kept.leaf));
        tree.head()
    }

    /// The account of a tenant and its place among all.
    #[must_use]
    pub fn account(&self, tenant: TenantId) -> Option<(u64, &Account)> {
        let kept = self.accounts.get(&tenant)?;
        let place = self.accounts.range(..tenant).count();
        Some((u64::try_from(place).ok()?, &kept.account))
    }

    /// The tenants that have an account.
    pub fn tenants(&self) -> impl Iterator<Item = TenantId> {
        self.accounts.keys().copied()
    }

    /// The leaf hashes of all accounts, in the order of their tenants.
    pub(super) fn leaves(&self) -> Vec<Hash> {
        self.accounts.values().map(|kept| kept.leaf).collect()
    }

    fn open(&mut self, tenant: TenantId) {
        if !self.accounts.contains_key(&tenant) {
            let (borrower, lender) = (Head::empty(), Head::empty());
            self.put(Account { tenant, closed_until: self.closed_until, borrower, lender });
        }
    }

    fn put(&mut self, account: Account) {
        let leaf = account.leaf();
        self.accounts.insert(account.tenant, Kept { account, leaf });
    }

    fn close(&mut self, until: Timestamp) {
        self.closed_until = until;
        for kept in self.accounts.values_mut() {
            kept.account.closed_until = until;
            kept.leaf = kept.account.leaf();
        }
    }

    fn ended(
        &mut self,
        record: &Record,
        (lease, running): (LeaseId, &Running),
        (reason, settlement): (EndReason, Settlement),
        leaf: Hash,
    ) -> Links {
        let window = running.active_since.map_or(Millis::ZERO, |since| record.time.since(since));
        let line = |project| ChargeLine {
            lease,
            request: running.request,
            project,
            model: running.model,
            gpu: running.gpu,
            price: running.price,
            begin: running.active_since.unwrap_or(record.time),
            settled_at: record.time,
            reason,
            measured: running.used.min(window).min(running.billed_max),
            settlement,
            turn: None,
            closed_until: self.closed_until,
            index: record.index,
        };
        let paid = (running.tenant, StatementSide::Borrower, line(Some(running.project)));
        let earned = (running.owner, StatementSide::Lender, line(None));
        let sides = [paid, earned];
        sides.map(|(tenant, side, line)| (tenant, side, self.link(tenant, side, leaf, line))).into()
    }

    fn link(
        &mut self,
        tenant: TenantId,
        side: StatementSide,
        leaf: Hash,
        line: ChargeLine,
    ) -> Link {
        self.open(tenant);
        let mut account = self.accounts[&tenant].account.clone();
        let link = Link::behind(account.side(side), leaf, line, side);
        let head = link.head(&account.side(side).hash);
        match side {
            StatementSide::Borrower => account.borrower = head,
            StatementSide::Lender => account.lender = head,
        }
        self.put(account);
        link
    }

    pub(super) fn parts(&self) -> Parts {
        let heads = |kept: &Kept| {
            let Account { tenant, borrower, lender, .. } = kept.account;
            (tenant, borrower, lender)
        };
        Parts {
            closed_until: self.closed_until,
            accounts: self.accounts.values().map(heads).collect(),
            running: self.running.iter().map(|(lease, of)| (*lease, of.clone())).collect(),
        }
    }

    pub(super) fn from_parts(parts: Parts) -> Self {
        let Parts { closed_until, accounts, running } = parts;
        let mut chains =
            Self { closed_until, running: running.into_iter().collect(), ..Self::default() };
        for (tenant, borrower, lender) in accounts {
            chains.put(Account { tenant, closed_until, borrower, lender });
        }
        chains
    }
}

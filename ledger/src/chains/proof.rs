//! The proof that a statement is complete, as a file.

use std::fmt;
use std::str::FromStr;

use sublet_protocol::api::StatementSide;
use sublet_protocol::money::Currency;
use sublet_protocol::units::Timestamp;

use super::{Account, Head, Link};
use crate::audit::Seen;
use crate::checkpoint::{Checkpoint, number};
use crate::merkle::{Frontier, Hash, inclusion_ranges, is_included};
use crate::note::PublicKey;
use crate::periods::Period;
use crate::proof::{Malformed, Unproven};
use crate::statement::{Party, Statement, StatementBuilder, StatementError};

/// The first line of the file.
pub const STATEMENT_PROOF: &str = "sublet-statement-proof@v1";

/// Why a proof does not prove a statement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatementFault {
    /// What it rests on is not signed by the key.
    #[error("the proof rests on nothing that the key signed")]
    Unsigned(#[source] Unproven),
    /// The checkpoint says nothing of charges.
    #[error("the checkpoint says nothing of charges")]
    NoCharges,
    /// The account is not among those that the checkpoint signs.
    #[error("the account is not among those that the checkpoint signs")]
    NotIncluded,
    /// The account is another tenant's.
    #[error("the account is another tenant's")]
    OtherTenant,
    /// It begins behind a charge that may belong to the period.
    #[error("charges from before the first one are missing: they may belong to the period")]
    Begin,
    /// A link does not follow from the one before it.
    #[error(
        "charge {count} does not follow from the one before it: one was left out, added, moved or changed"
    )]
    Broken {
        /// The place that it names in the chain.
        count: u64,
    },
    /// The chain does not end where the signed account does.
    #[error(
        "the chain has {found} charges, the account that was signed {signed}: some were left out or changed"
    )]
    End {
        /// Charges up to the last link of the proof.
        found: u64,
        /// Charges that the account has.
        signed: u64,
    },
    /// A statement cannot be made of it.
    #[error("no statement can be made of its charges")]
    Statement(#[from] StatementError),
}

/// What shows that a statement has every charge of a tenant in a period, and no other.
#[derive(Debug, Clone)]
pub struct StatementProof {
    party: Party,
    period: Period,
    currency: Currency,
    /// The head before the first link.
    start: Head,
    links: Vec<Link>,
    account: Account,
    /// The account's place among all, and the hashes from it to the root.
    place: u64,
    path: Vec<Hash>,
    checkpoint: Checkpoint,
}

impl StatementProof {
    /// The checkpoint that it rests on.
    #[must_use]
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Everything before this instant was closed then.
    #[must_use]
    pub const fn closed_until(&self) -> Timestamp {
        self.account.closed_until
    }

    /// Whether the period was closed: no later record changes the statement.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.closed_until() >= self.period.until()
    }

    /// Checks it with the ledger's public key; the statement that it proves.
    ///
    /// # Errors
    /// It proves none.
    pub fn check(&self, key: &PublicKey) -> Result<Statement, StatementFault> {
        crate::proof::signed(&self.checkpoint, key).map_err(StatementFault::Unsigned)?;
        let charges = self.checkpoint.charges().ok_or(StatementFault::NoCharges)?;
        if !is_included(&self.account.leaf(), self.place, &charges, &self.path) {
            return Err(StatementFault::NotIncluded);
        }
        self.statement()
    }

    /// The statement that follows from its account, if that is right.
    ///
    /// # Errors
    /// Its links are not the end of the account's chain.
    pub fn statement(&self) -> Result<Statement, StatementFault> {
        let Party { tenant, side } = self.party;
        if self.account.tenant != tenant {
            return Err(StatementFault::OtherTenant);
        }
        let begins = match self.links.first() {
            // A charge that was settled before the period cannot be booked in it.
            Some(first) if self.start.count > 0 => first.charge.settled_at < self.period.from(),
            Some(_) | None => self.start == Head::empty(),
        };
        if !begins {
            return Err(StatementFault::Begin);
        }
        let mut builder = StatementBuilder::new(self.party, self.period.clone(), self.currency);
        let (mut head, mut time) = (self.start, Timestamp::ZERO);
        for link in &self.links {
            let count = link.count;
            if !link.is_behind(&head, side) || link.charge.settled_at < time {
                return Err(StatementFault::Broken { count });
            }
            time = link.charge.settled_at;
            head = link.head(&head.hash);
            builder.add_line(&link.charge)?;
        }
        let signed = self.account.side(side);
        if head != *signed {
            return Err(StatementFault::End { found: head.count, signed: signed.count });
        }
        Ok(builder.finish()?)
    }
}

/// Collects the links of a period while a ledger is checked. It keeps those since the last signed
/// checkpoint that ends before the period, about 700 bytes each.
#[derive(Debug)]
pub struct ProofBuilder {
    party: Party,
    period: Period,
    start: Head,
    links: Vec<Link>,
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    links: usize,
    account: Account,
    place: u64,
    path: Vec<Hash>,
    checkpoint: Checkpoint,
}

impl ProofBuilder {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(party: Party, period: Period) -> Self {
        Self { party, period, start: Head::empty(), links: Vec::new(), end: None }
    }

    /// Takes what a check has found good; everything from the first record on, in order. The proof
    /// rests on the first checkpoint behind the close of the period, else on the newest.
    pub fn take(&mut self, seen: &Seen<'_>) {
        if self.end.as_ref().is_some_and(|end| end.account.closed_until >= self.period.until()) {
            return;
        }
        match seen {
            Seen::Record(_, links) => {
                let own = |of: &&(_, _, Link)| (of.0, of.1) == (self.party.tenant, self.party.side);
                let own: Vec<Link> = links.iter().filter(own).map(|of| of.2.clone()).collect();
                self.links.extend(own);
            }
            Seen::Sealed { checkpoint: Some(checkpoint), chains } => {
                let Some((place, account)) = chains.account(self.party.tenant) else { return };
                self.forget_earlier();
                let leaves = chains.leaves();
                self.end = Some(End {
                    links: self.links.len(),
                    account: account.clone(),
                    place,
                    path: path(place, &leaves),
                    checkpoint: (*checkpoint).clone(),
                });
            }
            Seen::Sealed { checkpoint: None, .. } => {}
        }
    }

    /// Drops the links before the last one that was settled before the period.
    fn forget_earlier(&mut self) {
        let from = self.period.from();
        let before = self.links.partition_point(|link| link.charge.settled_at < from);
        for link in self.links.drain(..before.saturating_sub(1)) {
            self.start = link.head(&self.start.hash);
        }
    }

    /// The proof; `None` if no checkpoint that names charges knows the tenant.
    #[must_use]
    pub fn finish(self, currency: Currency) -> Option<StatementProof> {
        let Self { party, period, start, mut links, end } = self;
        let End { links: count, account, place, path, checkpoint } = end?;
        checkpoint.charges()?;
        links.truncate(count);
        Some(StatementProof {
            party,
            period,
            currency,
            start,
            links,
            account,
            place,
            path,
            checkpoint,
        })
    }
}

/// The hashes that lead from leaf `place` to the root.
fn path(place: u64, leaves: &[Hash]) -> Vec<Hash> {
    let count = u64::try_from(leaves.len()).unwrap_or(u64::MAX);
    let ranges = inclusion_ranges(place, count).unwrap_or_default();
    let root = |range: std::ops::Range<u64>| {
        let [from, until] = [range.start, range.end].map(|at| usize::try_from(at).unwrap_or(0));
        let mut tree = Frontier::new();
        leaves[from..until].iter().for_each(|leaf| tree.append(*leaf));
        tree.root()
    };
    ranges.into_iter().map(root).collect()
}

impl fmt::Display for StatementProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Party { tenant, side } = self.party;
        let (from, until, zone) =
            (self.period.from().get(), self.period.until().get(), self.period.zone_name());
        let Head { count, balance, hash } = self.start;
        writeln!(f, "{STATEMENT_PROOF}\ntenant {tenant}\nside {}", side.code())?;
        writeln!(f, "period {from} {until} {zone}\ncurrency {}", self.currency)?;
        writeln!(f, "start {count} {balance} {hash}\nlinks {}", self.links.len())?;
        self.links.iter().try_for_each(|link| writeln!(f, "{}", link.text()))?;
        write!(f, "{}", self.account.text())?;
        writeln!(f, "place {}", self.place)?;
        self.path.iter().try_for_each(|hash| writeln!(f, "{hash}"))?;
        write!(f, "\n{}", self.checkpoint)
    }
}

impl FromStr for StatementProof {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let (body, checkpoint) = text.split_once("\n\n").ok_or(Malformed::Form)?;
        let checkpoint = checkpoint.parse().map_err(Malformed::Checkpoint)?;
        let read = Body::read(body).ok_or(Malformed::Form)?;
        let Body { party, period, currency, start, links, account, place, path } = read;
        let proof =
            Self { party, period, currency, start, links, account, place, path, checkpoint };
        // One spelling only: what was signed over a link is its text.
        if proof.to_string() == text { Ok(proof) } else { Err(Malformed::Form) }
    }
}

/// All but the checkpoint.
struct Body {
    party: Party,
    period: Period,
    currency: Currency,
    start: Head,
    links: Vec<Link>,
    account: Account,
    place: u64,
    path: Vec<Hash>,
}

impl Body {
    fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|first| *first == STATEMENT_PROOF)?;
        let mut word = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let tenant = word("tenant")?.parse().ok()?;
        let sides = [StatementSide::Borrower, StatementSide::Lender];
        let side = word("side")?;
        let side = sides.into_iter().find(|one| one.code() == side)?;
        let mut period = word("period")?.splitn(3, ' ');
        let (from, until) = (number(period.next()?)?, number(period.next()?)?);
        let (from, until) = (Timestamp::new(from), Timestamp::new(until));
        let period = Period::new(from, until, period.next()?).ok()?;
        let currency = Currency::try_from(word("currency")?.to_owned()).ok()?;
        let start = head(word("start")?)?;
        let count = usize::try_from(number(word("links")?)?).ok()?;
        let links: Vec<Link> = lines
            .by_ref()
            .take(count)
            .map(|line| serde_json::from_str(line).ok())
            .collect::<Option<_>>()?;
        let account: String = lines.by_ref().take(3).flat_map(|line| [line, "\n"]).collect();
        let account = Account::parse(&account)?;
        let place = number(lines.next()?.strip_prefix("place ")?)?;
        let path = lines.map(|line| line.parse().ok()).collect::<Option<_>>()?;
        let party = Party { tenant, side };
        Some(Self { party, period, currency, start, links, account, place, path })
    }
}

fn head(text: &str) -> Option<Head> {
    let mut words = text.split(' ');
    let (count, balance) = (number(words.next()?)?, words.next()?.parse().ok()?);
    Some(Head { count, balance, hash: words.next()?.parse().ok()? })
}

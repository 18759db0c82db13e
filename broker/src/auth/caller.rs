//! A verified caller: who, in which roles, for which tenant.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sublet_protocol::commands::Actor;
use sublet_protocol::ids::{KeyId, Subject, TenantId};

/// What a caller may be. A person may hold several roles; each route names those it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Asks for capacity and uses it, for the tenant of its token.
    Tenant,
    /// Reads, of one tenant or (without a tenant in its token) of the whole cell.
    Auditor,
    /// Sets up tenants, clusters, prices and quotas; sees everything.
    Operator,
    /// A node's agent. It has nothing to do here: it speaks over the link.
    Agent,
}

/// The roles of a caller; never empty.
pub type Roles = BTreeSet<Role>;

/// What a caller sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everything of the cell.
    Cell,
    /// What belongs to one tenant.
    Tenant(TenantId),
}

impl Scope {
    /// Whether what belongs to `tenant` is seen.
    #[must_use]
    pub fn sees(self, tenant: TenantId) -> bool {
        match self {
            Scope::Cell => true,
            Scope::Tenant(own) => own == tenant,
        }
    }

    /// The one tenant whose things are seen; none if everything is.
    #[must_use]
    pub const fn tenant(self) -> Option<TenantId> {
        match self {
            Scope::Cell => None,
            Scope::Tenant(tenant) => Some(tenant),
        }
    }
}

/// Whose calls are counted together: a tenant, or a person without one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RateOwner {
    /// Everyone who calls for this tenant.
    Tenant(TenantId),
    /// One person.
    Subject(Subject),
}

/// Who calls, as a verified token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub(super) subject: Subject,
    pub(super) key: KeyId,
    pub(super) roles: Roles,
    pub(super) tenant: Option<TenantId>,
}

impl Caller {
    /// Whose calls its calls are counted with.
    pub(crate) fn rate_owner(&self) -> RateOwner {
        match self.tenant {
            Some(tenant) => RateOwner::Tenant(tenant),
            None => RateOwner::Subject(self.subject.clone()),
        }
    }

    /// Whether it holds any of these roles.
    #[must_use]
    pub fn is_any(&self, roles: &[Role]) -> bool {
        roles.iter().any(|role| self.roles.contains(role))
    }

    /// What it sees; nothing for a mere agent.
    #[must_use]
    pub fn scope(&self) -> Option<Scope> {
        if self.roles.contains(&Role::Operator) {
            return Some(Scope::Cell);
        }
        if !self.is_any(&[Role::Tenant, Role::Auditor]) {
            return None;
        }
        Some(self.tenant.map_or(Scope::Cell, Scope::Tenant))
    }

    /// The tenant it acts for in the role of a tenant.
    #[must_use]
    pub fn acting_tenant(&self) -> Option<TenantId> {
        self.tenant.filter(|_| self.roles.contains(&Role::Tenant))
    }

    /// It as the actor of a tenant's command.
    #[must_use]
    pub fn as_tenant(&self) -> Option<Actor> {
        let tenant = self.acting_tenant()?;
        Some(Actor::Tenant { tenant, subject: self.subject.clone(), key: self.key })
    }

    /// It as the actor of an operator's command.
    #[must_use]
    pub fn as_operator(&self) -> Option<Actor> {
        let actor = || Actor::Operator { subject: self.subject.clone(), key: self.key };
        self.roles.contains(&Role::Operator).then(actor)
    }
}

//! Tokens: given as they are, or minted with the profile's key for a few minutes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde::{Deserialize, Serialize};
use sublet_protocol::ids::TenantId;

use super::Profile;
use crate::failure::{Exit, Failure, Outcome};

/// How long a minted token is valid: within the 15 minutes that the server allows at most.
pub(crate) const TOKEN_LIFE: Duration = Duration::from_secs(10 * 60);

/// Which rights a token gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Asks for capacity and uses it, for one tenant.
    Tenant,
    /// Reads the ledger.
    Auditor,
    /// Sets up tenants, clusters, prices and quotas.
    Operator,
}

/// How the caller proves who it is.
#[derive(Debug, Clone)]
pub(crate) enum Credentials {
    /// Not at all: enough for what is public.
    None,
    /// A token from the command line or the environment.
    Given(String),
    /// A key to mint tokens with.
    Profile(Profile),
}

/// What a token says (RFC 7519).
#[derive(Debug, Serialize)]
struct Claims<'a> {
    iss: &'a str,
    aud: &'a str,
    sub: &'a str,
    iat: u64,
    nbf: u64,
    exp: u64,
    jti: String,
    roles: &'a [Role],
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<TenantId>,
}

/// What a minted token shall say, where it differs from the profile.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    /// For this tenant.
    pub(crate) tenant: Option<TenantId>,
    /// With these rights; empty means those of the profile.
    pub(crate) roles: Vec<Role>,
}

impl Credentials {
    /// Whether tokens can be minted with this right.
    pub(crate) fn has(&self, role: Role) -> bool {
        match self {
            Credentials::None | Credentials::Given(_) => false,
            Credentials::Profile(profile) => profile.roles.contains(&role),
        }
    }

    /// A token for the `Authorization` header; none if there are no credentials.
    pub(crate) fn token(&self, wanted: &Wanted) -> Outcome<Option<String>> {
        match self {
            Credentials::None => Ok(None),
            Credentials::Given(token) => Ok(Some(token.clone())),
            Credentials::Profile(profile) => mint(profile, wanted).map(Some),
        }
    }
}

fn mint(profile: &Profile, wanted: &Wanted) -> Outcome<String> {
    let key_file = profile.key.as_ref().ok_or_else(|| {
        Failure::new(Exit::Auth, "the profile has no key to sign a token with")
            .hint("give a token: --token, or the variable SUBLET_TOKEN")
    })?;
    let pem = std::fs::read(key_file).map_err(|error| no_key(key_file, profile).because(error))?;
    let key = EncodingKey::from_ed_pem(&pem).map_err(|error| {
        let what = format!("{} is not a private Ed25519 key", key_file.display());
        Failure::new(Exit::Auth, what).because(error)
    })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let roles = if wanted.roles.is_empty() { &profile.roles } else { &wanted.roles };
    let is_for_tenant = roles.contains(&Role::Tenant);
    let claims = Claims {
        iss: profile.issuer.as_deref().unwrap_or("sublet"),
        aud: profile.audience.as_deref().unwrap_or("sublet"),
        sub: profile.subject.as_deref().unwrap_or("cli"),
        iat: now,
        nbf: now,
        exp: now + TOKEN_LIFE.as_secs(),
        jti: crate::random::hex()?,
        roles,
        tenant: wanted.tenant.or(profile.tenant.filter(|_| is_for_tenant)),
    };
    let header = Header { kid: profile.key_id.clone(), ..Header::new(Algorithm::EdDSA) };
    jsonwebtoken::encode(&header, &claims, &key)
        .map_err(|error| Failure::new(Exit::Auth, "cannot sign a token").because(error))
}

/// A key that is gone means a `sublet dev` with a temporary folder that has ended.
fn no_key(file: &std::path::Path, profile: &Profile) -> Failure {
    let exit = if profile.pid.is_some() { Exit::Temporary } else { Exit::Auth };
    let failure = Failure::new(exit, format!("cannot read the key {}", file.display()));
    match profile.pid {
        Some(_) => failure.hint("the `sublet dev` that made it has ended: start it again"),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_made_by_dev_signs_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        crate::keys::create(&file).unwrap();
        let profile = Profile {
            server: "http://127.0.0.1:1".into(),
            key: Some(file),
            key_id: Some("dev".into()),
            issuer: None,
            audience: None,
            subject: None,
            tenant: Some(TenantId::new("initech").unwrap()),
            roles: vec![Role::Tenant],
            pid: None,
        };
        let token = mint(&profile, &Wanted::default()).unwrap();
        assert_eq!(token.split('.').count(), 3);
        assert_eq!(jsonwebtoken::decode_header(&token).unwrap().kid.as_deref(), Some("dev"));
    }
}

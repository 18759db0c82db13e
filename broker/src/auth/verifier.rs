//! Turns a bearer token into a caller, by rules that leave the token nothing to choose.

use jsonwebtoken::{Algorithm, Header, Validation};
use serde::Deserialize;
use sublet_protocol::ids::{KeyId, Subject, TenantId};

use super::caller::{Caller, Role, Roles};
use super::keys::KeySet;

/// Longest token in bytes.
pub const TOKEN_MAX: usize = 4 * 1_024;
/// Longest span between a token's `nbf` and `exp`, in seconds.
pub const LIFETIME_MAX: u64 = 15 * 60;
/// How far clocks may differ, in seconds.
pub const LEEWAY: u64 = 30;

/// The token does not prove who calls. Why is not said: the answer is the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the token is missing or not valid")]
pub struct Unauthenticated;

/// What a token must say. Further claims are passed over.
#[derive(Debug, Deserialize)]
struct Claims {
    exp: u64,
    nbf: u64,
    #[serde(default)]
    iat: Option<u64>,
    sub: String,
    roles: Vec<Role>,
    #[serde(default)]
    tenant: Option<String>,
}

/// Checks tokens.
#[derive(Debug, Clone)]
pub struct Verifier {
    keys: KeySet,
    rules: Validation,
}

impl Verifier {
    /// Takes tokens of this issuer for this audience, signed with one of these keys.
    #[must_use]
    pub fn new(keys: KeySet, issuer: &str, audience: &str) -> Verifier {
        let mut rules = Validation::new(Algorithm::EdDSA);
        rules.set_issuer(&[issuer]);
        rules.set_audience(&[audience]);
        rules.set_required_spec_claims(&["exp", "nbf", "iss", "aud", "sub"]);
        rules.validate_nbf = true;
        rules.leeway = LEEWAY;
        Verifier { keys, rules }
    }

    /// Who holds this token.
    ///
    /// # Errors
    /// [`Unauthenticated`] for whatever is wrong with it.
    pub fn verify(&self, token: &str) -> Result<Caller, Unauthenticated> {
        if token.len() > TOKEN_MAX {
            return Err(Unauthenticated);
        }
        let header = jsonwebtoken::decode_header(token).map_err(|_| Unauthenticated)?;
        let id = key_of(&header).ok_or(Unauthenticated)?;
        let key = self.keys.get(id).ok_or(Unauthenticated)?;
        let token = jsonwebtoken::decode::<Claims>(token, key, &self.rules);
        let claims = token.map_err(|_| Unauthenticated)?.claims;
        let now = jsonwebtoken::get_current_timestamp();
        if !are_times_good(&claims, now) {
            return Err(Unauthenticated);
        }
        caller(id, &claims).ok_or(Unauthenticated)
    }
}

/// The id of the key, if the header asks for nothing that is not done here.
fn key_of(header: &Header) -> Option<KeyId> {
    let wants_other_key = header.jku.is_some()
        || header.jwk.is_some()
        || header.x5u.is_some()
        || header.x5c.is_some();
    let is_more = header.crit.is_some() || header.enc.is_some() || header.zip.is_some();
    let is_jwt = header.typ.as_ref().is_none_or(|typ| typ.eq_ignore_ascii_case("jwt"));
    if header.alg != Algorithm::EdDSA || wants_other_key || is_more || !is_jwt {
        return None;
    }
    KeyId::new(header.kid.as_deref()?).ok()
}

/// The library has compared `exp` and `nbf` with the clock.
fn are_times_good(claims: &Claims, now: u64) -> bool {
    let is_short = claims.exp > claims.nbf && claims.exp - claims.nbf <= LIFETIME_MAX;
    is_short && claims.iat.is_none_or(|iat| iat <= now.saturating_add(LEEWAY))
}

fn caller(key: KeyId, claims: &Claims) -> Option<Caller> {
    let subject: Subject = claims.sub.parse().ok()?;
    let roles: Roles = claims.roles.iter().copied().collect();
    let tenant = claims.tenant.as_deref().map(TenantId::new).transpose().ok()?;
    if roles.is_empty() || (roles.contains(&Role::Tenant) && tenant.is_none()) {
        return None;
    }
    Some(Caller { subject, key, roles, tenant })
}

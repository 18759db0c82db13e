//! Tokens for tests, signed with keys made from a number.

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::EncodePrivateKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use sublet_protocol::ids::KeyId;

use super::{KeySet, Verifier};

pub(crate) const ISSUER: &str = "sublet";
pub(crate) const AUDIENCE: &str = "sublet";

pub(crate) fn signing_key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

/// Knows key `k1`, made from 1.
pub(crate) fn verifier() -> Verifier {
    let mut keys = KeySet::default();
    let public = signing_key(1).verifying_key().to_bytes();
    keys.add_bytes(KeyId::new("k1").unwrap(), &public).unwrap();
    Verifier::new(keys, ISSUER, AUDIENCE)
}

pub(crate) fn claims(roles: &[&str], tenant: Option<&str>) -> Value {
    let now = jsonwebtoken::get_current_timestamp();
    let mut claims = json!({
        "iss": ISSUER, "aud": AUDIENCE, "sub": "ann@example", "iat": now, "nbf": now,
        "exp": now + 600, "roles": roles,
    });
    if let Some(tenant) = tenant {
        claims["tenant"] = json!(tenant);
    }
    claims
}

pub(crate) fn header() -> Header {
    Header { kid: Some("k1".to_owned()), ..Header::new(Algorithm::EdDSA) }
}

pub(crate) fn sign(header: &Header, claims: &Value, seed: u8) -> String {
    let pem = signing_key(seed).to_pkcs8_pem(LineEnding::LF).unwrap();
    let key = EncodingKey::from_ed_pem(pem.as_bytes()).unwrap();
    jsonwebtoken::encode(header, claims, &key).unwrap()
}

/// A good token.
pub(crate) fn token(roles: &[&str], tenant: Option<&str>) -> String {
    sign(&header(), &claims(roles, tenant), 1)
}

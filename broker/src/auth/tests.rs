//! Tokens that are accepted, and those that are not.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::Signer;
use ed25519_dalek::pkcs8::EncodePublicKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use sublet_protocol::ids::{KeyId, TenantId};

use super::testing::{claims, header, sign, signing_key, token, verifier};
use super::{KeySet, Role, Scope, Unauthenticated};

/// Signs this very text as header and claims, whatever it says.
fn raw(header: &str, claims: &str) -> String {
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = signing_key(1).sign(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
}

const HEADER: &str = r#"{"typ":"JWT","alg":"EdDSA","kid":"k1"}"#;

fn tenant_claims() -> Value {
    claims(&["tenant"], Some("acme"))
}

fn with(change: impl FnOnce(&mut Value)) -> String {
    let mut claims = tenant_claims();
    change(&mut claims);
    raw(HEADER, &claims.to_string())
}

fn with_header(text: &str) -> String {
    raw(text, &tenant_claims().to_string())
}

fn without(claim: &str) -> String {
    with(|claims| drop(claims.as_object_mut().unwrap().remove(claim)))
}

fn hmac(key: &[u8]) -> String {
    let header = Header { kid: Some("k1".to_owned()), ..Header::new(Algorithm::HS256) };
    jsonwebtoken::encode(&header, &tenant_claims(), &EncodingKey::from_secret(key).unwrap())
        .unwrap()
}

/// Every bad token, named. Each differs in one thing from a token that is accepted.
pub(crate) fn bad_tokens() -> Vec<(&'static str, String)> {
    let now = jsonwebtoken::get_current_timestamp();
    let good = raw(HEADER, &tenant_claims().to_string());
    let parts: Vec<&str> = good.split('.').collect();
    let public = signing_key(1).verifying_key();
    let pem = public.to_public_key_pem(LineEnding::LF).unwrap();
    let twice = tenant_claims().to_string().replacen('{', r#"{"tenant":"umbrella","#, 1);
    let none = r#"{"typ":"JWT","alg":"none","kid":"k1"}"#;
    let unsigned = format!("{}.{}.", URL_SAFE_NO_PAD.encode(none), parts[1]);
    vec![
        ("empty", String::new()),
        ("no token at all", "hello".to_owned()),
        ("two parts", format!("{}.{}", parts[0], parts[1])),
        ("four parts", format!("{good}.x")),
        ("no signature", format!("{}.{}.", parts[0], parts[1])),
        ("half a signature", good[..good.len() - 20].to_owned()),
        ("other claims under the signature", {
            let claims = claims(&["operator"], None).to_string();
            format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode(claims), parts[2])
        }),
        ("not base 64", format!("{}.{}!.{}", parts[0], parts[1], parts[2])),
        ("padded base 64", format!("{}=.{}.{}", parts[0], parts[1], parts[2])),
        ("another key", sign(&header(), &tenant_claims(), 2)),
        ("alg none", unsigned),
        ("alg none, signed", with_header(none)),
        ("HS256 with the public key", hmac(public.as_bytes())),
        ("HS256 with the public key's PEM", hmac(pem.as_bytes())),
        ("HS256 with a zero key", hmac(&[0])),
        ("alg RS256", with_header(r#"{"typ":"JWT","alg":"RS256","kid":"k1"}"#)),
        ("alg ES256", with_header(r#"{"typ":"JWT","alg":"ES256","kid":"k1"}"#)),
        ("alg in lower case", with_header(r#"{"typ":"JWT","alg":"eddsa","kid":"k1"}"#)),
        ("no alg", with_header(r#"{"typ":"JWT","kid":"k1"}"#)),
        ("alg twice", with_header(r#"{"alg":"none","alg":"EdDSA","kid":"k1"}"#)),
        ("no kid", with_header(r#"{"typ":"JWT","alg":"EdDSA"}"#)),
        ("unknown kid", with_header(r#"{"typ":"JWT","alg":"EdDSA","kid":"k2"}"#)),
        ("kid of another type", with_header(r#"{"typ":"JWT","alg":"EdDSA","kid":1}"#)),
        ("kid as a path", with_header(r#"{"alg":"EdDSA","kid":"../../dev/null"}"#)),
        ("kid as SQL", with_header(r#"{"alg":"EdDSA","kid":"k1' OR '1'='1"}"#)),
        ("empty kid", with_header(r#"{"alg":"EdDSA","kid":""}"#)),
        ("jku", with_header(r#"{"alg":"EdDSA","kid":"k1","jku":"https://x.example/k"}"#)),
        ("x5u", with_header(r#"{"alg":"EdDSA","kid":"k1","x5u":"https://x.example/k"}"#)),
        ("x5c", with_header(r#"{"alg":"EdDSA","kid":"k1","x5c":["AA=="]}"#)),
        (
            "jwk",
            with_header(
                r#"{"alg":"EdDSA","kid":"k1","jwk":{"kty":"OKP","crv":"Ed25519","x":"AA"}}"#,
            ),
        ),
        ("crit", with_header(r#"{"alg":"EdDSA","kid":"k1","crit":["exp"]}"#)),
        ("crit b64", with_header(r#"{"alg":"EdDSA","kid":"k1","crit":["b64"],"b64":true}"#)),
        ("empty crit", with_header(r#"{"alg":"EdDSA","kid":"k1","crit":[]}"#)),
        ("b64 false", with_header(r#"{"alg":"EdDSA","kid":"k1","b64":false}"#)),
        ("zip", with_header(r#"{"alg":"EdDSA","kid":"k1","zip":"DEF"}"#)),
        ("another typ", with_header(r#"{"typ":"logout+jwt","alg":"EdDSA","kid":"k1"}"#)),
        ("header is a list", with_header("[]")),
        ("claims are a list", raw(HEADER, "[]")),
        ("claims are no JSON", raw(HEADER, "{")),
        (
            "expired",
            with(|c| {
                c["nbf"] = json!(now - 600);
                c["exp"] = json!(now - 32);
            }),
        ),
        (
            "not yet",
            with(|c| {
                c["nbf"] = json!(now + 90);
                c["exp"] = json!(now + 600);
            }),
        ),
        ("issued in the future", with(|c| c["iat"] = json!(now + 90))),
        ("valid for too long", with(|c| c["exp"] = json!(now + 902))),
        (
            "ends before it begins",
            with(|c| {
                c["nbf"] = json!(now + 20);
                c["exp"] = json!(now + 20);
            }),
        ),
        ("never ends", with(|c| c["exp"] = json!(u64::MAX))),
        ("exp as text", with(|c| c["exp"] = json!((now + 600).to_string()))),
        ("exp with a fraction", with(|c| c["exp"] = json!(600.5))),
        ("negative exp", with(|c| c["exp"] = json!(-1))),
        ("exp null", with(|c| c["exp"] = Value::Null)),
        ("nbf as text", with(|c| c["nbf"] = json!("0"))),
        ("no exp", without("exp")),
        ("no nbf", without("nbf")),
        ("no iss", without("iss")),
        ("no aud", without("aud")),
        ("no sub", without("sub")),
        ("no roles", without("roles")),
        ("role tenant without a tenant", without("tenant")),
        ("no roles in the list", with(|c| c["roles"] = json!([]))),
        ("roles as text", with(|c| c["roles"] = json!("tenant"))),
        ("an unknown role", with(|c| c["roles"] = json!(["admin"]))),
        ("a role in capitals", with(|c| c["roles"] = json!(["Operator"]))),
        ("another issuer", with(|c| c["iss"] = json!("someone"))),
        ("empty issuer", with(|c| c["iss"] = json!(""))),
        ("another audience", with(|c| c["aud"] = json!("someone"))),
        ("audience as an empty list", with(|c| c["aud"] = json!([]))),
        ("audience of another type", with(|c| c["aud"] = json!({"sublet": true}))),
        ("empty subject", with(|c| c["sub"] = json!(""))),
        ("a subject with a line end", with(|c| c["sub"] = json!("a\nb"))),
        ("a subject of another type", with(|c| c["sub"] = json!(7))),
        ("a bad tenant", with(|c| c["tenant"] = json!("Acme Inc"))),
        ("a tenant of another type", with(|c| c["tenant"] = json!(["acme"]))),
        ("tenant twice", raw(HEADER, &twice)),
        ("too long", with(|c| c["pad"] = json!("x".repeat(4_096)))),
        ("1 MiB", format!("{}.{}.{}", parts[0], "A".repeat(1_048_576), parts[2])),
    ]
}

#[test]
fn a_good_token_tells_who_calls_and_each_bad_one_nothing() {
    let verifier = verifier();
    let caller = verifier.verify(&raw(HEADER, &tenant_claims().to_string())).unwrap();
    assert_eq!(caller.acting_tenant(), Some(TenantId::new("acme").unwrap()));
    assert!(caller.as_tenant().is_some() && caller.as_operator().is_none());
    let bad = bad_tokens();
    assert!(bad.len() >= 60, "only {} bad tokens", bad.len());
    for (name, token) in bad {
        assert_eq!(verifier.verify(&token), Err(Unauthenticated), "{name}");
    }
}

#[test]
fn what_is_just_within_the_rules_is_accepted() {
    let now = jsonwebtoken::get_current_timestamp();
    let good = [
        ("15 minutes", with(|c| c["exp"] = json!(now + 900))),
        (
            "expired within the leeway",
            with(|c| {
                c["nbf"] = json!(now - 600);
                c["exp"] = json!(now - 20);
            }),
        ),
        ("begins within the leeway", with(|c| c["nbf"] = json!(now + 20))),
        ("one audience of several", with(|c| c["aud"] = json!(["other", "sublet"]))),
        ("no typ", with_header(r#"{"alg":"EdDSA","kid":"k1"}"#)),
        ("typ in lower case", with_header(r#"{"typ":"jwt","alg":"EdDSA","kid":"k1"}"#)),
        ("no iat", without("iat")),
        ("further claims", with(|c| c["jti"] = json!("1"))),
        ("nearly too long", with(|c| c["pad"] = json!("x".repeat(2_500)))),
    ];
    for (name, token) in good {
        assert!(verifier().verify(&token).is_ok(), "{name}");
    }
}

#[test]
fn roles_decide_what_is_seen_and_as_whom_one_acts() {
    let acme = TenantId::new("acme").unwrap();
    let caller = |roles: &[&str], tenant| verifier().verify(&token(roles, tenant)).unwrap();
    let rows = [
        (caller(&["tenant"], Some("acme")), Some(Scope::Tenant(acme)), true, false),
        (caller(&["auditor"], Some("acme")), Some(Scope::Tenant(acme)), false, false),
        (caller(&["auditor"], None), Some(Scope::Cell), false, false),
        (caller(&["operator"], None), Some(Scope::Cell), false, true),
        (caller(&["operator", "tenant"], Some("acme")), Some(Scope::Cell), true, true),
        (caller(&["tenant", "auditor"], Some("acme")), Some(Scope::Tenant(acme)), true, false),
        (caller(&["agent"], None), None, false, false),
    ];
    for (caller, scope, tenant, operator) in rows {
        assert_eq!(caller.scope(), scope, "{caller:?}");
        assert_eq!(caller.as_tenant().is_some(), tenant, "{caller:?}");
        assert_eq!(caller.as_operator().is_some(), operator, "{caller:?}");
    }
    assert!(caller(&["auditor"], None).is_any(&[Role::Auditor, Role::Operator]));
}

#[test]
fn a_key_is_read_from_pem_once() {
    let pem = signing_key(1).verifying_key().to_public_key_pem(LineEnding::LF).unwrap();
    let id = KeyId::new("k1").unwrap();
    let mut keys = KeySet::default();
    keys.add_pem(id, pem.as_bytes()).unwrap();
    assert!(keys.add_pem(id, pem.as_bytes()).is_err(), "the same id twice");
    let other = KeyId::new("k2").unwrap();
    assert!(keys.add_pem(other, b"-----BEGIN PUBLIC KEY-----\nAAAA\n").is_err());
}

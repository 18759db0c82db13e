//! The OpenAPI document.

use serde_json::Value;

use super::support::{Call, World};

#[tokio::test]
async fn the_document_is_served_and_every_reference_in_it_leads_somewhere() {
    let world = World::new().await;
    let answer = world.call(Call::get("/openapi.json")).await.expect(200);
    let document = answer.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 50);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let is_dry_run = ["/v1/plan", "/v1/rollbacks/plan"].contains(&path.as_str());
            let changes = method != "get" && !is_dry_run;
            let names_key = operation.to_string().contains("Idempotency-Key");
            assert_eq!(changes, names_key, "{method} {path}");
            assert_eq!(path.starts_with("/v1/"), operation.get("security").is_some(), "{path}");
        }
    }
    let count = &document["components"]["schemas"]["WholeFrom1To1024"];
    assert_eq!((&count["minimum"], &count["maximum"]), (&Value::from(1), &Value::from(1_024)));
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("$ref", Value::String(reference)) => references.push(reference.clone()),
                    _other => collect(value, references),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        _other => {}
    }
}

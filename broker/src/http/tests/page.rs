//! The page for a person.

use super::support::{Call, World};

#[tokio::test]
async fn the_page_needs_no_script_names_nobody_and_loads_nothing() {
    let world = World::new().await;
    let page = world.call(Call::get("/")).await.expect(200);
    assert!(page.header("content-type").starts_with("text/html"));
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    let text = page.text();
    for wanted in ["lab", "requests waiting", "capacity_offered", "http-equiv=\"refresh\""] {
        assert!(text.contains(wanted), "{wanted} is missing");
    }
    for unwanted in ["<script", "acme", "initech", "http://", "https://", " style="] {
        assert!(!text.contains(unwanted), "{unwanted} is there");
    }
    let root = world.cell.head().unwrap().root.to_string();
    assert!(text.contains(&root));
}

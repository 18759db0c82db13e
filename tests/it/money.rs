//! Money from the command line to an audit of the folder that is left behind.

use sublet_ledger::audit::{Audit, Folder};
use sublet_ledger::charges::Recount;

use crate::support::{Dev, Home, text, wait_for};

#[test]
fn what_a_lease_cost_is_in_the_statements_and_is_computed_again_from_the_folder() {
    let home = Home::new();
    let data = home.path().join("data");
    let dev = Dev::start(&home, &["--data-dir", data.to_str().unwrap()]);
    dev.all_on_offer(&home);
    home.ok(&["lease", "run", "--", "true"]);
    let span = ["--from", "2020-01-01", "--until", "2100-01-01"];
    let statement =
        |more: &[&str]| home.json(&[&["ledger", "statement"], &span[..], more].concat());
    let found = wait_for("the lease on the statement", || {
        let found = statement(&[]);
        (!found["lines"].as_array().unwrap().is_empty()).then_some(found)
    });
    assert_eq!(text(&found, "/side"), "borrower");
    let table = home.ok(&[&["ledger", "statement", "--days"], &span[..]].concat());
    assert!(table.starts_with("DAY"), "{table}");
    let shown = home.sublet(&[&["ledger", "statement"], &span[..]].concat());
    assert!(shown.err.contains("unrounded"), "{shown:#?}");
    // A month that is not over stays open; a month long ago can be closed.
    let early = home.sublet(&["ledger", "close", "--month", "2099-12"]);
    assert_eq!(early.code, 5, "{early:#?}");
    assert!(early.err.contains("not over yet"), "{early:#?}");
    let closed = home.json(&["ledger", "close", "--month", "2026-01"]);
    assert_eq!(text(&closed, "/closed_until"), "2026-02-01T00:00:00.000Z");
    assert_eq!(home.json(&["ledger", "close", "--show"]), closed);
    dev.stop();

    let folder = Folder::find(&data).unwrap();
    let (mut recount, mut charges) = (Recount::new(), Vec::new());
    let outcome = Audit::new(&folder)
        .run_visiting(|_| (), |record| charges.extend(recount.take(record).unwrap()));
    assert_eq!(outcome.unwrap().class(), None);
    assert_eq!(recount.closed_until().get(), 1_769_904_000_000);
    let lease = text(&found, "/lines/0/lease");
    let charge = charges.iter().find(|charge| charge.terms.lease.to_string() == lease).unwrap();
    assert_eq!(charge.settlement.cost.to_string(), text(&found, "/lines/0/exact/amount"));
}

//! Scenarios that went wrong elsewhere, each with real rules and sessions: the peers' incidents of the
//! matching design, and the lease cases. Each case is told twice: as a test of our own, and as a
//! sequence of events that is read from files (`fixtures/cases`, and the public cases where they are
//! there) and driven through the same rules.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bench;
mod cases;
#[path = "../support/mod.rs"]
mod support;

mod clocks;
mod ends;
mod incidents;
mod messages;
mod quotas;
mod restarts;
mod stalled;
mod thrash;

use bench::{Cell, Node, spec, talk, tenant};
use sublet_agent::driver::GuestKey;
use sublet_protocol::events::Event;
use sublet_protocol::leases::EndReason;
use sublet_protocol::units::{GpuMilli, Millis};

/// A cell and one node with `devices` idle GPUs on offer.
fn pair(devices: usize) -> (Cell, Node) {
    let (mut cell, mut one) = (Cell::new(), Node::new(0, devices));
    talk(&mut cell, &mut [&mut one]);
    one.see_idle();
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(cell.state.offers().len(), devices);
    (cell, one)
}

/// The same with one active lease of `t-a` on each GPU of a request for `count`.
fn leased(devices: usize, count: u32, seconds: u64) -> (Cell, Node) {
    let (mut cell, mut one) = pair(devices);
    cell.submit("t-a", 1, spec(count, seconds));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(one.guests.len(), usize::try_from(count).unwrap());
    (cell, one)
}

fn ends(cell: &Cell) -> Vec<(EndReason, Millis)> {
    let ends = cell.journal.iter().filter_map(|record| match &record.event {
        Event::LeaseEnded { reason, settlement, .. } => Some((*reason, settlement.billed)),
        _other => None,
    });
    ends.collect()
}

fn held(cell: &Cell, name: &str) -> GpuMilli {
    cell.state.tenants()[&tenant(name)].held(bench::model())
}

fn only_guest(one: &Node) -> GuestKey {
    *one.guests.keys().next().unwrap()
}

fn both_later(cell: &mut Cell, one: &mut Node, seconds: u64) {
    cell.later(seconds);
    one.later(seconds);
}

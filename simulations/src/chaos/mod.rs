//! Chaos: the real rules, ledger and agent session in one process and virtual time, with everything
//! round them modelled and broken in every way we know. One seed is one trace.
//!
//! Real: `sublet_core`'s `apply`, invariants, leader's logic and matcher; `sublet_ledger`'s journal
//! and books; `sublet_agent`'s session, outbox and durable state; the codec on every message and
//! command. Modelled: the replicated log ([`raft`]), the network, clocks, processes and guests, the
//! shell round the leader's logic, clients and owners. [`crate::checker`] looks on.

mod agent;
mod breaks;
mod broker;
mod client;
mod clock;
mod disk;
mod eyes;
mod fault;
mod guests;
mod heal;
mod log;
mod network;
mod owner;
mod planner;
mod queue;
mod raft;
mod rule;
mod run;
mod second;
mod setup;
mod world;

pub use fault::{Fault, Faults};
pub use rule::{Expected, Rule};
pub use run::{Found, Options, Outcome, Scenario, run};

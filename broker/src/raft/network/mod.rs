//! The way to the other brokers of a cell: TCP with mutual TLS, one frame per message.
//!
//! A connection is made by the broker that wants something, says who it is and whom it means
//! ([`hello`]), and then carries one kind of talk: what consensus says to a peer ([`peer`],
//! [`append`], [`transfer`]), or what a follower asks its leader ([`asks`]). [`server`] is the other
//! side of all of them. [`messages`] are the words, [`frame`] how they lie on the wire, [`identity`]
//! the certificates.
//!
//! What holds
//! - A frame has a cap, and so has what is on its way to a peer. A peer that does not read or answer
//!   is given up, not waited for without end.
//! - A peer that cannot be reached or is refused is tried again after a pause that grows, and the same
//!   trouble is told once a minute ([`pauses`]).
//! - A call that is given up halfway leaves its connection usable: answers carry the number of what
//!   they answer.
//! - Without certificates brokers talk over the loopback interface only, or if the configuration
//!   says so in words.

mod append;
mod asks;
mod frame;
mod hello;
mod identity;
mod messages;
mod pauses;
mod peer;
mod receive;
mod server;
mod transfer;
#[cfg(test)]
mod transfer_tests;

pub use asks::{AskHandler, Asked};
pub use identity::{Identity, IdentityError, Security, TlsFiles, broker_name};

pub(super) use asks::{Asker, Missed};
pub(super) use messages::{Question, Reply};
pub(super) use peer::{Network, Site};
pub(super) use server::{Host, serve};

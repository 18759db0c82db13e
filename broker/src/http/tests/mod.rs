//! The whole API on a real cell: roles, bad input, keys, streams, sockets.

mod bad_input;
mod change;
mod clocks;
mod defer;
mod document;
mod life;
mod lookback;
mod matrix;
mod names;
mod page;
mod proofs;
mod reconciliation;
mod rollbacks;
mod serving;
mod stale;
mod statements;
mod support;
mod watching;

//! Tidy: properties of the source tree that neither the compiler nor Clippy checks.
//!
//! One module per property. Each has a function from text to violations, a test that runs it on
//! the tree, and tests that plant a violation and see it caught. No network, no clock, and no
//! package of the workspace is called: `cargo test --test tidy` only reads files.

mod borders;
mod core_purity;
mod dependencies;
mod docs;
mod leftovers;
mod lexer;
mod manifests;
mod names;
mod places;
mod protocol_purity;
mod tree;
mod unsafe_code;

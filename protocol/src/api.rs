//! API bodies.

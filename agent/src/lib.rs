//! The agent on each node: what is idle, and the only gate to it.

//! The rules of Sublet: pure functions from state and command to events.

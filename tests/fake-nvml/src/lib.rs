//! A `libnvidia-ml.so.1` for tests: the symbols that the agent calls, with the types of the real
//! header, answered from a scenario file.
//!
//! The file is named by `SUBLET_FAKE_NVML`, or is `scenario.json` beside the library itself, so that
//! every copy of the library in one process has a scenario of its own. It is read at the first call
//! and again whenever it changes; write a new file and rename it over the old one. What the scenario
//! does not say of a device the library does not support (`NOT_SUPPORTED`), as older cards do not.
//! Nothing that ships may depend on this package.
#![allow(clippy::as_conversions, reason = "numbers of a C interface, in a test double")]

mod exports;
pub mod scenario;
mod state;

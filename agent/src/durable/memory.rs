//! The store of simulated nodes and tests.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Durable, DurableState, Error};

/// Keeps the state in memory. Clones share it, so a "restarted" agent finds what the first one
/// stored.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Mutex<DurableState>>);

impl MemoryStore {
    /// What was stored last.
    #[must_use]
    pub fn stored(&self) -> DurableState {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Durable for MemoryStore {
    fn begin(&mut self) -> Result<DurableState, Error> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.boot = state.boot.next();
        Ok(state.clone())
    }

    fn store(&mut self, state: &DurableState) -> Result<(), Error> {
        state.clone_into(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}

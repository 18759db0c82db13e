//! INV-14, the agents' part: what an agent keeps stays below its cap however long the broker is away.

use super::Checker;

/// Settled entries of use that are kept, and as many as a node can have under way.
const USAGE_MAX: usize = 256 + 16;

impl Checker {
    pub(super) fn bounds_of_agent(&mut self, usage: usize) {
        self.check(14, usage <= USAGE_MAX, || format!("an agent keeps {usage} entries of use"));
    }
}

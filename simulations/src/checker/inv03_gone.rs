//! INV-3, second half: what is ending is gone within its grace while the agent is up, and within W
//! always. The simulation looks at the promised moment and says here what it found; INV-7 is
//! promised and looked at in the same way.

use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::LeaseId;

use super::Checker;

impl Checker {
    /// A guest should have been gone by now and is not.
    pub(crate) fn guest_is_late(&mut self, invariant: u8, lease: LeaseId, slice: SliceId) {
        let why = match invariant {
            3 => "was told to stop and its grace is over",
            _owner => "has an owner beside it whose grace is over",
        };
        self.fail(invariant, format!("the guest of {lease} on {slice} {why}"));
    }
}

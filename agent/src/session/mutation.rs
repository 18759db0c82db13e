//! Rules that can be left out, so that the simulator can show that each is needed.
//!
//! The questions stand where the rules do. Without the feature `mutations`, which only the simulator
//! switches on, a session has no field to hold an answer and every question is answered "no" when the
//! program is compiled.

use super::Session;

/// What a session may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Tokens are not compared (LF2).
    AnyToken,
    /// A grant for an earlier start is taken (LF3).
    AnyBoot,
    /// Nobody looks whether the device is idle when a grant comes (LG2).
    OwnerUnseen,
    /// Life counts from when the activation came (LG3).
    ActivationFromArrival,
    /// Life counts from when the answer to a renewal came (LR1).
    RenewalFromArrival,
    /// `Stopped` is said when the guest was only told to stop (LE1).
    StoppedTooSoon,
    /// Nothing kills a guest before the deadline it had (LE2).
    NoKill,
    /// A stop of what is not held raises no token (LE3).
    NoRaise,
    /// Nothing ends because the owner is there (LA1).
    OwnerIgnored,
    /// Nothing ends because life or bought time is over (LA2).
    NoSelfStop,
    /// Nothing ends because of strangers or faults (LA4).
    ForeignIgnored,
    /// A guest starts when it is granted, without the activation (LA6).
    StartsUnasked,
    /// A guest is stopped when two renewals were not answered (LA6).
    StopsEarly,
    /// A bug that was: a refused report of an end makes the agent forget the use.
    ForgetsRefused,
}

#[cfg(feature = "mutations")]
impl Session {
    /// Leaves these rules out from now on.
    pub const fn leave_out(&mut self, mutations: &'static [Mutation]) {
        self.mutations = mutations;
    }

    pub(super) fn leaves_out(&self, mutation: Mutation) -> bool {
        self.mutations.contains(&mutation)
    }
}

#[cfg(not(feature = "mutations"))]
impl Session {
    #[allow(clippy::unused_self, reason = "with the feature the answer is in the session")]
    pub(super) const fn leaves_out(&self, _mutation: Mutation) -> bool {
        false
    }
}

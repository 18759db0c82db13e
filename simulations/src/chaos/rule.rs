//! The rules of the lease protocol, each as something that can be taken out. A run without a rule
//! must break an invariant, or the rule is only words.
//!
//! Rules of the core and of the agent's session are taken out inside them, by code that exists only
//! with the feature `mutations`; rules that the shell, the node or the client keeps are taken out in
//! the model of these.

/// A rule, or a pair of twins of which either suffices, or a bug that was found and mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// LF1: a grant takes the last token again.
    Lf1Tokens,
    /// LF2: the agent does not compare tokens.
    Lf2Compare,
    /// LF2: what the agent keeps is not on the disk when it acts.
    Lf2Fsync,
    /// LF3 on both sides: neither agent nor broker compares the start.
    Lf3Both,
    /// LG1: quota is not judged again when the plan is committed.
    Lg1Quota,
    /// LG2: the agent does not look for the owner.
    Lg2Owner,
    /// LG3: a lease is active once one member has confirmed.
    Lg3All,
    /// LG3: life counts from when the activation came, not from the nonce.
    Lg3Nonce,
    /// LG4: a refusal ends a lease that was active.
    Lg4Late,
    /// LR1: life counts from when the answer came.
    Lr1Sent,
    /// LR2: the broker waits for TTL only, without rate errors and margin.
    Lr2Wait,
    /// LR3: a new leader does not count agents as just heard.
    Lr3Heard,
    /// LR4: a renewal is answered without the quorum.
    Lr4Barrier,
    /// LR5: the agent's clock stands still in suspend.
    Lr5Boottime,
    /// LE1: a lease ends with its first stopped member.
    Le1All,
    /// LE1: the agent says `Stopped` when the guest was only told to stop.
    Le1Gone,
    /// LE2: nothing kills a guest that ignores its signal before its old deadline.
    Le2Kill,
    /// LE3: a stop of what is not held does not raise the token.
    Le3Raise,
    /// LA1: the session does nothing when the owner arrives.
    La1Owner,
    /// LA2 with LA5: the agent does not stop by itself, and there is no guard.
    La2La5,
    /// LA3: a new start leaves the old guests alone.
    La3Clear,
    /// LA4: a stranger's process or a lost device ends nothing.
    La4Foreign,
    /// LA5: there is no guard.
    La5Guard,
    /// LB1: use is added up instead of merged.
    Lb1Max,
    /// LB2: the charge is the time between commits, not what was measured.
    Lb2Measured,
    /// LB3: the agent's account of use is not kept.
    Lb3Outbox,
    /// LK1: idempotency keys are not looked up.
    Lk1Keys,
    /// LK2: a client takes silence for a failure and asks under a new key.
    Lk2Unknown,
    /// A bug that was: the first of equally few victims, whatever its tier.
    BugFirstVictims,
    /// A bug that was: a leader that is behind refuses what it has not heard of, and the agent forgets
    /// the use.
    BugRashRefusal,
    /// A bug that was: a new start says hello before it settles what earlier ones ran.
    BugHelloFirst,
    /// The ledger's files are not synced, though it says so.
    LedgerSync,
}

impl Rule {
    /// Every rule that can be taken out.
    pub const ALL: [Rule; 32] = [
        Rule::Lf1Tokens,
        Rule::Lf2Compare,
        Rule::Lf2Fsync,
        Rule::Lf3Both,
        Rule::Lg1Quota,
        Rule::Lg2Owner,
        Rule::Lg3All,
        Rule::Lg3Nonce,
        Rule::Lg4Late,
        Rule::Lr1Sent,
        Rule::Lr2Wait,
        Rule::Lr3Heard,
        Rule::Lr4Barrier,
        Rule::Lr5Boottime,
        Rule::Le1All,
        Rule::Le1Gone,
        Rule::Le2Kill,
        Rule::Le3Raise,
        Rule::La1Owner,
        Rule::La2La5,
        Rule::La3Clear,
        Rule::La4Foreign,
        Rule::La5Guard,
        Rule::Lb1Max,
        Rule::Lb2Measured,
        Rule::Lb3Outbox,
        Rule::Lk1Keys,
        Rule::Lk2Unknown,
        Rule::BugFirstVictims,
        Rule::BugRashRefusal,
        Rule::BugHelloFirst,
        Rule::LedgerSync,
    ];

    /// The rule of this name, however it is spelt.
    #[must_use]
    pub fn named(name: &str) -> Option<Rule> {
        let plain = |text: &str| text.to_lowercase().replace(['_', '-'], "");
        Rule::ALL.into_iter().find(|rule| plain(&format!("{rule:?}")) == plain(name))
    }

    /// What the core leaves out for it.
    pub(super) const fn core(self) -> Option<CoreLapse> {
        #[cfg(feature = "mutations")]
        {
            use sublet_core::mutation::Mutation;
            let mutation = match self {
                Rule::Lf1Tokens => Mutation::SameToken,
                Rule::Lf3Both => Mutation::AnyBoot,
                Rule::Lg1Quota => Mutation::NoQuota,
                Rule::Lg3All => Mutation::OneConfirms,
                Rule::Lg4Late => Mutation::LateRefusal,
                Rule::Le1All => Mutation::OneStops,
                Rule::Lb1Max => Mutation::UseAddsUp,
                Rule::Lb2Measured => Mutation::UnmeasuredCharge,
                Rule::Lk1Keys => Mutation::NoKeys,
                Rule::BugFirstVictims => Mutation::FirstVictims,
                Rule::BugRashRefusal => Mutation::RashRefusal,
                _other => return None,
            };
            Some(CoreLapse(mutation))
        }
        #[cfg(not(feature = "mutations"))]
        {
            let _ = self;
            None
        }
    }

    /// What the agent's session leaves out for it.
    pub(super) const fn agent(self) -> Option<AgentLapse> {
        #[cfg(feature = "mutations")]
        {
            use sublet_agent::session::mutation::Mutation;
            let mutation = match self {
                Rule::Lf2Compare => Mutation::AnyToken,
                Rule::Lf3Both => Mutation::AnyBoot,
                Rule::Lg2Owner => Mutation::OwnerUnseen,
                Rule::Lg3Nonce => Mutation::ActivationFromArrival,
                Rule::Lr1Sent => Mutation::RenewalFromArrival,
                Rule::Le1Gone => Mutation::StoppedTooSoon,
                Rule::Le2Kill => Mutation::NoKill,
                Rule::Le3Raise => Mutation::NoRaise,
                Rule::La1Owner => Mutation::OwnerIgnored,
                Rule::La2La5 => Mutation::NoSelfStop,
                Rule::La4Foreign => Mutation::ForeignIgnored,
                Rule::BugRashRefusal => Mutation::ForgetsRefused,
                _other => return None,
            };
            Some(AgentLapse(mutation))
        }
        #[cfg(not(feature = "mutations"))]
        {
            let _ = self;
            None
        }
    }
}

/// What the core leaves out; cannot be made without the feature `mutations`.
#[cfg(feature = "mutations")]
pub(super) struct CoreLapse(sublet_core::mutation::Mutation);

#[cfg(feature = "mutations")]
impl CoreLapse {
    pub(super) fn apply(&self, state: &mut sublet_core::State) {
        state.leave_out(self.0);
    }
}

/// What the session leaves out; cannot be made without the feature `mutations`.
#[cfg(feature = "mutations")]
pub(super) struct AgentLapse(sublet_agent::session::mutation::Mutation);

#[cfg(feature = "mutations")]
impl AgentLapse {
    pub(super) fn apply(&self, session: &mut sublet_agent::session::Session) {
        session.leave_out(self.0);
    }
}

/// What the core leaves out: nothing, without the feature `mutations`.
#[cfg(not(feature = "mutations"))]
pub(super) enum CoreLapse {}

#[cfg(not(feature = "mutations"))]
impl CoreLapse {
    pub(super) fn apply(&self, _state: &mut sublet_core::State) {
        match *self {}
    }
}

/// What the session leaves out: nothing, without the feature `mutations`.
#[cfg(not(feature = "mutations"))]
pub(super) enum AgentLapse {}

#[cfg(not(feature = "mutations"))]
impl AgentLapse {
    pub(super) fn apply(&self, _session: &mut sublet_agent::session::Session) {
        match *self {}
    }
}

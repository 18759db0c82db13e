//! The rules of the lease protocol, each as something that can be taken out. A run without a rule
//! must break an invariant, or the rule is only words.
//!
//! Rules of the core and of the agent's session are taken out inside them, by code that exists only
//! with the feature `mutations`; rules that the shell, the node or the client keeps are taken out in
//! the model of these.

/// What must come of it when a rule is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Something notices.
    Caught,
    /// Nothing notices, and nothing should: all rules are there.
    Holds,
    /// Nothing notices, or hardly ever, since its twin suffices; something notices the pair.
    Survives {
        /// The rule together with its twin.
        pair: Rule,
    },
}

/// A rule, or a pair of twins of which either suffices, or a bug that was found and mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Every rule is there: what notices that is wrong itself.
    Nothing,
    /// LF1: a grant takes the last token again.
    Lf1Tokens,
    /// LF2: the agent does not compare tokens.
    Lf2Compare,
    /// LF2: what the agent keeps is not on the disk when it acts.
    Lf2Fsync,
    /// LF3, the agent's side: a grant for an earlier start is taken.
    Lf3Agent,
    /// LF3, the broker's side: an earlier start may speak.
    Lf3Broker,
    /// LF3 on both sides: neither agent nor broker compares the start.
    Lf3Both,
    /// LF4: nothing keeps a second process from a node's state.
    Lf4Lock,
    /// LG1: quota is not judged again when the plan is committed.
    Lg1Quota,
    /// LG1: nothing is set aside for what the lease may cost.
    Lg1Hold,
    /// LG1: the offer that stands is granted, whichever the plan meant.
    Lg1Generation,
    /// LG1: an offer whose time is over is granted: neither judge nor planner look at it, and it is
    /// swept late.
    Lg1Expiry,
    /// LG1: what is leased may be offered, and so granted again.
    Lg1Free,
    /// LG1: a request that has a lease is granted another.
    Lg1Waiting,
    /// LG2: the agent does not look for the owner.
    Lg2Owner,
    /// LG3: a lease is active once one member has confirmed.
    Lg3All,
    /// LG3: life counts from when the activation came, not from the nonce.
    Lg3Nonce,
    /// LG4: a refusal ends a lease that was active.
    Lg4Late,
    /// LG4 with the newer-boot rule of LE1.
    Lg4NewBoot,
    /// LR1: life counts from when the answer came.
    Lr1Sent,
    /// LR2: the broker waits for TTL only, without rate errors and margin.
    Lr2Wait,
    /// LR3: a new leader does not count agents as just heard.
    Lr3Heard,
    /// LR3: a new leader recalls and expires before it has heard the agents.
    Lr3WarmUp,
    /// LR3: a new leader grants slices of agents that have not answered it.
    Lr3Resync,
    /// LR3: silence of all agents at once is taken for theirs.
    Lr3AllSilent,
    /// LR4: a renewal is answered without the quorum.
    Lr4Barrier,
    /// LR5: the agent's clock stands still in suspend.
    Lr5Boottime,
    /// LE1: a lease ends with its first stopped member.
    Le1All,
    /// LE1: the agent says `Stopped` when the guest was only told to stop.
    Le1Gone,
    /// LE1: leases of an agent's earlier start live on when a newer one registers.
    Le1NewBoot,
    /// LE2: nothing kills a guest that ignores its signal before its old deadline.
    Le2Kill,
    /// LE3: a stop of what is not held does not raise the token.
    Le3Raise,
    /// LA1: the session does nothing when the owner arrives.
    La1Owner,
    /// LA2: the agent does not stop by itself.
    La2Stop,
    /// LA2 with LA5: the agent does not stop by itself, and there is no guard.
    La2La5,
    /// LA3: a new start leaves the old guests alone.
    La3Clear,
    /// LA4: a stranger's process or a lost device ends nothing.
    La4Foreign,
    /// LA5: there is no guard.
    La5Guard,
    /// LA6: what a cut-off agent offered meanwhile is said afterwards, word for word.
    La6Hoard,
    /// LA6: a guest starts when it is granted, whether or not anything is heard after that.
    La6Start,
    /// LA6: guests are stopped as soon as renewals are not answered.
    La6Early,
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
    /// A bug that was: a message that is under way is repeated though a newer word waits behind it.
    BugStaleWord,
    /// A bug that was: an agent that was counted as silent offers again at half its offers' time only.
    BugLapsedOffer,
    /// INV-14: a leader keeps what it knew of leases that have ended.
    KeepsEnded,
    /// The ledger's files are not synced, though it says so.
    LedgerSync,
}

impl Rule {
    /// Every rule that can be taken out.
    pub const ALL: [Rule; 53] = [
        Rule::Nothing,
        Rule::Lf1Tokens,
        Rule::Lf2Compare,
        Rule::Lf2Fsync,
        Rule::Lf3Agent,
        Rule::Lf3Broker,
        Rule::Lf3Both,
        Rule::Lf4Lock,
        Rule::Lg1Quota,
        Rule::Lg1Hold,
        Rule::Lg1Generation,
        Rule::Lg1Expiry,
        Rule::Lg1Free,
        Rule::Lg1Waiting,
        Rule::Lg2Owner,
        Rule::Lg3All,
        Rule::Lg3Nonce,
        Rule::Lg4Late,
        Rule::Lg4NewBoot,
        Rule::Lr1Sent,
        Rule::Lr2Wait,
        Rule::Lr3Heard,
        Rule::Lr3WarmUp,
        Rule::Lr3Resync,
        Rule::Lr3AllSilent,
        Rule::Lr4Barrier,
        Rule::Lr5Boottime,
        Rule::Le1All,
        Rule::Le1Gone,
        Rule::Le1NewBoot,
        Rule::Le2Kill,
        Rule::Le3Raise,
        Rule::La1Owner,
        Rule::La2Stop,
        Rule::La2La5,
        Rule::La3Clear,
        Rule::La4Foreign,
        Rule::La5Guard,
        Rule::La6Hoard,
        Rule::La6Start,
        Rule::La6Early,
        Rule::Lb1Max,
        Rule::Lb2Measured,
        Rule::Lb3Outbox,
        Rule::Lk1Keys,
        Rule::Lk2Unknown,
        Rule::BugFirstVictims,
        Rule::BugRashRefusal,
        Rule::BugHelloFirst,
        Rule::BugStaleWord,
        Rule::BugLapsedOffer,
        Rule::KeepsEnded,
        Rule::LedgerSync,
    ];

    /// The rule of this name, however it is spelt.
    #[must_use]
    pub fn named(name: &str) -> Option<Rule> {
        let plain = |text: &str| text.to_lowercase().replace(['_', '-'], "");
        Rule::ALL.into_iter().find(|rule| plain(&format!("{rule:?}")) == plain(name))
    }

    /// What must come of it when it is taken out.
    #[must_use]
    pub const fn expected(self) -> Expected {
        match self {
            Rule::Nothing => Expected::Holds,
            Rule::Lf3Agent => Expected::Survives { pair: Rule::Lf3Both },
            Rule::La2Stop => Expected::Survives { pair: Rule::La2La5 },
            _other => Expected::Caught,
        }
    }

    /// What the core leaves out for it.
    pub(super) const fn core(self) -> Option<CoreLapse> {
        #[cfg(feature = "mutations")]
        {
            use sublet_core::mutation::Mutation;
            let mutations: &[Mutation] = match self {
                Rule::Lf1Tokens => &[Mutation::SameToken],
                Rule::Lf3Broker | Rule::Lf3Both => &[Mutation::AnyBoot],
                Rule::Lg1Quota => &[Mutation::NoQuota],
                Rule::Lg1Hold => &[Mutation::NoHold],
                Rule::Lg1Generation => &[Mutation::AnyGeneration],
                Rule::Lg1Expiry => {
                    &[Mutation::ExpiredOffer, Mutation::ExpiredPlanned, Mutation::LapsesLate]
                }
                Rule::Lg1Free => &[Mutation::OfferOfLeased],
                Rule::Lg1Waiting => &[Mutation::GrantedAgain],
                Rule::Lg3All => &[Mutation::OneConfirms],
                Rule::Lg4Late => &[Mutation::LateRefusal],
                Rule::Lg4NewBoot => &[Mutation::LateRefusal, Mutation::NoVacancy],
                Rule::Lr3WarmUp => &[Mutation::NoWarmUp],
                Rule::Lr3Resync => &[Mutation::UnheardGranted],
                Rule::Lr3AllSilent => &[Mutation::AllSilent],
                Rule::Le1All => &[Mutation::OneStops],
                Rule::Le1NewBoot => &[Mutation::NoVacancy],
                Rule::Lb1Max => &[Mutation::UseAddsUp],
                Rule::Lb2Measured => &[Mutation::UnmeasuredCharge],
                Rule::Lk1Keys => &[Mutation::NoKeys],
                Rule::BugFirstVictims => &[Mutation::FirstVictims],
                Rule::BugRashRefusal => &[Mutation::RashRefusal],
                Rule::BugLapsedOffer => &[Mutation::OffersLapse],
                Rule::KeepsEnded => &[Mutation::KeepsEnded],
                _other => return None,
            };
            Some(CoreLapse(mutations))
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
            let mutations: &[Mutation] = match self {
                Rule::Lf2Compare => &[Mutation::AnyToken],
                Rule::Lf3Agent | Rule::Lf3Both => &[Mutation::AnyBoot],
                Rule::Lg2Owner => &[Mutation::OwnerUnseen],
                Rule::Lg3Nonce => &[Mutation::ActivationFromArrival],
                Rule::Lr1Sent => &[Mutation::RenewalFromArrival],
                Rule::Le1Gone => &[Mutation::StoppedTooSoon],
                Rule::Le2Kill => &[Mutation::NoKill],
                Rule::Le3Raise => &[Mutation::NoRaise],
                Rule::La1Owner => &[Mutation::OwnerIgnored],
                Rule::La2Stop | Rule::La2La5 => &[Mutation::NoSelfStop],
                Rule::La4Foreign => &[Mutation::ForeignIgnored],
                Rule::La6Start => &[Mutation::StartsUnasked],
                Rule::La6Early => &[Mutation::StopsEarly],
                Rule::BugRashRefusal => &[Mutation::ForgetsRefused],
                _other => return None,
            };
            Some(AgentLapse(mutations))
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
pub(super) struct CoreLapse(&'static [sublet_core::mutation::Mutation]);

#[cfg(feature = "mutations")]
impl CoreLapse {
    pub(super) fn apply(&self, state: &mut sublet_core::State) {
        state.leave_out(self.0);
    }
}

/// What the session leaves out; cannot be made without the feature `mutations`.
#[cfg(feature = "mutations")]
pub(super) struct AgentLapse(&'static [sublet_agent::session::mutation::Mutation]);

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

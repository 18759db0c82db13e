//! INV-16 (rule LA6): an agent that is cut off offers nothing and starts nothing. What it says of a
//! slice, now or again, is its newest word on it; a guest starts only under a lease that is active in
//! the books. And nothing is stopped before its time: without a word of the broker, an owner, a
//! stranger or a fault, a guest is told to end at its bought end or at `live_until` less its grace.

use std::collections::{BTreeMap, BTreeSet};

use sublet_agent::driver::{Guest, GuestKey};
use sublet_protocol::agent::{Down, Up};
use sublet_protocol::capacity::SliceId;
use sublet_protocol::ids::{DeviceId, LeaseId, Token};
use sublet_protocol::units::Millis;

use super::Checker;

/// What each agent's process was told and means.
#[derive(Debug, Default)]
pub(super) struct CutOff {
    /// The newest word on a slice: its generation, and whether it offers.
    words: BTreeMap<(usize, SliceId), (u64, bool)>,
    /// The newest nonce of a renewal.
    renewed: BTreeMap<usize, Millis>,
    lent: BTreeMap<(usize, SliceId, Token), Lent>,
}

/// A member that an agent was granted. Times are of its clock.
#[derive(Debug, Clone, Copy)]
struct Lent {
    ttl: Millis,
    grace: Millis,
    duration: Millis,
    /// The nonce of the last activation, and what was left then.
    activation: Option<(Millis, Millis)>,
    /// `live_until` and the bought end of a guest that was started.
    life: Option<(Millis, Millis)>,
    /// Somebody wants it gone.
    may_go: bool,
}

impl Checker {
    /// A process starts: it has said nothing and holds nothing.
    pub(crate) fn agent_starts(&mut self, agent: usize) {
        let all = &mut self.cut_off;
        all.words.retain(|(its, _), _| *its != agent);
        all.lent.retain(|(its, ..), _| *its != agent);
        all.renewed.remove(&agent);
    }

    /// What an agent decides to say, whenever that leaves it.
    pub(crate) fn agent_means(&mut self, agent: usize, message: &Up) {
        let all = &mut self.cut_off;
        match message {
            Up::Offer(terms) => {
                all.words.insert((agent, terms.slice), (terms.generation, true));
            }
            Up::Rescind { slice, generation, .. } => {
                all.words.insert((agent, *slice), (*generation, false));
            }
            Up::Renew { nonce, .. } => {
                all.renewed.insert(agent, *nonce);
            }
            Up::Stopped { slice, token, .. } | Up::Nack { slice, token, .. } => {
                all.lent.remove(&(agent, *slice, *token));
            }
            _other => {}
        }
    }

    /// A message leaves an agent, for the first time or again.
    pub(crate) fn agent_repeats(&mut self, agent: usize, message: &Up) {
        let (slice, word) = match message {
            Up::Offer(terms) => (terms.slice, (terms.generation, true)),
            Up::Rescind { slice, generation, .. } => (*slice, (*generation, false)),
            _other => return,
        };
        let newest = self.cut_off.words.get(&(agent, slice)).copied();
        self.check(16, newest == Some(word), || {
            format!("agent {agent} says {word:?} of {slice} and means {newest:?}")
        });
    }

    /// A message of a broker reaches an agent.
    pub(crate) fn agent_is_told(&mut self, agent: usize, local: Millis, message: &Down) {
        let all = &mut self.cut_off;
        match message {
            Down::Grant(terms) => {
                let fresh = Lent {
                    ttl: terms.ttl.as_millis(),
                    grace: terms.grace.as_millis(),
                    duration: terms.duration.as_millis(),
                    activation: None,
                    life: None,
                    may_go: false,
                };
                all.lent.entry((agent, terms.slice, terms.token)).or_insert(fresh);
            }
            Down::Activated { slice, token, nonce, left } => {
                if let Some(lent) = all.lent.get_mut(&(agent, *slice, *token)) {
                    lent.activation = Some((*nonce, *left));
                }
            }
            Down::Renewed { nonce, alive } => {
                let sent = all.renewed.get(&agent);
                for one in alive.iter().filter(|_| sent.is_some_and(|sent| nonce <= sent)) {
                    let lent = all.lent.get_mut(&(agent, one.slice, one.token));
                    let Some(lent) = lent else { continue };
                    if let Some((live_until, ends_at)) = &mut lent.life {
                        *live_until = nonce.saturating_add(lent.ttl).max(*live_until);
                        *ends_at = local.saturating_add(one.left).min(*ends_at);
                    }
                }
            }
            Down::Stop { slice, token, .. } | Down::Ended { slice, token } => {
                if let Some(lent) = all.lent.get_mut(&(agent, *slice, *token)) {
                    lent.may_go = true;
                }
            }
            _other => {}
        }
    }

    /// An agent sees that a device is wanted by somebody else, or gone. What else the guest has on
    /// the node goes with it.
    pub(crate) fn device_is_wanted(&mut self, agent: usize, device: DeviceId) {
        let here = self
            .cut_off
            .lent
            .keys()
            .filter(|(its, slice, _)| *its == agent && slice.device == device);
        let tokens: BTreeSet<Token> = here.map(|(.., token)| *token).collect();
        for ((its, _, token), lent) in &mut self.cut_off.lent {
            lent.may_go |= *its == agent && tokens.contains(token);
        }
    }

    /// An agent starts a guest.
    pub(crate) fn agent_lends(&mut self, agent: usize, local: Millis, guest: &Guest) {
        let of = (agent, guest.key.slice, guest.key.token);
        let Some(lent) = self.cut_off.lent.get_mut(&of) else { return };
        lent.life = lent.activation.map(|(nonce, left)| {
            (nonce.saturating_add(lent.ttl), local.saturating_add(left.min(lent.duration)))
        });
    }

    /// An agent tells a guest to end.
    pub(crate) fn agent_stops(&mut self, agent: usize, local: Millis, key: GuestKey) {
        let Some(lent) = self.cut_off.lent.get(&(agent, key.slice, key.token)).copied() else {
            return;
        };
        let Some((live_until, ends_at)) = lent.life else { return };
        let due = live_until.saturating_sub(lent.grace).min(ends_at);
        self.check(16, lent.may_go || local >= due, || {
            format!(
                "agent {agent} stops {} on {} {} ms too early",
                key.token,
                key.slice,
                due.get() - local.get()
            )
        });
    }

    /// A guest's process begins.
    pub(super) fn starts_when_active(&mut self, slice: SliceId, lease: LeaseId) {
        let live = self.live.leases.get(&lease);
        let is_active = live.is_none_or(|one| one.active_at.is_some());
        self.check(16, is_active, || format!("the guest of {lease} starts on {slice} unasked"));
    }
}

//! INV-1: no two guests on overlapping slices; a guest that physically runs is its slice's lease
//! that has not ended, whatever has crashed. INV-3, first half: what has ended runs nowhere.

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::capacity::SliceId;
use sublet_protocol::events::Event;
use sublet_protocol::ids::{ClusterId, LeaseId, NodeId, Token};
use sublet_protocol::records::Record;

use super::Checker;

/// Guests whose processes are there.
#[derive(Debug, Default)]
pub(super) struct Guests {
    running: BTreeMap<(SliceId, Token), LeaseId>,
    /// Suspended nodes: nothing on them runs.
    frozen: BTreeSet<(ClusterId, NodeId)>,
    /// Leases whose guests were suspended with their node at some time.
    shaken: BTreeSet<LeaseId>,
}

impl Guests {
    fn runs(&self, slice: SliceId) -> bool {
        !self.frozen.contains(&(slice.cluster, slice.node))
    }
}

impl Checker {
    /// A guest's process is there from now on.
    pub(crate) fn guest_starts(&mut self, slice: SliceId, token: Token, lease: LeaseId) {
        let same = |other: &SliceId| {
            (other.cluster, other.node, other.device) == (slice.cluster, slice.node, slice.device)
                && other.part.overlaps(slice.part)
        };
        let other = self.guests.running.iter().find(|((other, _), _)| same(other));
        if let Some((_, other)) = other {
            let what = format!("{lease} starts on {slice} beside {other}");
            self.fail(1, what);
        }
        self.started_in_order(slice, token);
        self.guests.running.insert((slice, token), lease);
        self.guest_has_lease(slice, token, lease);
        self.starts_when_active(slice, lease);
    }

    /// Its processes are gone.
    pub(super) fn guest_stops(&mut self, slice: SliceId, token: Token) {
        self.guests.running.remove(&(slice, token));
    }

    fn guest_has_lease(&mut self, slice: SliceId, token: Token, lease: LeaseId) {
        let live = self.live.leases.get(&lease);
        let is_its = live.is_some_and(|one| {
            let is_member = one.terms.members.iter().any(|member| member.slice == slice);
            one.terms.token == token && is_member && !one.stopped.contains(&slice)
        });
        self.check(1, is_its, || format!("the guest of {lease} runs on {slice} without a lease"));
    }

    /// A lease or a member is over: nothing of it may run.
    pub(super) fn no_guest_outlives(&mut self, record: &Record) {
        let (lease, only) = match &record.event {
            Event::LeaseEnded { lease, .. } => (*lease, None),
            Event::MemberStopped { lease, slice, .. }
            | Event::MemberRefused { lease, slice, .. } => (*lease, Some(*slice)),
            _other => return,
        };
        let concerns = |slice: &SliceId| only.is_none_or(|only| only == *slice);
        let left = self.guests.running.iter().find(|((slice, _), its)| {
            **its == lease && concerns(slice) && self.guests.runs(*slice)
        });
        if let Some(((slice, _), _)) = left {
            let what = format!("{lease} is over and its guest still runs on {slice}");
            self.fail(1, what);
        }
    }

    /// A node is suspended or goes on.
    pub(crate) fn freeze(&mut self, node: (ClusterId, NodeId), is_frozen: bool) {
        let here = self
            .guests
            .running
            .iter()
            .filter(|((slice, _), _)| (slice.cluster, slice.node) == node);
        let here: Vec<LeaseId> = here.map(|(_, lease)| *lease).collect();
        self.guests.shaken.extend(here);
        match is_frozen {
            true => self.guests.frozen.insert(node),
            false => self.guests.frozen.remove(&node),
        };
    }

    pub(super) fn was_suspended(&self, lease: LeaseId) -> bool {
        self.guests.shaken.contains(&lease)
    }

    /// After a suspension: what runs again has a lease.
    pub(crate) fn all_guests_have_leases(&mut self) {
        let running = self.guests.running.iter().filter(|((slice, _), _)| self.guests.runs(*slice));
        let running: Vec<_> = running.map(|((slice, token), its)| (*slice, *token, *its)).collect();
        for (slice, token, lease) in running {
            self.guest_has_lease(slice, token, lease);
        }
    }
}

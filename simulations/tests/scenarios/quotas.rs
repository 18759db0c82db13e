//! Case D06: leases end in every way there is; the quota comes back each time, once.

use std::collections::BTreeMap;

use serde_json::Value;
use sublet_agent::driver::{Exit, GuestKey};
use sublet_agent::session::Observation;
use sublet_core::LeaseStage;
use sublet_protocol::agent::{Down, Reply, Up, UpEnvelope};
use sublet_protocol::commands::{Actor, Command};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{DeviceId, LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::policy::Policy;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::units::{GpuMilli, Millis, Seconds};

use crate::bench::{Cell, Node, gpu, spec, talk, user};
use crate::cases::{Case, cases, number, text};
use crate::{both_later, ends, held, pair};

/// Case D06: ten leases end in ten ways; the quota comes back each time, once.
#[test]
fn quota_comes_back_from_every_kind_of_end() {
    let (mut cell, mut one) = pair(16);
    let mut number = 0_u128;
    let mut begin = |cell: &mut Cell, count| {
        number += 1;
        let request = cell.submit("t-a", number, spec(count, 600));
        cell.tick();
        request
    };
    let lease_of = |cell: &Cell, request: RequestId| {
        let its = cell.state.leases().values().find(|lease| lease.terms().request == request);
        its.map(|lease| (lease.terms().lease, lease.terms().token, lease.terms().members[0].slice))
    };
    // Cancelled while it waits, and while it is granted but not confirmed.
    let pending = begin(&mut cell, 4);
    cell.must(user("t-a"), Command::CancelRequest { request: pending });
    talk(&mut cell, &mut [&mut one]);
    // Refused at the start: the owner is there.
    one.see(Observation::OwnerArrived(gpu(0, 0).device));
    begin(&mut cell, 1);
    talk(&mut cell, &mut [&mut one]);
    // The start times out; the late confirmation is answered with a stop and never billed.
    let late = begin(&mut cell, 2);
    cell.down.clear();
    let (lease, token, slice) = lease_of(&cell, late).unwrap();
    cell.later(301);
    cell.tick();
    let confirm = one.envelope(Up::Confirm { lease, slice, token, nonce: Millis::new(5) });
    assert_eq!(cell.hear(&confirm), Reply::Refused(Rejection::LeaseEnding));
    assert!(cell.down.iter().any(|(_, message)| matches!(message, Down::Stop { .. })));
    one.see_idle();
    talk(&mut cell, &mut [&mut one]);
    assert!(ends(&cell).iter().all(|(_, billed)| *billed == Millis::ZERO), "{:?}", ends(&cell));
    // Released twice, finished, taken back by the owner, expired.
    for kind in 0..4 {
        let request = begin(&mut cell, 1);
        talk(&mut cell, &mut [&mut one]);
        let Some((lease, token, slice)) = lease_of(&cell, request) else { continue };
        assert!(held(&cell, "t-a") <= GpuMilli::new(16_000));
        let key = GuestKey { slice, token };
        match kind {
            0 => {
                for _ in 0..2 {
                    cell.ask(user("t-a"), None, Command::ReleaseLease { lease });
                }
                talk(&mut cell, &mut [&mut one]);
                one.end_guest(key, Exit::Code(0));
            }
            1 => one.end_guest(key, Exit::Code(0)),
            2 => {
                one.see(Observation::OwnerArrived(slice.device));
                one.end_guest(key, Exit::Code(0));
            }
            _expired => both_later(&mut cell, &mut one, 700),
        }
        talk(&mut cell, &mut [&mut one]);
    }
    // The broker is killed between grant and message; then the node is lost.
    begin(&mut cell, 1);
    cell.restart();
    talk(&mut cell, &mut [&mut one]);
    assert!(held(&cell, "t-a") > GpuMilli::ZERO);
    cell.later(700);
    cell.tick();
    cell.tick();
    cell.down.clear();
    assert_eq!(held(&cell, "t-a"), GpuMilli::ZERO, "{:?}", cell.state.leases());
    let kinds: std::collections::BTreeSet<EndReason> =
        ends(&cell).iter().map(|(reason, _)| *reason).collect();
    assert!(kinds.len() >= 5, "{kinds:?}");
}

/// One lease of case D06, on a node of its own.
struct Ending<'a> {
    how: &'a str,
    request: RequestId,
    lease: LeaseId,
    node: Node,
    /// What its agent said that has not arrived yet.
    underway: Vec<Up>,
}

impl Ending<'_> {
    fn keys(&self) -> Vec<GuestKey> {
        self.node.guests.keys().copied().collect()
    }
}

/// Case D06 under way.
struct Endings<'a> {
    cell: Cell,
    all: Vec<Ending<'a>>,
    peak: GpuMilli,
}

impl<'a> Endings<'a> {
    fn note(&mut self) {
        self.peak = self.peak.max(held(&self.cell, "t-a"));
    }

    /// Everyone talks but nodes that are lost, or whose words are underway.
    fn talk(&mut self) {
        let is_there = |ending: &&mut Ending<'_>| {
            ending.how != "node lost, fenced" && ending.underway.is_empty()
        };
        let nodes = self.all.iter_mut().filter(is_there).map(|ending| &mut ending.node);
        talk(&mut self.cell, &mut nodes.collect::<Vec<_>>());
        self.note();
    }

    fn later(&mut self, seconds: u64) {
        for _ in 0..seconds.div_ceil(30) {
            self.cell.later(30);
            self.all.iter_mut().for_each(|ending| ending.node.later(30));
            self.talk();
        }
    }

    /// Grants the lease of a line, as far as its end lets it get.
    fn begin(&mut self, line: &'a Value) {
        let (how, place) = (text(line, "ends_by"), self.all.len());
        let gpus = usize::try_from(number(line, "gpus")).unwrap();
        let mut one = Node::new(place, gpus);
        talk(&mut self.cell, &mut [&mut one]);
        one.see_idle();
        talk(&mut self.cell, &mut [&mut one]);
        let seconds = match how {
            "expired" => 900,
            "stalled" => 36_000,
            _other => 3_600,
        };
        let count = u32::try_from(gpus).unwrap();
        let id = u128::try_from(place).unwrap() + 1;
        let request = self.cell.submit("t-a", id, spec(count, seconds));
        self.cell.tick();
        let granted = self.cell.state.leases().values();
        let granted = granted.filter(|lease| lease.terms().request == request);
        let lease = granted.map(|lease| lease.terms().lease).next().expect("it was granted");
        self.note();
        let mut underway = Vec::new();
        match how {
            // Its messages are lost.
            "cancelled while pending" => self.cell.down.clear(),
            "broker killed between grant and publish" => self.cell.restart(),
            "agent refused at start" => {
                (0..gpus).for_each(|at| one.see(Observation::OwnerArrived(gpu(place, at).device)));
                talk(&mut self.cell, &mut [&mut one]);
            }
            "start timed out, agent then reports started" => {
                for (_, message) in std::mem::take(&mut self.cell.down) {
                    one.hear(message);
                }
                underway = std::mem::take(&mut one.up);
                assert!(matches!(underway[..], [Up::Confirm { .. }, ..]), "{underway:?}");
            }
            _started => {
                talk(&mut self.cell, &mut [&mut one]);
                assert_eq!(one.guests.len(), gpus, "{how}");
            }
        }
        self.all.push(Ending { how, request, lease, node: one, underway });
    }

    /// Ends the lease of a line in its way.
    fn end(&mut self, place: usize) {
        let Ending { how, request, lease, .. } = self.all[place];
        let (keys, number) = (self.all[place].keys(), self.all[place].node.number);
        let stop_all = |this: &mut Endings<'_>| {
            for key in &keys {
                if this.all[place].node.guests.contains_key(key) {
                    this.all[place].node.end_guest(*key, Exit::Code(0));
                }
            }
            this.talk();
        };
        match how {
            "normal stop" | "resized 2 -> 1, then stop" => {
                self.cell.must(user("t-a"), Command::ReleaseLease { lease });
                self.talk();
                stop_all(self);
            }
            "stop sent twice" => {
                let stop = Command::ReleaseLease { lease };
                self.cell.must(user("t-a"), stop.clone());
                let first = self.cell.down.clone();
                self.cell.must(user("t-a"), stop);
                self.cell.down.extend(first);
                self.talk();
                stop_all(self);
            }
            "cancelled while pending" => {
                self.cell.must(user("t-a"), Command::CancelRequest { request });
                self.talk();
            }
            // It has ended at the start.
            "agent refused at start" => {}
            "start timed out, agent then reports started" => self.report_late(place),
            "preempted by owner" => {
                for key in &keys {
                    self.all[place].node.see(Observation::OwnerArrived(gpu_of(*key)));
                }
                stop_all(self);
            }
            "broker killed between grant and publish" => {
                self.later(30);
                let started = self.all[place].keys();
                assert!(!started.is_empty(), "its grant was sent again");
                started.iter().for_each(|key| self.all[place].node.end_guest(*key, Exit::Code(0)));
                self.talk();
            }
            "stalled" => {
                let unused = Seconds::new(7_200).as_millis();
                self.later(7_300);
                self.cell.must(Actor::Leader, Command::DeclareStalled { lease, unused });
                self.later(120);
                self.cell.must(Actor::Leader, Command::DeclareStalled { lease, unused });
                self.talk();
                stop_all(self);
            }
            // Time does it.
            "expired" | "node lost, fenced" => {}
            other => panic!("{other}: node {number}"),
        }
    }

    /// The start is over its time; then the agent's confirmations arrive and are answered with a stop.
    fn report_late(&mut self, place: usize) {
        let Ending { lease, .. } = self.all[place];
        while matches!(self.cell.state.leases()[&lease].stage(), LeaseStage::Granted { .. }) {
            self.later(30);
        }
        let underway = std::mem::take(&mut self.all[place].underway);
        for message in underway.into_iter().filter(|one| matches!(one, Up::Confirm { .. })) {
            self.cell.down.clear();
            let message: UpEnvelope = self.all[place].node.envelope(message);
            let reply = self.cell.hear(&message);
            let (of, body) = (&mut self.all[place].node, &message.body);
            let over = [Rejection::LeaseEnding, Rejection::LeaseMissing];
            assert!(matches!(reply, Reply::Refused(why) if over.contains(&why)), "{reply:?}");
            let effects = of.session.on_reply(of.clock, body, &reply);
            of.carry_out(effects);
            self.cell.later(6);
            self.cell.tick();
            let mut told = self.cell.down.iter();
            let is_its = |down: &Down| matches!(down, Down::Stop { lease: of, .. } if *of == lease);
            assert!(told.any(|(_, down)| is_its(down)), "a late start is answered with a stop");
        }
        self.talk();
        assert!(self.all[place].node.guests.is_empty());
    }
}

fn gpu_of(key: GuestKey) -> DeviceId {
    key.slice.device
}

/// Case D06 as a list of ends. All leases are there at once, then each ends in its way.
///
/// Left out: a lease cannot be resized; the one that should be is stopped as it is.
#[test]
fn the_listed_ends_give_all_quota_back_each_once() {
    for case in cases("D06", "sequence.jsonl") {
        let policy = Policy { start_retries: 0, ..Policy::default() };
        let cell = Cell::with_policy(policy);
        let mut run = Endings { cell, all: Vec::new(), peak: GpuMilli::ZERO };
        for line in &case.events {
            if text(line, "ends_by").starts_with("resized") {
                eprintln!("left out: leases have no resize, {line} is only stopped");
            }
            run.begin(line);
        }
        for place in 0..run.all.len() {
            run.end(place);
        }
        // The bought time is over, and whoever is lost is silent for W.
        run.later(1_500);
        check_ends(&case, &run);
    }
}

fn check_ends(case: &Case, run: &Endings<'_>) {
    let most = number(&case.facts, "used_peak_must_not_exceed") * 1_000;
    assert!(run.peak.get() <= most, "{} at once", run.peak);
    let left = held(&run.cell, "t-a").get();
    assert_eq!(
        left,
        number(&case.facts, "used_after_all") * 1_000,
        "{:?}",
        run.cell.state.leases()
    );
    let mut ended: BTreeMap<LeaseId, Vec<(EndReason, Millis)>> = BTreeMap::new();
    for record in &run.cell.journal {
        if let Event::LeaseEnded { lease, reason, settlement, .. } = &record.event {
            ended.entry(*lease).or_default().push((*reason, settlement.billed));
        }
    }
    assert_eq!(ended.len(), case.events.len());
    for ending in &run.all {
        let [(reason, billed)] = ended[&ending.lease][..] else {
            panic!("{}: {:?}", ending.how, ended[&ending.lease]);
        };
        let expected: &[EndReason] = match ending.how {
            "normal stop" | "stop sent twice" | "resized 2 -> 1, then stop" => {
                &[EndReason::Released]
            }
            "expired" => &[EndReason::Expired],
            "cancelled while pending" => &[EndReason::Released],
            "agent refused at start" => &[EndReason::StartFailed],
            "start timed out, agent then reports started" => &[EndReason::StartFailed],
            "preempted by owner" => &[EndReason::Reclaimed],
            "node lost, fenced" => &[EndReason::AgentLost],
            "broker killed between grant and publish" => &[EndReason::Completed],
            "stalled" => &[EndReason::Stalled],
            other => panic!("{other}"),
        };
        assert!(expected.contains(&reason), "{}: {reason:?}", ending.how);
        if reason == EndReason::StartFailed {
            assert_eq!(billed, Millis::ZERO, "{} is never billed", ending.how);
        }
    }
}

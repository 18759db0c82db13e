//! Case D05: clocks that disagree.

use serde_json::Value;
use sublet_agent::driver::Exit;
use sublet_core::StateView;
use sublet_core::leader::ClockState;
use sublet_core::matching::explain_within;
use sublet_protocol::agent::{ClockReading, Up};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::records::Record;
use sublet_protocol::requests::{Class, RequestSpec, WaitReason};
use sublet_protocol::units::{Millis, Seconds, Timestamp};

use crate::bench::{Cell, Node, cluster, gpu, node, spec, talk};
use crate::cases::{Case, cases, instant, millis, text};
use crate::{both_later, ends, leased, only_guest, pair};

/// Case D05: durations are of the agent's monotonic clock; order is the journal's.
#[test]
fn clocks_that_disagree_change_neither_order_nor_durations() {
    let (mut cell, mut one) = leased(1, 1, 7_200);
    for _ in 0..60 {
        both_later(&mut cell, &mut one, 10);
        talk(&mut cell, &mut [&mut one]);
    }
    // A new leader's clock is 95 s behind the journal: time stands still until it has caught up.
    let behind = cell.now.get() - 95_000;
    cell.now = sublet_protocol::units::Timestamp::new(behind);
    let key = only_guest(&one);
    one.end_guest(key, Exit::Code(0));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(ends(&cell), [(EndReason::Completed, Seconds::new(600).as_millis())]);
    let times: Vec<_> = cell.journal.iter().map(|record| (record.index, record.time)).collect();
    assert!(times.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
}

/// One agent of case D05: its start and its stop, and how its guest ran.
struct Clocked<'a> {
    name: &'a str,
    start: &'a Value,
    stop: &'a Value,
    node: Node,
    lease: Option<LeaseId>,
}

impl Clocked<'_> {
    /// What its wall clock shows: it steps, if it does, half-way through the lease.
    fn wall(&self) -> Timestamp {
        let [from, to] = [self.start, self.stop].map(|event| millis(event, "mono_s"));
        let now = self.node.clock.get();
        let anchor = if now - from < (to - from) / 2 { self.start } else { self.stop };
        let shown = instant(anchor, "agent_t").get() + now;
        Timestamp::new(shown - millis(anchor, "mono_s"))
    }
}

/// Agents and broker in step, in half-minutes of the broker's time.
struct Clockwork<'a> {
    cell: Cell,
    begin: Timestamp,
    agents: Vec<Clocked<'a>>,
    /// Reports of ends that are still underway.
    underway: Vec<(usize, Up)>,
}

impl<'a> Clockwork<'a> {
    /// All agents' leases are active when this returns.
    fn start(case: &'a Case) -> Clockwork<'a> {
        let of =
            |what: &'static str| case.events.iter().filter(move |event| text(event, "ev") == what);
        let mut cell = Cell::new();
        let begin = instant(&case.events[0], "broker_t");
        let mut agents: Vec<Clocked<'_>> = Vec::new();
        let longest = of("stop").map(|stop| instant(stop, "broker_t")).max().unwrap();
        for (number, start) in of("start").enumerate() {
            let name = text(start, "agent");
            let stop = of("stop").find(|stop| text(stop, "agent") == name).unwrap();
            let mono = millis(start, "mono_s");
            let at = instant(start, "broker_t");
            let passed = if agents.is_empty() { Millis::ZERO } else { at.since(cell.now) };
            for agent in &mut agents {
                let now = agent.node.clock.saturating_add(passed);
                agent.node.live_until(now);
            }
            cell.now = at;
            let mut node = Node::at(number, 1, Millis::new(mono));
            talk(&mut cell, &mut [&mut node]);
            node.see_idle();
            // The last to stop is not stopped by anybody: its bought time is over.
            let ran = (millis(stop, "mono_s") - mono) / 1_000;
            let is_last = instant(stop, "broker_t") == longest;
            let request = u128::try_from(number).unwrap() + 1;
            let bought = spec(1, if is_last { ran } else { 7_200 });
            let request = cell.submit("t-a", request, bought);
            talk(&mut cell, &mut [&mut node]);
            let its = cell.state.leases().values().find(|one| one.terms().request == request);
            let lease = its.map(|lease| lease.terms().lease);
            agents.push(Clocked { name, start, stop, node, lease });
        }
        Clockwork { cell, begin, agents, underway: Vec::new() }
    }

    /// Goes on to the broker's `now`; each agent lives on, and stops its guest when it should.
    fn go_on(&mut self, now: Timestamp, held_back: &str) {
        let passed = now.since(self.cell.now);
        self.cell.now = now;
        self.cell.reading = ClockReading { wall: now, monotonic: now.since(self.begin) };
        for (number, agent) in self.agents.iter_mut().enumerate() {
            let end = agent.node.clock.saturating_add(passed);
            let stop = Millis::new(millis(agent.stop, "mono_s"));
            if !agent.node.guests.is_empty() && stop <= end {
                agent.node.live_until(stop);
                let key = only_guest(&agent.node);
                agent.node.end_guest(key, Exit::Code(0));
                if agent.name == held_back {
                    let is_end = |message: &Up| matches!(message, Up::Stopped { .. });
                    let all = std::mem::take(&mut agent.node.up);
                    let (ends, rest): (Vec<Up>, Vec<Up>) = all.into_iter().partition(is_end);
                    self.underway.extend(ends.into_iter().map(|end| (number, end)));
                    agent.node.up = rest;
                }
            }
            agent.node.live_until(end);
            let wall = agent.wall();
            agent.node.tell_clocks(wall);
        }
        self.talk();
    }

    fn talk(&mut self) {
        let mut nodes: Vec<&mut Node> = self.agents.iter_mut().map(|one| &mut one.node).collect();
        talk(&mut self.cell, &mut nodes);
    }

    /// How long each guest ran, as its agent says.
    fn used(&self, lease: LeaseId) -> Millis {
        let used = self.cell.journal.iter().find_map(|record| match &record.event {
            Event::MemberStopped { lease: of, used, .. } if *of == lease => Some(*used),
            _other => None,
        });
        used.expect("it has stopped")
    }
}

/// The number in a fact, in milliseconds: `95`, or `about -600 after the step`.
fn offset(fact: &Value) -> i64 {
    let words = fact.to_string();
    let mut words = words.split(|letter: char| !(letter.is_ascii_digit() || letter == '-'));
    words.find_map(|word| word.parse::<i64>().ok()).unwrap() * 1_000
}

/// Case D05 as a sequence of events: the last report comes when the broker's clock shows less than
/// before, as after a change of leader.
#[test]
fn the_sequence_of_wrong_clocks_changes_no_span_and_no_order_and_closes_whom_it_must() {
    for case in cases("D05", "events.jsonl") {
        let mut work = Clockwork::start(&case);
        let last = case.events.last().unwrap();
        let stops = case.events.iter().filter(|event| text(event, "ev") == "stop");
        let end = stops.map(|stop| instant(stop, "broker_t")).max().unwrap();
        while work.cell.now < end {
            let next = work.cell.now.after(Seconds::new(30)).min(end);
            work.go_on(next, text(last, "agent"));
        }
        work.cell.now = instant(last, "broker_t");
        for (number, message) in std::mem::take(&mut work.underway) {
            work.agents[number].node.up.push(message);
        }
        work.talk();
        check_clocks(&case, &mut work);
    }
}

fn check_clocks(case: &Case, work: &mut Clockwork<'_>) {
    for agent in &work.agents {
        let (name, lease) = (agent.name, agent.lease.unwrap());
        let expected = millis(&case.facts["durations_s"], text(agent.start, "lease"));
        assert_eq!(work.used(lease).get(), expected, "{name} in {}", case.from);
        let of = (cluster(), node(agent.node.number));
        let known = work.cell.leader.clock_of(of).unwrap().offset.get();
        let expected = offset(&case.facts["offset_s"][name]);
        assert!(known.abs_diff(expected) < 1_000, "{name} is off by {known} ms, not {expected}");
    }
    let records = &work.cell.journal;
    assert!(records.windows(2).all(|pair| pair[0].index < pair[1].index));
    assert!(records.windows(2).all(|pair| pair[0].time <= pair[1].time));
    assert_eq!(ends(&work.cell).len(), work.agents.len(), "each ended once");
    let Event::LeaseEnded { lease, .. } = &records[last_end(records)].event else { panic!() };
    let late = text(case.events.last().unwrap(), "lease");
    let agent = work.agents.iter().find(|agent| text(agent.start, "lease") == late).unwrap();
    assert_eq!(Some(*lease), agent.lease, "the last to be heard is the last on record");
    // Now each is asked for a new lease.
    let count = u128::try_from(work.agents.len()).unwrap();
    let requests = (0..count).map(|number| work.cell.submit("t-b", 100 + number, spec(1, 600)));
    let requests: Vec<RequestId> = requests.collect();
    work.talk();
    for agent in &work.agents {
        let is_leased = work.cell.state.leased().contains_key(&gpu(agent.node.number, 0));
        let may = case.facts["new_leases"][agent.name].as_bool().unwrap();
        assert_eq!(is_leased, may, "new leases on {}", agent.name);
    }
    let limits = work.cell.leader.limits(&work.cell.state, work.cell.now);
    let view = StateView { state: &work.cell.state, now: work.cell.now };
    let why = requests.iter().filter_map(|id| explain_within(view, &limits, *id));
    let why: Vec<_> = why.map(|why| (why.reason, why.near_misses[0].offers)).collect();
    assert_eq!(why, [(WaitReason::Breaker, 2), (WaitReason::Breaker, 2)], "a tenant sees why");
}

fn last_end(records: &[Record]) -> usize {
    let is_end = |record: &Record| matches!(record.event, Event::LeaseEnded { .. });
    records.iter().rposition(is_end).unwrap()
}

#[test]
fn a_clock_that_steps_is_warned_of_once_and_its_node_is_lent_again_once_it_is_right() {
    let (mut cell, mut one) = pair(1);
    let mut tell = |cell: &mut Cell, ahead: i64| {
        both_later(cell, &mut one, 30);
        let monotonic = cell.reading.monotonic.saturating_add(Millis::new(30_000));
        cell.reading = ClockReading { wall: cell.now, monotonic };
        let wall = cell.now.get().checked_add_signed(ahead).unwrap();
        one.tell_clocks(Timestamp::new(wall));
        talk(cell, &mut [&mut one]);
        cell.state.leases().len()
    };
    tell(&mut cell, 0);
    for _ in 0..3 {
        tell(&mut cell, 7_000);
    }
    let states = |cell: &Cell| -> Vec<ClockState> {
        cell.clock_changes.iter().map(|change| change.now.state).collect()
    };
    assert_eq!(states(&cell), [ClockState::Off], "warned of once");
    tell(&mut cell, -3_600_000);
    cell.submit("t-a", 1, spec(1, 600));
    for _ in 0..3 {
        assert_eq!(tell(&mut cell, -3_600_000), 0, "no new lease there");
    }
    assert_eq!(tell(&mut cell, 0), 1, "lent as soon as it is right");
    assert_eq!(states(&cell), [ClockState::Off, ClockState::Far, ClockState::Right]);
}

#[test]
fn nobodys_lease_is_ended_for_another_on_a_node_to_which_nothing_new_may_go() {
    for (ahead, is_preempted) in [(0, true), (90_000, false)] {
        let (mut cell, mut one) = leased(1, 1, 7_200);
        for _ in 0..24 {
            both_later(&mut cell, &mut one, 30);
            talk(&mut cell, &mut [&mut one]);
        }
        let wall = Timestamp::new(cell.now.get() + ahead);
        cell.reading = ClockReading { wall: cell.now, monotonic: Millis::new(700_000) };
        one.tell_clocks(wall);
        talk(&mut cell, &mut [&mut one]);
        cell.submit("t-b", 2, RequestSpec { class: Class::Latency, ..spec(1, 600) });
        talk(&mut cell, &mut [&mut one]);
        let is_told = !one.signalled.is_empty();
        assert_eq!(is_told, is_preempted, "{ahead} ms ahead");
    }
}

//! Scenario 7 (kueue#14811): GPUs held for days by dead jobs.

use sublet_agent::driver::Exit;
use sublet_agent::session::GuestUse;
use sublet_core::LeaseStage;
use sublet_protocol::events::Event;
use sublet_protocol::leases::EndReason;
use sublet_protocol::policy::Policy;
use sublet_protocol::requests::{Class, RequestSpec};
use sublet_protocol::units::{Millis, Seconds};

use crate::bench::{Cell, Node, spec, talk};
use crate::{both_later, ends, leased, only_guest};

/// A cell and `nodes` of one idle GPU each, with an active lease of all of them.
fn lent(policy: Policy, nodes: usize, class: Class) -> (Cell, Vec<Node>) {
    let mut cell = Cell::with_policy(policy);
    let mut nodes: Vec<Node> = (0..nodes).map(|number| Node::new(number, 1)).collect();
    let mut all: Vec<&mut Node> = nodes.iter_mut().collect();
    talk(&mut cell, &mut all);
    all.iter_mut().for_each(|one| one.see_idle());
    talk(&mut cell, &mut all);
    let count = u32::try_from(all.len()).unwrap();
    cell.submit("t-a", 1, RequestSpec { class, ..spec(count, 7_200) });
    talk(&mut cell, &mut all);
    assert!(all.iter().all(|one| one.guests.len() == 1));
    (cell, nodes)
}

fn an_hour() -> Policy {
    Policy { stalled_after: Some(Seconds::new(3_600)), ..Policy::default() }
}

/// Half-minutes pass; in each every agent looks at its guest, as `seen` says of node and minute.
fn minutes(
    cell: &mut Cell,
    nodes: &mut [Node],
    minutes: std::ops::Range<u64>,
    seen: impl Fn(usize, u64) -> GuestUse,
) {
    for half in minutes.start * 2..minutes.end * 2 {
        cell.later(30);
        for one in nodes.iter_mut() {
            one.later(30);
            one.look_at_guests(seen(one.number, half / 2));
        }
        talk(cell, &mut nodes.iter_mut().collect::<Vec<_>>());
    }
}

fn announced(cell: &Cell) -> Vec<EndReason> {
    let announced = cell.journal.iter().filter_map(|record| match &record.event {
        Event::LeaseEndAnnounced { cause, .. } => Some(*cause),
        _other => None,
    });
    announced.collect()
}

#[test]
fn a_guest_that_uses_nothing_is_recalled_with_notice_and_grace_and_billed_for_its_use() {
    let (mut cell, mut nodes) = lent(an_hour(), 1, Class::Batch);
    minutes(&mut cell, &mut nodes, 0..60, |_, _| GuestUse::Nothing);
    assert_eq!(announced(&cell), []);
    minutes(&mut cell, &mut nodes, 60..62, |_, _| GuestUse::Nothing);
    assert_eq!(announced(&cell), [EndReason::Stalled]);
    assert!(nodes[0].signalled.is_empty(), "it has its notice");
    minutes(&mut cell, &mut nodes, 62..64, |_, _| GuestUse::Nothing);
    let Some(lease) = cell.state.leases().values().next() else { panic!("it has its grace") };
    assert!(matches!(lease.stage(), LeaseStage::Ending { cause: EndReason::Stalled, .. }));
    let told = nodes[0].signalled.last().expect("told to stop").0;
    let key = only_guest(&nodes[0]);
    nodes[0].end_guest(key, Exit::Code(0));
    talk(&mut cell, &mut [&mut nodes[0]]);
    let [(EndReason::Stalled, billed)] = ends(&cell)[..] else { panic!("{:?}", ends(&cell)) };
    let began = Millis::new(1_000);
    assert!(billed >= told.saturating_sub(began) && billed <= nodes[0].clock);
    assert!(cell.state.requests().is_empty(), "its tenant does not wait again");
    assert_eq!(cell.state.offers().len(), 1, "the GPU can be lent again");
}

#[test]
fn a_guest_that_works_now_and_then_or_of_which_nothing_is_known_is_let_be() {
    for rare in [GuestUse::Some, GuestUse::Unknown] {
        let (mut cell, mut nodes) = lent(an_hour(), 1, Class::Batch);
        let now_and_then = |_, minute| if minute % 45 == 44 { rare } else { GuestUse::Nothing };
        minutes(&mut cell, &mut nodes, 0..115, now_and_then);
        assert_eq!(announced(&cell), [], "{rare:?}");
    }
    // One that begins to work when it is told keeps its lease.
    let (mut cell, mut nodes) = lent(an_hour(), 1, Class::Batch);
    minutes(&mut cell, &mut nodes, 0..62, |_, _| GuestUse::Nothing);
    assert_eq!(announced(&cell), [EndReason::Stalled]);
    minutes(&mut cell, &mut nodes, 62..115, |_, _| GuestUse::Some);
    assert_eq!((announced(&cell).len(), ends(&cell).len()), (1, 0));
}

#[test]
fn latency_critical_work_may_idle_and_so_may_all_where_the_policy_says_so() {
    let (mut cell, mut nodes) = lent(an_hour(), 1, Class::Latency);
    minutes(&mut cell, &mut nodes, 0..115, |_, _| GuestUse::Nothing);
    assert_eq!(announced(&cell), []);
    let never = Policy { stalled_after: None, ..Policy::default() };
    let (mut cell, mut nodes) = lent(never, 1, Class::Experiment);
    minutes(&mut cell, &mut nodes, 0..115, |_, _| GuestUse::Nothing);
    assert_eq!(announced(&cell), []);
}

#[test]
fn a_gang_is_stalled_only_when_all_its_members_are() {
    let (mut cell, mut nodes) = lent(an_hour(), 2, Class::Training);
    let one_works = |node, _| if node == 0 { GuestUse::Some } else { GuestUse::Nothing };
    minutes(&mut cell, &mut nodes, 0..100, one_works);
    assert_eq!(announced(&cell), []);

    let (mut cell, mut nodes) = lent(an_hour(), 2, Class::Training);
    minutes(&mut cell, &mut nodes, 0..65, |_, _| GuestUse::Nothing);
    assert_eq!(announced(&cell), [EndReason::Stalled]);
    assert!(nodes.iter().all(|one| !one.signalled.is_empty()), "all of it goes");
}

#[test]
fn a_new_leader_counts_on_what_agents_say_and_forgets_no_notice() {
    let (mut cell, mut nodes) = lent(an_hour(), 1, Class::Batch);
    minutes(&mut cell, &mut nodes, 0..62, |_, _| GuestUse::Nothing);
    assert_eq!(announced(&cell), [EndReason::Stalled]);
    cell.restart();
    minutes(&mut cell, &mut nodes, 62..66, |_, _| GuestUse::Nothing);
    assert_eq!(announced(&cell), [EndReason::Stalled], "told once");
    assert!(!nodes[0].signalled.is_empty(), "and ended");
}

/// Scenario 7 (kueue#14811), where the job's process is gone: no detector is needed.
#[test]
fn a_dead_job_gives_its_gpu_back_at_once_and_no_job_outlives_its_bought_time() {
    let (mut cell, mut one) = leased(1, 1, 3_600);
    let key = only_guest(&one);
    one.end_guest(key, Exit::Signal(11));
    talk(&mut cell, &mut [&mut one]);
    assert_eq!(ends(&cell)[0].0, EndReason::GuestFailed);
    cell.submit("t-b", 2, spec(1, 3_600));
    talk(&mut cell, &mut [&mut one]);
    for _ in 0..130 {
        both_later(&mut cell, &mut one, 30);
        talk(&mut cell, &mut [&mut one]);
    }
    assert!(one.guests.is_empty());
    assert_eq!(ends(&cell)[1].0, EndReason::Expired);
}

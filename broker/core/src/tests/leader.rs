//! The leader's logic: what is said, said again, and not said.

use sublet_protocol::agent::{Down, Held, Reply, Up, UpEnvelope};
use sublet_protocol::commands::{Actor, Command, GuestOutcome, Outcome};
use sublet_protocol::ids::{Boot, HostHash, LeaseId};
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::Class;
use sublet_protocol::units::{Millis, Seconds};

use crate::leader::{Effect, Intake, Leader};
use crate::matching::{self, Preemption};
use crate::state::StateView;
use crate::testing::{World, agent, cluster, gpu, millis, node, spec, user};

fn message(number: u64, body: Up) -> UpEnvelope {
    let (host, boot) = (HostHash([0; 16]), Boot::new(1));
    UpEnvelope { cluster: cluster(), node: node(number), host, boot, sequence: 1, body }
}

/// A world with one granted lease on GPU 0, its leader, and what the leader said of it.
fn granted() -> (World, Leader, LeaseId, Vec<Effect>) {
    let mut world = World::with_nodes(1);
    let (mut leader, _) = Leader::new(1, &world.state, world.now);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let from = world.journal.len();
    let lease = world.grant(request, &[0]);
    let effects = leader.on_records(&world.state, world.now, &world.journal[from..]);
    (world, leader, lease, effects)
}

fn sent(effects: &[Effect]) -> Vec<&Down> {
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send { message, .. } => Some(message),
        Effect::Propose(_) | Effect::Plan => None,
    });
    sent.collect()
}

fn renew(world: &World, lease: LeaseId) -> UpEnvelope {
    let (slice, token, used) = (gpu(0), world.token(lease), millis(5_000));
    message(
        0,
        Up::Renew {
            nonce: millis(77),
            held: vec![Held { lease, slice, token, used, unused: Millis::ZERO }],
        },
    )
}

/// The agent of GPU 0 confirms: what it says, and the command that is proposed.
fn confirmation(
    world: &World,
    leader: &mut Leader,
    lease: LeaseId,
    nonce: Millis,
) -> (UpEnvelope, Command) {
    let (slice, token) = (gpu(0), world.token(lease));
    let said = message(0, Up::Confirm { lease, slice, token, nonce });
    let Intake::Propose(command) = leader.on_up(&world.state, world.now, &said) else {
        panic!("a confirmation is proposed");
    };
    (said, command)
}

/// Commits what the agent of GPU 0 confirms; returns what the leader says to that.
fn confirm(world: &mut World, leader: &mut Leader, lease: LeaseId, nonce: Millis) -> Vec<Effect> {
    let (said, command) = confirmation(world, leader, lease, nonce);
    let from = world.journal.len();
    world.must(agent(gpu(0)), command);
    let mut effects = leader.on_records(&world.state, world.now, &world.journal[from..]);
    let count = u32::try_from(world.journal.len() - from).unwrap();
    let outcome = Outcome::Done { first: 0, count, groups: vec![] };
    let (reply, answer) = leader.after_commit(&world.state, world.now, &said, &outcome);
    assert_eq!(reply, Reply::Done);
    effects.extend(answer);
    effects
}

#[test]
fn a_grant_is_sent_at_once_and_again_until_it_is_confirmed() {
    let (mut world, mut leader, lease, effects) = granted();
    assert!(matches!(sent(&effects)[..], [Down::Grant(terms)] if terms.lease == lease));
    assert_eq!(sent(&leader.tick(&world.state, world.now)), Vec::<&Down>::new());
    world.later(Seconds::new(5));
    assert!(matches!(sent(&leader.tick(&world.state, world.now))[..], [Down::Grant(_)]));
    let effects = confirm(&mut world, &mut leader, lease, millis(9));
    assert!(matches!(sent(&effects)[..], [Down::Activated { nonce, .. }] if nonce.get() == 9));
    world.later(Seconds::new(5));
    assert_eq!(sent(&leader.tick(&world.state, world.now)), Vec::<&Down>::new());
}

#[test]
fn a_confirmation_that_comes_again_is_answered_with_its_own_nonce() {
    let (mut world, mut leader, lease, _) = granted();
    confirm(&mut world, &mut leader, lease, millis(9));
    let from = world.journal.len();
    let effects = confirm(&mut world, &mut leader, lease, millis(10));
    assert_eq!(world.journal[from..], []);
    assert!(matches!(sent(&effects)[..], [Down::Activated { nonce, .. }] if nonce.get() == 10));
}

#[test]
fn a_confirmation_that_was_only_heard_starts_nothing() {
    let (mut world, mut deposed, lease, _) = granted();
    let (mut next, _) = Leader::new(2, &world.state, world.now);
    // Both hear of it, and what the one proposed is committed.
    confirmation(&world, &mut deposed, lease, millis(9));
    let from = world.journal.len();
    let effects = confirm(&mut world, &mut next, lease, millis(9));
    assert!(matches!(sent(&effects)[..], [Down::Activated { .. }]));
    let records = world.journal[from..].to_vec();
    // Much later, when the lease may be ending, the other hears it again; then it learns of the past.
    let (said, _) = confirmation(&world, &mut deposed, lease, millis(300_009));
    let effects = deposed.on_records(&world.state, world.now, &records);
    assert_eq!(sent(&effects), Vec::<&Down>::new());
    let refused = Outcome::Refused { rejection: Rejection::OtherTerm };
    let (_, effects) = deposed.after_commit(&world.state, world.now, &said, &refused);
    assert_eq!(sent(&effects), Vec::<&Down>::new());
}

#[test]
fn a_leader_whose_clock_is_behind_the_books_gives_no_more_than_the_grace() {
    let (mut world, mut deposed, lease, _) = granted();
    confirm(&mut world, &mut deposed, lease, millis(9));
    let long_ago = world.now;
    world.later(Seconds::new(1_000));
    let from = world.journal.len();
    world.must(user("acme"), Command::ReleaseLease { lease });
    let grace = world.state.leases()[&lease].terms().grace;
    let effects = deposed.on_records(&world.state, long_ago, &world.journal[from..]);
    let [Down::Stop { grace: told, .. }] = sent(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(*told, grace.as_millis());
}

#[test]
fn a_renewal_waits_for_the_quorum_and_keeps_only_live_leases() {
    let (mut world, mut leader, lease, _) = granted();
    confirm(&mut world, &mut leader, lease, millis(9));
    let renewal = renew(&world, lease);
    assert_eq!(leader.on_up(&world.state, world.now, &renewal), Intake::Barrier);
    let effects = leader.after_barrier(&world.state, world.now, &renewal);
    let [Down::Renewed { nonce, alive }] = sent(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((nonce.get(), alive.len(), alive[0].left), (77, 1, millis(3_600_000)));
    world.must(user("acme"), Command::ReleaseLease { lease });
    let effects = leader.after_barrier(&world.state, world.now, &renewal);
    let [Down::Renewed { alive, .. }, Down::Stop { .. }] = sent(&effects)[..] else {
        panic!("{effects:?}");
    };
    assert!(alive.is_empty());
}

#[test]
fn a_guest_that_no_lease_stands_for_is_told_to_go() {
    let (mut world, mut leader, lease, _) = granted();
    confirm(&mut world, &mut leader, lease, millis(9));
    let renewal = renew(&world, lease);
    world.stop(lease, gpu(0), Seconds::ZERO, GuestOutcome::Exited { code: 0 });
    let effects = leader.after_barrier(&world.state, world.now, &renewal);
    assert!(matches!(sent(&effects)[..], [Down::Renewed { .. }, Down::Stop { .. }]));
}

#[test]
fn the_end_is_told_so_that_the_agent_may_forget_and_told_again_when_it_reports_again() {
    let (mut world, mut leader, lease, _) = granted();
    confirm(&mut world, &mut leader, lease, millis(9));
    let (slice, token) = (gpu(0), world.token(lease));
    let from = world.journal.len();
    let outcome = GuestOutcome::Exited { code: 0 };
    world.stop(lease, slice, Seconds::ZERO, outcome);
    let effects = leader.on_records(&world.state, world.now, &world.journal[from..]);
    assert!(matches!(sent(&effects)[..], [Down::Ended { .. }]));
    let again = message(0, Up::Stopped { lease, slice, token, used: Millis::ZERO, outcome });
    let refused = Outcome::Refused { rejection: Rejection::LeaseMissing };
    let (reply, effects) = leader.after_commit(&world.state, world.now, &again, &refused);
    assert_eq!(reply, Reply::Done);
    assert!(matches!(sent(&effects)[..], [Down::Ended { .. }]));
}

#[test]
fn only_an_earlier_start_is_refused_what_is_not_known_yet_is_asked_to_come_again() {
    let world = World::with_nodes(1);
    let (mut leader, _) = Leader::new(1, &world.state, world.now);
    let inventory = |number, boot| UpEnvelope {
        boot: Boot::new(boot),
        ..message(number, Up::Inventory { offered: vec![], held: vec![] })
    };
    let refused = |rejection| Intake::Answer(Reply::Refused(rejection), vec![]);
    let mut ask = |message: UpEnvelope| leader.on_up(&world.state, world.now, &message);
    let later = Intake::Answer(Reply::Later, vec![]);
    assert_eq!(ask(inventory(5, 1)), later);
    assert_eq!(ask(inventory(0, 2)), later, "this leader may be behind");
    assert_eq!(ask(inventory(0, 0)), refused(Rejection::BootOld));
    let other = UpEnvelope { host: HostHash([1; 16]), ..inventory(0, 1) };
    assert_eq!(ask(other), refused(Rejection::HostConflict));
    assert_eq!(ask(inventory(0, 1)), Intake::Barrier, "a deposed leader says nothing of it");
}

fn silenced(effects: &[Effect]) -> usize {
    let is_silence = |e: &&Effect| matches!(e, Effect::Propose(Command::DeclareSilent { .. }));
    effects.iter().filter(is_silence).count()
}

#[test]
fn a_silent_agent_is_declared_after_its_guests_deadlines_and_all_at_once_never() {
    let mut world = World::with_nodes(3);
    let (mut leader, _) = Leader::new(1, &world.state, world.now);
    let inventory = |number| message(number, Up::Inventory { offered: vec![], held: vec![] });
    for number in 0..3 {
        leader.on_up(&world.state, world.now, &inventory(number));
    }
    world.later(Seconds::new(336));
    leader.on_up(&world.state, world.now, &inventory(0));
    assert_eq!(silenced(&leader.tick(&world.state, world.now)), 0, "a second too early");
    world.later(Seconds::new(10));
    assert_eq!(silenced(&leader.tick(&world.state, world.now)), 2);
    world.later(Seconds::new(600));
    let all = silenced(&leader.tick(&world.state, world.now));
    assert_eq!(all, 0, "all silent at once: the broker is at fault");
}

#[test]
fn a_new_leader_grants_only_what_its_agents_have_reported_and_recalls_nothing_while_it_warms_up() {
    let mut world = World::with_nodes(2);
    let (mut leader, effects) = Leader::new(2, &world.state, world.now);
    assert!(sent(&effects).iter().all(|message| matches!(message, Down::Resync)));
    world.submit("acme", 1, spec(Class::Batch, 8));
    let plan = |leader: &Leader, world: &World| {
        let view = StateView { state: &world.state, now: world.now };
        matching::plan_within(view, &leader.limits(&world.state, world.now))
    };
    assert_eq!(plan(&leader, &world), vec![]);
    assert_eq!(leader.limits(&world.state, world.now).preemption, Preemption::Suspended);
    let inventory = message(0, Up::Inventory { offered: vec![], held: vec![] });
    leader.on_up(&world.state, world.now, &inventory);
    assert_eq!(plan(&leader, &world).len(), 1, "the reported node has room");
    assert!(leader.tick(&world.state, world.now).contains(&Effect::Plan));
    world.later(Seconds::new(400));
    assert_eq!(silenced(&leader.tick(&world.state, world.now)), 0, "half reported: not warm");
    world.later(Seconds::new(200));
    leader.on_up(&world.state, world.now, &inventory);
    assert_eq!(leader.limits(&world.state, world.now).preemption, Preemption::Allowed);
    assert_eq!(silenced(&leader.tick(&world.state, world.now)), 1, "warm by time");
}

#[test]
fn an_agent_that_was_silent_is_asked_for_the_offers_that_lapsed_and_for_no_others() {
    let mut world = World::with_nodes(1);
    let (mut leader, _) = Leader::new(1, &world.state, world.now);
    let generation = world.state.offers()[&gpu(0)].terms().generation;
    let report = |generation| {
        let offered = vec![(gpu(0), generation)];
        message(0, Up::Inventory { offered, held: vec![] })
    };
    let asked = |leader: &mut Leader, world: &World, generation| {
        let effects = leader.after_barrier(&world.state, world.now, &report(generation));
        sent(&effects).into_iter().cloned().collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut leader, &world, generation), [], "it stands");
    let silent = Command::DeclareSilent { cluster: cluster(), node: node(0), boot: Boot::new(1) };
    world.must(Actor::Leader, silent);
    let again = Down::OfferAgain { slice: gpu(0), generation };
    assert_eq!(asked(&mut leader, &world, generation), [again]);
    assert_eq!(asked(&mut leader, &world, generation + 1), [], "it is on its way");
}

#[test]
fn what_is_due_is_swept_and_usage_is_committed_each_minute() {
    let (mut world, mut leader, lease, _) = granted();
    confirm(&mut world, &mut leader, lease, millis(9));
    let renewal = renew(&world, lease);
    leader.after_barrier(&world.state, world.now, &renewal);
    world.later(Seconds::new(60));
    let effects = leader.tick(&world.state, world.now);
    let usage = effects.iter().find_map(|effect| match effect {
        Effect::Propose(Command::RecordUsage { entries }) => Some(entries[0].used),
        _other => None,
    });
    assert_eq!(usage, Some(millis(5_000)));
    world.later(Seconds::new(840));
    assert!(leader.tick(&world.state, world.now).contains(&Effect::Propose(Command::Sweep)));
    world.must(Actor::Leader, Command::Sweep);
    assert!(!leader.tick(&world.state, world.now).contains(&Effect::Propose(Command::Sweep)));
}

//! Undoing batches of leases, and undoing that.

use proptest::prelude::*;
use sublet_protocol::commands::{Actor, Command, GuestOutcome, Outcome};
use sublet_protocol::events::{ChargeTurn, Event};
use sublet_protocol::ids::{KeyId, LeaseId, RollbackId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::money::{Account, MicroCredits};
use sublet_protocol::policy::Policy;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::Class;
use sublet_protocol::rollbacks::{
    ChargeStanding, DropCause, ROLLBACK_LEASES_MAX, ROLLBACK_STEP, RollbackPolicy, RollbackSelector,
};
use sublet_protocol::units::Seconds;

use crate::quota::Spend;
use crate::state::{LeaseStage, RollbackStage};
use crate::testing::{World, agent, gpu, offer, operator, spec, tenant, user};

const DIGEST: [u8; 32] = [7; 32];

fn colleague() -> Actor {
    Actor::Operator { subject: "someone-else".parse().unwrap(), key: KeyId::new("k").unwrap() }
}

fn of(rollback: Option<u128>) -> RollbackSelector {
    RollbackSelector { rollback: rollback.map(RollbackId::new), ..RollbackSelector::default() }
}

fn proposal(number: u128, undone: Option<u128>, leases: &[LeaseId]) -> Command {
    let mut leases = leases.to_vec();
    leases.sort_unstable();
    Command::ProposeRollback {
        rollback: RollbackId::new(number),
        selector: of(undone),
        leases,
        money: MicroCredits::new(1),
        digest: DIGEST,
    }
}

/// Does every step of the rollback that is due; its events.
fn run(world: &mut World) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some((rollback, open)) = world.state.rollback_due() {
        let done = open.done();
        events.extend(world.must(Actor::Leader, Command::AdvanceRollback { rollback, done }));
    }
    events
}

fn roll_back(
    world: &mut World,
    number: u128,
    undone: Option<u128>,
    leases: &[LeaseId],
) -> Vec<Event> {
    world.must(operator(), proposal(number, undone, leases));
    run(world)
}

/// A lease on this GPU that runs.
fn live(world: &mut World, number: u64) -> LeaseId {
    let request = world.submit("acme", u128::from(number) + 1, spec(Class::Batch, 1));
    // Offers end after a quarter of an hour: it is offered anew.
    let offer = offer(gpu(number), 2, 1);
    world.must(agent(gpu(number)), Command::OfferCapacity { offer });
    world.activate(request, &[number])
}

/// A lease that has used half an hour and is over.
fn over(world: &mut World, number: u64) -> LeaseId {
    let lease = live(world, number);
    world.later(Seconds::new(1_800));
    world.stop(lease, gpu(number), Seconds::new(1_800), GuestOutcome::Exited { code: 0 });
    lease
}

fn turns(events: &[Event]) -> Vec<ChargeTurn> {
    let turns = events.iter().filter_map(|event| match event {
        Event::ChargeTurned { turn } => Some(turn.clone()),
        _other => None,
    });
    turns.collect()
}

/// Debits less credits of an account over the whole journal.
fn net(world: &World, account: Account) -> i64 {
    let lines = world.journal.iter().flat_map(|record| record.lines());
    lines.filter(|l| l.account == account).map(|l| l.debit.get() - l.credit.get()).sum()
}

fn money(world: &World) -> [i64; 4] {
    let (acme, owner) = (tenant("acme"), tenant("owner"));
    [Account::Expense(acme), Account::Hold(acme), Account::Revenue(owner), Account::Fee]
        .map(|account| net(world, account))
}

fn spent(world: &World) -> Spend {
    let tree = world.state.tree();
    tree.nodes()
        .find(|(id, _)| *id == tenant("acme"))
        .map(|(_, node)| node.spending(world.state.now()).used())
        .unwrap()
}

#[test]
fn the_charge_of_an_ended_lease_is_reversed_line_by_line_and_budgets_get_it_back() {
    let mut world = World::with_nodes(1);
    let lease = over(&mut world, 0);
    assert_eq!(money(&world), [1_000_000, 0, -950_000, -50_000]);
    assert_eq!(spent(&world).money(), 1_000_000);
    let end = world.journal.iter().find(|r| matches!(r.event, Event::LeaseEnded { .. }));
    let end = end.unwrap().index;
    let events = roll_back(&mut world, 1, None, &[lease]);
    let turned = turns(&events);
    assert_eq!(turned.len(), 1);
    assert_eq!((turned[0].of, turned[0].standing), (end, ChargeStanding::Reversed));
    assert_eq!(turned[0].lines.len(), 3);
    assert_eq!(money(&world), [0; 4]);
    assert_eq!(spent(&world), Spend::default());
    assert_eq!(world.state.rollbacks()[&RollbackId::new(1)].stage(), RollbackStage::Finished);
}

#[test]
fn what_was_reversed_is_not_reversed_again_and_undoing_the_rollback_charges_it() {
    let mut world = World::with_nodes(1);
    let lease = over(&mut world, 0);
    let before = (money(&world), spent(&world));
    let first = turns(&roll_back(&mut world, 1, None, &[lease]));
    let reversal = world.journal.iter().find(|r| matches!(r.event, Event::ChargeTurned { .. }));
    let reversal = reversal.unwrap().index;
    // Another rollback finds nothing to undo.
    let again = roll_back(&mut world, 2, None, &[lease]);
    assert_eq!(turns(&again), vec![]);
    assert_eq!(world.state.rollbacks()[&RollbackId::new(2)].untouched(), 1);
    // Nor is there anything to undo of that one.
    assert_eq!(turns(&roll_back(&mut world, 3, Some(2), &[lease])), vec![]);
    let back = turns(&roll_back(&mut world, 4, Some(1), &[lease]));
    assert_eq!((back[0].of, back[0].standing), (reversal, ChargeStanding::Charged));
    assert_eq!((money(&world), spent(&world)), before);
    // The undo of the undo of the undo, and so on: each names the record before.
    let third = turns(&roll_back(&mut world, 5, Some(4), &[lease]));
    assert_eq!(third[0].standing, ChargeStanding::Reversed);
    assert!(third[0].of > back[0].of && back[0].of > first[0].of);
    assert_eq!(money(&world), [0; 4]);
    // Rollback 1 was undone already: what it did does not stand any more.
    assert_eq!(turns(&roll_back(&mut world, 6, Some(1), &[lease])), vec![]);
}

#[test]
fn a_live_lease_ends_as_rolled_back_its_request_waits_again_and_it_costs_nothing() {
    let mut world = World::with_nodes(1);
    let lease = live(&mut world, 0);
    world.later(Seconds::new(600));
    let events = roll_back(&mut world, 1, None, &[lease]);
    assert!(events.iter().any(|event| matches!(event, Event::LeaseEnding { .. })), "{events:?}");
    let stage = world.stage(lease).unwrap();
    assert!(matches!(stage, LeaseStage::Ending { cause: EndReason::RolledBack, .. }), "{stage:?}");
    assert_eq!(turns(&events), vec![], "it has not ended");
    let events = world.stop(lease, gpu(0), Seconds::new(610), GuestOutcome::Stopped);
    let reasons: Vec<EndReason> = events
        .iter()
        .filter_map(|event| match event {
            Event::LeaseEnded { reason, .. } | Event::RequestRequeued { reason, .. } => {
                Some(*reason)
            }
            _other => None,
        })
        .collect();
    assert_eq!(reasons, [EndReason::RolledBack, EndReason::RolledBack]);
    assert_eq!(turns(&events).len(), 1);
    assert_eq!(money(&world), [0; 4]);
    assert_eq!(world.state.waiting().len(), 1);
    let rollback = &world.state.rollbacks()[&RollbackId::new(1)];
    assert_eq!((rollback.live(), rollback.turned(), rollback.untouched()), (1, 1, 0));
}

#[test]
fn a_lease_that_ends_for_another_reason_meanwhile_costs_nothing_all_the_same() {
    let mut world = World::with_nodes(1);
    let lease = live(&mut world, 0);
    world.later(Seconds::new(600));
    world.must(user("acme"), Command::ReleaseLease { lease });
    roll_back(&mut world, 1, None, &[lease]);
    let events = world.stop(lease, gpu(0), Seconds::new(610), GuestOutcome::Stopped);
    let ended = events.iter().any(
        |event| matches!(event, Event::LeaseEnded { reason, .. } if *reason == EndReason::Released),
    );
    assert!(ended, "{events:?}");
    assert_eq!(money(&world), [0; 4]);
}

#[test]
fn undoing_a_rollback_before_its_live_lease_has_ended_lets_the_charge_stand() {
    let mut world = World::with_nodes(1);
    let lease = live(&mut world, 0);
    world.later(Seconds::new(1_800));
    roll_back(&mut world, 1, None, &[lease]);
    roll_back(&mut world, 2, Some(1), &[lease]);
    let events = world.stop(lease, gpu(0), Seconds::new(1_800), GuestOutcome::Stopped);
    assert_eq!(turns(&events), vec![]);
    assert_eq!(money(&world), [1_000_000, 0, -950_000, -50_000]);
    // The undo of the undo finds the charge as its end posted it: the rollback it undoes turned nothing.
    assert_eq!(turns(&roll_back(&mut world, 3, None, &[lease])).len(), 1);
    assert_eq!(money(&world), [0; 4]);
}

#[test]
fn above_the_limit_another_operator_approves_what_was_shown_and_in_time() {
    let mut world = World::with_nodes(1);
    let limit = RollbackPolicy { leases_alone: 1, ..RollbackPolicy::default() };
    let policy = Policy { rollback: limit, ..Policy::default() };
    world.must(operator(), Command::SetPolicy { policy });
    let leases = [over(&mut world, 0), over(&mut world, 1)];
    let (rollback, digest) = (RollbackId::new(1), DIGEST);
    world.must(operator(), proposal(1, None, &leases));
    assert_eq!(run(&mut world), vec![], "it waits");
    let approve = Command::ApproveRollback { rollback, digest };
    world.refuse(user("acme"), approve.clone(), Rejection::NotAllowed);
    world.refuse(operator(), approve.clone(), Rejection::ApproverIsProposer);
    let other = Command::ApproveRollback { rollback, digest: [8; 32] };
    world.refuse(colleague(), other, Rejection::RollbackChanged);
    let unknown = Command::ApproveRollback { rollback: RollbackId::new(2), digest };
    world.refuse(colleague(), unknown, Rejection::RollbackMissing);
    world.must(colleague(), approve.clone());
    assert_eq!(turns(&run(&mut world)).len(), 2);
    world.refuse(colleague(), approve, Rejection::RollbackNotWaiting);

    // Nobody approves the next one in time.
    world.must(operator(), proposal(2, Some(1), &leases));
    world.later(Seconds::new(24 * 3_600));
    let (rollback, digest) = (RollbackId::new(2), DIGEST);
    let late = Command::ApproveRollback { rollback, digest };
    world.refuse(colleague(), late, Rejection::RollbackNotWaiting);
    world.must(Actor::Leader, Command::Sweep);
    let dropped = RollbackStage::Dropped { cause: DropCause::Expired };
    assert_eq!(world.state.rollbacks()[&rollback].stage(), dropped);

    // And the one behind it is rejected.
    world.must(operator(), proposal(3, Some(1), &leases));
    let rollback = RollbackId::new(3);
    world.refuse(user("acme"), Command::RejectRollback { rollback }, Rejection::NotAllowed);
    world.must(colleague(), Command::RejectRollback { rollback });
    let dropped = RollbackStage::Dropped { cause: DropCause::Rejected };
    assert_eq!(world.state.rollbacks()[&rollback].stage(), dropped);
}

#[test]
fn too_much_money_needs_an_approval_and_one_unit_less_does_not() {
    for (money, waits) in [(1_000_000_001, true), (1_000_000_000, false)] {
        let mut world = World::with_nodes(1);
        let leases = vec![over(&mut world, 0)];
        let (rollback, money) = (RollbackId::new(1), MicroCredits::new(money));
        let (selector, digest) = (of(None), DIGEST);
        let propose = Command::ProposeRollback { rollback, selector, leases, money, digest };
        world.must(operator(), propose);
        assert_eq!(run(&mut world).is_empty(), waits, "{money}");
    }
}

#[test]
fn what_cannot_be_a_rollback_is_refused() {
    let mut world = World::with_nodes(1);
    let lease = over(&mut world, 0);
    for other in [user("acme"), Actor::Leader] {
        world.refuse(other, proposal(1, None, &[lease]), Rejection::NotAllowed);
    }
    world.refuse(operator(), proposal(1, None, &[]), Rejection::RollbackMalformed);
    world.refuse(operator(), proposal(1, None, &[lease, lease]), Rejection::RollbackMalformed);
    let many: Vec<LeaseId> = (0..=ROLLBACK_LEASES_MAX as u128).map(LeaseId::new).collect();
    world.refuse(operator(), proposal(1, None, &many), Rejection::RollbackMalformed);
    world.must(operator(), proposal(1, None, &many[1..]));
    world.refuse(operator(), proposal(1, None, &[lease]), Rejection::RollbackExists);
    for number in 2..=4 {
        world.must(operator(), proposal(number, None, &[lease]));
    }
    world.refuse(operator(), proposal(5, None, &[lease]), Rejection::RollbacksExhausted);
    let (rollback, done) = (RollbackId::new(2), 0);
    world.refuse(operator(), Command::AdvanceRollback { rollback, done }, Rejection::NotAllowed);
}

#[test]
fn a_step_that_was_done_is_not_done_again_and_the_next_leader_goes_on() {
    let mut world = World::with_nodes(1);
    let lease = over(&mut world, 0);
    let mut leases: Vec<LeaseId> = (1..=100).map(LeaseId::new).chain([lease]).collect();
    leases.sort_unstable();
    let rollback = RollbackId::new(1);
    let limit = RollbackPolicy { leases_alone: 1_000, ..RollbackPolicy::default() };
    let policy = Policy { rollback: limit, ..Policy::default() };
    world.must(operator(), Command::SetPolicy { policy });
    world.must(operator(), proposal(1, None, &leases));
    let step = Command::AdvanceRollback { rollback, done: 0 };
    // A step whose leases nobody looked up changes nothing.
    let mut blind = world.state.clone();
    let stamped = sublet_protocol::commands::Stamped {
        id: sublet_protocol::ids::CommandId::new(1),
        actor: Actor::Leader,
        now: world.now,
        term: 1,
        key: None,
        command: step.clone(),
    };
    let outcome = crate::apply(&mut blind, &stamped, 1).outcome;
    assert_eq!(outcome, Outcome::Refused { rejection: Rejection::PastUnknown });
    world.must(Actor::Leader, step.clone());
    let first = world.state.rollbacks()[&rollback].done();
    assert_eq!(first as usize, ROLLBACK_STEP);
    assert_eq!(world.must(Actor::Leader, step), vec![], "a step of the past");
    run(&mut world);
    let known = &world.state.rollbacks()[&rollback];
    assert_eq!((known.done(), known.untouched(), known.turned()), (101, 100, 1));
    assert_eq!(money(&world), [0; 4]);
}

#[test]
fn of_rollbacks_that_are_over_the_newest_are_remembered() {
    let mut world = World::with_nodes(1);
    let lease = over(&mut world, 0);
    for number in 1..=40 {
        world.later(Seconds::new(1));
        roll_back(&mut world, number, None, &[lease]);
    }
    let known: Vec<u128> = world.state.rollbacks().keys().map(|id| id.get()).collect();
    assert_eq!(known, (9..=40).collect::<Vec<_>>());
}

#[test]
fn a_charge_that_stands_again_may_exceed_a_budget_that_was_spent_meanwhile() {
    use sublet_protocol::quotas::{Budget, TenantTerms};
    let mut world = World::with_nodes(1);
    let budget = Budget { gpu_time: None, money: Some(MicroCredits::new(3_000_000)) };
    let terms = TenantTerms { budget, ..TenantTerms::default() };
    world.must(operator(), Command::SetTerms { tenant: tenant("acme"), terms });
    let first = over(&mut world, 0);
    let second = over(&mut world, 1);
    roll_back(&mut world, 1, None, &[first, second]);
    assert_eq!(spent(&world), Spend::default());
    // The room that came back is used; then the charges stand again.
    over(&mut world, 2);
    let third = live(&mut world, 3);
    roll_back(&mut world, 2, Some(1), &[first, second]);
    assert_eq!(spent(&world).money(), 3_000_000);
    assert!(world.state.leases().contains_key(&third), "what was granted stays");
}

/// Two leases, one that its owner takes back early, and what the policy makes of it.
fn story(world: &mut World) -> Vec<Event> {
    let from = world.journal.len();
    over(world, 0);
    let lease = live(world, 1);
    world.later(Seconds::new(300));
    world.must(Actor::Leader, Command::Sweep);
    world.stop(lease, gpu(1), Seconds::new(300), GuestOutcome::Stopped);
    world.journal[from..].iter().map(|record| record.event.clone()).collect()
}

#[test]
fn a_policy_that_was_set_back_decides_on_the_same_commands_as_it_did() {
    let other = Policy {
        fee: sublet_protocol::units::Permille::new(200),
        end_notice: Seconds::new(1),
        ..Policy::default()
    };
    let set = |world: &mut World, policy: &Policy| {
        world.must(operator(), Command::SetPolicy { policy: policy.clone() });
    };
    let plain = story(&mut World::with_nodes(1));
    let mut reverted = World::with_nodes(1);
    set(&mut reverted, &other);
    set(&mut reverted, &Policy::default());
    assert_eq!(story(&mut reverted), plain);
    let mut changed = World::with_nodes(1);
    set(&mut changed, &other);
    assert_ne!(story(&mut changed), plain, "the two policies can be told apart");
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Live,
    Stop,
    Undo(bool),
    UndoLast,
    Step,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    /// Whatever is undone in whatever order: the books balance at each record, no record is turned twice,
    /// and what a tenant paid is what stands.
    #[test]
    fn books_balance_at_each_record_and_no_record_is_turned_twice(
        acts in prop::collection::vec(
            prop::sample::select(vec![
                Act::Live, Act::Live, Act::Stop, Act::Undo(true), Act::Undo(false), Act::UndoLast,
                Act::Step, Act::Step,
            ]),
            1..40,
        ),
    ) {
        let mut world = World::with_nodes(1);
        let (mut leases, mut running) = (Vec::new(), Vec::new());
        let (mut rollbacks, mut at) = (0_u128, 0_u64);
        for act in acts {
            match act {
                Act::Live if at < 8 => {
                    let lease = live(&mut world, at);
                    leases.push(lease);
                    running.push((lease, at));
                    at += 1;
                }
                Act::Stop if !running.is_empty() => {
                    let (lease, number) = running.remove(0);
                    world.later(Seconds::new(700));
                    world.stop(lease, gpu(number), Seconds::new(600), GuestOutcome::Stopped);
                }
                Act::Undo(_) | Act::UndoLast if !leases.is_empty() => {
                    let undone = match act {
                        Act::UndoLast if rollbacks > 0 => Some(rollbacks),
                        _other => None,
                    };
                    let all = matches!(act, Act::Undo(true)) || undone.is_some();
                    let some = if all { &leases[..] } else { &leases[..1] };
                    if !matches!(
                        world.ask(operator(), None, proposal(rollbacks + 1, undone, some)),
                        Outcome::Refused { .. }
                    ) {
                        rollbacks += 1;
                    }
                }
                Act::Step => {
                    if let Some((rollback, open)) = world.state.rollback_due() {
                        let done = open.done();
                        world.must(Actor::Leader, Command::AdvanceRollback { rollback, done });
                    }
                }
                _nothing_to_do => {}
            }
        }
        run(&mut world);
        for (lease, number) in running {
            world.later(Seconds::new(700));
            world.stop(lease, gpu(number), Seconds::new(600), GuestOutcome::Stopped);
        }
        let mut turned = std::collections::BTreeSet::new();
        let mut stands = std::collections::BTreeMap::new();
        for record in &world.journal {
            match &record.event {
                Event::LeaseEnded { lease, settlement, .. } => {
                    stands.insert(*lease, settlement.cost.get());
                }
                Event::ChargeTurned { turn } => {
                    prop_assert!(turned.insert(turn.of), "record {} is turned twice", turn.of);
                    let cost = match turn.standing {
                        ChargeStanding::Reversed => 0,
                        ChargeStanding::Charged => turn.settlement.cost.get(),
                    };
                    let before = stands.insert(turn.lease, cost);
                    prop_assert_ne!(before, Some(cost));
                }
                _other => {}
            }
        }
        let [expense, hold, revenue, fee] = money(&world);
        prop_assert_eq!(hold, 0);
        prop_assert_eq!(expense, stands.values().sum::<i64>());
        prop_assert_eq!(expense, -revenue - fee);
        prop_assert_eq!(spent(&world).money(), i128::from(expense));
    }
}

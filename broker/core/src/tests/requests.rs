//! Requests, quotas, keys and the setting up of a cell.

use sublet_protocol::commands::{
    Actor, Command, GuestOutcome, IdempotencyKey, Outcome, ReclaimCause,
};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, RequestId};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::{Class, RequestSpec, SpecError, Tier};
use sublet_protocol::units::{GpuMilli, Seconds};

use crate::testing::{HOUR, World, agent, gpu, model, operator, spec, tenant, user};

fn submit(number: u128, spec: RequestSpec) -> Command {
    Command::SubmitRequest { request: RequestId::new(number), tenant: tenant("acme"), spec }
}

fn key(key: u8, body: u8) -> Option<IdempotencyKey> {
    Some(IdempotencyKey { key: [key; 16], body: [body; 16] })
}

#[test]
fn a_tenant_asks_for_itself_only() {
    let mut world = World::new();
    let ask = submit(1, spec(Class::Batch, 1));
    world.refuse(user("owner"), ask.clone(), Rejection::TenantMissing);
    world.refuse(Actor::Leader, ask.clone(), Rejection::NotAllowed);
    world.must(user("acme"), ask.clone());
    world.refuse(user("acme"), ask, Rejection::RequestExists);
}

#[test]
fn a_request_out_of_range_is_refused_and_names_the_field() {
    let mut world = World::new();
    let none = submit(1, spec(Class::Batch, 0));
    world.refuse(user("acme"), none, Rejection::SpecInvalid(SpecError::Count));
    let long = RequestSpec { duration: Seconds::MAX, ..spec(Class::Batch, 1) };
    world.refuse(user("acme"), submit(1, long), Rejection::SpecInvalid(SpecError::Duration));
}

#[test]
fn a_request_larger_than_the_quota_by_one_milli_gpu_is_refused_and_journalled() {
    let mut world = World::new();
    let set = |nominal| Command::SetQuota {
        tenant: tenant("acme"),
        model: model(),
        quota: Quota::of(GpuMilli::new(nominal)),
    };
    world.must(operator(), set(1_999));
    let events = world.must(user("acme"), submit(1, spec(Class::Batch, 2)));
    let rejection = Rejection::QuotaTooSmall;
    assert!(matches!(&events[..], [Event::RequestRefused { rejection: r, .. }] if *r == rejection));
    assert!(world.state.requests().is_empty());
    world.must(operator(), set(2_000));
    world.must(user("acme"), submit(2, spec(Class::Batch, 2)));
    assert_eq!(world.state.requests().len(), 1);
}

#[test]
fn open_requests_are_capped_per_tenant() {
    let mut world = World::new();
    let policy = Policy { requests_per_tenant: 2, ..Policy::default() };
    world.must(operator(), Command::SetPolicy { policy });
    world.submit("acme", 1, spec(Class::Batch, 1));
    let second = world.submit("acme", 2, spec(Class::Batch, 1));
    world.refuse(user("acme"), submit(3, spec(Class::Batch, 1)), Rejection::RequestsExhausted);
    world.must(user("acme"), Command::CancelRequest { request: second });
    world.submit("acme", 3, spec(Class::Batch, 1));
}

#[test]
fn a_repeated_key_gives_the_first_answer_and_another_body_is_refused() {
    let mut world = World::new();
    let first = world.ask(user("acme"), key(1, 1), submit(1, spec(Class::Batch, 1)));
    let Outcome::Done { first, count: 2, .. } = first else { panic!("{first:?}") };
    let again = world.ask(user("acme"), key(1, 1), submit(2, spec(Class::Batch, 1)));
    assert_eq!(again, Outcome::Repeated { first });
    let other = world.ask(user("acme"), key(1, 2), submit(3, spec(Class::Batch, 1)));
    assert_eq!(other, Outcome::Refused { rejection: Rejection::KeyReused });
    assert_eq!(world.state.requests().len(), 1);
}

#[test]
fn a_change_that_changed_nothing_is_not_made_later_under_its_key() {
    let mut world = World::new();
    let post = |amount| Command::SetPrice {
        owner: tenant("owner"),
        model: model(),
        tier: Tier::Standard,
        per_gpu_hour: MicroCredits::new(amount),
    };
    let same = world.ask(user("owner"), key(1, 1), post(2_000_000));
    let Outcome::Done { first, count: 1, .. } = same else { panic!("{same:?}") };
    world.must(user("owner"), post(3_000_000));
    let again = world.ask(user("owner"), key(1, 1), post(2_000_000));
    assert_eq!(again, Outcome::Repeated { first });
    let price = world.state.prices()[&(tenant("owner"), model(), Tier::Standard)];
    assert_eq!(price.per_gpu_hour, MicroCredits::new(3_000_000));
}

#[test]
fn two_tenants_may_use_the_same_key() {
    let mut world = World::new();
    world.ask(user("acme"), key(1, 1), submit(1, spec(Class::Batch, 1)));
    let request = RequestId::new(2);
    let ask =
        Command::SubmitRequest { request, tenant: tenant("owner"), spec: spec(Class::Batch, 1) };
    let outcome = world.ask(user("owner"), key(1, 1), ask);
    assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
}

#[test]
fn a_refusal_does_not_use_up_the_key() {
    let mut world = World::new();
    let refused = world.ask(user("acme"), key(1, 1), submit(1, spec(Class::Batch, 0)));
    assert!(matches!(refused, Outcome::Refused { .. }));
    let large = world.ask(user("acme"), key(1, 1), submit(1, spec(Class::Batch, 999)));
    assert!(matches!(large, Outcome::Done { count: 1, .. }), "refused in the journal: {large:?}");
    let good = world.ask(user("acme"), key(1, 1), submit(1, spec(Class::Batch, 1)));
    assert!(matches!(good, Outcome::Done { .. }));
}

#[test]
fn a_key_is_forgotten_after_its_retention_and_not_before() {
    let mut world = World::new();
    world.ask(user("acme"), key(1, 1), submit(1, spec(Class::Batch, 1)));
    world.later(Policy::default().key_retention);
    world.must(Actor::Leader, Command::Sweep);
    let again = world.ask(user("acme"), key(1, 1), submit(2, spec(Class::Batch, 1)));
    assert!(matches!(again, Outcome::Repeated { .. }));
    world.later(Seconds::new(1));
    world.must(Actor::Leader, Command::Sweep);
    let anew = world.ask(user("acme"), key(1, 1), submit(2, spec(Class::Batch, 1)));
    assert!(matches!(anew, Outcome::Done { .. }));
}

#[test]
fn keys_are_capped_per_tenant() {
    let mut world = World::new();
    let policy = Policy { keys_per_tenant: 1, ..Policy::default() };
    world.must(operator(), Command::SetPolicy { policy });
    world.ask(user("acme"), key(1, 1), submit(1, spec(Class::Batch, 1)));
    let outcome = world.ask(user("acme"), key(2, 1), submit(2, spec(Class::Batch, 1)));
    assert_eq!(outcome, Outcome::Refused { rejection: Rejection::KeysExhausted });
}

#[test]
fn setting_up_is_for_operators_and_each_thing_is_made_once() {
    let mut world = World::new();
    let create = |name| Command::CreateTenant { tenant: tenant(name), parent: None };
    world.refuse(user("acme"), create("new"), Rejection::NotAllowed);
    world.refuse(operator(), create("acme"), Rejection::TenantExists);
    let parent = Some(tenant("nobody"));
    let orphan = Command::CreateTenant { tenant: tenant("new"), parent };
    world.refuse(operator(), orphan, Rejection::TenantMissing);
    world.must(operator(), create("new"));
}

#[test]
fn an_owner_posts_its_own_price_and_nobody_elses() {
    let mut world = World::new();
    let post = |owner, amount| Command::SetPrice {
        owner: tenant(owner),
        model: model(),
        tier: Tier::Standard,
        per_gpu_hour: MicroCredits::new(amount),
    };
    world.refuse(user("acme"), post("owner", 1), Rejection::TenantMissing);
    world.refuse(user("owner"), post("owner", -1), Rejection::PriceInvalid);
    world.refuse(user("owner"), post("owner", i64::MAX), Rejection::PriceInvalid);
    let events = world.must(user("owner"), post("owner", 3));
    assert!(matches!(&events[..], [Event::PriceSet { price, .. }] if price.version == 2));
    assert_eq!(world.must(user("owner"), post("owner", 3)), vec![], "the same price again");
}

#[test]
fn a_cell_is_founded_once_and_nothing_happens_before() {
    let mut world = World::new();
    let cell = sublet_protocol::ids::CellId::new("other").unwrap();
    let found = Command::CreateCell { cell, policy: Policy::default() };
    world.refuse(operator(), found, Rejection::CellExists);
    let mut empty = crate::State::default();
    let early = sublet_protocol::commands::Stamped {
        id: sublet_protocol::ids::CommandId::new(0),
        actor: operator(),
        now: world.now,
        term: 1,
        key: None,
        command: Command::CreateTenant { tenant: tenant("x"), parent: None },
    };
    let outcome = crate::apply(&mut empty, &early, 1).outcome;
    assert_eq!(outcome, Outcome::Refused { rejection: Rejection::CellMissing });
}

#[test]
fn the_currency_of_a_cell_never_changes() {
    let mut world = World::new();
    let currency = sublet_protocol::money::Currency::try_from("USD".to_owned()).unwrap();
    let policy = Policy { currency, ..Policy::default() };
    world.refuse(operator(), Command::SetPolicy { policy }, Rejection::PolicyInvalid);
}

#[test]
fn a_granted_request_that_is_cancelled_gives_its_lease_back() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Batch, 1));
    let lease = world.activate(request, &[0]);
    world.refuse(user("owner"), Command::CancelRequest { request }, Rejection::RequestMissing);
    world.must(user("acme"), Command::CancelRequest { request });
    assert!(matches!(world.stage(lease), Some(crate::LeaseStage::Ending { .. })));
}

#[test]
fn the_tail_is_sealed_by_length_or_age_and_never_empty() {
    let mut world = World::new();
    assert!(!world.state.is_seal_due(world.now));
    assert!(world.state.is_seal_due(world.now.after(Seconds::new(600))));
    let from = world.state.next_index();
    world.must(Actor::Leader, Command::SealTail);
    assert_eq!(world.state.unsealed_from(), from, "the seal's own record is not in the segment");
    assert!(!world.state.is_seal_due(world.now.after(HOUR)), "alone it is not worth a segment");
}

#[test]
fn a_cancellation_that_would_be_forgotten_is_refused_until_the_request_waits_again() {
    let mut world = World::with_nodes(1);
    let request = world.submit("acme", 1, spec(Class::Experiment, 1));
    let lease = world.activate(request, &[0]);
    let (slice, token) = (gpu(0), world.token(lease));
    let (boot, cause) = (Boot::new(1), ReclaimCause::OwnerArrived);
    world.must(agent(slice), Command::ReclaimSlice { slice, token, boot, cause });
    let cancel = Command::CancelRequest { request };
    world.refuse(user("acme"), cancel.clone(), Rejection::LeaseEnding);
    world.stop(lease, slice, Seconds::new(5), GuestOutcome::Stopped);
    world.must(user("acme"), cancel);
    assert!(world.state.requests().is_empty());
}

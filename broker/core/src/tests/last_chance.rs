//! Who waits for better hours and who starts at once, side by side in the same random worlds: what the
//! second has done by the deadline, the first has done, too.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sublet_protocol::commands::{Command, GroupOutcome, GuestOutcome, ReclaimCause};
use sublet_protocol::deferral::{Deferral, Window};
use sublet_protocol::events::Event;
use sublet_protocol::ids::{Boot, LeaseId, RequestId};
use sublet_protocol::leases::EndReason;
use sublet_protocol::offers::{IdleFor, OfferTerms, RescindReason};
use sublet_protocol::policy::Policy;
use sublet_protocol::quotas::Quota;
use sublet_protocol::requests::{Class, PromiseCause, RequestSpec};
use sublet_protocol::units::{GpuMilli, Seconds, Timestamp};

use crate::matching::{self, LATE_MAX};
use crate::state::StateView;
use crate::testing::{World, agent, gpu, model, node, offer, operator, spec, tenant};

const DAY: Seconds = Seconds::new(86_400);
/// One step of time.
const STEP: Seconds = Seconds::new(300);
/// How long a world is looked at, in steps: eight hours.
const STEPS: u64 = 96;
/// The one whose deadline is looked at.
const SUBJECT: RequestId = RequestId::new(1);

/// Someone who asks for GPUs.
#[derive(Debug, Clone)]
struct Arrival {
    at: u64,
    is_acme: bool,
    class: Class,
    count: u32,
    /// What is bought and what the guest then needs, in steps.
    bought: u64,
    used: u64,
}

/// When an owner wants a GPU, from which step on and for how many.
#[derive(Debug, Clone)]
struct Owner {
    gpu: u64,
    from: u64,
    steps: u64,
}

#[derive(Debug, Clone)]
struct Script {
    gpus: u64,
    /// The quota of `acme` in GPUs.
    quota: u64,
    others: Vec<Arrival>,
    owners: Vec<Owner>,
    subject: Arrival,
    /// Its windows and its last chance, in steps after it was submitted.
    windows: Vec<(u64, u64)>,
    start_by: u64,
}

fn arrival(classes: &'static [Class]) -> impl Strategy<Value = Arrival> {
    let what = (any::<bool>(), proptest::sample::select(classes), 1_u32..4);
    (0_u64..70, what, 1_u64..30, 1_u64..=100).prop_map(
        |(at, (is_acme, class, count), bought, part)| {
            let used = (bought * part).div_ceil(100);
            Arrival { at, is_acme, class, count, bought, used }
        },
    )
}

fn script(classes: &'static [Class], owners: usize) -> impl Strategy<Value = Script> {
    const MEEK: &[Class] = &[Class::Batch, Class::Training, Class::Experiment];
    let owner = (0_u64..6, 0_u64..STEPS, 2_u64..30).prop_map(|(gpu, from, steps)| Owner {
        gpu,
        from,
        steps,
    });
    let world = (1_u64..5, 1_u64..8, proptest::collection::vec(owner, 0..=owners));
    let others = proptest::collection::vec(arrival(classes), 0..16);
    let hours = (proptest::collection::vec((1_u64..20, 1_u64..12), 0..3), 1_u64..30);
    (world, others, arrival(MEEK), hours).prop_map(
        |((gpus, quota, owners), others, subject, (gaps, rest))| {
            let mut windows = Vec::new();
            let mut end = 0;
            for (gap, len) in gaps {
                windows.push((end + gap, end + gap + len));
                end += gap + len;
            }
            let subject = Arrival { is_acme: true, at: subject.at / 3, ..subject };
            Script { gpus, quota, others, owners, subject, windows, start_by: end + rest }
        },
    )
}

/// Whether the subject asks to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twin {
    Waits,
    Starts,
}

/// What became of the subject.
#[derive(Debug)]
struct Fate {
    is_in_time: bool,
    /// When its first lease was granted.
    granted_at: Option<Timestamp>,
    /// Whether something that nobody can reserve against befell it: its owner or a higher tier took what
    /// it had or was promised.
    is_excused: bool,
    submitted_at: Timestamp,
}

struct Play<'s> {
    script: &'s Script,
    world: World,
    begin: Timestamp,
    /// By lease: when its guest has done its work.
    running: BTreeMap<LeaseId, Timestamp>,
    generations: BTreeMap<u64, u64>,
}

impl Play<'_> {
    fn at(&self, step: u64) -> Timestamp {
        self.begin.after(Seconds::new(STEP.get() * step))
    }

    fn offer(&mut self, number: u64) {
        let generation = self.generations.entry(number).or_default();
        *generation += 1;
        let idle_for = IdleFor { p10: DAY, p50: DAY, p90: DAY };
        let offer = OfferTerms { idle_for, ttl: DAY, ..offer(gpu(number), *generation, 1) };
        self.world.must(agent(gpu(number)), Command::OfferCapacity { offer });
    }

    fn is_owners(&self, number: u64) -> bool {
        let now = self.world.now;
        let wants = |owner: &Owner| {
            let (from, until) = (self.at(owner.from), self.at(owner.from + owner.steps));
            owner.gpu % self.script.gpus == number && from <= now && now < until
        };
        self.script.owners.iter().any(wants)
    }

    fn end(&mut self, lease: LeaseId, outcome: GuestOutcome) {
        self.running.remove(&lease);
        let lease = (lease, self.world.state.leases()[&lease].terms().members.clone());
        for member in &lease.1 {
            self.world.stop(lease.0, member.slice, Seconds::new(1), outcome);
        }
    }

    /// Owners come and go.
    fn owners(&mut self) {
        for number in 0..self.script.gpus {
            let slice = gpu(number);
            let lease = self.world.state.leased().get(&slice).copied();
            let offer = self.world.state.offers().get(&slice).map(|o| o.terms().generation);
            let boot = Boot::new(1);
            match (self.is_owners(number), lease, offer) {
                (true, Some(lease), _) => {
                    let (token, cause) = (self.world.token(lease), ReclaimCause::OwnerArrived);
                    let back = Command::ReclaimSlice { slice, token, boot, cause };
                    self.world.must(agent(slice), back);
                    self.end(lease, GuestOutcome::Stopped);
                }
                (true, None, Some(generation)) => {
                    let reason = RescindReason::Owner;
                    let rescind = Command::RescindOffer { slice, generation, boot, reason };
                    self.world.must(agent(slice), rescind);
                }
                (false, None, None) => self.offer(number),
                (true, None, None) | (false, Some(_), _) | (false, None, Some(_)) => {}
            }
        }
    }

    fn submit(&mut self, number: u128, arrival: &Arrival, deferral: Option<Box<Deferral>>) {
        let name = if arrival.is_acme { "acme" } else { "owner" };
        let duration = Seconds::new(STEP.get() * arrival.bought);
        let spec = RequestSpec { duration, deferral, ..spec(arrival.class, arrival.count) };
        let (request, tenant) = (RequestId::new(number), tenant(name));
        let submit = Command::SubmitRequest { request, tenant, spec };
        // Whoever asks for more than its quota ever allows is refused.
        self.world.ask(crate::testing::user(name), None, submit);
    }

    fn plan(&mut self) {
        for _ in 0..4 {
            let view = StateView { state: &self.world.state, now: self.world.now };
            if matching::plan(view).is_empty() {
                break;
            }
            for outcome in self.world.plan() {
                if let GroupOutcome::Granted { lease } = outcome {
                    self.start(lease);
                }
            }
            let leases = self.world.state.leases();
            let told: Vec<LeaseId> =
                leases.iter().filter(|(_, lease)| !lease.is_running()).map(|(id, _)| *id).collect();
            // Victims go at once.
            for lease in told {
                self.end(lease, GuestOutcome::Stopped);
                self.owners();
            }
        }
    }

    fn start(&mut self, lease: LeaseId) {
        let terms = self.world.state.leases()[&lease].terms().clone();
        for member in &terms.members {
            let (slice, token, boot) = (member.slice, terms.token, Boot::new(1));
            let confirm = Command::ConfirmMember { lease, slice, token, boot };
            self.world.must(agent(slice), confirm);
        }
        let number = terms.request;
        let script = self.script;
        let all = std::iter::once(&script.subject).chain(&script.others);
        let arrival = (1_u128..).zip(all).find(|(id, _)| RequestId::new(*id) == number);
        let used = arrival.map_or(1, |(_, arrival)| arrival.used);
        self.running.insert(lease, self.world.now.after(Seconds::new(STEP.get() * used)));
    }
}

fn play(script: &Script, twin: Twin) -> Fate {
    let mut world = World::new();
    world.register(0, 1);
    // Agents say in time that what is idle still is.
    let policy = Policy { offer_ttl: DAY, ..world.state.policy().clone() };
    world.must(operator(), Command::SetPolicy { policy });
    let quota = Quota::of(GpuMilli::new(1_000 * script.quota));
    world.must(operator(), Command::SetQuota { tenant: tenant("acme"), model: model(), quota });
    let begin = world.now;
    let (running, generations) = (BTreeMap::new(), BTreeMap::new());
    let mut play = Play { script, world, begin, running, generations };
    assert_eq!(gpu(0).node, node(0));
    let submitted_at = play.at(script.subject.at);
    let in_steps = |steps: u64| submitted_at.after(Seconds::new(STEP.get() * steps));
    let windows = script.windows.iter();
    let windows =
        windows.map(|(from, until)| Window { from: in_steps(*from), until: in_steps(*until) });
    let (windows, start_by) = (windows.collect(), in_steps(script.start_by));
    let deferral = Deferral { not_before: None, deadline: None, windows, start_by };
    let bought = Seconds::new(STEP.get() * script.subject.bought);
    let start_timeout = play.world.state.policy().start_timeout;
    let deadline = start_by.after(LATE_MAX).after(start_timeout).after(bought);
    for step in 0..STEPS {
        play.owners();
        let over: Vec<LeaseId> = {
            let now = play.world.now;
            play.running.iter().filter(|(_, at)| **at <= now).map(|(lease, _)| *lease).collect()
        };
        for lease in over {
            play.end(lease, GuestOutcome::Exited { code: 0 });
        }
        play.owners();
        for (number, arrival) in (2_u128..).zip(&script.others) {
            if arrival.at == step {
                play.submit(number, arrival, None);
            }
        }
        if script.subject.at == step {
            let deferral = (twin == Twin::Waits).then(|| Box::new(deferral.clone()));
            play.submit(1, &script.subject, deferral);
        }
        play.plan();
        play.world.later(STEP);
    }
    fate(&play, submitted_at, deadline)
}

fn fate(play: &Play<'_>, submitted_at: Timestamp, deadline: Timestamp) -> Fate {
    let mut fate = Fate { is_in_time: false, granted_at: None, is_excused: false, submitted_at };
    let mut own: Option<LeaseId> = None;
    for record in &play.world.journal {
        match &record.event {
            Event::LeaseGranted { terms, .. } if terms.request == SUBJECT => {
                own = Some(terms.lease);
                fate.granted_at = fate.granted_at.or(Some(record.time));
            }
            Event::LeaseEnded { lease, reason, .. } if own == Some(*lease) => match reason {
                EndReason::Completed => fate.is_in_time |= record.time <= deadline,
                _ended => fate.is_excused = true,
            },
            Event::StartPromised { request, cause, .. }
            | Event::PromiseWithdrawn { request, cause, .. }
                if *request == SUBJECT =>
            {
                fate.is_excused |= match cause {
                    PromiseCause::Queued | PromiseCause::Earlier => false,
                    PromiseCause::OwnerReturned
                    | PromiseCause::CapacityLost
                    | PromiseCause::Outranked
                    | PromiseCause::Overrun
                    | PromiseCause::TermsChanged => true,
                };
            }
            _other => {}
        }
    }
    fate
}

const EQUALS: &[Class] = &[Class::Batch, Class::Training, Class::Experiment];
const ALL: &[Class] = &[Class::Batch, Class::Experiment, Class::Latency];

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn who_waits_meets_each_deadline_that_a_start_at_once_meets(
        script in script(EQUALS, 0).prop_filter("a higher tier takes what it needs", |script| {
            script.subject.class != Class::Experiment
        })
    ) {
        let (waits, starts) = (play(&script, Twin::Waits), play(&script, Twin::Starts));
        prop_assert!(waits.is_in_time || !starts.is_in_time, "{waits:?} {starts:?}");
    }

    #[test]
    fn who_waits_and_is_late_was_told_that_an_owner_or_a_higher_tier_took_its_place(
        script in script(ALL, 4)
    ) {
        let (waits, starts) = (play(&script, Twin::Waits), play(&script, Twin::Starts));
        let is_late = !waits.is_in_time && starts.is_in_time;
        prop_assert!(waits.is_excused || !is_late, "{waits:?} {starts:?}");
    }
}

#[test]
fn of_many_that_wait_most_start_later_and_hardly_any_is_late_for_an_owner() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (mut met, mut late, mut moved) = (0, 0, 0);
    for _ in 0..32 {
        let script = script(ALL, 4).new_tree(&mut runner).unwrap().current();
        let (waits, starts) = (play(&script, Twin::Waits), play(&script, Twin::Starts));
        let is_at_once = starts.granted_at == Some(starts.submitted_at);
        met += u32::from(starts.is_in_time);
        late += u32::from(starts.is_in_time && !waits.is_in_time);
        moved += u32::from(is_at_once && waits.granted_at > starts.granted_at);
    }
    assert!(met >= 10 && moved >= 5, "the worlds are not all full: met {met}, moved {moved}");
    assert!(late * 10 <= met, "{late} of {met} are late");
}

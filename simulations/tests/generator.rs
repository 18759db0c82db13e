//! The generator: repeatable, bounded, and like the traces it was fitted to.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::print_stderr, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use sublet_protocol::ids::TenantId;
use sublet_protocol::requests::Class;
use sublet_protocol::units::{Permille, Seconds};
use sublet_simulations::generator::{
    Generator, Job, OwnerProfile, OwnerState, Owners, Profile, Turn, fit,
};

mod support;
use support::shared_data;

const HOUR: Seconds = Seconds::new(3_600);
const DAYS_38: Seconds = Seconds::new(38 * 86_400);

fn tenants() -> [TenantId; 3] {
    ["north", "south", "visitor"].map(|name| TenantId::new(name).unwrap())
}

fn until(seed: u64, profile: Profile, end: Seconds) -> Vec<Job> {
    Generator::new(seed, profile).take_while(|job| job.submit < end).collect()
}

fn gpu_seconds(jobs: &[Job]) -> u64 {
    jobs.iter().map(|job| u64::from(job.gpus) * job.duration.get()).sum()
}

#[test]
fn one_seed_is_one_sequence_on_every_machine() {
    let brief: Vec<_> = Generator::new(7, Profile::philly())
        .take(4)
        .map(|job| (job.tenant.to_string(), job.submit.get(), job.gpus, job.duration.get()))
        .collect();
    let expected = [
        ("103959", 11, 4, 25_081),
        ("11cb48", 180, 1, 14),
        ("7f04ca", 250, 1, 5_336),
        ("7f04ca", 257, 1, 294_773),
    ];
    let expected =
        expected.map(|(tenant, at, gpus, seconds)| (tenant.to_owned(), at, gpus, seconds));
    assert_eq!(brief, expected);
}

#[test]
fn other_seeds_give_other_jobs() {
    let [one, two] = [1, 2].map(|seed| until(seed, Profile::philly(), HOUR));
    assert_ne!(one, two);
}

#[test]
fn what_one_tenant_does_changes_nothing_for_the_others() {
    let all = Profile::philly();
    let first_two = Profile { tenants: all.tenants[..2].to_vec(), ..all.clone() };
    let names: BTreeSet<_> = first_two.tenants.iter().map(|tenant| tenant.tenant).collect();
    let day = Seconds::new(86_400);
    let of_all: Vec<_> =
        until(3, all, day).into_iter().filter(|job| names.contains(&job.tenant)).collect();
    assert_eq!(of_all, until(3, first_two, day));
    assert!(!of_all.is_empty());
}

#[test]
fn jobs_come_in_order_and_within_their_bounds() {
    let jobs = until(5, Profile::philly(), DAYS_38);
    assert!(jobs.windows(2).all(|pair| pair[0].submit <= pair[1].submit));
    for job in &jobs {
        assert!(job.gpus >= 1 && job.duration >= Seconds::new(1), "{job:?}");
        assert!(job.duration <= sublet_protocol::requests::DURATION_MAX, "{job:?}");
        assert!(job.cpu.get() >= 1_000 && job.host_memory.get() < 200_000, "{job:?}");
    }
}

#[test]
fn generated_load_is_like_the_trace_it_was_fitted_to() {
    // The trace: 51,060 jobs in 38 days that keep 556 GPUs busy, nine in ten on one GPU.
    let runs: Vec<Vec<Job>> = (1..=4).map(|seed| until(seed, Profile::philly(), DAYS_38)).collect();
    let jobs: usize = runs.iter().map(Vec::len).sum();
    assert!((43_000..58_000).contains(&(jobs / runs.len())), "{}", jobs / runs.len());
    let busy: u64 = runs.iter().map(|jobs| gpu_seconds(jobs) / DAYS_38.get()).sum();
    let busy = busy / runs.len() as u64;
    assert!((470..640).contains(&busy), "{busy} GPUs busy");
    let singles = runs.iter().flatten().filter(|job| job.gpus == 1).count();
    assert!((900..980).contains(&(singles * 1_000 / jobs)), "{singles} of {jobs}");
}

#[test]
fn a_profile_is_scaled_to_a_load() {
    let mut profile = Profile::philly();
    profile.scale_to(100, Permille::new(800));
    let runs: Vec<_> = (1..=4).map(|seed| until(seed, profile.clone(), DAYS_38)).collect();
    let busy: u64 = runs.iter().map(|jobs| gpu_seconds(jobs) / DAYS_38.get()).sum::<u64>() / 4;
    assert!((64..=96).contains(&busy), "{busy} GPUs busy, 80 wanted");
}

#[test]
fn the_demonstration_is_busy_within_its_first_hour() {
    for seed in 1..=20 {
        let jobs = until(seed, Profile::demo(&tenants(), 36), HOUR);
        assert!(jobs.len() >= 30, "seed {seed}: {} jobs", jobs.len());
        assert!(jobs.iter().all(|job| job.gpus <= 8 && job.duration.get() <= 1_800));
        let count = |class| jobs.iter().filter(|job| job.class == class).count();
        for class in [Class::Latency, Class::Training, Class::Batch, Class::Experiment] {
            assert!(count(class) >= 1, "seed {seed}: no {class:?} in {} jobs", jobs.len());
        }
        let per_tenant = jobs.iter().map(|job| job.tenant).collect::<BTreeSet<_>>();
        assert_eq!(per_tenant.len(), 3, "seed {seed}");
    }
    let hours = 200;
    let jobs = until(1, Profile::demo(&tenants(), 36), Seconds::new(hours * 3_600));
    let permille = gpu_seconds(&jobs) * 1_000 / (hours * 3_600 * 36);
    assert!((1_050..1_350).contains(&permille), "load {permille} thousandths");
}

#[test]
fn tenants_that_never_submit_end_the_sequence() {
    let mut profile = Profile::demo(&tenants(), 8);
    for tenant in &mut profile.tenants {
        tenant.bursts_per_kiloday = [0; 7];
    }
    assert_eq!(Generator::new(1, profile).next(), None);
    let nobody = Profile { tenants: Vec::new(), ..Profile::philly() };
    assert_eq!(Generator::new(1, nobody).next(), None);
}

#[test]
fn owners_come_and_go_on_each_node_without_a_gap() {
    let turns: Vec<Turn> =
        Owners::new(9, OwnerProfile::helios(), 3).take_while(|turn| turn.at < DAYS_38).collect();
    assert!(turns.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let mut of_node = BTreeMap::<usize, Vec<Turn>>::new();
    for turn in turns {
        of_node.entry(turn.node).or_default().push(turn);
    }
    assert_eq!(of_node.len(), 3);
    for turns in of_node.values() {
        assert_eq!(turns[0].at, Seconds::ZERO);
        assert!(turns.windows(2).all(|pair| {
            pair[0].at.get() + pair[0].lasts.get() == pair[1].at.get()
                && pair[0].state != pair[1].state
        }));
    }
}

#[test]
fn owners_leave_about_as_much_idle_as_in_the_trace() {
    let end = 60 * 86_400;
    let nodes = 200;
    let mut idle = 0;
    for turn in Owners::new(4, OwnerProfile::helios(), nodes) {
        if turn.at.get() >= end {
            break;
        }
        if turn.state == OwnerState::Idle {
            idle += turn.lasts.get().min(end - turn.at.get());
        }
    }
    let permille = idle * 1_000 / (end * nodes as u64);
    assert!((250..450).contains(&permille), "{permille} thousandths idle; 322 in the trace");
}

#[test]
fn owners_of_a_demonstration_come_and_go_within_an_hour() {
    for seed in 1..=10 {
        let turns = Owners::new(seed, OwnerProfile::demo(), 5).take_while(|turn| turn.at < HOUR);
        let arrivals =
            turns.filter(|turn| turn.at > Seconds::ZERO && turn.state == OwnerState::Busy);
        assert!(arrivals.count() >= 2, "seed {seed}");
    }
}

#[test]
fn the_kept_tables_are_what_fitting_the_public_traces_gives() {
    let kept = |name: &str| {
        let file = format!("{}/src/generator/tables/{name}.csv", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(file).unwrap()
    };
    if let Some(folder) = shared_data("philly-2017") {
        assert_eq!(fit::philly(&folder).unwrap().to_string(), kept("philly"));
    }
    if let Some(folder) = shared_data("helios-earth-2020") {
        assert_eq!(fit::helios(&folder).unwrap().to_string(), kept("helios"));
    }
    if let Some(folder) = shared_data("alibaba-openb-2023") {
        let list = folder.join("openb_pod_list_default.csv.xz");
        assert_eq!(fit::openb(&list).unwrap().to_string(), kept("openb"));
    }
}

//! Who submits what, and when: the shapes a [`Generator`](super::Generator) draws from.

use sublet_protocol::ids::TenantId;
use sublet_protocol::requests::Class;
use sublet_protocol::units::Permille;

use super::shape::{Quantiles, Weights};
use super::table::{Table, TableError};

const PHILLY: &str = include_str!("tables/philly.csv");
const OPENB: &str = include_str!("tables/openb.csv");
/// Subject of shapes that are everyone's.
pub(crate) const EVERYONE: &str = "-";
/// Jobs of at least this many GPUs have durations of their own.
pub(crate) const LARGE_GPUS: u32 = 8;

/// Days of a week and hours of a day.
const WEEKDAYS: usize = 7;
const HOURS: usize = 24;

/// A load: tenants and when the story begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Who submits.
    pub tenants: Vec<TenantProfile>,
    /// The weekday at second 0, 0 = Monday.
    pub first_weekday: u8,
    /// The hour at second 0.
    pub first_hour: u8,
    /// CPU per GPU, milli-cores.
    pub cpu_milli: Quantiles,
    /// Host memory per GPU, MiB.
    pub host_memory_mib: Quantiles,
}

/// What one tenant submits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantProfile {
    /// Whose.
    pub tenant: TenantId,
    /// Bursts per 1,000 days, for each weekday from Monday.
    pub bursts_per_kiloday: [u64; WEEKDAYS],
    /// How a day's bursts spread over its hours.
    pub hours: [u64; HOURS],
    /// What comes at once.
    pub burst: Burst,
    /// GPUs of a job.
    pub gpus: Weights<u32>,
    /// How long jobs run.
    pub durations: Durations,
    /// What kind of work it is.
    pub classes: Weights<Class>,
}

/// Jobs that one tenant submits in quick succession with the same number of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Burst {
    /// How many jobs of one GPU, at least 1.
    pub singles: Quantiles,
    /// How many jobs of several GPUs, at least 1.
    pub several: Quantiles,
    /// Seconds from one to the next.
    pub gap: Quantiles,
    /// How often a job of a burst runs as long as the one before.
    pub alike: Permille,
}

/// How long jobs run, seconds, at least 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durations {
    /// All jobs, or those of fewer than 8 GPUs where `large` says the others.
    pub usual: Quantiles,
    /// Jobs of 8 GPUs or more, where there were enough to tell.
    pub large: Option<Quantiles>,
}

impl Burst {
    /// How many jobs of `gpus` GPUs come at once.
    pub(crate) fn size(&self, gpus: u32) -> &Quantiles {
        if gpus > 1 { &self.several } else { &self.singles }
    }
}

impl Durations {
    /// The durations of jobs of `gpus` GPUs.
    pub(crate) fn of(&self, gpus: u32) -> &Quantiles {
        match &self.large {
            Some(large) if gpus >= LARGE_GPUS => large,
            _ => &self.usual,
        }
    }
}

impl Profile {
    /// The eleven tenants of the Philly trace as they were from 2017-10-01 on. All work is `batch`.
    pub fn philly() -> Profile {
        let table = Table::parse(PHILLY).expect("the table in the repository is read by a test");
        Profile::from_table(&table).expect("the table in the repository is read by a test")
    }

    /// A load for a demonstration on `gpus` GPUs, busy enough that jobs queue and preempt each other:
    /// each of `tenants` behaves as one of the busiest of Philly, but jobs take at most half an hour
    /// and 8 GPUs, come evenly at all hours, ask for six fifths of the GPUs together, and are of
    /// all classes.
    pub fn demo(tenants: &[TenantId], gpus: u32) -> Profile {
        const DURATION_MAX: u64 = 1_800;
        const BURST_MAX: u64 = 6;
        let mut profile = Profile::philly();
        profile
            .tenants
            .sort_by_key(|tenant| std::cmp::Reverse(tenant.bursts_per_kiloday.iter().sum::<u64>()));
        let models = profile.tenants.clone();
        let classes = vec![
            (Class::Latency, 15),
            (Class::Training, 20),
            (Class::Batch, 30),
            (Class::Experiment, 35),
        ];
        let classes = Weights::new(classes).expect("the weights are above 0");
        profile.tenants = tenants
            .iter()
            .zip(models.iter().cycle())
            .map(|(tenant, model)| TenantProfile {
                tenant: *tenant,
                bursts_per_kiloday: [1_000_000; WEEKDAYS],
                hours: [1; HOURS],
                burst: Burst {
                    singles: model.burst.singles.capped(BURST_MAX),
                    several: model.burst.several.capped(BURST_MAX),
                    ..model.burst.clone()
                },
                gpus: Weights::new(demo_gpus(&model.gpus, gpus)).expect("one GPU always fits"),
                durations: Durations {
                    usual: model.durations.usual.capped(DURATION_MAX),
                    large: None,
                },
                classes: classes.clone(),
            })
            .collect();
        profile.first_hour = 10;
        profile.scale_to(u64::from(gpus), Permille::new(1_200));
        profile
    }

    /// Changes how often bursts come so that all tenants together ask for `load` of `gpus` GPUs on the
    /// average of a week; the tenants' shares stay as they are.
    pub fn scale_to(&mut self, gpus: u64, load: Permille) {
        // GPU-seconds in 1,000 days: GPUs × load / 1,000 × 86,400 × 1,000.
        let wanted = u128::from(gpus) * u128::from(load.get()) * 86_400;
        let asked: u128 = self.tenants.iter().map(TenantProfile::gpu_seconds_per_kiloday).sum();
        for rate in self.tenants.iter_mut().flat_map(|tenant| &mut tenant.bursts_per_kiloday) {
            let scaled = u128::from(*rate) * wanted / asked.max(1);
            *rate = u64::try_from(scaled).unwrap_or(u64::MAX);
        }
    }

    /// Reads the table that [`fit::philly`](super::fit::philly) makes.
    pub fn from_table(table: &Table) -> Result<Profile, TableError> {
        let openb = Table::parse(OPENB)?;
        let tenants = table.subjects().into_iter().map(|subject| tenant(table, subject));
        Ok(Profile {
            tenants: tenants.collect::<Result<_, _>>()?,
            first_weekday: 0,
            first_hour: 0,
            cpu_milli: openb.quantiles(EVERYONE, "cpu_milli_per_gpu")?,
            host_memory_mib: openb.quantiles(EVERYONE, "memory_mib_per_gpu")?,
        })
    }
}

impl TenantProfile {
    /// What it asks for in 1,000 days, on the average of a week.
    fn gpu_seconds_per_kiloday(&self) -> u128 {
        let weights = self.gpus.pairs();
        let weighted: u128 = weights
            .iter()
            .map(|(gpus, weight)| {
                let duration_milli = u128::from(self.durations.of(*gpus).mean_milli());
                let size_milli = u128::from(self.burst.size(*gpus).mean_milli());
                u128::from(*weight) * u128::from(*gpus) * duration_milli * size_milli / 1_000_000
            })
            .sum();
        let per_burst = weighted / u128::from(self.gpus.total());
        let week: u128 = self.bursts_per_kiloday.iter().map(|rate| u128::from(*rate)).sum();
        week * per_burst / 7
    }
}

/// The trace's job sizes that a demonstration of `gpus` GPUs can hold, single ones made rarer: nine in
/// ten jobs of the trace take one GPU, which would leave gangs and topology unseen.
fn demo_gpus(trace: &Weights<u32>, gpus: u32) -> Vec<(u32, u64)> {
    let most = LARGE_GPUS.min(gpus.max(1));
    let single = trace
        .pairs()
        .iter()
        .filter(|(size, _)| *size == 1)
        .map(|(_, weight)| weight / 8)
        .sum::<u64>();
    let several = trace.pairs().iter().copied().filter(|(size, _)| (2..=most).contains(size));
    std::iter::once((1, single.max(1))).chain(several).collect()
}

fn tenant(table: &Table, subject: &str) -> Result<TenantProfile, TableError> {
    let absent = |shape| TableError::Absent { subject: subject.to_owned(), shape };
    let tenant = TenantId::new(subject).map_err(|_| absent("name"))?;
    let gpus = table.weights(subject, "gpus")?;
    let gpus =
        gpus.pairs().iter().filter_map(|&(gpus, weight)| Some((u32::try_from(gpus).ok()?, weight)));
    Ok(TenantProfile {
        tenant,
        bursts_per_kiloday: spread(&table.weights(subject, "bursts_per_kiloday")?, 1),
        hours: spread(&table.weights(subject, "hour")?, 0),
        burst: Burst {
            singles: table
                .quantiles_if_any(subject, "burst_size_single")?
                .unwrap_or_else(Quantiles::one),
            several: table
                .quantiles_if_any(subject, "burst_size_several")?
                .unwrap_or_else(Quantiles::one),
            gap: table.quantiles(subject, "burst_gap")?,
            alike: table.permille(subject, "burst_alike", 0)?,
        },
        gpus: Weights::new(gpus.collect()).map_err(|_| absent("gpus"))?,
        durations: Durations {
            usual: table.quantiles(subject, "duration")?,
            large: table.quantiles_if_any(subject, "duration_large")?,
        },
        classes: Weights::new(vec![(Class::Batch, 1)]).expect("the weight is above 0"),
    })
}

/// Puts weights by key, counted from `first`, into an array; keys outside it are left out.
fn spread<const N: usize>(weights: &Weights<u64>, first: u64) -> [u64; N] {
    let mut array = [0; N];
    for (key, weight) in weights.pairs() {
        let index = key.checked_sub(first).and_then(|index| usize::try_from(index).ok());
        if let Some(slot) = index.and_then(|index| array.get_mut(index)) {
            *slot = *weight;
        }
    }
    array
}

//! The trace as a grid of minutes and tenants.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::civil::DateTime;
use sublet_protocol::ids::TenantId;
use sublet_protocol::units::Timestamp;

use crate::traces::{self, VcName, helios};

/// What one size class waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Jobs that wait.
    pub jobs: u32,
    /// GPUs that they ask for together.
    pub gpus: u32,
}

/// One minute of one tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Minute {
    pub(super) idle: u32,
    /// Jobs of fewer than 8 GPUs, and those of 8 or more.
    pub(super) needs: [Need; 2],
}

/// Minutes in order; each has every tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// The first minute.
    pub(super) starts_at: Timestamp,
    /// Who owns how many GPUs.
    pub(super) tenants: Vec<(TenantId, u32)>,
    /// By minute, then by tenant.
    pub(super) minutes: Vec<Vec<Minute>>,
}

/// Why a series cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// The trace was not read.
    #[error(transparent)]
    Trace(#[from] traces::Error),
    /// The trace has no row.
    #[error("the trace is empty")]
    Empty,
    /// A tenant's GPUs change.
    #[error(
        "{tenant} has {first} GPUs at first and {later} later: only a constant capacity is replayed"
    )]
    Capacity {
        /// Whose.
        tenant: TenantId,
        /// At first.
        first: u32,
        /// Later.
        later: u32,
    },
    /// A minute is not there for every tenant.
    #[error("{tenant} has {found} minutes, others have {expected}")]
    Gap {
        /// Whose.
        tenant: TenantId,
        /// How many it has.
        found: usize,
        /// How many others have.
        expected: usize,
    },
    /// The first minute is beyond the calendar.
    #[error("the trace starts at {0}, which is not a time of this calendar")]
    Start(DateTime),
}

impl Series {
    /// Reads `earth_vc_minute` from `folder`.
    ///
    /// # Errors
    /// If it cannot be read, has gaps, or a tenant's capacity changes.
    pub fn helios(folder: &Path) -> Result<Series, SeriesError> {
        let mut by_tenant = BTreeMap::<VcName, (u32, BTreeMap<DateTime, Minute>)>::new();
        for row in helios::minutes(folder, "earth_vc_minute")? {
            let row = row?;
            let need = |class: helios::SizeClass| Need {
                jobs: class.jobs.pending,
                gpus: class.gpus.pending,
            };
            let minute = Minute { idle: row.idle_gpus, needs: [need(row.small), need(row.large)] };
            let tenant = row.vc.tenant();
            let gpus = row.gpus.total;
            let (first, minutes) =
                by_tenant.entry(row.vc).or_insert_with(|| (gpus, BTreeMap::new()));
            if *first != gpus {
                return Err(SeriesError::Capacity { tenant, first: *first, later: gpus });
            }
            minutes.insert(row.time, minute);
        }
        Series::of(by_tenant)
    }

    fn of(
        by_tenant: BTreeMap<VcName, (u32, BTreeMap<DateTime, Minute>)>,
    ) -> Result<Series, SeriesError> {
        let (_, first) = by_tenant.values().next().ok_or(SeriesError::Empty)?;
        let expected = first.len();
        let start = *first.keys().next().ok_or(SeriesError::Empty)?;
        // Local to the cluster, UTC+8; only differences matter.
        let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(8));
        let starts_at = zone.to_ambiguous_timestamp(start).compatible().ok();
        let starts_at = starts_at.and_then(|at| u64::try_from(at.as_millisecond()).ok());
        let starts_at = Timestamp::new(starts_at.ok_or(SeriesError::Start(start))?);
        let mut minutes = vec![Vec::with_capacity(by_tenant.len()); expected];
        let mut tenants = Vec::new();
        for (vc, (gpus, own)) in by_tenant {
            let (tenant, found) = (vc.tenant(), own.len());
            if found != expected {
                return Err(SeriesError::Gap { tenant, found, expected });
            }
            tenants.push((tenant, gpus));
            for (all, one) in minutes.iter_mut().zip(own.into_values()) {
                all.push(one);
            }
        }
        Ok(Series { starts_at, tenants, minutes })
    }

    /// How many minutes.
    pub fn minutes(&self) -> usize {
        self.minutes.len()
    }

    /// GPUs of all tenants.
    pub fn gpus(&self) -> u64 {
        self.tenants.iter().map(|(_, gpus)| u64::from(*gpus)).sum()
    }
}

//! Requests as they are sent and shown.

use serde::{Deserialize, Serialize};

use super::amounts::word;
use super::{DeferCreate, Money, StateReason, Time, Whole};
use crate::ids::{GpuModel, LeaseId, Project, Region, RequestId, TenantId};
use crate::requests::{Capability, Class, OnRecall, Placement, PredictionLayer, Tier};

/// What a tenant asks for. Only `duration` must be given; the rest has a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RequestCreate {
    /// What it is for; statements are split by it. Default `default`.
    #[serde(default = "default_project")]
    pub project: Project,
    /// What kind of work it is; it decides the tier. Default `batch`.
    #[serde(default = "default_class", deserialize_with = "word")]
    pub class: Class,
    /// Priority among the tenant's own requests of one tier, higher first. Default 0.
    #[serde(default = "least")]
    pub priority: Whole<0, 255>,
    /// Allowed GPU models, at most 16; empty, the default, means any.
    #[serde(default)]
    pub models: Vec<GpuModel>,
    /// How many slices, all or none. Default 1.
    #[serde(default = "least")]
    pub count: Whole<1, 1_024>,
    /// Share of a GPU for each, in thousandths. Default 1,000: a whole one.
    #[serde(default = "whole_gpu")]
    pub gpu: Whole<1, 1_000>,
    /// Device memory for each, in MiB. Default 0: any.
    #[serde(default = "least")]
    pub memory: Whole<0, 1_048_576>,
    /// CPU for each, in thousandths of a core. Default 0: any.
    #[serde(default = "least")]
    pub cpu: Whole<0, 4_096_000>,
    /// Host memory for each, in MiB. Default 0: any.
    #[serde(default = "least")]
    pub host_memory: Whole<0, 67_108_864>,
    /// Where they may stand. Default `cluster`.
    #[serde(default = "default_placement", deserialize_with = "word")]
    pub placement: Placement,
    /// How long at most, in seconds; the hold is for this long.
    pub duration: Whole<1, 2_592_000>,
    /// Most it may cost per GPU-hour; none, the default, means any posted price.
    #[serde(default)]
    pub max_price: Option<Money>,
    /// Allowed regions, at most 16; empty, the default, means any.
    #[serde(default)]
    pub regions: Vec<Region>,
    /// What happens when owner or rank takes the lease away. Default `requeue`.
    #[serde(default = "default_on_recall", deserialize_with = "word")]
    pub on_recall: OnRecall,
    /// The workload that will be sent after the grant, if Sublet runs it.
    #[serde(default)]
    pub workload: Option<WorkloadDeclared>,
    /// What the predictor says, if it was asked.
    #[serde(default)]
    pub prediction: Option<PredictionBody>,
    /// The least that GPU and driver must be able to do. Default: anything.
    #[serde(default)]
    pub capability: Capability,
    /// When it is to start; none, the default, means as soon as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defer: Option<DeferCreate>,
}

/// The body of a dry run: the request that would be sent.
pub type PlanRequest = RequestCreate;

fn default_project() -> Project {
    Project::new("default").expect("a valid project: a literal of allowed characters")
}

const fn default_class() -> Class {
    Class::Batch
}

const fn default_placement() -> Placement {
    Placement::Cluster
}

const fn default_on_recall() -> OnRecall {
    OnRecall::Requeue
}

const fn least<const MIN: u64, const MAX: u64>() -> Whole<MIN, MAX> {
    Whole::LEAST
}

const fn whole_gpu() -> Whole<1, 1_000> {
    Whole::clamped(1_000)
}

impl RequestCreate {
    /// A request for this long, everything else at its default.
    #[must_use]
    pub fn new(duration: Whole<1, 2_592_000>) -> RequestCreate {
        RequestCreate {
            project: default_project(),
            class: default_class(),
            priority: least(),
            models: Vec::new(),
            count: least(),
            gpu: whole_gpu(),
            memory: least(),
            cpu: least(),
            host_memory: least(),
            placement: default_placement(),
            duration,
            max_price: None,
            regions: Vec::new(),
            on_recall: default_on_recall(),
            workload: None,
            prediction: None,
            capability: Capability::ANY,
            defer: None,
        }
    }
}

/// A workload by hash and size; its bytes follow after the grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkloadDeclared {
    /// SHA-256 of the bytes, as 64 lower-case hex digits.
    #[serde(with = "hex_digest")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[0-9a-f]{64}$"))]
    pub sha256: [u8; 32],
    /// Their number.
    pub size: Whole<1, 32_768>,
}

/// What the predictor thinks a request really needs. Advisory: holds and limits use the declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PredictionBody {
    /// Which layer of the predictor answered.
    #[serde(deserialize_with = "word")]
    pub layer: PredictionLayer,
    /// The version of its model.
    pub version: Whole<0, 4_294_967_295>,
    /// How sure it is that the need is within the bounds, in thousandths.
    pub confidence: Whole<0, 1_000>,
    /// One run in ten is shorter, in seconds.
    pub duration_q10: Whole<0, 2_592_000>,
    /// The median run, in seconds.
    pub duration_q50: Whole<0, 2_592_000>,
    /// Nine runs in ten are shorter, in seconds.
    pub duration_q90: Whole<0, 2_592_000>,
    /// Device memory that suffices, in MiB.
    pub memory_bound: Whole<0, 1_048_576>,
}

/// Where a request is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RequestState {
    /// It waits.
    Waiting,
    /// A lease serves it.
    Granted,
    /// It was served, or will not be tried again.
    Closed,
    /// Its tenant withdrew it.
    Cancelled,
    /// It could never run.
    Refused,
}

impl RequestState {
    /// The state as the API writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            RequestState::Waiting => "waiting",
            RequestState::Granted => "granted",
            RequestState::Closed => "closed",
            RequestState::Cancelled => "cancelled",
            RequestState::Refused => "refused",
        }
    }
}

/// A request as its tenant sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RequestView {
    /// Which request.
    pub id: RequestId,
    /// Whose.
    pub tenant: TenantId,
    /// Where it is in its life.
    pub state: RequestState,
    /// Why. A waiting request's full reason is at `/v1/why/{id}`.
    pub state_reason: StateReason,
    /// When it was submitted.
    pub created_at: Time,
    /// When its last record was written.
    pub updated_at: Time,
    /// How many records it has: grows with every change.
    pub version: u64,
    /// Its rank, from its class.
    pub tier: Tier,
    /// What is asked, with every default filled in.
    pub spec: RequestCreate,
    /// The lease that serves it now, or that served it last.
    pub lease: Option<LeaseId>,
    /// How many leases it has had.
    pub attempts: u32,
    /// How many of them owner or rank took away.
    pub recalls: u32,
    /// Why it cannot start as it is, if nothing that is known could meet it. Told at once, with the
    /// answer to its submission; later `/v1/why/{id}` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

pub(super) mod hex_digest {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(digest: &[u8; 32], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(64);
        for byte in digest {
            text.push(char::from_digit(u32::from(byte >> 4), 16).expect("four bits are a digit"));
            text.push(char::from_digit(u32::from(byte & 15), 16).expect("four bits are a digit"));
        }
        to.serialize_str(&text)
    }

    fn digit(byte: u8) -> Option<u8> {
        match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        let error = || D::Error::custom("a SHA-256 is written as 64 lower-case hex digits");
        let pairs = text.as_bytes().chunks_exact(2);
        if text.len() != 64 {
            return Err(error());
        }
        let mut digest = [0; 32];
        for (place, pair) in digest.iter_mut().zip(pairs) {
            let (high, low) = (digit(pair[0]), digit(pair[1]));
            *place = high.zip(low).map(|(high, low)| high << 4 | low).ok_or_else(error)?;
        }
        Ok(digest)
    }
}

//! What agents and brokers say to each other.
//!
//! Up means agent to broker, down means broker to agent. Every message can be lost, doubled,
//! delayed or reordered; what changes state is a request that is repeated under the same sequence
//! number until it is answered, and is safe to repeat.

use serde::{Deserialize, Serialize};

use crate::capacity::{Capacity, Origin, SliceId};
use crate::commands::{GuestOutcome, NackReason, ReclaimCause};
use crate::ids::{Boot, ClusterId, HostHash, LeaseId, NodeId, TenantId, Token};
use crate::leases::EndReason;
use crate::offers::{OfferTerms, RescindReason};
use crate::refusals::Rejection;
use crate::requests::WorkloadRef;
use crate::units::{Millis, Seconds, Timestamp};

/// Largest message in bytes, its envelope included.
pub const MESSAGE_MAX: usize = 64 * 1_024;
/// Most bytes of guest output in one message.
pub const OUTPUT_MAX: usize = 16 * 1_024;

/// Where a message of an agent comes from and where it stands in its sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpEnvelope {
    /// The agent's cluster.
    pub cluster: ClusterId,
    /// The agent's node.
    pub node: NodeId,
    /// The machine.
    pub host: HostHash,
    /// The agent's start.
    pub boot: Boot,
    /// Counts the messages of this start; a repeated message keeps its number.
    pub sequence: u64,
    /// The message.
    pub body: Up,
}

/// A message to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DownEnvelope {
    /// The agent's cluster.
    pub cluster: ClusterId,
    /// The agent's node.
    pub node: NodeId,
    /// The term of the leader that sends it.
    pub term: u64,
    /// The message.
    pub body: Down,
}

/// Which stream of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A lease's member that an agent holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// Which lease.
    pub lease: LeaseId,
    /// Which member.
    pub slice: SliceId,
    /// The grant's token.
    pub token: Token,
    /// How long the guest ran so far.
    pub used: Millis,
    /// For how long, up to now, the guest has demonstrably used neither GPU nor CPU. Zero while it
    /// uses something, before it runs, and whenever its use is not known.
    pub unused: Millis,
}

/// What the clocks of one machine show at one moment, in real time whatever the speed of lease time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockReading {
    /// The wall clock: may be wrong and may jump.
    pub wall: Timestamp,
    /// A clock that only goes forward, from an origin of its own.
    pub monotonic: Millis,
}

/// From an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Up {
    /// It has started, stopped every guest of an earlier start and verified its slices.
    Hello,
    /// A slice can be leased.
    Offer(OfferTerms),
    /// A slice can no longer be leased.
    Rescind {
        /// Which slice.
        slice: SliceId,
        /// Every offer up to this generation.
        generation: u64,
        /// Why.
        reason: RescindReason,
    },
    /// A granted member is prepared.
    Confirm {
        /// Which lease.
        lease: LeaseId,
        /// Which member.
        slice: SliceId,
        /// The grant's token.
        token: Token,
        /// The agent's monotonic clock when this was first sent; comes back in `Activated`.
        nonce: Millis,
    },
    /// A granted member will not start.
    Nack {
        /// Which lease.
        lease: LeaseId,
        /// Which member.
        slice: SliceId,
        /// The grant's token.
        token: Token,
        /// Why.
        reason: NackReason,
    },
    /// Its leases live on.
    Renew {
        /// The agent's monotonic clock when this was sent; comes back in `Renewed`.
        nonce: Millis,
        /// Every lease it holds.
        held: Vec<Held>,
    },
    /// No guest is left on a member and the slice is clean.
    Stopped {
        /// Which lease.
        lease: LeaseId,
        /// Which member.
        slice: SliceId,
        /// The grant's token.
        token: Token,
        /// How long the guest ran.
        used: Millis,
        /// How it ended.
        outcome: GuestOutcome,
    },
    /// The owner's side takes a leased slice back: the guest is being stopped already.
    Reclaim {
        /// Which slice.
        slice: SliceId,
        /// The guest's token.
        token: Token,
        /// Why.
        cause: ReclaimCause,
    },
    /// Everything it offers and holds; sent every 30 s and after each reconnection.
    Inventory {
        /// Slices on offer with their generation.
        offered: Vec<(SliceId, u64)>,
        /// Leases it holds.
        held: Vec<Held>,
    },
    /// What a guest printed. Never stored, may be lost.
    Output {
        /// Which lease.
        lease: LeaseId,
        /// The grant's token.
        token: Token,
        /// Which stream.
        stream: Stream,
        /// Counts the bytes of the stream before these.
        offset: u64,
        /// At most [`OUTPUT_MAX`].
        bytes: Vec<u8>,
    },
    /// What the node's clocks show as this is sent. Nothing in the lease protocol depends on it; the
    /// broker compares it with its own clocks. May be lost.
    Clock(ClockReading),
}

impl Up {
    /// The kind of message, as in metrics and subjects.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Up::Hello => "hello",
            Up::Offer(_) => "offer",
            Up::Rescind { .. } => "rescind",
            Up::Confirm { .. } => "confirm",
            Up::Nack { .. } => "nack",
            Up::Renew { .. } => "renew",
            Up::Stopped { .. } => "stopped",
            Up::Reclaim { .. } => "reclaim",
            Up::Inventory { .. } => "inventory",
            Up::Output { .. } => "output",
            Up::Clock(_) => "clock",
        }
    }
}

/// What a broker answers to a message from an agent, once what it asks is committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// Taken and, if it changes state, committed.
    Done,
    /// Refused; repeating it will not help.
    Refused(Rejection),
    /// Not now: repeat it later under the same sequence number.
    Later,
}

/// One member of a lease as its agent is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantTerms {
    /// Which lease.
    pub lease: LeaseId,
    /// Which slice.
    pub slice: SliceId,
    /// Its fencing token.
    pub token: Token,
    /// The start of the agent that offered the slice.
    pub boot: Boot,
    /// For whom.
    pub tenant: TenantId,
    /// How long a renewal lasts.
    pub ttl: Seconds,
    /// How often to renew.
    pub renew: Seconds,
    /// The guest's grace when it must go.
    pub grace: Seconds,
    /// How long at most.
    pub duration: Seconds,
    /// The workload to run, if any: it is sent after the grant. Without one the tenant attaches.
    pub workload: Option<WorkloadRef>,
    /// Whether this member runs the workload (the first of a gang does).
    pub is_first: bool,
    /// How much the guest may use: thousandths of the GPU and MiB, exactly.
    pub capacity: Capacity,
    /// Whether the slice must be carved first: a MIG instance of this profile at this start, or a share.
    pub origin: Origin,
}

/// A lease that a renewal keeps alive, with what is left of its bought time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alive {
    /// Which member's slice.
    pub slice: SliceId,
    /// The grant's token.
    pub token: Token,
    /// Until the bought end.
    pub left: Millis,
}

/// To an agent.
#[expect(
    clippy::large_enum_variant,
    reason = "few are alive at once, and most are grants or small"
)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Down {
    /// Prepare a member, then confirm.
    Grant(GrantTerms),
    /// All members are prepared: the guest may start if there is time left (LG3).
    Activated {
        /// Which slice.
        slice: SliceId,
        /// The grant's token.
        token: Token,
        /// The nonce of the confirmation that is answered.
        nonce: Millis,
        /// Until the bought end.
        left: Millis,
    },
    /// The renewal with this nonce was received by a leader that still had its quorum (LR4).
    Renewed {
        /// The renewal's nonce.
        nonce: Millis,
        /// The leases that live on; others are not renewed.
        alive: Vec<Alive>,
    },
    /// The guest must go.
    Stop {
        /// Which lease.
        lease: LeaseId,
        /// Which slice.
        slice: SliceId,
        /// The grant's token.
        token: Token,
        /// How long it may take.
        grace: Millis,
        /// Why.
        cause: EndReason,
    },
    /// The broker's books on this member are closed: its usage need not be kept any longer (LB3).
    Ended {
        /// Which slice.
        slice: SliceId,
        /// The grant's token.
        token: Token,
    },
    /// A new leader asks for an inventory.
    Resync,
    /// The workload of a lease. Its SHA-256 must be that of the grant.
    Workload {
        /// Which lease.
        lease: LeaseId,
        /// The grant's token.
        token: Token,
        /// At most [`WORKLOAD_MAX`](crate::requests::WORKLOAD_MAX).
        bytes: Vec<u8>,
    },
    /// An offer that the agent reported as open stands no longer: if it still holds, it must be made
    /// anew.
    OfferAgain {
        /// Which slice.
        slice: SliceId,
        /// The generation that was reported.
        generation: u64,
    },
}

impl Down {
    /// The kind of message, as in metrics and subjects.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Down::Grant(_) => "grant",
            Down::Activated { .. } => "activated",
            Down::Renewed { .. } => "renewed",
            Down::Stop { .. } => "stop",
            Down::Ended { .. } => "ended",
            Down::Resync => "resync",
            Down::Workload { .. } => "workload",
            Down::OfferAgain { .. } => "offer_again",
        }
    }
}

/// What Sublet runs on a lease. Travels as the JSON bytes whose hash the request declared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Program and arguments; never given to a shell.
    pub argv: Vec<String>,
    /// Variables added to the guest's clean environment.
    #[serde(default)]
    pub env: Vec<(String, String)>,
}

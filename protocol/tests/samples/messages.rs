//! Messages between agents and brokers.

use sublet_protocol::agent::{
    Alive, ClockReading, Down, DownEnvelope, GrantTerms, Held, Reply, Stream, Up, UpEnvelope,
};
use sublet_protocol::capacity::Origin;
use sublet_protocol::commands::{GuestOutcome, NackReason, ReclaimCause};
use sublet_protocol::leases::EndReason;
use sublet_protocol::offers::RescindReason;
use sublet_protocol::refusals::Rejection;
use sublet_protocol::requests::WorkloadRef;
use sublet_protocol::units::{Millis, Seconds, Timestamp};

use super::{boot, capacity, cluster, host, lease, node, offer, tenant, token, whole};

fn held() -> Vec<Held> {
    vec![Held {
        lease: lease(),
        slice: whole(),
        token: token(),
        used: Millis::new(1_234),
        unused: Millis::new(60_000),
    }]
}

pub fn up() -> Vec<(String, UpEnvelope)> {
    let (lease, slice, token, nonce) = (lease(), whole(), token(), Millis::new(99_000));
    let used = Millis::new(1_234);
    let bodies = vec![
        Up::Hello,
        Up::Offer(offer()),
        Up::Rescind { slice, generation: 5, reason: RescindReason::NotIdle },
        Up::Confirm { lease, slice, token, nonce },
        Up::Nack { lease, slice, token, reason: NackReason::StaleToken },
        Up::Renew { nonce, held: held() },
        Up::Stopped { lease, slice, token, used, outcome: GuestOutcome::Exited { code: 0 } },
        Up::Reclaim { slice, token, cause: ReclaimCause::ForeignUse },
        Up::Inventory { offered: vec![(slice, 5)], held: held() },
        Up::Output { lease, token, stream: Stream::Stderr, offset: 10, bytes: b"hi\n".to_vec() },
        Up::Clock(ClockReading {
            wall: Timestamp::new(1_700_000_000_000),
            monotonic: Millis::new(99_000),
        }),
    ];
    assert_eq!(bodies.len(), 11, "a message up has no sample");
    let envelope = |body: Up| {
        let name = body.kind().to_owned();
        let (cluster, node) = (cluster(), node());
        (name, UpEnvelope { cluster, node, host: host(), boot: boot(), sequence: 42, body })
    };
    bodies.into_iter().map(envelope).collect()
}

pub fn down() -> Vec<(String, DownEnvelope)> {
    let (lease, slice, token, nonce) = (lease(), whole(), token(), Millis::new(99_000));
    let left = Millis::new(3_600_000);
    let grant = GrantTerms {
        lease,
        slice,
        token,
        boot: boot(),
        tenant: tenant(),
        ttl: Seconds::new(300),
        renew: Seconds::new(30),
        grace: Seconds::new(120),
        duration: Seconds::new(3_600),
        workload: Some(WorkloadRef { sha256: [0xab; 32], size: 512 }),
        is_first: true,
        capacity: capacity(),
        origin: Origin::Offered,
    };
    let cause = EndReason::Released;
    let bodies = vec![
        Down::Grant(grant),
        Down::Activated { slice, token, nonce, left },
        Down::Renewed { nonce, alive: vec![Alive { slice, token, left }] },
        Down::Stop { lease, slice, token, grace: Millis::new(120_000), cause },
        Down::Ended { slice, token },
        Down::Resync,
        Down::Workload { lease, token, bytes: b"{}".to_vec() },
        Down::OfferAgain { slice, generation: 7 },
    ];
    assert_eq!(bodies.len(), 8, "a message down has no sample");
    let envelope = |body: Down| {
        let name = body.kind().to_owned();
        (name, DownEnvelope { cluster: cluster(), node: node(), term: 3, body })
    };
    bodies.into_iter().map(envelope).collect()
}

pub fn replies() -> Vec<(String, Reply)> {
    vec![
        ("done".into(), Reply::Done),
        ("refused".into(), Reply::Refused(Rejection::OfferOld)),
        ("later".into(), Reply::Later),
    ]
}

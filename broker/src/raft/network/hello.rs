//! The greeting: who connects, whom it means, what it wants. Either side refuses what is not its
//! peer, and both say why in their log.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sublet_protocol::codec::Format;

use super::frame::{Frames, GREETING_MAX};

/// The newest version of the protocol that this program speaks.
const PROTOCOL: u16 = 1;
/// The oldest that it still speaks.
const PROTOCOL_OLDEST: u16 = 1;
/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(5);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Purpose {
    /// Entries, votes and snapshots.
    Consensus,
    /// Questions of a follower.
    Questions,
}

/// The first words of the side that connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    protocol: u16,
    protocol_oldest: u16,
    feature_level: u16,
    cell: String,
    from: u64,
    to: u64,
    purpose: Purpose,
    /// What tells the caller's cell from others of its name; nothing before it has its state.
    origin: Option<u128>,
}

impl Format for Hello {
    const WHAT: &'static str = "greeting of a broker";
    const VERSION: u8 = 1;
    const MAX: usize = GREETING_MAX;
}

/// The answer of the other side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Welcome {
    /// It may go on.
    Come { protocol: u16, feature_level: u16 },
    /// It may not.
    Go(Refusal),
}

impl Format for Welcome {
    const WHAT: &'static str = "answer to a broker's greeting";
    const VERSION: u8 = 1;
    const MAX: usize = GREETING_MAX;
}

/// Why a greeting was refused, in words for both logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(super) enum Refusal {
    /// The programs have no version of the protocol in common.
    #[error(
        "the caller speaks versions {} to {} of the brokers' protocol, the other {} to {}",
        caller.0, caller.1, called.0, called.1
    )]
    Protocol {
        /// The oldest and newest of the caller.
        caller: (u16, u16),
        /// Those of the other.
        called: (u16, u16),
    },
    /// Two cells.
    #[error("a broker of cell {caller} called one of cell {called}")]
    OtherCell {
        /// The caller's cell.
        caller: String,
        /// The other's.
        called: String,
    },
    /// Another broker answers there.
    #[error("broker {meant} was meant, but broker {found} answers there")]
    OtherNode {
        /// Whom the caller meant.
        meant: u64,
        /// Who it is.
        found: u64,
    },
    /// The certificate of the caller is not that of the broker it says it is.
    #[error("the certificate is not that of broker {node}")]
    Certificate {
        /// Who it says it is.
        node: u64,
    },
    /// Both have data, of two cells that have one name.
    #[error(
        "its data is of another cell named {cell}: one founded apart, or from before a restore or \
         after another one; begin with an empty data folder and a number of its own"
    )]
    OtherOrigin {
        /// The name.
        cell: String,
    },
    /// The caller was taken out of the cell.
    #[error("broker {node} was taken out of the cell: its number is not used again")]
    Removed {
        /// Its number.
        node: u64,
    },
}

/// Whether a greeting was refused because the caller was taken out of the cell.
pub(super) fn says_removed(error: &io::Error) -> bool {
    let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>());
    matches!(refusal, Some(Refusal::Removed { .. }))
}

/// Who this node is.
#[derive(Debug, Clone)]
pub(super) struct Us {
    pub(super) cell: String,
    pub(super) node: u64,
    /// What it can do: a cell may be told to use what all of its brokers can.
    pub(super) level: u16,
}

/// Who has connected, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guest {
    pub(super) node: u64,
    pub(super) purpose: Purpose,
    pub(super) feature_level: u16,
}

/// Greets `to` as the side that has connected. Its feature level.
///
/// # Errors
/// What the connection gave, or `PermissionDenied` with the [`Refusal`] of the other side.
pub(super) async fn greet(
    frames: &mut Frames,
    us: &Us,
    origin: Option<u128>,
    (to, purpose): (u64, Purpose),
) -> io::Result<u16> {
    let hello = Hello {
        protocol: PROTOCOL,
        protocol_oldest: PROTOCOL_OLDEST,
        feature_level: us.level,
        cell: us.cell.clone(),
        from: us.node,
        to,
        purpose,
        origin,
    };
    frames.send_within(&hello, GREETING).await?;
    match frames.next_within(GREETING).await? {
        Welcome::Come { feature_level, .. } => {
            frames.widen();
            Ok(feature_level)
        }
        Welcome::Go(refusal) => Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal)),
    }
}

/// What is known of callers and the cell when a greeting is judged.
pub(super) struct Known<C, R> {
    /// As [`Hello::origin`], of the side that is called.
    pub(super) origin: Option<u128>,
    /// Whether the certificate of the connection is that of a node.
    pub(super) is_certified: C,
    /// Whether a node was taken out of the cell.
    pub(super) is_removed: R,
}

/// Hears the greeting of whoever has connected, and answers it.
///
/// # Errors
/// What the connection gave, or `PermissionDenied` with our [`Refusal`].
pub(super) async fn receive(
    frames: &mut Frames,
    us: &Us,
    known: Known<impl FnOnce(u64) -> bool, impl FnOnce(u64) -> bool>,
) -> io::Result<Guest> {
    let hello: Hello = frames.next_within(GREETING).await?;
    match judge(&hello, us, known) {
        Ok(protocol) => {
            let come = Welcome::Come { protocol, feature_level: us.level };
            frames.send_within(&come, GREETING).await?;
            frames.widen();
            let Hello { from: node, purpose, feature_level, .. } = hello;
            Ok(Guest { node, purpose, feature_level })
        }
        Err(refusal) => {
            frames.send_within(&Welcome::Go(refusal.clone()), GREETING).await?;
            Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal))
        }
    }
}

/// The newest protocol both speak, or why the greeting is refused.
fn judge(
    hello: &Hello,
    us: &Us,
    known: Known<impl FnOnce(u64) -> bool, impl FnOnce(u64) -> bool>,
) -> Result<u16, Refusal> {
    let protocol = PROTOCOL.min(hello.protocol);
    if protocol < PROTOCOL_OLDEST.max(hello.protocol_oldest) {
        let caller = (hello.protocol_oldest, hello.protocol);
        return Err(Refusal::Protocol { caller, called: (PROTOCOL_OLDEST, PROTOCOL) });
    }
    if hello.cell != us.cell {
        return Err(Refusal::OtherCell { caller: hello.cell.clone(), called: us.cell.clone() });
    }
    if !(known.is_certified)(hello.from) {
        return Err(Refusal::Certificate { node: hello.from });
    }
    if hello.to != us.node {
        return Err(Refusal::OtherNode { meant: hello.to, found: us.node });
    }
    if known.origin.zip(hello.origin).is_some_and(|(ours, theirs)| ours != theirs) {
        return Err(Refusal::OtherOrigin { cell: us.cell.clone() });
    }
    if (known.is_removed)(hello.from) {
        return Err(Refusal::Removed { node: hello.from });
    }
    Ok(protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVEL: u16 = 3;

    fn us(cell: &str, node: u64) -> Us {
        Us { cell: cell.to_owned(), node, level: LEVEL }
    }

    fn known(
        origin: Option<u128>,
        certified: u64,
    ) -> Known<impl FnOnce(u64) -> bool, impl FnOnce(u64) -> bool> {
        Known { origin, is_certified: move |node| node == certified, is_removed: |node| node == 9 }
    }

    /// What both sides say when `guest` means `to` and meets `host`.
    async fn meet(
        guest: Us,
        to: u64,
        host: Us,
        certified: u64,
    ) -> (io::Result<u16>, io::Result<Guest>) {
        let (one, other) = tokio::io::duplex(4_096);
        let (mut one, mut other) = (Frames::new(Box::new(one)), Frames::new(Box::new(other)));
        tokio::join!(
            greet(&mut one, &guest, Some(7), (to, Purpose::Consensus)),
            receive(&mut other, &host, known(Some(7), certified)),
        )
    }

    #[tokio::test]
    async fn a_peer_is_welcome_and_anyone_else_is_refused_and_told_why() {
        let (guest, host) = meet(us("berlin", 1), 2, us("berlin", 2), 1).await;
        assert_eq!(guest.unwrap(), LEVEL);
        let expected = Guest { node: 1, purpose: Purpose::Consensus, feature_level: LEVEL };
        assert_eq!(host.unwrap(), expected);

        for (guest, to, host, certified, why) in [
            (us("paris", 1), 2, us("berlin", 2), 1, "cell paris called one of cell berlin"),
            (us("berlin", 1), 2, us("berlin", 3), 1, "broker 2 was meant, but broker 3"),
            (us("berlin", 1), 2, us("berlin", 2), 7, "not that of broker 1"),
            (us("berlin", 9), 2, us("berlin", 2), 9, "broker 9 was taken out"),
        ] {
            let (guest, host) = meet(guest, to, host, certified).await;
            for error in [guest.unwrap_err(), host.unwrap_err()] {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
                assert!(error.to_string().contains(why), "{error}");
            }
        }
    }

    #[test]
    fn versions_of_the_protocol_that_do_not_meet_are_refused() {
        let mut hello = Hello {
            protocol: PROTOCOL + 2,
            protocol_oldest: PROTOCOL,
            feature_level: 1,
            cell: "berlin".to_owned(),
            from: 1,
            to: 2,
            purpose: Purpose::Questions,
            origin: None,
        };
        let judge = |hello: &Hello, us: &Us| judge(hello, us, known(Some(7), 1));
        assert_eq!(judge(&hello, &us("berlin", 2)), Ok(PROTOCOL));
        hello.protocol_oldest = PROTOCOL + 1;
        let caller = (PROTOCOL + 1, PROTOCOL + 2);
        let refusal = Refusal::Protocol { caller, called: (PROTOCOL_OLDEST, PROTOCOL) };
        assert_eq!(judge(&hello, &us("berlin", 2)), Err(refusal));
        hello.protocol_oldest = PROTOCOL;
        // One that has no data yet is welcome, one with another cell's is not.
        for (origin, is_welcome) in [(None, true), (Some(7), true), (Some(8), false)] {
            hello.origin = origin;
            assert_eq!(judge(&hello, &us("berlin", 2)).is_ok(), is_welcome, "{origin:?}");
        }
    }
}

//! What passes through a broker between tenant and guest and is never kept: workloads down, output
//! up. In memory only, never journalled, never logged.
//!
//! Output goes through a ring per lease: the oldest bytes are dropped and a reader is told how many
//! it missed. A workload is held until its guest runs or its lease ends. The leader's driver feeds
//! it; the [`Cell`](crate::cell::Cell) hands it to readers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};
use sublet_protocol::agent::{Down, Stream};
use sublet_protocol::ids::{LeaseId, Token};
use sublet_protocol::requests::WorkloadRef;
use sublet_protocol::transport::Address;
use tokio::sync::watch;

/// Bytes of output kept for one lease.
pub const OUTPUT_BYTES_MAX: usize = 256 * 1_024;
/// Leases with output at once, ended ones included: 64 MiB in all.
pub const OUTPUTS_MAX: usize = 256;
/// Ended leases whose output can still be read.
pub const OUTPUTS_ENDED_MAX: usize = 64;
/// Workloads that wait for their guest at once: 32 MiB in all.
pub const WORKLOADS_MAX: usize = 1_024;

/// Why a workload was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// No live lease of this id.
    #[error("there is no such lease, or it has ended")]
    LeaseMissing,
    /// The guest must go, or has gone.
    #[error("the lease is ending")]
    LeaseEnding,
    /// The request declared no workload.
    #[error("the request of this lease declared no workload")]
    NotDeclared,
    /// Another number of bytes than declared.
    #[error("the workload has {given} bytes, declared were {declared}")]
    Size {
        /// As in the request.
        declared: u32,
        /// As sent.
        given: usize,
    },
    /// Other bytes than declared.
    #[error("the workload's SHA-256 is not the declared one")]
    Hash,
    /// Too many workloads wait.
    #[error("too many workloads wait for their guests: try again later")]
    Busy,
}

/// Some bytes that a guest printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Counts the bytes of both streams before these, lost ones included.
    pub offset: u64,
    /// How many bytes the reader missed just before these.
    pub missed: u64,
    /// Which stream.
    pub stream: Stream,
    /// Never empty.
    pub bytes: Arc<[u8]>,
}

impl Piece {
    /// The offset that follows this piece.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::try_from(self.bytes.len()).unwrap_or(u64::MAX))
    }
}

/// Output and workloads of all live leases.
#[derive(Debug, Default)]
pub struct Relay {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    outputs: BTreeMap<LeaseId, Arc<Output>>,
    ended: VecDeque<LeaseId>,
    workloads: BTreeMap<LeaseId, Parcel>,
}

#[derive(Debug)]
struct Parcel {
    to: Address,
    token: Token,
    bytes: Vec<u8>,
}

/// The output of one lease.
#[derive(Debug)]
struct Output {
    ring: Mutex<Ring>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Ring {
    pieces: VecDeque<Piece>,
    held: usize,
    next: u64,
    /// What the next byte of each stream would be numbered.
    expected: BTreeMap<Stream, u64>,
    is_ended: bool,
}

impl Relay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a guest of a live lease printed: `bytes` at `offset` of its `stream`. Bytes that
    /// came before are passed over. Returns how many bytes are newly lost.
    pub(crate) fn push(&self, lease: LeaseId, stream: Stream, offset: u64, bytes: &[u8]) -> u64 {
        let Some(output) = self.state().output(lease) else {
            return u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        };
        let lost = output.lock().push(stream, offset, bytes);
        output.changed.send_replace(());
        lost
    }

    /// Reads a lease's output from `offset` on. The caller has made sure, under the state's lock,
    /// that the lease lives; of an ended one the output is there for a while. Nothing if there are
    /// too many already, or the lease has ended and is forgotten.
    pub(crate) fn read(&self, lease: LeaseId, offset: u64, is_live: bool) -> Option<Reader> {
        let mut state = self.state();
        let output = match is_live {
            true => state.output(lease)?,
            false => Arc::clone(state.outputs.get(&lease)?),
        };
        let changed = output.changed.subscribe();
        Some(Reader { output, changed, at: offset })
    }

    /// Keeps a workload for its guest.
    ///
    /// # Errors
    /// [`WorkloadError::Size`], [`WorkloadError::Hash`], [`WorkloadError::Busy`].
    pub(crate) fn put_workload(
        &self,
        lease: LeaseId,
        declared: &WorkloadRef,
        to: (Address, Token),
        bytes: Vec<u8>,
    ) -> Result<(), WorkloadError> {
        if usize::try_from(declared.size) != Ok(bytes.len()) {
            return Err(WorkloadError::Size { declared: declared.size, given: bytes.len() });
        }
        if Sha256::digest(&bytes)[..] != declared.sha256 {
            return Err(WorkloadError::Hash);
        }
        let workloads = &mut self.state().workloads;
        if workloads.len() >= WORKLOADS_MAX && !workloads.contains_key(&lease) {
            return Err(WorkloadError::Busy);
        }
        let (to, token) = to;
        workloads.insert(lease, Parcel { to, token, bytes });
        Ok(())
    }

    /// Every workload whose guest does not run yet, with where it goes.
    pub(crate) fn waiting_workloads(&self) -> Vec<(Address, Down)> {
        let parcel = |(lease, parcel): (&LeaseId, &Parcel)| {
            let Parcel { to, token, bytes } = parcel;
            (*to, Down::Workload { lease: *lease, token: *token, bytes: bytes.clone() })
        };
        self.state().workloads.iter().map(parcel).collect()
    }

    /// The guest runs: its workload need not be sent any more.
    pub(crate) fn guest_runs(&self, lease: LeaseId) {
        self.state().workloads.remove(&lease);
    }

    /// The lease has ended: its workload is dropped, and readers get what is left of its output.
    pub(crate) fn lease_ended(&self, lease: LeaseId) {
        let mut state = self.state();
        state.workloads.remove(&lease);
        let Some(output) = state.outputs.get(&lease).map(Arc::clone) else { return };
        output.lock().is_ended = true;
        output.changed.send_replace(());
        state.ended.push_back(lease);
        while state.ended.len() > OUTPUTS_ENDED_MAX {
            state.forget_oldest_ended();
        }
    }
}

impl State {
    /// The output of a live lease, begun if need be; nothing if there are too many.
    fn output(&mut self, lease: LeaseId) -> Option<Arc<Output>> {
        if let Some(output) = self.outputs.get(&lease) {
            return Some(Arc::clone(output));
        }
        if self.outputs.len() >= OUTPUTS_MAX {
            self.forget_oldest_ended();
        }
        if self.outputs.len() >= OUTPUTS_MAX {
            return None;
        }
        let output = Arc::new(Output { ring: Mutex::default(), changed: watch::Sender::new(()) });
        self.outputs.insert(lease, Arc::clone(&output));
        Some(output)
    }

    fn forget_oldest_ended(&mut self) {
        if let Some(lease) = self.ended.pop_front() {
            self.outputs.remove(&lease);
        }
    }
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    /// Appends what is new of `bytes`; returns how many bytes are newly lost.
    fn push(&mut self, stream: Stream, offset: u64, bytes: &[u8]) -> u64 {
        let expected = self.expected.entry(stream).or_default();
        let known = usize::try_from(expected.saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(new) = bytes.get(known..).filter(|new| !new.is_empty()) else { return 0 };
        let gap = offset.saturating_sub(*expected);
        let length = u64::try_from(new.len()).unwrap_or(u64::MAX);
        *expected = expected.saturating_add(gap).saturating_add(length);

        let offset = self.next.saturating_add(gap);
        self.next = offset.saturating_add(length);
        self.held += new.len();
        self.pieces.push_back(Piece { offset, missed: 0, stream, bytes: new.into() });
        let mut lost = gap;
        while self.held > OUTPUT_BYTES_MAX {
            let Some(oldest) = self.pieces.pop_front() else { break };
            self.held -= oldest.bytes.len();
            lost = lost.saturating_add(oldest.end() - oldest.offset);
        }
        lost
    }

    /// The first piece that ends after `at`, without what lies before `at`.
    fn piece_after(&self, at: u64) -> Option<Piece> {
        let place = self.pieces.partition_point(|piece| piece.end() <= at);
        let mut piece = self.pieces.get(place)?.clone();
        if let Ok(known) = usize::try_from(at.saturating_sub(piece.offset))
            && known > 0
        {
            piece.bytes = piece.bytes[known..].into();
            piece.offset = at;
        }
        piece.missed = piece.offset.saturating_sub(at);
        Some(piece)
    }
}

/// Reads the output of one lease, from where it was asked to begin until the lease has ended.
#[derive(Debug)]
pub struct Reader {
    output: Arc<Output>,
    changed: watch::Receiver<()>,
    at: u64,
}

impl Reader {
    /// The next piece, waiting for it; nothing once the lease has ended and all was read. Safe to
    /// drop while pending.
    pub async fn next(&mut self) -> Option<Piece> {
        loop {
            self.changed.borrow_and_update();
            {
                let ring = self.output.lock();
                if let Some(piece) = ring.piece_after(self.at) {
                    self.at = piece.end();
                    return Some(piece);
                }
                if ring.is_ended {
                    return None;
                }
            }
            self.changed.changed().await.ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_protocol::ids::{ClusterId, NodeId};

    const LEASE: LeaseId = LeaseId::new(7);

    fn address() -> Address {
        Address { cluster: ClusterId::new("c").unwrap(), node: NodeId::new("n").unwrap() }
    }

    async fn rest(mut reader: Reader) -> Vec<(u64, u64, Vec<u8>)> {
        let mut pieces = Vec::new();
        while let Some(piece) = reader.next().await {
            pieces.push((piece.offset, piece.missed, piece.bytes.to_vec()));
        }
        pieces
    }

    #[tokio::test]
    async fn a_reader_gets_both_streams_in_order_and_then_the_end() {
        let relay = Relay::default();
        assert_eq!(relay.push(LEASE, Stream::Stdout, 0, b"ab"), 0);
        assert_eq!(relay.push(LEASE, Stream::Stderr, 0, b"!"), 0);
        let reader = relay.read(LEASE, 0, true).unwrap();
        let reading = tokio::spawn(rest(reader));
        tokio::task::yield_now().await;
        assert_eq!(relay.push(LEASE, Stream::Stdout, 2, b"cd"), 0);
        relay.lease_ended(LEASE);
        let expected = [(0, 0, b"ab".to_vec()), (2, 0, b"!".to_vec()), (3, 0, b"cd".to_vec())];
        assert_eq!(reading.await.unwrap(), expected);
    }

    #[tokio::test]
    async fn repeated_bytes_are_passed_over_and_lost_ones_are_told() {
        let relay = Relay::default();
        relay.push(LEASE, Stream::Stdout, 0, b"abcd");
        assert_eq!(relay.push(LEASE, Stream::Stdout, 0, b"abcd"), 0);
        assert_eq!(relay.push(LEASE, Stream::Stdout, 2, b"cdef"), 0);
        assert_eq!(relay.push(LEASE, Stream::Stdout, 9, b"j"), 3);
        relay.lease_ended(LEASE);
        let all = rest(relay.read(LEASE, 0, false).unwrap()).await;
        assert_eq!(all, [(0, 0, b"abcd".to_vec()), (4, 0, b"ef".to_vec()), (9, 3, b"j".to_vec())]);
        let resumed = rest(relay.read(LEASE, 5, false).unwrap()).await;
        assert_eq!(resumed, [(5, 0, b"f".to_vec()), (9, 3, b"j".to_vec())]);
    }

    #[tokio::test]
    async fn the_oldest_bytes_of_a_full_ring_are_dropped_and_it_is_told_how_many() {
        let relay = Relay::default();
        let piece = vec![b'x'; OUTPUT_BYTES_MAX / 2];
        let half = u64::try_from(piece.len()).unwrap();
        assert_eq!(relay.push(LEASE, Stream::Stdout, 0, &piece), 0);
        assert_eq!(relay.push(LEASE, Stream::Stdout, half, &piece), 0);
        assert_eq!(relay.push(LEASE, Stream::Stdout, 2 * half, b"y"), half);
        let first = relay.read(LEASE, 0, true).unwrap().next().await.unwrap();
        assert_eq!((first.offset, first.missed), (half, half));
    }

    #[test]
    fn outputs_are_bounded_and_ended_ones_make_room_first() {
        let relay = Relay::default();
        let lease = |n: usize| LeaseId::new(u128::try_from(n).unwrap());
        for n in 0..OUTPUTS_MAX {
            assert!(relay.read(lease(n), 0, true).is_some());
        }
        assert!(relay.read(lease(OUTPUTS_MAX), 0, true).is_none());
        assert_eq!(relay.push(lease(OUTPUTS_MAX), Stream::Stdout, 0, b"abc"), 3);
        relay.lease_ended(lease(3));
        assert!(relay.read(lease(OUTPUTS_MAX), 0, true).is_some());
        assert!(relay.read(lease(3), 0, false).is_none());
    }

    #[test]
    fn a_workload_must_be_what_was_declared_and_is_sent_until_its_guest_runs() {
        let relay = Relay::default();
        let bytes = b"{\"argv\":[\"true\"]}".to_vec();
        let sha256 = Sha256::digest(&bytes).into();
        let declared = WorkloadRef { sha256, size: u32::try_from(bytes.len()).unwrap() };
        let to = (address(), Token { epoch: 1, counter: 2 });
        let put = |bytes: &[u8]| relay.put_workload(LEASE, &declared, to, bytes.to_vec());
        let size = WorkloadError::Size { declared: declared.size, given: 1 };
        assert_eq!(put(b"x"), Err(size));
        let mut other = bytes.clone();
        other[0] ^= 1;
        assert_eq!(put(&other), Err(WorkloadError::Hash));
        assert!(relay.waiting_workloads().is_empty());
        assert_eq!(put(&bytes), Ok(()));
        let down = Down::Workload { lease: LEASE, token: to.1, bytes };
        assert_eq!(relay.waiting_workloads(), [(address(), down)]);
        relay.guest_runs(LEASE);
        assert!(relay.waiting_workloads().is_empty());
    }
}

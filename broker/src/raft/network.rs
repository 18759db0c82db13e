//! The way to other nodes. A cell of one node has none: every peer is unreachable.

use std::future::Future;
use std::io;

use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::{SnapshotOf, VoteOf};
use openraft::{BasicNode, OptionalSend};

use super::snapshots::StoredSnapshot;
use super::wire::TypeConfig;

/// The network of a cell of one node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alone;

/// A connection that leads nowhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nowhere {
    target: u64,
}

impl Nowhere {
    fn unreachable(self) -> Unreachable<TypeConfig> {
        let text = format!("node {} has no address: this cell has one node", self.target);
        Unreachable::new(&io::Error::new(io::ErrorKind::NotConnected, text))
    }
}

impl RaftNetworkFactory<TypeConfig> for Alone {
    type Network = Nowhere;

    async fn new_client(&mut self, target: u64, _node: &BasicNode) -> Nowhere {
        Nowhere { target }
    }
}

impl RaftNetworkV2<TypeConfig> for Nowhere {
    type SnapshotData = StoredSnapshot;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn pre_vote(
        &mut self,
        _rpc: VoteRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _vote: VoteOf<TypeConfig>,
        _snapshot: SnapshotOf<TypeConfig, StoredSnapshot>,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        Err(StreamingError::Unreachable(self.unreachable()))
    }
}

//! The background duties: tell who leads, notice that openraft has died, store seals, purge the log.

use std::sync::Arc;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::Fatal as RaftFatal;
use openraft::metrics::RaftMetrics;
use tokio::sync::watch;

use super::facade::Core;
use super::fatal::Fatal;
use super::machine::Shared;
use super::snapshots::Snapshots;
use super::types::Leadership;
use super::wire::TypeConfig;

/// How long a seal waits at most until openraft is asked again to store it.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What the metrics say about leadership.
pub(super) fn leadership(metrics: &RaftMetrics<TypeConfig>) -> Leadership {
    let is_leader =
        metrics.state == ServerState::Leader && metrics.current_leader == Some(metrics.id);
    // openraft names this node the leader of term 0 while it begins a cell, before any election.
    let leader = metrics.current_leader.filter(|leader| is_leader || *leader != metrics.id);
    Leadership { term: metrics.current_term, is_leader, leader }
}

/// Publishes leadership until openraft stops; an unasked stop ends the process.
pub(super) async fn observe(core: Core, told: Arc<watch::Sender<Leadership>>, fatal: Fatal) {
    let mut metrics = core.metrics();
    loop {
        // Cloned at once: a held borrow blocks openraft.
        let now = metrics.borrow_watched().clone();
        let lead = leadership(&now);
        match &now.running_state {
            Ok(()) => {
                told.send_if_modified(|before| std::mem::replace(before, lead) != lead);
            }
            Err(stop) => {
                nobody_leads(&told);
                if !matches!(stop, RaftFatal::Stopped) {
                    fatal.strike(&format!("replication has stopped: {stop}"));
                }
                return;
            }
        }
        if metrics.changed().await.is_err() {
            nobody_leads(&told);
            return;
        }
    }
}

/// Publishes that this node has stopped.
pub(super) fn nobody_leads(told: &watch::Sender<Leadership>) {
    told.send_modify(|lead| *lead = Leadership { is_leader: false, leader: None, ..*lead });
}

/// Has every seal stored, and the log purged up to the older of the two newest snapshots.
pub(super) async fn keep(core: Core, shared: Arc<Shared>, snapshots: Arc<Snapshots>) {
    let mut purged = None;
    loop {
        if shared.waits() && core.trigger().snapshot().await.is_err() {
            return;
        }
        let bound = snapshots.purge_bound();
        if let Some(upto) = bound
            && purged < bound
        {
            if core.trigger().purge_log(upto).await.is_err() {
                return;
            }
            purged = bound;
        }
        if shared.waits() {
            // openraft ignores the wish while it stores another snapshot.
            let _elapsed = tokio::time::timeout(ASK_AGAIN, shared.changed.notified()).await;
        } else {
            shared.changed.notified().await;
        }
    }
}

//! Compares this replica's ledger with the leader's, and stops the process when they differ.
//!
//! All replicas apply the same entries and must write the same records. Which of two that differ is
//! the wrong one nobody can tell here; the one that follows stops. If it is the leader that is wrong,
//! all others stop, and it can commit nothing more.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cell::Parts;
use crate::forward::{Answer, Question};
use crate::raft::FatalHook;

/// How often it is looked whether there is something new to compare.
const LOOK: Duration = Duration::from_secs(2);

/// Compares as long as the cell is open.
pub(crate) fn watch(parts: &Arc<Parts>, on_fatal: FatalHook) {
    if parts.raft.listens().is_none() {
        return;
    }
    let parts = Arc::downgrade(parts);
    tokio::spawn(compare(parts, on_fatal));
}

async fn compare(parts: Weak<Parts>, on_fatal: FatalHook) {
    let mut compared = None;
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(parts) = parts.upgrade() else { return };
        let Some((entry, ours)) = parts.machine.last_root() else { continue };
        let is_leader = parts.raft.leadership().borrow().is_leader;
        if is_leader || compared.is_some_and(|compared| compared >= entry) {
            continue;
        }
        let Ok(Answer::Root(Some(theirs))) = parts.ask_leader(&Question::Root { entry }).await
        else {
            // The leader is not that far, or further than it remembers, or there is none: later.
            continue;
        };
        if ours != theirs {
            let (records, other) = (ours.0, theirs.0);
            tracing::error!(entry, records, other, "the ledger differs from the leader's");
            on_fatal.strike(&format!(
                "after entry {entry} of the log this broker's ledger is not the leader's: one of \
                 the two has diverged; keep both data folders, and \
                 replace neither before they are compared"
            ));
            return;
        }
        tracing::debug!(entry, "the ledger is the leader's");
        compared = Some(entry);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::path::Path;
    use std::sync::Mutex;

    use sublet_protocol::ids::CellId;

    use super::*;
    use crate::config::{Config, Peers};
    use crate::raft::{Begin, Endpoint, Security};
    use crate::{Cell, roots};

    type Struck = Arc<Mutex<Vec<String>>>;

    async fn open(dir: &Path, id: u64, begin: Begin, listen: SocketAddr) -> (Cell, Struck) {
        let struck = Struck::default();
        let mut config = Config::new(CellId::new("berlin").unwrap());
        config.node_id = id;
        config.begin = begin;
        config.data_dir = Some(dir.to_owned());
        let endpoint = Endpoint { peer: listen.to_string(), api: String::new() };
        config.peers = Some(Peers { listen, endpoint, security: Security::Plain });
        let told = Arc::clone(&struck);
        config.on_fatal = FatalHook::new(move |why| told.lock().unwrap().push(why.to_owned()));
        (Cell::open(config).await.unwrap(), struck)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_broker_whose_ledger_is_not_the_leaders_stops_and_says_so() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (one, here) = open(folders[0].path(), 1, Begin::Found, port()).await;
        let listen = port();
        let (two, there) = open(folders[1].path(), 2, Begin::Wait, listen).await;
        let endpoint = Endpoint { peer: listen.to_string(), api: String::new() };
        one.add_broker(2, endpoint).await.unwrap();
        let plant = |cell: &Cell, times: u64, root: u8| {
            cell.parts().machine.plant_root(times * roots::EVERY, (times, [root; 32]));
        };
        // Equal roots are no news, nor is one that the leader does not know.
        plant(&one, 1, 7);
        plant(&two, 1, 7);
        tokio::time::sleep(LOOK * 2).await;
        plant(&two, 2, 8);
        tokio::time::sleep(LOOK * 2).await;
        assert!(there.lock().unwrap().is_empty());
        // The planted bug: one of the two has written something else.
        plant(&one, 2, 9);
        let mut looks = 0;
        while there.lock().unwrap().is_empty() && looks < 100 {
            tokio::time::sleep(LOOK / 10).await;
            looks += 1;
        }
        let why = there.lock().unwrap().first().cloned().unwrap_or_default();
        assert!(why.contains("after entry 2000"), "{why}");
        assert!(here.lock().unwrap().is_empty(), "the leader goes on");
        two.shutdown().await;
        one.shutdown().await;
    }
}

//! Nodes of one cell in this process, over real connections of the loopback interface.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::super::network::Security;
use super::super::{
    AskHandler, Begin, Endpoint, Error, Identity, Leadership, MembersError, Options, Peers, Raft,
    Role,
};
use super::{Diary, options, propose, until};

const PATIENCE: Duration = Duration::from_secs(20);

/// A node of a cell and its folder, which outlives it.
struct Node {
    folder: TempDir,
    id: u64,
    raft: Raft,
    diary: Arc<Diary>,
}

pub(in super::super) fn settings(
    folder: &Path,
    id: u64,
    begin: Begin,
    listen: SocketAddr,
) -> Options {
    let (mut options, _) = options(folder);
    options.node_id = id;
    options.begin = begin;
    options.election_min = Duration::from_millis(800);
    options.election_max = Duration::from_millis(1_200);
    options.heartbeat = Duration::from_millis(100);
    options.propose_timeout = Duration::from_secs(5);
    let identity = Identity::load(&Security::Plain, "test", id).unwrap();
    let endpoint = Endpoint { peer: listen.to_string(), api: format!("http://node-{id}") };
    let asks = AskHandler::new(move |mut question| {
        question.extend_from_slice(format!(" asked of {id}").as_bytes());
        Box::pin(std::future::ready(question))
    });
    options.peers = Some(Peers { listen, endpoint, identity, asks });
    options
}

/// A port that was free a moment ago.
pub(in super::super) fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Node {
    async fn start(id: u64, begin: Begin) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), id, begin, free_port()).await
    }

    async fn start_in(folder: TempDir, id: u64, begin: Begin, listen: SocketAddr) -> Self {
        let diary = Diary::new();
        let options = settings(folder.path(), id, begin, listen);
        let raft = Raft::open(options, diary.clone()).await.unwrap();
        Self { folder, id, raft, diary }
    }

    fn endpoint(&self) -> Endpoint {
        let peer = self.raft.listens().unwrap().to_string();
        Endpoint { peer, api: format!("http://node-{}", self.id) }
    }

    /// Stops it; gives what it needs to be started again.
    async fn stop(self) -> (TempDir, u64, SocketAddr) {
        let listens = self.raft.listens().unwrap();
        self.raft.shutdown().await;
        (self.folder, self.id, listens)
    }

    async fn restart((folder, id, listen): (TempDir, u64, SocketAddr)) -> Self {
        Self::start_in(folder, id, Begin::Wait, listen).await
    }
}

/// A cell of nodes 1 to 3 that all vote; node 1 leads.
async fn three() -> [Node; 3] {
    let one = Node::start(1, Begin::Found).await;
    let (two, three) = (Node::start(2, Begin::Wait).await, Node::start(3, Begin::Wait).await);
    for node in [&two, &three] {
        one.raft.add_member(node.id, node.endpoint(), PATIENCE).await.unwrap();
    }
    [one, two, three]
}

/// Waits until one of the nodes leads, and has proved it.
async fn leader<'a>(nodes: &[&'a Node]) -> &'a Node {
    let end = Instant::now() + PATIENCE;
    loop {
        for node in nodes {
            if node.raft.read_barrier().await.is_ok() {
                return node;
            }
        }
        assert!(Instant::now() < end, "nobody leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn all_have(nodes: &[&Node], commands: &[&str]) {
    until(|| nodes.iter().all(|node| node.diary.commands() == commands)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_apply_the_same_commands_in_the_same_order() {
    let [one, two, three] = three().await;
    let names: Vec<String> = (0..200).map(|number| format!("c{number}")).collect();
    let work = names.iter().map(|name| one.raft.propose(name.clone().into_bytes()));
    for outcome in futures::future::join_all(work).await {
        outcome.unwrap();
    }
    let expected: Vec<&str> = names.iter().map(String::as_str).collect();
    all_have(&[&one, &two, &three], &expected).await;
    let positions = |node: &Node| node.diary.pages.lock().unwrap().clone();
    assert_eq!(positions(&one), positions(&two));
    assert_eq!(positions(&one), positions(&three));
    let status = one.raft.status();
    assert_eq!(status.members.len(), 3);
    assert!(status.members.iter().all(|member| member.is_voter));
    assert!(status.members.iter().all(|member| member.matched.is_some()));
    assert_eq!(two.raft.status().role, Role::Follower);
    let refused = two.raft.propose(b"no".to_vec()).await;
    assert!(matches!(refused, Err(Error::NotLeader { leader: Some(1) })), "{refused:?}");
    for node in [one, two, three] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_reads_what_was_acknowledged_before_and_asks_its_leader() {
    let [one, two, three] = three().await;
    for number in 0..20 {
        let (at, _) = one.raft.propose(format!("c{number}").into_bytes()).await.unwrap();
        let read = two.raft.read_index().await.unwrap();
        assert!(read >= at);
        assert_eq!(two.diary.commands().len(), number + 1);
    }
    let not_leading = two.raft.read_barrier().await;
    assert!(matches!(not_leading, Err(Error::NotLeader { leader: Some(1) })), "{not_leading:?}");
    let answer = three.raft.ask_leader(b"who".to_vec()).await.unwrap();
    assert_eq!(answer, b"who asked of 1");
    for node in [one, two, three] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_dies_another_leads_and_nothing_acknowledged_is_lost() {
    let [one, two, three] = three().await;
    propose(&one.raft, "before").await;
    let old = one.stop().await;
    let died = Instant::now();
    let new = leader(&[&two, &three]).await;
    propose(&new.raft, "after").await;
    assert!(died.elapsed() < PATIENCE / 2, "it took {:?}", died.elapsed());
    let one = Node::restart(old).await;
    all_have(&[&one, &two, &three], &["before", "after"]).await;
    assert!(one.raft.leadership().borrow().leader.is_some());
    for node in [one, two, three] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_commits_and_reads_nothing() {
    let [one, two, three] = three().await;
    propose(&one.raft, "before").await;
    let stopped = [two.stop().await, three.stop().await];
    let alone = one.raft.propose(b"alone".to_vec());
    let alone = tokio::time::timeout(Duration::from_secs(2), alone).await;
    assert!(!matches!(alone, Ok(Ok(_))), "{alone:?}");
    let read = tokio::time::timeout(Duration::from_secs(2), one.raft.read_index()).await;
    assert!(!matches!(read, Ok(Ok(_))), "{read:?}");
    let [two, three] = stopped;
    let (two, three) = (Node::restart(two).await, Node::restart(three).await);
    let new = leader(&[&one, &two, &three]).await;
    propose(&new.raft, "after").await;
    let last = || new.diary.commands();
    until(|| [&one, &two, &three].iter().all(|node| node.diary.commands() == last())).await;
    // What the minority wanted is unknown, not lost: it may stand in the log, once.
    let commands = last();
    assert!(commands == ["before", "after"] || commands == ["before", "alone", "after"]);
    for node in [one, two, three] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_node_whose_entries_are_purged_gets_a_snapshot() {
    let one = Node::start(1, Begin::Found).await;
    for number in 0..3 {
        propose(&one.raft, &format!("c{number}")).await;
        super::seal(&one.raft, &number.to_string()).await;
    }
    until(|| one.raft.status().purged.is_some()).await;
    propose(&one.raft, "last").await;
    let two = Node::start(2, Begin::Wait).await;
    one.raft.add_member(2, two.endpoint(), PATIENCE).await.unwrap();
    until(|| two.diary.commands() == one.diary.commands()).await;
    assert_eq!(two.diary.restored(), [one.raft.status().snapshot.unwrap()]);
    assert_eq!(two.raft.status().snapshot, one.raft.status().snapshot);
    // It finds it again when it starts.
    let expected = one.diary.commands();
    let two = Node::restart(two.stop().await).await;
    until(|| two.diary.commands() == expected).await;
    for node in [one, two] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_change_one_at_a_time_and_the_last_voter_stays() {
    let [one, two, three] = three().await;
    let twice = one.raft.add_member(2, two.endpoint(), PATIENCE).await;
    assert!(twice.is_ok(), "asking again is no harm: {twice:?}");
    let elsewhere = Endpoint { peer: "127.0.0.1:1".to_owned(), api: String::new() };
    let moved = one.raft.add_member(2, elsewhere, PATIENCE).await;
    assert!(matches!(moved, Err(Error::Members(MembersError::Exists))), "{moved:?}");
    let missing = one.raft.remove_member(9, PATIENCE).await;
    assert!(matches!(missing, Err(Error::Members(MembersError::Missing))), "{missing:?}");
    let not_here = two.raft.remove_member(3, PATIENCE).await;
    assert!(matches!(not_here, Err(Error::NotLeader { leader: Some(1) })), "{not_here:?}");
    for id in [3, 2] {
        one.raft.remove_member(id, PATIENCE).await.unwrap();
    }
    assert_eq!(one.raft.status().members.len(), 1);
    let last = one.raft.remove_member(1, PATIENCE).await;
    assert!(matches!(last, Err(Error::Members(MembersError::LastVoter))), "{last:?}");
    propose(&one.raft, "alone").await;
    for node in [one, two, three] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cell_is_not_taken_in() {
    let one = Node::start(1, Begin::Found).await;
    let folder = tempfile::tempdir().unwrap();
    let mut options = settings(folder.path(), 2, Begin::Wait, free_port());
    options.cell = "other".to_owned();
    let stranger = Raft::open(options, Diary::new()).await.unwrap();
    let peer = stranger.listens().unwrap().to_string();
    let endpoint = Endpoint { peer, api: String::new() };
    let added = one.raft.add_member(2, endpoint, Duration::from_secs(1)).await;
    assert!(matches!(added, Err(Error::Members(MembersError::Behind))), "{added:?}");
    propose(&one.raft, "still works").await;
    assert_eq!(*stranger.leadership().borrow(), Leadership::default());
    stranger.shutdown().await;
    one.stop().await;
}

/// What refuses a connection as soon as it is made; how often it did.
fn refuser() -> (SocketAddr, Arc<std::sync::atomic::AtomicU32>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let told = Arc::clone(&count);
    std::thread::spawn(move || {
        for caller in listener.incoming() {
            drop(caller);
            told.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    });
    (address, count)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_refuses_every_connection_is_not_called_without_end() {
    let one = Node::start(1, Begin::Found).await;
    let (address, count) = refuser();
    let endpoint = Endpoint { peer: address.to_string(), api: String::new() };
    let added = one.raft.add_member(2, endpoint, Duration::from_secs(3)).await;
    assert!(matches!(added, Err(Error::Members(MembersError::Behind))), "{added:?}");
    let calls = count.load(std::sync::atomic::Ordering::SeqCst);
    assert!((2..40).contains(&calls), "{calls} calls in three seconds");
    one.stop().await;
}

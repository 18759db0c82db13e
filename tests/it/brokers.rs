//! Three `sublet server`s on this machine, and what stands between them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{EncodePrivateKey, EncodePublicKey};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Done, Home, wait_for};

pub const CELL: &str = "berlin";

/// Which brokers cannot talk to which: (from, to).
type Cuts = Arc<Mutex<BTreeSet<(u64, u64)>>>;

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The brokers, numbered from 1, each behind a proxy that can cut it off from another.
pub struct Brokers {
    home: Home,
    children: Vec<Option<Child>>,
    apis: Vec<SocketAddr>,
    proxies: Vec<SocketAddr>,
    cuts: Cuts,
}

impl Brokers {
    /// Writes the files for three brokers and an operator. Nothing runs yet.
    pub fn new() -> Brokers {
        let home = Home::new();
        let key = SigningKey::from_bytes(&[7; 32]);
        let private = key.to_pkcs8_pem(LineEnding::LF).unwrap();
        let public = key.verifying_key().to_public_key_pem(LineEnding::LF).unwrap();
        fs::write(home.path().join("ops.key"), private.as_bytes()).unwrap();
        fs::write(home.path().join("ops.pub.pem"), public).unwrap();
        let cuts = Cuts::default();
        let (mut apis, mut proxies) = (Vec::new(), Vec::new());
        for id in 1..=3 {
            let (api, listen) = (free_port(), free_port());
            let proxy = proxy(id, listen, Arc::clone(&cuts));
            let config = format!(
                "cell = \"{CELL}\"\nbroker = {id}\ndata_dir = \"data-{id}\"\n\
                 [peers]\nlisten = \"{listen}\"\naddress = \"{proxy}\"\nplain = true\n\
                 [api]\nlisten = \"{api}\"\nurl = \"http://{api}\"\n\
                 [auth]\nissuer = \"ops\"\n[auth.keys]\nops = \"ops.pub.pem\"\n"
            );
            fs::write(home.path().join(format!("broker-{id}.toml")), config).unwrap();
            apis.push(api);
            proxies.push(proxy);
        }
        let profiles = home.path().join("config/sublet/profiles");
        fs::create_dir_all(&profiles).unwrap();
        let profile = format!(
            "server = \"http://{}\"\nkey = \"{}\"\nkey_id = \"ops\"\nissuer = \"ops\"\n\
             audience = \"sublet\"\nsubject = \"op\"\nroles = [\"operator\", \"auditor\"]\n",
            apis[0],
            home.path().join("ops.key").display()
        );
        fs::write(profiles.join("default.toml"), profile).unwrap();
        Brokers { home, children: vec![None, None, None], apis, proxies, cuts }
    }

    /// A cell of all three that vote.
    pub fn formed() -> Brokers {
        let mut brokers = Brokers::new();
        brokers.found(0);
        for id in 1..=3 {
            brokers.start(id);
        }
        for id in 2..=3 {
            let (peer, api) = (brokers.proxies[place(id)].to_string(), brokers.url(id));
            let id = id.to_string();
            brokers.ok(1, &["cell", "join", "--id", &id, "--peer", &peer, "--api", &api]);
        }
        brokers
    }

    /// Founds the cell with broker 1; ends with `code`.
    #[track_caller]
    pub fn found(&self, code: i32) {
        let done = self.home.sublet(&["cell", "init", "--config", &self.config(1)]);
        assert_eq!(done.code, code, "{done:#?}");
    }

    fn config(&self, id: u64) -> String {
        self.home.path().join(format!("broker-{id}.toml")).to_str().unwrap().to_owned()
    }

    fn log(&self, id: u64) -> PathBuf {
        self.home.path().join(format!("broker-{id}.log"))
    }

    pub fn url(&self, id: u64) -> String {
        format!("http://{}", self.apis[place(id)])
    }

    /// Starts a broker and waits until its API listens.
    pub fn start(&mut self, id: u64) {
        let mut command = self.home.command(&["server", "--config", &self.config(id)]);
        let log = fs::File::options().create(true).append(true).open(self.log(id)).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.children[place(id)] = Some(command.spawn().unwrap());
        wait_for("the broker's API", || {
            let child = self.children[place(id)].as_mut().unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                let log = fs::read_to_string(self.log(id)).unwrap();
                panic!("broker {id} ended with {status}: {log}");
            }
            TcpStream::connect(self.apis[place(id)]).ok()
        });
    }

    /// Kills a broker as a power cut would.
    pub fn kill(&mut self, id: u64) {
        let mut child = self.children[place(id)].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops a broker's process, or lets it go on.
    pub fn signal(&self, id: u64, signal: Signal) {
        let child = self.children[place(id)].as_ref().unwrap();
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    }

    /// Cuts all connections between a broker and the others, or heals them.
    pub fn cut_off(&self, id: u64) {
        let mut cuts = self.cuts.lock().unwrap();
        for other in (1..=3).filter(|other| *other != id) {
            cuts.extend([(id, other), (other, id)]);
        }
    }

    pub fn heal(&self) {
        self.cuts.lock().unwrap().clear();
    }

    /// Runs the command line on broker `id`.
    pub fn sublet(&self, id: u64, arguments: &[&str]) -> Done {
        self.home.sublet(&[&["--server", &self.url(id)], arguments].concat())
    }

    #[track_caller]
    pub fn ok(&self, id: u64, arguments: &[&str]) -> String {
        let done = self.sublet(id, arguments);
        assert_eq!(done.code, 0, "{done:#?}\n{}", fs::read_to_string(self.log(id)).unwrap());
        done.out
    }

    /// The cell as broker `id` sees it.
    #[track_caller]
    pub fn status(&self, id: u64) -> Value {
        let out = self.ok(id, &["--output", "json", "cell", "status"]);
        serde_json::from_str(&out).unwrap()
    }

    /// Who leads, as broker `id` sees it, and is not `old`.
    pub fn leader(&self, id: u64, old: Option<u64>) -> u64 {
        wait_for("a leader", || {
            self.status(id)["leader"].as_u64().filter(|leader| Some(*leader) != old)
        })
    }

    /// Waits until all brokers are reached, vote, and have the same ledger.
    pub fn agree(&self, id: u64) {
        wait_for("three equal brokers", || {
            let status = self.status(id);
            let brokers = status["brokers"].as_array().unwrap();
            let first = &brokers[0]["root"];
            let is_equal = |broker: &Value| {
                broker["reached"] == true && broker["role"] != "learner" && broker["root"] == *first
            };
            (brokers.len() == 3 && brokers.iter().all(is_equal)).then_some(())
        });
    }

    /// The names of all tenants, as broker `id` reads them.
    pub fn tenants(&self, id: u64) -> BTreeSet<String> {
        let out = self.ok(id, &["--output", "json", "tenant", "list"]);
        let tenants: Value = serde_json::from_str(&out).unwrap();
        let name = |tenant: &Value| tenant["id"].as_str().unwrap().to_owned();
        tenants.as_array().unwrap().iter().map(name).collect()
    }

    /// A broker that is none of these.
    pub fn other_than(&self, ids: &[u64]) -> u64 {
        (1..=3).find(|id| !ids.contains(id)).unwrap()
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn place(id: u64) -> usize {
    usize::try_from(id - 1).unwrap()
}

/// Where the number of the caller stands in a greeting without TLS: behind the frame's length, the
/// greeting's version, three small numbers, and the cell's name with its length.
const CALLER_AT: usize = 4 + 1 + 3 + 1 + CELL.len();

/// Passes bytes between callers and broker `id`, unless the two are cut off from one another.
fn proxy(id: u64, to: SocketAddr, cuts: Cuts) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let cuts = Arc::clone(&cuts);
            std::thread::spawn(move || {
                let mut greeting = [0; CALLER_AT + 1];
                let mut caller = caller;
                if caller.read_exact(&mut greeting).is_err() {
                    return;
                }
                let pair = (u64::from(greeting[CALLER_AT]), id);
                let Ok(mut broker) = TcpStream::connect(to) else { return };
                if cuts.lock().unwrap().contains(&pair) || broker.write_all(&greeting).is_err() {
                    return;
                }
                let back = (broker.try_clone().unwrap(), caller.try_clone().unwrap());
                let for_back = Arc::clone(&cuts);
                std::thread::spawn(move || pass(back.0, back.1, pair, &for_back));
                pass(caller, broker, pair, &cuts);
            });
        }
    });
    address
}

/// Passes bytes in one direction until an end is gone or the two are cut off.
fn pass(mut from: TcpStream, mut to: TcpStream, pair: (u64, u64), cuts: &Cuts) {
    from.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut bytes = [0; 64 * 1_024];
    while !cuts.lock().unwrap().contains(&pair) {
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => {
                // What was read just before a cut is lost with it.
                let is_cut = cuts.lock().unwrap().contains(&pair);
                if is_cut || to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

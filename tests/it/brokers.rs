//! Three `sublet server`s on this machine, and what stands between them.

use std::collections::{BTreeMap, BTreeSet};
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

/// How often a wire is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What becomes of bytes on their way from one broker to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Connections are closed, and none is made.
    Cut,
    /// They do not arrive, as if a cable were pulled; they do once it is put back.
    Held,
    /// They arrive late, also those that come after them.
    Late(Duration),
}

/// The wires that are not as they should be: (from, to).
type Wires = Arc<Mutex<BTreeMap<(u64, u64), Wire>>>;

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The brokers, numbered from 1, each behind a proxy that can cut it off from another.
pub struct Brokers {
    home: Arc<Home>,
    children: Vec<Option<Child>>,
    apis: Vec<SocketAddr>,
    proxies: Vec<SocketAddr>,
    wires: Wires,
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
        let wires = Wires::default();
        let (mut apis, mut proxies) = (Vec::new(), Vec::new());
        for id in 1..=3 {
            let (api, listen) = (free_port(), free_port());
            let proxy = proxy(id, listen, Arc::clone(&wires));
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
        let home = Arc::new(home);
        Brokers { home, children: vec![None, None, None], apis, proxies, wires }
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

    /// A file of the operator's.
    pub fn file(&self, name: &str) -> String {
        self.home.path().join(name).to_str().unwrap().to_owned()
    }

    /// Makes broker `id` the only one of a cell restored from a backup, in a folder of this name.
    pub fn restore(&self, id: u64, backup: &str, folder: &str) -> Done {
        let (config, folder) = (self.config(id), self.file(folder));
        let what = ["restore", "--from", backup, "--config", &config, "--data-dir", &folder];
        self.home.sublet(&what)
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

    /// Cuts all connections between a broker and the others.
    pub fn cut_off(&self, id: u64) {
        for other in (1..=3).filter(|other| *other != id) {
            self.wire(&[(id, other), (other, id)], Wire::Cut);
        }
    }

    /// Does this to what is said from each first to each second broker.
    pub fn wire(&self, pairs: &[(u64, u64)], wire: Wire) {
        self.wires.lock().unwrap().extend(pairs.iter().map(|pair| (*pair, wire)));
    }

    /// All wires are as they should be.
    pub fn heal(&self) {
        self.wires.lock().unwrap().clear();
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

    /// What makes two tokens, of an operator and of a tenant.
    pub fn tokens(&self, tenant: &'static str) -> impl Fn() -> [String; 2] + Sync + use<> {
        let home = Arc::clone(&self.home);
        move || {
            let token = |arguments: &[&str]| home.ok(arguments).trim().to_owned();
            let operator = token(&["token", "--role", "operator"]);
            [operator, token(&["token", "--role", "tenant", "--tenant", tenant])]
        }
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

/// What becomes of bytes of one broker for another.
fn wire(wires: &Wires, pair: (u64, u64)) -> Option<Wire> {
    wires.lock().unwrap().get(&pair).copied()
}

/// Passes bytes between callers and broker `id`, as far as the wires between the two let them.
fn proxy(id: u64, to: SocketAddr, wires: Wires) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            let wires = Arc::clone(&wires);
            std::thread::spawn(move || {
                let mut greeting = [0; CALLER_AT + 1];
                let mut caller = caller;
                if caller.read_exact(&mut greeting).is_err() {
                    return;
                }
                let from = u64::from(greeting[CALLER_AT]);
                let (there, back) = ((from, id), (id, from));
                if [there, back].iter().any(|pair| wire(&wires, *pair) == Some(Wire::Cut)) {
                    return;
                }
                let Ok(broker) = TcpStream::connect(to) else { return };
                let ends = (broker.try_clone().unwrap(), caller.try_clone().unwrap());
                let for_back = Arc::clone(&wires);
                std::thread::spawn(move || pass(ends, &[], back, &for_back));
                pass((caller, broker), &greeting, there, &wires);
            });
        }
    });
    address
}

/// Passes bytes in one direction, `first` before the others, until an end is gone or the wire is cut.
fn pass((mut from, mut to): (TcpStream, TcpStream), first: &[u8], pair: (u64, u64), wires: &Wires) {
    from.set_read_timeout(Some(LOOK)).unwrap();
    let mut bytes = vec![0; 64 * 1_024];
    let mut is_whole = first.is_empty() || carry(&mut to, first, pair, wires);
    while is_whole && wire(wires, pair) != Some(Wire::Cut) {
        match from.read(&mut bytes) {
            Ok(0) => break,
            // What was read just before a cut is lost with it.
            Ok(count) => is_whole = carry(&mut to, &bytes[..count], pair, wires),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Brings bytes to the other side when the wire lets them; whether they arrived.
fn carry(to: &mut TcpStream, bytes: &[u8], pair: (u64, u64), wires: &Wires) -> bool {
    loop {
        match wire(wires, pair) {
            Some(Wire::Cut) => return false,
            Some(Wire::Held) => std::thread::sleep(LOOK),
            Some(Wire::Late(time)) => {
                std::thread::sleep(time);
                return to.write_all(bytes).is_ok();
            }
            None => return to.write_all(bytes).is_ok(),
        }
    }
}

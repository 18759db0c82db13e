//! Callers, each in a thread of its own, who write down what they asked and what they were answered.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::checker::{Answer, Call, Operation};
use crate::brokers::Brokers;

/// Callers at once, two of each broker.
const CALLERS: u64 = 6;
/// Things of each kind that are called in one round.
const THINGS: u64 = 2;
/// Between two calls of one caller.
const PACE: Duration = Duration::from_millis(15);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long a change is tried again under its key; after that nobody knows.
const TRIES: Duration = Duration::from_secs(6);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// A token is used for so long.
const TOKEN: Duration = Duration::from_secs(240);
/// Whose requests they are.
const ASKER: &str = "asker";
/// The model of the registers, which are quotas.
const MODEL: &str = "a100";

/// What one attempt came to.
enum Said {
    Ok(Value),
    /// Refused, or not there.
    No,
    /// Perhaps it was done.
    Unknown,
}

/// Where the brokers are, and what shows who calls.
pub(super) struct Clients {
    urls: Vec<String>,
    agent: ureq::Agent,
    tokens: Mutex<(Instant, [String; 2])>,
    mint: Box<dyn Fn() -> [String; 2] + Sync>,
    began: Instant,
}

/// Whose token a call shows.
#[derive(Clone, Copy)]
enum As {
    Operator,
    Tenant,
}

impl Clients {
    pub(super) fn new(brokers: &Brokers) -> Clients {
        brokers.ok(1, &["tenant", "create", ASKER]);
        brokers.ok(1, &["quota", "set", "--tenant", ASKER, "--model", MODEL, "8"]);
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ATTEMPT))
            .build();
        let mint = Box::new(brokers.tokens(ASKER));
        Clients {
            urls: (1..=3).map(|id| brokers.url(id)).collect(),
            agent: config.into(),
            tokens: Mutex::new((Instant::now(), mint())),
            mint,
            began: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap()
    }

    fn token(&self, who: As) -> String {
        let mut tokens = self.tokens.lock().unwrap();
        if tokens.0.elapsed() > TOKEN {
            *tokens = (Instant::now(), (self.mint)());
        }
        let [operator, tenant] = &tokens.1;
        match who {
            As::Operator => operator.clone(),
            As::Tenant => tenant.clone(),
        }
    }

    /// Asks broker `id` once.
    fn try_once(&self, id: u64, who: As, (method, path): (&str, &str), body: &Body) -> Said {
        let url = format!("{}{path}", self.urls[usize::try_from(id - 1).unwrap()]);
        let request = ureq::http::Request::builder().method(method).uri(url);
        let request = request.header("authorization", format!("Bearer {}", self.token(who)));
        let answered = match body {
            Body::None => self.agent.run(request.body(()).unwrap()),
            Body::Empty { key } => {
                self.agent.run(request.header("idempotency-key", key).body(()).unwrap())
            }
            Body::Json { key, body } => {
                let request = request.header("idempotency-key", key);
                let request = request.header("content-type", "application/json");
                self.agent.run(request.body(body.to_string()).unwrap())
            }
        };
        let Ok(mut response) = answered else { return Said::Unknown };
        let text = response.body_mut().read_to_string();
        match (response.status().as_u16(), text) {
            (200 | 201, Ok(text)) => Said::Ok(serde_json::from_str(&text).unwrap()),
            (404 | 409, Ok(_)) => Said::No,
            (429 | 503, _) | (200 | 201 | 404 | 409, Err(_)) => Said::Unknown,
            (status, text) => panic!("{method} {path}: {status}, {text:?}"),
        }
    }
}

/// What goes with a call.
enum Body {
    None,
    Empty { key: String },
    Json { key: String, body: Value },
}

/// A thing that is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    /// A quota, set and read.
    Register(String),
    /// A tenant, made once.
    Tenant(String),
    /// A request under one key.
    Request(String),
}

/// One fault's worth of calls, of things of its own.
pub(super) struct Round<'a> {
    clients: &'a Clients,
    number: u64,
    is_over: AtomicBool,
    /// What is written, and under which key: each number once.
    next: AtomicU64,
    histories: Mutex<BTreeMap<Thing, Vec<Operation>>>,
    /// The request that stands for each key.
    requests: Mutex<BTreeMap<String, String>>,
}

impl<'a> Round<'a> {
    /// A round with registers that are there, and nothing else.
    pub(super) fn new(clients: &'a Clients, number: u64) -> Round<'a> {
        let round = Round {
            clients,
            number,
            is_over: AtomicBool::new(false),
            next: AtomicU64::new(1),
            histories: Mutex::default(),
            requests: Mutex::default(),
        };
        for which in 0..THINGS {
            let name = format!("r{number}-reg{which}");
            let key = format!("make {name}");
            let body = Body::Json { key, body: json!({ "id": name }) };
            let made = round.insist(1, As::Operator, ("POST", "/v1/tenants"), &body);
            assert!(matches!(made, Said::Ok(_)), "no register {name}");
        }
        round
    }

    /// Lets the callers call until [`Round::stop`].
    pub(super) fn start<'s, 'e>(&'e self, scope: &'s Scope<'s, 'e>) {
        for caller in 0..CALLERS {
            scope.spawn(move || {
                let mut random = (self.number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ caller;
                while !self.is_over.load(Ordering::Relaxed) {
                    // xorshift64 (Marsaglia 2003).
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    self.call(1 + caller % 3, random);
                    std::thread::sleep(PACE);
                }
            });
        }
    }

    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// What was seen of each thing.
    pub(super) fn histories(&self) -> Vec<(String, Vec<Operation>)> {
        let histories = self.histories.lock().unwrap();
        histories.iter().map(|(thing, history)| (format!("{thing:?}"), history.clone())).collect()
    }

    /// Reads each thing from each broker.
    pub(super) fn look_everywhere(&self) {
        let things: Vec<Thing> = self.histories.lock().unwrap().keys().cloned().collect();
        for broker in 1..=3 {
            things.iter().for_each(|thing| self.read(broker, thing, ""));
        }
    }

    /// Writes to the first register through `broker`.
    pub(super) fn write_register(&self, broker: u64, value: u64) {
        self.write(broker, &Thing::Register(format!("r{}-reg0", self.number)), value);
    }

    /// Reads the first register from `broker`, with this query.
    pub(super) fn read_register(&self, broker: u64, query: &str) {
        self.read(broker, &Thing::Register(format!("r{}-reg0", self.number)), query);
    }

    /// One call of something.
    fn call(&self, broker: u64, random: u64) {
        let (what, which) = (random % 8, random / 8 % THINGS);
        let number = self.number;
        let register = Thing::Register(format!("r{number}-reg{which}"));
        let tenant = Thing::Tenant(format!("r{number}-t{}", random / 16 % 8));
        let request = format!("r{number}-req{}", random / 16 % 4);
        match what {
            0 | 1 => self.write(broker, &register, self.next.fetch_add(1, Ordering::Relaxed)),
            2 | 3 => self.read(broker, &register, ""),
            4 => self.create(broker, &tenant),
            5 => self.read(broker, &tenant, ""),
            6 => self.submit(broker, &request),
            _ if (random / 64).is_multiple_of(3) => self.cancel(broker, &request),
            _ => self.read(broker, &Thing::Request(request), ""),
        }
    }

    /// Asks until there is an answer, of one broker after the other, or until nobody knows.
    fn insist(&self, broker: u64, who: As, what: (&str, &str), body: &Body) -> Said {
        let begun = Instant::now();
        for attempt in 0.. {
            match self.clients.try_once(1 + (broker - 1 + attempt) % 3, who, what, body) {
                Said::Unknown if begun.elapsed() < TRIES => std::thread::sleep(PAUSE),
                said => return said,
            }
        }
        Said::Unknown
    }

    fn note(&self, thing: &Thing, began: u64, call: Call, answer: Option<Answer>) {
        let ended = answer.map(|_| self.clients.now());
        let operation = Operation { call, answer, began, ended };
        self.histories.lock().unwrap().entry(thing.clone()).or_default().push(operation);
    }

    fn write(&self, broker: u64, thing: &Thing, value: u64) {
        let Thing::Register(name) = thing else { return };
        let key = format!("{name} {value}");
        let path = format!("/v1/tenants/{name}/quotas/{MODEL}");
        let body = Body::Json { key, body: json!({ "nominal": value }) };
        let began = self.clients.now();
        let answer = match self.insist(broker, As::Operator, ("PUT", &path), &body) {
            Said::Ok(set) => {
                assert_eq!(set["nominal"], value, "{set}");
                Some(Answer::Done)
            }
            Said::No => panic!("{name} was refused a quota"),
            Said::Unknown => None,
        };
        self.note(thing, began, Call::Write(value), answer);
    }

    fn create(&self, broker: u64, thing: &Thing) {
        let Thing::Tenant(name) = thing else { return };
        let key = format!("{name} {}", self.next.fetch_add(1, Ordering::Relaxed));
        let body = Body::Json { key, body: json!({ "id": name }) };
        let began = self.clients.now();
        let answer = match self.insist(broker, As::Operator, ("POST", "/v1/tenants"), &body) {
            Said::Ok(_) => Some(Answer::Done),
            Said::No => Some(Answer::Refused),
            Said::Unknown => None,
        };
        self.note(thing, began, Call::Create, answer);
    }

    fn submit(&self, broker: u64, name: &str) {
        let asked = json!({ "duration": 600, "count": 1, "models": [MODEL] });
        let body = Body::Json { key: name.to_owned(), body: asked };
        let began = self.clients.now();
        let answer = match self.insist(broker, As::Tenant, ("POST", "/v1/requests"), &body) {
            Said::Ok(made) => {
                let id = made["id"].as_str().unwrap().to_owned();
                let mut requests = self.requests.lock().unwrap();
                let known = requests.entry(name.to_owned()).or_insert_with(|| id.clone());
                assert_eq!(*known, id, "two requests under one key");
                Some(Answer::Done)
            }
            Said::No => panic!("{name} was refused"),
            Said::Unknown => None,
        };
        self.note(&Thing::Request(name.to_owned()), began, Call::Submit, answer);
    }

    fn cancel(&self, broker: u64, name: &str) {
        let Some(id) = self.requests.lock().unwrap().get(name).cloned() else { return };
        let key = format!("cancel {name} {}", self.next.fetch_add(1, Ordering::Relaxed));
        let path = format!("/v1/requests/{id}");
        let began = self.clients.now();
        let said = self.insist(broker, As::Tenant, ("DELETE", &path), &Body::Empty { key });
        let answer = match said {
            Said::Ok(_) => Some(Answer::Done),
            Said::No => Some(Answer::Refused),
            Said::Unknown => None,
        };
        self.note(&Thing::Request(name.to_owned()), began, Call::Cancel, answer);
    }

    /// Reads once. A read without an answer says nothing.
    fn read(&self, broker: u64, thing: &Thing, query: &str) {
        let (who, path) = match thing {
            Thing::Register(name) | Thing::Tenant(name) => {
                (As::Operator, format!("/v1/tenants/{name}{query}"))
            }
            Thing::Request(name) => {
                let Some(id) = self.requests.lock().unwrap().get(name).cloned() else { return };
                (As::Tenant, format!("/v1/requests/{id}{query}"))
            }
        };
        let began = self.clients.now();
        let value = match (self.clients.try_once(broker, who, ("GET", &path), &Body::None), thing) {
            (Said::Unknown, _) => return,
            (Said::No, _) => 0,
            (Said::Ok(found), Thing::Register(_)) => {
                found["quotas"][0]["nominal"].as_u64().unwrap_or(0)
            }
            (Said::Ok(_), Thing::Tenant(_)) => 1,
            (Said::Ok(found), Thing::Request(_)) => match found["state"].as_str().unwrap() {
                "waiting" => 1,
                "cancelled" => 2,
                other => panic!("a request is {other}"),
            },
        };
        self.note(thing, began, Call::Read, Some(Answer::Value(value)));
    }
}

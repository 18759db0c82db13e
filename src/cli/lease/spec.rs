//! The flags that say what is wanted, as the body of a request.
//!
//! A flag that is not given is left out of the body, so that the plan can tell what was declared
//! from what the cell adds.

use clap::Args;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use sublet_predictor::{Buffers, Declared, Question, predict};
use sublet_protocol::agent::Workload;
use sublet_protocol::api::{DeferCreate, RequestCreate, Time};
use sublet_protocol::ids::{GpuModel, Project, Region};
use sublet_protocol::money::MicroCredits;
use sublet_protocol::requests::{Class, OnRecall, Placement, WORKLOAD_MAX};
use sublet_protocol::units::{GpuMilli, MiB, Seconds};

use super::super::amounts;
use super::super::price::currency;
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::units::{Gpus, Memory, When, parse_gpus, parse_memory, parse_seconds, parse_when};

/// What is leased for at most if nothing is said: long enough to try something, short enough for most
/// idle times.
const DURATION_DEFAULT: &str = "30m";

/// What is wanted.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is wanted")]
pub(super) struct Spec {
    /// How many GPUs, all or none; below 1 it is a share of one, as 0.5; h100:2 names the model, too
    /// [default: 1].
    #[arg(long, value_parser = parse_gpus, value_name = "NUMBER", allow_negative_numbers = true)]
    gpus: Option<Gpus>,
    /// Device memory on each, at least; 80GiB is 80 × 2³⁰ bytes, 80GB is 80 × 10⁹.
    #[arg(long, value_parser = parse_memory, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<Memory>,
    /// For how long at most, as 2h30m. This much is paid for at most [default: 30m].
    #[arg(long, value_parser = parse_seconds, value_name = "SPAN", allow_hyphen_values = true)]
    duration: Option<Seconds>,
    /// Allowed GPU models; may be given several times. Default: any.
    #[arg(long = "model", value_parser = amounts::model, value_delimiter = ',')]
    models: Vec<GpuModel>,
    /// Allowed regions; may be given several times. Default: any.
    #[arg(long = "region", value_parser = amounts::region, value_delimiter = ',')]
    regions: Vec<Region>,
    /// What kind of work it is; it decides rank and protection.
    #[arg(long, value_parser = amounts::class())]
    class: Option<Class>,
    /// Most it may cost per GPU-hour, as 1.25.
    #[arg(long, value_parser = amounts::money, value_name = "AMOUNT", allow_negative_numbers = true)]
    max_price: Option<MicroCredits>,
    /// Cores for each GPU, at least, as 4 or 0.5.
    #[arg(long, value_parser = amounts::cores, value_name = "CORES", allow_negative_numbers = true)]
    cpu: Option<u64>,
    /// Host memory for each GPU, at least.
    #[arg(long, value_parser = parse_memory, value_name = "SIZE", allow_hyphen_values = true)]
    host_memory: Option<Memory>,
    /// Where several GPUs may stand.
    #[arg(long, value_parser = amounts::placement())]
    placement: Option<Placement>,
    /// Not before this, as 2026-12-01T22:00:00+01:00 or, from now on, as 8h.
    #[arg(long, value_parser = parse_when, value_name = "WHEN", allow_hyphen_values = true)]
    not_before: Option<When>,
    /// In the off-peak hours of your tenant, if a start in time can be promised: by the deadline, or
    /// within a week without one. Else as soon as it can.
    #[arg(long)]
    off_peak: bool,
    /// When it should be over, as 2026-12-02T08:00:00+01:00 or, from now on, as 20h.
    #[arg(long, value_parser = parse_when, value_name = "WHEN", allow_hyphen_values = true)]
    deadline: Option<When>,
    /// What happens to the request when owner or rank takes the GPUs away.
    #[arg(long, value_parser = amounts::on_recall())]
    on_recall: Option<OnRecall>,
    /// What it is for; statements are split by it.
    #[arg(long, value_parser = amounts::project)]
    project: Option<Project>,
    /// Priority among your own requests of one rank, higher first.
    #[arg(long)]
    priority: Option<u8>,
}

/// The body of a request, with what this side added by itself.
#[derive(Debug, Clone)]
pub(super) struct Body {
    /// As it is sent.
    pub(super) json: Value,
    /// Fields that no flag gave.
    pub(super) defaulted: Vec<&'static str>,
    /// Amounts as they were written.
    pub(super) given: Vec<(&'static str, String)>,
}

impl Spec {
    /// The body of the request, with a prediction from what is declared.
    pub(super) fn body(&self, client: &Client) -> Outcome<Body> {
        let mut fields = Map::new();
        let mut defaulted = Vec::new();
        let duration = match self.duration {
            Some(duration) => duration,
            None => {
                defaulted.push("duration");
                parse_seconds(DURATION_DEFAULT).map_err(Failure::usage)?
            }
        };
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        put("count", self.gpus.map(|gpus| json!(gpus.count)));
        put("gpu", self.gpus.map(|gpus| json!(gpus.each)));
        put("memory", self.memory.as_ref().map(|memory| json!(memory.mib)));
        put("duration", Some(json!(duration)));
        let models = self.models()?;
        put("models", (!models.is_empty()).then(|| json!(models)));
        put("regions", (!self.regions.is_empty()).then(|| json!(self.regions)));
        put("class", self.class.map(|class| json!(class)));
        put("cpu", self.cpu.map(|cpu| json!(cpu)));
        put("host_memory", self.host_memory.as_ref().map(|memory| json!(memory.mib)));
        put("placement", self.placement.map(|placement| json!(placement)));
        put("on_recall", self.on_recall.map(|on_recall| json!(on_recall)));
        put("project", self.project.map(|project| json!(project)));
        put("priority", self.priority.map(|priority| json!(priority)));
        if let Some(amount) = self.max_price {
            let currency = currency(client)?;
            put("max_price", Some(json!({ "amount": amount.to_string(), "currency": currency })));
        }
        put("prediction", self.prediction(duration));
        put("defer", self.defer(client)?);
        let given = [("memory", &self.memory), ("host_memory", &self.host_memory)];
        let given = given.into_iter();
        let given = given.filter_map(|(name, memory)| Some((name, memory.as_ref()?.text.clone())));
        Ok(Body { json: Value::Object(fields), defaulted, given: given.collect() })
    }

    /// When it is to start, if that was said. What is said from now on is counted from the time of the
    /// ledger, which instants are compared with.
    fn defer(&self, client: &Client) -> Outcome<Option<Value>> {
        if self.not_before.is_none() && !self.off_peak && self.deadline.is_none() {
            return Ok(None);
        }
        let now = client.status()?.now.0;
        let instant = |when: Option<When>| when.map(|when| Time(when.instant(now)));
        Ok(Some(json!(DeferCreate {
            not_before: instant(self.not_before),
            off_peak: self.off_peak,
            deadline: instant(self.deadline),
        })))
    }

    /// The models of both flags, which must agree.
    fn models(&self) -> Outcome<Vec<GpuModel>> {
        let named = self.gpus.and_then(|gpus| gpus.model);
        match named {
            Some(model) if self.models.is_empty() || self.models == [model] => Ok(vec![model]),
            Some(model) => {
                let what = format!("--gpus asks for {model} and --model for something else");
                Err(Failure::usage(what))
            }
            None => Ok(self.models.clone()),
        }
    }

    /// What the predictor makes of it; nothing if it is out of range, which the server will say.
    fn prediction(&self, duration: Seconds) -> Option<Value> {
        let memory = self.memory.as_ref().map_or(MiB::ZERO, |memory| memory.mib);
        let one = Gpus { count: 1, each: GpuMilli::DEVICE, model: None };
        let Gpus { count: gpus, each: gpu, .. } = self.gpus.unwrap_or(one);
        let question = Question::new(Declared { gpus, gpu, memory, duration });
        let answer = predict(&question, &Buffers::CALIBRATED).ok()?;
        Some(json!(answer.prediction()))
    }
}

impl Body {
    /// Adds what shall run, by hash and size; returns the bytes to send once there is a lease.
    pub(super) fn add_workload(&mut self, workload: &Workload) -> Outcome<Vec<u8>> {
        let bytes = serde_json::to_vec(workload)
            .map_err(|error| Failure::usage("the command cannot be sent").because(error))?;
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if size > WORKLOAD_MAX {
            let what = format!("command and environment have {size} bytes, at most {WORKLOAD_MAX}");
            return Err(Failure::usage(what).hint("put data into files the guest can fetch"));
        }
        let sha256 = hex::encode(Sha256::digest(&bytes));
        self.set("workload", json!({ "sha256": sha256, "size": size }));
        Ok(bytes)
    }

    /// Sets a field unless a flag gave it.
    pub(super) fn set_default(&mut self, name: &str, value: Value) {
        if self.json.get(name).is_none() {
            self.set(name, value);
        }
    }

    fn set(&mut self, name: &str, value: Value) {
        if let Value::Object(fields) = &mut self.json {
            fields.insert(name.to_owned(), value);
        }
    }

    /// Says what is out of its range before anything is sent, field by field.
    pub(super) fn check(&self) -> Outcome<()> {
        for (name, value) in self.json.as_object().into_iter().flatten() {
            let mut alone = json!({ "duration": 1 });
            alone[name] = value.clone();
            serde_json::from_value::<RequestCreate>(alone).map_err(|error| {
                Failure::usage("this cannot be asked for").because(format!("{name}: {error}"))
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_out_of_its_range_is_named() {
        let body = |json| Body { json, defaulted: Vec::new(), given: Vec::new() };
        assert!(body(json!({ "duration": 60, "count": 2, "memory": 20 })).check().is_ok());
        let failure = body(json!({ "duration": 60, "count": 5_000 })).check().unwrap_err();
        assert!(failure.to_string().contains("count: "), "{failure}");
        assert!(failure.to_string().contains("from 1 to 1024"), "{failure}");
    }
}

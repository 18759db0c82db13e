//! Days of looks through the driver's library, 30 s apart in the agent's time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use sublet_agent::idle::IdleRule;
use sublet_agent::probe::nvml::{NvmlProbe, device_id};
use sublet_agent::probe::{Error, Probe};
use sublet_agent::session::Observation;
use sublet_agent::watch::{Guests, Watch};
use sublet_protocol::ids::DeviceId;
use sublet_protocol::units::Millis;

use crate::fake::{FIRST, FakeDriver, idle_gpu, machine, with, without};

const EVERY: u64 = 30_000;
const LOOKS_OF_A_DAY: u64 = 2_880;

fn at(look: u64) -> Millis {
    Millis::new(look * EVERY)
}

#[test]
fn a_day_of_looks_has_a_sample_per_gpu_and_period_also_over_a_reload_and_a_hang() {
    let uuid = |place: u32| format!("GPU-00000000-0000-4000-8000-00000000000{place}");
    // A card without ECC: its errors are unknown all day, not none.
    let gpus: Vec<Value> = (0..8).map(|place| without(idle_gpu(&uuid(place)), "ecc")).collect();
    let driver = FakeDriver::new(&machine(&gpus));
    let mut config = driver.config();
    config.patience = Duration::from_secs(2);
    let mut probe = NvmlProbe::new(config);
    let mut samples: BTreeMap<DeviceId, u64> = BTreeMap::new();
    let mut hung = 0;
    for look in 0..LOOKS_OF_A_DAY {
        match look {
            1_000 => driver.set(&with(machine(&gpus), &json!({ "load": 1 }))),
            2_000 => {
                let hang = json!({ "symbol": "nvmlDeviceGetUtilizationRates" });
                driver.set(&with(machine(&gpus), &json!({ "load": 1, "hang": hang })));
            }
            2_001 => {
                driver.set(&with(machine(&gpus), &json!({ "load": 1 })));
                // In the agent's time it has half a minute to come back.
                std::thread::sleep(Duration::from_millis(500));
            }
            _ => {}
        }
        match probe.sample(at(look)) {
            Ok(seen) => seen.iter().for_each(|sample| {
                assert_eq!(sample.vitals.ecc, None);
                *samples.entry(sample.device).or_insert(0) += 1;
            }),
            Err(Error::Hung { .. }) => hung += 1,
            Err(error) => panic!("look {look}: {error}"),
        }
    }
    assert_eq!(samples.len(), 8);
    assert!((1..=2).contains(&hung), "{hung} looks were lost to the hang");
    for (device, count) in samples {
        let gaps = LOOKS_OF_A_DAY - count;
        assert!(gaps * 1_000 <= LOOKS_OF_A_DAY, "{device}: {gaps} gaps");
    }
}

/// A training run: at work but for a stall of its data now and then, and a restart between epochs
/// that frees everything for one look.
fn training(look: u64) -> Value {
    let (is_stall, is_restart) = (look.is_multiple_of(17), look % 240 == 239);
    let utilisation = if is_stall || is_restart { 0 } else { 96 };
    let used = if is_restart { 0 } else { 61_000 };
    let processes = if is_restart { json!([]) } else { json!([{ "pid": 4_711 }]) };
    let change = json!({
        "utilisation": utilisation, "compute": processes,
        "memory": { "total": 81_920, "reserved": 873, "used": used },
    });
    machine(&[with(idle_gpu(FIRST), &change)])
}

#[test]
fn a_dip_in_a_training_run_makes_no_offer_and_its_end_makes_one() {
    let driver = FakeDriver::new(&training(0));
    let mut probe = driver.probe();
    let device = device_id(FIRST).unwrap();
    let mut watch = Watch::new(IdleRule::default(), [device]);
    let nobody = Guests { lent: &|_| false, ours: &|_| false };
    let end = LOOKS_OF_A_DAY / 2;
    let mut idle_at = Vec::new();
    for look in 0..end + 60 {
        let idle = machine(&[idle_gpu(FIRST)]);
        driver.set(&if look < end { training(look) } else { idle });
        let seen = watch.on_samples(at(look), &probe.sample(at(look)).unwrap(), &nobody);
        if seen.contains(&Observation::Idle(device)) {
            idle_at.push(look);
        }
    }
    // Ten minutes of quiet are twenty looks after the first, which was the run's last restart.
    assert_eq!(idle_at, [end + 19]);
}

//! The probe on a driver's library: the real wrapper and the real loader, on a fake library.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sublet_agent::idle::{IdleRule, Look, Missing, look};
use sublet_agent::probe::nvml::{Link, NvmlProbe, Round, device_id, model};
use sublet_agent::probe::{
    Cause, Ecc, Error, Health, Layout, Percent, Probe, ProcessId, Rows, Sample, Unread,
};
use sublet_protocol::ids::DeviceId;
use sublet_protocol::units::{MiB, Millis};

use crate::fake::{FIRST, FakeDriver, SECOND, THIRD, idle_gpu, machine, with, without};

fn id(uuid: &str) -> DeviceId {
    device_id(uuid).unwrap()
}

fn round_of(gpus: &[Value]) -> Round {
    FakeDriver::new(&machine(gpus)).probe().round().unwrap()
}

/// A look as the agent takes it, with health.
fn look_with(probe: &mut NvmlProbe) -> Vec<Sample> {
    probe.sample(Millis::ZERO).unwrap()
}

/// What a sample of a device says that is well.
fn look_at(sample: &Sample) -> Look {
    look(&IdleRule::default(), &Sample { health: Health::Healthy, ..sample.clone() })
}

fn ids(samples: &[Sample]) -> Vec<DeviceId> {
    samples.iter().map(|sample| sample.device).collect()
}

#[test]
fn an_idle_gpu_is_read_whole_and_quiet() {
    let round = round_of(&[idle_gpu(FIRST)]);
    assert_eq!(round.driver.as_deref(), Some("550.127.05"));
    let sample = &round.samples[0];
    assert_eq!((sample.device, sample.model.as_str()), (id(FIRST), "a100-sxm4-80gb"));
    assert_eq!(sample.layout, Layout::Whole);
    assert_eq!(sample.memory_total, Some(MiB::new(81_920)));
    assert_eq!(sample.memory_used, Some(MiB::new(873)));
    assert_eq!(sample.memory_driver, Some(MiB::new(873)));
    assert_eq!(sample.utilisation, Some(Percent::ZERO));
    assert_eq!(sample.processes, Some(vec![]));
    let vitals = &sample.vitals;
    assert_eq!(vitals.memory_free, Some(81_047));
    assert_eq!((vitals.power, vitals.energy), (Some(61_250), Some(8_400_000)));
    assert_eq!((vitals.temperature, vitals.slowdown), (Some(31), Some(89)));
    assert_eq!(vitals.ecc, Some(Ecc { corrected: 2, uncorrected: 0 }));
    assert_eq!((vitals.rows, vitals.retirement_pending), (Some(Rows::default()), Some(false)));
    assert!(vitals.hears_xids && vitals.xids.is_empty() && vitals.unread.is_empty());
    assert_eq!(look_at(sample), Look::Quiet);
}

#[test]
fn use_shows_in_every_reading() {
    let change = json!({
        "utilisation": 97,
        "memory": { "total": 81_920, "reserved": 873, "used": 61_003 },
        "compute": [{ "pid": 4711, "memory": 60_000 }],
        "graphics": [{ "pid": 812 }],
    });
    let sample = &round_of(&[with(idle_gpu(FIRST), &change)]).samples[0];
    assert_eq!(sample.utilisation, Some(Percent::saturating(97)));
    assert_eq!(sample.memory_used, Some(MiB::new(61_876)));
    assert_eq!(sample.processes, Some(vec![ProcessId(812), ProcessId(4711)]));
    assert_eq!(look_at(sample), Look::Busy);
}

#[test]
fn devices_are_known_by_uuid_when_indices_change() {
    let driver = FakeDriver::new(&machine(&[idle_gpu(FIRST), idle_gpu(SECOND)]));
    let mut probe = driver.probe();
    assert_eq!(ids(&probe.round().unwrap().samples), [id(FIRST), id(SECOND)]);
    let busy = with(idle_gpu(FIRST), &json!({ "utilisation": 80 }));
    driver.set(&machine(&[idle_gpu(SECOND), busy]));
    let samples = probe.round().unwrap().samples;
    let of = |uuid| samples.iter().find(|sample| sample.device == id(uuid)).unwrap();
    assert_eq!(of(FIRST).utilisation, Some(Percent::saturating(80)));
    assert_eq!(of(SECOND).utilisation, Some(Percent::ZERO));
}

/// The readings a verdict needs, with what is missing without each.
const NEEDED: [(&str, Missing); 4] = [
    ("memory", Missing::Memory),
    ("utilisation", Missing::Utilisation),
    ("compute", Missing::Processes),
    ("graphics", Missing::Processes),
];

#[test]
fn what_a_device_does_not_support_is_unknown_never_zero_in_every_combination() {
    let optional = ["energy", "ecc", "rows", "retirement_pending", "temperature", "power"];
    let names: Vec<&str> = NEEDED.iter().map(|(name, _)| *name).chain(optional).collect();
    let driver = FakeDriver::new(&machine(&[idle_gpu(FIRST)]));
    let mut probe = driver.probe();
    for chosen in 0_u32..1 << names.len() {
        let is_gone = |name: &str| {
            names.iter().position(|one| *one == name).is_some_and(|at| chosen & (1 << at) != 0)
        };
        let gone = names.iter().filter(|name| is_gone(name));
        driver.set(&machine(&[gone.fold(idle_gpu(FIRST), |gpu, name| without(gpu, name))]));
        let sample = probe.round().unwrap().samples.remove(0);
        let vitals = &sample.vitals;
        assert_eq!(sample.memory_used.is_none(), is_gone("memory"));
        assert_eq!(sample.memory_total.is_none(), is_gone("memory"));
        assert_eq!(sample.utilisation.is_none(), is_gone("utilisation"));
        assert_eq!(sample.processes.is_none(), is_gone("compute") || is_gone("graphics"));
        assert_eq!(vitals.energy.is_none(), is_gone("energy"));
        assert_eq!(vitals.ecc.is_none(), is_gone("ecc"));
        assert_eq!(vitals.rows.is_none(), is_gone("rows"));
        assert_eq!(vitals.retirement_pending.is_none(), is_gone("retirement_pending"));
        assert_eq!(vitals.temperature.is_none(), is_gone("temperature"));
        assert_eq!(vitals.power.is_none(), is_gone("power"));
        assert_eq!(vitals.unread, [], "not supported is no fault");
        let is_blind = NEEDED.iter().any(|(name, _)| is_gone(name));
        let seen = look_at(&sample);
        assert_eq!(matches!(seen, Look::Unknown(_)), is_blind, "{seen:?} without {chosen:b}");
        assert!(is_blind || seen == Look::Quiet, "{seen:?}");
    }
}

#[test]
fn each_error_of_a_needed_call_makes_a_device_unknown_with_its_cause() {
    let calls = [
        ("nvmlDeviceGetMemoryInfo_v2", "memory"),
        ("nvmlDeviceGetUtilizationRates", "utilisation"),
        ("nvmlDeviceGetComputeRunningProcesses_v3", "compute processes"),
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", "graphics processes"),
        ("nvmlDeviceGetMigMode", "MIG mode"),
    ];
    // Not supported, no permission, function not found, unknown, and a code of some later driver.
    let codes = [
        (4, Some(Cause::Permission)),
        (13, None),
        (999, Some(Cause::Device)),
        (10, Some(Cause::Device)),
        (777, Some(Cause::Device)),
    ];
    let driver = FakeDriver::new(&machine(&[]));
    let mut probe = driver.probe();
    for (symbol, reading) in calls {
        for (code, cause) in codes {
            let change = json!({ "errors": { symbol: code } });
            driver.set(&machine(&[with(idle_gpu(FIRST), &change), idle_gpu(SECOND)]));
            let samples = probe.round().unwrap().samples;
            assert_eq!(samples.len(), 2, "{symbol} {code}");
            let seen = look_at(&samples[0]);
            assert!(matches!(seen, Look::Unknown(_)), "{seen:?} with {symbol} {code}");
            let expected: Vec<Unread> =
                cause.into_iter().map(|cause| Unread { reading, cause }).collect();
            assert_eq!(samples[0].vitals.unread, expected, "{symbol} {code}");
            assert_eq!(look_at(&samples[1]), Look::Quiet, "its neighbour is read all the same");
        }
    }
}

#[test]
fn numbers_out_of_their_range_are_unknown() {
    let change = json!({
        "utilisation": 4_294_967_294_u32,
        "temperature": 4_294_967_295_u32,
        "energy": 9_223_372_036_854_775_794_u64,
        "memory": { "total": 1_000, "reserved": 900, "used": 900 },
    });
    let sample = &round_of(&[with(idle_gpu(FIRST), &change)]).samples[0];
    assert_eq!((sample.utilisation, sample.memory_used), (None, None));
    assert_eq!((sample.vitals.temperature, sample.vitals.energy), (None, None));
}

#[test]
fn a_lost_gpu_is_absent_and_its_neighbours_stay() {
    let driver = FakeDriver::new(&machine(&[idle_gpu(FIRST), idle_gpu(SECOND), idle_gpu(THIRD)]));
    let mut probe = driver.probe();
    assert_eq!(probe.round().unwrap().samples.len(), 3);
    let lost = with(idle_gpu(SECOND), &json!({ "lost": true }));
    driver.set(&machine(&[idle_gpu(FIRST), lost, idle_gpu(THIRD)]));
    let round = probe.round().unwrap();
    assert_eq!((ids(&round.samples), round.silent), (vec![id(FIRST), id(THIRD)], 1));
    // It answers its name, and every other call is an error: still lost.
    let error = json!({ "errors": { "nvmlDeviceGetMemoryInfo_v2": 15 } });
    driver.set(&machine(&[idle_gpu(FIRST), with(idle_gpu(SECOND), &error), idle_gpu(THIRD)]));
    assert_eq!(ids(&probe.round().unwrap().samples), [id(FIRST), id(THIRD)]);
    driver.set(&machine(&[idle_gpu(FIRST), idle_gpu(SECOND), idle_gpu(THIRD)]));
    let round = probe.round().unwrap();
    assert_eq!((round.samples.len(), round.silent), (3, 0));
}

fn instance(number: u32, used: u32, activity: Option<f64>) -> Value {
    json!({
        "uuid": format!("MIG-3c9d1e70-5b2a-4f6c-8d11-9a0b7c6d5e{number:02}"),
        "gi": number, "profile": 14, "start": number * 2 - 2, "size": 2,
        "memory": { "total": 19_968, "used": used }, "activity": activity,
    })
}

#[test]
fn a_gpu_in_mig_mode_is_never_whole_and_its_instances_show_their_own_use() {
    let change = json!({
        "mig_enabled": true,
        "instances": [
            instance(1, 12, Some(0.0)), instance(2, 17_418, Some(91.2)), instance(3, 12, Some(0.2)),
        ],
        "compute": [{ "pid": 40_211, "gi": 2 }],
    });
    let change = with(change, &json!({ "errors": { "nvmlDeviceGetUtilizationRates": 3 } }));
    let driver = FakeDriver::new(&machine(&[with(idle_gpu(FIRST), &change)]));
    let mut probe = driver.probe();
    let first = probe.round().unwrap().samples;
    assert_eq!(first.len(), 4);
    assert_eq!((first[0].layout, first[0].utilisation), (Layout::Divided, None));
    assert_eq!(look_at(&first[0]), Look::Divided);
    let unknown = first[1..].iter().all(|one| one.utilisation.is_none());
    assert!(unknown, "a share of time needs two looks");
    let second = probe.round().unwrap().samples;
    let utilisation: Vec<_> =
        second[1..].iter().map(|one| one.utilisation.unwrap().get()).collect();
    assert_eq!(utilisation, [0, 92, 1]);
    let Layout::Instance(place) = second[2].layout else { panic!("{:?}", second[2]) };
    assert_eq!((place.gpu, place.gpu_instance, place.placement), (id(FIRST), 2, Some((14, 2))));
    assert_eq!(second[2].processes, Some(vec![ProcessId(40_211)]));
    assert_eq!(second[1].memory_total, Some(MiB::new(19_968)));
    let looks: Vec<Look> = second[1..].iter().map(look_at).collect();
    assert_eq!(looks, [Look::Quiet, Look::Busy, Look::Quiet]);
}

#[test]
fn an_instance_of_a_gpu_that_does_not_measure_it_is_unknown_and_never_idle() {
    let change = json!({ "mig_enabled": true, "instances": [instance(1, 12, None)] });
    let driver = FakeDriver::new(&machine(&[with(idle_gpu(FIRST), &change)]));
    let mut probe = driver.probe();
    for _ in 0..3 {
        let samples = probe.round().unwrap().samples;
        assert_eq!(samples[1].utilisation, None);
        assert_eq!(look_at(&samples[1]), Look::Unknown(Missing::Utilisation));
    }
}

#[test]
fn the_host_of_virtual_gpus_is_divided_and_a_guest_is_whole() {
    let look_in = |mode: u32| {
        let gpu = with(idle_gpu(FIRST), &json!({ "virtualisation": mode }));
        look_at(&round_of(&[gpu]).samples[0])
    };
    assert_eq!(
        [0, 1, 2, 3, 4].map(look_in),
        [Look::Quiet, Look::Quiet, Look::Quiet, Look::Divided, Look::Divided,]
    );
}

#[test]
fn xids_are_heard_once_by_the_gpu_they_are_of() {
    let xid = |number: u64, code: u64| json!({ "number": number, "code": code });
    let hurt = with(idle_gpu(SECOND), &json!({ "xids": [xid(1, 31), xid(2, 79)] }));
    // A GPU that cannot register must not take the others' events with it.
    let deaf = with(idle_gpu(FIRST), &json!({ "errors": { "nvmlDeviceRegisterEvents": 3 } }));
    let driver = FakeDriver::new(&machine(&[deaf.clone(), hurt.clone()]));
    let mut probe = driver.probe();
    let samples = probe.round().unwrap().samples;
    let heard: Vec<_> = samples.iter().map(|one| one.vitals.hears_xids).collect();
    assert_eq!(heard, [false, true]);
    assert_eq!(samples[1].vitals.xids, [31, 79]);
    assert!(probe.round().unwrap().samples[1].vitals.xids.is_empty());
    driver.set(&machine(&[deaf, with(hurt, &json!({ "xids": [xid(2, 79), xid(3, 48)] }))]));
    assert_eq!(probe.round().unwrap().samples[1].vitals.xids, [48]);
}

#[test]
fn links_are_told_by_pairs() {
    let linked = |uuid, to: &[&str]| with(idle_gpu(uuid), &json!({ "links": to }));
    let round = round_of(&[
        linked(FIRST, &[SECOND]),
        linked(SECOND, &[FIRST]),
        without(idle_gpu(THIRD), "links"),
    ]);
    assert_eq!(round.links, [Link(id(FIRST).min(id(SECOND)), id(FIRST).max(id(SECOND)))]);
}

#[test]
fn a_hanging_driver_is_waited_for_once_and_is_back_when_the_call_returns() {
    let driver = FakeDriver::new(&machine(&[idle_gpu(FIRST)]));
    let mut config = driver.config();
    config.patience = Duration::from_millis(300);
    let mut probe = NvmlProbe::new(config);
    assert_eq!(probe.sample(Millis::ZERO).unwrap().len(), 1);
    let hang = json!({ "symbol": "nvmlDeviceGetMemoryInfo_v2" });
    driver.set(&with(machine(&[idle_gpu(FIRST)]), &json!({ "hang": hang })));
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let begin = Instant::now();
    assert!(matches!(probe.sample(Millis::ZERO), Err(Error::Hung { .. })));
    let (waited, running) = (begin.elapsed(), threads());
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    for _ in 0..50 {
        let begin = Instant::now();
        assert!(matches!(probe.sample(Millis::ZERO), Err(Error::Hung { .. })));
        assert!(begin.elapsed() < Duration::from_millis(200), "it is not waited for again");
    }
    assert!(threads() <= running + 1, "no call is begun beside one that hangs");
    driver.set(&machine(&[idle_gpu(SECOND)]));
    let deadline = Instant::now() + Duration::from_secs(20);
    let samples = loop {
        match probe.sample(Millis::ZERO) {
            Ok(samples) => break samples,
            Err(Error::Hung { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(ids(&samples), [id(SECOND)], "what the hung round saw is not believed");
}

#[test]
fn a_driver_loaded_anew_is_read_again_at_once() {
    let driver = FakeDriver::new(&machine(&[idle_gpu(FIRST)]));
    let mut probe = driver.probe();
    assert_eq!(probe.round().unwrap().samples.len(), 1);
    let change = json!({ "load": 1, "driver": "560.35.03" });
    driver.set(&with(machine(&[idle_gpu(FIRST)]), &change));
    let round = probe.round().unwrap();
    assert_eq!((round.samples.len(), round.driver.as_deref()), (1, Some("560.35.03")));
}

#[test]
fn a_driver_that_is_not_there_is_named_and_found_when_it_comes_back() {
    let driver = FakeDriver::new(&machine(&[idle_gpu(FIRST)]));
    let mut probe = driver.probe();
    let absent = [(9, Error::NoDriver), (18, Error::NoDriver), (4, Error::NoPermission)];
    for (code, expected) in absent {
        let errors = json!({ "load": code, "errors": { "nvmlInit_v2": code } });
        driver.set(&with(machine(&[]), &errors));
        assert_eq!(probe.round(), Err(expected), "{code}");
        driver.set(&with(machine(&[idle_gpu(FIRST)]), &json!({ "load": code })));
        assert_eq!(probe.round().unwrap().samples.len(), 1, "after {code}");
    }
    let mut nowhere = driver.config();
    nowhere.library = Some("/nonexistent/libnvidia-ml.so.1".into());
    assert_eq!(NvmlProbe::new(nowhere).round(), Err(Error::NoLibrary));
}

#[test]
fn a_library_that_cannot_be_opened_is_tried_again_after_a_pause_only() {
    let broken = with(machine(&[]), &json!({ "errors": { "nvmlInit_v2": 9 } }));
    let driver = FakeDriver::new(&broken);
    let mut config = driver.config();
    config.reopen_pause = Duration::from_millis(700);
    let mut probe = NvmlProbe::new(config);
    let begin = Instant::now();
    assert_eq!(probe.round(), Err(Error::NoDriver));
    driver.set(&machine(&[idle_gpu(FIRST)]));
    loop {
        match probe.round() {
            Ok(_) => break,
            Err(error) => assert_eq!(error, Error::NoDriver),
        }
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begin.elapsed() >= Duration::from_millis(700), "{:?}", begin.elapsed());
}

#[test]
fn a_scenario_may_go_on_by_itself() {
    let driver = FakeDriver::new(&machine(&[]));
    let busy = with(idle_gpu(FIRST), &json!({ "utilisation": 50 }));
    driver.write(&json!({
        "now": machine(&[idle_gpu(FIRST)]),
        "later": [{ "after_ms": 400, "scenario": machine(&[busy]) }],
    }));
    let mut probe = driver.probe();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut use_of = || probe.round().unwrap().samples[0].utilisation.unwrap().get();
    assert_eq!(use_of(), 0);
    while use_of() != 50 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn models_are_named_without_their_maker() {
    let rows = [
        ("NVIDIA A100-SXM4-80GB", Some("a100-sxm4-80gb")),
        ("NVIDIA H100 80GB HBM3", Some("h100-80gb-hbm3")),
        ("Tesla T4", Some("tesla-t4")),
        ("NVIDIA NVIDIA L40S", Some("l40s")),
        ("", None),
        ("NVIDIA", None),
    ];
    for (name, expected) in rows {
        assert_eq!(model(name).map(|model| model.to_string()).as_deref(), expected, "{name:?}");
    }
}

#[test]
fn every_form_of_the_drivers_uuids_is_read_and_instances_differ() {
    let old = |tail: &str| format!("MIG-{FIRST}{tail}");
    let known: Vec<_> = [FIRST.to_owned(), old("/1/0"), old("/2/0"), old("/1/1")]
        .iter()
        .map(|uuid| device_id(uuid).unwrap())
        .collect();
    let distinct: std::collections::BTreeSet<_> = known.iter().collect();
    assert_eq!(distinct.len(), 4);
    assert_eq!(
        device_id("MIG-3c9d1e70-5b2a-4f6c-8d11-9a0b7c6d5e01"),
        device_id("GPU-3c9d1e70-5b2a-4f6c-8d11-9a0b7c6d5e01")
    );
    for bad in ["", "GPU-1", "0", "MIG-", &old("/1"), &old("/1/0/0"), &old("/x/0")] {
        assert_eq!(device_id(bad), None, "{bad:?}");
    }
}

#[test]
fn a_sick_gpu_is_quarantined_at_the_look_that_shows_it_and_its_instances_with_it() {
    let sick = with(idle_gpu(FIRST), &json!({ "xids": [{ "number": 1, "code": 95 }] }));
    let divided = json!({ "mig_enabled": true, "instances": [instance(1, 12, Some(0.0))] });
    let driver = FakeDriver::new(&machine(&[idle_gpu(FIRST), idle_gpu(SECOND)]));
    let mut probe = driver.probe();
    let healths = |probe: &mut NvmlProbe| -> Vec<Health> {
        look_with(probe).into_iter().map(|sample| sample.health).collect()
    };
    assert_eq!(healths(&mut probe), [Health::Healthy; 2]);
    driver.set(&machine(&[with(sick.clone(), &divided), idle_gpu(SECOND)]));
    assert_eq!(healths(&mut probe), [Health::Unhealthy, Health::Unhealthy, Health::Healthy]);
    assert!(probe.quarantine(id(FIRST)).unwrap().awaits_reset);
    for _ in 0..5 {
        assert_eq!(healths(&mut probe)[0], Health::Unhealthy);
    }
    driver.set(&machine(&[with(sick, &json!({ "energy": 17 })), idle_gpu(SECOND)]));
    let after: Vec<Health> = (0..3).map(|_| healths(&mut probe)[0]).collect();
    assert_eq!(after, [Health::Degraded, Health::Degraded, Health::Healthy]);
}

#[test]
fn what_is_sick_is_known_over_a_restart_and_a_spoilt_file_is_refused() {
    let sick = with(idle_gpu(FIRST), &json!({ "xids": [{ "number": 1, "code": 79 }] }));
    let driver = FakeDriver::new(&machine(&[sick]));
    let file = driver.library().with_file_name("health.json");
    let open = || driver.probe().keeping_health_in(file.clone());
    assert_eq!(look_with(&mut open().unwrap())[0].health, Health::Unhealthy);
    // The event was heard once and does not come again.
    assert_eq!(look_with(&mut open().unwrap())[0].health, Health::Unhealthy);
    std::fs::write(&file, b"{\"devices\":").unwrap();
    assert!(open().is_err());
}

#[test]
fn a_gpu_that_fails_to_answer_is_degraded_and_one_that_may_not_be_read_is_not() {
    let health_with = |code: u32| {
        let change = json!({ "errors": { "nvmlDeviceGetPowerUsage": code } });
        let driver = FakeDriver::new(&machine(&[with(idle_gpu(FIRST), &change)]));
        look_with(&mut driver.probe())[0].health
    };
    assert_eq!([3, 4, 999].map(health_with), [Health::Healthy, Health::Healthy, Health::Degraded]);
}

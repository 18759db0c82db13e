//! The exported symbols. Each checks its own errors and hangs first, then answers from the scenario.
#![allow(unsafe_code, reason = "C symbols that write through their callers' pointers")]
#![allow(non_snake_case, reason = "the names of the C interface")]
#![allow(unreachable_pub, reason = "exported to C, not to Rust")]

use std::collections::BTreeSet;
use std::ffi::{c_char, c_uint, c_ulonglong};
use std::ptr::without_provenance_mut;

use nvml_wrapper_sys::bindings::*;

use crate::scenario::{Gpu, Instance, Memory, Process};
use crate::state::{State, Thing, hang, instance, with};

const OK: nvmlReturn_t = nvmlReturn_enum_NVML_SUCCESS;
const INVALID: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
const NOT_FOUND: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
const LOST: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST;
const UNSUPPORTED: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
const TOO_SMALL: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;
const MIB: u64 = 1 << 20;

type Answer<T> = Result<T, nvmlReturn_t>;

fn code(answer: Answer<()>) -> nvmlReturn_t {
    answer.err().unwrap_or(OK)
}

/// Writes a value for the caller.
fn put<T>(to: *mut T, value: T) -> Answer<()> {
    if to.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the C interface has the caller pass a place for a `T`, and it is not null.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads what the caller has put there.
fn take<T: Copy>(from: *const T) -> Answer<T> {
    if from.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the C interface has the caller pass a `T`, and it is not null.
    Ok(unsafe { from.read() })
}

/// Writes text and its end into a buffer of `length` bytes.
fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Answer<()> {
    if text.len() >= length as usize {
        return Err(TOO_SMALL);
    }
    for (place, byte) in text.bytes().chain([0]).enumerate() {
        put(to.wrapping_add(place), byte as c_char)?;
    }
    Ok(())
}

/// A call that is about no device.
fn on_machine(symbol: &str, answer: impl FnOnce(&mut State) -> Answer<()>) -> nvmlReturn_t {
    hang(symbol);
    with(|state| match state.refuses(symbol) {
        Some(code) => code,
        None => code(answer(state)),
    })
}

/// A call on a handle: what its GPU and the instance on it, if it is one, answer.
fn on_device(
    symbol: &str,
    device: nvmlDevice_t,
    answer: impl FnOnce(&Gpu, Option<&Instance>) -> Answer<()>,
) -> nvmlReturn_t {
    on_machine(symbol, |state| {
        let thing = state.thing(device.addr()).ok_or(INVALID)?;
        let gpu = state.gpu(thing).ok_or(LOST)?;
        check(symbol, gpu)?;
        let instance = match thing {
            Thing::Gpu { .. } => None,
            Thing::Mig { .. } | Thing::GpuInstance { .. } => {
                Some(instance(gpu, thing).ok_or(NOT_FOUND)?)
            }
        };
        answer(gpu, instance)
    })
}

fn check(symbol: &str, gpu: &Gpu) -> Answer<()> {
    match gpu.errors.get(symbol) {
        _ if gpu.lost => Err(LOST),
        Some(code) => Err(*code),
        None => Ok(()),
    }
}

/// A reading of a whole GPU, which its instances do not have.
fn of_gpu<T>(instance: Option<&Instance>, reading: Option<T>) -> Answer<T> {
    match instance {
        Some(_) => Err(UNSUPPORTED),
        None => reading.ok_or(UNSUPPORTED),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    hang("nvmlInit_v2");
    with(|state| match state.now().errors.get("nvmlInit_v2") {
        Some(code) => *code,
        None => {
            state.open();
            OK
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    with(State::close);
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, length: c_uint) -> nvmlReturn_t {
    on_machine("nvmlSystemGetDriverVersion", |state| {
        put_text(to, length, state.now().driver.as_deref().ok_or(UNSUPPORTED)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> nvmlReturn_t {
    on_machine("nvmlDeviceGetCount_v2", |state| put(to, state.now().gpus.len() as c_uint))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    to: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    on_machine("nvmlDeviceGetHandleByIndex_v2", |state| {
        let gpu = state.now().gpus.get(index as usize).ok_or(INVALID)?;
        check("nvmlDeviceGetHandleByIndex_v2", gpu)?;
        let uuid = gpu.uuid.clone();
        put(to, without_provenance_mut(state.number(Thing::Gpu { uuid })))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    to: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetUUID", device, |gpu, instance| {
        put_text(to, length, instance.map_or(&gpu.uuid, |one| &one.uuid))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    to: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetName", device, |gpu, _| {
        put_text(to, length, gpu.name.as_deref().ok_or(UNSUPPORTED)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    to: *mut nvmlPciInfo_t,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetPciInfo_v3", device, |gpu, instance| {
        let text = of_gpu(instance, gpu.pci.as_deref())?;
        let mut numbers = text.split([':', '.']).map(|part| c_uint::from_str_radix(part, 16));
        let mut next = || numbers.next().and_then(Result::ok).ok_or(INVALID);
        let (domain, bus, device) = (next()?, next()?, next()?);
        let mut info = nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain,
            bus,
            device,
            pciDeviceId: 0x20b2_10de,
            pciSubSystemId: 0,
            busId: [0; 32],
        };
        for (to, byte) in info.busId.iter_mut().zip(text.bytes().take(31)) {
            *to = byte as c_char;
        }
        put(to, info)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    to: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetMemoryInfo_v2", device, |gpu, instance| {
        let memory = instance.map_or(gpu.memory, |one| one.memory).ok_or(UNSUPPORTED)?;
        let Memory { total, reserved, used } = memory;
        let free = total.saturating_sub(reserved).saturating_sub(used);
        let version = take(to)?.version;
        put(
            to,
            nvmlMemory_v2_t {
                version,
                total: total * MIB,
                reserved: reserved * MIB,
                free: free * MIB,
                used: used * MIB,
            },
        )
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    to: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetUtilizationRates", device, |gpu, instance| {
        if gpu.mig_enabled {
            return Err(UNSUPPORTED);
        }
        let gpu = of_gpu(instance, gpu.utilisation)?;
        put(to, nvmlUtilization_t { gpu, memory: 0 })
    })
}

fn processes(
    symbol: &str,
    device: nvmlDevice_t,
    of: impl FnOnce(&Gpu) -> Option<&[Process]>,
    (count, to): (*mut c_uint, *mut nvmlProcessInfo_t),
) -> nvmlReturn_t {
    on_device(symbol, device, |gpu, instance| {
        let all = of(gpu).ok_or(UNSUPPORTED)?;
        let all: Vec<&Process> =
            all.iter().filter(|one| instance.is_none_or(|i| one.gi == Some(i.gi))).collect();
        let room = take(count)?;
        put(count, all.len() as c_uint)?;
        if all.len() > room as usize {
            return Err(TOO_SMALL);
        }
        for (place, process) in all.into_iter().enumerate() {
            let info = nvmlProcessInfo_t {
                pid: process.pid,
                usedGpuMemory: process.memory * MIB,
                gpuInstanceId: process.gi.unwrap_or(c_uint::MAX),
                computeInstanceId: process.gi.map_or(c_uint::MAX, |_| 0),
            };
            put(to.wrapping_add(place), info)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    to: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let symbol = "nvmlDeviceGetComputeRunningProcesses_v3";
    processes(symbol, device, |gpu| gpu.compute.as_deref(), (count, to))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    to: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let symbol = "nvmlDeviceGetGraphicsRunningProcesses_v3";
    processes(symbol, device, |gpu| gpu.graphics.as_deref(), (count, to))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetMigMode", device, |gpu, instance| {
        of_gpu(instance, gpu.instances.as_ref())?;
        put(current, c_uint::from(gpu.mig_enabled))?;
        put(pending, c_uint::from(gpu.mig_enabled))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMaxMigDeviceCount(
    device: nvmlDevice_t,
    to: *mut c_uint,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetMaxMigDeviceCount", device, |gpu, instance| {
        of_gpu(instance, gpu.instances.as_ref())?;
        put(to, 7)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    to: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    let symbol = "nvmlDeviceGetMigDeviceHandleByIndex";
    on_machine(symbol, |state| {
        let thing = state.thing(device.addr()).ok_or(INVALID)?;
        let gpu = state.gpu(thing).ok_or(LOST)?;
        check(symbol, gpu)?;
        let one = gpu.instances.iter().flatten().nth(index as usize).ok_or(NOT_FOUND)?;
        let thing = Thing::Mig { gpu: gpu.uuid.clone(), uuid: one.uuid.clone() };
        put(to, without_provenance_mut(state.number(thing)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceId(
    device: nvmlDevice_t,
    to: *mut c_uint,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetGpuInstanceId", device, |_, instance| {
        put(to, instance.ok_or(UNSUPPORTED)?.gi)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceById(
    device: nvmlDevice_t,
    gi: c_uint,
    to: *mut nvmlGpuInstance_t,
) -> nvmlReturn_t {
    let symbol = "nvmlDeviceGetGpuInstanceById";
    on_machine(symbol, |state| {
        let thing = state.thing(device.addr()).ok_or(INVALID)?;
        let gpu = state.gpu(thing).ok_or(LOST)?;
        check(symbol, gpu)?;
        gpu.instances.iter().flatten().find(|one| one.gi == gi).ok_or(NOT_FOUND)?;
        let thing = Thing::GpuInstance { gpu: gpu.uuid.clone(), gi };
        put(to, without_provenance_mut(state.number(thing)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetInfo(
    instance: nvmlGpuInstance_t,
    to: *mut nvmlGpuInstanceInfo_t,
) -> nvmlReturn_t {
    let device = without_provenance_mut(instance.addr());
    on_device("nvmlGpuInstanceGetInfo", device, |_, instance| {
        let one = instance.ok_or(INVALID)?;
        let placement = nvmlGpuInstancePlacement_t { start: one.start, size: one.size };
        put(to, nvmlGpuInstanceInfo_t { device, id: one.gi, profileId: one.profile, placement })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetVirtualizationMode(
    device: nvmlDevice_t,
    to: *mut c_uint,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetVirtualizationMode", device, |gpu, instance| {
        put(to, of_gpu(instance, gpu.virtualisation)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    _sensor: c_uint,
    to: *mut c_uint,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetTemperature", device, |gpu, instance| {
        put(to, of_gpu(instance, gpu.temperature)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperatureThreshold(
    device: nvmlDevice_t,
    _kind: c_uint,
    to: *mut c_uint,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetTemperatureThreshold", device, |gpu, instance| {
        put(to, of_gpu(instance, gpu.slowdown)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPowerUsage(device: nvmlDevice_t, to: *mut c_uint) -> nvmlReturn_t {
    on_device("nvmlDeviceGetPowerUsage", device, |gpu, instance| {
        put(to, of_gpu(instance, gpu.power)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: nvmlDevice_t,
    to: *mut c_ulonglong,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetTotalEnergyConsumption", device, |gpu, instance| {
        put(to, of_gpu(instance, gpu.energy)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    kind: nvmlMemoryErrorType_t,
    _counter: c_uint,
    to: *mut c_ulonglong,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetTotalEccErrors", device, |gpu, instance| {
        let ecc = of_gpu(instance, gpu.ecc)?;
        let is_corrected = kind == nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED;
        put(to, if is_corrected { ecc.corrected } else { ecc.uncorrected })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    correctable: *mut c_uint,
    uncorrectable: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetRemappedRows", device, |gpu, instance| {
        let rows = of_gpu(instance, gpu.rows)?;
        put(correctable, rows.correctable)?;
        put(uncorrectable, rows.uncorrectable)?;
        put(pending, c_uint::from(rows.pending))?;
        put(failed, c_uint::from(rows.failed))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetRetiredPagesPendingStatus(
    device: nvmlDevice_t,
    to: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    on_device("nvmlDeviceGetRetiredPagesPendingStatus", device, |gpu, instance| {
        put(to, c_uint::from(of_gpu(instance, gpu.retirement_pending)?))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    one: nvmlDevice_t,
    other: nvmlDevice_t,
    to: *mut nvmlGpuTopologyLevel_t,
) -> nvmlReturn_t {
    let level = nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM;
    on_device("nvmlDeviceGetTopologyCommonAncestor", one, |_, _| match other.is_null() {
        true => Err(INVALID),
        false => put(to, level),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetP2PStatus(
    one: nvmlDevice_t,
    other: nvmlDevice_t,
    index: nvmlGpuP2PCapsIndex_t,
    to: *mut nvmlGpuP2PStatus_t,
) -> nvmlReturn_t {
    let symbol = "nvmlDeviceGetP2PStatus";
    on_machine(symbol, |state| {
        let [one, other] = [one, other].map(|device| {
            let gpu = state.thing(device.addr()).and_then(|thing| state.gpu(thing));
            gpu.ok_or(LOST).and_then(|gpu| check(symbol, gpu).map(|()| gpu))
        });
        let links = one?.links.as_ref().ok_or(UNSUPPORTED)?;
        let is_linked = links.contains(&other?.uuid);
        let is_asked = index == nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK;
        put(
            to,
            match is_linked && is_asked {
                true => nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK,
                false => nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED,
            },
        )
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetCreate(to: *mut nvmlEventSet_t) -> nvmlReturn_t {
    on_machine("nvmlEventSetCreate", |state| {
        let number = state.fresh();
        state.sets.insert(number, BTreeSet::new());
        put(to, without_provenance_mut(number))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    _types: c_ulonglong,
    set: nvmlEventSet_t,
) -> nvmlReturn_t {
    let symbol = "nvmlDeviceRegisterEvents";
    on_machine(symbol, |state| {
        let thing = state.thing(device.addr()).ok_or(INVALID)?;
        let gpu = state.gpu(thing).ok_or(LOST)?;
        check(symbol, gpu)?;
        let uuid = gpu.uuid.clone();
        state.sets.get_mut(&set.addr()).ok_or(INVALID)?.insert(uuid);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    to: *mut nvmlEventData_t,
    _timeout: c_uint,
) -> nvmlReturn_t {
    on_machine("nvmlEventSetWait_v2", |state| {
        let wanted = state.sets.get(&set.addr()).ok_or(INVALID)?;
        let gpus = state.now().gpus.iter().filter(|gpu| wanted.contains(&gpu.uuid));
        let mut events = gpus.flat_map(|gpu| gpu.xids.iter().map(|xid| (gpu.uuid.clone(), *xid)));
        let next = events.find(|(gpu, xid)| !state.delivered.contains(&(gpu.clone(), xid.number)));
        let (uuid, xid) = next.ok_or(nvmlReturn_enum_NVML_ERROR_TIMEOUT)?;
        state.delivered.insert((uuid.clone(), xid.number));
        let device = without_provenance_mut(state.number(Thing::Gpu { uuid }));
        let event = nvmlEventData_t {
            device,
            eventType: c_ulonglong::from(nvmlEventTypeXidCriticalError),
            eventData: xid.code,
            gpuInstanceId: c_uint::MAX,
            computeInstanceId: c_uint::MAX,
        };
        put(to, event)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    with(|state| state.sets.remove(&set.addr()));
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmQueryDeviceSupport(
    device: nvmlDevice_t,
    to: *mut nvmlGpmSupport_t,
) -> nvmlReturn_t {
    on_device("nvmlGpmQueryDeviceSupport", device, |gpu, _| {
        let measures = gpu.instances.iter().flatten().any(|one| one.activity.is_some());
        let version = take(to)?.version;
        put(to, nvmlGpmSupport_t { version, isSupportedDevice: c_uint::from(measures) })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleAlloc(to: *mut nvmlGpmSample_t) -> nvmlReturn_t {
    on_machine("nvmlGpmSampleAlloc", |state| {
        let number = state.fresh();
        state.samples.insert(number, None);
        put(to, without_provenance_mut(number))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) -> nvmlReturn_t {
    with(|state| state.samples.remove(&sample.addr()));
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmMigSampleGet(
    device: nvmlDevice_t,
    gi: c_uint,
    sample: nvmlGpmSample_t,
) -> nvmlReturn_t {
    let symbol = "nvmlGpmMigSampleGet";
    on_machine(symbol, |state| {
        let thing = state.thing(device.addr()).ok_or(INVALID)?;
        let gpu = state.gpu(thing).ok_or(LOST)?;
        check(symbol, gpu)?;
        let one = gpu.instances.iter().flatten().find(|one| one.gi == gi).ok_or(NOT_FOUND)?;
        one.activity.ok_or(UNSUPPORTED)?;
        let uuid = gpu.uuid.clone();
        *state.samples.get_mut(&sample.addr()).ok_or(INVALID)? = Some((uuid, gi));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmMetricsGet(request: *mut nvmlGpmMetricsGet_t) -> nvmlReturn_t {
    on_machine("nvmlGpmMetricsGet", |state| {
        let mut asked = take(request)?;
        let of = |sample: nvmlGpmSample_t| state.samples.get(&sample.addr()).cloned().flatten();
        let (first, second) = (of(asked.sample1), of(asked.sample2));
        let (uuid, gi) = second.filter(|second| first.as_ref() == Some(second)).ok_or(INVALID)?;
        let gpu = state.now().gpus.iter().find(|gpu| gpu.uuid == uuid).ok_or(LOST)?;
        let one = gpu.instances.iter().flatten().find(|one| one.gi == gi).ok_or(NOT_FOUND)?;
        for metric in asked.metrics.iter_mut().take(asked.numMetrics as usize) {
            let is_known = [
                nvmlGpmMetricId_t_NVML_GPM_METRIC_GRAPHICS_UTIL,
                nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL,
            ]
            .contains(&metric.metricId);
            metric.nvmlReturn = match one.activity {
                Some(value) if is_known => {
                    metric.value = value;
                    OK
                }
                Some(_) | None => UNSUPPORTED,
            };
        }
        put(request, asked)
    })
}

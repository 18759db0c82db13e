//! The calls that the wrapper does not wrap.
#![allow(unsafe_code, reason = "C calls; each says why it is sound")]

use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t};

use crate::probe::Rows;

/// A symbol of the library; one that it does not have is an error like any other.
macro_rules! symbol {
    ($nvml:expr, $name:ident) => {
        $nvml.lib().$name.as_ref().map_err(|_| NvmlError::FunctionNotFound)
    };
}

fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is only passed back to the library it came from, which is borrowed for as
    // long as `device` lives.
    unsafe { device.handle() }
}

/// The rows of memory that were replaced (Ampere and later).
pub(super) fn rows(nvml: &Nvml, device: &Device<'_>) -> Result<Rows, NvmlError> {
    let call = symbol!(nvml, nvmlDeviceGetRemappedRows)?;
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    let handle = handle(device);
    // SAFETY: a valid handle, and four places that live longer than the call.
    let code =
        unsafe { call(handle, &mut correctable, &mut uncorrectable, &mut pending, &mut failed) };
    nvml_try(code)?;
    Ok(Rows { correctable, uncorrectable, is_pending: pending != 0, has_failed: failed != 0 })
}

/// The GPU instance that a MIG device is on.
pub(super) fn gpu_instance(nvml: &Nvml, device: &Device<'_>) -> Result<u32, NvmlError> {
    let call = symbol!(nvml, nvmlDeviceGetGpuInstanceId)?;
    let mut id = 0;
    let handle = handle(device);
    // SAFETY: a valid handle, and a place that lives longer than the call.
    nvml_try(unsafe { call(handle, &mut id) })?;
    Ok(id)
}

/// Profile id and first memory slice of a GPU instance. Needs the right to see instances.
pub(super) fn placement(nvml: &Nvml, gpu: &Device<'_>, id: u32) -> Result<(u32, u32), NvmlError> {
    let find = symbol!(nvml, nvmlDeviceGetGpuInstanceById)?;
    let tell = symbol!(nvml, nvmlGpuInstanceGetInfo)?;
    let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
    let handle = handle(gpu);
    // SAFETY: a valid handle, and a place that lives longer than the call.
    nvml_try(unsafe { find(handle, id, &mut instance) })?;
    let mut info = std::mem::MaybeUninit::<nvmlGpuInstanceInfo_t>::zeroed();
    // SAFETY: the instance that the library has just given; the struct is plain numbers and
    // pointers, for which zero is a value, and it lives longer than the call.
    let info = unsafe {
        nvml_try(tell(instance, info.as_mut_ptr()))?;
        info.assume_init()
    };
    Ok((info.profileId, info.placement.start))
}

//! Reads one GPU through NVML: the GPU itself, or its MIG instances if it has any.

use std::ffi::c_uint;

use memwatch_core::input::{Cores, DeviceFacts, MigFacts, Sensors};
use memwatch_core::words::GpuUuid;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::{NvmlError, nvml_try};
use nvml_wrapper::structs::device::CudaComputeCapability;

use super::processes::{self, Lists};

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// Reads the devices a GPU presents to programs. A GPU with MIG instances runs nothing itself, and
/// its process list repeats theirs.
pub(crate) fn read(gpu: &Device<'_>, nvml_index: u32, lists: Lists) -> Result<Vec<DeviceFacts>, NvmlError> {
    let parent_uuid = GpuUuid::new(&gpu.uuid()?);
    let pci_bus_id = gpu.pci_info().ok().map(|pci| pci.bus_id);
    let mut devices = Vec::new();
    for (index, instance) in instances(gpu)? {
        let mig = mig(&instance, index, parent_uuid.clone());
        devices.push(DeviceFacts { mig: Some(mig), ..facts(&instance, nvml_index, lists)? });
    }
    if devices.is_empty() {
        devices.push(facts(gpu, nvml_index, lists)?);
    }
    for device in &mut devices {
        device.pci_bus_id.clone_from(&pci_bus_id);
    }
    Ok(devices)
}

fn facts(device: &Device<'_>, nvml_index: u32, lists: Lists) -> Result<DeviceFacts, NvmlError> {
    // NOT_SUPPORTED on devices without memory of their own (GB10): absent, not 0.
    let memory = device.memory_info().ok();
    Ok(DeviceFacts {
        uuid: GpuUuid::new(&device.uuid()?),
        nvml_index,
        name: device.name().unwrap_or_default(),
        pci_bus_id: None,
        mig: None,
        total_bytes: memory.as_ref().map(|memory| memory.total),
        used_bytes: memory.as_ref().map(|memory| memory.used),
        processes: processes::read(device, lists),
        cores: cores(device),
        sensors: sensors(device),
    })
}

fn cores(device: &Device<'_>) -> Option<Cores> {
    let CudaComputeCapability { major, minor } = device.cuda_compute_capability().ok()?;
    Some(Cores { count: device.num_cores().ok()?, capability: (major, minor) })
}

fn sensors(device: &Device<'_>) -> Sensors {
    Sensors {
        utilization_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        power_milliwatts: device.power_usage().ok(),
        power_limit_milliwatts: device.enforced_power_limit().ok(),
    }
}

/// Returns the MIG instances of a GPU with their indices, which may have gaps.
fn instances<'nvml>(gpu: &Device<'nvml>) -> Result<Vec<(u32, Device<'nvml>)>, NvmlError> {
    if !gpu.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED) {
        return Ok(Vec::new());
    }
    let mut instances = Vec::new();
    for index in 0..gpu.mig_device_count()? {
        match gpu.mig_device_by_index(index) {
            Ok(instance) => instances.push((index, instance)),
            Err(NvmlError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(instances)
}

fn mig(instance: &Device<'_>, index: u32, parent_uuid: GpuUuid) -> MigFacts {
    let library = instance.nvml().lib();
    // SAFETY: the handle is only passed to the library it is from, while that is loaded.
    let handle = unsafe { instance.handle() };
    let name = instance.name().unwrap_or_default();
    MigFacts {
        parent_uuid,
        index,
        profile: name.rsplit_once(" MIG ").map(|(_, profile)| profile.to_owned()),
        gpu_instance_id: number(handle, library.nvmlDeviceGetGpuInstanceId.as_ref().ok()),
        compute_instance_id: number(handle, library.nvmlDeviceGetComputeInstanceId.as_ref().ok()),
    }
}

/// Calls a getter of a number that nvml-wrapper lacks; `None` if this NVML does not support it.
fn number<Handle>(handle: Handle, call: Option<&unsafe extern "C" fn(Handle, *mut c_uint) -> c_uint>) -> Option<u32> {
    let mut number = 0;
    // SAFETY: both are the library's own, and the number is a live local.
    nvml_try(unsafe { call?(handle, &raw mut number) }).ok()?;
    Some(number)
}

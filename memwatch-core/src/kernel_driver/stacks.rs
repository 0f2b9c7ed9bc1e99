//! Extracts the caller of the driver from native stacks at ioctls. Nothing else of the stacks is
//! kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::stack::native::{NativeFrame, NativeStack, file_name};

/// Limit of stacks per process that wait for the record that refers to them.
const WAITING: usize = 4096;
/// File name prefixes of NVIDIA's user-space driver: libcuda, and the libraries for graphics and
/// video.
const DRIVER: [&str; 2] = ["libcuda.so", "libnvidia-"];
/// File name prefixes of the libraries for graphics and video, with a common name of their purpose.
/// Their callers are not recorded.
const GRAPHICS: [(&str, &str); 4] = [
    ("libnvidia-glcore", "OpenGL or Vulkan"),
    ("libnvidia-eglcore", "OpenGL or Vulkan"),
    ("libnvidia-glsi", "OpenGL or Vulkan"),
    ("libnvcuvid", "video decoder"),
];
/// Library that only forwards calls.
const PASSES_ON: &str = "libcudart";

/// Libraries by file name prefix.
const LIBRARIES: [(&str, &str); 20] = [
    ("libnccl", "NCCL"),
    ("libcublas", "cuBLAS"),
    ("libcudnn", "cuDNN"),
    ("libc10", "PyTorch"),
    ("libtorch", "PyTorch"),
    ("xla_cuda_plugin", "JAX"),
    ("jaxlib", "JAX"),
    ("libcurand", "cuRAND"),
    ("libcufft", "cuFFT"),
    ("libcusolver", "cuSOLVER"),
    ("libcusparse", "cuSPARSE"),
    ("libnvinfer", "TensorRT"),
    ("libonnxruntime", "ONNX Runtime"),
    ("libtensorflow", "TensorFlow"),
    ("_pywrap_tensorflow", "TensorFlow"),
    ("librmm", "RMM"),
    ("libuct_cuda", "UCX"),
    ("libnvshmem", "NVSHMEM"),
    ("nvshmem", "NVSHMEM"),
    ("libnvcuvid", "video decoder"),
];
/// Modules by their directory.
const FOLDERS: [(&str, &str); 2] = [("/cupy", "CuPy"), ("/jaxlib/", "JAX")];

/// Caller of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// Driver function called, from the outermost driver frame; `None` if it has no name.
    pub function: Option<Arc<str>>,
    /// Library name, or the file name of an unknown library; `None` if the stack ends in the
    /// driver.
    pub owner: Option<Arc<str>>,
}

impl Caller {
    /// Returns the caller, if the innermost frame of the stack is in the driver.
    pub fn of(stack: &NativeStack) -> Option<Self> {
        let innermost = file_of(stack.frames.first()?);
        if let Some((_, owner)) = GRAPHICS.iter().find(|(beginning, _)| innermost.starts_with(beginning)) {
            return Some(Self { function: None, owner: Some((*owner).into()) });
        }
        let within = stack.frames.iter().take_while(|frame| is_of_driver(frame)).count();
        let outermost = stack.frames[..within].last()?;
        let mut beyond = stack.frames[within..].iter();
        let caller = beyond.find(|frame| !file_of(frame).starts_with(PASSES_ON));
        // A stack truncated within the driver does not show its outermost function.
        let function = outermost.name.clone().filter(|_| within < stack.frames.len());
        Some(Self { function, owner: caller.map(|NativeFrame { library, .. }| owner(library)) })
    }
}

impl Caller {
    /// Returns whether the caller is a library for graphics or video.
    pub(super) fn is_graphics(&self) -> bool {
        self.owner.as_deref().is_some_and(|owner| GRAPHICS.iter().any(|(_, name)| *name == owner))
    }
}

fn is_of_driver(frame: &NativeFrame) -> bool {
    DRIVER.iter().any(|beginning| file_of(frame).starts_with(beginning))
}

/// Returns the file name of a frame's library.
fn file_of(NativeFrame { library, .. }: &NativeFrame) -> &str {
    file_name(library)
}

fn owner(path: &str) -> Arc<str> {
    let file = file_name(path);
    let by_file = LIBRARIES.iter().find(|(beginning, _)| file.starts_with(beginning));
    let by_folder = || FOLDERS.iter().find(|(folder, _)| path.contains(folder));
    by_file.or_else(by_folder).map_or(file, |(_, name)| *name).into()
}

/// Callers by stack id, for one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CallerTable {
    callers: BTreeMap<u64, Caller>,
    /// Stack ids in order of arrival.
    order: VecDeque<u64>,
}

impl CallerTable {
    pub(super) fn learn(&mut self, id: u64, caller: Caller) {
        if self.callers.insert(id, caller).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > WAITING
            && let Some(oldest) = self.order.pop_front()
        {
            self.callers.remove(&oldest);
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<&Caller> {
        self.callers.get(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::native::{NativeEnd, NativeRole};

    fn frame((library, name): &(&str, Option<&str>)) -> NativeFrame {
        let name: Option<Arc<str>> = name.map(Into::into);
        NativeFrame { function: name.clone(), name, library: (*library).into(), address: 1, role: NativeRole::Code }
    }

    fn caller(frames: &[(&str, Option<&str>)]) -> Option<Caller> {
        Caller::of(&NativeStack { frames: frames.iter().map(frame).collect(), end: NativeEnd::Complete })
    }

    #[test]
    fn caller_is_the_first_library_below_the_driver_skipping_wrappers() {
        let cublas = caller(&[
            ("/usr/lib/libcuda.so.1", None),
            ("/usr/lib/libcuda.so.1", Some("cuMemAlloc_v2")),
            ("/opt/libcudart.so.12", Some("cudaMalloc")),
            ("/opt/libcublas.so.12", None),
            ("/opt/libtorch_cuda.so", None),
        ]);
        let named = |function: &str, owner: &str| Caller { function: Some(function.into()), owner: Some(owner.into()) };
        assert_eq!(cublas, Some(named("cuMemAlloc_v2", "cuBLAS")));
        let own = caller(&[("/usr/lib/libcuda.so.1", Some("cuCtxCreate_v2")), ("/home/me/train", Some("main"))]);
        assert_eq!(own, Some(named("cuCtxCreate_v2", "train")));
        let cupy =
            caller(&[("libcuda.so.1", Some("cuMemAlloc_v2")), ("/site-packages/cupy_backends/runtime.so", None)]);
        assert_eq!(cupy, Some(named("cuMemAlloc_v2", "CuPy")));
    }

    #[test]
    fn libraries_of_graphics_and_video_are_named_themselves() {
        let gl = caller(&[
            ("/usr/lib/libnvidia-glcore.so.580.1", None),
            ("/usr/lib/libGLX_nvidia.so.0", Some("glTexImage2D")),
        ]);
        let gl = gl.expect("a caller");
        assert_eq!((gl.owner.as_deref(), gl.is_graphics()), (Some("OpenGL or Vulkan"), true));
        let video = caller(&[("/usr/lib/libnvcuvid.so.1", Some("cuvidCreateDecoder"))]).expect("a caller");
        assert_eq!(video.owner.as_deref(), Some("video decoder"));
        let cuda = caller(&[("libcuda.so.1", Some("cuMemAlloc_v2")), ("/usr/lib/libnvcuvid.so.1", None)]);
        assert_eq!(cuda.and_then(|cuda| cuda.owner).as_deref(), Some("video decoder"));
    }

    #[test]
    fn caller_of_a_driver_only_stack_is_empty_and_of_a_foreign_one_none() {
        assert_eq!(caller(&[("libcuda.so.1", Some("inner"))]), Some(Caller::default()));
        assert_eq!(caller(&[("libc10_cuda.so", Some("c10::f")), ("libcuda.so.1", Some("cuLaunchHostFunc"))]), None);
        assert_eq!(caller(&[]), None);
    }

    #[test]
    fn caller_table_evicts_unused_stacks_in_arrival_order() {
        let mut stacks = CallerTable::default();
        (0..=WAITING as u64).for_each(|id| stacks.learn(id, Caller::default()));
        assert_eq!((stacks.get(0), stacks.callers.len()), (None, WAITING));
        assert!(stacks.get(WAITING as u64).is_some());
    }
}

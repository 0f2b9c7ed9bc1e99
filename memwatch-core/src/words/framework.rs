//! Frameworks that divide the driver's memory by an allocator of their own, by the names that screens and JSON have for them.

use memwatch_common::tensor::FrameworkLibrary;
use serde::{Deserialize, Serialize};

/// A framework, or a library that others have their memory from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// PyTorch.
    PyTorch,
    /// JAX, and whatever else uses XLA's plug-in.
    Jax,
    /// TensorFlow.
    TensorFlow,
    /// ONNX Runtime.
    OnnxRuntime,
    /// ggml: llama.cpp and its kin.
    Ggml,
    /// RAPIDS' memory manager: cuDF and its kin.
    Rmm,
    /// CuPy.
    CuPy,
}

impl Framework {
    /// Its name in small letters, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PyTorch => "pytorch",
            Self::Jax => "jax",
            Self::TensorFlow => "tensorflow",
            Self::OnnxRuntime => "onnxruntime",
            Self::Ggml => "ggml",
            Self::Rmm => "rmm",
            Self::CuPy => "cupy",
        }
    }

    /// What people call it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::PyTorch => "PyTorch",
            Self::Jax => "JAX",
            Self::TensorFlow => "TensorFlow",
            Self::OnnxRuntime => "ONNX Runtime",
            Self::Ggml => "ggml",
            Self::Rmm => "RMM",
            Self::CuPy => "CuPy",
        }
    }

    /// Whose a library is; `None` for the interpreter's.
    pub const fn of_library(library: FrameworkLibrary) -> Option<Self> {
        match library {
            FrameworkLibrary::C10
            | FrameworkLibrary::C10Cuda
            | FrameworkLibrary::TorchCpu
            | FrameworkLibrary::TorchCuda
            | FrameworkLibrary::TorchPython => Some(Self::PyTorch),
            FrameworkLibrary::Xla => Some(Self::Jax),
            FrameworkLibrary::TensorFlow => Some(Self::TensorFlow),
            FrameworkLibrary::OnnxRuntime => Some(Self::OnnxRuntime),
            FrameworkLibrary::GgmlBase | FrameworkLibrary::GgmlCuda => Some(Self::Ggml),
            FrameworkLibrary::Rmm => Some(Self::Rmm),
            FrameworkLibrary::CuPy => Some(Self::CuPy),
            FrameworkLibrary::Python => None,
        }
    }
}

//! Frameworks with an allocator on top of the driver's, and their names on screens and in JSON.

use memwatch_common::tensor::FrameworkLibrary;
use serde::{Deserialize, Serialize};

/// A framework, or a library that provides memory to other libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// PyTorch.
    PyTorch,
    /// JAX, and any other user of XLA's plug-in.
    Jax,
    /// TensorFlow.
    TensorFlow,
    /// ONNX Runtime.
    OnnxRuntime,
    /// ggml: llama.cpp and related programs.
    Ggml,
    /// RAPIDS Memory Manager: cuDF and related libraries.
    Rmm,
    /// CuPy.
    CuPy,
}

/// Words for a framework.
struct FrameworkWords {
    name: &'static str,
    title: &'static str,
    product: &'static str,
}

/// Words for a framework that is installed under the name that screens show.
const fn words(name: &'static str, title: &'static str) -> FrameworkWords {
    FrameworkWords { name, title, product: title }
}

impl Framework {
    /// All frameworks, in screen order.
    pub const ALL: [Self; 7] =
        [Self::PyTorch, Self::Jax, Self::TensorFlow, Self::OnnxRuntime, Self::Ggml, Self::Rmm, Self::CuPy];

    const fn words(self) -> FrameworkWords {
        match self {
            Self::PyTorch => words("pytorch", "PyTorch"),
            Self::Jax => words("jax", "JAX"),
            Self::TensorFlow => words("tensorflow", "TensorFlow"),
            Self::OnnxRuntime => words("onnxruntime", "ONNX Runtime"),
            Self::Ggml => words("ggml", "ggml"),
            Self::Rmm => FrameworkWords { product: "RAPIDS", ..words("rmm", "RMM") },
            Self::CuPy => words("cupy", "CuPy"),
        }
    }

    /// Lower-case name, as in JSON.
    pub const fn name(self) -> &'static str {
        self.words().name
    }

    /// Display name.
    pub const fn title(self) -> &'static str {
        self.words().title
    }

    /// Name of the software of which the framework is a part.
    pub const fn product(self) -> &'static str {
        self.words().product
    }

    /// Returns the framework of a library; `None` for the Python interpreter.
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

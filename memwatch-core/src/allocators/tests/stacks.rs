//! Python stacks for tests, written as lines.

use crate::stack::{PythonCode, PythonFrame, PythonModule, PythonStack};

/// Folder in which packages are installed.
const PACKAGES: &str = "/env/lib/python3.11/site-packages";

/// Returns a stack, innermost frame first: `train.py step:12`, `torch/optim/adamw.py
/// AdamW.step:220`, or for a module's call `nn Linear 0x20 layers.0.fc1` with its class, address
/// and name. The name is `-` for the outermost module and `?` if unknown. `nn
/// FullyShardedDataParallel 0x8 - around Net 0x10` is a module that wraps another.
pub(crate) fn stack(frames: &[&str]) -> PythonStack {
    PythonStack { frames: frames.iter().map(|frame| read(frame)).collect(), truncated: false, borders: Vec::new() }
}

fn read(frame: &str) -> PythonFrame {
    let words: Vec<&str> = frame.split(' ').collect();
    if let ["nn", class, address, name, ref around @ ..] = words[..] {
        let code = code("torch/nn/modules/module.py", "Module._wrapped_call_impl:1751");
        let wraps = match around {
            ["around", class, address] => Some(Box::new(module(class, address, Some("")))),
            _ => None,
        };
        let name = match name {
            "-" => Some(""),
            "?" => None,
            name => Some(name),
        };
        return PythonFrame { code: Some(code), module: Some(PythonModule { wraps, ..module(class, address, name) }) };
    }
    let Some((file, place)) = frame.rsplit_once(' ') else { panic!("{frame:?} is no frame") };
    PythonFrame { code: Some(code(file, place)), module: None }
}

fn module(class: &str, address: &str, name: Option<&str>) -> PythonModule {
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).expect("hexadecimal");
    PythonModule { address, class: class.into(), name: name.map(Into::into), wraps: None }
}

fn code(file: &str, place: &str) -> PythonCode {
    let (function, line) = place.rsplit_once(':').expect("a function and a line");
    let installed = file.starts_with("torch/");
    let file = if installed { format!("{PACKAGES}/{file}") } else { file.to_owned() };
    PythonCode { function: function.into(), file: file.into(), line: Some(line.parse().expect("a line")) }
}

//! Finds the driver calls by which ggml's CUDA backend maps memory for its pool for temporaries and
//! unmaps it. Each call runs a few times in a process's life. Allocations from the pool, thousands
//! a second, are not probed.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use iced_x86::{Decoder, DecoderOptions, OpKind};
use memwatch_common::tensor::{TENSOR_PROBES, TensorMeaning};

use super::layout::name;
use crate::frameworks::points::TensorPoint;
use crate::frameworks::symbols::{SymbolName, symbols};
use crate::sources::kernel::load::chain;
use crate::sources::kernel::resolve::{FunctionLocation, SymbolLayout};
use crate::sources::kernel::stub;
use crate::stranger_file::ElfReader;

/// `ggml_cuda_pool_vmm::alloc`, and the complete and deleting destructors
/// (ggml/src/ggml-cuda/ggml-cuda.cu; llama.cpp of 2024 to 2026).
const ALLOC: SymbolName = name(1, "_ZN18ggml_cuda_pool_vmm5allocEmPm");
const DESTROY: SymbolName = name(2, "_ZN18ggml_cuda_pool_vmmD1Ev");
const DELETE: SymbolName = name(3, "_ZN18ggml_cuda_pool_vmmD0Ev");

/// Driver functions that these functions call.
const SET_ACCESS: &str = "cuMemSetAccess\0";
const UNMAP: &str = "cuMemUnmap\0";

/// Opcode of `call rel32`.
const CALL: u8 = 0xe8;
/// Maximum size of a decoded function; the known ones have up to 1,300 bytes.
const CODE_BYTES: u64 = 64 << 10;

/// Returns the probe points of ggml's CUDA library.
///
/// # Errors
/// A message that explains why the pool cannot be traced.
pub(crate) fn points(file: &File) -> Result<Vec<TensorPoint>, String> {
    let clone = file.try_clone().map_err(|error| chain(&error))?;
    let cache = ElfReader::new(clone);
    let layout = SymbolLayout::parse(&cache).map_err(|error| chain(&error))?;
    let found = symbols(file, &layout, &[ALLOC, DESTROY, DELETE]).map_err(|error| chain(&error))?;
    let mut points = Vec::new();
    for (function, callee, meaning) in [
        (ALLOC, SET_ACCESS, TensorMeaning::ScratchGrows),
        (DESTROY, UNMAP, TensorMeaning::ScratchGoes),
        (DELETE, UNMAP, TensorMeaning::ScratchGoes),
    ] {
        let location = found.functions.get(&function.key).ok_or("this build has no virtual-memory pool")?;
        let stubs = stub::find(file, callee).map_err(|error| chain(&error))?;
        let stubs: Vec<u64> = stubs.into_iter().filter_map(|stub| layout.address_of(stub)).collect();
        let code = code_of(file, location).ok_or("the code of the pool for temporaries cannot be read")?;
        let calls = calls(&code, location.address, &stubs);
        if calls.is_empty() {
            return Err(format!(
                "the pool for temporaries does not call {} in this build",
                callee.trim_end_matches('\0')
            ));
        }
        let row = TENSOR_PROBES.iter().find(|row| row.meaning == meaning).ok_or("the table has no row for the pool")?;
        points.extend(calls.into_iter().map(|offset| TensorPoint::new(row, location.file_offset + offset)));
    }
    Ok(points)
}

fn code_of(file: &File, location: &FunctionLocation) -> Option<Vec<u8>> {
    let bytes = Some(location.size_bytes).filter(|bytes| *bytes <= CODE_BYTES)?;
    let mut code = vec![0; usize::try_from(bytes).ok()?];
    file.read_exact_at(&mut code, location.file_offset).ok().map(|()| code)
}

/// Returns the offsets of `call` instructions to one of `callees`. `begin` is the address of the
/// first instruction.
fn calls(code: &[u8], begin: u64, callees: &[u64]) -> Vec<u64> {
    let instructions = Decoder::with_ip(64, code, begin, DecoderOptions::NONE).into_iter();
    let is_near = instructions.filter(|one| one.op_count() == 1 && one.op0_kind() == OpKind::NearBranch64);
    let offsets = is_near.filter(|one| callees.contains(&one.near_branch_target())).map(|one| one.ip() - begin);
    let is_call = |offset: &u64| usize::try_from(*offset).ok().and_then(|at| code.get(at)) == Some(&CALL);
    offsets.filter(is_call).collect()
}

#[cfg(test)]
mod tests {
    use super::calls;

    #[test]
    fn ggml_scratch_calls_are_found_by_their_targets() {
        // `call 0x1100; call 0x1200; jmp 0x1100; ret`.
        let code = [0xe8, 0xfb, 0, 0, 0, 0xe8, 0xf6, 1, 0, 0, 0xe9, 0xf1, 0, 0, 0, 0xc3];
        assert_eq!(calls(&code, 0x1000, &[0x1100]), [0]);
        assert_eq!(calls(&code, 0x1000, &[0x1200, 0x1100]), [0, 5]);
        assert_eq!(calls(&code, 0x1000, &[0x1300]), [0; 0]);
        assert_eq!(calls(&[0xe8, 0xfb], 0x1000, &[0x1100]), [0; 0], "it is cut off");
    }
}

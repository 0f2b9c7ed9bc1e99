//! Finds where a build of TensorFlow keeps the name of the operator that a thread runs. Decoded
//! from the code of the function that returns it; unexpected code is refused.
//!
//! For `return &annotation` with `static thread_local MemoryDebugAnnotation annotation` in a
//! library, compilers emit (x86-64 psABI, general and local dynamic models;
//! xla/tsl/profiler/lib/scoped_memory_debug_annotation.cc):
//! ```text
//! lea INDEX(%rip),%rdi;  call __tls_get_addr@plt;  mov %rax,%rbx;
//! cmpb $0,MADE(%rax);  je …;  lea OFFSET(%rbx),%rax;  …  ret
//! ```
//! The other branch constructs the object and contains calls. Before the construction the
//! variable's bytes are 0, including the length of the name.

use std::fs::File;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use memwatch_common::tensor::{OperatorPlan, TENSOR_PROBES, TensorMeaning};

use crate::frameworks::bfc::layout::code_of;
use crate::frameworks::points::TensorPoint;
use crate::frameworks::symbols::{SymbolName, symbols};
use crate::sources::kernel::resolve::{InstructionSet, ResolveError, SymbolLayout};
use crate::stranger_file::ElfReader;

/// Returns the address of the thread's annotation, which begins with the operator's name.
const ANNOTATION: SymbolName = SymbolName {
    key: 1,
    beginning: "_ZN3tsl8profiler27ScopedMemoryDebugAnnotation27ThreadMemoryDebugAnnotationEv",
    ending: "",
};
/// The function that reports chunks.
const REPORT: SymbolName = SymbolName { key: 2, beginning: "_ZN3tsl12BFCAllocator10AddTraceMeE", ending: "EPKvll" };

/// Maximum number of instructions decoded.
const INSTRUCTIONS: usize = 32;

/// A thread-local variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variable {
    /// Address of its `tls_index` in the file.
    index: u64,
    /// Offset from the variable of the `tls_index`, in bytes.
    offset_bytes: u16,
}

/// Returns the point that records the operator of the chunks reported at `reported`; `None` if the
/// file does not show where the name is.
///
/// # Errors
/// The file cannot be read or parsed.
pub(super) fn beside(file: &File, reported: &TensorPoint) -> Result<Option<TensorPoint>, ResolveError> {
    let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
    let cache = ElfReader::new(clone);
    let layout = SymbolLayout::parse(&cache)?;
    if layout.machine() != InstructionSet::X86_64 {
        return Ok(None);
    }
    let found = symbols(file, &layout, &[ANNOTATION, REPORT])?;
    let [annotation, report] = [ANNOTATION, REPORT].map(|name| found.functions.get(&name.key));
    let point = || {
        let (annotation, report) = (annotation?, report?);
        let variable = variable(&code_of(file, annotation), annotation.address)?;
        let probed = report.address + reported.file_offset.checked_sub(report.file_offset)?;
        let distance_bytes = i32::try_from(variable.index.cast_signed().checked_sub(probed.cast_signed())?).ok()?;
        let row = TENSOR_PROBES.iter().find(|row| row.meaning == TensorMeaning::ChunkNamed)?;
        let plan = OperatorPlan { distance_bytes, offset_bytes: variable.offset_bytes };
        Some(TensorPoint { operator: Some(plan), ..TensorPoint::new(row, reported.file_offset) })
    };
    Ok(point())
}

/// Returns the variable whose address a function returns; `None` if the code does anything
/// unexpected.
fn variable(code: &[u8], address: u64) -> Option<Variable> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut before = Instruction::default();
    for _ in 0..INSTRUCTIONS {
        let instruction = decoder.decode();
        match instruction.flow_control() {
            FlowControl::Call => {
                let index = named_index(&before)?;
                let offset_bytes = answered(decoder)?;
                return Some(Variable { index, offset_bytes });
            }
            FlowControl::Next if !instruction.is_invalid() => before = instruction,
            _ => return None,
        }
    }
    None
}

/// Returns the address in `lea INDEX(%rip),%rdi`.
fn named_index(instruction: &Instruction) -> Option<u64> {
    let names = instruction.mnemonic() == Mnemonic::Lea
        && instruction.op0_register() == Register::RDI
        && instruction.is_ip_rel_memory_operand();
    names.then(|| instruction.ip_rel_memory_address())
}

/// Follows the code after the call of `__tls_get_addr` and returns the offset of the function's
/// result from that call's result, on the path without another call. One conditional branch may be
/// taken if the path straight on has a call.
fn answered(mut decoder: Decoder<'_>) -> Option<u16> {
    let start = decoder.ip() - decoder.position() as u64;
    // Registers that hold the variable's address, and the offset of `rax` from it.
    let (mut held, mut answer) = (vec![Register::RAX], Some(0));
    let mut other = None;
    for _ in 0..INSTRUCTIONS {
        let instruction = decoder.decode();
        let is_over = match instruction.flow_control() {
            FlowControl::Return => return answer,
            FlowControl::Next => instruction.is_invalid(),
            FlowControl::ConditionalBranch if other.is_none() => {
                other = Some((instruction.near_branch_target(), held.clone(), answer));
                false
            }
            FlowControl::UnconditionalBranch => go_to(&mut decoder, start, instruction.near_branch_target()).is_none(),
            _ => true,
        };
        if is_over {
            // Follows the other branch, once.
            let (target, held_there, answer_there) = other.replace((0, Vec::new(), None))?;
            go_to(&mut decoder, start, target)?;
            (held, answer) = (held_there, answer_there);
            continue;
        }
        follow(&instruction, &mut held, &mut answer);
    }
    None
}

/// Continues decoding at an address; `None` if the address is outside the code.
fn go_to(decoder: &mut Decoder<'_>, start: u64, target: u64) -> Option<()> {
    decoder.set_position(usize::try_from(target.checked_sub(start)?).ok()?).ok()?;
    decoder.set_ip(target);
    Some(())
}

/// Updates the registers that hold the variable's address, and the offset of `rax` from it.
fn follow(instruction: &Instruction, held: &mut Vec<Register>, answer: &mut Option<u16>) {
    let writes = instruction.op0_kind() == OpKind::Register
        && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
    if !writes {
        return;
    }
    let to = instruction.op0_register().full_register();
    let offset = match instruction.mnemonic() {
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
            held.contains(&instruction.op1_register()).then_some(0)
        }
        Mnemonic::Lea if instruction.memory_index() == Register::None => {
            let displacement = u16::try_from(instruction.memory_displacement64()).ok();
            displacement.filter(|_| held.contains(&instruction.memory_base()))
        }
        Mnemonic::Add if held.contains(&to) => u16::try_from(instruction.immediate(1)).ok(),
        _ => None,
    };
    held.retain(|register| *register != to);
    if offset == Some(0) {
        held.push(to);
    }
    if to == Register::RAX {
        *answer = offset.filter(|offset| *offset < OperatorPlan::OFFSETS && offset.is_multiple_of(8));
    }
}

#[cfg(test)]
mod tests {
    use super::{Variable, variable};

    const ADDRESS: u64 = 0x7d3_f660;

    /// `ThreadMemoryDebugAnnotation` of TensorFlow 2.21.0, up to the construction of the object.
    const ANSWERS: [u8; 52] = [
        0x55, 0x48, 0x89, 0xe5, 0x53, 0x50, 0x48, 0x8d, 0x3d, 0x9b, 0x01, 0x5f, 0x00, 0xe8, 0xfe, 0x15, 0x46, 0x00,
        0x48, 0x89, 0xc3, 0x80, 0xb8, 0x70, 0x04, 0x00, 0x00, 0x00, 0x74, 0x0e, 0x48, 0x8d, 0x83, 0x20, 0x04, 0x00,
        0x00, 0x48, 0x83, 0xc4, 0x08, 0x5b, 0x5d, 0xc3, 0xc5, 0xf8, 0x57, 0xc0, 0xc5, 0xfc, 0x11, 0x83,
    ];

    #[test]
    fn a_function_that_answers_where_a_variable_of_its_thread_is_shows_it() {
        let expected = Variable { index: 0x832_f808, offset_bytes: 0x420 };
        assert_eq!(variable(&ANSWERS, ADDRESS), Some(expected));
    }

    #[test]
    fn thread_local_object_may_be_built_without_a_branch() {
        // `jne`, a call, and then the result.
        let mut code = ANSWERS[..28].to_vec();
        code.extend([0x75, 5, 0xe8, 1, 2, 3, 4]);
        code.extend(&ANSWERS[30..44]);
        let expected = Variable { index: 0x832_f808, offset_bytes: 0x420 };
        assert_eq!(variable(&code, ADDRESS), Some(expected));
        // `add` instead of `lea`, and no branch.
        let mut code = ANSWERS[..18].to_vec();
        code.extend([0x48, 0x05, 0x20, 0x04, 0, 0, 0x48, 0x83, 0xc4, 0x08, 0x5b, 0x5d, 0xc3]);
        assert_eq!(variable(&code, ADDRESS), Some(expected));
    }

    #[test]
    fn operator_code_that_differs_is_refused() {
        for (index, other) in [
            (13, 0xe9), // A jump instead of a call.
            (8, 0x35),  // Loads another register than the first argument.
            (7, 0x8b),  // A load instead of `lea`.
            (20, 0xc1), // The result is relative to another register.
            (34, 0x40), // The offset does not fit into a plan.
            (33, 0x24), // The offset is not word-aligned.
            (31, 0x8b), // The result is loaded instead of computed.
            (37, 0xe8), // A second call.
        ] {
            let mut code = ANSWERS;
            code[index] = other;
            assert_eq!(variable(&code, ADDRESS), None, "{index}");
        }
        for length in 0..44 {
            assert_eq!(variable(&ANSWERS[..length], ADDRESS), None, "{length}");
        }
    }
}

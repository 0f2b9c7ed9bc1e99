//! Chooses the probe points of a library's functions: at their entries, returns or counters.

mod counter;

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use memwatch_common::tensor::{
    BlockPlan, FrameworkLibrary, OperatorPlan, ProbePoint, TENSOR_PROBES, TensorMeaning, TensorPlan, TensorProbe,
};

use self::counter::counter;
use super::symbols::{SymbolName, symbols};
use crate::sources::kernel::resolve::{FunctionLocation, ResolveError, SymbolLayout};
use crate::sources::kernel::site::{AttachOffset, KernelVersion, select, select_without_arguments};
use crate::sources::native::CodeImage;
use crate::stranger_file::ElfReader;

/// Maximum size of a function to read for choosing the attach offset. Only the first block matters,
/// and most functions here are far longer than that.
const CODE_BYTES: u64 = 64 << 10;

/// A probe point of one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorPoint {
    /// The entry of `TENSOR_PROBES`.
    pub(crate) row: &'static TensorProbe,
    /// Offset of the probed instruction from the start of the file.
    pub(crate) file_offset: u64,
    /// Arguments and fields that the probe captures.
    pub(crate) plan: TensorPlan,
    /// Location of the operator's name, for probes that record names; such a probe has no other
    /// plan.
    pub(crate) operator: Option<OperatorPlan>,
}

impl TensorPoint {
    /// Creates a point with the entry's default plan.
    pub(crate) fn new(row: &'static TensorProbe, file_offset: u64) -> Self {
        Self { row, file_offset, plan: row.plan, operator: None }
    }

    /// Creates a point for the entry with this meaning and a plan that reads the allocator's own
    /// state; `None` if the table has no such entry.
    pub(crate) fn with_block(meaning: TensorMeaning, file_offset: u64, block: BlockPlan) -> Option<Self> {
        let row = TENSOR_PROBES.iter().find(|row| row.meaning == meaning)?;
        Some(Self { plan: TensorPlan { block, ..row.plan }, ..Self::new(row, file_offset) })
    }

    /// Whether the point is a return probe. Only [`ProbePoint::Count`] may be one: an exception that
    /// unwinds through a return probe ends the program.
    pub(crate) const fn is_return(&self) -> bool {
        matches!(self.row.point, ProbePoint::Count) && !self.plan.thread_variable
    }

    /// Returns the BPF cookie of the probe.
    pub(crate) const fn cookie(&self) -> u64 {
        match self.operator {
            Some(operator) => operator.cookie(self.row.id),
            None => self.plan.cookie(self.row.id, self.is_return()),
        }
    }
}

/// Finds the probe points of a library in its file. Probes without a matching function are left
/// out.
///
/// # Errors
/// The file cannot be read or parsed.
pub(crate) fn points(
    file: &File,
    library: FrameworkLibrary,
    kernel: KernelVersion,
) -> Result<Vec<TensorPoint>, ResolveError> {
    let is_wanted = |row: &&TensorProbe| {
        let TensorProbe { library: own, symbol, point, .. } = row;
        *own == library && !symbol.is_empty() && *point != ProbePoint::Calls
    };
    let rows: Vec<&TensorProbe> = TENSOR_PROBES.iter().filter(is_wanted).collect();
    let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
    let cache = ElfReader::new(clone);
    let layout = SymbolLayout::parse(&cache)?;
    let names: Vec<SymbolName> = rows.iter().map(|row| SymbolName::of(row)).collect();
    let found = symbols(file, &layout, &names)?;
    let place = |row: &&'static TensorProbe| {
        let location = found.functions.get(&row.id)?;
        let mut code = vec![0; usize::try_from(location.size_bytes.min(CODE_BYTES)).ok()?];
        let read = location.size_bytes <= CODE_BYTES && file.read_exact_at(&mut code, location.file_offset).is_ok();
        let code = if read { &code[..] } else { &[] };
        let select = if row.meaning.has_arguments() { select } else { select_without_arguments };
        let site = select(code, location.address, layout.machine(), kernel);
        Some(of_function(row, location, code, &site))
    };
    let (answers, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.point == ProbePoint::Answers);
    let mut points: Vec<TensorPoint> = others.iter().filter_map(place).collect();
    for row in answers {
        let location = found.functions.get(&row.id);
        points.extend(location.into_iter().flat_map(|location| answers_of(file, row, location)));
    }
    Ok(points)
}

/// Returns a point for each return instruction of a function; none if the code cannot be decoded.
/// The function's end is taken from `.eh_frame`.
fn answers_of(file: &File, row: &'static TensorProbe, location: &FunctionLocation) -> Vec<TensorPoint> {
    let image = file.try_clone().ok().and_then(CodeImage::read);
    let whole = image.and_then(|image| image.function(location.address)).filter(|whole| {
        (whole.address, whole.file_offset) == (location.address, location.file_offset) && whole.size_bytes <= CODE_BYTES
    });
    let code = whole.and_then(|whole| {
        let mut code = vec![0; usize::try_from(whole.size_bytes).ok()?];
        file.read_exact_at(&mut code, whole.file_offset).ok().map(|()| code)
    });
    let at = |offset: u64| TensorPoint::new(row, location.file_offset + offset);
    code.map_or_else(Vec::new, |code| returns(&code).into_iter().map(at).collect())
}

/// Returns the offsets of the return instructions in bytes; none if any part is no valid
/// instruction.
fn returns(code: &[u8]) -> Vec<u64> {
    let instructions: Vec<Instruction> = Decoder::new(64, code, DecoderOptions::NONE).into_iter().collect();
    if instructions.iter().any(Instruction::is_invalid) {
        return Vec::new();
    }
    let is_return = |one: &&Instruction| one.flow_control() == FlowControl::Return;
    instructions.iter().filter(is_return).map(Instruction::ip).collect()
}

/// Creates the point of a probe in a function with this code.
fn of_function(
    row: &'static TensorProbe,
    location: &FunctionLocation,
    code: &[u8],
    site: &AttachOffset,
) -> TensorPoint {
    if row.point == ProbePoint::Count
        && let Some(count) = counter(code)
    {
        let file_offset = location.file_offset + count.offset_in_function;
        let plan = row.plan.of_thread(count.offset_in_variable);
        return TensorPoint { plan, ..TensorPoint::new(row, file_offset) };
    }
    TensorPoint::new(row, location.file_offset + site.offset_in_function)
}

#[cfg(test)]
mod tests {
    use super::returns;

    #[test]
    fn function_returns_are_located_only_in_fully_decoded_code() {
        // `push %rbx; test %rdi,%rdi; je +2; pop %rbx; ret; mov %rdi,%rax; pop %rbx; ret`.
        let code = [0x53, 0x48, 0x85, 0xff, 0x74, 2, 0x5b, 0xc3, 0x48, 0x89, 0xf8, 0x5b, 0xc3];
        assert_eq!(returns(&code), [7, 12]);
        assert_eq!(
            returns(&[0x48, 0xb8, 0xc3, 0xc3, 0xc3, 0xc3, 0xc3, 0xc3, 0xc3, 0xc3]),
            [0; 0],
            "that is a constant"
        );
        assert_eq!(returns(&[&code[..], &[0x06]].concat()), [0; 0]);
        assert_eq!(returns(&[]), [0; 0]);
    }
}

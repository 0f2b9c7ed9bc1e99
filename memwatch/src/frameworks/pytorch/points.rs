//! Where the rows are probed in a library: at the functions of their symbols, or at calls that show more.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use memwatch_common::tensor::{FrameworkLibrary, Point, TENSOR_PROBES, TensorProbe};
use object::ReadCache;

use super::calls;
use super::counter::counter;
use super::symbols::{SymbolName, TensorPoint, functions, symbols};
use crate::sources::kernel::resolve::{FunctionLocation, Layout, ResolveError};
use crate::sources::kernel::site::{KernelVersion, Site, select, select_without_arguments};

/// The longest code that is read for the choice of a site; most functions here are far longer than what matters, their first block.
const CODE_BYTES: u64 = 64 << 10;

/// Finds the rows of a library in its file. Rows that it has no function for are left out.
///
/// # Errors
/// The file cannot be read or understood.
pub(crate) fn points(
    file: &File,
    library: FrameworkLibrary,
    kernel: KernelVersion,
) -> Result<Vec<TensorPoint>, ResolveError> {
    let is_wanted = |row: &&TensorProbe| {
        let TensorProbe { library: own, symbol, point, .. } = row;
        *own == library && !symbol.is_empty() && *point != Point::Calls
    };
    let rows: Vec<&TensorProbe> = TENSOR_PROBES.iter().filter(is_wanted).collect();
    let clone = file.try_clone().map_err(|_unreadable| ResolveError::Damaged { what: "file" })?;
    let cache = ReadCache::new(clone);
    let layout = Layout::parse(&cache)?;
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
    let mut points: Vec<TensorPoint> = rows.iter().filter_map(place).collect();
    if library == FrameworkLibrary::C10Cuda {
        let (found, all) = (symbols(file, &layout, &calls::NAMES)?, functions(file, &layout, calls::MOST_FUNCTIONS)?);
        match calls::calls(file, &layout, &all, &found) {
            Some(calls) => points.extend(calls),
            None => log::info!("PyTorch's allocator in this build shows blocks by several probes for each"),
        }
    }
    Ok(points)
}

/// A row in a function with this code.
fn of_function(row: &'static TensorProbe, location: &FunctionLocation, code: &[u8], site: &Site) -> TensorPoint {
    if row.point == Point::Count
        && let Some(count) = counter(code)
    {
        let file_offset = location.file_offset + count.offset_in_function;
        return TensorPoint { row, file_offset, plan: row.plan.of_thread(count.offset_in_variable) };
    }
    TensorPoint::new(row, location.file_offset + site.offset_in_function)
}

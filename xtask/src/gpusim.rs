//! Builds the simulated GPU of `tests/gpusim`: the driver, its NVML and the workload program.
//!
//! The driver's exported functions are assembly trampolines generated from
//! `driver/driver-exports.tsv`. Their first instructions have the shape of a real driver's, and
//! they jump to the C implementation without changing a register or the stack, so that arguments
//! past the sixth and structs by value arrive unchanged.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};

/// First instructions of the driver's exported functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prologue {
    /// `cmp dword ptr [rip+X], imm32`, `je`, `push rbp`: as in drivers 470 to 595, except 580.
    Cmp,
    /// `push rbp`: as in driver 580.
    Push,
}

impl Prologue {
    const fn name(self) -> &'static str {
        match self {
            Self::Cmp => "cmp",
            Self::Push => "push",
        }
    }
}

/// C files in both the driver and NVML.
const SHARED_SOURCES: [&str; 5] = ["ledger.c", "liveness.c", "log.c", "model.c", "settings.c"];
/// The library that simulates the kernel driver. Its directory has no libcuda, because memwatch
/// looks for one next to a program's libraries.
const DEVICE: &str = "device/libgpusim-device.so";
/// C files of NVML only; every other file of `driver/` belongs to the driver.
const NVML_SOURCES: [&str; 5] = ["nvml.c", "nvml_memory.c", "nvml_mig.c", "nvml_processes.c", "nvml_utilization.c"];

/// The only driver file that calls `ioctl`: it is compiled once per variant.
const CALLER: &str = "rm_call.c";

/// Soname and file name of the driver.
const LIBCUDA: &str = "libcuda.so.1";
/// A graphics library of the driver, which allocates memory itself.
const GRAPHICS: &str = "libnvidia-glcore.so.1";

/// A libcuda variant, defined by the way it calls `ioctl`.
struct Variant {
    folder: &'static str,
    flags: &'static [&'static str],
}

/// Variants: one lazily bound PLT stub, as in real drivers; none; two.
const VARIANTS: &[Variant] = &[
    Variant { folder: "lib", flags: &["-fplt"] },
    Variant { folder: "lib/noplt", flags: &["-fno-plt"] },
    Variant { folder: "lib/two", flags: &["-fplt", "-DGPUSIM_TWO_STUBS"] },
];

/// A C compiler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compiler {
    pub(crate) program: &'static str,
    /// Flags in addition to the common ones.
    pub(crate) flags: &'static [&'static str],
    /// Generates a function of the driver in the processor's assembly.
    trampoline: fn(symbol: &str, implementation: &str, index: usize, prologue: Prologue) -> String,
    /// End of a function without implementation.
    unsupported: &'static str,
}

const X86_64: Compiler = Compiler {
    program: "cc",
    flags: &["-fcf-protection=none"],
    trampoline,
    unsupported: "\tlea 2f(%rip), %rdi\n\tjmp gpusim_unsupported\n",
};
/// Cross compiler for 64-bit Arm.
pub(crate) const AARCH64: Compiler = Compiler {
    program: "aarch64-linux-gnu-gcc",
    flags: &[],
    trampoline: trampoline_of_arm,
    unsupported: "\tadrp x0, 2f\n\tadd x0, x0, :lo12:2f\n\tb gpusim_unsupported\n",
};
/// Compiler for this machine.
pub(crate) const OWN: Compiler =
    if cfg!(target_arch = "aarch64") { Compiler { program: "cc", ..AARCH64 } } else { X86_64 };

impl Compiler {
    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.args(COMPILER_FLAGS).args(self.flags);
        command
    }
}

const COMPILER_FLAGS: [&str; 7] = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-Wall", "-Wextra"];

/// Builds `out/lib/libcuda.so.1` (with a `libcuda.so` link, and its [`VARIANTS`] below), the
/// `libgpusim-device.so` that it is linked with, `out/lib/libnvidia-ml.so.1`,
/// `out/lib/libnvidia-glcore.so.1` and `out/bin/gpusim-workload` with the C compiler `cc`. Does
/// nothing if they are newer than every source and were built with the same prologue.
///
/// # Errors
/// A source is missing or malformed, or the C compiler is missing or fails.
pub(crate) fn build(repo: &Path, out: &Path, prologue: Prologue, compiler: &Compiler) -> anyhow::Result<()> {
    let driver = repo.join("tests/gpusim/driver");
    let device = repo.join("tests/gpusim/device");
    let workload = repo.join("tests/gpusim/workload");
    let graphics = repo.join("tests/gpusim/graphics");
    let stamp = out.join("build/stamp");
    let generator = vec![repo.join("xtask/src/gpusim.rs")];
    let sources =
        [files_of(&driver)?, files_of(&device)?, files_of(&workload)?, files_of(&graphics)?, generator].concat();
    if is_fresh(&stamp, prologue, &sources)? {
        return Ok(());
    }
    let variants = VARIANTS.iter().map(|variant| variant.folder);
    for directory in variants.chain(["bin", "build", "device"]) {
        fs::create_dir_all(out.join(directory))?;
    }
    build_device(&device, out, compiler)?;
    build_driver(&driver, &device, out, (prologue, compiler))?;
    build_graphics(&graphics, &device, out, compiler)?;
    build_nvml(&driver, out, compiler)?;
    build_workload(&workload, out, compiler)?;
    fs::write(&stamp, prologue.name()).context("writing the build stamp")
}

fn is_fresh(stamp: &Path, prologue: Prologue, sources: &[PathBuf]) -> anyhow::Result<bool> {
    let Ok(built) = fs::metadata(stamp).and_then(|metadata| metadata.modified()) else {
        return Ok(false);
    };
    let newest = sources
        .iter()
        .map(|source| fs::metadata(source)?.modified())
        .collect::<Result<Vec<SystemTime>, _>>()?
        .into_iter()
        .max();
    Ok(fs::read_to_string(stamp)? == prologue.name() && newest.is_some_and(|newest| newest <= built))
}

fn files_of(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = fs::read_dir(directory)
        .with_context(|| format!("reading {}", directory.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

fn c_files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = files_of(directory)?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
    Ok(files)
}

fn is_named(file: &Path, names: &[&str]) -> bool {
    names.iter().any(|name| file.ends_with(name))
}

/// Builds the device library: the simulated kernel driver, behind an `ioctl` that only libcuda
/// links to.
fn build_device(device: &Path, out: &Path, compiler: &Compiler) -> anyhow::Result<()> {
    let mut script = OsString::from("-Wl,--version-script=");
    script.push(device.join("device.map"));
    let mut command = compiler.command();
    command.args(library_flags("libgpusim-device.so")).arg(script);
    compile(&mut command, &c_files(device)?, &out.join(DEVICE))
}

/// Builds the driver: compiles its sources once, and links them once per variant.
fn build_driver(
    driver: &Path,
    device: &Path,
    out: &Path,
    (prologue, compiler): (Prologue, &Compiler),
) -> anyhow::Result<()> {
    let table = fs::read_to_string(driver.join("driver-exports.tsv")).context("reading driver-exports.tsv")?;
    let exports = parse_exports(&table)?;
    let trampolines = out.join("build/trampolines.S");
    let proc_table = out.join("build/proc_table.c");
    fs::write(&trampolines, assembly(&exports, prologue, compiler))?;
    fs::write(&proc_table, proc_addresses(&exports))?;

    let mut sources = c_files(driver)?;
    sources.retain(|source| !is_named(source, &NVML_SOURCES) && !is_named(source, &[CALLER]));
    sources.extend([trampolines, proc_table]);
    let whole = out.join("build/driver.o");
    let mut command = compiler.command();
    command.args(["-r", "-nostdlib", "-fvisibility=hidden"]).arg("-I").arg(driver).arg("-I").arg(device);
    compile(&mut command, &sources, &whole)?;
    for variant in VARIANTS {
        link_driver(variant, &[whole.clone(), driver.join(CALLER)], out, compiler)?;
    }
    let link = out.join("lib/libcuda.so");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link)?;
    }
    symlink(LIBCUDA, &link).context("linking libcuda.so")
}

/// Links a libcuda, which finds the device library next to itself or at the build path.
fn link_driver(variant: &Variant, parts: &[PathBuf], out: &Path, compiler: &Compiler) -> anyhow::Result<()> {
    let mut places = OsString::from("-Wl,--enable-new-dtags,-rpath,$ORIGIN:");
    places.push(out.join("device"));
    let mut command = compiler.command();
    command.args(variant.flags).args(library_flags(LIBCUDA)).args(["-Wl,-z,lazy"]).arg(places);
    let parts = [parts, &[out.join(DEVICE)]].concat();
    compile(&mut command, &parts, &out.join(variant.folder).join(LIBCUDA))
}

/// Builds the graphics library, which finds the device library as libcuda does.
fn build_graphics(graphics: &Path, device: &Path, out: &Path, compiler: &Compiler) -> anyhow::Result<()> {
    let mut places = OsString::from("-Wl,--enable-new-dtags,-rpath,$ORIGIN:");
    places.push(out.join("device"));
    let mut command = compiler.command();
    command.args(["-fplt", "-Wl,-z,lazy"]).args(library_flags(GRAPHICS)).arg(places);
    command.arg("-I").arg(device);
    let parts = [c_files(graphics)?, vec![out.join(DEVICE)]].concat();
    compile(&mut command, &parts, &out.join("lib").join(GRAPHICS))
}

fn build_nvml(driver: &Path, out: &Path, compiler: &Compiler) -> anyhow::Result<()> {
    let mut sources = c_files(driver)?;
    sources.retain(|source| is_named(source, &NVML_SOURCES) || is_named(source, &SHARED_SOURCES));
    let library = out.join("lib/libnvidia-ml.so.1");
    compile(compiler.command().args(library_flags("libnvidia-ml.so.1")), &sources, &library)
}

fn build_workload(workload: &Path, out: &Path, compiler: &Compiler) -> anyhow::Result<()> {
    let program = out.join("bin/gpusim-workload");
    let mut command = compiler.command();
    command.arg("-pthread");
    for folder in ["driver", "device"] {
        command.arg("-I").arg(workload.with_file_name(folder));
    }
    compile(&mut command, &c_files(workload)?, &program)
}

/// Returns the flags of a library: its calls of its own functions cannot be interposed, and it has
/// a build id.
fn library_flags(soname: &str) -> Vec<String> {
    [
        "-shared",
        "-fvisibility=hidden",
        "-pthread",
        "-Wl,-Bsymbolic",
        "-Wl,--build-id=sha1",
        "-Wl,-z,noexecstack",
        &format!("-Wl,-soname,{soname}"),
    ]
    .map(str::to_owned)
    .to_vec()
}

/// Compiles to a temporary file and renames it, so that running programs keep the old file.
fn compile(command: &mut Command, sources: &[PathBuf], target: &Path) -> anyhow::Result<()> {
    let unfinished = target.with_extension("unfinished");
    let status = command.args(sources).arg("-o").arg(&unfinished).status().context("running the C compiler `cc`")?;
    ensure!(status.success(), "cc could not build {}", target.display());
    fs::rename(&unfinished, target).with_context(|| format!("putting {} in place", target.display()))
}

/// A line of `driver-exports.tsv`.
struct DriverExport<'table> {
    symbol: &'table str,
    base: &'table str,
    since: u32,
    implemented_by: Option<&'table str>,
}

impl DriverExport<'_> {
    fn is_per_thread(&self) -> bool {
        self.symbol.ends_with("_ptsz") || self.symbol.ends_with("_ptds")
    }
}

fn parse_exports(table: &str) -> anyhow::Result<Vec<DriverExport<'_>>> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.skip(1).map(parse_export).collect()
}

fn parse_export(line: &str) -> anyhow::Result<DriverExport<'_>> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [symbol, base, since, implemented_by] = fields[..] else {
        bail!("driver-exports.tsv: expected four columns in `{line}`");
    };
    let since = since.parse().with_context(|| format!("driver-exports.tsv: version of `{symbol}`"))?;
    let implemented_by = (implemented_by != "-").then_some(implemented_by);
    Ok(DriverExport { symbol, base, since, implemented_by })
}

/// Generates the exported functions, and a weak stub for each without a C implementation. The table
/// has a symbol once per base name, but it is defined once.
fn assembly(exports: &[DriverExport<'_>], prologue: Prologue, compiler: &Compiler) -> String {
    let mut text = String::from("# Generated from driver-exports.tsv.\n\t.text\n");
    let mut defined: Vec<&str> = Vec::new();
    for export in exports {
        if defined.contains(&export.symbol) {
            continue;
        }
        defined.push(export.symbol);
        let implementation = export.implemented_by.unwrap_or(export.symbol);
        text.push_str(&(compiler.trampoline)(export.symbol, implementation, defined.len() - 1, prologue));
        if export.implemented_by.is_none() {
            text.push_str(&stub(export.symbol, compiler));
        }
    }
    let _ = writeln!(text, "\t.comm gpusim_calls, {}, 4\n\t.hidden gpusim_calls", 4 * defined.len());
    text.push_str("\t.section .note.GNU-stack,\"\",@progbits\n");
    text
}

/// Generates a function; `index` is its call counter's index in `gpusim_calls`.
fn trampoline(symbol: &str, implementation: &str, index: usize, prologue: Prologue) -> String {
    let count = format!("\tincl gpusim_calls+{}(%rip)\n", 4 * index);
    let frame = format!("\tpush %rbp\n\tmov %rsp, %rbp\n\tpop %rbp\n{count}\tjmp sim_{implementation}\n");
    let body = match prologue {
        // 0x67707573 is GUARD_TAKEN of driver.c. The distant target gives `je` its long form, as in
        // a large function.
        Prologue::Cmp => format!(
            "\tcmpl $0x67707573, gpusim_guard(%rip)\n\tje 1f\n{frame}\t.skip 128, 0xcc\n1:\tjmp sim_{implementation}\n"
        ),
        Prologue::Push => frame,
    };
    format!(
        "\t.globl {symbol}\n\t.type {symbol}, @function\n\t.balign 16\n{symbol}:\n{body}\t.size {symbol}, .-{symbol}\n\t.hidden sim_{implementation}\n"
    )
}

/// Generates a function for 64-bit Arm. All functions begin with the same instruction, which the
/// kernel emulates or single-steps, as compilers write it.
fn trampoline_of_arm(symbol: &str, implementation: &str, index: usize, _prologue: Prologue) -> String {
    let count = format!(
        "\tadrp x16, gpusim_calls+{0}\n\tldr w17, [x16, :lo12:gpusim_calls+{0}]\n\tadd w17, w17, #1\n\tstr w17, [x16, :lo12:gpusim_calls+{0}]\n",
        4 * index
    );
    format!(
        "\t.globl {symbol}\n\t.type {symbol}, @function\n\t.balign 16\n{symbol}:\n\tstp x29, x30, [sp, #-16]!\n\tldp x29, x30, [sp], #16\n{count}\tb sim_{implementation}\n\t.size {symbol}, .-{symbol}\n\t.hidden sim_{implementation}\n"
    )
}

fn stub(symbol: &str, compiler: &Compiler) -> String {
    let ending = compiler.unsupported;
    format!(
        "\t.weak sim_{symbol}\n\t.type sim_{symbol}, @function\nsim_{symbol}:\n{ending}\t.size sim_{symbol}, .-sim_{symbol}\n\t.section .rodata.str1.1,\"aMS\",@progbits,1\n2:\t.string \"{symbol}\"\n\t.text\n"
    )
}

/// Generates the table behind `cuGetProcAddress`, in which every row points to the exported symbol
/// as in a real driver, and the names of the counters in `gpusim_calls`.
fn proc_addresses(exports: &[DriverExport<'_>]) -> String {
    let mut text = String::from("/* Generated from driver-exports.tsv. */\n#include \"proc_table.h\"\n\n");
    let mut symbols: Vec<&str> = exports.iter().map(|export| export.symbol).collect();
    symbols.sort_unstable();
    symbols.dedup();
    for symbol in symbols {
        let _ = writeln!(text, "extern __attribute__((visibility(\"default\"))) char {symbol}[];");
    }
    text.push_str("\nconst struct proc_address proc_addresses[] = {\n");
    for export in exports {
        let DriverExport { symbol, base, since, .. } = export;
        let per_thread = export.is_per_thread();
        let _ = writeln!(text, "    {{\"{base}\", \"{symbol}\", {symbol}, {since}, {per_thread}}},");
    }
    text.push_str("};\n\nconst char *const gpusim_symbols[] = {\n");
    let mut defined: Vec<&str> = Vec::new();
    for symbol in exports.iter().map(|export| export.symbol) {
        if !defined.contains(&symbol) {
            defined.push(symbol);
            let _ = writeln!(text, "    \"{symbol}\",");
        }
    }
    text.push_str("    0,\n};\nconst size_t proc_address_count = sizeof proc_addresses / sizeof *proc_addresses;\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twin_jumps_to_the_implementation_it_shares_and_has_no_stub() {
        let table = "symbol\tbase\tsince\timplemented_by\ncuMemFreeAsync_ptsz\tcuMemFreeAsync\t11020\tcuMemFreeAsync\n";
        let exports = parse_exports(table).expect("the table is well formed");
        let text = assembly(&exports, Prologue::Push, &X86_64);
        assert!(text.contains("jmp sim_cuMemFreeAsync\n"));
        assert!(!text.contains(".weak"));
        assert!(exports[0].is_per_thread());
    }

    #[test]
    fn the_guarded_shape_begins_with_a_compare_and_the_plain_one_with_a_push() {
        let guarded = trampoline("cuInit", "cuInit", 0, Prologue::Cmp);
        let plain = trampoline("cuInit", "cuInit", 0, Prologue::Push);
        assert!(guarded.contains("cuInit:\n\tcmpl "));
        assert!(plain.contains("cuInit:\n\tpush %rbp\n"));
    }

    #[test]
    fn a_row_with_a_missing_column_is_refused() {
        assert!(parse_exports("symbol\tbase\tsince\timplemented_by\ncuInit\tcuInit\t2000\n").is_err());
    }
}

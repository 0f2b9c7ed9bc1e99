//! Driver libraries as a distribution packages them, downloaded with the machine's package manager
//! and deleted with the test.
//!
//! The libraries belong to NVIDIA: none is kept, committed or shipped. The machine's configuration
//! is not changed: the package manager uses its own lists, caches and sources in a temporary
//! directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::harness::cannot_run;

/// Regular expression on the names of packages that contain libcuda.
const PACKAGES: &str = "^libcuda1$|^libnvidia-(tesla|legacy).*cuda1$";
/// Environment variable with further releases of the distribution to search, separated by spaces.
/// If unset, only the machine's release is searched.
const SUITES: &str = "MEMWATCH_DRIVER_SUITES";

/// One packaged driver library.
#[derive(Clone, Debug)]
pub struct RealDriver {
    /// Package name and version.
    pub package: String,
    /// Path of the library.
    pub libcuda: PathBuf,
}

/// All driver libraries that could be downloaded.
#[derive(Debug)]
pub struct RealDrivers {
    directory: TempDir,
    /// One per package and version.
    pub drivers: Vec<RealDriver>,
}

impl RealDrivers {
    /// Downloads and unpacks the libraries. Ignores the test if that fails.
    ///
    /// # Panics
    /// When no temporary directory can be created.
    pub fn fetch() -> Self {
        let directory = TempDir::with_prefix("memwatch-drivers-").expect("a temporary directory");
        match fetch_into(directory.path()) {
            Ok(drivers) => Self { directory, drivers },
            Err(reason) => cannot_run(format!("no real driver library: {reason}")),
        }
    }

    /// Returns the directory, which is deleted with the value.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

fn fetch_into(directory: &Path) -> Result<Vec<RealDriver>, String> {
    let apt = Apt::new(directory)?;
    apt.run("apt-get", &["update"])?;
    let mut drivers = Vec::new();
    for package in apt.packages()? {
        // A package that cannot be downloaded is left out. No package at all is an error of the
        // caller.
        match apt.unpack(&package) {
            Ok(Some(libcuda)) => drivers.push(RealDriver { package, libcuda }),
            Ok(None) => eprintln!("{package} holds no libcuda"),
            Err(reason) => eprintln!("{package}: {reason}"),
        }
    }
    if drivers.is_empty() { Err("not one package could be unpacked".to_owned()) } else { Ok(drivers) }
}

/// apt with its own configuration; only the machine's trust in its archive is kept.
struct Apt<'a> {
    directory: &'a Path,
}

impl<'a> Apt<'a> {
    fn new(directory: &'a Path) -> Result<Self, String> {
        let release = fs::read_to_string("/etc/os-release").map_err(|error| format!("/etc/os-release: {error}"))?;
        let field = |name: &str| {
            let value = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_default().trim_matches('"').to_owned()
        };
        if field("ID") != "debian" {
            return Err(format!("only known for Debian, this is {}", field("ID")));
        }
        let own = field("VERSION_CODENAME");
        let format = "$(RELEASE) $(COMPONENT) $(REPO_URI)";
        let targets =
            output(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]))?;
        let prefix = format!("{own} main ");
        let archive = targets.lines().find_map(|line| line.strip_prefix(&prefix));
        let archive = archive.ok_or_else(|| format!("apt has no source for {own}"))?;
        let suites = std::env::var(SUITES).unwrap_or(own);
        let line = |suite| format!("deb {archive} {suite} contrib non-free\n");
        let sources: String = suites.split_whitespace().map(line).collect();
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(directory.join(folder)).map_err(|error| format!("{folder}: {error}"))?;
        }
        fs::write(directory.join("sources.list"), sources).map_err(|error| format!("sources.list: {error}"))?;
        Ok(Self { directory })
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<String, String> {
        let at = |name: &str| self.directory.join(name).display().to_string();
        let options = [
            format!("Dir::Etc::sourcelist={}", at("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "APT::Update::Error-Mode=any".to_owned(),
            "Acquire::Retries=1".to_owned(),
            "Acquire::http::Timeout=20".to_owned(),
        ];
        let mut command = Command::new(program);
        command.current_dir(self.directory);
        for option in options {
            command.args(["-o", &option]);
        }
        output(command.args(words))
    }

    /// Returns `name=version` for each version of each package.
    fn packages(&self) -> Result<Vec<String>, String> {
        let found = self.run("apt-cache", &["search", "--names-only", PACKAGES])?;
        let names: Vec<&str> = found.lines().filter_map(|line| line.split(' ').next()).collect();
        if names.is_empty() {
            return Err("the archive has no package with a libcuda".to_owned());
        }
        let versions = self.run("apt-cache", &[["madison"].as_slice(), &names].concat())?;
        let package = |line: &str| {
            let mut fields = line.split('|').map(str::trim);
            Some(format!("{}={}", fields.next()?, fields.next()?))
        };
        let mut packages: Vec<String> = versions.lines().filter_map(package).collect();
        packages.sort();
        packages.dedup();
        Ok(packages)
    }

    /// Downloads a package and returns the library in it.
    fn unpack(&self, package: &str) -> Result<Option<PathBuf>, String> {
        self.run("apt-get", &["download", "--quiet", package])?;
        let archive =
            files_in(self.directory).into_iter().find(|path| path.extension().is_some_and(|end| end == "deb"));
        let archive = archive.ok_or("nothing was downloaded")?;
        let folder = self.directory.join(package.replace(['=', ':', '~', '+'], "-"));
        output(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&folder))?;
        fs::remove_file(&archive).map_err(|error| error.to_string())?;
        Ok(library_below(&folder))
    }
}

/// Returns the regular file named `libcuda.so.<version>` in a folder or its subfolders.
fn library_below(folder: &Path) -> Option<PathBuf> {
    files_in(folder).into_iter().find_map(|path| {
        let kind = fs::symlink_metadata(&path).ok()?.file_type();
        let name = path.file_name()?.to_string_lossy().into_owned();
        match () {
            () if kind.is_dir() => library_below(&path),
            () if kind.is_file() && name.starts_with("libcuda.so.") => Some(path),
            () => None,
        }
    })
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Runs a command and returns its standard output, or the last line of its standard error if it
/// fails.
fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{program}: {}", errors.lines().last().unwrap_or("failed without a word")))
}

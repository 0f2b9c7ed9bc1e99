//! Control groups for jobs: real ones, below one of this test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(10);

/// A group of this test's own; it goes with those made below it, once their processes have ended.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// `NAME-<this process>.slice` below the root of the machine's second hierarchy; `None` where there is none to write to.
    pub fn slice(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
        let mut root = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (place, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then_some(place)
        });
        let directory = Path::new(root.next_back()?).join(format!("{name}-{}.slice", std::process::id()));
        match fs::create_dir(&directory) {
            Ok(()) => Some(Self { directory }),
            Err(error) => {
                eprintln!("SKIPPED: {} cannot be made: {error}", directory.display());
                None
            }
        }
    }

    /// Puts a process into a group below this one, which is made where it is not there.
    ///
    /// # Panics
    /// When the system refuses.
    pub fn put(&self, name: &str, tgid: u32) {
        let directory = self.directory.join(name);
        if !directory.is_dir() {
            fs::create_dir(&directory).expect("a group below our own");
        }
        fs::write(directory.join("cgroup.procs"), tgid.to_string()).expect("the process is ours");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let begin = Instant::now();
        let below = fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path());
        for directory in below.filter(|path| path.is_dir()).chain([self.directory.clone()]) {
            // A group is busy until its last process has been waited for.
            while directory.is_dir() && fs::remove_dir(&directory).is_err() && begin.elapsed() < PATIENCE {
                std::thread::sleep(POLL);
            }
        }
    }
}

//! The environment variables that memwatch reads. Everything else in `/proc/PID/environ` is
//! ignored.

use std::borrow::Cow;
use std::collections::BTreeMap;

use memwatch_core::owner::{Environment, VARIABLES};

/// Variables that decide which GPUs a process sees.
const VISIBILITY: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];
/// Maximum length of a value. Job names are shorter; a longer list of devices is not used.
const VALUE_BYTES: usize = 4096;

/// Selected variables of an environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Variables<'a>(BTreeMap<&'static str, &'a [u8]>);

impl<'a> Variables<'a> {
    /// Parses the content of `/proc/PID/environ`. As in getenv(3), the first of several variables
    /// with one name counts.
    pub(super) fn parse(environ: &'a [u8]) -> Self {
        let mut found = BTreeMap::new();
        for entry in environ.split(|byte| *byte == 0) {
            // All selected names start with one of these letters, so most variables are skipped
            // here.
            if !matches!(entry.first(), Some(b'C' | b'L' | b'O' | b'R' | b'S' | b'W')) {
                continue;
            }
            let Some(at) = entry.iter().position(|byte| *byte == b'=') else { continue };
            let (name, value) = (&entry[..at], &entry[at + 1..]);
            let mut names = VARIABLES.iter().chain(&VISIBILITY);
            if let Some(name) = names.find(|known| known.as_bytes() == name) {
                found.entry(*name).or_insert(&value[..value.len().min(VALUE_BYTES)]);
            }
        }
        Self(found)
    }

    /// Returns the variables that identify the owner of the process.
    pub(super) fn of_owner(&self) -> Environment {
        let known = VARIABLES.iter().filter_map(|name| Some((*name, self.0.get(name)?)));
        known.map(|(name, value)| (Cow::Borrowed(name), text(value))).collect()
    }

    /// Returns `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`; `None` if one of them is too long.
    pub(super) fn of_visibility(&self) -> Option<[Option<String>; 2]> {
        let values = VISIBILITY.map(|name| self.0.get(name));
        let whole = values.iter().flatten().all(|value| value.len() < VALUE_BYTES);
        whole.then(|| values.map(|value| value.map(|value| text(value))))
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_two_variables_counts_and_longer_names_do_not() {
        let environ = b"CUDA_VISIBLE_DEVICES_X=5\0XCUDA_VISIBLE_DEVICES=6\0CUDA_VISIBLE_DEVICES=1,0\0SECRET=s\0CUDA_VISIBLE_DEVICES=2\0";
        assert_eq!(Variables::parse(environ).of_visibility(), Some([Some("1,0".into()), None]));
        let environ = b"CUDA_DEVICE_ORDER=PCI_BUS_ID\0CUDA_VISIBLE_DEVICES=\0";
        assert_eq!(Variables::parse(environ).of_visibility(), Some([Some(String::new()), Some("PCI_BUS_ID".into())]));
    }

    #[test]
    fn only_the_listed_variables_are_kept() {
        let environ = b"SLURM_JOB_ID=7\0SLURM_JOB_ID=8\0SLURM_JOB_NAME=a=b\xff\0SLURM_TOKEN=secret\0RANK\0PATH=/bin\0WORLD_SIZE=\0\0=x\0RANK=3";
        let kept = Variables::parse(environ).of_owner();
        let expected = [("RANK", "3"), ("SLURM_JOB_ID", "7"), ("SLURM_JOB_NAME", "a=b\u{fffd}"), ("WORLD_SIZE", "")];
        assert_eq!(kept, expected.map(|(name, value)| (name.into(), value.to_owned())).into());
    }

    #[test]
    fn every_listed_variable_is_found() {
        let environ: String = VARIABLES.map(|name| name.to_owned() + "=1\0").concat();
        assert_eq!(Variables::parse(environ.as_bytes()).of_owner().len(), VARIABLES.len());
    }

    #[test]
    fn long_values_are_cut_and_a_cut_list_of_devices_is_none() {
        let long = "x".repeat(1 << 16);
        let environ = format!("SLURM_JOB_NAME={long}\0CUDA_VISIBLE_DEVICES={long}");
        let variables = Variables::parse(environ.as_bytes());
        assert_eq!(variables.of_owner()["SLURM_JOB_NAME"].len(), VALUE_BYTES);
        assert_eq!(variables.of_visibility(), None);
    }
}

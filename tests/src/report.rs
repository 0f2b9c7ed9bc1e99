//! One line of `memwatch --json`, by the field names of the JSON contract.

use jiff::Timestamp;
use serde_json::Value;

/// A report.
#[derive(Clone, Debug)]
pub struct ReportLine(Value);

impl ReportLine {
    /// Reads a line.
    ///
    /// # Panics
    /// When it is no JSON.
    pub fn parse(line: &str) -> Self {
        Self(serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}")))
    }

    /// Returns the whole envelope.
    pub fn json(&self) -> &Value {
        &self.0
    }

    /// Returns whether no record was lost.
    pub fn is_complete(&self) -> bool {
        let losses = self.0["losses"].as_object();
        self.0["complete"] == true && losses.is_some_and(|losses| losses.values().all(|count| count == 0))
    }

    /// Returns whether unreadable libraries are the only loss, and every one belongs to an inexact
    /// process other than `tgid`.
    pub fn lacks_only_libraries_of_others(&self, tgid: u32) -> bool {
        const CLOSED: &str = "library_unreadable";
        let losses = self.0["losses"].as_object();
        let is_only = losses.is_some_and(|all| all.iter().all(|(cause, count)| cause == CLOSED || count == 0));
        let others = self.0["data"]["processes"].as_array().into_iter().flatten();
        let others = others.filter(|process| process["pid"] != tgid && process["exact"] == false);
        let theirs = others.filter_map(|process| process["losses"][CLOSED].as_u64()).sum::<u64>();
        is_only && self.lost(CLOSED) > 0 && theirs == self.lost(CLOSED)
    }

    /// Returns the number of records lost for this cause.
    pub fn lost(&self, cause: &str) -> u64 {
        self.0["losses"][cause].as_u64().unwrap_or(0)
    }

    /// Returns whether the report and its NVML readings were made after `moment`.
    pub fn is_newer_than(&self, moment: Timestamp) -> bool {
        let newer = |value: &Value| time(value).is_some_and(|time| time > moment);
        let gpus = self.0["data"]["gpus"].as_array().map_or(&[][..], Vec::as_slice);
        let sampled = self.0["coverage"]["nvml"] != "starting" && gpus.iter().all(|gpu| newer(&gpu["sampled_time"]));
        newer(&self.0["time"]) && sampled
    }

    /// Returns whether the report was made after `moment`. Its NVML readings may be older.
    pub fn is_made_after(&self, moment: Timestamp) -> bool {
        time(&self.0["time"]).is_some_and(|time| time > moment)
    }

    /// Returns the process if the report has it.
    pub fn process(&self, tgid: u32) -> Option<ReportedProcess<'_>> {
        let processes = self.0["data"]["processes"].as_array()?;
        processes.iter().rev().find(|process| process["pid"] == tgid).map(ReportedProcess)
    }

    /// Returns whether the library file at this path has probes.
    pub fn has_probes_in(&self, library: &str) -> bool {
        let is_its = |its: &Value| its["path"] == library && its["probes_attached"].as_u64() > Some(0);
        self.0["coverage"]["libraries"].as_array().is_some_and(|libraries| libraries.iter().any(is_its))
    }

    /// Returns whether the report has a process of this user.
    pub fn has_user(&self, name: &str) -> bool {
        self.0["data"]["processes"].as_array().is_some_and(|all| all.iter().any(|process| process["user"] == name))
    }

    /// Returns the GPU with this NVML index.
    pub fn gpu(&self, index: usize) -> &Value {
        &self.0["data"]["gpus"][index]
    }
}

/// A process of a report.
#[derive(Clone, Copy, Debug)]
pub struct ReportedProcess<'a>(pub &'a Value);

impl<'a> ReportedProcess<'a> {
    /// Returns whether every record of the process arrived.
    pub fn is_exact(&self) -> bool {
        self.0["exact"] == true
    }

    /// Returns whether the process has exited.
    pub fn has_ended(&self) -> bool {
        !self.0["ended"].is_null()
    }

    /// Returns the process's entry for the GPU with this UUID.
    pub fn on(&self, uuid: &str) -> Option<ReportedGpu<'a>> {
        let gpus = self.0["gpus"].as_array()?;
        gpus.iter().find(|gpu| gpu["uuid"] == uuid).map(ReportedGpu)
    }

    /// Returns the process's entry for its only GPU.
    ///
    /// # Panics
    /// When the process is on no GPU or on several.
    pub fn only_gpu(&self) -> ReportedGpu<'a> {
        match self.0["gpus"].as_array().map(Vec::as_slice) {
            Some([only]) => ReportedGpu(only),
            _ => panic!("not on exactly one GPU: {:#}", self.0),
        }
    }

    /// Returns a number of the process's host memory.
    pub fn host(&self, field: &str) -> u64 {
        number(&self.0["host"], field)
    }

    /// Returns a number of the process itself.
    pub fn number(&self, field: &str) -> u64 {
        number(self.0, field)
    }

    /// Returns the process's refused allocations.
    pub fn failures(&self) -> &'a [Value] {
        self.0["failures"].as_array().map_or(&[], Vec::as_slice)
    }
}

/// A process on one GPU.
#[derive(Clone, Copy, Debug)]
pub struct ReportedGpu<'a>(pub &'a Value);

impl ReportedGpu<'_> {
    /// Returns a number of the entry, such as `live_bytes`.
    pub fn number(&self, field: &str) -> u64 {
        number(self.0, field)
    }

    /// Returns a number of one kind, or 0 if the kind was never seen.
    pub fn kind(&self, kind: &str, field: &str) -> u64 {
        self.0["kinds"][kind][field].as_u64().unwrap_or(0)
    }
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} is no number in {value:#}"))
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

//! The loaded kernel driver's version, which decides how requests to the driver are decoded.

use super::Collector;
use crate::sources::driver_version::DriverVersion;
use crate::watch::session::parts::SessionParts;

impl Collector for DriverVersion {
    fn collect_before_records(&mut self, parts: &mut SessionParts) {
        self.news().into_iter().for_each(|version| parts.sink.step(version));
    }
}

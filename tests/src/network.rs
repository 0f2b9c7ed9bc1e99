//! Network namespaces, which give each of several agents on one machine its own address.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use crate::harness::cannot_run;

/// A network namespace with one address that is reachable from the test's namespace. It is deleted
/// when it is dropped.
#[derive(Debug)]
pub struct Network {
    name: String,
    address: Ipv4Addr,
}

impl Network {
    /// Creates the namespace with this number, from 0 to 63, of this test process. Ignores
    /// the test if none can be created.
    pub fn new(number: u8) -> Self {
        let own = std::process::id();
        let name = format!("mw{own}-{number}");
        let (outer, inner) = (format!("mwo{own}-{number}"), format!("mwi{own}-{number}"));
        let third = u8::try_from(own % 250).unwrap_or_default();
        let [gate, address] = [1, 2].map(|host| Ipv4Addr::new(10, 213, third, 4 * number + host));
        let network = Self { name: name.clone(), address };
        let (gate, inside) = (format!("{gate}/30"), format!("{address}/30"));
        let steps: [&[&str]; 6] = [
            &["netns", "add", &name],
            &["link", "add", &outer, "type", "veth", "peer", "name", &inner, "netns", &name],
            &["addr", "add", &gate, "dev", &outer],
            &["link", "set", &outer, "up"],
            &["-n", &name, "addr", "add", &inside, "dev", &inner],
            &["-n", &name, "link", "set", &inner, "up"],
        ];
        for step in steps {
            if !Command::new("ip").args(step).status().is_ok_and(|status| status.success()) {
                cannot_run(format!("no network namespaces here: ip {}", step.join(" ")));
            }
        }
        network
    }

    /// Returns the address of the namespace.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns a command that runs in this network namespace, and otherwise in the test's
    /// namespaces.
    pub fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/run/netns/{}", self.name)).arg("--").arg(command.get_program());
        inside.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Deleting the namespace deletes its end of the veth pair, and with it the other end.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status();
    }
}

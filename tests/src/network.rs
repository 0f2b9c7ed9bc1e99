//! Network namespaces: a machine's own address for each of several agents on one machine.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

/// A network namespace with one address, which this one reaches; it goes when it is dropped.
#[derive(Debug)]
pub struct Network {
    name: String,
    address: Ipv4Addr,
}

impl Network {
    /// The test's own namespace of this number, from 0 to 63; `None`, with the reason on standard error, where none can be made.
    pub fn new(number: u8) -> Option<Self> {
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
                eprintln!("SKIPPED: no network namespaces here: ip {}", step.join(" "));
                return None;
            }
        }
        Some(network)
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A command that runs in it, and in everything else where this process does.
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
        // Its end of the pair goes with it, and with that the other.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status();
    }
}

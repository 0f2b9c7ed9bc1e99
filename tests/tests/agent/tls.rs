//! The agent serves TLS to third-party clients that verify its certificate.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use memwatch_tests::certificates::{TestCertificate, self_signed};
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, RunningProgram, SimulatedGpu, http, until};

/// Python script that reads a URL with Python's own TLS and trusts only this certificate.
const CLIENT: &str = "import ssl, sys, urllib.request as r; \
    print(r.urlopen(sys.argv[2], context=ssl.create_default_context(cafile=sys.argv[1])).read().decode())";

fn read(believed: &Path, url: &str) -> Output {
    Command::new("python3").args(["-c", CLIENT]).arg(believed).arg(url).output().expect("Python is there")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts an agent that serves on a loopback port, and reads its output.
fn serving(gpu: &SimulatedGpu, ours: &TestCertificate) -> (RunningProgram, SocketAddr) {
    let (address, socket) = (http::free_port(), gpu.directory().join("memwatch.sock"));
    let mut command = gpu.memwatch(&["agent", "--listen", &address.to_string()]);
    command.arg("--tls-cert").arg(&ours.certificate).arg("--tls-key").arg(&ours.key).arg("--socket").arg(socket);
    let mut program = RunningProgram::start_with_errors(command);
    program.until_line_with(&format!("serving metrics on https://{address}/metrics"));
    program.until_line_with("watching this machine");
    (program, address)
}

#[test(alone)]
fn https_serves_encrypted_and_reloads_a_renewed_certificate() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let ours = self_signed(gpu.directory(), "ours");
    let other = self_signed(gpu.directory(), "other");
    let believed = gpu.directory().join("believed.pem");
    fs::copy(&ours.certificate, &believed).expect("both are ours");
    let (mut agent, address) = serving(&gpu, &ours);
    let url = format!("https://{address}/metrics");
    let scraped = read(&believed, &url);
    assert!(text(&scraped.stdout).contains("memwatch_build_info{"), "{scraped:?}");
    let unbelieved = read(&other.certificate, &url);
    assert!(text(&unbelieved.stderr).contains("CERTIFICATE_VERIFY_FAILED"), "{unbelieved:?}");
    assert!(http::get(address, "/metrics", "").is_none(), "in the clear it says nothing");
    assert!(read(&believed, &format!("https://localhost:{}/healthz", address.port())).status.success());

    let socket = gpu.directory().join("memwatch.sock");
    let link = gpu.run_memwatch(&["web", "--no-open", "--agent", &socket.to_string_lossy()]);
    let link = link.stdout.trim().to_owned();
    assert!(link.starts_with(&format!("https://{address}/open/")), "{link}");
    let page = read(&believed, &link);
    assert!(text(&page.stdout).contains("<table"), "{page:?}");

    for (from, to) in [(&other.certificate, &ours.certificate), (&other.key, &ours.key)] {
        fs::copy(from, to).expect("both are ours");
    }
    until("the new certificate is served", || read(&other.certificate, &url).status.success().then_some(()));
    agent.until_line_with("serving with the new certificate of ");
    fs::write(&ours.key, "no key").expect("it is ours");
    until("what is wrong with the newest is reported", || {
        assert!(read(&other.certificate, &url).status.success(), "the one from before is served on");
        let printed = agent.next_line_if_any()?;
        printed.contains("it has no private key").then_some(())
    });
}

#[test(alone)]
fn an_address_of_the_network_takes_a_decision_and_wrong_files_are_named() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let ours = self_signed(gpu.directory(), "ours");
    let other = self_signed(gpu.directory(), "other");
    let socket = gpu.directory().join("memwatch.sock");
    let agent = |words: &[&str]| {
        let socket = socket.to_string_lossy();
        gpu.run_memwatch(&[&["agent", "--socket", &socket], words].concat())
    };
    let network = ["--listen", "0.0.0.0:0"];
    agent(&network).assert_ended_with(2, &["--tls-cert FILE --tls-key FILE", "--insecure=metrics"]);
    let [certificate, key, other_key] = [&ours.certificate, &ours.key, &other.key].map(|path| path.to_string_lossy());
    agent(&[&network[..], &["--tls-cert", &certificate]].concat()).assert_ended_with(2, &["--tls-key <FILE>"]);
    for (certificate, key, why) in [
        ("/nowhere", &*key, "--tls-cert /nowhere: No such file"),
        (&*key, &*key, "it has no certificate in PEM"),
        (&*certificate, &*certificate, "it has no private key in PEM"),
        (&*certificate, &*other_key, "it does not match --tls-key"),
    ] {
        agent(&[&network[..], &["--tls-cert", certificate, "--tls-key", key]].concat()).assert_ended_with(1, &[why]);
    }
}

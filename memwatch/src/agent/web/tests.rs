use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};

use memwatch_core::snapshot::Snapshot;

use super::*;
use crate::agent::http::tests::{SERVING, ask, serving_page};
use crate::client::protocol::PageLink;
use crate::render::fixture;

/// A program name that a hostile user may choose.
const HOSTILE: &str = "</td><script>alert(1)</script>\u{202e}&\"'";

fn hostile_node() -> Snapshot {
    let mut snapshot = fixture::busy_node();
    HOSTILE.clone_into(&mut snapshot.processes[0].command);
    HOSTILE.clone_into(&mut snapshot.processes[0].comm);
    snapshot
}

/// Returns the path of a link.
fn link(access: &PageAccess, viewer: Viewer) -> String {
    let PageLink::Open { url } = access.link(viewer) else { panic!("it is served") };
    url[url.find("/open/").expect("a link")..].to_owned()
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

/// Returns the path of an opened page.
fn opened(address: SocketAddr, access: &PageAccess, viewer: Viewer) -> String {
    let answer = get(address, &link(access, viewer));
    assert!(answer.starts_with("HTTP/1.1 303 "), "{answer}");
    let place = answer.lines().find_map(|line| line.strip_prefix("location: ")).expect("it leads somewhere");
    assert!(place.starts_with("/s/") && place.ends_with('/'), "{place}");
    place.to_owned()
}

/// Returns the data of the next event with this name.
fn event(lines: &mut impl Iterator<Item = std::io::Result<String>>, name: &str) -> serde_json::Value {
    let begin = format!("event: {name}");
    let mut lines = lines.map(|line| line.expect("the server goes on"));
    assert!(lines.any(|line| line == begin), "no {name}");
    let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).expect("data");
    serde_json::from_str(&data).expect("JSON")
}

#[test]
fn web_link_opens_the_page_once_and_wrong_links_are_refused() {
    serving_page(SERVING, Some(fixture::busy_node()), |address, access| {
        let own = link(access, Viewer::Everything);
        assert!(get(address, &own).starts_with("HTTP/1.1 303 "));
        let again = get(address, &own);
        assert!(
            again.starts_with("HTTP/1.1 403 ")
                && again.contains("was used or has expired")
                && again.contains("memwatch web")
        );
        let wrong = "0".repeat(64);
        for path in ["/", "/open/x", "/s/x/", &format!("/s/{wrong}/"), &format!("/s/{wrong}/events")] {
            let answer = get(address, path);
            assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("memwatch web"), "{path}: {answer}");
            assert!(!answer.contains("python"), "{path}: {answer}");
        }
        let json = get(address, &format!("/s/{wrong}/snapshot.json"));
        assert!(json.starts_with("HTTP/1.1 403 "), "{json}");
    });
}

#[test]
fn the_page_is_whole_without_scripts_and_text_of_strangers_stays_text() {
    serving_page(SERVING, Some(hostile_node()), |address, access| {
        let page = get(address, &opened(address, access, Viewer::Everything));
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        for part in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "<th scope=\"col\">USED</th>",
            "&lt;script&gt;alert(1)&lt;/script&gt;\\u{202e}&amp;",
            "NVIDIA H100",
        ] {
            assert!(page.contains(part), "no {part} in {page}");
        }
        assert!(!page.contains("<script>") && !page.contains('\u{202e}') && !page.contains("<!--"), "{page}");
    });
}

#[test]
fn web_viewer_sees_their_own_processes_and_the_hidden_sum() {
    let snapshot = fixture::busy_node();
    let uid = snapshot.processes.iter().find_map(|process| process.uid).expect("somebody's");
    serving_page(SERVING, Some(snapshot.clone()), |address, access| {
        let of = |viewer| {
            let answer = get(address, &format!("{}snapshot.json", opened(address, access, viewer)));
            let (_, json) = answer.split_once("\r\n\r\n").expect("a body");
            serde_json::from_str::<serde_json::Value>(json).expect("JSON")
        };
        let (all, own, nobody) = (of(Viewer::Everything), of(Viewer::User(uid)), of(Viewer::User(4_000_000)));
        let count = |json: &serde_json::Value| json["data"]["processes"].as_array().expect("a list").len();
        assert_eq!(all["schema"], "memwatch.page/1");
        assert_eq!(count(&all), snapshot.processes.len());
        assert_eq!(count(&own), snapshot.processes.iter().filter(|process| process.uid == Some(uid)).count());
        assert_eq!((count(&nobody), nobody["data"]["sees_everything"].as_bool()), (0, Some(false)));
        assert!(nobody["data"]["hidden"]["processes"].as_u64() > Some(0), "{nobody}");
    });
}

#[test]
fn an_open_page_hears_what_changes() {
    serving_page(SERVING, Some(fixture::busy_node()), |address, access| {
        let page = opened(address, access, Viewer::Everything);
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {page}events HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
        let mut lines = BufReader::new(stream).lines();
        let trail = event(&mut lines, "trail");
        assert_eq!(trail["gpus"].as_array().map(Vec::len), Some(fixture::busy_node().gpus.len()));
        for _ in 0..2 {
            let snapshot = event(&mut lines, "snapshot");
            assert_eq!(snapshot["data"]["gpus"].as_array().map(Vec::len), Some(fixture::busy_node().gpus.len()));
        }
    });
}

#[test]
fn the_largest_processes_are_shown_and_the_others_counted() {
    serving_page(SERVING, Some(fixture::crowded_node(2000)), |address, access| {
        let answer = get(address, &format!("{}snapshot.json", opened(address, access, Viewer::Everything)));
        let (_, json) = answer.split_once("\r\n\r\n").expect("a body");
        let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(json["data"]["processes"].as_array().map(Vec::len), Some(feed::PROCESSES));
        assert!(json["data"]["left_out_processes"].as_u64() > Some(0), "{}", json["data"]["left_out_processes"]);
    });
}

#[test]
fn web_static_files_need_no_link_and_other_paths_are_not_found() {
    serving_page(SERVING, Some(fixture::busy_node()), |address, _| {
        let script = get(address, "/web/page.js");
        assert!(script.starts_with("HTTP/1.1 200 OK\r\n") && script.contains("text/javascript"), "{script}");
        for path in ["/web/", "/web/page.html", "/web/..%2Fpage.js", "/web/nothing.js"] {
            assert!(get(address, path).starts_with("HTTP/1.1 404 "), "{path}");
        }
    });
}

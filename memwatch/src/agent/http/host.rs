//! Checks the host name in requests on a loopback address. With DNS rebinding, any site's name can
//! resolve to 127.0.0.1, and the site's scripts could read the answers. Requests for names that a
//! site could own are therefore rejected.

use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use hyper::Request;

/// Returns whether a request names this machine or has no host name. Valid hosts are addresses,
/// `localhost` and names below it (RFC 6761, 6.3), and names without a dot, which no site has.
/// HTTP/1.0 requires no host.
pub(super) fn is_of_loopback<B>(request: &Request<B>) -> bool {
    let mut named = request.headers().get_all(header::HOST).iter();
    let host = named.next().map(|host| host.to_str().unwrap_or("."));
    let asked = request.uri().authority().map(Authority::as_str);
    named.next().is_none() && [host, asked].into_iter().flatten().all(is_local_name)
}

/// Returns the answer to a request for another host.
pub(super) fn refusal() -> Response {
    (StatusCode::MISDIRECTED_REQUEST, "memwatch answers only requests to localhost or an IP address\n").into_response()
}

fn is_local_name(host: &str) -> bool {
    // `[::1]:9747`, `::1`, `127.0.0.1:9747`, `localhost:9747`
    let without_port = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None if host.matches(':').count() > 1 => host,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let name = without_port.trim_end_matches('.').to_ascii_lowercase();
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    is_address || name == "localhost" || name.ends_with(".localhost") || (!name.contains('.') && !host.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_answered(hosts: &[&str], uri: &str) -> bool {
        let request = hosts.iter().fold(Request::get(uri), |request, host| request.header(header::HOST, *host));
        is_of_loopback(&request.body(()).expect("a request"))
    }

    #[test]
    fn other_sites_names_are_refused_and_this_machines_are_not() {
        for host in [
            "localhost",
            "LOCALHOST:9747",
            "a.localhost:1",
            "127.0.0.1:9747",
            "[::1]:9747",
            "::1",
            "10.0.0.7",
            "gpu-7:9747",
            "",
        ] {
            assert!(is_answered(&[host], "/metrics"), "{host}");
        }
        assert!(is_answered(&[], "/metrics") && is_answered(&["gpu-7"], "http://localhost:9747/metrics"));
        for host in [
            "evil.example",
            "evil.example:9747",
            "127.0.0.1.evil.example",
            "localhost.evil.example.",
            "a.b:c:d",
            "com.",
        ] {
            assert!(!is_answered(&[host], "/metrics"), "{host}");
        }
        assert!(!is_answered(&["localhost", "evil.example"], "/metrics"));
        assert!(!is_answered(&["localhost"], "http://evil.example/metrics"));
    }
}

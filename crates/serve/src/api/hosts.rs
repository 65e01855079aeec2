//! Which host names a server without keys answers to.
//!
//! A page on the web can have its own name resolve to 127.0.0.1 (DNS rebinding); what it then sends
//! goes to this server, and to the browser it is the page's own site. Such a request names the page's
//! host. An address in its place cannot be forged so: it is what was connected to.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header;

/// A host that was named, unless the server answers to it.
pub(crate) fn foreign(request: &Request, allowed: &[String]) -> Option<String> {
    let named = request.headers().get(header::HOST);
    // A request line with a whole address goes before the header.
    let host = match (request.uri().host(), named) {
        (Some(host), _) => host,
        (None, Some(header)) => header.to_str().unwrap_or("?"),
        // HTTP/1.0; no browser leaves it out.
        (None, None) => return None,
    };
    let name = name_of(host);
    let known = is_own(&name) || allowed.iter().any(|it| it == "*" || name_of(it) == name);
    (!known).then_some(name)
}

/// Without a port and in lower case.
fn name_of(host: &str) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = if host.parse::<Ipv6Addr>().is_ok() { host } else { name };
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// An address, or this machine's own name for itself, which no page's host can be.
fn is_own(name: &str) -> bool {
    address(name).is_some() || is_localhost(name)
}

/// Whether this is the machine itself, by its name for itself or by address.
pub(crate) fn is_loopback(host: &str) -> bool {
    address(host).map_or_else(|| is_localhost(host), |address| address.is_loopback())
}

fn address(name: &str) -> Option<IpAddr> {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    bare.parse().ok()
}

fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign_host(host: &str, allowed: &[&str]) -> Option<String> {
        let request = Request::builder().uri("/v1/models").header("host", host);
        let allowed: Vec<String> = allowed.iter().map(|it| (*it).to_owned()).collect();
        foreign(&request.body(axum::body::Body::empty()).unwrap(), &allowed)
    }

    #[test]
    fn addresses_and_this_machine_are_answered_to() {
        let own = ["127.0.0.1", "127.0.0.1:8080", "10.0.0.11:80", "[::1]:8080", "[::1]", "::1"];
        for host in own.into_iter().chain(["localhost", "LOCALHOST:1", "localhost.", "a.localhost"])
        {
            assert_eq!(foreign_host(host, &[]), None, "{host}");
        }
    }

    #[test]
    fn names_are_answered_to_only_where_they_are_allowed() {
        let others =
            ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil"];
        for host in others.into_iter().chain(["", "?", "1.2.3", "notlocalhost", "[::1].evil"]) {
            assert!(foreign_host(host, &[]).is_some(), "{host}");
            assert!(foreign_host(host, &["gateway"]).is_some(), "{host}");
            assert_eq!(foreign_host(host, &["gateway", "*"]), None, "{host}");
        }
        for host in ["gateway", "gateway:8080", "Gateway.", "GATEWAY:1"] {
            assert_eq!(foreign_host(host, &["x", "Gateway:8080"]), None, "{host}");
        }
    }

    #[test]
    fn the_request_line_goes_before_the_header() {
        let request = |uri: &str, host: &str| {
            let request = Request::builder().uri(uri).header("host", host);
            foreign(&request.body(axum::body::Body::empty()).unwrap(), &[])
        };
        assert_eq!(
            request("http://evil.example/v1/models", "127.0.0.1"),
            Some("evil.example".into())
        );
        assert_eq!(request("http://127.0.0.1/v1/models", "evil.example"), None);
        let bare = Request::builder().uri("/").body(axum::body::Body::empty()).unwrap();
        assert_eq!(foreign(&bare, &[]), None);
    }
}

//! Access control of the page: one-time links, and the sessions that they open.
//!
//! Links are handed out over the agent's socket, where the kernel identifies the user. A session's
//! secret is part of its URLs and not of a cookie, because cookies of a loopback address are sent
//! to every port of that address, and thus to servers of other users.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memwatch_core::snapshot::Viewer;

use crate::client::protocol::PageLink;
use crate::sources::login_users::login_user;

/// Lifetime of an unused link.
const LINK_LASTS: Duration = Duration::from_mins(5);
/// Lifetime of a session.
const SESSION_LASTS: Duration = Duration::from_hours(12);
/// Maximum number of links, and of sessions, per owner. A new one replaces the oldest.
const OF_ONE: usize = 8;
/// Maximum number of open pages per session. A viewer with all its sessions leaves room for others.
const OPEN_PAGES: usize = 4;
/// Maximum number of links, and of sessions, of all owners.
const OF_ALL: usize = 1024;

/// A random secret of 256 bits.
#[derive(Clone, PartialEq, Eq)]
struct Secret([u8; 32]);

impl Secret {
    fn draw() -> io::Result<Self> {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Parses a secret; `None` if the text does not have its format.
    fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Compares in constant time.
    fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// A link or a session.
struct AccessGrant {
    secret: Secret,
    viewer: Viewer,
    ends: Instant,
    /// Cloned by each open page, so that the reference count limits them.
    pages: Arc<()>,
}

/// Network exposure of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// Served on loopback addresses only.
    Loopback,
    /// Served on the network without encryption.
    Readable,
    /// Served on the network through TLS.
    Encrypted,
}

/// Links and sessions of this agent's page.
pub(crate) struct PageAccess {
    /// Address on which HTTP is served; `None` if it is not.
    address: Option<SocketAddr>,
    exposure: Exposure,
    known: Mutex<[Vec<AccessGrant>; 2]>,
}

#[derive(Clone, Copy)]
enum GrantKind {
    Link,
    Session,
}

impl PageAccess {
    /// Creates the access control for an agent that serves HTTP on this address.
    pub(crate) fn new(address: Option<SocketAddr>, exposure: Exposure) -> Arc<Self> {
        Arc::new(Self { address, exposure, known: Mutex::default() })
    }

    /// Returns whether the page is served to a connection with this local address.
    pub(crate) fn serves_on(&self, local: IpAddr) -> bool {
        self.exposure != Exposure::Loopback || local.to_canonical().is_loopback()
    }

    /// Creates a link for this viewer, or returns why there is none.
    pub(crate) fn link(&self, viewer: Viewer) -> PageLink {
        let closed = |why: &str| PageLink::Closed { why: why.to_owned() };
        let Some(address) = self.address else {
            return closed(
                "it serves no HTTP. Start it with --listen: sudo memwatch agent --listen 127.0.0.1:9747 (or MEMWATCH_LISTEN in its unit)",
            );
        };
        let reached = reached_at(address);
        if !self.serves_on(reached.ip()) {
            return closed(
                "it listens on an address of the network, where the page would be sent unencrypted. Give it a certificate with --tls-cert and \
                 --tls-key, let it listen on 127.0.0.1 and forward the port with ssh -L, or accept that with --insecure=page",
            );
        }
        match self.add(GrantKind::Link, viewer, LINK_LASTS) {
            Ok(secret) => {
                let scheme = if self.exposure == Exposure::Encrypted { "https" } else { "http" };
                PageLink::Open { url: format!("{scheme}://{reached}/open/{secret}") }
            }
            Err(error) => closed(&format!("no link can be made: {error}")),
        }
    }

    /// Uses up a link and returns the session that it opens; `None` if the link is not valid.
    ///
    /// # Errors
    /// If no session can be created.
    pub(crate) fn open(&self, link: &str) -> io::Result<Option<String>> {
        let Some(secret) = Secret::parse(link) else { return Ok(None) };
        let found = {
            let mut known = self.known(GrantKind::Link);
            let links = &mut known[GrantKind::Link as usize];
            let at = links.iter().position(|link| link.secret.is(&secret));
            at.map(|at| links.remove(at))
        };
        let Some(AccessGrant { viewer, .. }) = found else { return Ok(None) };
        self.add(GrantKind::Session, viewer, SESSION_LASTS).map(|session| Some(session.to_string()))
    }

    /// Returns the viewer of a session; `None` if the session does not exist or has ended.
    pub(crate) fn viewer(&self, session: &str) -> Option<Viewer> {
        let secret = Secret::parse(session)?;
        let known = self.known(GrantKind::Session);
        known[GrantKind::Session as usize]
            .iter()
            .find(|session| session.secret.is(&secret))
            .map(|session| session.viewer)
    }

    /// Reserves one of the session's open pages while the result is held; `None` if all are in use.
    pub(crate) fn open_page(&self, session: &str) -> Option<Arc<()>> {
        let secret = Secret::parse(session)?;
        let known = self.known(GrantKind::Session);
        let session = known[GrantKind::Session as usize].iter().find(|session| session.secret.is(&secret))?;
        (Arc::strong_count(&session.pages) <= OPEN_PAGES).then(|| Arc::clone(&session.pages))
    }

    fn add(&self, sort: GrantKind, viewer: Viewer, lasts: Duration) -> io::Result<Secret> {
        let secret = Secret::draw()?;
        let mut known = self.known(sort);
        let list = &mut known[sort as usize];
        let whose = owner(viewer);
        let mut own = list.iter().enumerate().filter(|(_, known)| owner(known.viewer) == whose).map(|(at, _)| at);
        let oldest = own.next();
        if let Some(at) = oldest.filter(|_| own.count() + 1 >= OF_ONE) {
            list.remove(at);
        }
        if list.len() >= OF_ALL {
            list.remove(oldest_of_most(list));
        }
        list.push(AccessGrant { secret: secret.clone(), viewer, ends: Instant::now() + lasts, pages: Arc::default() });
        Ok(secret)
    }

    /// Locks the table after removing expired entries.
    fn known(&self, sort: GrantKind) -> MutexGuard<'_, [Vec<AccessGrant>; 2]> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        known[sort as usize].retain(|known| known.ends > now);
        known
    }
}

/// Returns the login user of a viewer; `None` for viewers who see everything. Those share one
/// limit.
fn owner(viewer: Viewer) -> Option<u32> {
    match viewer {
        Viewer::Everything => None,
        Viewer::User(uid) => Some(login_user(uid)),
    }
}

/// Returns the index of the oldest entry of the owner with the most entries. Viewers who see
/// everything are chosen only if there is no other owner.
fn oldest_of_most(list: &[AccessGrant]) -> usize {
    let mut counts = BTreeMap::<Option<u32>, usize>::new();
    for known in list {
        *counts.entry(owner(known.viewer)).or_default() += 1;
    }
    let most = counts.iter().max_by_key(|(owner, count)| (owner.is_some(), **count)).map(|(owner, _)| *owner);
    list.iter().position(|known| Some(owner(known.viewer)) == most).unwrap_or(0)
}

/// Returns the address at which a browser on this machine reaches a listener.
fn reached_at(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: &str, exposure: Exposure) -> Arc<PageAccess> {
        PageAccess::new(Some(address.parse().expect("an address")), exposure)
    }

    fn link(access: &PageAccess, viewer: Viewer) -> String {
        match access.link(viewer) {
            PageLink::Open { url } => url.rsplit('/').next().expect("its last part").to_owned(),
            PageLink::Closed { why } => panic!("{why}"),
        }
    }

    #[test]
    fn a_link_opens_one_session_of_its_viewer_and_then_nothing() {
        let access = access("127.0.0.1:9747", Exposure::Loopback);
        let own = link(&access, Viewer::User(7));
        assert_eq!(access.viewer(&own), None, "a link is no session");
        let session = access.open(&own).expect("it can be made").expect("the link is new");
        assert_eq!(access.viewer(&session), Some(Viewer::User(7)));
        assert_ne!(session, own);
        assert_eq!(access.open(&own).expect("no error"), None, "used");
        let all = access.open(&link(&access, Viewer::Everything)).expect("it can be made").expect("new");
        assert_eq!((access.viewer(&all), access.viewer(&session)), (Some(Viewer::Everything), Some(Viewer::User(7))));
    }

    #[test]
    fn web_access_rejects_links_and_sessions_not_issued() {
        let access = access("127.0.0.1:9747", Exposure::Loopback);
        let own = link(&access, Viewer::Everything);
        let other = own.chars().rev().collect::<String>();
        for wrong in ["", "0", "é", &own[1..], &own.to_uppercase().replace('0', "G"), &format!("{own}0"), &other] {
            assert_eq!(access.open(wrong).expect("no error"), None, "{wrong}");
            assert_eq!(access.viewer(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn web_session_has_a_limit_of_open_pages_that_is_released() {
        let access = access("127.0.0.1:9747", Exposure::Loopback);
        let session = access.open(&link(&access, Viewer::User(7))).expect("it can be made").expect("new");
        let mut open: Vec<_> = (0..OPEN_PAGES).map(|_| access.open_page(&session).expect("there is room")).collect();
        assert_eq!(access.open_page(&session), None);
        open.pop();
        assert!(access.open_page(&session).is_some() && access.open_page("").is_none());
    }

    #[test]
    fn web_access_evicts_the_oldest_link_of_the_same_viewer() {
        let access = access("127.0.0.1:9747", Exposure::Loopback);
        let other = link(&access, Viewer::User(1));
        let links: Vec<String> = (0..=OF_ONE).map(|_| link(&access, Viewer::User(2))).collect();
        assert_eq!(access.open(&links[0]).expect("no error"), None);
        assert!(access.open(&links[1]).expect("no error").is_some());
        assert!(access.open(&other).expect("no error").is_some());
    }

    #[test]
    fn a_page_is_on_loopback_addresses_unless_it_may_be_read_on_the_way() {
        let url = |address: &str, exposure| access(address, exposure).link(Viewer::Everything);
        for (address, begin) in [
            ("127.0.0.1:1", "http://127.0.0.1:1/open/"),
            ("127.0.0.9:1", "http://127.0.0.9:1/open/"),
            ("0.0.0.0:1", "http://127.0.0.1:1/open/"),
            ("[::]:1", "http://[::1]:1/open/"),
            ("[::1]:1", "http://[::1]:1/open/"),
        ] {
            assert!(
                matches!(url(address, Exposure::Loopback), PageLink::Open { url } if url.starts_with(begin)),
                "{address}"
            );
        }
        for address in ["192.0.2.1:1", "[2001:db8::1]:1"] {
            assert!(
                matches!(url(address, Exposure::Loopback), PageLink::Closed { why } if why.contains("--insecure")),
                "{address}"
            );
            assert!(matches!(url(address, Exposure::Readable), PageLink::Open { .. }), "{address}");
            let encrypted = url(address, Exposure::Encrypted);
            assert!(matches!(encrypted, PageLink::Open { url } if url.starts_with("https://")), "{address}");
        }
        let none = PageAccess::new(None, Exposure::Readable).link(Viewer::Everything);
        assert!(matches!(none, PageLink::Closed { why } if why.contains("--listen")));
        let access = access("0.0.0.0:1", Exposure::Loopback);
        for (local, is_served) in [("127.0.0.1", true), ("::ffff:127.0.0.1", true), ("192.0.2.1", false)] {
            assert_eq!(access.serves_on(local.parse().expect("an address")), is_served, "{local}");
        }
    }

    #[test]
    fn web_access_at_capacity_evicts_the_oldest_of_the_largest_user() {
        let access = access("127.0.0.1:9747", Exposure::Loopback);
        let open = |viewer| {
            let link = link(&access, viewer);
            access.open(&link).expect("it can be made").expect("the link is new")
        };
        let root = open(Viewer::Everything);
        let greedy: Vec<String> = (0..OF_ONE).map(|_| open(Viewer::User(7))).collect();
        let of_others = OF_ALL - 1 - OF_ONE;
        let others: Vec<String> = (0..of_others)
            .map(|number| open(Viewer::User(1_000_000 + u32::try_from(number).expect("small"))))
            .collect();
        let new = open(Viewer::User(8));
        assert_eq!(access.viewer(&greedy[0]), None);
        for (session, viewer) in [(&greedy[1], Viewer::User(7)), (&new, Viewer::User(8)), (&root, Viewer::Everything)] {
            assert_eq!(access.viewer(session), Some(viewer));
        }
        assert!(others.iter().all(|session| access.viewer(session).is_some()));
    }
}

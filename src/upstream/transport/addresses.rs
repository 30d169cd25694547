//! The addresses of names: resolution, the order of connection attempts, and the memory of failed addresses.
//!
//! The rule is Happy Eyeballs (RFC 8305): every address of a name is tried once. The next attempt starts after a failure, or beside an
//! attempt not connected in time. A failed address is tried last for a while. So a connection fails only when every address fails.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use Ordering::Relaxed;
use tollgate_clock::Clock;

use super::resolver::Resolver;

/// Time during which a failed address is tried last.
const AVOIDED_FOR: Duration = Duration::from_secs(30);

/// A longer lookup has failed.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// How long a connection is awaited before the next address is tried beside it (RFC 8305 section 8, Connection Attempt Delay).
pub(super) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The addresses of names, for all workers: an address failed for one worker is avoided by all.
pub(crate) struct Addresses {
    resolver: Resolver,
    clock: Clock,
    /// Whether an address is avoided. The lock is not taken while none is.
    any_avoided: AtomicBool,
    /// The failed addresses, each with the clock reading of its next first try.
    avoided: Mutex<HashMap<SocketAddr, Duration>>,
}

impl Addresses {
    pub(in crate::upstream) fn new(resolver: Resolver, clock: Clock) -> Addresses {
        Addresses {
            resolver,
            clock,
            any_avoided: AtomicBool::new(false),
            avoided: Mutex::default(),
        }
    }

    /// The addresses of a name. Addresses of a family without a route from this machine are left out, unless no others exist.
    pub(super) async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let lookup = self.resolver.lookup(host, port);
        let mut found = tokio::time::timeout(LOOKUP_MAX, lookup).await??;
        let mut seen = Vec::with_capacity(found.len());
        found.retain(|address| {
            let is_new = !seen.contains(address);
            seen.push(*address);
            is_new
        });
        let routed: Vec<SocketAddr> = found.iter().copied().filter(has_route).collect();
        Ok(if routed.is_empty() { found } else { routed })
    }

    /// The index of the address to try first: by turn among the addresses without a failure. An address failed [`AVOIDED_FOR`] ago is tried
    /// by one caller, which decides about a further avoidance.
    pub(super) fn choose(&self, addresses: &[SocketAddr], turn: usize) -> usize {
        if !self.any_avoided.load(Relaxed) || addresses.len() < 2 {
            return turn % addresses.len().max(1);
        }
        let now = self.clock.elapsed();
        let mut avoided = self.avoided.lock().expect("no panic under this lock");
        let due = addresses
            .iter()
            .position(|address| avoided.get(address).is_some_and(|until| *until <= now));
        if let Some(due) = due {
            avoided.insert(addresses[due], now + AVOIDED_FOR);
            return due;
        }
        let good = || (0..addresses.len()).filter(|at| !avoided.contains_key(&addresses[*at]));
        match good().count() {
            0 => (0..addresses.len())
                .min_by_key(|at| avoided.get(&addresses[*at]))
                .unwrap_or(0),
            count => good().nth(turn % count).unwrap_or(0),
        }
    }

    /// The other addresses in the order of attempts: families in turn (RFC 8305 section 4), failed addresses last.
    fn others(&self, addresses: &[SocketAddr], first: usize) -> Vec<usize> {
        let avoided = self.avoided.lock().expect("no panic under this lock");
        let is_v6 = |at: usize| addresses[at].is_ipv6();
        let mut of_family = [0, 0];
        let mut others: Vec<_> = (1..addresses.len())
            .map(|step| {
                let at = (first + step) % addresses.len();
                let place = &mut of_family[usize::from(is_v6(at))];
                *place += 1;
                let until = avoided.get(&addresses[at]).copied();
                (until, *place, is_v6(at) == is_v6(first), at)
            })
            .collect();
        others.sort_unstable();
        others.into_iter().map(|(.., at)| at).collect()
    }

    /// Opens a connection by `open` at the first accepting address: `first`, then the others. The next attempt starts after a failure, or
    /// without a connection within `delay`; the losing connections are dropped.
    ///
    /// # Errors
    ///
    /// The failure of each address, with the address if there are several.
    pub(super) async fn open<T, F>(
        &self,
        name: &str,
        (addresses, first): (&[SocketAddr], usize),
        delay: Duration,
        open: impl Fn(usize) -> F,
    ) -> Result<T, String>
    where
        F: Future<Output = Result<T, String>>,
    {
        if addresses.len() < 2 {
            return open(first).await;
        }
        let start = |at: usize| (at, Box::pin(open(at)));
        let mut waiting = self.others(addresses, first).into_iter();
        let mut running = vec![start(first)];
        let mut failures = Vec::new();
        // Each round starts an address, or ends an attempt.
        while let Some((latest, _)) = running.last() {
            let latest = addresses[*latest];
            let ended = any(&mut running);
            let ended = match waiting.len() {
                0 => Some(ended.await),
                _ => tokio::time::timeout(delay, ended).await.ok(),
            };
            match ended {
                Some((at, Ok(opened))) => {
                    self.record_success(name, addresses[at]);
                    return Ok(opened);
                }
                Some((at, Err(error))) => {
                    self.avoid(name, addresses[at], &error);
                    failures.push(format!("{}: {error}", addresses[at]));
                }
                None => self.avoid(name, latest, &format!("no connection within {delay:?}")),
            }
            running.extend(waiting.next().map(start));
        }
        Err(failures.join("; "))
    }

    /// Records a failed address, to be tried last for a while.
    #[cold]
    fn avoid(&self, name: &str, address: SocketAddr, error: &str) {
        let now = self.clock.elapsed();
        let mut avoided = self.avoided.lock().expect("no panic under this lock");
        // Addresses without a name.
        avoided.retain(|_, until| *until + AVOIDED_FOR > now);
        let known = avoided.insert(address, now + AVOIDED_FOR);
        self.any_avoided.store(true, Relaxed);
        drop(avoided);
        if known.is_none() {
            tracing::warn!(provider = name, %address, error, "avoiding address: connecting failed");
        }
    }

    /// Records that an address accepted a connection.
    fn record_success(&self, name: &str, address: SocketAddr) {
        if !self.any_avoided.load(Relaxed) {
            return;
        }
        let mut avoided = self.avoided.lock().expect("no panic under this lock");
        let known = avoided.remove(&address);
        self.any_avoided.store(!avoided.is_empty(), Relaxed);
        drop(avoided);
        if known.is_some() {
            tracing::warn!(provider = name, %address, "using address again: it accepted a connection");
        }
    }
}

/// Whether this machine has a route to an address. Connecting a UDP socket sends no packet.
fn has_route(address: &SocketAddr) -> bool {
    let any = match address {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0));
    socket.and_then(|socket| socket.connect(address)).is_ok()
}

/// Waits for the end of one future, and removes the future.
async fn any<F: Future>(running: &mut Vec<(usize, Pin<Box<F>>)>) -> (usize, F::Output) {
    std::future::poll_fn(|cx| {
        let mut each = running.iter_mut().enumerate();
        let ended = each.find_map(|(place, (_, future))| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some((place, output)),
            Poll::Pending => None,
        });
        match ended {
            Some((place, output)) => Poll::Ready((running.remove(place).0, output)),
            None => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use tollgate_clock::{ManualClock, Timestamp};

    use super::*;

    fn v4(last: u8) -> SocketAddr {
        (Ipv4Addr::new(127, 0, 0, last), 443).into()
    }

    fn v6(last: u16) -> SocketAddr {
        (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last), 443).into()
    }

    fn addresses(found: Vec<SocketAddr>) -> (Addresses, ManualClock) {
        let (clock, hand) = Clock::manual(Timestamp::from_secs(0));
        let resolver = Resolver::from_fn(move |_, _| Ok(found.clone()));
        (Addresses::new(resolver, clock), hand)
    }

    /// Opens a connection; `accepts` decides whether an address accepts. Returns the tried addresses.
    async fn tried(
        addresses: &Addresses,
        list: &[SocketAddr],
        turn: usize,
        accepts: impl Fn(usize) -> bool,
    ) -> (Vec<usize>, Result<usize, String>) {
        let tried = Mutex::new(Vec::new());
        let first = addresses.choose(list, turn);
        let open = |at: usize| {
            tried.lock().expect("no panic").push(at);
            let result = accepts(at).then_some(at).ok_or("refused".to_owned());
            std::future::ready(result)
        };
        let opened = addresses
            .open("p", (list, first), ATTEMPT_DELAY, open)
            .await;
        (tried.into_inner().expect("no panic"), opened)
    }

    #[tokio::test]
    async fn each_address_is_tried_once_and_families_take_turns() {
        let list = [v4(1), v4(2), v6(1), v6(2), v4(3)];
        let (addresses, _) = addresses(Vec::new());
        let (tried, opened) = tried(&addresses, &list, 1, |_| false).await;
        assert_eq!(tried, [1, 2, 4, 3, 0]);
        let error = opened.expect_err("none accepts");
        assert_eq!(error.split("; ").count(), 5, "{error}");
        assert!(error.starts_with("127.0.0.2:443: refused"), "{error}");
    }

    #[tokio::test]
    async fn an_address_that_failed_is_tried_last_until_one_caller_tries_it_again() {
        let list = [v4(1), v4(2), v4(3)];
        let (addresses, hand) = addresses(Vec::new());
        let with_dead = |at| at != 1;
        let (first, _) = tried(&addresses, &list, 1, with_dead).await;
        assert_eq!(first, [1, 2], "the failure is new");
        for turn in 0..6 {
            let chosen = addresses.choose(&list, turn);
            assert_eq!(chosen, [0, 2][turn % 2], "the others take turns");
        }
        let (all, _) = tried(&addresses, &list, 0, |_| false).await;
        assert_eq!(all.last(), Some(&1), "it is tried last");

        hand.advance(AVOIDED_FOR);
        let again: Vec<usize> = (0..3).map(|turn| addresses.choose(&list, turn)).collect();
        assert_eq!(again, [0, 1, 2], "each by one caller");
        let (again, _) = tried(&addresses, &list, 0, |_| true).await;
        assert_eq!(again.len(), 1);
        hand.advance(AVOIDED_FOR);
        for turn in 0..3 {
            let (_, opened) = tried(&addresses, &list, turn, |_| true).await;
            opened.expect("every address accepts");
        }
        assert!(!addresses.any_avoided.load(Relaxed), "all accept again");
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_is_overtaken_and_avoided_at_once() {
        let list = [v4(1), v4(2)];
        let (addresses, _) = addresses(Vec::new());
        let open = |at: usize| async move {
            match at {
                0 => std::future::pending().await,
                at => Ok(at),
            }
        };
        let order = (&list[..], 0);
        let opened = addresses.open("p", order, ATTEMPT_DELAY, open).await;
        assert_eq!(opened, Ok(1));
        assert_eq!(addresses.choose(&list, 0), 1);
    }

    #[tokio::test]
    async fn addresses_without_a_route_are_left_out_unless_there_are_no_others() {
        // A link-local address is reached through a named interface alone.
        let unroutable = SocketAddr::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(), 443);
        let (both, _) = addresses(vec![unroutable, v4(1), v4(1)]);
        assert_eq!(both.resolve("p", 443).await.ok(), Some(vec![v4(1)]));
        let (alone, _) = addresses(vec![unroutable]);
        assert_eq!(alone.resolve("p", 443).await.ok(), Some(vec![unroutable]));
    }

    #[tokio::test]
    async fn addresses_that_no_name_has_any_more_are_forgotten() {
        let (addresses, hand) = addresses(Vec::new());
        for number in 0..1_000_u16 {
            addresses.avoid("p", v6(number), "refused");
            hand.advance(AVOIDED_FOR / 10);
        }
        assert!(addresses.avoided.lock().expect("no panic").len() <= 21);
    }
}

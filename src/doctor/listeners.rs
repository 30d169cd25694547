//! Listen addresses of a gateway that does not run. Another program may use the addresses.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::checks::Checks;
use super::finding::Finding;
use crate::config::{ListenAddress, Settings};

/// Checks each address, only where no gateway runs with these settings: a running gateway uses the addresses.
pub(super) fn start(checks: &mut Checks, settings: &Arc<Settings>) {
    let listeners = settings.listeners.iter();
    let listeners = listeners.map(|listener| ("listener", listener.address.clone()));
    let admin = ("admin", ListenAddress::Tcp(settings.admin.address));
    for (kind, address) in listeners.chain([admin]) {
        let name = format!("{kind} {address}");
        checks.start_blocking(name.clone(), move || check(name, &address));
    }
}

fn check(name: String, address: &ListenAddress) -> Finding {
    match address {
        ListenAddress::Tcp(address) => check_tcp(name, *address),
        // A file on which no process listens is replaced at the start.
        ListenAddress::Unix(path) => match UnixStream::connect(path) {
            Ok(_) => in_use(name),
            Err(_) => Finding::ok(name, "free"),
        },
    }
}

fn check_tcp(name: String, address: SocketAddr) -> Finding {
    // Closed at once, without a connection: the port stays free for the gateway.
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok(name, "free"),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => in_use(name),
        Err(error) => Finding::failed(name, format!("cannot listen ({error})")).remedy(
            "use an address of this machine and a port that this user may bind: below 1024 it takes `CAP_NET_BIND_SERVICE`",
        ),
    }
}

fn in_use(name: String) -> Finding {
    Finding::failed(name, "another process listens there")
        .remedy("find the process (`ss -ltnp`) and stop it, or change the address in the settings")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    #[test]
    fn an_address_that_another_process_has_is_a_failure() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("an address");
        let status = || check(String::new(), &ListenAddress::Tcp(address)).status;
        assert_eq!(status(), Status::Failed);
        drop(taken);
        assert_eq!(status(), Status::Ok);
    }
}

//! The address of a listener: an IP address with a port, or the path of a Unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The scheme of a Unix socket in the settings.
const UNIX: &str = "unix:";

/// Where a listener listens. As text `127.0.0.1:8080`, `[::]:443` or `unix:/run/tollgate/http.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ListenAddress {
    /// An IP address and a port; port 0 selects a free port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Reads an address; a path starts from `folder`. `None` for other texts.
    pub(crate) fn parse(text: &str, folder: &Path) -> Option<ListenAddress> {
        match text.strip_prefix(UNIX) {
            Some("") => None,
            Some(path) => Some(ListenAddress::Unix(folder.join(path))),
            None => text.parse().ok().map(ListenAddress::Tcp),
        }
    }

    /// The IP address and port of a TCP address.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            ListenAddress::Tcp(address) => Some(*address),
            ListenAddress::Unix(_) => None,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(f),
            ListenAddress::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = &'static str;

    fn try_from(text: String) -> Result<ListenAddress, &'static str> {
        ListenAddress::parse(&text, Path::new("")).ok_or("is no address of a listener")
    }
}

impl From<ListenAddress> for String {
    fn from(address: ListenAddress) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let folder = Path::new("/etc/tollgate");
        for (text, shown) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::]:443", "[::]:443"),
            ("unix:/run/http.sock", "unix:/run/http.sock"),
            ("unix:http.sock", "unix:/etc/tollgate/http.sock"),
        ] {
            let address = ListenAddress::parse(text, folder).expect(text);
            assert_eq!(address.to_string(), shown);
            assert_eq!(String::from(address.clone()).try_into(), Ok(address));
        }
        for text in ["", "unix:", "localhost:80", "127.0.0.1", "/run/http.sock"] {
            assert_eq!(ListenAddress::parse(text, folder), None, "{text}");
        }
    }
}

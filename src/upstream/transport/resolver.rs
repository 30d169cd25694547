//! Name resolution: by the system, or by a function of the program.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Resolves the names of model providers and MCP servers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Resolver(Option<Arc<Lookup>>);

impl Resolver {
    /// The resolver of the system: hosts file and DNS servers.
    pub fn system() -> Resolver {
        Resolver(None)
    }

    /// A function of a name and a port that returns at once.
    pub fn from_fn(
        lookup: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Resolver {
        Resolver(Some(Arc::new(lookup)))
    }

    /// The addresses of a name, in the order of preference of the system.
    ///
    /// # Errors
    ///
    /// The lookup failed.
    pub(super) async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match &self.0 {
            Some(lookup) => lookup(host, port),
            None => Ok(tokio::net::lookup_host((host, port)).await?.collect()),
        }
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "Resolver(function)",
            None => "Resolver(system)",
        })
    }
}

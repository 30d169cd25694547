//! The network between gateways and their Redis server, which a test makes slow.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::Redis;

/// Forwards connections to a server without TLS, and holds back its answers for as long as a test says.
#[derive(Debug)]
pub struct RedisLink {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: u16,
    delay: Mutex<Duration>,
    changed: Condvar,
}

impl RedisLink {
    /// A link to a server, without a delay.
    ///
    /// # Panics
    ///
    /// When no port is free.
    pub fn start(server: &Redis) -> RedisLink {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a bound port").port();
        let shared = Arc::new(Shared {
            server: server.port(),
            delay: Mutex::default(),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A server that was killed refuses, and the client sees its connection end.
                let _ = accepting.connect(client);
            }
        });
        RedisLink { port, shared }
    }

    /// The URL of the server's first database through the link.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Holds back each answer for so long from now on; what is held back by then goes out.
    pub fn delay(&self, delay: Duration) {
        *self.shared.delay() = delay;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn delay(&self) -> parking_lot::MutexGuard<'_, Duration> {
        self.delay.lock()
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", self.server))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || forward(from_client, to_server, || {}));
        let shared = Arc::clone(self);
        thread::spawn(move || forward(server, client, || shared.hold_back()));
        Ok(())
    }

    fn hold_back(&self) {
        let mut delay = self.delay();
        let before = *delay;
        let is_same = |delay: &mut Duration| *delay == before;
        self.changed.wait_while_for(&mut delay, is_same, before);
    }
}

/// Forwards what arrives, each piece after `wait`.
fn forward(mut from: TcpStream, mut to: TcpStream, wait: impl Fn()) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        wait();
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    for end in [&from, &to] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

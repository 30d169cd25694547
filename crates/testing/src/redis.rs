//! A real Redis server: started in a temporary folder, paused, killed and restarted by tests.

use std::process::Command;

use tempfile::TempDir;

use crate::{Certificate, Process, free_port};

/// Attempts to take a port that another program may take first.
const ATTEMPTS: u32 = 20;

/// A `redis-server` on a port of 127.0.0.1, which stores nothing on disk. It is killed when this is dropped, and when the thread that started
/// it ends.
pub struct Redis {
    process: Process,
    port: u16,
    options: Vec<String>,
    scheme: &'static str,
    host: &'static str,
    folder: TempDir,
}

impl Redis {
    /// A server without TLS and without a password.
    ///
    /// # Panics
    ///
    /// `redis-server` is not installed (Debian's package of that name), or does not start.
    pub fn start() -> Redis {
        let folder = tempfile::tempdir().expect("a folder");
        Redis::launch(folder, Vec::new(), ("redis", "127.0.0.1"))
    }

    /// A server that accepts TLS only, and requires a password.
    ///
    /// # Panics
    ///
    /// As [`Redis::start`].
    pub fn start_with_tls(certificate: &Certificate, password: &str) -> Redis {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = Vec::new();
        for (option, name, text) in [
            ("--tls-cert-file", "certificate.pem", &certificate.cert_pem),
            ("--tls-key-file", "key.pem", &certificate.key_pem),
            ("--tls-ca-cert-file", "ca.pem", &certificate.ca_pem),
        ] {
            let file = folder.path().join(name);
            std::fs::write(&file, text).expect("the folder takes files");
            options.extend([option.to_owned(), file.display().to_string()]);
        }
        // In a file: arguments are visible to all users.
        let file = folder.path().join("redis.conf");
        std::fs::write(&file, format!("requirepass {password}\n")).expect("the folder takes files");
        options.insert(0, file.display().to_string());
        options.extend(["--tls-auth-clients", "no"].map(str::to_owned));
        Redis::launch(folder, options, ("rediss", "localhost"))
    }

    /// Gives a server of [`Redis::start_with_tls`] another password, by a restart.
    ///
    /// # Panics
    ///
    /// As [`Redis::restart`].
    pub fn change_password(&mut self, password: &str) {
        let file = self.folder.path().join("redis.conf");
        std::fs::write(&file, format!("requirepass {password}\n")).expect("the folder takes files");
        self.restart();
    }

    fn launch(
        folder: TempDir,
        options: Vec<String>,
        (scheme, host): (&'static str, &'static str),
    ) -> Redis {
        for _ in 0..ATTEMPTS {
            let port = free_port().expect("a free port");
            if let Some(process) = spawn(folder.path(), &options, scheme, port) {
                return Redis {
                    process,
                    port,
                    options,
                    scheme,
                    host,
                    folder,
                };
            }
        }
        panic!("redis-server found no free port in {ATTEMPTS} attempts");
    }

    /// The URL of its first database.
    pub fn url(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.host, self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends it a command and returns the answer, by `redis-cli`, as the default user of a server without a password.
    ///
    /// # Panics
    ///
    /// It answers with an error.
    pub fn command(&self, command: &[&str]) -> String {
        let port = self.port.to_string();
        let mut client = Command::new("redis-cli");
        client.args(["-e", "-p", &port]).args(command);
        let output = client.output().expect("`redis-cli` is installed");
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Stops it (`SIGSTOP`): connections are accepted, and nothing is answered.
    pub fn pause(&mut self) {
        self.process.signal("STOP");
    }

    /// Continues it.
    pub fn resume(&mut self) {
        self.process.signal("CONT");
    }

    /// Kills it: connections are refused.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it and starts an empty one on the same port.
    ///
    /// # Panics
    ///
    /// Another program has taken the port.
    pub fn restart(&mut self) {
        self.kill();
        let started = spawn(self.folder.path(), &self.options, self.scheme, self.port);
        self.process = started.expect("the port is still free");
    }
}

/// The server, once it accepts connections; `None` where the port is taken.
fn spawn(folder: &std::path::Path, options: &[String], scheme: &str, port: u16) -> Option<Process> {
    let port = port.to_string();
    let (plain, tls) = match scheme {
        "rediss" => ("0", port.as_str()),
        _ => (port.as_str(), "0"),
    };
    let fixed = ["--port", plain, "--tls-port", tls, "--bind", "127.0.0.1"];
    // A test that is killed takes its server with it.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "redis-server"])
        .args(options)
        .args(fixed)
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(folder);
    let process = Process::spawn(&mut command)
        .expect("`setpriv` (util-linux) and `redis-server` are installed");
    let line = process.line_where("the start of redis-server (is it installed?)", |line| {
        line.contains("Ready to accept") || line.contains("Address already in use")
    });
    line.contains("Ready").then_some(process)
}

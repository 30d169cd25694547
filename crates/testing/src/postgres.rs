//! A PostgreSQL server of a test's own: started from the installed package in a temporary folder, reached by a Unix socket.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

/// The port in the name of the socket of a server without a TCP port.
const PORT: u16 = 5432;

/// Starts a server and ends it when its input ends, which it does with the process that holds the other end, however that ends. Then the
/// folder is removed. PostgreSQL refuses to run as root, so it gets the user that its package has created.
///
/// Arguments: the folder, the folder of the programs, the user or nothing. Files in `files` of the folder are put into that of the data.
const SUPERVISOR: &str = r#"
trap : INT TERM HUP
folder=$1 programs=$2 user=$3
as() { if [ -n "$user" ]; then setpriv --reuid "$user" --regid "$user" --init-groups -- "$@"; else "$@"; fi; }
export LC_ALL=C PGTZ=UTC
[ -z "$user" ] || chown "$user" "$folder"
stop() { as "$programs/pg_ctl" stop -D "$folder/data" -m immediate -s; rm -rf "$folder"; }
{
    as "$programs/initdb" -D "$folder/data" -U test --auth=trust --encoding=UTF8 --locale=C --no-sync &&
    printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$folder'" "max_connections = 300" "shared_buffers = 64MB" \
        >>"$folder/data/postgresql.conf" &&
    { [ ! -d "$folder/files" ] || { chown -R "${user:-$(id -un)}" "$folder/files" && chmod 600 "$folder"/files/* && mv "$folder"/files/* "$folder/data/"; }; } &&
    as "$programs/pg_ctl" start -D "$folder/data" -w -s -l "$folder/log"
} >"$folder/start" 2>&1 </dev/null || { echo failed; cat "$folder/start" "$folder/log" 2>/dev/null; stop; exit 1; }
echo ready
while read -r command; do
    case $command in
        stop) as "$programs/pg_ctl" stop -D "$folder/data" -m immediate -w -s >/dev/null 2>&1 </dev/null; echo "stopped $?" ;;
        restart) as "$programs/pg_ctl" restart -D "$folder/data" -m immediate -w -s -l "$folder/log" >/dev/null 2>&1 </dev/null; echo "restarted $?" ;;
    esac
done
stop >/dev/null 2>&1
"#;

/// A server.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    programs: PathBuf,
    port: u16,
    supervisor: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
    databases: AtomicU32,
}

impl Postgres {
    /// The server of this process, started by the first call. It ends with the process.
    ///
    /// # Panics
    ///
    /// When PostgreSQL is not installed, or does not start.
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(Postgres::start)
    }

    /// A server that is also reached by TCP on the loopback address, with this certificate and key: there with TLS alone, and by SCRAM-SHA-256.
    /// The role `gateway` has the password `secret word`.
    ///
    /// # Panics
    ///
    /// When PostgreSQL is not installed, or does not start.
    pub fn start_with_tls(certificate: &str, key: &str) -> Postgres {
        let port = crate::free_port().expect("a free port");
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.key'\n"
        );
        let server = Postgres::start_with(
            port,
            &[
                ("postgresql.auto.conf", &settings),
                (
                    "pg_hba.conf",
                    "local all test trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n",
                ),
                ("server.pem", certificate),
                ("server.key", key),
            ],
        );
        server.run(
            "postgres",
            "CREATE ROLE gateway SUPERUSER LOGIN PASSWORD 'secret word'",
        );
        server
    }

    /// A server that ends when this is dropped.
    ///
    /// # Panics
    ///
    /// When PostgreSQL is not installed, or does not start.
    pub fn start() -> Postgres {
        Postgres::start_with(PORT, &[])
    }

    fn start_with(port: u16, files: &[(&str, &str)]) -> Postgres {
        let programs = programs().expect("PostgreSQL is installed (Debian's package `postgresql`)");
        // In memory where the system has a place for it: every test waits for syncs.
        let shared_memory = Path::new("/dev/shm");
        let folder = match shared_memory.is_dir() {
            true => TempDir::new_in(shared_memory),
            false => TempDir::new(),
        };
        // Removed by the supervisor, which is there also after this process was killed.
        let folder = folder.expect("a folder").keep();
        if !files.is_empty() {
            std::fs::create_dir(folder.join("files")).expect("a folder");
        }
        for (name, text) in files {
            std::fs::write(folder.join("files").join(name), text).expect("a file");
        }
        let mut command = Command::new("sh");
        command.args(["-c", SUPERVISOR, "sh"]);
        command.arg(&folder).arg(&programs);
        command.arg(if is_root() { "postgres" } else { "" });
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut supervisor = command.spawn().expect("a shell");
        let input = supervisor.stdin.take().expect("a pipe");
        let output = supervisor.stdout.take().expect("a pipe");
        let mut server = Postgres {
            folder,
            programs,
            port,
            supervisor,
            input,
            output: BufReader::new(output),
            databases: AtomicU32::new(0),
        };
        let first = server.line();
        assert!(
            first == "ready",
            "PostgreSQL does not start:\n{first}\n{}",
            server.rest()
        );
        server
    }

    /// A new database of this server, by its address.
    ///
    /// # Panics
    ///
    /// When it cannot be created.
    pub fn database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test{number}");
        self.run("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// The address of a database.
    pub fn url(&self, database: &str) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://test@{folder}:{}/{database}", self.port)
    }

    /// The TCP port, or the one in the name of the socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with the server's socket.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The rows that a database answers, as text, columns separated by `|`.
    ///
    /// # Panics
    ///
    /// When a statement fails.
    pub fn run(&self, database: &str, statements: &str) -> String {
        let mut command = Command::new(self.programs.join("psql"));
        command
            .args([
                "-XAtq",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "test",
                "-d",
                database,
                "-c",
                statements,
            ])
            .arg("-h")
            .arg(&self.folder)
            .args(["-p", &self.port.to_string()]);
        let done = command.stdin(Stdio::null()).output().expect("psql runs");
        assert!(
            done.status.success(),
            "{statements}:\n{}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8(done.stdout)
            .expect("text")
            .trim_end()
            .to_owned()
    }

    /// What `pg_dump` writes of a database, restored by `pg_restore` into a new one, by its address.
    ///
    /// # Panics
    ///
    /// When one of them fails.
    pub fn restored(&self, database: &str) -> String {
        let url = self.database();
        let copy = url.rsplit('/').next().expect("a name");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("dump");
        for (program, database, options) in [
            ("pg_dump", database, ["-Fc", "-f"]),
            ("pg_restore", copy, ["-1", "-e"]),
        ] {
            let mut command = Command::new(self.programs.join(program));
            command
                .args(["-U", "test", "-p", &self.port.to_string(), "-d", database])
                .arg("-h")
                .arg(&self.folder)
                .args(options)
                .arg(&file);
            let done = command.stdin(Stdio::null()).output().expect("it runs");
            let errors = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{program}:\n{errors}");
        }
        url
    }

    /// Ends the server without a checkpoint, as a crash would, until [`Postgres::crash_and_restart`].
    ///
    /// # Panics
    ///
    /// When it does not end.
    pub fn crash(&mut self) {
        writeln!(self.input, "stop").expect("the supervisor runs");
        assert_eq!(self.line(), "stopped 0");
    }

    /// Ends the server without a checkpoint, as a crash would, and starts it again. Returns when it accepts connections.
    ///
    /// # Panics
    ///
    /// When it does not start again.
    pub fn crash_and_restart(&mut self) {
        writeln!(self.input, "restart").expect("the supervisor runs");
        assert_eq!(self.line(), "restarted 0");
    }

    /// Starts again as a standby that follows no server, as after a failover whose name still leads there.
    ///
    /// # Panics
    ///
    /// When it does not start again.
    pub fn become_standby(&mut self) {
        std::fs::write(self.folder.join("data/standby.signal"), "").expect("a file");
        self.crash_and_restart();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    fn rest(&mut self) -> String {
        let lines = self.output.by_ref().lines().map_while(Result::ok);
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The end of its input ends the supervisor; a pipe is closed by replacing it.
        let (_, ended) = std::io::pipe().expect("a pipe");
        let closed = std::mem::replace(
            &mut self.input,
            ChildStdin::from(std::os::fd::OwnedFd::from(ended)),
        );
        drop(closed);
        let _ = self.supervisor.wait();
    }
}

/// The newest version of the server's programs that Debian's packages have installed.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok();
    let mut found: Vec<(u32, PathBuf)> = versions
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            let programs = entry.path().join("bin");
            programs
                .join("initdb")
                .exists()
                .then_some((version, programs))
        })
        .collect();
    found.sort();
    found.pop().map(|(_, programs)| programs)
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| {
        use std::os::unix::fs::MetadataExt as _;
        process.uid() == 0
    })
}

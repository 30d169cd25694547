//! `[service]`, `[server]`, `[[listener]]` and `[store]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::ring;
use tollgate_filter::settings::{At, Problems, PublicUrl};
use tollgate_module::{Inputs, Named, world_readable};
use tollgate_store::postgres::{DatabaseUrl, SpoolOptions};

use super::values::in_existing_folder;
use super::{CheckContext, acme, required};
use crate::config::ENVIRONMENT_FILE;
use crate::config::address::ListenAddress;
use crate::config::certificate::{self, Certificate};
use crate::config::memory::Memory;
use crate::config::proxies::{Network, TrustedProxies};
use crate::config::raw::{RawListener, RawServer, RawService, RawSettings, RawStore, RawTls};
use crate::config::settings::{
    Admin, ConnectionLimits, Listener, Retention, Server, Service, Store, StoreUrl, TlsSource,
};

const LISTENER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// A port for the admin address that a message proposes.
const ADMIN_PORT: u16 = 9090;
/// The permissions of a Unix socket by default: the gateway's user and group.
const SOCKET_MODE: u32 = 0o660;
/// The longest path of a socket (unix(7)), in bytes.
const SOCKET_PATH_MAX: usize = 107;
/// The share of an address by default, where half of all connections are fewer.
const SHARE_MIN: usize = 16;

pub(super) fn service(
    raw: &RawService,
    first: Option<&Listener>,
    problems: &mut Problems,
) -> Service {
    let name = match &raw.name {
        None => "svc",
        Some(at) => {
            let mut letters = at.value.bytes();
            let good = letters.next().is_some_and(|byte| byte.is_ascii_lowercase())
                && at.value.len() <= 16
                && letters.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
            if !good {
                problems.note(
                    "service.name",
                    at,
                    format_args!(
                        "is `{}`; use a lower-case letter, then up to 15 lower-case letters or digits",
                        at.value
                    ),
                );
            }
            &at.value
        }
    };
    let mut public = |key: &str, at: Option<&At<String>>| -> Option<PublicUrl> {
        at.and_then(|at| problems.parse(key, at))
    };
    let root = public("service.root_url", raw.root_url.as_ref());
    let base = public("service.base_url", raw.base_url.as_ref());
    if let (Some(at), Some(url)) = (&raw.base_url, &base)
        && url.path() != ""
    {
        // The pages link to each other by absolute paths, and the cookies are for the host.
        problems.note(
            "service.base_url",
            at,
            format_args!(
                "has the path `{}`, and every address of the service is at the root of its host; give the service a host or a port of its own",
                url.path()
            ),
        );
    }
    let base_url = base.unwrap_or_else(|| {
        let address = first.and_then(|listener| listener.address.tcp());
        let port = address.unwrap_or(LISTENER).port();
        let scheme = match first {
            Some(listener) if !listener.tls.is_empty() => "https",
            _ => "http",
        };
        // Port 0 is resolved only later; it is stored as written and replaced once the socket is bound.
        let text = format!("{scheme}://localhost:{}", port.max(1));
        text.parse().expect("a local address is an address")
    });
    Service {
        name: name.into(),
        root_url: root.unwrap_or_else(|| base_url.clone()),
        base_url,
    }
}

/// Checks the addresses of the gateway against each other.
pub(super) fn addresses(
    raw: &RawSettings,
    (listeners, admin, service): (&[Listener], &Admin, &Service),
    problems: &mut Problems,
) {
    let address = admin.address;
    let taken = listeners.iter().find(|listener| {
        let listener = listener.address.tcp();
        listener.is_some_and(|listener| {
            let all = listener.ip().is_unspecified() || address.ip().is_unspecified();
            address.port() != 0
                && listener.port() == address.port()
                && (all || listener.ip() == address.ip())
        })
    });
    if let Some(listener) = taken {
        let message = format!(
            "is `{address}`, a port that the listener `{}` has too; give one of them another port, such as `admin.address = \"127.0.0.1:{}\"`",
            listener.address,
            if address.port() == ADMIN_PORT {
                ADMIN_PORT + 1
            } else {
                ADMIN_PORT
            }
        );
        match &raw.admin.address {
            Some(at) => problems.note("admin.address", at, message),
            None => problems.note_missing("admin.address", message),
        }
    }
    // A proxy in front that ends TLS is the opposite case: plain listeners, and `https`.
    let only_tls = listeners.iter().all(|listener| !listener.tls.is_empty());
    if let Some(rest) = service.base_url.as_str().strip_prefix("http://")
        && raw.service.base_url.is_some()
        && !listeners.is_empty()
        && only_tls
    {
        problems.warn(
            "service.base_url",
            format!(
                "has the scheme `http`, and every listener has TLS: the addresses in pages and documents would not answer; write `base_url = \"https://{rest}\"`"
            ),
        );
    }
}

pub(super) fn server(
    raw: &RawServer,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Server {
    if let Some(at) = raw.environment_file.as_ref()
        && context.is_world_readable(at)
    {
        problems.warn(ENVIRONMENT_FILE, world_readable(&context.path(at)));
    }
    let key = |name: &str| format!("server.{name}");
    let workers = raw
        .workers
        .check("server.workers", problems)
        .and_then(|count| NonZeroUsize::new(count as usize))
        .or_else(|| std::thread::available_parallelism().ok())
        .unwrap_or(NonZeroUsize::MIN);
    macro_rules! whole {
        ($name:ident) => {
            raw.$name
                .check(key(stringify!($name)), problems)
                .unwrap_or(1)
        };
    }
    let connections_max = whole!(connections_max) as usize;
    let share = raw
        .connections_per_address_max
        .check(key("connections_per_address_max"), problems);
    Server {
        workers,
        grace: Duration::from_secs(whole!(grace_secs)),
        drain_delay: Duration::from_secs(
            raw.drain_delay_secs
                .check(key("drain_delay_secs"), problems)
                .unwrap_or_default(),
        ),
        comment: Duration::from_secs(whole!(comment_secs)),
        event_bytes_max: whole!(event_bytes_max) as usize,
        limits: ConnectionLimits {
            head_bytes_max: whole!(head_bytes_max) as usize,
            head_fields_max: whole!(head_fields_max) as usize,
            head: Duration::from_secs(whole!(head_secs)),
            idle: Duration::from_secs(whole!(idle_secs)),
            body: Duration::from_secs(whole!(body_secs)),
            write: Duration::from_secs(whole!(write_secs)),
            h2_streams_max: whole!(h2_streams_max) as u32,
            h2_idle: Duration::from_secs(whole!(h2_idle_secs)),
            connections_max,
            connections_per_address_max: share.map_or_else(
                || (connections_max / 2).max(SHARE_MIN),
                |share| share as usize,
            ),
            accept_queue: whole!(accept_queue) as u32,
        },
        watch_settings: raw.watch_settings.is_on(),
        memory: raw
            .memory_bytes_max
            .check("server.memory_bytes_max", problems)
            .map_or_else(Memory::detect, Memory::of_setting),
    }
}

pub(super) fn listeners(
    raw: &[RawListener],
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Vec<Listener> {
    if raw.is_empty() {
        return vec![Listener {
            address: ListenAddress::Tcp(LISTENER),
            socket_mode: SOCKET_MODE,
            tls: Vec::new(),
            client_roots: None,
            http2: true,
            health: false,
            proxies: None,
        }];
    }
    // With the index in the file: an address that cannot be parsed is left out.
    let mut listeners: Vec<(usize, Listener)> = Vec::new();
    for (index, one) in raw.iter().enumerate() {
        let key = format!("listener.{index}.address");
        let address = required(
            problems,
            &key,
            one.address.as_ref(),
            "`address = \"0.0.0.0:8080\"`",
        )
        .and_then(|at| Some((at, listen_address(&key, at, context, problems)?)));
        let socket_mode = socket_mode(index, one, address.as_ref().map(|(_, at)| at), problems);
        let tls = one
            .tls
            .iter()
            .enumerate()
            .filter_map(|(number, source)| tls((index, number), source, one, context, problems))
            .collect();
        let client_roots = client_roots(index, one, context, problems);
        let proxies = proxies(index, one, problems);
        let Some((at, address)) = address else {
            continue;
        };
        let taken = listeners
            .iter()
            .find(|(_, other)| other.address == address)
            .filter(|_| address.tcp().is_none_or(|address| address.port() != 0));
        if let Some((first, _)) = taken {
            problems.note(
                &key,
                at,
                format_args!(
                    "is `{address}`, as `listener.{first}` already is; use another port or path"
                ),
            );
        }
        let http2 = one.http2.is_on();
        let listener = Listener {
            address,
            socket_mode,
            tls,
            client_roots,
            http2,
            health: one.health.is_on(),
            proxies,
        };
        listeners.push((index, listener));
    }
    listeners
        .into_iter()
        .map(|(_, listener)| listener)
        .collect()
}

fn listen_address(
    key: &str,
    at: &At<String>,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<ListenAddress> {
    let address = ListenAddress::parse(&at.value, context.folder);
    match &address {
        None => problems.note(
            key,
            at,
            format_args!(
                "is `{}`; use an address and a port, such as `127.0.0.1:8080` or `[::]:443`, or `unix:` and the path of a socket",
                at.value
            ),
        ),
        Some(ListenAddress::Unix(path)) => {
            if path.as_os_str().len() > SOCKET_PATH_MAX {
                let message = format_args!(
                    "names a path of more than {SOCKET_PATH_MAX} bytes, which no socket can have; use a shorter one"
                );
                problems.note(key, at, message);
            }
            in_existing_folder(problems, key, at, path);
        }
        Some(ListenAddress::Tcp(_)) => {}
    }
    address
}

/// The permissions of the file of a Unix socket.
fn socket_mode(
    listener: usize,
    raw: &RawListener,
    address: Option<&ListenAddress>,
    problems: &mut Problems,
) -> u32 {
    let Some(at) = &raw.socket_mode else {
        return SOCKET_MODE;
    };
    let key = format!("listener.{listener}.socket_mode");
    if matches!(address, Some(ListenAddress::Tcp(_))) {
        let message = "is set for an address that is no Unix socket; leave it out";
        problems.note(&key, at, message);
    }
    let mode = u32::from_str_radix(&at.value, 8).ok();
    let mode = mode.filter(|mode| *mode <= 0o777 && at.value.len() <= 4);
    if mode.is_none() {
        let message = format_args!(
            "is `{}`; write three or four octal digits, such as `0660`",
            at.value
        );
        problems.note(&key, at, message);
    }
    mode.unwrap_or(SOCKET_MODE)
}

/// The trusted proxies in front of a listener.
fn proxies(
    listener: usize,
    raw: &RawListener,
    problems: &mut Problems,
) -> Option<Arc<TrustedProxies>> {
    let key = |name: &str| format!("listener.{listener}.{name}");
    let forwarded_field = raw.forwarded_field.check(key("forwarded_field"), problems);
    let proxy_protocol = raw.proxy_protocol.written().filter(|at| at.value);
    let Some(trusted) = &raw.trusted_proxies else {
        if let Some(at) = raw.forwarded_field.written() {
            problems.note(
                key("forwarded_field"),
                at,
                "is set without `trusted_proxies`; name the proxies that send the field, or leave it out",
            );
        }
        if let Some(at) = proxy_protocol {
            problems.note(
                key("proxy_protocol"),
                at,
                "is `true` without `trusted_proxies`; name the proxies that send the header, or leave it out",
            );
        }
        return None;
    };
    if trusted.value.is_empty() {
        problems.note(
            key("trusted_proxies"),
            trusted,
            "is empty; name an address of a proxy, or leave it out",
        );
    }
    let mut networks = Vec::new();
    for (number, at) in trusted.value.iter().enumerate() {
        let network: Option<Network> =
            problems.parse(key(&format!("trusted_proxies.{number}")), at);
        networks.extend(network);
    }
    Some(Arc::new(TrustedProxies {
        networks,
        forwarded_field: forwarded_field.unwrap_or_default(),
        names_field: raw.forwarded_field.written().is_some(),
        proxy_protocol: proxy_protocol.is_some(),
    }))
}

/// The authorities of client certificates.
fn client_roots(
    listener: usize,
    raw: &RawListener,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<Arc<RootCertStore>> {
    let at = raw.client_ca.as_ref()?;
    let key = format!("listener.{listener}.client_ca");
    if raw.tls.is_empty() {
        let message = "is set without `tls`; name a certificate of the listener, or leave it out";
        problems.note(key, at, message);
        return None;
    }
    match certificate::read_roots(&context.path(at)) {
        Ok(roots) => Some(Arc::new(roots)),
        Err(error) => {
            problems.note(key, at, error);
            None
        }
    }
}

fn tls(
    at: (usize, usize),
    raw: &RawTls,
    of: &RawListener,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<TlsSource> {
    let (listener, number) = at;
    let Some(order) = &raw.acme else {
        return files(at, raw, context, problems).map(TlsSource::Files);
    };
    for (name, at) in [("certificate", &raw.certificate), ("key", &raw.key)] {
        if let Some(at) = at {
            let key = format!("listener.{listener}.tls.{number}.{name}");
            let message = "is set beside `acme`, which obtains the certificate; write each in an element of `tls` of its own";
            problems.note(key, at, message);
        }
    }
    let order = acme::order(at, order, of, context, problems)?;
    Some(TlsSource::Acme(Arc::new(order)))
}

fn files(
    (listener, number): (usize, usize),
    raw: &RawTls,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<Certificate> {
    let key = |name: &str| format!("listener.{listener}.tls.{number}.{name}");
    let certificate = required(
        problems,
        key("certificate"),
        raw.certificate.as_ref(),
        "the PEM file of the chain",
    );
    let private = required(
        problems,
        key("key"),
        raw.key.as_ref(),
        "the PEM file of the key",
    );
    let (certificate, private) = (certificate?, private?);
    let key_file = context.path(private);
    if context.is_world_readable(private) {
        problems.warn(key("key"), world_readable(&key_file));
    }
    certificate::read_pair(
        &context.path(certificate),
        &key_file,
        &ring::default_provider(),
    )
    .map_err(|error| {
        let (name, at) = if error.is_about_key(&key_file) {
            ("key", private)
        } else {
            ("certificate", certificate)
        };
        problems.note(key(name), at, error);
    })
    .ok()
}

pub(super) fn address(key: &str, at: &At<String>, problems: &mut Problems) -> Option<SocketAddr> {
    let address = at.value.parse().ok();
    if address.is_none() {
        problems.note(
            key,
            at,
            format_args!(
                "is `{}`; use an address and a port, such as `127.0.0.1:8080` or `[::]:443`",
                at.value
            ),
        );
    }
    address
}

/// Time after the end of a lease during which other nodes leave the holds of a gateway without a spool alone.
const ORPHAN_GRACE: Duration = Duration::from_secs(60);

pub(super) fn store(
    raw: &RawStore,
    socket: Option<&At<String>>,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Store {
    let url = store_url(raw, context, problems);
    // Not the default: the default replaces an address with a separate problem.
    let is_file = matches!(url, StoreUrl::Sqlite(_))
        && (raw.url.as_ref()).is_none_or(|at| at.value.starts_with("sqlite:"));
    if let (Some(at), StoreUrl::Sqlite(path)) = (&raw.url, &url) {
        in_existing_folder(problems, "store.url", at, path);
    }
    let password = Named {
        section: "store",
        variable: ("password_env", raw.password_env.as_ref()),
        file: ("password_file", raw.password_file.as_ref()),
    };
    let password = password.read("password", context, problems);
    let control_socket = match (socket, &url) {
        (Some(at), _) => {
            let path = context.path(at);
            in_existing_folder(problems, "admin.socket", at, &path);
            Some(path)
        }
        (None, StoreUrl::Postgres(_)) => Some(context.path("tollgate.sock")),
        (None, StoreUrl::Sqlite(_)) => None,
    };
    if let (true, Some(at)) = (is_file, raw.standby.written()) {
        problems.note(
            "store.standby",
            at,
            "waits for the lease of a PostgreSQL database, and `store.url` names a file; remove one of them",
        );
    }
    let spool = spool(raw, is_file, context, problems);
    let spool_bytes_max = raw
        .spool_bytes_max
        .check("store.spool_bytes_max", problems)
        .unwrap_or_default();
    let orphan_grace = raw
        .orphan_grace_secs
        .check("store.orphan_grace_secs", problems)
        .map(Duration::from_secs);
    Store {
        node: node(raw, is_file, problems),
        retention: retention(raw, context, problems),
        standby: raw.standby.is_on(),
        orphan_grace: match &spool {
            Some(_) => orphan_grace.unwrap_or_default(),
            None => ORPHAN_GRACE,
        },
        spool: spool.map(|folder| SpoolOptions {
            folder,
            bytes_max: spool_bytes_max,
        }),
        free_bytes_min: raw
            .free_bytes_min
            .check("store.free_bytes_min", problems)
            .unwrap_or(0),
        url,
        password,
        control_socket,
        durability: raw
            .durability
            .check("store.durability", problems)
            .unwrap_or_default(),
    }
}

/// The folder of charges while the database does not answer.
fn spool(
    raw: &RawStore,
    is_file: bool,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<PathBuf> {
    raw.spool.as_ref().map(|at| {
        let path = context.path(at);
        match is_file {
            true => problems.note(
                "store.spool",
                at,
                "is for charges while a PostgreSQL database does not answer, and `store.url` names a file; remove one of them",
            ),
            false => in_existing_folder(problems, "store.spool", at, &path),
        }
        path
    })
}

/// The name of this gateway among several on one database.
fn node(raw: &RawStore, is_file: bool, problems: &mut Problems) -> Option<String> {
    raw.node.as_ref().map(|at| {
        let is_name = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-');
        let problem = match (is_file, at.value.len()) {
            (true, _) => {
                Some(String::from("is one of several gateways on a PostgreSQL database, and `store.url` names a file; remove one of them"))
            }
            (_, 1..=64) if at.value.chars().all(is_name) => raw.standby.is_on().then_some(
                String::from("works beside the other gateways, and `store.standby` waits for their end; remove one of them"),
            ),
            _ => Some(format!(
                "has to be 1 to 64 characters `a` to `z`, `0` to `9` and `-`; it is `{}`",
                at.value
            )),
        };
        if let Some(problem) = problem {
            problems.note("store.node", at, problem);
        }
        at.value.clone()
    })
}

fn retention(
    raw: &RawStore,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<Retention> {
    let keep_months = raw.keep_months.check("store.keep_months", problems);
    let exports = raw.exports.as_ref().map(|at| {
        let path = context.path(at);
        if !path.is_dir() {
            let message = format_args!(
                "names `{}`, which is no folder; create it for the gateway's user",
                path.display()
            );
            problems.note("store.exports", at, message);
        }
        path
    });
    match (raw.keep_months.written(), &raw.exports) {
        (Some(at), None) => problems.note(
            "store.keep_months",
            at,
            "is set without `exports`; name the folder for the export files of what is removed",
        ),
        (None, Some(at)) => problems.note(
            "store.exports",
            at,
            "is set without `keep_months`, so nothing is exported; add it, or leave this out",
        ),
        _ => {}
    }
    Some(Retention {
        keep_months: u32::try_from(keep_months?).ok()?,
        exports: exports?,
    })
}

fn store_url(raw: &RawStore, context: &CheckContext<'_>, problems: &mut Problems) -> StoreUrl {
    const FILE: &str = "tollgate.db";
    let Some(at) = &raw.url else {
        return StoreUrl::Sqlite(context.path(FILE));
    };
    match at.value.strip_prefix("sqlite:") {
        Some(path) if !path.is_empty() => return StoreUrl::Sqlite(context.path(path)),
        _ => {}
    }
    if at.value.starts_with("postgres") {
        match DatabaseUrl::parse(&at.value) {
            Ok(url) => {
                if let Some(file) = url.root_certificates()
                    && let Err(error) = std::fs::File::open(file)
                {
                    let message = format!(
                        "names the file `{}` by `sslrootcert`, which cannot be read ({error})",
                        file.display()
                    );
                    problems.note("store.url", at, message);
                }
                return StoreUrl::Postgres(url);
            }
            Err(error) => problems.note("store.url", at, error),
        }
    } else {
        problems.note(
            "store.url",
            at,
            "is neither `sqlite:` and the path of a file, nor `postgres://` and the address of a database",
        );
    }
    StoreUrl::Sqlite(context.path(FILE))
}

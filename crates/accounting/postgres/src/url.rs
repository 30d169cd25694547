//! The address of a database: `postgres://user@host:port/database?sslmode=...`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::tls::TlsMode;

/// The port of PostgreSQL.
const PORT: u16 = 5432;

/// The address of a database. The address's text has no password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) tls: TlsMode,
    /// Certificates of authorities, in place of the system's.
    pub(crate) root_certificates: Option<PathBuf>,
    /// The address as shown.
    text: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Name(String),
    /// A folder with the server's socket.
    Folder(PathBuf),
}

/// Why a text is not the address of a database, as a predicate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(String);

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "DatabaseUrl({})", self.text)
    }
}

impl DatabaseUrl {
    /// The file with certificates of authorities, if the address names a file.
    pub fn root_certificates(&self) -> Option<&Path> {
        self.root_certificates.as_deref()
    }

    /// Parses an address. A password in the address is an error: a password belongs into a file or a variable.
    ///
    /// # Errors
    ///
    /// A predicate with the problem and the remedy.
    pub fn parse(text: &str) -> Result<DatabaseUrl, UrlError> {
        let Address {
            user,
            host,
            port,
            database,
            query,
        } = Address::split(text)?;
        let parameters = Parameters::read(query, host)?;
        let host = Host::read(&parameters.host)?;
        let tls = parameters.tls.unwrap_or(match host {
            Host::Name(_) => TlsMode::default(),
            // A local socket has no use for TLS.
            Host::Folder(_) => TlsMode::Disable,
        });
        let root_certificates = parameters.root_certificates;
        check_authorities(tls, root_certificates.is_some())?;
        Ok(DatabaseUrl {
            host,
            port,
            user: decode_part(user, "user")?,
            database: decode_part(database, "name of a database")?,
            tls,
            root_certificates,
            text: Arc::from(text),
        })
    }
}

impl Host {
    fn read(text: &str) -> Result<Host, UrlError> {
        match text {
            "" => Err(failed("names no host")),
            folder if folder.starts_with('/') => Ok(Host::Folder(PathBuf::from(folder))),
            several if several.contains(',') => Err(failed(
                "names several hosts; use one name that leads to the primary",
            )),
            name => Ok(Host::Name(name.trim_matches(['[', ']']).to_owned())),
        }
    }
}

/// The pieces of an address. Host and port are decoded.
struct Address<'t> {
    user: &'t str,
    host: String,
    port: u16,
    database: &'t str,
    query: &'t str,
}

impl<'t> Address<'t> {
    fn split(text: &'t str) -> Result<Address<'t>, UrlError> {
        let rest = text
            .strip_prefix("postgres://")
            .or_else(|| text.strip_prefix("postgresql://"))
            .ok_or_else(|| failed("does not begin with `postgres://`"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest
            .split_once('/')
            .filter(|(_, database)| !database.is_empty())
            .ok_or_else(|| failed("names no database; use `postgres://user@host:port/database`"))?;
        let (user, host) = authority
            .rsplit_once('@')
            .filter(|(user, _)| !user.is_empty())
            .ok_or_else(|| failed("names no user; use `postgres://user@host:port/database`"))?;
        if user.contains(':') {
            return Err(failed(
                "has a password; put it into `store.password_file` or `store.password_env`",
            ));
        }
        let (host, port) = split_port(host)
            .ok_or_else(|| failed("has a port that is not a number from 1 to 65535"))?;
        let host = decode(host).ok_or_else(|| failed("has an invalid host"))?;
        Ok(Address {
            user,
            host,
            port,
            database,
            query,
        })
    }
}

/// The parameters of an address.
struct Parameters {
    /// The last `host`, or the host before the parameters.
    host: String,
    tls: Option<TlsMode>,
    root_certificates: Option<PathBuf>,
}

impl Parameters {
    /// Reads a query. `host` is the host before the parameters.
    fn read(query: &str, host: String) -> Result<Parameters, UrlError> {
        let mut parameters = Parameters {
            host,
            tls: None,
            root_certificates: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode_part(value, name)?;
            match name {
                "sslmode" => {
                    parameters.tls = Some(TlsMode::parse(&value).ok_or_else(|| {
                        UrlError(format!(
                            "has the `sslmode` `{value}`; use `disable`, `prefer`, `require`, `verify-ca` or `verify-full`"
                        ))
                    })?);
                }
                "sslrootcert" => parameters.root_certificates = Some(PathBuf::from(value)),
                "host" => parameters.host = value,
                _ => {
                    return Err(UrlError(format!(
                        "has the unknown parameter `{name}`; use `host`, `sslmode` and `sslrootcert`"
                    )));
                }
            }
        }
        Ok(parameters)
    }
}

/// Refuses `sslrootcert` without verification, and `verify-ca` without `sslrootcert`.
fn check_authorities(tls: TlsMode, has_root_certificates: bool) -> Result<(), UrlError> {
    let is_verified = matches!(tls, TlsMode::VerifyCa | TlsMode::VerifyFull);
    if has_root_certificates && !is_verified {
        return Err(failed(
            "has `sslrootcert`, which is not used without `sslmode=verify-ca` or `verify-full`",
        ));
    }
    if !has_root_certificates && tls == TlsMode::VerifyCa {
        return Err(failed(
            "has `sslmode=verify-ca`, by which any certificate of a public authority would do; use `verify-full`, or name your authority by `sslrootcert`",
        ));
    }
    Ok(())
}

/// Decodes a piece of an address. The noun is for the error.
fn decode_part(part: &str, noun: &str) -> Result<String, UrlError> {
    decode(part)
        .filter(|text| !text.contains('\0'))
        .ok_or_else(|| UrlError(format!("has an invalid {noun}")))
}

fn failed(problem: &str) -> UrlError {
    UrlError(problem.to_owned())
}

/// Host and port; `None` for an invalid port.
fn split_port(authority: &str) -> Option<(&str, u16)> {
    let end_of_host = authority.rfind(']').map_or(0, |end| end + 1);
    match authority[end_of_host..].rfind(':') {
        None => Some((authority, PORT)),
        Some(at) => {
            let (host, port) = authority.split_at(end_of_host + at);
            let port = port[1..].parse().ok().filter(|port| *port > 0)?;
            Some((host, port))
        }
    }
}

/// Percent-decodes (RFC 3986 section 2.1); `None` for malformed text or text that is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_shown_as_written() {
        let text = "postgres://gate%20way@db.example:6432/credits?sslmode=verify-full&sslrootcert=/etc/ca.pem";
        let url = DatabaseUrl::parse(text).expect("an address");
        assert_eq!(url.host, Host::Name("db.example".to_owned()));
        assert_eq!((url.port, url.user.as_str()), (6432, "gate way"));
        assert_eq!(
            (url.database.as_str(), url.tls),
            ("credits", TlsMode::VerifyFull)
        );
        assert_eq!(url.root_certificates, Some(PathBuf::from("/etc/ca.pem")));
        assert_eq!(url.to_string(), text);
        let url = DatabaseUrl::parse("postgresql://a@[::1]/b").expect("an address");
        assert_eq!((url.host, url.port), (Host::Name("::1".to_owned()), PORT));
        let url = DatabaseUrl::parse("postgres://a@%2Frun%2Fpostgresql:5433/b").expect("a folder");
        assert_eq!(url.host, Host::Folder(PathBuf::from("/run/postgresql")));
        assert_eq!((url.port, url.tls), (5433, TlsMode::Disable));
        let url = DatabaseUrl::parse("postgres://a@/b?host=/run/postgresql").expect("libpq's form");
        assert_eq!(url.host, Host::Folder(PathBuf::from("/run/postgresql")));
        assert_eq!((url.port, url.tls), (PORT, TlsMode::Disable));
        let url = DatabaseUrl::parse("postgres://a@h/b?host=db2").expect("an address");
        assert_eq!(url.host, Host::Name("db2".to_owned()));
    }

    #[test]
    fn an_address_that_cannot_be_used_says_why() {
        for (text, problem) in [
            ("mysql://a@b/c", "does not begin with `postgres://`"),
            ("postgres://books", "names no database"),
            ("postgres://host/name", "names no user"),
            ("postgres://a:secret@host/name", "`store.password_file`"),
            ("postgres://a@host:70000/name", "port"),
            ("postgres://a@/name", "names no host"),
            ("postgres://a@one,two/name", "several hosts"),
            ("postgres://a@one:5432,two:5432/name", "several hosts"),
            ("postgres://a@h/n?sslmode=verify-ca", "`sslrootcert`"),
            (
                "postgres://a@h/n?sslmode=require&sslrootcert=/ca.pem",
                "`verify-full`",
            ),
            ("postgres://a@h/n?sslmode=on", "`verify-full`"),
            ("postgres://a@h/n?pool=3", "unknown parameter `pool`"),
            ("postgres://a@h%/n", "invalid host"),
        ] {
            let refused = DatabaseUrl::parse(text).expect_err(text).to_string();
            assert!(refused.contains(problem), "{text}: {refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}

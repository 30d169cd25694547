//! Mail sender: SMTP with implicit TLS, STARTTLS, or plain text on this machine.

use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::commands;
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;
use tollgate_clock::Timestamp;

use crate::sender::{OutgoingMessage, SendError, Sender};

const SEND_TIMEOUT: Duration = Duration::from_secs(15);

/// Short enough to try another address of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long the end of a session is waited for, whose message has been answered.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Transport security of the SMTP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportSecurity {
    /// TLS from the first byte (RFC 8314).
    Implicit,
    /// STARTTLS before any credentials or message (RFC 3207); required.
    StartTls,
    /// Plain text. Only for a mail server on this machine.
    None,
}

/// `[signin.mail]`, validated: the mail server.
#[derive(Clone, Debug)]
pub struct MailSettings {
    /// Host name or address of the server.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Transport security; plain text only to this machine.
    pub security: TransportSecurity,
    /// User and password, if the server requires authentication.
    pub login: Option<(String, SecretString)>,
    /// The sender: an address, or a name with an address in angle brackets.
    pub from: String,
    /// An additional trusted root, as PEM.
    pub root_pem: Option<Vec<u8>>,
}

impl PartialEq for MailSettings {
    fn eq(&self, other: &MailSettings) -> bool {
        fn login(settings: &MailSettings) -> Option<(&str, &str)> {
            let login = settings.login.as_ref();
            login.map(|(user, password)| (&**user, password.expose_secret()))
        }
        (&self.host, self.port, self.security) == (&other.host, other.port, other.security)
            && (&self.from, &self.root_pem) == (&other.from, &other.root_pem)
            && login(self) == login(other)
    }
}

/// Why mail cannot be configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MailError {
    /// The sender is not a mailbox.
    #[error("`{0}` is not a valid sender; write `name@example.com` or `Name <name@example.com>`")]
    From(String),
    /// The root certificate or the TLS library is unusable.
    #[error("could not set up TLS; check that the root certificate is PEM")]
    Tls(#[source] smtp::Error),
}

/// Whether a text is a valid sender.
pub fn is_sender(text: &str) -> bool {
    text.parse::<Mailbox>().is_ok()
}

/// Sends mail by SMTP, a connection for each message.
pub struct Mail {
    server: (String, u16),
    encryption: Encryption,
    credentials: Option<Credentials>,
    from: Mailbox,
    own_host: String,
}

enum Encryption {
    Implicit(TlsParameters),
    StartTls(TlsParameters),
    None,
}

impl Mail {
    /// A mail sender. Connects on the first message. `own_host` is the host name in `EHLO` and in `Message-ID`s.
    pub fn new(settings: &MailSettings, own_host: &str) -> Result<Mail, MailError> {
        let from: Mailbox = settings
            .from
            .parse()
            .map_err(|_| MailError::From(settings.from.clone()))?;
        let tls = || -> Result<TlsParameters, MailError> {
            let mut tls = TlsParameters::builder(settings.host.clone());
            if let Some(pem) = &settings.root_pem {
                tls = tls.add_root_certificate(Certificate::from_pem(pem).map_err(MailError::Tls)?);
            }
            tls.build().map_err(MailError::Tls)
        };
        let encryption = match settings.security {
            TransportSecurity::Implicit => Encryption::Implicit(tls()?),
            TransportSecurity::StartTls => Encryption::StartTls(tls()?),
            TransportSecurity::None => Encryption::None,
        };
        let credentials = settings.login.as_ref().map(|(user, password)| {
            Credentials::new(user.clone(), password.expose_secret().to_owned())
        });
        Ok(Mail {
            server: (settings.host.clone(), settings.port),
            encryption,
            credentials,
            from,
            own_host: own_host.to_owned(),
        })
    }

    /// Opens a session up to the text of the message: an earlier failure has reached no recipient.
    async fn open(&self, message: &Message) -> Result<AsyncSmtpConnection, SessionError> {
        let hello = ClientId::Domain(self.own_host.clone());
        let implicit = match &self.encryption {
            Encryption::Implicit(tls) => Some(tls.clone()),
            _ => None,
        };
        let server = (self.server.0.as_str(), self.server.1);
        let mut session = AsyncSmtpConnection::connect_tokio1(
            server,
            Some(CONNECT_TIMEOUT),
            &hello,
            implicit,
            None,
        )
        .await?;
        if let Encryption::StartTls(tls) = &self.encryption {
            session.starttls(tls.clone(), &hello).await?;
        }
        if let Some(credentials) = &self.credentials {
            session.auth(DEFAULT_MECHANISMS, credentials).await?;
        }
        let envelope = message.envelope();
        let mut parameters = Vec::new();
        let supports = |extension| session.server_info().supports_feature(extension);
        let mut addresses = envelope.from().into_iter().chain(envelope.to());
        if addresses.any(|address| !AsRef::<str>::as_ref(address).is_ascii()) {
            if !supports(Extension::SmtpUtfEight) {
                return Err(SessionError::Unsupported("SMTPUTF8"));
            }
            parameters.push(MailParameter::SmtpUtfEight);
        }
        if !message.formatted().is_ascii() {
            if !supports(Extension::EightBitMime) {
                return Err(SessionError::Unsupported("8BITMIME"));
            }
            parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
        }
        let from = envelope.from().cloned();
        session
            .command(commands::Mail::new(from, parameters))
            .await?;
        for to in envelope.to() {
            session
                .command(commands::Rcpt::new(to.clone(), Vec::new()))
                .await?;
        }
        session.command(commands::Data).await?;
        Ok(session)
    }

    fn message(&self, outgoing: &OutgoingMessage) -> Result<Message, SendError> {
        let never = |error: Box<dyn std::error::Error + Send + Sync>| SendError::Permanent(error);
        let to = outgoing
            .recipient
            .parse()
            .map_err(|_| never("the recipient is not a valid mail address".into()))?;
        let queued = outgoing.created_at.duration_since(Timestamp::UNIX_EPOCH);
        Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(&outgoing.subject)
            // Equal in every copy, so that receivers can deduplicate.
            .message_id(Some(format!("<{}@{}>", outgoing.id, self.own_host)))
            .date(UNIX_EPOCH + queued)
            .header(ContentType::TEXT_PLAIN)
            .body(outgoing.text.to_string())
            .map_err(|error| never(Box::new(error)))
    }
}

#[async_trait]
impl Sender for Mail {
    async fn send(&self, outgoing: &OutgoingMessage) -> Result<(), SendError> {
        let message = self.message(outgoing)?;
        // Whether the text of the mail is under way: the server has accepted no mail before.
        let mut has_begun = false;
        let attempt = async {
            let mut session = self.open(&message).await?;
            has_begun = true;
            let answer = session.message(&message.formatted()).await;
            Ok::<_, SessionError>((session, answer))
        };
        match timeout(SEND_TIMEOUT, attempt).await {
            Ok(Ok((mut session, Ok(_)))) => {
                // A failure at the end of the session leaves the message's result unchanged.
                let _ = timeout(QUIT_TIMEOUT, session.abort()).await;
                Ok(())
            }
            Ok(Ok((_, Err(error)))) if error.status().is_some() => Err(refusal(error)),
            // The server may have stored the message before the disconnect (RFC 5321 section 6.1).
            Ok(Ok((_, Err(error)))) => Err(SendError::Unknown(Box::new(error))),
            Ok(Err(SessionError::Smtp(error))) => Err(refusal(error)),
            Ok(Err(error)) => Err(SendError::Transient(Box::new(error))),
            Err(_) if has_begun => Err(SendError::Unknown(
                "timed out waiting for the answer to the message".into(),
            )),
            Err(_) => Err(SendError::Transient("timed out before the message".into())),
        }
    }
}

/// Why a session did not get as far as the message.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Smtp(#[from] smtp::Error),
    #[error("the server does not support {0}, which the message needs")]
    Unsupported(&'static str),
}

/// An error of a message not accepted by the server.
fn refusal(error: smtp::Error) -> SendError {
    // 5yz to a recipient is permanent for this mailbox (RFC 5321 section 4.2.1). 53z is about this client: authentication or TLS (RFC 4954
    // section 6). An operator may repair the client while the message waits.
    match error.is_permanent() && !is_about_us(&error) {
        true => SendError::Permanent(Box::new(error)),
        false => SendError::Transient(Box::new(error)),
    }
}

fn is_about_us(error: &smtp::Error) -> bool {
    error
        .status()
        .is_some_and(|code| code.to_string().starts_with("53"))
}

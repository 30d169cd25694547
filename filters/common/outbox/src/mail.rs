//! Mail sender: SMTP with implicit TLS, STARTTLS, or none on this machine.

use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use secrecy::{ExposeSecret, SecretString};
use tollgate_clock::Timestamp;

use crate::sender::{OutgoingMessage, SendError, Sender};

const SEND_TIMEOUT: Duration = Duration::from_secs(15);

/// Transport security of the SMTP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportSecurity {
    /// TLS from the first byte (RFC 8314).
    Implicit,
    /// STARTTLS before any credentials or message (RFC 3207); required.
    StartTls,
    /// None. Only for a mail server on this machine.
    None,
}

/// `[signin.mail]`, validated: the mail server.
#[derive(Clone, Debug)]
pub struct MailSettings {
    /// Host name or address of the server.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Transport security; none only to this machine.
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
    Tls(#[source] lettre::transport::smtp::Error),
}

/// Whether a text is a valid sender.
pub fn is_sender(text: &str) -> bool {
    text.parse::<Mailbox>().is_ok()
}

/// Sends mail by SMTP.
pub struct Mail {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    own_host: String,
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
        let security = match settings.security {
            TransportSecurity::Implicit => Tls::Wrapper(tls()?),
            TransportSecurity::StartTls => Tls::Required(tls()?),
            TransportSecurity::None => Tls::None,
        };
        let mut builder =
            AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(settings.host.clone())
                .port(settings.port)
                .tls(security)
                .timeout(Some(SEND_TIMEOUT))
                .hello_name(ClientId::Domain(own_host.to_owned()));
        if let Some((user, password)) = &settings.login {
            let password = password.expose_secret().to_owned();
            builder = builder.credentials(Credentials::new(user.clone(), password));
        }
        Ok(Mail {
            transport: builder.build(),
            from,
            own_host: own_host.to_owned(),
        })
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
            // The same in every copy, so that receivers can deduplicate.
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
        match self.transport.send(message).await {
            Ok(_) => Ok(()),
            // 5yz to one recipient is permanent for this mailbox (RFC 5321 section 4.2.1). 53z is about this client: its authentication or
            // its TLS (RFC 4954 section 6); an operator may fix that while the message waits.
            Err(error) if error.is_permanent() && !is_about_us(&error) => {
                Err(SendError::Permanent(Box::new(error)))
            }
            Err(error) => Err(SendError::Transient(Box::new(error))),
        }
    }
}

fn is_about_us(error: &lettre::transport::smtp::Error) -> bool {
    error
        .status()
        .is_some_and(|code| code.to_string().starts_with("53"))
}

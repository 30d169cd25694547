//! Mail, by SMTP.

use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::{AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use zeroize::Zeroizing;

use crate::sender::{OutgoingMessage, SendError, Sender};

const SEND_TIMEOUT: Duration = Duration::from_secs(15);

/// How the connection is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportSecurity {
    /// TLS from the first byte (RFC 8314).
    Implicit,
    /// TLS before anything is said that matters (RFC 3207); without it nothing is sent.
    StartTls,
    /// None. For a mail server on this machine.
    None,
}

/// Where mail goes out.
pub struct MailSettings {
    /// The server's name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How the connection is guarded.
    pub security: TransportSecurity,
    /// User and password, where the server asks for them.
    pub login: Option<(String, Zeroizing<String>)>,
    /// The sender: an address, or a name and an address in angle brackets.
    pub from: String,
    /// A root to trust besides the system's, as PEM.
    pub root_pem: Option<Vec<u8>>,
    /// The name that this gateway greets with and makes `Message-ID`s of.
    pub own_host: String,
}

/// Why mail cannot be sent at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MailError {
    /// The sender is no address.
    #[error("`{0}` is no sender; write `name@example.com` or `Name <name@example.com>`")]
    From(String),
    /// The root certificate or the TLS library.
    #[error("TLS cannot be set up; is the root certificate in PEM?")]
    Tls(#[source] lettre::transport::smtp::Error),
}

/// Whether a text can be the sender of mail.
pub fn is_sender(text: &str) -> bool {
    text.parse::<Mailbox>().is_ok()
}

/// Sends mail.
pub struct Mail {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    own_host: String,
}

impl Mail {
    /// A way out by mail. Connects when there is something to send.
    pub fn new(settings: MailSettings) -> Result<Mail, MailError> {
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
                .hello_name(ClientId::Domain(settings.own_host.clone()));
        if let Some((user, password)) = settings.login {
            builder = builder.credentials(Credentials::new(user, password.to_string()));
        }
        Ok(Mail {
            transport: builder.build(),
            from,
            own_host: settings.own_host,
        })
    }

    fn message(&self, outgoing: &OutgoingMessage) -> Result<Message, SendError> {
        let never = |error: Box<dyn std::error::Error + Send + Sync>| SendError::Permanent(error);
        let to = outgoing
            .recipient
            .parse()
            .map_err(|_| never("the address is none that mail can be sent to".into()))?;
        let queued = Duration::from_micros(outgoing.created_at.max(0).unsigned_abs());
        Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(&outgoing.subject)
            // The same in every copy, so that receivers tell that they are one message.
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
            // 5yz to one recipient: this mailbox, now and later (RFC 5321 section 4.2.1). 53z is about us: who we are, and how we connect
            // (RFC 4954 section 6); an operator may put that right while the message waits.
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

//! A stand-in mailbox and phone for all recipients: a mail server and a webhook for text messages that store what they receive.
//!
//! Mail arrives by SMTP (RFC 5321) at [`Mailbox::smtp`], text messages by `POST /sms` at [`Mailbox::url`]. Received messages are shown
//! there:
//!
//! | Address | Shows or does |
//! |---|---|
//! | `GET /` | a page with all messages, the newest first |
//! | `GET /_control/messages?to=ADDRESS` | the messages to an address (or all), as JSON, oldest first |
//! | `POST /_control/behave` | the treatment of the next messages: a [`Behaviour`] as JSON |

mod smtp;
mod web;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};

use crate::certificate::Certificate;
use crate::guard::within;

/// A received message.
#[derive(Clone, Debug, Serialize)]
pub struct Received {
    /// `mail` or `sms`.
    pub kind: &'static str,
    /// The recipient.
    pub to: String,
    /// The sender; empty for a text message.
    pub from: String,
    /// The subject; empty for a text message.
    pub subject: String,
    /// The text.
    pub text: String,
    /// `Message-ID`, or the `id` of a text message.
    pub id: String,
    /// How often it was received: copies have the same id.
    pub copies: u32,
    /// Whether it was received over TLS.
    pub tls: bool,
}

impl Received {
    /// The first word of digits only: a one-time code.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn code(&self) -> &str {
        let mut words = self.text.split_whitespace();
        let code = words.find(|word| {
            (6..=8).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_digit())
        });
        code.unwrap_or_else(|| panic!("no code in {:?}", self.text))
    }
}

/// The treatment of the next messages.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Behaviour {
    /// Number of messages refused temporarily (451, or 503).
    pub refuse: u32,
    /// Number of messages refused permanently (550, or 400).
    pub reject: u32,
    /// Number of messages after which the connection is cut: accepted, but not acknowledged.
    pub drop: u32,
    /// Milliseconds between the receipt of a message and the response to it.
    pub lag_ms: u64,
}

/// The settings of a stand-in.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Use TLS with this certificate: by STARTTLS, or from the first byte.
    pub tls: Option<(Certificate, Tls)>,
    /// User and password required for mail.
    pub login: Option<(String, String)>,
    /// The key that text messages must be signed with.
    pub sms_secret: Option<String>,
}

/// When TLS starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// At once.
    Implicit,
    /// On the client's request (STARTTLS).
    StartTls,
}

/// A running stand-in. It stops when this is dropped.
pub struct Mailbox {
    shared: Arc<Shared>,
    smtp: SocketAddr,
    url: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    settings: Settings,
    received: Mutex<Vec<Received>>,
    behaviour: Mutex<Behaviour>,
    /// Notified when a message arrives.
    bell: Notify,
}

/// The treatment of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Take,
    Refuse,
    Reject,
    Drop,
}

impl Mailbox {
    /// Starts a stand-in on its own thread.
    pub fn start(settings: Settings) -> io::Result<Mailbox> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        // Bound here and used there: the caller may be inside its own runtime.
        let bind = || {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            io::Result::Ok(listener)
        };
        let (smtp, web) = (bind()?, bind()?);
        let shared = Arc::new(Shared {
            settings,
            received: Mutex::default(),
            behaviour: Mutex::default(),
            bell: Notify::new(),
        });
        let (stop, stopped) = oneshot::channel();
        let mut mailbox = Mailbox {
            smtp: smtp.local_addr()?,
            url: format!("http://{}", web.local_addr()?),
            shared: shared.clone(),
            stop: Some(stop),
            thread: None,
        };
        let url = mailbox.url.clone();
        let thread = std::thread::Builder::new()
            .name("mailbox stand-in".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    let why = "a listener that was bound";
                    let smtp = TcpListener::from_std(smtp).expect(why);
                    let web = TcpListener::from_std(web).expect(why);
                    tokio::select! {
                        () = smtp::accept(smtp, shared.clone()) => {}
                        () = web::accept(web, shared, url) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        mailbox.thread = Some(thread);
        Ok(mailbox)
    }

    /// The address of the mail server.
    pub fn smtp(&self) -> SocketAddr {
        self.smtp
    }

    /// The URL where messages are shown; text messages are accepted at `/sms` below it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sets the treatment of the next messages.
    pub fn behave(&self, behaviour: Behaviour) {
        *lock(&self.shared.behaviour) = behaviour;
    }

    /// The messages to an address, oldest first.
    pub fn messages(&self, to: &str) -> Vec<Received> {
        let received = lock(&self.shared.received);
        let own = received.iter().filter(|message| message.to == to);
        own.cloned().collect()
    }

    /// Waits for the `count`th message to an address.
    ///
    /// # Panics
    ///
    /// When it does not arrive in time.
    pub async fn message(&self, to: &str, count: usize) -> Received {
        let wait = async {
            loop {
                let rung = self.shared.bell.notified();
                if let Some(message) = self.messages(to).get(count - 1) {
                    return message.clone();
                }
                rung.await;
            }
        };
        within("a message", wait).await
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread may have ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Decides the treatment of a message.
    fn delivery(&self) -> (Delivery, u64) {
        let mut behaviour = lock(&self.behaviour);
        let Behaviour {
            refuse,
            reject,
            drop,
            ..
        } = &mut *behaviour;
        let mut delivery = Delivery::Take;
        for (left, meant) in [
            (refuse, Delivery::Refuse),
            (reject, Delivery::Reject),
            (drop, Delivery::Drop),
        ] {
            if *left > 0 && delivery == Delivery::Take {
                *left -= 1;
                delivery = meant;
            }
        }
        (delivery, behaviour.lag_ms)
    }

    fn keep(&self, message: Received) {
        let mut received = lock(&self.received);
        let same = received
            .iter_mut()
            .find(|known| known.id == message.id && known.to == message.to);
        match same {
            Some(known) => known.copies += 1,
            None => received.push(message),
        }
        drop(received);
        self.bell.notify_waiters();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    mutex.lock()
}

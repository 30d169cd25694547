//! The successor's side of an upgrade: sockets and store come from the predecessor, the process that started this process.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use super::followed::Earlier;
use super::link::{Link, Message, STEP_TIMEOUT, Sockets, VARIABLE, locks};
use crate::admin::{self, AdminError};
use crate::config::Settings;
use crate::database::{self, Opener, Predecessor as StoreOfPredecessor};
use crate::gateway::StartError;
use crate::proxy::TOKEN_BYTES;

/// The process that started this process in order to be replaced.
#[derive(Debug)]
pub(crate) struct Predecessor {
    link: Link,
    pub(in crate::gateway) sockets: Sockets,
    token: [u8; TOKEN_BYTES],
    store: String,
    node: Option<String>,
    /// The run of the predecessor after the take-over of the store, if the predecessor's release sends the run.
    run: Option<i64>,
    /// The processes before the predecessor that still have requests, after the take-over of the store.
    earlier: Vec<Earlier>,
}

/// The admin sockets of a predecessor.
pub(in crate::gateway) type AdoptedAdmin = ((SocketAddr, TcpListener), UnixListener);

/// Why the predecessor cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum PredecessorError {
    /// The connection to the predecessor failed.
    #[error("the process that started this one to take over from it does not answer")]
    Link(#[source] io::Error),
    /// The settings name another database.
    #[error(
        "`store.url` names `{new}`, and the running gateway has `{old}`; an upgrade cannot change the database: stop the gateway, then start it"
    )]
    OtherStore {
        /// In the settings.
        new: String,
        /// The predecessor's database.
        old: String,
    },
    /// The settings name another node.
    #[error(
        "`store.node` is `{new}`, and that of the running gateway is `{old}`; an upgrade cannot change it: stop the gateway, then start it"
    )]
    OtherNode {
        /// The node in the settings, or an empty string.
        new: String,
        /// The predecessor's node, or an empty string.
        old: String,
    },
    /// The predecessor sent an unexpected message.
    #[error(
        "the process that started this one sent an unexpected message; it is of another release that cannot be followed"
    )]
    Unexpected,
}

impl Predecessor {
    /// The predecessor, if a predecessor started this process.
    pub(crate) fn of_process(is_started: bool) -> Result<Option<Predecessor>, PredecessorError> {
        if !is_started {
            return Ok(None);
        }
        let stream = io::stdin().as_fd().try_clone_to_owned();
        let link = Link(UnixStream::from(stream.map_err(PredecessorError::Link)?));
        let timeout = link.0.set_read_timeout(Some(STEP_TIMEOUT));
        timeout.map_err(PredecessorError::Link)?;
        let (message, files) = link.receive().map_err(PredecessorError::Link)?;
        let Message::Sockets {
            listeners,
            admin,
            token: text,
            store,
            node,
        } = message
        else {
            return Err(PredecessorError::Unexpected);
        };
        let sockets = Sockets::of_files(listeners, admin, files);
        Ok(Some(Predecessor {
            link,
            sockets: sockets.ok_or(PredecessorError::Unexpected)?,
            token: token_of(&text).ok_or(PredecessorError::Unexpected)?,
            store,
            node,
            run: None,
            earlier: Vec::new(),
        }))
    }

    /// Performs every step that can fail before the hand-over, and opens new addresses. After a failed step the predecessor continues to
    /// serve.
    pub(in crate::gateway) fn prepare(
        &mut self,
        settings: &Settings,
        opener: &Opener<'_>,
    ) -> Result<(), StartError> {
        let (new, old) = (database::name(&settings.store), self.store.clone());
        if new != old {
            return Err(PredecessorError::OtherStore { new, old }.into());
        }
        let new = settings.store.node.clone().unwrap_or_default();
        if let Some(old) = self.node.clone().filter(|old| *old != new) {
            return Err(PredecessorError::OtherNode { new, old }.into());
        }
        let address = settings.admin.address;
        if self.sockets.admin.0 != address {
            self.sockets.admin = (address, admin::listen(address)?);
        }
        let control = database::control_socket(&settings.store);
        if !admin::control::is_at(&self.sockets.control, &control) {
            admin::control::Socket::check_free(&control).map_err(AdminError::from)?;
        }
        Ok(database::prepare(&settings.store, opener)?)
    }

    /// Reports readiness except for the store, and waits for the store.
    pub(in crate::gateway) fn take_store(
        &mut self,
    ) -> Result<StoreOfPredecessor, PredecessorError> {
        let serves_earlier = true;
        let sent = self.link.send(&Message::Prepared { serves_earlier }, &[]);
        sent.map_err(PredecessorError::Link)?;
        let (message, mut files) = self.link.receive().map_err(PredecessorError::Link)?;
        let Message::Store {
            epoch,
            run,
            earlier,
        } = message
        else {
            return Err(PredecessorError::Unexpected);
        };
        self.run = run;
        for one in earlier.into_iter().rev() {
            let files = (files.pop(), files.pop());
            let (Some(relay), Some(link)) = files else {
                return Err(PredecessorError::Unexpected);
            };
            self.earlier.push(Earlier {
                epoch: one.epoch,
                link: UnixStream::from(link),
                relay: TcpListener::from(relay),
                token: token_of(&one.token).ok_or(PredecessorError::Unexpected)?,
            });
        }
        let locks: Vec<File> = locks(files);
        Ok(StoreOfPredecessor { epoch, locks })
    }

    /// The sockets to which the predecessor and earlier processes relay requests, with the tokens of their requests. The list is complete
    /// once the store is taken over.
    pub(in crate::gateway) fn relays(&self) -> io::Result<Vec<(TcpListener, [u8; TOKEN_BYTES])>> {
        let earlier = self.earlier.iter().map(|one| (&one.relay, one.token));
        earlier
            .chain([(&self.sockets.relay, self.token)])
            .map(|(socket, token)| Ok((socket.try_clone()?, token)))
            .collect()
    }

    /// The predecessor's admin sockets: the socket of the admin address with the address in the predecessor's settings, and the control
    /// socket.
    pub(in crate::gateway) fn admin_sockets(&self) -> Result<AdoptedAdmin, PredecessorError> {
        let share = || {
            let (address, http) = &self.sockets.admin;
            let control = self.sockets.control.try_clone()?;
            Ok(((*address, http.try_clone()?), control))
        };
        share().map_err(PredecessorError::Link)
    }

    /// Returns a function that reports to the predecessor why this process ends.
    pub(crate) fn reporter(&self) -> Result<impl Fn(String) + use<>, PredecessorError> {
        let stream = self.link.0.try_clone().map_err(PredecessorError::Link)?;
        let link = Link(stream);
        Ok(move |problem| {
            // The predecessor sees the end of the connection in any case.
            let _ = link.send(&Message::Failed { problem }, &[]);
        })
    }

    /// Reports that this process serves. Returns the processes that still have requests.
    pub(in crate::gateway) fn serving(self) -> Result<Vec<Earlier>, PredecessorError> {
        let Predecessor {
            link,
            sockets,
            token,
            run,
            mut earlier,
            ..
        } = self;
        let ready = link
            .send(&Message::Serving, &[])
            .and_then(|()| link.0.set_read_timeout(None));
        ready.map_err(PredecessorError::Link)?;
        earlier.push(Earlier {
            epoch: run,
            link: link.0,
            relay: sockets.relay,
            token,
        });
        Ok(earlier)
    }
}

fn token_of(text: &str) -> Option<[u8; TOKEN_BYTES]> {
    let mut token = [0; TOKEN_BYTES];
    let decoded = base16ct::lower::decode(text, &mut token).ok()?;
    (decoded.len() == TOKEN_BYTES).then_some(token)
}

/// Whether the environment says that a predecessor started this process.
pub(crate) fn is_started_by_predecessor(environment: &crate::config::Environment) -> bool {
    environment.get(VARIABLE).is_some()
}

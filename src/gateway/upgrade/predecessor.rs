//! The side of the successor: sockets and store come from the process that started this one.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use tollgate_clock::Clock;
use tollgate_ledger::Ledger;
use tollgate_store::{Admission, IdempotencyPart, Part, Store, UnitOfWork, first_token};

use super::link::{Link, Message, STEP_TIMEOUT, Sockets, VARIABLE, locks};
use crate::admin::{self, AdminError};
use crate::config::Settings;
use crate::database::{self, Opener, Predecessor as StoreOfPredecessor};
use crate::gateway::StartError;
use crate::proxy::{Proxy, TOKEN_BYTES};

/// The process that started this one to take over from it.
#[derive(Debug)]
pub(crate) struct Predecessor {
    link: Link,
    pub(in crate::gateway) sockets: Sockets,
    pub(in crate::gateway) token: [u8; TOKEN_BYTES],
    store: String,
    node: Option<String>,
}

/// The admin sockets of a predecessor.
pub(in crate::gateway) type AdoptedAdmin = ((SocketAddr, TcpListener), UnixListener);

/// Why the predecessor cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum PredecessorError {
    /// The connection to it.
    #[error("the process that started this one to take over from it does not answer")]
    Link(#[source] io::Error),
    /// The settings name another database.
    #[error(
        "`store.url` names `{new}`, and the running gateway has `{old}`; an upgrade cannot change the database: stop the gateway, then start it"
    )]
    OtherStore {
        /// In the settings.
        new: String,
        /// That of the predecessor.
        old: String,
    },
    /// The settings name another node.
    #[error(
        "`store.node` is `{new}`, and that of the running gateway is `{old}`; an upgrade cannot change it: stop the gateway, then start it"
    )]
    OtherNode {
        /// In the settings, or nothing.
        new: String,
        /// That of the predecessor, or nothing.
        old: String,
    },
    /// It sent something else.
    #[error(
        "the process that started this one sent an unexpected message; it is of another release that cannot be followed"
    )]
    Unexpected,
}

impl Predecessor {
    /// The predecessor, if this process was started by one.
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
        let mut token = [0; TOKEN_BYTES];
        let decoded = base16ct::lower::decode(&text, &mut token);
        let is_whole = decoded.is_ok_and(|token| token.len() == TOKEN_BYTES);
        let sockets = Sockets::of_files(listeners, admin, files).filter(|_| is_whole);
        Ok(Some(Predecessor {
            link,
            sockets: sockets.ok_or(PredecessorError::Unexpected)?,
            token,
            store,
            node,
        }))
    }

    /// Its process, which has made the connection (SO_PEERCRED, unix(7)).
    pub(in crate::gateway) fn process(&self) -> Option<Pid> {
        let credentials = socket_peercred(&self.link.0);
        credentials.ok().map(|credentials| credentials.pid)
    }

    /// Performs every step that can fail before the hand-over, and opens new addresses. The predecessor serves on if one fails.
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

    /// Reports that everything is ready but the store, and waits for it.
    pub(in crate::gateway) fn take_store(&self) -> Result<StoreOfPredecessor, PredecessorError> {
        let sent = self.link.send(&Message::Prepared, &[]);
        sent.map_err(PredecessorError::Link)?;
        match self.link.receive().map_err(PredecessorError::Link)? {
            (Message::Store { epoch }, files) => {
                let locks: Vec<File> = locks(files);
                Ok(StoreOfPredecessor { epoch, locks })
            }
            _ => Err(PredecessorError::Unexpected),
        }
    }

    /// Its admin sockets: the one of the address with that of its settings, and the control socket.
    pub(in crate::gateway) fn admin_sockets(&self) -> Result<AdoptedAdmin, PredecessorError> {
        let share = || {
            let (address, http) = &self.sockets.admin;
            let control = self.sockets.control.try_clone()?;
            Ok(((*address, http.try_clone()?), control))
        };
        share().map_err(PredecessorError::Link)
    }

    /// What tells it why this process ends.
    pub(crate) fn reporter(&self) -> Result<impl Fn(String) + use<>, PredecessorError> {
        let stream = self.link.0.try_clone().map_err(PredecessorError::Link)?;
        let link = Link(stream);
        Ok(move |problem| {
            // It sees the end of the connection in any case.
            let _ = link.send(&Message::Failed { problem }, &[]);
        })
    }

    /// Reports that this process serves, and commits what the predecessor sends until it has ended.
    pub(in crate::gateway) fn follow(self, followed: Followed) -> Result<(), PredecessorError> {
        let Predecessor { link, .. } = self;
        let ready = link
            .send(&Message::Serving, &[])
            .and_then(|()| link.0.set_read_timeout(None));
        ready.map_err(PredecessorError::Link)?;
        let thread = std::thread::Builder::new()
            .name(String::from("predecessor"))
            .spawn(move || followed.run(link.0));
        thread.map(drop).map_err(PredecessorError::Link)
    }
}

/// What the end of a predecessor affects.
pub(in crate::gateway) struct Followed {
    pub(in crate::gateway) store: Arc<dyn Store>,
    pub(in crate::gateway) ledger: Ledger,
    pub(in crate::gateway) proxy: Arc<Proxy>,
    pub(in crate::gateway) clock: Clock,
}

impl Followed {
    fn run(self, stream: UnixStream) {
        let holds = self.ledger.adopted_holds();
        tracing::info!(
            holds,
            "took over from the predecessor, which ends its open requests"
        );
        let (served, orphans) = self.ledger.serve_predecessor(stream, &self.clock);
        if let Err(error) = served {
            tracing::error!(%error, "connection to the predecessor broke");
        }
        // Its idempotency keys without a response are free again.
        let part = IdempotencyPart::FreeBefore {
            token: first_token(self.store.node(), self.store.epoch()),
        };
        let unit = UnitOfWork::of(Part::Idempotency(Box::new(part)), Admission::Always);
        // A stopped store frees them at the next start.
        let _ = self.store.submit(unit, Box::new(|_| {}));
        self.proxy.predecessor_ended();
        match orphans {
            0 => tracing::info!("predecessor has ended"),
            _ => tracing::warn!(
                holds = orphans,
                "predecessor has ended, released holds of requests that it did not finish"
            ),
        }
    }
}

/// Whether the environment says that this process was started by a predecessor.
pub(crate) fn is_started_by_predecessor(environment: &crate::config::Environment) -> bool {
    environment.get(VARIABLE).is_some()
}

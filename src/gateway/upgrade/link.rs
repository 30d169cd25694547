//! The connection between a process and its successor: messages in JSON with open files (SCM_RIGHTS, unix(7)).

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::config::ListenAddress;
use crate::proxy::ListenSocket;

/// The environment variable that marks the standard input of a process as the connection to its predecessor.
pub(super) const VARIABLE: &str = "TOLLGATE_UPGRADE";

/// Time limit of a step of the successor: to read its settings, or to open the store and build the gateway.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of files in a message; the system's own limit is 253.
const FILES_MAX: usize = 250;

/// Maximum length of a message in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The messages, in their order. The first and the third are the predecessor's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(super) enum Message {
    /// The sockets, as files: listeners, the socket for relayed requests, the admin address, the control socket.
    Sockets {
        /// The addresses of the listeners in the settings of the predecessor, in order.
        listeners: Vec<ListenAddress>,
        /// The admin address in the predecessor's settings.
        admin: SocketAddr,
        /// The secret that identifies relayed requests, in hexadecimal digits.
        token: String,
        /// The database.
        store: String,
        /// The node; empty without `store.node`, `None` from a release that does not send the node.
        #[serde(default)]
        node: Option<String>,
    },
    /// The successor has valid settings, and can take over the store.
    Prepared {
        /// Whether the successor can also serve the processes before its predecessor. A release that does not send this field cannot.
        #[serde(default)]
        serves_earlier: bool,
    },
    /// The store is closed. The first files are the locks of the store; a database server needs no locks. Two files follow for each process
    /// before the predecessor that still has requests: the connection for the ends of its requests, and the socket for relayed requests.
    Store {
        /// The first run whose requests are open: the run of the predecessor, or of the process before the predecessor.
        epoch: i64,
        /// The run of the predecessor; `None` from a release that does not send the run.
        #[serde(default)]
        run: Option<i64>,
        /// The processes before the predecessor.
        #[serde(default)]
        earlier: Vec<EarlierRun>,
    },
    /// The successor serves.
    Serving,
    /// The successor cannot continue, and ends.
    Failed {
        /// Why.
        problem: String,
    },
}

/// A process before the predecessor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EarlierRun {
    /// The run of the process, if known.
    pub(super) epoch: Option<i64>,
    /// The secret that identifies requests relayed by the process, in hexadecimal digits.
    pub(super) token: String,
}

/// One end of the connection.
#[derive(Debug)]
pub(super) struct Link(pub(super) UnixStream);

impl Link {
    pub(super) fn send(&self, message: &Message, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::other("more listeners than a message can carry"));
        }
        // The files belong to the first byte.
        let length = length.to_be_bytes();
        let sent = sendmsg(
            &self.0,
            &[IoSlice::new(&length)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        (&self.0).write_all(&length[sent..])?;
        (&self.0).write_all(&text)
    }

    pub(super) fn receive(&self) -> io::Result<(Message, Vec<OwnedFd>)> {
        let mut files = Vec::new();
        let mut length = [0; 4];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        // With a time limit a read ends when the process has been stopped and continues (signal(7)).
        let received = retry_on_intr(|| {
            recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut length)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        })?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (&self.0).read_exact(&mut length[received.bytes..])?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut text = vec![0; length];
        (&self.0).read_exact(&mut text)?;
        Ok((serde_json::from_slice(&text)?, files))
    }
}

/// The sockets of a process.
#[derive(Debug)]
pub(in crate::gateway) struct Sockets {
    /// With their addresses in the settings.
    pub(in crate::gateway) listeners: Vec<(ListenAddress, ListenSocket)>,
    pub(in crate::gateway) relay: TcpListener,
    pub(in crate::gateway) admin: (SocketAddr, TcpListener),
    pub(in crate::gateway) control: UnixListener,
}

impl Sockets {
    pub(super) fn files(&self) -> Vec<BorrowedFd<'_>> {
        let listeners = self.listeners.iter().map(|(_, socket)| socket.as_fd());
        listeners
            .chain([
                self.relay.as_fd(),
                self.admin.1.as_fd(),
                self.control.as_fd(),
            ])
            .collect()
    }

    /// The sockets of a message; `None` when the files do not match the message.
    pub(super) fn of_files(
        listeners: Vec<ListenAddress>,
        admin: SocketAddr,
        mut files: Vec<OwnedFd>,
    ) -> Option<Sockets> {
        if files.len() != listeners.len() + 3 {
            return None;
        }
        let control = UnixListener::from(files.pop()?);
        let admin = (admin, TcpListener::from(files.pop()?));
        let relay = TcpListener::from(files.pop()?);
        let listeners = listeners.into_iter().zip(files);
        let listeners = listeners.map(|(address, file)| {
            let socket = ListenSocket::received(&address, file);
            (address, socket)
        });
        Some(Sockets {
            listeners: listeners.collect(),
            relay,
            admin,
            control,
        })
    }

    /// Takes the socket of a listener with this address in the settings.
    pub(in crate::gateway) fn take_listener(
        &mut self,
        address: &ListenAddress,
    ) -> Option<ListenSocket> {
        let found = self.listeners.iter().position(|(of, _)| of == address)?;
        Some(self.listeners.remove(found).1)
    }
}

/// The locks of a store as files.
pub(super) fn locks(files: Vec<OwnedFd>) -> Vec<File> {
    files.into_iter().map(File::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_with_its_files_and_the_next_one_without_them() {
        let (here, there) = UnixStream::pair().expect("a connection");
        let (here, there) = (Link(here), Link(there));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let store = Message::Store {
            epoch: 7,
            run: Some(8),
            earlier: Vec::new(),
        };
        here.send(&store, &[listener.as_fd(), listener.as_fd()])
            .expect("sent");
        here.send(&Message::Serving, &[]).expect("sent");
        let (message, files) = there.receive().expect("a message");
        assert_eq!((message, files.len()), (store, 2));
        for file in files {
            let received = TcpListener::from(file);
            assert_eq!(received.local_addr().expect("it is bound"), address);
        }
        let (message, files) = there.receive().expect("a message");
        assert_eq!((message, files.len()), (Message::Serving, 0));
        let prepared = br#"{"message":"prepared"}"#;
        (&here.0)
            .write_all(&(prepared.len() as u32).to_be_bytes())
            .and_then(|()| (&here.0).write_all(prepared))
            .expect("sent");
        let (message, _) = there.receive().expect("the message of an earlier release");
        let serves_earlier = false;
        assert_eq!(message, Message::Prepared { serves_earlier });
        drop(here);
        let ended = there.receive().expect_err("it is closed");
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }
}

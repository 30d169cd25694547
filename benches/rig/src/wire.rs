//! Minimal HTTP/1.1 for the load generator: prepared requests, and answers parsed only as far as their framing.

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::target::Target;

/// The requested workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Workload {
    /// The completion of 1 KB.
    Json,
    /// The stream of 53 events, each its own write, as fast as they go.
    Stream,
    /// The same with 1 ms between events.
    Paced,
    /// The completion of 1 KB over TLS and HTTP/2.
    Tls,
    /// The completion of 1 KB, for one request that is repeated.
    Hits,
    /// The completion of 1 KB for the request of a coding agent: 60 KB of source text in a message.
    Code,
    /// The completion of 1 KB for the request of an agent with 39 KB of tools.
    Tools,
}

/// The length of the source text in the request of a coding agent.
const CODE_BYTES: usize = 60 * 1024;

/// The tools of an agent. Each has about 1 KB.
const TOOLS: usize = 39;

/// The position of the number that makes every request distinct, so that no cache answers it.
const NUMBER: &str = "00000000";

/// The body of a request whose user message is `#word` and a number.
pub(crate) fn body(word: &str, streamed: bool) -> String {
    let stream = match streamed {
        true => r#","stream":true,"stream_options":{"include_usage":true}"#,
        false => "",
    };
    format!(
        "{{\"model\":\"bench\",\"messages\":[{{\"role\":\"system\",\"content\":\"You keep a gate and answer in one short \
         paragraph.\"}},{{\"role\":\"user\",\"content\":\"Traveller {NUMBER} asks what the toll is today. #{word}\"}}],\
         \"max_tokens\":256,\"temperature\":0.2{stream}}}"
    )
}

/// The body for `workload`.
pub(crate) fn workload_body(workload: Workload) -> String {
    match workload {
        Workload::Json | Workload::Tls => body("json", false),
        Workload::Hits => body("again", false),
        Workload::Stream => body("stream", true),
        Workload::Paced => body("paced", true),
        Workload::Code => {
            let source = [include_str!("wire.rs"), include_str!("load.rs")].concat();
            let source: String = source.chars().cycle().take(CODE_BYTES).collect();
            let message =
                json!({"role": "user", "content": format!("Review this file.\n\n{source}")});
            body("code", false).replacen("]", &format!(",{message}]"), 1)
        }
        Workload::Tools => {
            let tools: Vec<_> = (0..TOOLS).map(tool).collect();
            let tools = serde_json::Value::from(tools);
            body("tools", false).replacen(
                "\"max_tokens\"",
                &format!("\"tools\":{tools},\"max_tokens\""),
                1,
            )
        }
    }
}

/// A tool with a schema of five parameters.
fn tool(number: usize) -> serde_json::Value {
    let parameter = |name: &str| json!({"type": "string", "description": format!("The {name} of the entry, \"as recorded\" at the gate; empty if it is not known.")});
    json!({"type": "function", "function": {
        "name": format!("gate_operation_{number}"),
        "description": "Reads or changes entries of the gate's book. Call it once for each traveller, and never for a traveller whose toll \
                        has been settled already.\nReturns the entry after the change.",
        "strict": true,
        "parameters": {
            "type": "object", "additionalProperties": false, "required": ["traveller", "gate", "day"],
            "properties": {
                "traveller": parameter("traveller"), "gate": parameter("gate"), "day": parameter("day"), "note": parameter("note"),
                "amount": {"type": "integer", "minimum": 0, "description": "In the smallest coin."},
            },
        },
    }})
}

/// `body` as that of request `number`.
pub(crate) fn numbered(body: &str, number: usize) -> String {
    body.replacen(NUMBER, &digits(number), 1)
}

fn digits(number: usize) -> String {
    format!("{:08}", number % 100_000_000)
}

/// A keep-alive connection with a request that is ready to be sent.
pub(crate) struct Connection {
    target: Target,
    socket: TcpStream,
    request: Vec<u8>,
    number_at: usize,
    key_at: usize,
    inbox: Vec<u8>,
}

impl Connection {
    /// A connection to `target` for requests with `body`.
    pub(crate) async fn open(target: &Target, body: &str) -> Result<Self> {
        Self::open_nth(target, body, 0).await
    }

    /// The connection with a number to one of the nodes of `target`.
    pub(crate) async fn open_nth(target: &Target, body: &str, index: usize) -> Result<Self> {
        let mut target = target.clone();
        let nodes = target.more.len() + 1;
        if let Some(more) = (index % nodes).checked_sub(1) {
            target.address = target.more[more];
        }
        if let Some(key) = target.keys.first() {
            target.key.clone_from(key);
        }
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nAccept: application/json\r\n\
             Content-Type: application/json\r\nUser-Agent: bench/1\r\nContent-Length: {}\r\n\r\n{body}",
            target.address,
            target.key,
            body.len()
        );
        Ok(Self {
            socket: connect(&target).await?,
            key_at: memmem::find(request.as_bytes(), target.key.as_bytes())
                .context("a request with its key")?,
            number_at: memmem::find(request.as_bytes(), NUMBER.as_bytes())
                .context("a body with a number")?,
            request: request.into_bytes(),
            inbox: Vec::with_capacity(64 * 1024),
            target,
        })
    }

    /// Sends request `number` and reads its answer to the end; returns the answer's length.
    pub(crate) async fn ask(&mut self, number: usize) -> Result<usize> {
        match self.ask_status(number).await? {
            200 => Ok(self.inbox.len()),
            _ => bail!(
                "{} answered {:?}",
                self.target.name,
                String::from_utf8_lossy(&self.inbox)
            ),
        }
    }

    /// The same; returns the status, whatever it is.
    pub(crate) async fn ask_status(&mut self, number: usize) -> Result<u16> {
        self.send(number).await?;
        while !self.is_whole() {
            self.fill().await?;
        }
        let status = self.inbox.get(9..12).context("a status line")?;
        Ok(std::str::from_utf8(status)?.parse()?)
    }

    /// The last answer, head and body.
    pub(crate) fn answer(&self) -> &[u8] {
        &self.inbox
    }

    /// Whether the server closes the connection after the last answer.
    pub(crate) fn is_closing(&self) -> bool {
        let head_end = memmem::find(&self.inbox, b"\r\n\r\n").unwrap_or_default();
        let head = self.inbox[..head_end].to_ascii_lowercase();
        memmem::find(&head, b"\r\nconnection: close").is_some()
    }

    /// Sends request `number`.
    pub(crate) async fn send(&mut self, number: usize) -> Result<()> {
        let digits = format!("{:08}", number % 100_000_000);
        self.request[self.number_at..self.number_at + NUMBER.len()]
            .copy_from_slice(digits.as_bytes());
        let keys = &self.target.keys;
        if let Some(key) = keys.get(number % keys.len().max(1)) {
            self.request[self.key_at..self.key_at + key.len()].copy_from_slice(key.as_bytes());
        }
        self.inbox.clear();
        if self.socket.write_all(&self.request).await.is_err() {
            // A server may end a connection between requests.
            self.socket = connect(&self.target).await?;
            self.socket.write_all(&self.request).await?;
        }
        Ok(())
    }

    /// Reads until `text` was received, and returns everything up to its end that was not returned before.
    pub(crate) async fn read_until(&mut self, text: &str) -> Result<Vec<u8>> {
        loop {
            if let Some(at) = memmem::find(&self.inbox, text.as_bytes()) {
                return Ok(self.inbox.drain(..at + text.len()).collect());
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<()> {
        let read = self.socket.read_buf(&mut self.inbox).await?;
        ensure!(
            read > 0,
            "{} closed the connection after {:?}",
            self.target.name,
            String::from_utf8_lossy(&self.inbox)
        );
        Ok(())
    }

    /// Whether the answer is complete.
    fn is_whole(&self) -> bool {
        let Some(head_end) = memmem::find(&self.inbox, b"\r\n\r\n") else {
            return false;
        };
        match content_length(&self.inbox[..head_end + 2]) {
            Some(body) => self.inbox.len() >= head_end + 4 + body,
            // The data of our streams never ends like this.
            None => self.inbox.ends_with(b"\r\n0\r\n\r\n"),
        }
    }
}

async fn connect(target: &Target) -> Result<TcpStream> {
    let socket = TcpStream::connect(target.address).await;
    let socket = socket
        .with_context(|| format!("cannot connect to {} at {}", target.name, target.address))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let mut lines = head.split(|byte| *byte == b'\n');
    let line = lines
        .find(|line| line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME))?;
    std::str::from_utf8(&line[NAME.len()..])
        .ok()?
        .trim()
        .parse()
        .ok()
}

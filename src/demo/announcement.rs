//! The demo's output once the demo is ready.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;

use serde::Serialize;
use tollgate_money::AccountId;

use crate::Address;

/// The data that a person or a script needs to try the demo.
pub(super) struct Announcement<'a> {
    pub(super) addresses: &'a [Address],
    pub(super) admin: SocketAddr,
    pub(super) ca_file: &'a Path,
    pub(super) account: AccountId,
    pub(super) api_key: &'a str,
    pub(super) model: &'a str,
    pub(super) config_file: &'a Path,
    pub(super) provider_url: &'a str,
    pub(super) mailbox_url: &'a str,
    pub(super) address: &'a str,
    /// For x402, MPP and UCP, in this order.
    pub(super) buyers: &'a [Buyer],
    pub(super) paypal_url: &'a str,
    pub(super) facilitator_url: &'a str,
    pub(super) credits: i64,
}

/// An account for which a program buys the plan.
pub(super) struct Buyer {
    /// The account's sign-in identifier.
    pub(super) address: &'static str,
    /// The program's API key.
    pub(super) key: String,
}

/// The JSON line for scripts.
#[derive(Serialize)]
struct Line<'a> {
    base_url: String,
    tls_url: Option<String>,
    ca_file: &'a Path,
    admin_url: String,
    account: String,
    api_key: &'a str,
    model: &'a str,
    config_file: &'a Path,
    provider_url: &'a str,
    mcp_url: String,
    mailbox_url: &'a str,
    dashboard_url: String,
    sign_in_as: &'a str,
    paypal_url: &'a str,
    facilitator_url: &'a str,
}

impl Announcement<'_> {
    pub(super) fn print(&self, json: bool, out: &mut impl Write) -> io::Result<()> {
        if json {
            serde_json::to_writer(&mut *out, &self.line())?;
            writeln!(out)?;
        } else {
            self.print_text(out)?;
        }
        out.flush()
    }

    fn base_url(&self) -> String {
        let plain = self
            .addresses
            .iter()
            .find(|one| !one.tls)
            .or(self.addresses.first());
        plain.map_or_else(String::new, |one| {
            let scheme = if one.tls { "https" } else { "http" };
            format!("{scheme}://{}", one.address)
        })
    }

    fn tls_url(&self) -> Option<String> {
        let tls = self.addresses.iter().find(|one| one.tls)?;
        // By name, since the certificate is for the name.
        Some(format!("https://localhost:{}", tls.address.tcp()?.port()))
    }

    fn line(&self) -> Line<'_> {
        Line {
            base_url: self.base_url(),
            tls_url: self.tls_url(),
            ca_file: self.ca_file,
            admin_url: format!("http://{}", self.admin),
            account: self.account.to_string(),
            api_key: self.api_key,
            model: self.model,
            config_file: self.config_file,
            mcp_url: format!("{}/mcp", self.base_url()),
            provider_url: self.provider_url,
            mailbox_url: self.mailbox_url,
            dashboard_url: format!("{}/", self.base_url()),
            sign_in_as: self.address,
            paypal_url: self.paypal_url,
            facilitator_url: self.facilitator_url,
        }
    }

    fn print_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "tollgate demo: a real gateway; only the model provider, the MCP server, PayPal, the facilitator and the mailbox are stand-ins.\n"
        )?;
        self.print_addresses(out)?;
        self.print_requests(out)?;
        self.print_purchases(out)?;
        writeln!(
            out,
            "Next: ask \"demo-large\" for \"max_tokens\":100000 and see a 402; omit the key and"
        )?;
        writeln!(
            out,
            "see a 401; `tollgate usage --config {} --account {}`.",
            self.config_file.display(),
            self.account
        )?;
        writeln!(out, "Ctrl-C ends the demo and removes its files.")
    }

    /// The addresses of the gateway and of the stand-ins, the account and the files.
    fn print_addresses(&self, out: &mut impl Write) -> io::Result<()> {
        let base = self.base_url();
        writeln!(out, "  API        {base}/v1")?;
        if let Some(tls) = self.tls_url() {
            writeln!(
                out,
                "  over TLS   {tls}/v1   (trust {})",
                self.ca_file.display()
            )?;
        }
        writeln!(
            out,
            "  MCP        {base}/mcp   (and {base}/mcp/android: connect an MCP client, it requests your approval)"
        )?;
        writeln!(
            out,
            "  dashboard  {base}/   (sign in as {}, or create an account)",
            self.address
        )?;
        writeln!(
            out,
            "  mailbox    {}/   (the codes are there)",
            self.mailbox_url
        )?;
        writeln!(out, "  metrics    http://{}/metrics", self.admin)?;
        writeln!(
            out,
            "  account    {} with {} credits",
            self.account, self.credits
        )?;
        writeln!(
            out,
            "  PayPal     {}   (a stand-in; add credits at {base}/credits/add, buy the plan at {base}/plan)",
            self.paypal_url
        )?;
        writeln!(
            out,
            "  x402       {}   (a stand-in for a facilitator, with a chain of its own)",
            self.facilitator_url
        )?;
        writeln!(out, "  key        {}", self.api_key)?;
        writeln!(out, "  settings   {}\n", self.config_file.display())
    }

    /// Requests to the API, for a shell.
    fn print_requests(&self, out: &mut impl Write) -> io::Result<()> {
        let base = self.base_url();
        let Announcement {
            api_key: key,
            model,
            ..
        } = self;
        writeln!(
            out,
            "A completion, a stream, the first again (a free cache hit), and the model list:\n"
        )?;
        let post = |stream: &str, question: &str| {
            format!(
                "  curl {stream}{base}/v1/chat/completions -H 'Authorization: Bearer {key}' \\\n       \
                 -H 'Content-Type: application/json' -d '{{\"model\":\"{model}\",{}\"messages\":\
                 [{{\"role\":\"user\",\"content\":\"{question}\"}}]}}'\n",
                if stream.is_empty() {
                    ""
                } else {
                    "\"stream\":true,"
                },
            )
        };
        writeln!(out, "{}", post("", "What is a toll?"))?;
        writeln!(out, "{}", post("-N ", "Who pays it?"))?;
        writeln!(out, "{}", post("", "What is a toll?"))?;
        writeln!(
            out,
            "  curl {base}/v1/models -H 'Authorization: Bearer {key}'\n"
        )
    }

    /// How a program buys the plan, for each protocol.
    fn print_purchases(&self, out: &mut impl Write) -> io::Result<()> {
        let base = self.base_url();
        let [x402, mpp, ucp] = self.buyers else {
            return Ok(());
        };
        writeln!(
            out,
            "The plan, 199 USD, bought by a program with each of three protocols. An account has one plan, so each has its own account; sign in\n\
             with its address to see the plan there. Without node and npm the first one cannot run.\n"
        )?;
        writeln!(
            out,
            "  tests/clients/pay-x402 {base} {}   # {}",
            x402.key, x402.address
        )?;
        writeln!(
            out,
            "  tests/clients/pay-mpp.py {base} {} {}   # {}",
            mpp.key, self.paypal_url, mpp.address
        )?;
        writeln!(
            out,
            "  tests/clients/pay-ucp.py {base} {}   # {}, who completes it at the printed URL\n",
            ucp.key, ucp.address
        )
    }
}

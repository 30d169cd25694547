//! The settings of the demo, merged with an operator's own.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, bail};
use tollgate_testing::facilitator::MERCHANT;
use tollgate_testing::paypal::{PLAN_ID, WEBHOOK_ID};
use toml::{Table, Value};

use super::{CertificateFiles, PayPalFiles};
use crate::config::Settings;

/// The file beside the settings with the key for text messages, and the key. The key protects nothing: sender and receiver are in this
/// process.
pub(super) const SMS_SECRET_FILE: &str = "sms-secret";
pub(super) const SMS_SECRET: &str = "text-messages-of-the-demo";

/// The file with the secret that binds challenges of the `Payment` scheme, and the secret.
pub(super) const MPP_SECRET_FILE: &str = "mpp-secret";
pub(super) const MPP_SECRET: &str = "payment-challenges-of-the-demo-and-of-no-other";

/// The inputs of the demo's settings.
pub(super) struct DemoValues<'a> {
    /// The ports of HTTP and of HTTPS.
    pub(super) ports: (u16, u16),
    pub(super) provider_url: &'a str,
    pub(super) mcp_url: &'a str,
    pub(super) facilitator_url: &'a str,
    pub(super) smtp: SocketAddr,
    pub(super) mailbox_url: &'a str,
    pub(super) paypal: &'a PayPalFiles,
    pub(super) certificate: &'a CertificateFiles,
}

/// Writes the settings file of this run.
pub(super) fn write(
    file: &Path,
    values: &DemoValues<'_>,
    over: Option<&Path>,
) -> anyhow::Result<()> {
    let mut settings = values.table();
    if let Some(over) = over {
        let text = std::fs::read_to_string(over)
            .with_context(|| format!("cannot read `{}`", over.display()))?;
        let over = text
            .parse()
            .with_context(|| format!("`{}` is not TOML", over.display()))?;
        merge(&mut settings, over);
    }
    let text = toml::to_string(&settings).context("the settings cannot be written as TOML")?;
    super::write_private(file, text).with_context(|| format!("cannot write `{}`", file.display()))
}

/// The model that the examples request.
pub(super) fn first_model(settings: &Settings) -> &str {
    let default = settings
        .catalog
        .default_model()
        .or(settings.catalog.models().first());
    default.map_or("", |model| &model.id)
}

impl DemoValues<'_> {
    fn table(&self) -> Table {
        let (port, tls_port) = self.ports;
        let path = |path: &Path| Value::from(path.to_string_lossy().into_owned());
        let text = format!(
            r#"
            [service]
            default_model = "demo-small"
            base_url = "http://127.0.0.1:{port}"

            [[listener]]
            address = "127.0.0.1:{port}"

            [[listener]]
            address = "127.0.0.1:{tls_port}"
            tls = [{{ certificate = {certificate}, key = {key} }}]

            [admin]
            address = "127.0.0.1:0"

            [store]
            url = "sqlite:tollgate.db"

            [[provider]]
            name = "stand-in"
            base_url = "{provider_url}"

            [[model]]
            id = "demo-small"
            name = "Demo, small"
            providers = [{{ provider = "stand-in", model = "demo-small" }}]
            price = {{ input = "150", output = "600" }}
            context_length = 128000
            max_output_tokens = 4096

            [[model]]
            id = "demo-large"
            name = "Demo, large and dear"
            providers = [{{ provider = "stand-in", model = "demo-large" }}]
            price = {{ input = "50000", output = "200000", request = "0.01" }}
            context_length = 128000
            max_output_tokens = 4096

            [credits]
            usd_per_credit = "0.01"
            signup_grant = "5"

            [plan]
            monthly_credits = "20000"

            [signin]
            # A demo is tried by one person, often and from one address.
            network_hourly_max = 1000
            grants_network_daily_max = 1000
            grants_domain_daily_max = 1000

            [signin.mail]
            smtp_url = "smtp://{smtp}"
            from = "Demo <codes@example.net>"

            [signin.sms]
            webhook_url = "{mailbox_url}/sms"
            secret_file = "{SMS_SECRET_FILE}"

            [limits.classes.anonymous]
            quota = 6000
            window_secs = 60

            [limits.classes.free]
            quota = 300
            window_secs = 60

            [payments.paypal]
            base_url = "{paypal_url}"
            client_id_file = {paypal_id}
            client_secret_file = {paypal_secret}
            plan_id = "{PLAN_ID}"
            webhook_id = "{webhook_id}"
            ca_file = {paypal_ca}

            [payments.x402]
            facilitator_url = "{facilitator_url}"
            rpc_url = "{facilitator_url}/rpc"
            pay_to = "{MERCHANT}"

            [payments.mpp]
            secret_file = "{MPP_SECRET_FILE}"

            [mcp.general]
            upstream = "{mcp_url}"

            [mcp.android]
            upstream = "{mcp_url}"

            [telemetry]
            log_format = "text"
            log_level = "warn"
            access_log = "access.log"
            "#,
            mcp_url = self.mcp_url,
            facilitator_url = self.facilitator_url,
            paypal_url = self.paypal.url,
            paypal_id = path(&self.paypal.client_id),
            paypal_secret = path(&self.paypal.client_secret),
            paypal_ca = path(&self.paypal.ca_file),
            webhook_id = WEBHOOK_ID,
            certificate = path(&self.certificate.certificate),
            key = path(&self.certificate.key),
            provider_url = self.provider_url,
            smtp = self.smtp,
            mailbox_url = self.mailbox_url,
        );
        text.parse().expect("the demo's settings are TOML")
    }
}

/// Merges a table into another table: tables are joined, any other value is replaced.
fn merge(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => merge(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

/// The ports of HTTP and of HTTPS; the port of HTTPS is the port of HTTP plus one. For 0, two free ports are selected. Documents and pages
/// contain the gateway's address, so that the port has to be known before the gateway starts.
pub(super) fn ports(wanted: u16) -> anyhow::Result<(u16, u16)> {
    match wanted {
        0 => {
            let free = || tollgate_testing::free_port().context("the system has no free port");
            let first = free()?;
            loop {
                let second = free()?;
                if second != first {
                    return Ok((first, second));
                }
            }
        }
        u16::MAX => {
            bail!("`--port 65535` leaves no port above it for HTTPS; use a smaller one")
        }
        port => Ok((port, port + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_settings_override_those_of_the_demo() {
        let mut under: Table = "[a]\nx = 1\ny = 2\n[b]\nz = 3".parse().expect("TOML");
        let over: Table = "[a]\ny = 9\n[c]\nw = 4".parse().expect("TOML");
        merge(&mut under, over);
        let expected: Table = "[a]\nx = 1\ny = 9\n[b]\nz = 3\n[c]\nw = 4"
            .parse()
            .expect("TOML");
        assert_eq!(under, expected);
    }
}

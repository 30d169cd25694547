//! `tollgate demo`: a gateway to try, without setup.
//!
//! The whole gateway is real, on a separate database in a temporary folder. The model provider, the MCP server, PayPal, the facilitator and
//! every mailbox are stand-ins. The folder is removed when the demo ends.

mod announcement;
mod settings;

use std::fs::Permissions;
use std::future::Future;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use secrecy::ExposeSecret;
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{Resources, Scopes};
use tollgate_identity::{Form, Login, NewAccount, NewKey, create_account, create_key};
use tollgate_ledger::Credit;
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_testing::paypal::{CLIENT_ID, CLIENT_SECRET};
use tollgate_testing::{
    Certificate, Facilitator, Mailbox, McpServer, PayPal, Provider, mailbox, provider,
};

use crate::config::{self, Environment};
use crate::{Gateway, GatewayBuilder};
use announcement::{Announcement, Buyer};

/// The opening balance of the demo account.
const CREDITS: i64 = 100;

/// The sign-in identifier of the demo account.
const ADDRESS: &str = "demo@example.net";

/// The sign-in identifiers of the accounts that buy the plan: by x402, MPP and UCP. An account has a single plan, so that each protocol
/// needs an account.
const BUYERS: [&str; 3] = ["x402@example.net", "mpp@example.net", "ucp@example.net"];

/// Options of the demo.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The port for HTTP; HTTPS uses the next port. 0 selects free ports.
    pub port: u16,
    /// Prints a line of JSON instead of text.
    pub json: bool,
    /// Settings that override the demo's settings, so that an external service can be real.
    pub config: Option<PathBuf>,
}

/// Runs the demo until `stop` completes.
pub fn run(
    builder: GatewayBuilder,
    options: &Options,
    environment: &Environment,
    stop: impl Future<Output = ()>,
    out: &mut impl std::io::Write,
) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new()
        .prefix("tollgate-demo-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
        .context("cannot make a temporary folder; is TMPDIR writable?")?;
    let certificate = write_certificate(folder.path())?;
    let stand_ins = StandIns::start(folder.path())?;
    let StandIns {
        provider,
        mcp,
        mailbox,
        paypal,
        paypal_files,
        facilitator,
    } = &stand_ins;
    let ports = settings::ports(options.port)?;
    paypal.send_notices_to(&format!("http://127.0.0.1:{}/webhooks/paypal", ports.0));
    let config_file = folder.path().join("tollgate.toml");
    let values = settings::DemoValues {
        ports,
        provider_url: &provider.base_url(),
        mcp_url: &mcp.url(),
        facilitator_url: &facilitator.url(),
        smtp: mailbox.smtp(),
        mailbox_url: mailbox.url(),
        paypal: paypal_files,
        certificate: &certificate,
    };
    settings::write(&config_file, &values, options.config.as_deref())?;
    write_secrets(folder.path())?;
    let settings = config::load(&config_file, environment, &builder.declarations())?;
    let _diagnostics = crate::telemetry::diagnostics(&settings.telemetry)?;
    let service = settings.service.name.clone();
    let model = settings::first_model(&settings).to_owned();
    let gateway = builder.start(settings)?;
    let (account, key) = gateway.block_on(open_account(&gateway, &service, ADDRESS))?;
    let mut buyers = Vec::new();
    for address in BUYERS {
        let (_, key) = gateway.block_on(open_account(&gateway, &service, address))?;
        buyers.push(Buyer { address, key });
    }
    let announcement = Announcement {
        addresses: gateway.addresses(),
        admin: gateway.admin_address(),
        ca_file: &certificate.ca_file,
        account,
        api_key: &key,
        model: &model,
        config_file: &config_file,
        provider_url: &provider.url(),
        mailbox_url: mailbox.url(),
        address: ADDRESS,
        buyers: &buyers,
        paypal_url: &paypal.url(),
        facilitator_url: &facilitator.url(),
        credits: CREDITS,
    };
    announcement
        .print(options.json, out)
        .context("cannot print")?;
    let ended = gateway.run(stop);
    drop(stand_ins);
    folder
        .close()
        .context("cannot remove the temporary folder")?;
    ended.map_err(|failure| anyhow::anyhow!("{}", failure.message))
}

/// The stand-ins for other parties, stopped in the order of the fields.
struct StandIns {
    provider: Provider,
    mcp: McpServer,
    mailbox: Mailbox,
    paypal: PayPal,
    paypal_files: PayPalFiles,
    facilitator: Facilitator,
}

impl StandIns {
    /// Starts every stand-in, and writes the files for PayPal into `folder`.
    fn start(folder: &Path) -> anyhow::Result<StandIns> {
        let provider = Provider::start_own_thread(provider::Settings::default())
            .context("cannot start the stand-in for a model provider")?;
        let mcp =
            McpServer::start_own_thread().context("cannot start the stand-in for an MCP server")?;
        let mailbox = Mailbox::start(mailbox::Settings {
            sms_secret: Some(settings::SMS_SECRET.to_owned()),
            ..mailbox::Settings::default()
        })
        .context("cannot start the stand-in for a mailbox")?;
        let paypal = PayPal::start_own_thread().context("cannot start the stand-in for PayPal")?;
        let paypal_files = write_paypal(folder, &paypal)?;
        let facilitator = Facilitator::start_own_thread()
            .context("cannot start the stand-in for a facilitator")?;
        Ok(StandIns {
            provider,
            mcp,
            mailbox,
            paypal,
            paypal_files,
            facilitator,
        })
    }
}

/// The path of the certificate created for this run.
pub(crate) struct CertificateFiles {
    pub(crate) ca_file: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

fn write_certificate(folder: &Path) -> anyhow::Result<CertificateFiles> {
    let made = Certificate::for_localhost();
    let files = CertificateFiles {
        ca_file: folder.join("ca.pem"),
        certificate: folder.join("certificate.pem"),
        key: folder.join("key.pem"),
    };
    let written = write_private(&files.ca_file, &made.ca_pem)
        .and_then(|()| write_private(&files.certificate, &made.cert_pem))
        .and_then(|()| write_private(&files.key, &made.key_pem));
    written.context("cannot write the demo's certificate")?;
    Ok(files)
}

/// The address of PayPal's stand-in, and the gateway's credentials at the stand-in.
pub(crate) struct PayPalFiles {
    pub(crate) url: String,
    pub(crate) ca_file: PathBuf,
    pub(crate) client_id: PathBuf,
    pub(crate) client_secret: PathBuf,
}

fn write_paypal(folder: &Path, paypal: &PayPal) -> anyhow::Result<PayPalFiles> {
    let files = PayPalFiles {
        url: paypal.url(),
        ca_file: folder.join("paypal-ca.pem"),
        client_id: folder.join("paypal-client-id"),
        client_secret: folder.join("paypal-client-secret"),
    };
    let written = write_private(&files.ca_file, paypal.ca_pem())
        .and_then(|()| write_private(&files.client_id, CLIENT_ID))
        .and_then(|()| write_private(&files.client_secret, CLIENT_SECRET));
    written.context("cannot write how the demo is known to PayPal")?;
    Ok(files)
}

/// Writes the files with the secrets beside the settings.
fn write_secrets(folder: &Path) -> anyhow::Result<()> {
    // A file instead of a variable: commands with these settings must find the secret too.
    for (name, secret) in [
        (settings::SMS_SECRET_FILE, settings::SMS_SECRET),
        (settings::MPP_SECRET_FILE, settings::MPP_SECRET),
    ] {
        write_private(&folder.join(name), secret)
            .context("cannot write into the temporary folder")?;
    }
    Ok(())
}

/// Writes a new file that other users of the machine cannot read, because some of the files are keys.
fn write_private(path: &Path, content: impl AsRef<[u8]>) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content.as_ref())
}

/// Creates an account with credits and a key.
async fn open_account(
    gateway: &Gateway,
    service: &str,
    address: &str,
) -> anyhow::Result<(AccountId, String)> {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let now = clock.now();
    let account = NewAccount {
        logins: vec![Login::email(address)?],
        // The credits of the plan are visible once it is bought.
        class: Arc::from("free"),
        credit_limit: Micros::ZERO,
        cache_scope: tollgate_store::CacheScope::Shared,
        created_at: now,
    };
    let account = create_account(gateway.store(), account, |out| entropy.fill(out)).await?;
    let credit = Credit {
        operation: OperationId::generate(clock.now(), &entropy),
        account,
        amount: Micros::from_credits(CREDITS).expect("a hundred credits fit"),
        reference: Arc::from(address),
        at: clock.now(),
    };
    gateway.ledger().grant(credit).await?;
    let key = NewKey {
        account,
        label: String::from("demo"),
        resources: Resources::API.bits(),
        scopes: Scopes::API.bits(),
        models: None,
        spending_cap: None,
        expires_at: None,
        created_at: now,
    };
    let form = Form::api_key(service);
    let key = create_key(gateway.store(), &form, key, |out| entropy.fill(out)).await?;
    Ok((account, key.secret.expose_secret().to_owned()))
}

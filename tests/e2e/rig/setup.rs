//! The setup of a test's gateway: settings, provider, filters.

use std::path::{Path, PathBuf};

use tollgate::GatewayBuilder;
use tollgate::config::Environment;
use tollgate_testing::{Certificate, Provider, provider};
use toml::{Table, Value};

use super::{CREDITS, Rig, SECRETS};

/// The gateway's key at the provider.
pub(crate) const PROVIDER_KEY: &str = "sk-provider-5d0f7ac1e2";

/// Deviations of a test from the default setup.
pub(crate) struct Setup {
    /// Merged over the usual settings; `{provider_url}` is replaced by the provider's address.
    pub(crate) settings: String,
    /// The initial credit of the account, in micro-credits.
    pub(crate) credits: i64,
    /// The provider speaks TLS.
    pub(crate) provider_tls: bool,
    /// Answers of the test's own, instead of the provider's.
    pub(crate) custom: Option<provider::Custom>,
    /// How many calls the provider keeps whole.
    pub(crate) calls_kept: usize,
    /// Filters of the test's own.
    pub(crate) customise: Box<dyn FnOnce(GatewayBuilder) -> GatewayBuilder + Send>,
    pub(crate) environment: Environment,
    /// The random bytes of the store. The nodes of a cluster have the bytes in common.
    pub(crate) root_secret: Option<[u8; 32]>,
    /// The address of another gateway's provider, called in place of the gateway's own provider.
    pub(crate) provider_url: Option<String>,
    /// The name of the gateway's own provider in calls, instead of the address.
    pub(crate) provider_host: Option<&'static str>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            settings: String::new(),
            credits: CREDITS,
            provider_tls: false,
            custom: None,
            calls_kept: provider::Settings::default().calls_kept,
            customise: Box::new(|builder| builder),
            environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY)]),
            root_secret: None,
            provider_url: None,
            provider_host: None,
        }
    }
}

impl Setup {
    pub(crate) fn with(settings: &str) -> Setup {
        Setup {
            settings: settings.to_owned(),
            ..Setup::default()
        }
    }

    /// With every payment protocol and MCP server configured, at addresses without a listener.
    pub(crate) fn offering_everything(settings: &str) -> Setup {
        let all = format!(
            "{settings}\n[mcp.general]\nupstream = 'http://127.0.0.1:9/mcp'\n[mcp.android]\nupstream = 'http://127.0.0.1:9/mcp'\n\
             [payments.paypal]\nbase_url = 'https://127.0.0.1:9'\nclient_id_env = 'PAYPAL_ID'\nclient_secret_env = 'PAYPAL_SECRET'\n\
             plan_id = '{}'\nwebhook_id = '{}'\n[payments.mpp]\nsecret_env = 'MPP_SECRET'\n\
             [payments.x402]\nfacilitator_url = 'http://127.0.0.1:9'\npay_to = '{}'\n",
            tollgate_testing::paypal::PLAN_ID,
            tollgate_testing::paypal::WEBHOOK_ID,
            tollgate_testing::facilitator::MERCHANT,
        );
        let [id, secret, mpp] = crate::pay::mpp::secrets();
        Setup {
            environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY), id, secret, mpp]),
            ..Setup::with(&all)
        }
    }

    pub(crate) fn credits(self, credits: i64) -> Setup {
        Setup { credits, ..self }
    }

    pub(crate) async fn start(self) -> Rig {
        Rig::of(self).await
    }

    pub(crate) async fn provider(&self, folder: &Path) -> Provider {
        let tls = self.provider_tls.then(Certificate::for_localhost);
        if let Some(certificate) = &tls {
            let file = folder.join("provider-ca.pem");
            std::fs::write(file, &certificate.ca_pem).expect("the folder takes files");
        }
        let key = SECRETS.used("the provider's key", PROVIDER_KEY).to_owned();
        let settings = provider::Settings {
            key: Some(key),
            tls,
            custom: self.custom.clone(),
            calls_kept: self.calls_kept,
            ..provider::Settings::default()
        };
        Provider::start_with(settings).await.expect("a free port")
    }

    /// Writes the settings and the files named by the settings into `folder`.
    pub(crate) fn write(&self, folder: &Path, provider: &Provider) -> (PathBuf, Certificate) {
        let certificate = Certificate::for_localhost();
        for (name, text) in [
            ("certificate.pem", &certificate.cert_pem),
            ("key.pem", &certificate.key_pem),
        ] {
            std::fs::write(folder.join(name), text).expect("the folder takes files");
        }
        let own_url = || {
            let url = provider.base_url();
            let host = self.provider_host.unwrap_or("127.0.0.1");
            url.replace("127.0.0.1", host)
        };
        let url = self.provider_url.clone().unwrap_or_else(own_url);
        let mut settings = table(&url);
        let own = self.settings.replace("{provider_url}", &url);
        merge(&mut settings, own.parse().expect("TOML"));
        let file = folder.join("tollgate.toml");
        let text = toml::to_string(&settings).expect("tables are TOML");
        std::fs::write(&file, text).expect("the folder takes files");
        (file, certificate)
    }
}

/// The usual settings. A single worker, for a single pool of connections to the provider.
fn table(provider_url: &str) -> Table {
    let text = format!(
        r#"
        [service]
        default_model = "small"

        [server]
        workers = 1

        [[listener]]
        address = "127.0.0.1:0"

        [[listener]]
        address = "127.0.0.1:0"
        tls = [{{ certificate = "certificate.pem", key = "key.pem" }}]

        [admin]
        address = "127.0.0.1:0"

        [store]
        url = "sqlite:tollgate.db"

        [[provider]]
        name = "stand-in"
        base_url = "{provider_url}"
        api_key_env = "PROVIDER_KEY"

        [[model]]
        id = "small"
        providers = [{{ provider = "stand-in", model = "vendor/small-1" }}]
        price = {{ input = "150", output = "600" }}
        context_length = 128000
        max_output_tokens = 4096

        [[model]]
        id = "dear"
        providers = [{{ provider = "stand-in" }}]
        price = {{ input = "50000", output = "200000", request = "0.01" }}
        context_length = 128000
        max_output_tokens = 4096

        # Most tests are about what is asked of a provider, and ask the same again; those about the cache switch it on.
        [cache]
        enabled = false

        [credits]
        usd_per_credit = "0.01"

        [limits.classes.pro]
        quota = 1000000
        window_secs = 60

        [telemetry]
        log_format = "text"
        log_level = "info"
        access_log = "access.log"
        "#
    );
    text.parse().expect("the usual settings are TOML")
}

/// Lays a table over another table: tables are joined, arrays of tables element by element, and other values are replaced.
fn merge(under: &mut Table, over: Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => merge(under, over),
            (Some(Value::Array(under)), Value::Array(over)) if over.iter().all(Value::is_table) => {
                for (at, value) in over.into_iter().enumerate() {
                    match (under.get_mut(at), value) {
                        (Some(Value::Table(under)), Value::Table(over)) => merge(under, over),
                        (_, value) => under.push(value),
                    }
                }
            }
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

//! A gateway with several providers of a model.

use tollgate_testing::{Provider, provider};

use super::*;
use crate::rig::{PROVIDER_KEY, Setup};

/// The providers of a test. The rig's own provider is the first provider of the model `small`. The remaining providers are the fallback,
/// unless `weights` has different values.
#[derive(Default)]
pub(super) struct ProviderFixture<'a> {
    /// Settings of the rig's own provider.
    pub(super) first: &'a str,
    /// Settings of the remaining providers.
    pub(super) others: &'a [&'a str],
    /// Weights of the providers, the rig's own provider first.
    pub(super) weights: Option<&'a [u32]>,
    /// Settings of the model.
    pub(super) model: &'a str,
    /// Sections.
    pub(super) more: &'a str,
    /// Whether the rig's own provider uses TLS.
    pub(super) tls: bool,
    /// A custom answer of the rig's own provider.
    pub(super) custom: Option<provider::Custom>,
}

/// A provider whose circuit never opens.
pub(super) const NO_CIRCUIT: &str = "health = { failures = 1000 }";

impl ProviderFixture<'_> {
    pub(super) async fn open(self) -> (Rig, Vec<Provider>) {
        let mut settings = format!("{}\n[[provider]]\n{}\n", self.more, self.first);
        let mut candidates = format!("{{ weight = {} }}", self.weight(0));
        let mut others = Vec::new();
        for (at, lines) in self.others.iter().enumerate() {
            let stand_in = provider::Settings {
                key: Some(PROVIDER_KEY.to_owned()),
                ..provider::Settings::default()
            };
            let stand_in = Provider::start_with(stand_in).await.expect("a free port");
            let (name, weight) = (format!("other-{}", at + 1), self.weight(at + 1));
            settings += &format!(
                "[[provider]]\nname = \"{name}\"\nbase_url = \"{}\"\napi_key_env = \"PROVIDER_KEY\"\n{lines}\n",
                stand_in.base_url()
            );
            candidates += &format!(
                ", {{ provider = \"{name}\", model = \"vendor/{name}\", weight = {weight} }}"
            );
            others.push(stand_in);
        }
        settings += &format!("[[model]]\nproviders = [{candidates}]\n{}\n", self.model);
        let setup = Setup {
            provider_tls: self.tls,
            custom: self.custom,
            ..Setup::with(&settings)
        };
        (setup.start().await, others)
    }

    fn weight(&self, at: usize) -> u32 {
        self.weights
            .map_or(u32::from(at == 0), |weights| weights[at])
    }
}

/// The number of a metric with the provider's name as the only label.
pub(super) async fn metric(rig: &Rig, name: &str, provider: &str) -> u64 {
    let page = rig.admin_get("/metrics").await;
    let line = format!("{name}{{provider=\"{provider}\"}} ");
    let value = page
        .text()
        .lines()
        .find_map(|one| one.strip_prefix(&line))
        .unwrap_or_else(|| panic!("no {line}in the metrics"));
    value.parse().expect("a whole number")
}

/// The state of a provider, or of the provider's first candidate, as shown to operators.
pub(super) async fn state(rig: &Rig, provider: usize, of_model: bool) -> String {
    let view = rig.admin_get("/providers").await.json();
    let view = &view[provider];
    let state = if of_model {
        &view["models"][0]["state"]
    } else {
        &view["state"]
    };
    state.as_str().expect("a state").to_owned()
}

/// Waits until the state is `wanted`.
pub(super) async fn wait_for_state(rig: &Rig, provider: usize, of_model: bool, wanted: &str) {
    tollgate_testing::within(wanted, async {
        let mut often = tokio::time::interval(std::time::Duration::from_millis(10));
        while state(rig, provider, of_model).await != wanted {
            often.tick().await;
        }
    })
    .await;
}

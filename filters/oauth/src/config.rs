//! The section `[oauth]`: as written, and validated.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{Problems, Switch, Whole, Word};
use tollgate_filter::{ConsentCheckbox, CreditsStep};
use tollgate_identity::oauth::{OAuthSettings, RefreshSettings};
use tollgate_module::{Section, SectionContext, Services};

/// `[oauth]` as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawOAuth {
    /// Lifetime of an access token.
    pub access_token_secs: Whole<3_600, 60, 86_400>,
    /// Whether clients that register for them get refresh tokens. Without, a person has to consent again when the access token has
    /// expired. A client that registered, and access that was allowed, while this was off gets none.
    pub refresh_tokens: Switch<true>,
    /// Idle lifetime of a refresh token.
    pub refresh_idle_secs: Whole<2_592_000, 3_600, 31_536_000>,
    /// Maximum lifetime of refresh tokens after consent, independent of their use.
    pub refresh_secs_max: Whole<7_776_000, 3_600, 315_360_000>,
    /// Time within which a used refresh token is accepted again, for clients that lost the response. 0: a second use always revokes the
    /// whole family.
    pub refresh_grace_secs: Whole<10, 0, 60>,
    /// Maximum number of registered clients without a grant; above it the network with the most of them loses its oldest.
    pub unused_clients_max: Whole<10_000, 10, 1_000_000>,
    /// Time after which a registered client without a grant is removed.
    pub unused_client_secs: Whole<2_592_000, 3_600, 31_536_000>,
    /// Whether a client id may be the `https` URL of a client metadata document, which the gateway then fetches, directly and from public
    /// addresses only.
    pub client_documents: Switch<true>,
    /// Whether the purchase scope is a checkbox on the consent page. Otherwise it is granted together with the other requested scopes.
    pub tick_to_buy: Switch<false>,
    /// What an account without credits meets when an app asks for access to the API: `notice` on the consent page, or `required`, a page of
    /// its own before it that leads to the credits and back.
    pub credits_step: Word<CreditsStep>,
}

/// `[oauth]`, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OAuthConfig {
    /// Settings of the authorization server.
    pub server: OAuthSettings,
    /// Whether a client id may be the URL of a metadata document.
    pub client_documents: bool,
    /// Whether permission to buy is a separate checkbox on the consent page.
    pub tick_to_buy: bool,
    /// The step for an account without credits before consent.
    pub credits_step: CreditsStep,
}

impl Section for RawOAuth {
    const NAME: &'static str = "oauth";
    type Settings = OAuthConfig;

    fn check(&self, context: &SectionContext<'_>, problems: &mut Problems) -> Option<OAuthConfig> {
        let key = |name: &str| context.key(name);
        let access = self
            .access_token_secs
            .check(key("access_token_secs"), problems);
        let idle = self
            .refresh_idle_secs
            .check(key("refresh_idle_secs"), problems);
        let absolute = self
            .refresh_secs_max
            .check(key("refresh_secs_max"), problems);
        let grace = self
            .refresh_grace_secs
            .check(key("refresh_grace_secs"), problems);
        let unused = self
            .unused_clients_max
            .check(key("unused_clients_max"), problems);
        let retention = self
            .unused_client_secs
            .check(key("unused_client_secs"), problems);
        let credits_step = self.credits_step.check(key("credits_step"), problems);
        let (idle, absolute, grace) = (idle?, absolute?, grace?);
        let refresh = RefreshSettings {
            idle: Duration::from_secs(idle),
            absolute: Duration::from_secs(absolute),
            grace: Duration::from_secs(grace),
        };
        Some(OAuthConfig {
            server: OAuthSettings {
                access_token: Duration::from_secs(access?),
                refresh: self.refresh_tokens.is_on().then_some(refresh),
                unused_clients_max: u32::try_from(unused?).unwrap_or(u32::MAX),
                unused_clients: Duration::from_secs(retention?),
            },
            client_documents: self.client_documents.is_on(),
            tick_to_buy: self.tick_to_buy.is_on(),
            credits_step: credits_step?,
        })
    }

    fn provide(settings: OAuthConfig, services: &mut Services) {
        services.provide(ConsentCheckbox(settings.tick_to_buy));
        services.provide(settings.credits_step);
        services.provide(settings);
    }
}

//! The section `[oauth]`: as written, and validated.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Problems};
use tollgate_identity::oauth::{OAuthSettings, RefreshSettings};
use tollgate_module::{Section, SectionContext};

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// `[oauth]` as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawOAuth {
    /// Lifetime of an access token, in seconds.
    pub access_token_secs: Option<At<u64>>,
    /// Whether clients that register for the grant get refresh tokens.
    pub refresh_tokens: Option<At<bool>>,
    /// Idle lifetime of a refresh token, in seconds.
    pub refresh_idle_secs: Option<At<u64>>,
    /// Absolute lifetime of refresh tokens from the consent, in seconds.
    pub refresh_secs_max: Option<At<u64>>,
    /// Grace period in which a used refresh token may be used again, in seconds; 0 for none.
    pub refresh_grace_secs: Option<At<u64>>,
    /// Maximum number of registered clients without a grant.
    pub unused_clients_max: Option<At<u64>>,
    /// Whether a client id may be the URL of a metadata document.
    pub client_documents: Option<At<bool>>,
    /// Whether permission to buy is a separate checkbox on the consent page.
    pub tick_to_buy: Option<At<bool>>,
}

/// `[oauth]`, validated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OAuthConfig {
    /// Settings of the authorization server.
    pub server: OAuthSettings,
    /// Whether a client id may be the URL of a metadata document.
    pub client_documents: bool,
    /// Whether permission to buy is a separate checkbox on the consent page.
    pub tick_to_buy: bool,
}

impl Section for RawOAuth {
    const NAME: &'static str = "oauth";
    type Settings = OAuthConfig;

    fn check(&self, context: &SectionContext<'_>, problems: &mut Problems) -> Option<OAuthConfig> {
        let mut within = |name: &str, at: &Option<At<u64>>, default, range| match at {
            None => Some(default),
            Some(at) => problems.within(context.key(name), at, range),
        };
        let access = within("access_token_secs", &self.access_token_secs, HOUR, 60..=DAY);
        let idle = within(
            "refresh_idle_secs",
            &self.refresh_idle_secs,
            30 * DAY,
            HOUR..=365 * DAY,
        );
        let absolute = within(
            "refresh_secs_max",
            &self.refresh_secs_max,
            90 * DAY,
            HOUR..=3650 * DAY,
        );
        let grace = within("refresh_grace_secs", &self.refresh_grace_secs, 10, 0..=60);
        let unused = within(
            "unused_clients_max",
            &self.unused_clients_max,
            10_000,
            10..=1_000_000,
        );
        let (idle, absolute, grace) = (idle?, absolute?, grace?);
        let is_on = |at: &Option<At<bool>>| at.as_ref().is_some_and(|at| at.value);
        let refresh = RefreshSettings {
            idle: Duration::from_secs(idle),
            absolute: Duration::from_secs(absolute),
            grace: Duration::from_secs(grace),
        };
        Some(OAuthConfig {
            server: OAuthSettings {
                access_token: Duration::from_secs(access?),
                refresh: is_on(&self.refresh_tokens).then_some(refresh),
                unused_clients_max: u32::try_from(unused?).unwrap_or(u32::MAX),
            },
            client_documents: is_on(&self.client_documents),
            tick_to_buy: is_on(&self.tick_to_buy),
        })
    }
}

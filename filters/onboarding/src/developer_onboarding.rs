//! `DeveloperOnboarding`: sign-up, keys, sandbox and free tier as JSON. A closed object; every member is present.

use schemars::JsonSchema;
use serde::Serialize;

use crate::config::OnboardingSettings;
use crate::installation::Installation;

/// The only value of `status`.
const SELF_SERVICE: &str = "self_service";

#[derive(Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct DeveloperOnboarding<'a> {
    service: &'a str,
    #[schemars(extend("const" = SELF_SERVICE))]
    status: &'static str,
    login_required: bool,
    #[schemars(extend("format" = "uri"))]
    signup_url: &'a str,
    api_keys: ApiKeys<'a>,
    sandbox: Sandbox<'a>,
    free_tier: FreeTier<'a>,
    #[schemars(extend("format" = "uri"))]
    openapi_url: &'a str,
    #[schemars(extend("format" = "uri"))]
    mcp_server_card: &'a str,
}

#[derive(Serialize, JsonSchema)]
struct ApiKeys<'a> {
    self_service: bool,
    #[schemars(extend("format" = "uri"))]
    dashboard_url: &'a str,
    #[schemars(extend("format" = "uri"))]
    documentation_url: &'a str,
}

#[derive(Serialize, JsonSchema)]
struct Sandbox<'a> {
    available: bool,
    #[schemars(extend("format" = "uri-reference"))]
    url: &'a str,
    uses_production_api: bool,
}

#[derive(Serialize, JsonSchema)]
struct FreeTier<'a> {
    available: bool,
    service: &'a str,
    #[schemars(range(min = 1))]
    included_devices: u64,
    credits_required: bool,
    #[schemars(extend("format" = "uri"))]
    endpoint: &'a str,
    #[schemars(extend("format" = "uri"))]
    server_card: &'a str,
    #[schemars(extend("format" = "uri"))]
    apk_download_url: &'a str,
}

impl<'a> DeveloperOnboarding<'a> {
    pub(crate) fn new(
        settings: &'a OnboardingSettings,
        installation: &Installation,
    ) -> DeveloperOnboarding<'a> {
        let tier = &settings.free_tier;
        DeveloperOnboarding {
            service: &settings.service,
            status: SELF_SERVICE,
            login_required: settings.login_required,
            signup_url: &settings.signup_url,
            api_keys: ApiKeys {
                self_service: settings.self_service_keys,
                dashboard_url: &settings.dashboard_url,
                documentation_url: &settings.documentation_url,
            },
            sandbox: Sandbox {
                available: settings.sandbox_available,
                url: &settings.sandbox_url,
                uses_production_api: settings.sandbox_uses_production_api,
            },
            free_tier: FreeTier {
                available: tier.available && installation.has_free_tier(settings),
                service: &tier.service,
                included_devices: tier.included_devices,
                credits_required: tier.credits_required,
                endpoint: &tier.endpoint,
                server_card: &tier.server_card,
                apk_download_url: &tier.apk_download_url,
            },
            openapi_url: &settings.openapi_url,
            mcp_server_card: &settings.mcp_server_card,
        }
    }
}

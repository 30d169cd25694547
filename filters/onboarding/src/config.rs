//! Settings: `[onboarding]` as written, and validated.

use std::fmt::Display;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::ServiceIdentity;
use tollgate_filter::settings::{At, Problems, Switch, Whole};
use tollgate_module::{Section, SectionContext};

use crate::link_url::{LinkUrl, UrlReference};

/// Paths of the server cards, where the settings name no other.
pub(crate) const GENERAL_CARD: &str = "/.well-known/mcp/server-card.json";
pub(crate) const ANDROID_CARD: &str = "/.well-known/mcp/android/server-card.json";

/// `[onboarding]` exactly as written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawOnboarding {
    /// The name of the service.
    ///
    /// Default: `service.name`
    /// Range: one line
    pub service: Option<At<String>>,
    /// Whether a person has to sign in to get a key.
    pub login_required: Switch<true>,
    /// The sign-up page.
    ///
    /// Type: URL
    /// Default: `/sign-up` of this service
    /// Range: `http` or `https`, no user
    pub signup_url: Option<At<String>>,
    /// Whether people create keys themselves.
    pub self_service_keys: Switch<true>,
    /// The page for creating keys.
    ///
    /// Type: URL
    /// Default: `/keys` of this service
    /// Range: likewise
    pub dashboard_url: Option<At<String>>,
    /// The documentation of keys.
    ///
    /// Type: URL
    /// Default: `/docs` of this service
    /// Range: likewise
    pub documentation_url: Option<At<String>>,
    /// Whether there is a sandbox.
    pub sandbox_available: Switch<true>,
    /// The URL of the sandbox.
    ///
    /// Type: URL or path
    /// Default: `/sandbox`
    /// Range: likewise, or a path that starts with `/`
    pub sandbox_url: Option<At<String>>,
    /// Whether the sandbox sends real requests.
    pub sandbox_uses_production_api: Switch<true>,
    /// The free tier.
    pub free_tier: RawFreeTier,
    /// The URL of the OpenAPI document.
    ///
    /// Type: URL
    /// Default: `/openapi.json` of this service
    /// Range: likewise
    pub openapi_url: Option<At<String>>,
    /// The URL of the server card of the general MCP server.
    ///
    /// Type: URL
    /// Default: the card of this service
    /// Range: likewise
    pub mcp_server_card: Option<At<String>>,
    /// The version in the server cards.
    ///
    /// Default: `1.0.0`
    /// Range: one line
    pub mcp_version: Option<At<String>>,
    /// Security contact; without one there is no `security.txt`.
    pub security: RawSecurity,
}

/// The free tier exactly as written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawFreeTier {
    /// Whether the free tier of the Android MCP server is available.
    ///
    /// Default: `true` with an `apk_download_url`
    pub available: Option<At<bool>>,
    /// Its name.
    ///
    /// Default: `Android MCP`
    /// Range: one line
    pub service: Option<At<String>>,
    /// Devices per account.
    pub included_devices: Whole<1, 1, 1_000_000>,
    /// Whether it requires credits.
    pub credits_required: Switch<false>,
    /// Its URL.
    ///
    /// Type: URL
    /// Default: `/mcp/android` of this service
    /// Range: `http` or `https`, no user
    pub endpoint: Option<At<String>>,
    /// The URL of its server card.
    ///
    /// Type: URL
    /// Default: the card of this service
    /// Range: likewise
    pub server_card: Option<At<String>>,
    /// The URL of the app.
    ///
    /// Type: URL
    /// Default: `/docs` of this service
    /// Range: likewise; required where `available` is `true`
    pub apk_download_url: Option<At<String>>,
}

/// The security contact exactly as written (RFC 9116).
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawSecurity {
    /// The contact for security reports.
    ///
    /// Type: address
    /// Default: none: no `security.txt`
    /// Range: `mailto:` or a page
    pub contact: Option<At<String>>,
    /// The expiry date of `security.txt`.
    ///
    /// Type: time
    /// Default: required with a contact
    /// Range: 30 days to a year from the start
    pub expires: Option<At<String>>,
    /// The URL of the security policy.
    ///
    /// Type: URL
    /// Range: `http` or `https`, no user
    pub policy: Option<At<String>>,
    /// Languages of the contact.
    ///
    /// Range: one line
    pub languages: Option<At<String>>,
}

/// Validated settings: the content of the documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnboardingSettings {
    pub(crate) service: String,
    pub(crate) login_required: bool,
    pub(crate) signup_url: String,
    pub(crate) self_service_keys: bool,
    pub(crate) dashboard_url: String,
    pub(crate) documentation_url: String,
    pub(crate) sandbox_available: bool,
    pub(crate) sandbox_url: String,
    pub(crate) sandbox_uses_production_api: bool,
    pub(crate) free_tier: FreeTier,
    pub(crate) openapi_url: String,
    pub(crate) mcp_server_card: String,
    pub(crate) mcp_version: String,
    pub(crate) security: Option<Security>,
}

/// The free tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeTier {
    pub(crate) available: bool,
    pub(crate) service: String,
    pub(crate) included_devices: u64,
    pub(crate) credits_required: bool,
    pub(crate) endpoint: String,
    pub(crate) server_card: String,
    pub(crate) apk_download_url: String,
}

/// The security contact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    pub(crate) contact: String,
    pub(crate) expires: jiff::Timestamp,
    pub(crate) policy: Option<String>,
    pub(crate) languages: Option<String>,
}

impl Section for RawOnboarding {
    const NAME: &'static str = "onboarding";
    type Settings = OnboardingSettings;

    /// Every problem is reported, and the default is used in its place.
    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<OnboardingSettings> {
        let service: ServiceIdentity = context.find()?;
        let name = &service.name;
        let mut reader = Reader {
            context,
            base_url: &service.base_url,
            problems,
        };
        let free_tier = reader.free_tier(&self.free_tier);
        Some(OnboardingSettings {
            service: reader.line("service", self.service.as_ref(), name),
            login_required: self.login_required.is_on(),
            signup_url: reader.address("signup_url", self.signup_url.as_ref(), "/sign-up"),
            self_service_keys: self.self_service_keys.is_on(),
            dashboard_url: reader.address("dashboard_url", self.dashboard_url.as_ref(), "/keys"),
            documentation_url: reader.address(
                "documentation_url",
                self.documentation_url.as_ref(),
                "/docs",
            ),
            sandbox_available: self.sandbox_available.is_on(),
            sandbox_url: reader
                .parsed::<UrlReference>("sandbox_url", self.sandbox_url.as_ref())
                .unwrap_or_else(|| "/sandbox".to_owned()),
            sandbox_uses_production_api: self.sandbox_uses_production_api.is_on(),
            free_tier,
            openapi_url: reader.address("openapi_url", self.openapi_url.as_ref(), "/openapi.json"),
            mcp_server_card: reader.address(
                "mcp_server_card",
                self.mcp_server_card.as_ref(),
                GENERAL_CARD,
            ),
            mcp_version: reader.line("mcp_version", self.mcp_version.as_ref(), "1.0.0"),
            security: reader.security(&self.security),
        })
    }
}

struct Reader<'a> {
    context: &'a SectionContext<'a>,
    base_url: &'a str,
    problems: &'a mut Problems,
}

impl Reader<'_> {
    fn key(&self, name: &str) -> String {
        self.context.key(name)
    }

    fn parsed<T: FromStr<Err: Display> + Display>(
        &mut self,
        name: &str,
        at: Option<&At<String>>,
    ) -> Option<String> {
        let key = self.key(name);
        let value: T = self.problems.parse(key, at?)?;
        Some(value.to_string())
    }

    fn address(&mut self, name: &str, at: Option<&At<String>>, path: &str) -> String {
        self.parsed::<LinkUrl>(name, at)
            .unwrap_or_else(|| format!("{}{path}", self.base_url))
    }

    /// A single line of text.
    fn line(&mut self, name: &str, at: Option<&At<String>>, default: &str) -> String {
        let Some(at) = at else {
            return default.to_owned();
        };
        if at.value.trim().is_empty() || at.value.chars().any(char::is_control) {
            let key = self.key(name);
            self.problems.note(
                key,
                at,
                "is empty or has more than one line; use one line of text",
            );
            return default.to_owned();
        }
        at.value.trim().to_owned()
    }

    fn free_tier(&mut self, raw: &RawFreeTier) -> FreeTier {
        let available = raw
            .available
            .as_ref()
            .map_or(raw.apk_download_url.is_some(), |at| at.value);
        if available && raw.apk_download_url.is_none() {
            let key = self.key("free_tier.apk_download_url");
            self.problems.note_missing(
                key,
                "is missing; set the download URL of the app, or `available = false`",
            );
        }
        let key = self.key("free_tier.included_devices");
        let included_devices = raw.included_devices.check(key, self.problems);
        FreeTier {
            available,
            service: self.line("free_tier.service", raw.service.as_ref(), "Android MCP"),
            included_devices: included_devices.unwrap_or_default(),
            credits_required: raw.credits_required.is_on(),
            endpoint: self.address("free_tier.endpoint", raw.endpoint.as_ref(), "/mcp/android"),
            server_card: self.address(
                "free_tier.server_card",
                raw.server_card.as_ref(),
                ANDROID_CARD,
            ),
            // The member must be a URL. Without an app, the documentation is used.
            apk_download_url: self.address(
                "free_tier.apk_download_url",
                raw.apk_download_url.as_ref(),
                "/docs",
            ),
        }
    }

    fn security(&mut self, raw: &RawSecurity) -> Option<Security> {
        let Some(contact) = &raw.contact else {
            let others = [&raw.expires, &raw.policy, &raw.languages];
            if others.iter().any(|at| at.is_some()) {
                let key = self.key("security.contact");
                self.problems
                    .note_missing(key, "is missing; set `mailto:` and an address");
            }
            return None;
        };
        let is_mail = |text: &str| {
            text.strip_prefix("mailto:").is_some_and(|address| {
                address.contains('@') && address.bytes().all(|byte| byte.is_ascii_graphic())
            })
        };
        if !is_mail(&contact.value) && contact.value.parse::<LinkUrl>().is_err() {
            let key = self.key("security.contact");
            self.problems.note(
                key,
                contact,
                "is not a contact; use `mailto:security@example.com` or the URL of a page",
            );
        }
        let expires = match &raw.expires {
            Some(at) => {
                let key = self.key("security.expires");
                self.problems.parse(key, at)
            }
            None => {
                let key = self.key("security.expires");
                self.problems.note_missing(
                    key,
                    "is missing; set the expiry of the contact, as `2027-06-01T00:00:00Z`",
                );
                None
            }
        };
        let policy = self.parsed::<LinkUrl>("security.policy", raw.policy.as_ref());
        let languages = raw
            .languages
            .as_ref()
            .map(|_| self.line("security.languages", raw.languages.as_ref(), "en"));
        Some(Security {
            contact: contact.value.clone(),
            expires: expires?,
            policy,
            languages,
        })
    }
}

#[cfg(test)]
mod tests {
    use tollgate_module::{Services, check_text};

    use super::*;

    fn check(text: &str) -> Result<OnboardingSettings, Vec<String>> {
        let mut checked = Services::default();
        checked.provide(ServiceIdentity {
            name: "svc".to_owned(),
            base_url: "https://api.example.com".to_owned(),
            root_url: "https://example.com".to_owned(),
        });
        check_text::<RawOnboarding>(text, &checked)
            .map_err(|found| found.into_iter().map(|problem| problem.key).collect())
    }

    fn problems(text: &str) -> Vec<String> {
        check(text).expect_err("problems")
    }

    #[test]
    fn defaults_point_to_this_service() {
        let settings = check("").expect("defaults are good");
        assert_eq!(settings.signup_url, "https://api.example.com/sign-up");
        assert_eq!(settings.sandbox_url, "/sandbox");
        assert!(!settings.free_tier.available, "there is no app to download");
        assert_eq!(settings.security, None);
    }

    #[test]
    fn an_app_download_enables_the_free_tier() {
        let settings = check("free_tier.apk_download_url = \"https://e.example/a.apk\"");
        assert!(settings.expect("good settings").free_tier.available);
    }

    #[test]
    fn every_problem_is_reported() {
        let found = problems(
            "service = \" \"\nsignup_url = \"/here\"\nsandbox_url = \"here\"\n\
             free_tier = { available = true, included_devices = 0, endpoint = \"x\" }\n\
             security = { contact = \"me\", expires = \"tomorrow\", policy = \"p\" }",
        );
        let found: Vec<&str> = found
            .iter()
            .map(|key| key.strip_prefix("onboarding.").expect("of the section"))
            .collect();
        assert_eq!(
            found,
            [
                "free_tier.apk_download_url",
                "free_tier.included_devices",
                "free_tier.endpoint",
                "service",
                "signup_url",
                "sandbox_url",
                "security.contact",
                "security.expires",
                "security.policy",
            ]
        );
        let found = problems("security = { policy = \"https://e.example\" }");
        assert_eq!(found, ["onboarding.security.contact"]);
        let found = problems("security = { contact = \"mailto:a@b.example\" }");
        assert_eq!(found, ["onboarding.security.expires"]);
    }
}

//! Settings: `[onboarding]` as written, and validated.

use std::fmt::Display;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::ServiceIdentity;
use tollgate_filter::settings::{At, Problems};
use tollgate_module::{Section, SectionContext};

use crate::public_url::{PublicUrl, UrlReference};

/// Paths of the server cards, where the settings name no other.
pub(crate) const GENERAL_CARD: &str = "/.well-known/mcp/server-card.json";
pub(crate) const ANDROID_CARD: &str = "/.well-known/mcp/android/server-card.json";

const DEVICES_MAX: u64 = 1_000_000;

/// `[onboarding]` exactly as written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawOnboarding {
    /// Service name in the documents; `service.name` when missing.
    pub service: Option<At<String>>,
    /// Whether signing in is required to get a key. Default true.
    pub login_required: Option<At<bool>>,
    /// Sign-up URL; `/sign-up` of this service when missing.
    pub signup_url: Option<At<String>>,
    /// Whether keys are self-service. Default true.
    pub self_service_keys: Option<At<bool>>,
    /// URL of the key management; `/keys` of this service when missing.
    pub dashboard_url: Option<At<String>>,
    /// Documentation URL; `/docs` of this service when missing.
    pub documentation_url: Option<At<String>>,
    /// Whether there is a sandbox. Default true.
    pub sandbox_available: Option<At<bool>>,
    /// URL or path of the sandbox. Default `/sandbox`.
    pub sandbox_url: Option<At<String>>,
    /// Whether the sandbox sends real requests. Default true.
    pub sandbox_uses_production_api: Option<At<bool>>,
    /// The free tier.
    pub free_tier: RawFreeTier,
    /// URL of the OpenAPI document; `/openapi.json` of this service when missing.
    pub openapi_url: Option<At<String>>,
    /// URL of the general MCP server card; that of this service when missing.
    pub mcp_server_card: Option<At<String>>,
    /// Version in the MCP server cards. Default `1.0.0`.
    pub mcp_version: Option<At<String>>,
    /// Security contact; without one there is no `security.txt`.
    pub security: RawSecurity,
}

/// The free tier exactly as written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawFreeTier {
    /// Whether it is available. Default: whether there is an app to download.
    pub available: Option<At<bool>>,
    /// Name. Default `Android MCP`.
    pub service: Option<At<String>>,
    /// Devices per account. Default 1.
    pub included_devices: Option<At<u64>>,
    /// Whether it requires credits. Default false.
    pub credits_required: Option<At<bool>>,
    /// Endpoint; `/mcp/android` of this service when missing.
    pub endpoint: Option<At<String>>,
    /// URL of its server card; that of this service when missing.
    pub server_card: Option<At<String>>,
    /// Download URL of the app; required if the tier is available.
    pub apk_download_url: Option<At<String>>,
}

/// The security contact exactly as written (RFC 9116).
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawSecurity {
    /// Contact: `mailto:security@example.com` or a page.
    pub contact: Option<At<String>>,
    /// Expiry of the document, RFC 3339: at least 30 days from the start, at most a year.
    pub expires: Option<At<String>>,
    /// URL of the security policy.
    pub policy: Option<At<String>>,
    /// Languages: `en, de`.
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
            login_required: flag(self.login_required.as_ref(), true),
            signup_url: reader.address("signup_url", self.signup_url.as_ref(), "/sign-up"),
            self_service_keys: flag(self.self_service_keys.as_ref(), true),
            dashboard_url: reader.address("dashboard_url", self.dashboard_url.as_ref(), "/keys"),
            documentation_url: reader.address(
                "documentation_url",
                self.documentation_url.as_ref(),
                "/docs",
            ),
            sandbox_available: flag(self.sandbox_available.as_ref(), true),
            sandbox_url: reader
                .parsed::<UrlReference>("sandbox_url", self.sandbox_url.as_ref())
                .unwrap_or_else(|| "/sandbox".to_owned()),
            sandbox_uses_production_api: flag(self.sandbox_uses_production_api.as_ref(), true),
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

fn flag(at: Option<&At<bool>>, default: bool) -> bool {
    at.map_or(default, |at| at.value)
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
        self.parsed::<PublicUrl>(name, at)
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
        let available = flag(raw.available.as_ref(), raw.apk_download_url.is_some());
        if available && raw.apk_download_url.is_none() {
            let key = self.key("free_tier.apk_download_url");
            self.problems.note_missing(
                key,
                "is missing; set the download URL of the app, or `available = false`",
            );
        }
        let included_devices = match &raw.included_devices {
            Some(at) => {
                let key = self.key("free_tier.included_devices");
                self.problems.within(key, at, 1..=DEVICES_MAX).unwrap_or(1)
            }
            None => 1,
        };
        FreeTier {
            available,
            service: self.line("free_tier.service", raw.service.as_ref(), "Android MCP"),
            included_devices,
            credits_required: flag(raw.credits_required.as_ref(), false),
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
        if !is_mail(&contact.value) && contact.value.parse::<PublicUrl>().is_err() {
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
        let policy = self.parsed::<PublicUrl>("security.policy", raw.policy.as_ref());
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

//! The onboarding documents, generated once at start.

use serde_json::{Value, json};
use tollgate_clock::Timestamp;
use tollgate_filter::{Document, Resource, ServiceIdentity};
use tollgate_purchase::plan::PlanProtocols;

use crate::config::{ANDROID_CARD, GENERAL_CARD, OnboardingSettings};
use crate::developer_onboarding::DeveloperOnboarding;
use crate::installation::Installation;
use crate::openapi;
use crate::security_txt::{self, ExpiresError};

const ONBOARDING: &str = "/developer/onboarding";
const SECURITY_TXT: &str = "/.well-known/security.txt";
const LLMS_TXT: &str = "/llms.txt";
const ROBOTS_TXT: &str = "/robots.txt";
const OPENAPI: &str = "/openapi.json";

/// Chapters of the documentation, each of which is also Markdown.
const CHAPTERS: [&str; 5] = ["start", "errors", "limits", "paying", "lifecycle"];

/// Paths of all documents.
pub(crate) const PATHS: [&str; 7] = [
    ONBOARDING,
    GENERAL_CARD,
    ANDROID_CARD,
    SECURITY_TXT,
    LLMS_TXT,
    ROBOTS_TXT,
    OPENAPI,
];

const PLAIN: &str = "text/plain; charset=utf-8";

/// JSON schema of server cards.
const CARD_SCHEMA: &str =
    "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json";

/// Maximum length of a card description, in characters.
const CARD_DESCRIPTION_CHARS_MAX: usize = 100;

/// All onboarding documents.
pub struct Documents {
    documents: Vec<(&'static str, Document)>,
}

impl Documents {
    /// Generates the documents at `now`.
    ///
    /// # Errors
    ///
    /// The expiry of the security contact is out of range.
    pub fn new(
        settings: &OnboardingSettings,
        installation: &Installation,
        now: Timestamp,
    ) -> Result<Documents, ExpiresError> {
        let service = &installation.service;
        let offers = |resource| installation.offered.has(resource);
        let entry = serde_json::to_value(DeveloperOnboarding::new(settings, installation))
            .expect("strings, numbers and booleans are valid JSON");
        let mut documents = vec![
            (ONBOARDING, Document::json(&entry)),
            (
                LLMS_TXT,
                Document::new(PLAIN, llms_txt(settings, installation)),
            ),
            (ROBOTS_TXT, Document::new(PLAIN, ROBOTS_TXT_BODY)),
            (
                OPENAPI,
                Document::json(&openapi::document(settings, installation)),
            ),
        ];
        let tier = &settings.free_tier;
        let general = service.resource_url(Resource::Mcp);
        for (path, endpoint, part, title, is_offered) in [
            (
                GENERAL_CARD,
                &general,
                "mcp",
                &settings.service,
                offers(Resource::Mcp),
            ),
            (
                ANDROID_CARD,
                &tier.endpoint,
                "android",
                &tier.service,
                installation.has_free_tier(settings),
            ),
        ] {
            if is_offered {
                let card = server_card(settings, service, endpoint, part, title);
                documents.push((path, Document::json(&card)));
            }
        }
        if let Some(security) = &settings.security {
            let canonical = format!("{}{SECURITY_TXT}", &service.base_url);
            let text = security_txt::text(security, &canonical, now)?;
            documents.push((SECURITY_TXT, Document::new(PLAIN, text)));
        }
        Ok(Documents { documents })
    }

    /// The document at a path, if any.
    pub(crate) fn find(&self, path: &str) -> Option<&Document> {
        let found = self.documents.iter().find(|(known, _)| *known == path);
        found.map(|(_, document)| document)
    }
}

/// The card of an MCP server: name, version and endpoint (SEP-2127). Its tools are reported by the server itself.
fn server_card(
    settings: &OnboardingSettings,
    service: &ServiceIdentity,
    endpoint: &str,
    part: &str,
    title: &str,
) -> Value {
    let mut description = format!("{title}: tools over Streamable HTTP, access by OAuth");
    if let Some((end, _)) = description.char_indices().nth(CARD_DESCRIPTION_CHARS_MAX) {
        description.truncate(end);
    }
    json!({
        "$schema": CARD_SCHEMA,
        "name": format!("{}/{part}", reversed_host(&service.base_url)),
        "version": settings.mcp_version,
        "title": title,
        "description": description,
        "websiteUrl": settings.documentation_url,
        "remotes": [{"type": "streamable-http", "url": endpoint}],
    })
}

/// The host of a URL with its labels reversed, as server names begin; IP addresses unchanged.
fn reversed_host(base_url: &str) -> String {
    let host = base_url
        .parse::<http::Uri>()
        .ok()
        .and_then(|uri| uri.host().map(str::to_owned))
        .unwrap_or_default();
    let numbers = host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok();
    if numbers {
        return host;
    }
    let labels: Vec<&str> = host.split('.').rev().collect();
    labels.join(".")
}

/// `llms.txt`: a description of the service for language models, in Markdown. What is not configured is left out.
fn llms_txt(settings: &OnboardingSettings, installation: &Installation) -> String {
    let ServiceIdentity {
        base_url: base,
        name,
        ..
    } = &installation.service;
    let chapters = CHAPTERS.map(|name| format!("[{name}]({base}/docs/{name}.md)"));
    let sign_up = match installation.sign_up {
        true => format!(
            "- [Sign up]({}): an account, by a code to e-mail or phone\n",
            settings.signup_url
        ),
        false => String::new(),
    };
    format!(
        "# {title}\n\n\
         > Text generation behind an OpenAI-compatible interface, paid with credits. A stock OpenAI SDK works with this base URL and a key.\n\n\
         - Base URL: {base}/v1\n\
         - Credential: `Authorization: Bearer` with an API key (`sk-{name}-...`) or an OAuth access token for the resource {base}/v1\n\
         - A 402 contains the missing credits and where to add them; a 429 contains the time to wait in `Retry-After`\n\n\
         ## Access\n\n\
         {sign_up}\
         - [API keys]({keys}): created and revoked by a signed-in person\n\
         - A leaked key: who finds it revokes it with `POST {base}/keys/revoke` and `Authorization: Bearer KEY`. 200 for every key\n\
         - [Onboarding for programs]({base}{ONBOARDING}): the same as JSON\n\
         - [OAuth metadata]({base}/.well-known/oauth-authorization-server): registration, authorization code with PKCE\n\n\
         ## Usage\n\n\
         - [Documentation]({docs}): quick start, errors, limits, paying from a program. As Markdown: {chapters}\n\
         - [OpenAPI]({openapi}): every operation\n\
         - [Lifecycle]({base}/docs/lifecycle): deprecations and sunset dates\n\
         - `GET {base}/v1/models`, `POST {base}/v1/chat/completions`, `POST {base}/v1/completions`\n\
         {plan}{mcp}",
        title = settings.service,
        keys = settings.dashboard_url,
        docs = settings.documentation_url,
        chapters = chapters.join(", "),
        openapi = settings.openapi_url,
        plan = plan_section(installation),
        mcp = mcp_section(settings, installation),
    )
}

/// How programs buy the plan, by the protocols that are configured; empty where there is none.
fn plan_section(installation: &Installation) -> String {
    let (base, slug) = (&installation.service.base_url, &installation.plan.slug);
    let PlanProtocols { x402, mpp, paypal } = installation.protocols;
    let ways = [
        (
            x402,
            format!(
                "- x402: `POST {base}/commerce/subscriptions/{slug}/x402`, exactly 199 USDC on Base for 30 days. x402 clients refuse to pay more \
             than 1 USD until their cap is raised\n"
            ),
        ),
        (
            mpp,
            format!(
                "- MPP: `POST {base}/commerce/subscriptions/{slug}/mpp`, monthly at PayPal; the owner of the account approves at the \
             `approval_url` of the 402\n"
            ),
        ),
        (
            paypal,
            format!(
                "- UCP: `POST {base}/ucp/v1/checkout-sessions`, monthly at PayPal; the owner of the account approves at `continue_url`\n"
            ),
        ),
    ];
    let ways: String = ways
        .into_iter()
        .filter(|(is_on, _)| *is_on)
        .map(|(_, way)| way)
        .collect();
    if ways.is_empty() {
        return ways;
    }
    format!(
        "\n## Buying the plan\n\n\
         {plan} costs 199 USD a month. Each payment buys: {includes}. A program with a key, or a token with the scope `commerce:subscribe`, buys it for its account:\n\n\
         {ways}\
         - [The plan]({base}/commerce/products/{slug}): its benefits, as JSON\n\
         - [How to pay]({base}/docs/paying): the requests, and the meaning of `payment_state` and `retry_action`. After a lost response, send the same request again; nothing is paid twice\n",
        plan = installation.plan.name,
        includes = installation.plan_benefits().join(", "),
    )
}

/// The MCP servers that are configured; empty where there is none.
fn mcp_section(settings: &OnboardingSettings, installation: &Installation) -> String {
    let tier = &settings.free_tier;
    let mut cards = String::new();
    if installation.offered.has(Resource::Mcp) {
        let endpoint = installation.service.resource_url(Resource::Mcp);
        cards += &format!(
            "- [Server card]({}): {endpoint}, Streamable HTTP\n",
            settings.mcp_server_card
        );
    }
    if installation.has_free_tier(settings) {
        cards += &format!(
            "- [Server card, {}]({}): {}\n",
            tier.service, tier.server_card, tier.endpoint
        );
    }
    match cards.is_empty() {
        true => cards,
        false => format!("\n## MCP\n\n{cards}"),
    }
}

/// Documents may be crawled; account pages and API operations are excluded (RFC 9309).
const ROBOTS_TXT_BODY: &str = "User-agent: *\n\
    Allow: /docs\n\
    Allow: /llms.txt\n\
    Disallow: /v1/\n\
    Disallow: /mcp\n\
    Disallow: /oauth/\n\
    Disallow: /consent/\n\
    Disallow: /keys\n\
    Disallow: /usage\n\
    Disallow: /credits\n\
    Disallow: /plan\n\
    Disallow: /apps\n\
    Disallow: /sandbox\n";

#[cfg(test)]
pub(crate) mod tests {
    use tollgate_filter::{RateClasses, Resources};
    use tollgate_module::{Services, check_text};
    use tollgate_purchase::plan::Plan;

    use super::*;
    use crate::config::RawOnboarding;

    pub(crate) fn plan() -> Plan {
        Plan {
            product: "svc-pro-monthly".into(),
            slug: "svc-pro".into(),
            name: "Pro".into(),
            class: "pro".into(),
            monthly_credits: tollgate_money::Micros::ZERO,
            renewal_days: 7,
            device_slots: None,
            computer_use_tasks: None,
            features: std::sync::Arc::from([]),
        }
    }

    fn build(text: &str) -> Documents {
        let service = ServiceIdentity {
            name: "svc".to_owned(),
            base_url: "https://api.svc.example:8443/gate".to_owned(),
            root_url: "https://api.svc.example:8443/gate".to_owned(),
        };
        let mut checked = Services::default();
        checked.provide(service.clone());
        let settings = check_text::<RawOnboarding>(text, &checked).expect("good settings");
        let now = Timestamp::from_rfc3339("2027-01-01T00:00:00Z").expect("a time");
        let installation = Installation {
            service,
            plan: plan(),
            classes: RateClasses::default(),
            protocols: PlanProtocols::ALL,
            offered: Resources::API
                .with(Resource::Mcp)
                .with(Resource::McpAndroid),
            sign_up: true,
            usdc: String::from("0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"),
            deprecated: Vec::new(),
        };
        Documents::new(&settings, &installation, now).expect("the contact lasts")
    }

    fn json_at(documents: &Documents, path: &str) -> Value {
        let document = documents.find(path).expect("a document");
        serde_json::from_slice(document.body()).expect("JSON")
    }

    #[test]
    fn the_onboarding_document_has_exactly_its_members() {
        let documents = build("free_tier.apk_download_url = \"https://e.example/a.apk\"");
        let entry = json_at(&documents, ONBOARDING);
        let base = "https://api.svc.example:8443/gate";
        assert_eq!(
            entry,
            json!({
                "service": "svc",
                "status": "self_service",
                "login_required": true,
                "signup_url": format!("{base}/sign-up"),
                "api_keys": {"self_service": true, "dashboard_url": format!("{base}/keys"), "documentation_url": format!("{base}/docs")},
                "sandbox": {"available": true, "url": "/sandbox", "uses_production_api": true},
                "free_tier": {
                    "available": true, "service": "Android MCP", "included_devices": 1, "credits_required": false,
                    "endpoint": format!("{base}/mcp/android"),
                    "server_card": format!("{base}/.well-known/mcp/android/server-card.json"),
                    "apk_download_url": "https://e.example/a.apk",
                },
                "openapi_url": format!("{base}/openapi.json"),
                "mcp_server_card": format!("{base}/.well-known/mcp/server-card.json"),
            })
        );
    }

    #[test]
    fn a_card_names_its_server_and_endpoint() {
        let documents = build("service = \"Example\"\nmcp_version = \"2.1.0\"");
        let card = json_at(&documents, GENERAL_CARD);
        assert_eq!(card["name"], "example.svc.api/mcp");
        assert_eq!(card["version"], "2.1.0");
        assert_eq!(
            card["remotes"],
            json!([{"type": "streamable-http", "url": "https://api.svc.example:8443/gate/mcp"}])
        );
        let android = json_at(&documents, ANDROID_CARD);
        assert_eq!(
            android["remotes"][0]["url"],
            "https://api.svc.example:8443/gate/mcp/android"
        );
        assert_eq!(reversed_host("http://127.0.0.1:8080"), "127.0.0.1");
        assert_eq!(reversed_host("http://[::1]:8080"), "[::1]");
        let long = build(&format!("service = \"{}\"", "long ".repeat(40)));
        let card = json_at(&long, GENERAL_CARD);
        let description = card["description"].as_str().expect("a text");
        assert_eq!(description.chars().count(), CARD_DESCRIPTION_CHARS_MAX);
    }

    #[test]
    fn security_txt_exists_if_a_contact_is_configured() {
        assert!(build("").find(SECURITY_TXT).is_none());
        let documents = build(
            "security = { contact = \"mailto:s@e.example\", expires = \"2027-06-01T00:00:00Z\" }",
        );
        let text = documents
            .find(SECURITY_TXT)
            .expect("a contact")
            .body()
            .clone();
        assert!(text.starts_with(b"Contact: mailto:s@e.example\n"));
    }
}

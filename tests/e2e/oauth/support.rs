//! Test support: an OAuth client, and an account owner with decisions on the client's requests.

use bytes::Bytes;
use serde_json::{Value, json};
use tollgate_testing::{Answer, Client};

use crate::rig::{Browser, Rig, SECRETS, Setup};

pub(crate) const BASE: &str = "https://api.svc.example";
pub(crate) const ROOT: &str = "https://svc.example";
pub(crate) const REDIRECT: &str = "https://app.example/cb?x=1";

/// The pair of RFC 7636, appendix B.
pub(crate) const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
pub(crate) const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

/// A gateway with two addresses, and with limits above the needs of a table of cases.
pub(crate) async fn rig(settings: &str) -> Rig {
    setup(settings).start().await
}

pub(crate) fn setup(settings: &str) -> Setup {
    let classes: String = ["anonymous", "register", "authorize", "oauth"]
        .map(|name| format!("[limits.classes.{name}]\nquota = 1000000\nwindow_secs = 1\n"))
        .concat();
    Setup::with(&format!(
        "service.base_url = \"{BASE}\"\nservice.root_url = \"{ROOT}\"\n{settings}\n{classes}"
    ))
}

/// An app and the browser of the app's user.
pub(crate) struct App<'r> {
    pub(crate) rig: &'r Rig,
    pub(crate) browser: Browser,
    /// Its id.
    pub(crate) id: String,
    /// The registered redirect URI.
    pub(crate) redirect: String,
}

impl<'r> App<'r> {
    /// A registered app with a signed-in user.
    pub(crate) async fn new(rig: &'r Rig) -> App<'r> {
        App::at(rig, REDIRECT).await
    }

    pub(crate) async fn at(rig: &'r Rig, redirect: &str) -> App<'r> {
        let browser = Browser::signed_in(rig).await;
        App::of(rig, browser, redirect).await
    }

    pub(crate) async fn of(rig: &'r Rig, browser: Browser, redirect: &str) -> App<'r> {
        let metadata = json!({
            "client_name": "Notebook Copilot",
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
        });
        let answer = register(rig, &metadata).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        App {
            rig,
            browser,
            id: text(&answer.json()["client_id"]),
            redirect: redirect.to_owned(),
        }
    }

    /// A sound request, with the parameters `changes` changed, added, or removed by an empty value.
    pub(crate) fn asking(&self, changes: &[(&str, &str)]) -> String {
        let mut pairs = vec![
            ("client_id", self.id.as_str()),
            ("redirect_uri", self.redirect.as_str()),
            ("response_type", "code"),
            ("code_challenge", CHALLENGE),
            ("code_challenge_method", "S256"),
            ("state", "a b&c"),
        ];
        pairs.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
        pairs.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
        format!("/oauth/authorize?{}", encoded(&pairs))
    }

    /// Sends the user's browser with a request to the page of the decision. Returns the page's path.
    pub(crate) async fn ask(&mut self, changes: &[(&str, &str)]) -> String {
        let asking = self.asking(changes);
        let answer = self.browser.get(&asking).await;
        assert_eq!(answer.status, 303, "{}", answer.text());
        let path = answer.header("location").expect("a way on").to_owned();
        assert!(path.starts_with("/consent/"), "{path}");
        path
    }

    /// The user grants the request. Returns the URL of the browser's redirect.
    pub(crate) async fn allowed(&mut self, changes: &[(&str, &str)]) -> String {
        let path = self.ask(changes).await;
        let page = self.browser.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.text());
        let answer = self.browser.submit(&path, &[("decision", "allow")]).await;
        assert_eq!(answer.status, 303, "{}", answer.text());
        answer.header("location").expect("a way on").to_owned()
    }

    /// A code for the requested scopes.
    pub(crate) async fn code(&mut self, changes: &[(&str, &str)]) -> String {
        let address = self.allowed(changes).await;
        let code = parameter(&address, "code").expect("a code");
        SECRETS.used("an authorization code", &code);
        code
    }

    /// The parameters of a sound exchange.
    pub(crate) fn exchanging<'a>(&'a self, code: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &self.redirect),
            ("client_id", &self.id),
            ("code_verifier", VERIFIER),
        ]
    }

    /// A token for the requested scopes.
    pub(crate) async fn token(&mut self, changes: &[(&str, &str)]) -> Value {
        let code = self.code(changes).await;
        let answer = token(self.rig, &self.exchanging(&code)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let token = answer.json();
        SECRETS.used(
            "an access token",
            token["access_token"].as_str().expect("a text"),
        );
        if let Some(refresh) = token["refresh_token"].as_str() {
            SECRETS.used("a refresh token", refresh);
        }
        token
    }
}

/// Whether a token opens the model list.
pub(crate) async fn works(rig: &Rig, token: &Value) -> bool {
    let token = token.as_str().expect("a text");
    let answer = Client::new(&rig.url())
        .with_key(token)
        .get("/v1/models")
        .await;
    answer.status == 200
}

pub(crate) async fn register(rig: &Rig, metadata: &Value) -> Answer {
    Client::new(&rig.url())
        .post("/oauth/register", metadata)
        .await
}

pub(crate) async fn token(rig: &Rig, pairs: &[(&str, &str)]) -> Answer {
    form(rig, "/oauth/token", &encoded(pairs), &[]).await
}

/// Sends a literal form.
pub(crate) async fn form(rig: &Rig, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
    let client = Client::new(&rig.url());
    let mut request = client.request("POST", path, Bytes::from(body.to_owned()));
    let fields = request.headers_mut();
    let kind = "application/x-www-form-urlencoded";
    fields.insert("content-type", kind.parse().expect("a value"));
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().expect("a name");
        fields.insert(name, value.parse().expect("a value"));
    }
    client.send(request).await
}

pub(crate) fn encoded(pairs: &[(&str, &str)]) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(pairs);
    form.finish()
}

/// A parameter of an address.
pub(crate) fn parameter(address: &str, name: &str) -> Option<String> {
    let (_, query) = address.split_once('?')?;
    form_urlencoded::parse(query.as_bytes())
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.into_owned())
}

/// The target of a page's only button.
pub(crate) fn way_back(page: &str) -> String {
    let start = page
        .split_once("class=\"button\" href=\"")
        .map(|(_, rest)| rest);
    let address = start
        .and_then(|rest| rest.split_once('"'))
        .map(|(address, _)| address);
    address
        .unwrap_or_else(|| panic!("a page without a way on: {page}"))
        .replace("&amp;", "&")
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// Fails unless the answer is an uncacheable error in the format of OAuth.
pub(crate) fn is_error(answer: &Answer, status: u16, word: &str, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    let body = answer.json();
    assert_eq!(body["error"], word, "{what}: {body}");
    let description = body["error_description"].as_str().expect("a text");
    let fits = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    assert!(
        description.len() > 10 && description.bytes().all(fits),
        "{what}: {description}"
    );
    assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/json"),
        "{what}"
    );
}

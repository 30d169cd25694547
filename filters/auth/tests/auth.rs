//! Integration tests of the filter: a request as input, a principal or a refusal as output.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use secrecy::ExposeSecret;
use tempfile::TempDir;
use tollgate_auth::{Auth, Auths, PaymentAuth};
use tollgate_clock::{Clock, ManualClock, Timestamp};
use tollgate_filter::{
    ApiError, ClientAddress, CredentialKind, ErrorCode, ErrorShape, Exchange, Filter, ModelAccess,
    Outcome, PaymentCredential, PaymentField, Principal, Protocol, Request, RequiredAccess,
    Resource, Resources, Scope, Scopes, Step,
};
use tollgate_identity::{
    CreatedKey, Credentials, Digest, Form, NewAccount, NewKey, create_account, create_key,
    revoke_key, set_class, set_status,
};
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};
use tollgate_store::sqlite::{self, Options};
use tollgate_store::{
    AccountStatus, Admission, NewCredential, Part, RootSecret, Store, UnitOfWork, commit,
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A well-formed key that was never issued.
const UNKNOWN: &str = "sk-svc-7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M06o8FL";
const TOKEN: &str = "svc_at_7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M1aEA4s";

const V1: &str = "https://api.svc.example/.well-known/oauth-protected-resource/v1";

struct Bench {
    store: Arc<dyn Store>,
    auths: Auths,
    account: AccountId,
    manual: ManualClock,
    drawn: u8,
    _folder: TempDir,
}

impl Bench {
    async fn new() -> Bench {
        let folder = TempDir::new().expect("a folder");
        let options = Options::new(NOW, RootSecret([7; 32]));
        let store = sqlite::open(&folder.path().join("books.db"), options).expect("a store");
        let credentials = Credentials::open(&store);
        let account = NewAccount {
            logins: Vec::new(),
            class: Arc::from("free"),
            credit_limit: Micros::ZERO,
            cache_scope: tollgate_store::CacheScope::Shared,
            created_at: NOW,
        };
        let account = create_account(&*store, account, |out| out.fill(1))
            .await
            .expect("an account");
        let service = tollgate_filter::ServiceIdentity {
            name: String::from("svc"),
            base_url: String::from("https://api.svc.example"),
            root_url: String::from("https://svc.example"),
        };
        let (clock, manual) = Clock::manual(NOW);
        Bench {
            auths: Auths::new(service, credentials, clock),
            store,
            account,
            manual,
            drawn: 1,
            _folder: folder,
        }
    }

    async fn key(&mut self, change: impl FnOnce(&mut NewKey)) -> CreatedKey {
        let mut key = NewKey {
            account: self.account,
            label: String::from("laptop"),
            resources: Resources::API.bits(),
            scopes: Scopes::API.bits(),
            models: None,
            spending_cap: None,
            expires_at: None,
            created_at: NOW,
        };
        change(&mut key);
        self.drawn += 1;
        let drawn = self.drawn;
        create_key(&*self.store, &Form::api_key("svc"), key, |out| {
            out.fill(drawn)
        })
        .await
        .expect("a key")
    }

    /// Stores [`TOKEN`] with these resources and scopes.
    async fn token(&self, resources: u32, scopes: Scopes) {
        let token = NewCredential {
            id: CredentialId::from_bytes([200; 16]),
            hash: *Digest::of(TOKEN.as_bytes()).as_bytes(),
            kind: tollgate_store::CredentialKind::AccessToken,
            account: self.account,
            client_id: Some(Arc::from("c_1")),
            grant_id: None,
            resource: resources,
            scopes: scopes.bits(),
            label: None,
            hint: None,
            models: None,
            spending_cap: None,
            created_at: NOW,
            expires_at: Some(NOW + Duration::from_secs(3600)),
        };
        let part = Part::InsertCredential(Box::new(token));
        commit(&*self.store, UnitOfWork::of(part, Admission::Normal))
            .await
            .expect("written");
    }

    fn filter(&self, scope: Scope) -> Auth {
        self.auths
            .auth(RequiredAccess::of(scope))
            .expect("the addresses are sound")
    }

    /// The filter of the general MCP resource, which any of its scopes opens.
    fn mcp(&self) -> Auth {
        let scopes = [Scope::McpChat, Scope::McpProjects, Scope::McpDevices];
        let scopes = scopes.into_iter().fold(Scopes::NONE, Scopes::with);
        let access = RequiredAccess::any_of(scopes).expect("scopes of one resource");
        self.auths.auth(access).expect("the addresses are sound")
    }

    fn chat(&self) -> Auth {
        self.filter(Scope::ApiChat)
    }
}

/// A request with these `Authorization` fields.
fn exchange(path: &str, fields: &[&str]) -> Exchange {
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query.into())),
        None => (path, None),
    };
    let mut headers = HeaderMap::new();
    for field in fields {
        let value = HeaderValue::from_str(field).expect("visible ASCII");
        headers.append(HeaderName::from_static("authorization"), value);
    }
    Exchange::new(Request {
        id: OperationId::from_parts(1, [0; 10]),
        method: Method::POST,
        path: path.into(),
        query,
        headers,
        body: Bytes::new(),
        client: ClientAddress::direct([192, 0, 2, 1].into()),
        tls: false,
        protocol: Protocol::Http11,
    })
}

/// Runs the filter on a request with these `Authorization` fields.
fn ask(filter: &Auth, path: &str, fields: &[&str]) -> Result<Principal, Box<ApiError>> {
    let mut exchange = exchange(path, fields);
    let outcome = outcome(filter.on_request(&mut exchange));
    match (outcome, exchange.take::<Principal>()) {
        (Outcome::Continue, Some(principal)) => Ok(principal),
        (Outcome::Refuse(error), None) => Err(error),
        (outcome, principal) => panic!("{outcome:?} with {principal:?}"),
    }
}

/// The outcome of a step; one that waits is completed on a thread of its own.
fn outcome(step: Step<'_, Outcome>) -> Outcome {
    let finished = std::thread::scope(|scope| {
        let finishing = scope.spawn(|| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().build().expect("a runtime");
            runtime.block_on(step.finish())
        });
        finishing.join().expect("no panic")
    });
    finished.expect("it is decided")
}

fn with(filter: &Auth, credential: &str) -> Result<Principal, Box<ApiError>> {
    let field = format!("Bearer {credential}");
    ask(filter, "/v1/chat/completions", &[&field])
}

/// Every part of a refusal that a client gets.
fn seen(error: &ApiError) -> (u16, String, HeaderMap) {
    let mut headers = HeaderMap::new();
    error.write_headers(&mut headers);
    let body = error.body(ErrorShape::Envelope);
    let body = String::from_utf8(body.to_vec()).expect("JSON");
    (error.status().as_u16(), body, headers)
}

/// Checks code, status and challenge of a refusal.
fn check(refused: Result<Principal, Box<ApiError>>, code: ErrorCode, challenge: Option<&str>) {
    let error = refused.expect_err("refused");
    assert_eq!(error.code, code, "{error}");
    let (_, body, headers) = seen(&error);
    let fields: Vec<_> = headers.get_all("www-authenticate").iter().collect();
    assert_eq!(fields, challenge.into_iter().collect::<Vec<_>>(), "{body}");
    assert_eq!(headers["cache-control"], "no-store");
}

#[tokio::test]
async fn a_key_becomes_the_principal_of_its_account() {
    let mut bench = Bench::new().await;
    let models: Arc<[Arc<str>]> = Arc::from([Arc::from("m-small")]);
    let key = bench.key(|key| key.models = Some(models)).await;
    let principal = with(&bench.chat(), key.secret.expose_secret()).expect("let in");
    assert_eq!(principal.account, bench.account);
    assert_eq!(principal.credential, key.id.0);
    assert_eq!(principal.kind, CredentialKind::ApiKey);
    assert_eq!(principal.scopes, Scopes::API);
    assert_eq!(&*principal.class, "free");
    assert!(principal.models.allows("m-small") && !principal.models.allows("m-large"));

    set_class(&*bench.store, bench.account, Arc::from("pro"), NOW)
        .await
        .expect("changed");
    let principal = with(&bench.chat(), key.secret.expose_secret()).expect("let in");
    assert_eq!(&*principal.class, "pro", "for the very next request");
}

#[tokio::test]
async fn rfc6750_3_1_a_challenge_without_a_credential_has_no_error_code() {
    let bench = Bench::new().await;
    let challenge = format!("Bearer resource_metadata=\"{V1}\", scope=\"api:chat\"");
    for fields in [
        &[][..],
        &["Basic dXNlcjpwYXNz"],
        &["Bearer"],
        &["Bearer "],
        &["Payment x"],
    ] {
        let refused = ask(&bench.chat(), "/v1/chat/completions", fields);
        check(refused, ErrorCode::MissingCredential, Some(&challenge));
    }
    let refused = ask(
        &bench.filter(Scope::CommerceSubscribe),
        "/ucp/v1/checkout-sessions",
        &[],
    );
    let challenge = "Bearer resource_metadata=\"https://svc.example/.well-known/oauth-protected-resource\", scope=\"commerce:subscribe\"";
    check(refused, ErrorCode::MissingCredential, Some(challenge));
}

#[tokio::test]
async fn malformed_unknown_expired_and_revoked_have_one_response() {
    let mut bench = Bench::new().await;
    let revoked = bench.key(|_| {}).await;
    let expired = bench
        .key(|key| key.expires_at = Some(NOW + Duration::from_secs(1)))
        .await;
    let left = bench.key(|_| {}).await;
    for key in [&revoked, &expired, &left] {
        assert!(with(&bench.chat(), key.secret.expose_secret()).is_ok());
    }
    revoke_key(&*bench.store, revoked.id, NOW)
        .await
        .expect("revoked");
    bench.manual.advance(Duration::from_secs(1));

    let slip = UNKNOWN.replace("7Hq2", "7H2q");
    let challenge = format!("Bearer error=\"invalid_token\", resource_metadata=\"{V1}\"");
    let mut answers = Vec::new();
    let mut invalid = |credential: &str, chat: &Auth| {
        let refused = with(chat, credential);
        answers.push(seen(refused.as_ref().expect_err("refused")));
        check(refused, ErrorCode::InvalidCredential, Some(&challenge));
    };
    for credential in [
        "abc",
        &slip,
        UNKNOWN,
        TOKEN,
        revoked.secret.expose_secret(),
        expired.secret.expose_secret(),
    ] {
        invalid(credential, &bench.chat());
    }
    set_status(&*bench.store, bench.account, AccountStatus::Closed, NOW)
        .await
        .expect("closed");
    invalid(left.secret.expose_secret(), &bench.chat());
    // The text for a token does not speak of keys, whether or not it is one that was issued.
    let for_token = answers.remove(3);
    assert!(
        answers.iter().all(|answer| *answer == answers[0]),
        "to the byte"
    );
    assert_eq!((answers[0].0, for_token.0), (401, 401));
}

#[tokio::test]
async fn a_suspended_account_is_refused_until_it_is_reactivated() {
    let mut bench = Bench::new().await;
    let key = bench.key(|_| {}).await;
    let set = |status| set_status(&*bench.store, bench.account, status, NOW);
    set(AccountStatus::Suspended).await.expect("suspended");
    check(
        with(&bench.chat(), key.secret.expose_secret()),
        ErrorCode::AccountSuspended,
        None,
    );
    set(AccountStatus::Active).await.expect("active");
    assert!(with(&bench.chat(), key.secret.expose_secret()).is_ok());
}

#[tokio::test]
async fn a_credential_without_the_scope_is_refused_by_its_kind() {
    let mut bench = Bench::new().await;
    let chat_only = Scopes::NONE.with(Scope::ApiChat);
    let key = bench.key(|key| key.scopes = chat_only.bits()).await;
    bench.token(Resources::API.bits(), chat_only).await;
    let completions = bench.filter(Scope::ApiCompletions);

    assert!(with(&bench.chat(), key.secret.expose_secret()).is_ok());
    check(
        with(&completions, key.secret.expose_secret()),
        ErrorCode::KeyNotPermitted,
        None,
    );

    let principal = with(&bench.chat(), TOKEN).expect("let in");
    assert_eq!(principal.kind, CredentialKind::AccessToken);
    assert!(matches!(principal.models, ModelAccess::All));
    let challenge = format!(
        "Bearer error=\"insufficient_scope\", scope=\"api:completions\", resource_metadata=\"{V1}\""
    );
    check(
        with(&completions, TOKEN),
        ErrorCode::InsufficientScope,
        Some(&challenge),
    );
}

#[tokio::test]
async fn a_credential_works_at_its_own_resource_only() {
    let mut bench = Bench::new().await;
    let key = bench.key(|key| key.scopes = u32::MAX).await;
    let all = Scopes::from_bits(u32::MAX);
    let android = 1 << Resource::McpAndroid as u8;
    bench.token(android, all).await;
    let at = |scope: Scope, path: &str, credential: &str| {
        ask(
            &bench.filter(scope),
            path,
            &[&format!("Bearer {credential}")],
        )
    };
    let invalid = |document: &str| {
        format!(
            "Bearer error=\"invalid_token\", resource_metadata=\"https://api.svc.example/.well-known/oauth-protected-resource{document}\""
        )
    };
    assert!(at(Scope::McpAndroid, "/mcp/android", TOKEN).is_ok());
    for (scope, path, credential, document) in [
        (Scope::ApiChat, "/v1/chat/completions", TOKEN, "/v1"),
        (Scope::McpChat, "/mcp", TOKEN, "/mcp"),
        (Scope::McpChat, "/mcp", key.secret.expose_secret(), "/mcp"),
        (
            Scope::McpAndroid,
            "/mcp/android",
            key.secret.expose_secret(),
            "/mcp/android",
        ),
    ] {
        let refused = at(scope, path, credential);
        check(refused, ErrorCode::WrongResource, Some(&invalid(document)));
    }
}

#[tokio::test]
async fn any_scope_of_the_general_mcp_resource_opens_it_and_a_challenge_names_them_all() {
    const MCP: &str = "https://api.svc.example/.well-known/oauth-protected-resource/mcp";
    const ALL: &str = "mcp:chat mcp:projects mcp:devices";
    for scope in [Scope::McpChat, Scope::McpProjects, Scope::McpDevices] {
        let bench = Bench::new().await;
        let resource = Resources::only(Resource::Mcp);
        bench.token(resource.bits(), Scopes::NONE.with(scope)).await;
        let principal = ask(&bench.mcp(), "/mcp", &[&format!("Bearer {TOKEN}")]).expect("let in");
        assert_eq!(principal.scopes.to_string(), scope.name());
    }

    let bench = Bench::new().await;
    let challenge = format!("Bearer resource_metadata=\"{MCP}\", scope=\"{ALL}\"");
    let refused = ask(&bench.mcp(), "/mcp", &[]);
    let message = refused.as_ref().expect_err("refused").to_string();
    assert!(
        message.contains("access token") && message.contains("Bearer svc_at_..."),
        "no API key works here: {message}"
    );
    check(refused, ErrorCode::MissingCredential, Some(&challenge));

    let foreign = Scopes::NONE.with(Scope::McpAndroid).with(Scope::ApiChat);
    bench
        .token(Resources::only(Resource::Mcp).bits(), foreign)
        .await;
    let challenge = format!(
        "Bearer error=\"insufficient_scope\", scope=\"{ALL}\", resource_metadata=\"{MCP}\""
    );
    let refused = ask(&bench.mcp(), "/mcp", &[&format!("Bearer {TOKEN}")]);
    check(refused, ErrorCode::InsufficientScope, Some(&challenge));
}

#[tokio::test]
async fn an_authorization_that_cannot_be_understood_is_no_credential() {
    let mut bench = Bench::new().await;
    let key = bench.key(|_| {}).await;
    let good = format!("Bearer {}", key.secret.expose_secret());
    let quoted = format!("Bearer \"{}\"", key.secret.expose_secret());
    let challenge = format!("Bearer error=\"invalid_request\", resource_metadata=\"{V1}\"");
    for fields in [
        &[&*good, &good][..],
        &["Basic x", &good],
        &[&quoted],
        &["Bearer a b"],
    ] {
        let refused = ask(&bench.chat(), "/v1/chat/completions", fields);
        check(refused, ErrorCode::InvalidHeader, Some(&challenge));
    }
}

#[tokio::test]
async fn a_key_in_the_address_is_refused_with_help_and_not_repeated() {
    let mut bench = Bench::new().await;
    let key = bench.key(|_| {}).await;
    let secret = key.secret.expose_secret();
    let address = format!("/v1/chat/completions?api_key={secret}");

    let refused = ask(&bench.chat(), &address, &[]);
    let message = refused.as_ref().expect_err("refused").to_string();
    assert!(
        message.contains("Authorization: Bearer sk-svc-...") && message.contains("revoke it"),
        "{message}"
    );
    assert!(!message.contains(secret), "{message}");
    let challenge = format!("Bearer resource_metadata=\"{V1}\", scope=\"api:chat\"");
    check(refused, ErrorCode::MissingCredential, Some(&challenge));

    let refused = ask(&bench.chat(), &address, &[&format!("Bearer {secret}")]);
    let challenge = format!("Bearer error=\"invalid_request\", resource_metadata=\"{V1}\"");
    check(refused, ErrorCode::InvalidRequest, Some(&challenge));

    let harmless = ask(
        &bench.chat(),
        "/v1/chat/completions?trace=1",
        &[&format!("Bearer {secret}")],
    );
    assert!(harmless.is_ok());
}

/// Runs the filter of a payment route on a request with these fields.
fn pay(
    filter: &PaymentAuth,
    fields: &[(&'static str, &str)],
) -> Result<(Principal, Option<PaymentCredential>), Box<ApiError>> {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let value = HeaderValue::from_str(value).expect("visible ASCII");
        headers.append(HeaderName::from_static(name), value);
    }
    let mut exchange = Exchange::new(Request {
        id: OperationId::from_parts(1, [0; 10]),
        method: Method::POST,
        path: "/commerce/subscriptions/svc-pro/mpp".into(),
        query: None,
        headers,
        body: Bytes::new(),
        client: ClientAddress::direct([192, 0, 2, 1].into()),
        tls: false,
        protocol: Protocol::Http11,
    });
    let outcome = outcome(filter.on_request(&mut exchange));
    let payment = exchange.take::<PaymentCredential>();
    match (outcome, exchange.take::<Principal>()) {
        (Outcome::Continue, Some(principal)) => Ok((principal, payment)),
        (Outcome::Refuse(error), None) => Err(error),
        (outcome, principal) => panic!("{outcome:?} with {principal:?}"),
    }
}

#[tokio::test]
async fn with_a_payment_the_credential_is_in_the_services_own_field() {
    const HERE: &str = "authorization";
    const BESIDE: &str = "x-svc-authorization";
    const OWN: &str = "payment-authorization";
    let mut bench = Bench::new().await;
    let key = bench
        .key(|key| key.scopes = Scopes::NONE.with(Scope::CommerceSubscribe).bits())
        .await;
    let other = bench
        .key(|key| key.scopes = Scopes::NONE.with(Scope::ApiChat).bits())
        .await;
    let access = RequiredAccess::of(Scope::CommerceSubscribe);
    let filter = bench.auths.beside_payment(access).expect("sound addresses");
    let bearer = format!("Bearer {}", key.secret.expose_secret());
    let loose = format!("bearer   {} ", key.secret.expose_secret());
    let another = format!("Bearer {}", other.secret.expose_secret());

    let at = |field| Some(("c".to_owned(), field));
    for (fields, payment) in [
        (&[(HERE, &*bearer)][..], None),
        (&[(HERE, &bearer), (BESIDE, &bearer)], None),
        (&[(HERE, &bearer), (BESIDE, &loose)], None),
        (
            &[(HERE, "Payment c"), (BESIDE, &bearer)],
            at(PaymentField::Authorization),
        ),
        (
            &[(HERE, "pAYMENT   c "), (BESIDE, &loose)],
            at(PaymentField::Authorization),
        ),
        (
            &[(HERE, &bearer), (OWN, "Payment c")],
            at(PaymentField::PaymentAuthorization),
        ),
        (
            &[(HERE, "Payment"), (BESIDE, &bearer)],
            Some((String::new(), PaymentField::Authorization)),
        ),
        (&[(HERE, &bearer), (OWN, "Bearer c")], None),
    ] {
        let (principal, found) = pay(&filter, fields).expect("let in");
        assert_eq!(principal.account, bench.account);
        let found = found.map(|payment| (payment.text.into_string(), payment.field));
        assert_eq!(found, payment, "{:?}", names(fields));
    }

    use ErrorCode::{InvalidCredential, InvalidHeader, KeyNotPermitted, MissingCredential};
    for (fields, code) in [
        (&[][..], MissingCredential),
        (&[(HERE, "Payment c")], MissingCredential),
        (&[(BESIDE, &*bearer)], MissingCredential),
        (&[(HERE, "Basic c"), (BESIDE, &bearer)], MissingCredential),
        (&[(OWN, "Payment c"), (BESIDE, &bearer)], MissingCredential),
        (
            &[(HERE, "Payment c"), (BESIDE, "Bearer")],
            InvalidCredential,
        ),
        (
            &[(HERE, "Payment c"), (BESIDE, "Bearer ")],
            InvalidCredential,
        ),
        (
            &[(HERE, "Payment c"), (BESIDE, "Payment c")],
            InvalidCredential,
        ),
        (
            &[(HERE, "Payment c"), (BESIDE, "Bearer a b")],
            InvalidCredential,
        ),
        (
            &[(HERE, "Payment c"), (BESIDE, "Bearer unknown")],
            InvalidCredential,
        ),
        (&[(HERE, &bearer), (BESIDE, "Basic c")], InvalidCredential),
        (
            &[(HERE, "Payment c"), (BESIDE, &bearer), (BESIDE, &bearer)],
            InvalidCredential,
        ),
        (&[(HERE, "Payment c"), (BESIDE, &another)], KeyNotPermitted),
        (&[(HERE, &bearer), (BESIDE, &another)], InvalidHeader),
        (
            &[(HERE, "Payment c"), (HERE, "Payment c"), (BESIDE, &bearer)],
            InvalidHeader,
        ),
        (
            &[(HERE, "Payment c, payment d"), (BESIDE, &bearer)],
            InvalidHeader,
        ),
        (
            &[(HERE, "Payment c"), (OWN, "Payment c"), (BESIDE, &bearer)],
            InvalidHeader,
        ),
        (&[(HERE, &bearer), (HERE, "Payment c")], InvalidHeader),
        (&[(HERE, "Bearer a, Payment c")], InvalidHeader),
    ] {
        let error = pay(&filter, fields).expect_err("refused");
        assert_eq!(error.code, code, "{:?}: {error}", names(fields));
        assert!(
            error.headers.is_some() || code == KeyNotPermitted,
            "a challenge"
        );
    }

    // On all other routes a payment credential is not accepted, and no other field is read.
    let subscribe = bench.filter(Scope::CommerceSubscribe);
    assert!(ask(&subscribe, "/ucp/v1/checkout-sessions", &["Payment c"]).is_err());

    fn names(fields: &[(&str, &str)]) -> Vec<String> {
        let scheme = |value: &str| value.split(' ').next().unwrap_or_default().to_owned();
        let of = |(name, value): &(&str, &str)| format!("{name}: {}", scheme(value));
        fields.iter().map(of).collect()
    }
}

#[test]
fn a_proof_of_payment_does_not_print() {
    let payment = PaymentCredential {
        text: "a-secret".into(),
        field: PaymentField::Authorization,
    };
    assert!(!format!("{payment:?}").contains("a-secret"));
}

#[tokio::test]
async fn a_credential_is_read_when_it_is_first_presented_and_then_found_at_once() {
    let mut bench = Bench::new().await;
    let key = bench.key(|_| {}).await;
    let chat = bench.chat();
    let is_at_once = |filter: &Auth| {
        let authorization = format!("Bearer {}", key.secret.expose_secret());
        let mut exchange = exchange("/v1/chat/completions", &[&authorization]);
        let step = filter.on_request(&mut exchange);
        let is_now = matches!(step, Step::Now(_));
        (is_now, matches!(outcome(step), Outcome::Continue))
    };
    assert_eq!(is_at_once(&chat), (false, true), "it is read");
    assert_eq!(is_at_once(&chat), (true, true), "it is in memory");
}

#[tokio::test]
async fn an_address_that_sends_many_unknown_credentials_is_refused_without_a_look_up() {
    let mut bench = Bench::new().await;
    let key = bench.key(|_| {}).await;
    let cold = bench.key(|_| {}).await;
    let chat = bench.chat();
    assert!(with(&chat, key.secret.expose_secret()).is_ok());
    let form = Form::api_key("svc");
    for number in 0..600u32 {
        let random = *Digest::of(&number.to_le_bytes()).as_bytes();
        let unknown = form.make(&zeroize::Zeroizing::new(random));
        let error = with(&chat, unknown.expose_secret()).expect_err("it does not exist");
        assert_eq!(error.code, ErrorCode::InvalidCredential);
    }
    let error = with(&chat, UNKNOWN).expect_err("it is one too many");
    assert_eq!(error.code, ErrorCode::RateLimitExceeded);
    assert!(
        error
            .retry_after
            .is_some_and(|wait| wait <= Duration::from_secs(60))
    );
    assert!(
        with(&chat, key.secret.expose_secret()).is_ok(),
        "one in memory is not refused"
    );
    let error = with(&chat, cold.secret.expose_secret()).expect_err("it would be looked up");
    assert_eq!(error.code, ErrorCode::RateLimitExceeded);
    bench.manual.advance(Duration::from_secs(60));
    assert!(with(&chat, cold.secret.expose_secret()).is_ok());
}

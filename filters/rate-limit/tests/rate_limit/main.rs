//! Integration tests of both filters: an exchange as input, an outcome and header fields as output.

mod reload;
mod shared;

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use tollgate_clock::{Clock, Entropy, ManualClock, Timestamp};
use tollgate_filter::{
    Api, ApiError, ClientAddress, CredentialKind, Ending, ErrorCode, Exchange, Filter, Forward,
    ForwardBody, Model, ModelAccess, ModelLimits, Outcome, PartCeilings, Phase, Principal,
    Protocol, Request, Routing, Scopes, Step, Tail,
};
use tollgate_module::{Services, check_text};
use tollgate_money::{AccountId, CredentialId, OperationId, Price};
use tollgate_rate_limit::{Counters, Limits, RateLimit, RateLimits, RawLimits};

const SETTINGS: &str = r#"
failed_credentials = { quota = 3, window_secs = 60 }
missing_credentials = { quota = 2, window_secs = 60 }

[classes.anonymous]
quota = 2
window_secs = 60

[classes.free]
quota = 4
window_secs = 60

[classes.pro]
quota = 600
window_secs = 3600
burst = 5

[classes.mcp]
quota = 3
window_secs = 60
"#;

struct Bench {
    limits: RateLimits,
    counters: Arc<Counters>,
    clock: Clock,
    manual: ManualClock,
}

fn limits(text: &str) -> Limits {
    check_text::<RawLimits>(text, &Services::default()).expect("nothing is wrong")
}

fn bench() -> Bench {
    let (clock, manual) = Clock::manual(Timestamp::from_secs(1_700_000_000));
    let counters = Arc::new(Counters::default());
    Bench {
        limits: RateLimits::new(
            &limits(SETTINGS),
            counters.clone(),
            clock.clone(),
            Entropy::seeded(1),
        ),
        counters,
        clock,
        manual,
    }
}

fn exchange(address: &str) -> Exchange {
    let client: IpAddr = address.parse().expect("an address");
    Exchange::new(Request {
        id: OperationId::from_parts(1, [0; 10]),
        method: Method::POST,
        path: "/v1/chat/completions".into(),
        query: None,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        client: ClientAddress::direct(client),
        tls: false,
        protocol: Protocol::Http11,
    })
}

fn exchange_of(account: u8, class: &str) -> Exchange {
    let mut exchange = exchange("192.0.2.1");
    exchange.put(Principal {
        account: AccountId::from_parts(1, [account; 10]),
        credential: CredentialId::from_bytes([account; 16]),
        kind: CredentialKind::ApiKey,
        scopes: Scopes::API,
        class: Arc::from(class),
        models: ModelAccess::All,
        sharing: tollgate_filter::CacheSharing::Shared,
        spending_cap: None,
    });
    exchange
}

fn ask(filter: &dyn Filter, exchange: &mut Exchange) -> Result<(), Box<ApiError>> {
    match filter.on_request(exchange) {
        Step::Now(Ok(Outcome::Continue)) => Ok(()),
        Step::Now(Ok(Outcome::Refuse(error))) => Err(error),
        _ => panic!("a limit admits or refuses, at once"),
    }
}

/// The number of `requests` that are admitted.
fn admitted(filter: &dyn Filter, requests: u32, make: impl Fn() -> Exchange) -> u32 {
    (0..requests)
        .filter(|_| ask(filter, &mut make()).is_ok())
        .count() as u32
}

fn fields(exchange: &mut Exchange) -> String {
    let lines: Vec<String> = exchange
        .take_reply_headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("ASCII")))
        .collect();
    lines.join("\n")
}

#[test]
fn every_counted_answer_states_the_quota_and_the_remainder() {
    let bench = bench();
    let filter = bench.limits.rate_limit(None).expect("no class is named");
    let mut exchange = exchange_of(1, "free");
    assert!(ask(&filter, &mut exchange).is_ok());
    assert_eq!(
        fields(&mut exchange),
        "ratelimit-policy: \"requests\";q=4;w=60, \"concurrent\";q=64;qu=\"concurrent-requests\"\n\
         ratelimit: \"requests\";r=3;t=15\n\
         ratelimit-limit: 4\n\
         ratelimit-remaining: 3\n\
         ratelimit-reset: 15"
    );
    assert_eq!(exchange.record.class.as_deref(), Some("free"));
}

#[test]
fn a_429_has_all_six_fields_and_its_retry_delay_is_sufficient() {
    let bench = bench();
    let filter = bench.limits.rate_limit(None).expect("no class is named");
    assert_eq!(admitted(&filter, 4, || exchange_of(1, "free")), 4);
    bench.manual.advance(Duration::from_millis(2500));

    let mut exchange = exchange_of(1, "free");
    let error = ask(&filter, &mut exchange).expect_err("the quota is used up");
    assert_eq!(error.code, ErrorCode::RateLimitExceeded);
    assert_eq!(error.message, "Too many requests. Try again in 13 seconds.");
    let mut headers = exchange.take_reply_headers();
    error.write_headers(&mut headers);
    for (name, value) in [
        (
            "ratelimit-policy",
            "\"requests\";q=4;w=60, \"concurrent\";q=64;qu=\"concurrent-requests\"",
        ),
        ("ratelimit", "\"requests\";r=0;t=13"),
        ("ratelimit-limit", "4"),
        ("ratelimit-remaining", "0"),
        ("ratelimit-reset", "13"),
        ("retry-after", "13"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }

    bench.manual.advance(Duration::from_secs(12));
    assert!(ask(&filter, &mut exchange_of(1, "free")).is_err());
    bench.manual.advance(Duration::from_secs(1));
    assert!(ask(&filter, &mut exchange_of(1, "free")).is_ok());
}

#[test]
fn each_owner_is_counted_by_its_own_class() {
    let bench = bench();
    let filter = bench.limits.rate_limit(None).expect("no class is named");
    let check = |make: &dyn Fn() -> Exchange, quota: u32, why: &str| {
        assert_eq!(admitted(&filter, 10, make), quota, "{why}");
    };
    check(&|| exchange_of(1, "free"), 4, "the class of the account");
    check(&|| exchange_of(2, "pro"), 5, "the burst of the class");
    check(
        &|| exchange_of(3, "gold"),
        4,
        "an unknown class counts as free",
    );
    check(&|| exchange("192.0.2.1"), 2, "no principal: by address");
    check(&|| exchange("192.0.2.2"), 2, "another address");
    check(&|| exchange("2001:db8::1"), 2, "one address of a prefix");
    check(
        &|| exchange("2001:db8::2"),
        0,
        "another address of that prefix",
    );
    check(&|| exchange("2001:db8:0:1::1"), 2, "another prefix");
    check(
        &|| exchange_of(1, "pro"),
        0,
        "a better class is no fresh quota",
    );
}

#[test]
fn two_credentials_of_one_account_share_its_quota() {
    let bench = bench();
    let filter = bench.limits.rate_limit(None).expect("no class is named");
    let with_credential = |credential: u8| {
        let mut exchange = exchange_of(1, "free");
        exchange
            .get_mut::<Principal>()
            .expect("put there")
            .credential = CredentialId::from_bytes([credential; 16]);
        exchange
    };
    assert_eq!(admitted(&filter, 3, || with_credential(1)), 3);
    assert_eq!(admitted(&filter, 3, || with_credential(2)), 1);
}

#[test]
fn a_route_with_its_own_class_does_not_use_the_owner_s_other_quota() {
    let bench = bench();
    let api = bench.limits.rate_limit(None).expect("no class is named");
    let mcp = bench
        .limits
        .rate_limit(Some("mcp"))
        .expect("it is built in");
    let mut first = exchange_of(1, "pro");
    assert!(ask(&mcp, &mut first).is_ok());
    assert_eq!(first.record.class.as_deref(), Some("mcp"));
    assert_eq!(admitted(&mcp, 10, || exchange_of(1, "pro")), 2);
    assert_eq!(
        admitted(&mcp, 10, || exchange("192.0.2.9")),
        3,
        "also without a principal"
    );
    assert_eq!(admitted(&api, 10, || exchange_of(1, "pro")), 5);

    let error = bench.limits.rate_limit(Some("mpc")).err().expect("a slip");
    let message = error.to_string();
    let wanted =
        "there is no rate class `mpc`; add `[limits.classes.mpc]` or name one of: anonymous, ";
    assert!(
        message.starts_with(wanted) && message.contains(", mcp, "),
        "{message}"
    );
}

#[test]
fn new_settings_do_not_reset_a_quota() {
    let bench = bench();
    let before = bench.limits.rate_limit(None).expect("no class is named");
    assert_eq!(admitted(&before, 10, || exchange_of(1, "free")), 4);
    let after = RateLimits::new(
        &limits("[classes.free]\nquota = 60\nwindow_secs = 60\n"),
        bench.counters.clone(),
        bench.clock.clone(),
        Entropy::seeded(1),
    )
    .rate_limit(None)
    .expect("no class is named");
    assert_eq!(admitted(&after, 10, || exchange_of(1, "free")), 0);
    bench.manual.advance(Duration::from_secs(1));
    assert_eq!(
        admitted(&after, 10, || exchange_of(1, "free")),
        1,
        "the new pace applies at once"
    );
}

/// Only the answer was shortened to the shorter window, and not the count: an account that had used up a day's quota and then bought the plan was
/// refused for a day, each time with a wait of a second.
#[test]
fn a_request_after_the_wait_is_admitted_when_the_window_has_become_shorter() {
    let bench = bench();
    let [before, after] = [86_400, 60].map(|window| {
        let free = format!("quota = 3600\nwindow_secs = {window}\ntokens_per_window = 6000");
        let failed = format!("failed_credentials = {{ quota = 1, window_secs = {window} }}");
        let text = format!(
            "{failed}\n[classes.free]\n{free}\n[classes.pro]\nquota = 600\nwindow_secs = 60"
        );
        let (limits, counters) = (limits(&text), bench.counters.clone());
        RateLimits::new(&limits, counters, bench.clock.clone(), Entropy::seeded(1))
    });
    let wait = |error: &ApiError, secs| {
        assert_eq!(error.retry_after, Some(Duration::from_secs(secs)));
        bench.manual.advance(Duration::from_secs(secs));
    };

    let by_address = before.address_limit();
    let code = ErrorCode::InvalidCredential;
    assert_eq!(let_through(&by_address, "192.0.2.7", code), 1);
    let by_address = after.address_limit();
    let guess = || refused(&by_address, &mut exchange("192.0.2.7"), code);
    wait(&guess(), 60);
    assert_eq!(guess().code, code);

    let [before, after] = [before, after].map(|limits| limits.rate_limit(None).expect("no class"));
    let mut used = exchange_using(6000);
    assert!(forward(&before, &mut used).is_ok());
    ended(&before, &mut used, 6000, 0);
    let next = || exchange_using(600);
    wait(&forward(&after, &mut next()).expect_err("no tokens"), 6);
    assert!(forward(&after, &mut next()).is_ok());

    for (account, class) in [(2, "free"), (3, "pro")] {
        let all = admitted(&before, 3_601, || exchange_of(account, "free"));
        assert_eq!(all, 3_600);
        let next = || ask(&after, &mut exchange_of(account, class));
        wait(&next().expect_err("no requests"), 1);
        assert!(next().is_ok(), "{class}");
    }
}

/// One exchange through `address-limit` that a later filter has refused with `code`: the resulting error.
fn refused(filter: &dyn Filter, exchange: &mut Exchange, code: ErrorCode) -> ApiError {
    let mut error = ApiError::new(code, "The filter behind refuses.");
    filter.on_refusal(exchange, &mut error);
    error
}

/// The number of such refusals, of ten from an address, that are sent unchanged.
fn let_through(filter: &dyn Filter, address: &str, code: ErrorCode) -> usize {
    let answers = (0..10).map(|_| refused(filter, &mut exchange(address), code));
    answers.filter(|error| error.code == code).count()
}

#[test]
fn beyond_the_quota_an_address_is_answered_429_for_credentials_that_do_not_work() {
    let bench = bench();
    let filter = bench.limits.address_limit();
    let unknown = ErrorCode::InvalidCredential;
    assert_eq!(let_through(&filter, "2001:db8::1", unknown), 3);
    let mut exchange = exchange("2001:db8::2");
    let error = refused(&filter, &mut exchange, unknown);
    assert_eq!(error.code, ErrorCode::RateLimitExceeded);
    assert_eq!(error.retry_after, Some(Duration::from_secs(20)));
    assert_eq!(
        error.message,
        "Too many failed credentials. Try again in 20 seconds."
    );
    assert_eq!(
        fields(&mut exchange),
        "ratelimit-policy: \"failed-credentials\";q=3;w=60\n\
         ratelimit: \"failed-credentials\";r=0;t=20\n\
         ratelimit-limit: 3\n\
         ratelimit-remaining: 0\n\
         ratelimit-reset: 20"
    );
    assert_eq!(exchange.record.class.as_deref(), Some("failed-credentials"));
    assert_eq!(
        let_through(&filter, "192.0.2.1", unknown),
        3,
        "other addresses have their own"
    );
    // Requests answered 429 are not counted, or the refusals would never end.
    bench.manual.advance(Duration::from_secs(20));
    assert_eq!(let_through(&filter, "2001:db8::1", unknown), 1);
}

#[test]
fn requests_without_a_credential_have_a_quota_of_their_own() {
    let bench = bench();
    let filter = bench.limits.address_limit();
    let (missing, unknown) = (ErrorCode::MissingCredential, ErrorCode::InvalidCredential);
    assert_eq!(let_through(&filter, "192.0.2.1", missing), 2);
    assert_eq!(let_through(&filter, "192.0.2.1", unknown), 3);
    let mut exchange = exchange("192.0.2.1");
    let error = refused(&filter, &mut exchange, missing);
    assert_eq!(
        error.message,
        "Too many requests without a credential. Try again in 30 seconds."
    );
    assert!(
        fields(&mut exchange).starts_with("ratelimit-policy: \"missing-credentials\";q=2;w=60\n")
    );
    assert_eq!(
        exchange.record.class.as_deref(),
        Some("missing-credentials")
    );
    // The other bucket does not use this one's quota.
    assert_eq!(let_through(&filter, "192.0.2.2", unknown), 3);
    assert_eq!(let_through(&filter, "192.0.2.2", missing), 2);
}

#[test]
fn other_refusals_and_valid_credentials_are_not_limited_by_address() {
    let bench = bench();
    let filter = bench.limits.address_limit();
    let phases = filter.contract().phases;
    assert!(
        !phases.has(Phase::Request),
        "a request is not looked at before its credential is"
    );
    for code in [
        ErrorCode::WrongResource,
        ErrorCode::InvalidJson,
        ErrorCode::InsufficientCredits,
        ErrorCode::InsufficientScope,
        ErrorCode::AccountSuspended,
        ErrorCode::RateLimitExceeded,
    ] {
        assert_eq!(let_through(&filter, "192.0.2.1", code), 10, "{code:?}");
    }
    assert_eq!(bench.counters.population(), 0);
    let_through(&filter, "192.0.2.1", ErrorCode::InvalidCredential);
    assert_eq!(
        let_through(&filter, "192.0.2.1", ErrorCode::WrongResource),
        10
    );
}

/// An exchange on a connection from a trusted proxy that reported no client.
fn exchange_of_proxy() -> Exchange {
    let mut exchange = exchange("10.0.0.1");
    exchange.request.client = ClientAddress::of_proxy([10, 0, 0, 1].into());
    exchange
}

#[test]
fn no_limit_counts_by_the_address_of_a_trusted_proxy() {
    let bench = bench();
    let filter = bench.limits.address_limit();
    for code in [ErrorCode::MissingCredential, ErrorCode::InvalidCredential] {
        for _ in 0..10 {
            let error = refused(&filter, &mut exchange_of_proxy(), code);
            assert_eq!(error.code, code);
        }
    }
    let fixed = bench.limits.rate_limit(Some("mcp"));
    let anonymous = bench.limits.rate_limit(None);
    for filter in [&fixed, &anonymous] {
        let filter = filter.as_ref().expect("a built-in class");
        assert_eq!(admitted(filter, 10, exchange_of_proxy), 10);
        let mut exchange = exchange_of_proxy();
        assert!(ask(filter, &mut exchange).is_ok());
        assert!(exchange.take_reply_headers().is_empty());
        assert_eq!(exchange.record.class, None);
    }
    assert_eq!(bench.counters.population(), 0);
    // Accounts are counted independently of the address.
    let anonymous = anonymous.expect("a built-in class");
    let of_account = || {
        let mut exchange = exchange_of(1, "free");
        exchange.request.client = ClientAddress::of_proxy([10, 0, 0, 1].into());
        exchange
    };
    assert_eq!(admitted(&anonymous, 10, of_account), 4);
}

const TIGHT: &str = r#"
[classes.free]
quota = 100
window_secs = 60
tokens_per_window = 6000
concurrent = 2
"#;

const POLICIES: &str = "\"requests\";q=100;w=60, \"tokens\";q=6000;w=60;qu=\"tokens\", \"concurrent\";q=2;qu=\"concurrent-requests\"";

/// The filter over [`TIGHT`].
fn tight(bench: &Bench) -> RateLimit {
    RateLimits::new(
        &limits(TIGHT),
        bench.counters.clone(),
        bench.clock.clone(),
        Entropy::seeded(1),
    )
    .rate_limit(None)
    .expect("no class is named")
}

/// An exchange of account 1 whose request may use so many tokens.
fn exchange_using(tokens_max: u64) -> Exchange {
    struct Nothing;
    impl ForwardBody for Nothing {
        fn render(&self, exchange: &Exchange, _: &tollgate_filter::ProviderModel) -> Bytes {
            exchange.request.body.clone()
        }
        fn cap_output(&mut self, _: tollgate_filter::OutputCap) {}
    }
    let mut exchange = exchange_of(1, "free");
    exchange.put(Forward {
        model: model(),
        api: Api::Chat,
        asked: Api::Chat,
        stream: false,
        tokens_max,
        quote: None,
        body: Box::new(Nothing),
    });
    exchange
}

fn forward(filter: &dyn Filter, exchange: &mut Exchange) -> Result<(), Box<ApiError>> {
    ask(filter, exchange)?;
    match filter.on_forward(exchange) {
        Step::Now(Ok(Outcome::Continue)) => Ok(()),
        Step::Now(Ok(Outcome::Refuse(error))) => Err(error),
        _ => panic!("a limit admits or refuses, at once"),
    }
}

/// Ends an answer that used so many tokens.
fn ended(filter: &dyn Filter, exchange: &mut Exchange, prompt: u64, completion: u64) {
    exchange.record.prompt_tokens = prompt;
    exchange.record.completion_tokens = completion;
    let mut tail = Tail::new(Default::default(), Ending::Complete, true);
    let step = filter.before_tail(exchange, &mut tail);
    assert!(matches!(step, Step::Now(Ok(Outcome::Continue))));
}

#[test]
fn tokens_are_reserved_by_the_quote_and_corrected_by_the_usage() {
    let bench = bench();
    let filter = tight(&bench);
    let mut first = exchange_using(4000);
    assert!(forward(&filter, &mut first).is_ok());
    assert_eq!(
        fields(&mut first),
        format!(
            "ratelimit-policy: {POLICIES}\n\
             ratelimit: \"requests\";r=99;t=1, \"tokens\";r=2000;t=1\n\
             ratelimit-limit: 6000\n\
             ratelimit-remaining: 2000\n\
             ratelimit-reset: 1"
        ),
        "the older fields tell of the tighter policy"
    );

    let mut second = exchange_using(2500);
    let error = forward(&filter, &mut second).expect_err("too many together");
    assert_eq!(error.code, ErrorCode::RateLimitExceeded);
    assert_eq!(
        error.message,
        "This request may use 2500 tokens, and 2000 of 6000 in 60 seconds are left. Try again in 5 seconds, or lower `max_tokens`."
    );
    let mut headers = second.take_reply_headers();
    error.write_headers(&mut headers);
    for (name, value) in [
        ("ratelimit-policy", POLICIES),
        ("ratelimit", "\"tokens\";r=2000;t=5"),
        ("ratelimit-limit", "6000"),
        ("ratelimit-remaining", "2000"),
        ("ratelimit-reset", "5"),
        ("retry-after", "5"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    drop(second);

    ended(&filter, &mut first, 1000, 500);
    let mut third = exchange_using(4500);
    assert!(
        forward(&filter, &mut third).is_ok(),
        "1500 were used, and nothing else counts"
    );
    assert!(
        third.take_reply_headers()["ratelimit"]
            .to_str()
            .expect("ASCII")
            .ends_with("\"tokens\";r=0;t=15")
    );
}

#[test]
fn tokens_of_a_failed_request_are_released_for_every_ending() {
    let bench = bench();
    let filter = tight(&bench);
    for _ in 0..5 {
        let mut exchange = exchange_using(6000);
        assert!(forward(&filter, &mut exchange).is_ok());
        // A panic or a cancelled task: the exchange is dropped.
    }
    let mut refused = exchange_using(6000);
    assert!(forward(&filter, &mut refused).is_ok());
    filter.on_end(&mut refused, Ending::Refused);
    let mut exchange = exchange_using(6000);
    assert!(forward(&filter, &mut exchange).is_ok());
    ended(&filter, &mut exchange, 0, 0);
    assert!(forward(&filter, &mut exchange_using(6000)).is_ok());
}

#[test]
fn a_request_that_is_answered_without_a_call_uses_no_tokens() {
    let bench = bench();
    let filter = tight(&bench);
    let mut hit = exchange_using(6000);
    assert!(ask(&filter, &mut hit).is_ok());
    ended(&filter, &mut hit, 3000, 3000);
    assert!(forward(&filter, &mut exchange_using(6000)).is_ok());
}

#[test]
fn requests_above_the_concurrency_limit_are_refused_with_that_limit() {
    let bench = bench();
    let filter = tight(&bench);
    let mut first = exchange_of(1, "free");
    let mut second = exchange_of(1, "free");
    assert!(ask(&filter, &mut first).is_ok());
    assert!(ask(&filter, &mut second).is_ok());
    let mut third = exchange_of(1, "free");
    let error = ask(&filter, &mut third).expect_err("one too many");
    assert_eq!(error.code, ErrorCode::ConcurrencyExceeded);
    let mut headers = third.take_reply_headers();
    error.write_headers(&mut headers);
    for (name, value) in [
        ("ratelimit-policy", POLICIES),
        ("ratelimit", "\"concurrent\";r=0;t=1"),
        ("ratelimit-limit", "2"),
        ("ratelimit-remaining", "0"),
        ("ratelimit-reset", "1"),
        ("retry-after", "1"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    assert!(
        ask(&filter, &mut exchange_of(2, "free")).is_ok(),
        "another owner"
    );
    // One ends with its tail, another without one, before its refusal is sent.
    ended(&filter, &mut first, 0, 0);
    let mut fourth = exchange_of(1, "free");
    assert!(ask(&filter, &mut fourth).is_ok());
    assert!(ask(&filter, &mut exchange_of(1, "free")).is_err());
    filter.on_end(&mut second, Ending::Refused);
    assert!(ask(&filter, &mut exchange_of(1, "free")).is_ok());
    let requests = fields(&mut fourth);
    assert!(
        requests.contains("\"requests\";r=97"),
        "a refusal is not counted: {requests}"
    );
}

fn model() -> Arc<Model> {
    Arc::new(Model {
        id: "m".into(),
        name: None,
        owned_by: "svc".into(),
        created: None,
        price: Price::default(),
        price_version: 1,
        limits: ModelLimits {
            context_length: None,
            output_tokens_default: NonZeroU64::MIN,
            output_tokens_bound: false,
        },
        output_modalities: vec!["text".into()],
        part_ceilings: PartCeilings::default(),
        token_factor_ppm: 1_000_000,
        providers: Vec::new(),
        system_as_chat: false,
        cap_member: tollgate_filter::CapMember::MaxTokens,
        routing: Routing::default(),
        after_leaving: None,
        working: AtomicBool::new(false),
    })
}

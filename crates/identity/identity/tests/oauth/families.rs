//! A decision and its token family: single use, bound to its session, revoked together.

use std::sync::Arc;

use secrecy::ExposeSecret;
use tollgate_identity::oauth::{CodeRequest, DecideError, Requested, TokenError, TokenResponse};
use tollgate_identity::session::{end_sessions, end_sessions_and_apps};
use tollgate_identity::{Form, NewToken, issue_token};

use crate::support::{
    API, Bench, ISSUER, MCP, MICROSECOND, REDIRECT, SECOND, SESSION, VERIFIER, parameter, request,
    with_refresh,
};

fn invalid_grant(result: Result<TokenResponse, TokenError>) -> bool {
    matches!(result, Err(TokenError::InvalidGrant))
}

#[tokio::test]
async fn a_decision_becomes_a_code_and_the_code_a_token_of_that_account() {
    let bench = Bench::new().await;
    let client = bench.register().await;
    assert!(client.starts_with("c_") && client.len() == 24, "{client}");
    let id = bench.ask(&client, API, 0b111).await;
    let seen = bench
        .server
        .open_request(id, &SESSION)
        .await
        .expect("it waits");
    assert_eq!(seen.client_name(), Some("Notebook Copilot"));
    assert_eq!((seen.resource(), seen.scopes()), (API, 0b111));
    assert_eq!(seen.form_action(), "https://app.example");
    let address = bench
        .server
        .allow(id, &bench.decider(SESSION), 0b101)
        .await
        .expect("allowed");
    assert!(address.starts_with(REDIRECT));
    assert_eq!(parameter(&address, "state").as_deref(), Some("a b&c"));
    assert_eq!(parameter(&address, "iss").as_deref(), Some(ISSUER));
    let code = parameter(&address, "code").expect("a code");

    let granted = bench.exchange(&client, &code).await.expect("a token");
    assert_eq!(granted.scopes, 0b101, "what was ticked, not what was asked");
    assert!(granted.refresh.is_none(), "off");
    let found = bench
        .works(granted.access.expose_secret())
        .expect("it works");
    assert_eq!(found.account.id(), bench.account);
    assert_eq!((found.resources, found.scopes), (API, 0b101));
    bench.pass(3600 * SECOND);
    assert!(
        bench.works(granted.access.expose_secret()).is_none(),
        "an hour"
    );
}

#[tokio::test]
async fn a_request_is_decided_once_by_the_session_that_opened_it_within_ten_minutes() {
    let bench = Bench::new().await;
    let client = bench.register().await;
    let other = [2; 32];
    let id = bench.ask(&client, API, 1).await;
    bench
        .server
        .open_request(id, &SESSION)
        .await
        .expect("the first");
    bench
        .server
        .open_request(id, &SESSION)
        .await
        .expect("and again");
    for refused in [
        bench.server.open_request(id, &other).await.map(|_| ()),
        bench.server.deny(id, &other).await.map(|_| ()),
        bench
            .server
            .allow(id, &bench.decider(other), 1)
            .await
            .map(|_| ()),
    ] {
        assert!(
            matches!(refused, Err(DecideError::OtherSession)),
            "{refused:?}"
        );
    }
    for scopes in [0, 2, 3] {
        let refused = bench.code(id, scopes).await;
        assert!(matches!(refused, Err(DecideError::Scopes)), "{scopes}");
    }
    bench.code(id, 1).await.expect("allowed");
    assert!(matches!(bench.code(id, 1).await, Err(DecideError::Gone)));
    let denied = bench.server.deny(id, &SESSION).await;
    assert!(matches!(denied, Err(DecideError::Gone)));

    let denied = bench.ask(&client, API, 1).await;
    let address = bench.server.deny(denied, &SESSION).await.expect("refused");
    assert_eq!(
        parameter(&address, "error").as_deref(),
        Some("access_denied")
    );
    assert_eq!(parameter(&address, "code"), None);
    assert!(matches!(
        bench.code(denied, 1).await,
        Err(DecideError::Gone)
    ));

    let late = bench.ask(&client, API, 1).await;
    bench.pass(600 * SECOND);
    assert!(matches!(bench.code(late, 1).await, Err(DecideError::Gone)));
}

#[tokio::test]
async fn two_concurrent_decisions_create_one_grant() {
    let bench = Bench::new().await;
    let client = bench.register().await;
    for _ in 0..50 {
        let id = bench.ask(&client, API, 1).await;
        let (one, other) = tokio::join!(bench.code(id, 1), bench.code(id, 1));
        assert!(one.is_ok() != other.is_ok());
    }
    let now = bench.now();
    let grants = bench.store.oauth_grants(bench.account, now).expect("read");
    assert_eq!(grants.len(), 50);
}

#[tokio::test]
async fn a_refused_request_leaves_the_code_usable_five_times() {
    let bench = Bench::new().await;
    let (client, code) = bench.allowed(API, 1).await;
    let other_client = bench.register().await;
    type Change = for<'a> fn(CodeRequest<'a>, &'a str) -> CodeRequest<'a>;
    type Expected = fn(&TokenError) -> bool;
    let wrongs: [(&str, Change, Expected); 5] = [
        (
            "another client",
            |sound, other_client| CodeRequest {
                client: other_client,
                ..sound
            },
            |error| matches!(error, TokenError::InvalidGrant),
        ),
        (
            "another resource",
            |sound, _| CodeRequest {
                resource: Requested::Bits(MCP),
                ..sound
            },
            |error| matches!(error, TokenError::InvalidTarget),
        ),
        (
            "an unknown resource",
            |sound, _| CodeRequest {
                resource: Requested::Unknown,
                ..sound
            },
            |error| matches!(error, TokenError::InvalidTarget),
        ),
        (
            "another address",
            |sound, _| CodeRequest {
                redirect_uri: "https://app.example/cb/",
                ..sound
            },
            |error| matches!(error, TokenError::InvalidGrant),
        ),
        (
            "another verifier",
            |sound, _| CodeRequest {
                verifier: "tollgate-docs-verifier-0123456789-abcdefghijkl",
                ..sound
            },
            |error| matches!(error, TokenError::InvalidGrant),
        ),
    ];
    for round in 0..2 {
        let (_, code) = match round {
            0 => (client.clone(), code.clone()),
            _ => {
                let id = bench.ask(&client, API, 1).await;
                (client.clone(), bench.code(id, 1).await.expect("allowed"))
            }
        };
        // Four failures, and the code is still valid; five, and it is not.
        for (what, wrong, is) in &wrongs[..4 + round] {
            let refused = bench
                .server
                .exchange(wrong(request(&client, &code), &other_client))
                .await;
            assert!(refused.as_ref().is_err_and(is), "{what}: {refused:?}");
        }
        let result = bench.exchange(&client, &code).await;
        assert_eq!(result.is_ok(), round == 0, "{result:?}");
    }
    let unknown = bench.exchange("c_unknown", &code).await;
    assert!(matches!(unknown, Err(TokenError::UnknownClient)));
}

#[tokio::test]
async fn a_code_is_valid_for_a_minute() {
    let bench = Bench::new().await;
    let (client, code) = bench.allowed(API, 1).await;
    bench.pass(60 * SECOND - MICROSECOND);
    let id = bench.ask(&client, API, 1).await;
    let late = bench.code(id, 1).await.expect("allowed");
    bench.exchange(&client, &code).await.expect("just in time");
    bench.pass(60 * SECOND);
    assert!(invalid_grant(bench.exchange(&client, &late).await));
    for text in [
        "",
        "svc_ac_",
        "svc_at_7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M1aEA4s",
    ] {
        assert!(invalid_grant(bench.exchange(&client, text).await), "{text}");
    }
}

#[tokio::test]
async fn rfc6749_4_1_2_reuse_of_a_code_revokes_every_token_of_its_grant() {
    let bench = Bench::new().await;
    let (client, code) = bench.allowed(API, 1).await;
    let (bystander, other) = bench.allowed(API, 1).await;
    let granted = bench.exchange(&client, &code).await.expect("a token");
    let kept = bench.exchange(&bystander, &other).await.expect("a token");
    let found = bench
        .works(granted.access.expose_secret())
        .expect("it works");
    assert!(invalid_grant(bench.exchange(&client, &code).await));
    assert!(bench.works(granted.access.expose_secret()).is_none());
    assert!(
        !found.is_live(bench.now()),
        "a holder of a reference sees it"
    );
    assert!(
        bench.works(kept.access.expose_secret()).is_some(),
        "no other grant"
    );
    let bench = bench.restart();
    assert!(
        bench.works(granted.access.expose_secret()).is_none(),
        "for ever"
    );
    assert!(bench.works(kept.access.expose_secret()).is_some());
}

#[tokio::test]
async fn of_two_concurrent_exchanges_of_a_code_at_most_one_succeeds_and_its_token_is_revoked() {
    let bench = Bench::new().await;
    for round in 0..100 {
        let (client, code) = bench.allowed(API, 1).await;
        let results = {
            let tries = (0..2 + round % 3).map(|_| {
                let (server, client, code) = (bench.server.clone(), client.clone(), code.clone());
                tokio::spawn(async move { server.exchange(request(&client, &code)).await })
            });
            let tries: Vec<_> = tries.collect();
            let mut results = Vec::new();
            for one in tries {
                results.push(one.await.expect("no panic"));
            }
            results
        };
        let won: Vec<_> = results.into_iter().filter_map(Result::ok).collect();
        assert!(won.len() <= 1, "round {round}");
        for granted in won {
            let token = granted.access.expose_secret();
            assert!(
                bench.works(token).is_none(),
                "round {round}: a loser had it too"
            );
        }
    }
}

#[tokio::test]
async fn a_code_whose_answer_was_lost_in_a_crash_is_worthless() {
    // The process crashed between the use of the code and the answer: the client has no token. A second attempt must not get one, since
    // it cannot be distinguished from an attack; and the lost token is revoked.
    let bench = Bench::new().await;
    let (client, code) = bench.allowed(API, 1).await;
    let lost = bench.exchange(&client, &code).await.expect("a token");
    let bench = bench.restart();
    assert!(
        bench.works(lost.access.expose_secret()).is_some(),
        "it was durable"
    );
    assert!(invalid_grant(bench.exchange(&client, &code).await));
    assert!(bench.works(lost.access.expose_secret()).is_none());
    // The client is still registered, and may request again.
    let id = bench.ask(&client, API, 1).await;
    let bench = bench.restart();
    let code = bench.code(id, 1).await.expect("a request survives");
    let bench = bench.restart();
    bench
        .exchange(&client, &code)
        .await
        .expect("a code survives");
}

#[tokio::test]
async fn a_refresh_token_is_spent_by_its_use_with_ten_seconds_of_grace() {
    let bench = Bench::with(with_refresh()).await;
    let (client, code) = bench.allowed(API, 0b11).await;
    let first = bench.exchange(&client, &code).await.expect("tokens");
    let first = first.refresh.expect("a refresh token");
    let second = bench
        .refresh(&client, first.expose_secret())
        .await
        .expect("rotated");
    assert_eq!(second.scopes, 0b11);
    let successor = second.refresh.expect("a successor");
    assert_ne!(successor.expose_secret(), first.expose_secret());

    // Two windows share a token, or the answer was lost: the same successor again.
    bench.pass(10 * SECOND - MICROSECOND);
    let again = bench
        .refresh(&client, first.expose_secret())
        .await
        .expect("forgiven");
    assert_eq!(
        again.refresh.expect("one").expose_secret(),
        successor.expose_secret()
    );
    assert!(bench.works(second.access.expose_secret()).is_some());

    // Once the successor was used, the answer was not lost.
    let third = bench
        .refresh(&client, successor.expose_secret())
        .await
        .expect("rotated");
    assert!(invalid_grant(
        bench.refresh(&client, first.expose_secret()).await
    ));
    let last = third.refresh.expect("one");
    assert!(
        bench.works(third.access.expose_secret()).is_none(),
        "the family ends"
    );
    assert!(invalid_grant(
        bench.refresh(&client, last.expose_secret()).await
    ));
}

#[tokio::test]
async fn reuse_of_a_refresh_token_after_its_grace_revokes_the_family() {
    let bench = Bench::with(with_refresh()).await;
    let (client, code) = bench.allowed(API, 1).await;
    let first = bench.exchange(&client, &code).await.expect("tokens");
    let first = first.refresh.expect("one");
    let second = bench
        .refresh(&client, first.expose_secret())
        .await
        .expect("rotated");
    bench.pass(10 * SECOND);
    assert!(invalid_grant(
        bench.refresh(&client, first.expose_secret()).await
    ));
    assert!(bench.works(second.access.expose_secret()).is_none());
    let second = second.refresh.expect("one");
    assert!(invalid_grant(
        bench.refresh(&client, second.expose_secret()).await
    ));
}

#[tokio::test]
async fn two_concurrent_refreshes_get_one_successor() {
    let bench = Bench::with(with_refresh()).await;
    for _ in 0..30 {
        let (client, code) = bench.allowed(API, 1).await;
        let first = bench.exchange(&client, &code).await.expect("tokens");
        let first = first.refresh.expect("one");
        let (one, other) = tokio::join!(
            bench.refresh(&client, first.expose_secret()),
            bench.refresh(&client, first.expose_secret())
        );
        let (one, other) = (one.expect("rotated"), other.expect("forgiven"));
        let successors = [one.refresh, other.refresh].map(|token| token.expect("one"));
        assert_eq!(successors[0].expose_secret(), successors[1].expose_secret());
    }
}

#[tokio::test]
async fn a_refresh_never_widens_the_scopes_and_is_checked_before_it_spends() {
    let bench = Bench::with(with_refresh()).await;
    let (client, code) = bench.allowed(API, 0b11).await;
    let other_client = bench.register().await;
    let granted = bench.exchange(&client, &code).await.expect("tokens");
    let token = granted.refresh.expect("one");
    let ask = |client: Arc<str>, resource, scopes| {
        let (server, token) = (bench.server.clone(), token.clone());
        async move {
            let token = token.expose_secret();
            let request = tollgate_identity::oauth::RefreshRequest {
                client: &client,
                token,
                resource,
                scopes,
            };
            server.refresh(request).await
        }
    };
    let unsaid = Requested::Omitted;
    for scopes in [
        Requested::Bits(0b111),
        Requested::Bits(0b100),
        Requested::Bits(0),
        Requested::Unknown,
    ] {
        let refused = ask(client.clone(), unsaid, scopes).await;
        assert!(
            matches!(refused, Err(TokenError::InvalidScope)),
            "{scopes:?}"
        );
    }
    for resource in [Requested::Bits(MCP), Requested::Unknown] {
        let refused = ask(client.clone(), resource, unsaid).await;
        assert!(matches!(refused, Err(TokenError::InvalidTarget)));
    }
    assert!(invalid_grant(ask(other_client, unsaid, unsaid).await));
    let unknown = ask(Arc::from("c_unknown"), unsaid, unsaid).await;
    assert!(matches!(unknown, Err(TokenError::UnknownClient)));
    let less = ask(client.clone(), Requested::Bits(API), Requested::Bits(1))
        .await
        .expect("unspent");
    assert_eq!(less.scopes, 1);
    let next = less.refresh.expect("one");
    let whole = bench
        .refresh(&client, next.expose_secret())
        .await
        .expect("rotated");
    assert_eq!(whole.scopes, 0b11, "the family keeps what was allowed");
}

#[tokio::test]
async fn refresh_tokens_expire_after_30_days_idle_and_after_90_days() {
    let day = 24 * 3600 * SECOND;
    let bench = Bench::with(with_refresh()).await;
    let (client, code) = bench.allowed(API, 1).await;
    let granted = bench.exchange(&client, &code).await.expect("tokens");
    let mut token = granted.refresh.expect("one");
    for _ in 0..3 {
        bench.pass(29 * day);
        let granted = bench
            .refresh(&client, token.expose_secret())
            .await
            .expect("used in time");
        token = granted.refresh.expect("one");
    }
    bench.pass(3 * day);
    assert!(invalid_grant(
        bench.refresh(&client, token.expose_secret()).await
    ));

    let (client, code) = bench.allowed(API, 1).await;
    let granted = bench.exchange(&client, &code).await.expect("tokens");
    let token = granted.refresh.expect("one");
    bench.pass(30 * day);
    assert!(invalid_grant(
        bench.refresh(&client, token.expose_secret()).await
    ));
}

#[tokio::test]
async fn a_token_is_revoked_alone_and_a_refresh_token_with_its_family() {
    let bench = Bench::with(with_refresh()).await;
    let (client, code) = bench.allowed(API, 1).await;
    let first = bench.exchange(&client, &code).await.expect("tokens");
    let refresh = first.refresh.expect("one");
    let second = bench
        .refresh(&client, refresh.expose_secret())
        .await
        .expect("rotated");
    let newest = second.refresh.as_ref().expect("one");
    let other_client = bench.register().await;
    let revoke = |token: String, client: Option<Arc<str>>| {
        let server = bench.server.clone();
        async move {
            server
                .revoke(&token, client.as_deref())
                .await
                .expect("revoked")
        }
    };
    for nonsense in [
        "",
        "x",
        "svc_at_",
        "sk-svc-7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M06o8FL",
    ] {
        revoke(nonsense.to_owned(), None).await;
    }
    // Another client's request changes nothing.
    revoke(
        first.access.expose_secret().to_owned(),
        Some(other_client.clone()),
    )
    .await;
    revoke(newest.expose_secret().to_owned(), Some(other_client)).await;
    assert!(bench.works(first.access.expose_secret()).is_some());

    revoke(
        first.access.expose_secret().to_owned(),
        Some(client.clone()),
    )
    .await;
    assert!(bench.works(first.access.expose_secret()).is_none());
    assert!(
        bench.works(second.access.expose_secret()).is_some(),
        "it alone"
    );
    revoke(newest.expose_secret().to_owned(), None).await;
    assert!(bench.works(second.access.expose_secret()).is_none());
    assert!(invalid_grant(
        bench.refresh(&client, newest.expose_secret()).await
    ));
}

#[tokio::test]
async fn removing_an_app_revokes_all_grants_and_tokens_of_its_client() {
    let bench = Bench::new().await;
    let (client, code) = bench.allowed(API, 0b01).await;
    let one = bench.exchange(&client, &code).await.expect("a token");
    bench.pass(SECOND);
    let id = bench.ask(&client, MCP, 0b10).await;
    let code = bench.code(id, 0b10).await.expect("allowed");
    let other = bench.exchange(&client, &code).await.expect("a token");
    let (second, code) = bench.allowed(API, 0b01).await;
    let third = bench.exchange(&second, &code).await.expect("a token");
    let own = NewToken {
        account: bench.account,
        client: None,
        grant: None,
        resources: API,
        scopes: 1,
        created_at: bench.now(),
        expires_at: bench.now() + SECOND,
    };
    let form = Form::access_token("svc");
    let own = issue_token(&*bench.store, &form, own, |out| out.fill(9))
        .await
        .expect("a token");

    let apps = bench.server.apps(bench.account).await.expect("read");
    let [app, _] = &apps[..] else {
        panic!("{apps:?}")
    };
    assert_eq!(
        (&app.client, app.resources, app.scopes),
        (&client, API | MCP, 0b11)
    );
    assert_eq!(app.destination.to_string(), "app.example");
    assert!(
        bench
            .server
            .apps(bench.new_account().await)
            .await
            .expect("read")
            .is_empty()
    );

    bench
        .server
        .remove_app(bench.account, client.clone())
        .await
        .expect("removed");
    assert!(bench.works(one.access.expose_secret()).is_none());
    assert!(bench.works(other.access.expose_secret()).is_none());
    assert!(bench.works(third.access.expose_secret()).is_some());
    let apps = bench.server.apps(bench.account).await.expect("read");
    assert_eq!(apps.len(), 1);

    end_sessions_and_apps(&bench.store, bench.account, bench.now())
        .await
        .expect("removed");
    assert!(bench.works(third.access.expose_secret()).is_none());
    assert!(
        bench.works(own.secret.expose_secret()).is_some(),
        "it is no app's"
    );
    let bench = bench.restart();
    assert!(bench.works(third.access.expose_secret()).is_none());
}

#[tokio::test]
async fn a_session_ended_meanwhile_allows_nothing() {
    let bench = Bench::new().await;
    let client = bench.register().await;
    let id = bench.ask(&client, API, 1).await;
    bench
        .server
        .open_request(id, &SESSION)
        .await
        .expect("it is theirs");
    end_sessions(&bench.store, bench.account)
        .await
        .expect("signed out");
    let refused = bench.code(id, 1).await;
    assert!(
        matches!(refused, Err(DecideError::SignedOut)),
        "{refused:?}"
    );
    let apps = bench.server.apps(bench.account).await.expect("read");
    assert_eq!(apps, [], "nothing of it was written");
}

#[tokio::test]
async fn a_code_of_a_removed_app_is_invalid() {
    let bench = Bench::new().await;
    let (client, code) = bench.allowed(API, 1).await;
    bench
        .server
        .remove_app(bench.account, client.clone())
        .await
        .expect("removed");
    assert!(invalid_grant(bench.exchange(&client, &code).await));
    let request = CodeRequest {
        verifier: VERIFIER,
        ..request(&client, &code)
    };
    assert!(invalid_grant(bench.server.exchange(request).await));
}

//! Under any sequence of requests, no token exceeds what the account owner has allowed its client.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use secrecy::ExposeSecret;
use tollgate_identity::oauth::{CodeRequest, PendingId, RefreshRequest, Requested, TokenResponse};

use crate::support::{Bench, REDIRECT, SECOND, SESSION, VERIFIER, parameter, with_refresh};

/// A random request; numbers choose among the existing objects.
#[derive(Clone, Debug)]
enum Step {
    Ask {
        client: usize,
        resource: u32,
        scopes: u32,
    },
    Look {
        pending: usize,
        session: u8,
    },
    Allow {
        pending: usize,
        session: u8,
        scopes: u32,
    },
    Deny {
        pending: usize,
    },
    Exchange {
        code: usize,
        client: usize,
        resource: Requested,
        verifier: bool,
        redirect: bool,
    },
    Refresh {
        token: usize,
        client: usize,
        resource: Requested,
        scopes: Requested,
    },
    Revoke {
        token: usize,
    },
    Remove {
        client: usize,
    },
    Pass {
        secs: u32,
    },
}

fn asked() -> impl Strategy<Value = Requested> {
    prop_oneof![
        3 => Just(Requested::Omitted),
        1 => Just(Requested::Unknown),
        3 => (0u32..8).prop_map(Requested::Bits),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let any = 0usize..100;
    let client = 0usize..2;
    let resource = prop_oneof![Just(1u32), Just(2)];
    let session = prop_oneof![4 => Just(1u8), 1 => Just(2)];
    prop_oneof![
        3 => (client.clone(), resource, 1u32..8).prop_map(|(client, resource, scopes)| Step::Ask { client, resource, scopes }),
        1 => (any.clone(), session.clone()).prop_map(|(pending, session)| Step::Look { pending, session }),
        4 => (any.clone(), session, 0u32..8).prop_map(|(pending, session, scopes)| Step::Allow { pending, session, scopes }),
        1 => any.clone().prop_map(|pending| Step::Deny { pending }),
        6 => (any.clone(), client.clone(), asked(), prop::bool::weighted(0.9), prop::bool::weighted(0.9))
            .prop_map(|(code, client, resource, verifier, redirect)| Step::Exchange { code, client, resource, verifier, redirect }),
        4 => (any.clone(), client.clone(), asked(), asked())
            .prop_map(|(token, client, resource, scopes)| Step::Refresh { token, client, resource, scopes }),
        1 => any.prop_map(|token| Step::Revoke { token }),
        1 => client.prop_map(|client| Step::Remove { client }),
        1 => prop_oneof![1u32..15, 30u32..70, 3000u32..4000].prop_map(|secs| Step::Pass { secs }),
    ]
}

/// What the account owner allowed, as this test tracks it.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    client: usize,
    resource: u32,
    scopes: u32,
}

#[derive(Default)]
struct World {
    clients: Vec<Arc<str>>,
    pendings: Vec<(PendingId, Allowed)>,
    codes: Vec<(String, Allowed)>,
    refreshes: Vec<(String, Allowed)>,
    tokens: Vec<(String, Allowed)>,
    /// How often each code was exchanged.
    used: HashMap<String, u32>,
}

impl World {
    fn got(&mut self, granted: TokenResponse, allowed: Allowed, client: usize, bench: &Bench) {
        assert_eq!(client, allowed.client, "another client was served");
        assert_eq!(
            granted.scopes & !allowed.scopes,
            0,
            "more scopes than allowed"
        );
        let found = bench
            .works(granted.access.expose_secret())
            .expect("a new token works");
        assert_eq!(found.resources, allowed.resource, "another resource");
        assert_eq!(
            found.scopes, granted.scopes,
            "the response equals the stored token"
        );
        assert_eq!(found.account.id(), bench.account);
        self.tokens
            .push((granted.access.expose_secret().to_owned(), allowed));
        if let Some(refresh) = granted.refresh {
            self.refreshes
                .push((refresh.expose_secret().to_owned(), allowed));
        }
    }

    async fn take(&mut self, bench: &Bench, step: Step) {
        match step {
            Step::Ask {
                client,
                resource,
                scopes,
            } => {
                let id = bench.ask(&self.clients[client], resource, scopes).await;
                self.pendings.push((
                    id,
                    Allowed {
                        client,
                        resource,
                        scopes,
                    },
                ));
            }
            Step::Look { pending, session } => {
                let Some((id, _)) = pick(&self.pendings, pending) else {
                    return;
                };
                // Whether it is refused does not matter here.
                let _ = bench.server.open_request(id, &[session; 32]).await;
            }
            Step::Allow {
                pending,
                session,
                scopes,
            } => {
                let Some((id, asked)) = pick(&self.pendings, pending) else {
                    return;
                };
                let session = [session; 32];
                let allowed = bench
                    .server
                    .allow(id, &bench.decider(session), scopes)
                    .await;
                if let Ok(address) = allowed {
                    assert_eq!(scopes & !asked.scopes, 0, "more than was asked for");
                    assert_ne!(scopes, 0);
                    let code = parameter(&address, "code").expect("a code");
                    self.codes.push((code, Allowed { scopes, ..asked }));
                }
            }
            Step::Deny { pending } => {
                let Some((id, _)) = pick(&self.pendings, pending) else {
                    return;
                };
                if let Ok(address) = bench.server.deny(id, &SESSION).await {
                    assert_eq!(parameter(&address, "code"), None);
                }
            }
            Step::Exchange {
                code,
                client,
                resource,
                verifier,
                redirect,
            } => {
                let Some((code, allowed)) = pick(&self.codes, code) else {
                    return;
                };
                let id = self.clients[client].clone();
                let request = CodeRequest {
                    client: &id,
                    code: &code,
                    redirect_uri: if redirect {
                        REDIRECT
                    } else {
                        "https://app.example/"
                    },
                    verifier: if verifier { VERIFIER } else { "" },
                    resource,
                };
                if let Ok(granted) = bench.server.exchange(request).await {
                    assert!(verifier && redirect, "a check was passed over");
                    let times = self.used.entry(code.clone()).or_default();
                    *times += 1;
                    assert_eq!(*times, 1, "a code was used twice");
                    self.got(granted, allowed, client, bench);
                }
            }
            Step::Refresh {
                token,
                client,
                resource,
                scopes,
            } => {
                let Some((token, allowed)) = pick(&self.refreshes, token) else {
                    return;
                };
                let id = self.clients[client].clone();
                let request = RefreshRequest {
                    client: &id,
                    token: &token,
                    resource,
                    scopes,
                };
                if let Ok(granted) = bench.server.refresh(request).await {
                    self.got(granted, allowed, client, bench);
                }
            }
            Step::Revoke { token } => {
                let Some((token, _)) = pick(&self.tokens, token) else {
                    return;
                };
                bench.server.revoke(&token, None).await.expect("revoked");
                assert!(bench.works(&token).is_none(), "seen by the next request");
            }
            Step::Remove { client } => {
                let id = self.clients[client].clone();
                bench
                    .server
                    .remove_app(bench.account, id)
                    .await
                    .expect("removed");
                for (token, allowed) in &self.tokens {
                    assert!(allowed.client != client || bench.works(token).is_none());
                }
            }
            Step::Pass { secs } => bench.pass(secs * SECOND),
        }
    }
}

fn pick<T: Clone>(list: &[T], at: usize) -> Option<T> {
    list.get(at % list.len().max(1)).cloned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_requests_yields_a_token_beyond_its_grant(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let bench = Bench::with(with_refresh()).await;
            let mut world = World::default();
            for _ in 0..2 {
                world.clients.push(bench.register().await);
            }
            for step in steps {
                world.take(&bench, step).await;
            }
            // After a restart every token is still within its grant, or revoked.
            let bench = bench.restart();
            for (token, allowed) in &world.tokens {
                if let Some(found) = bench.works(token) {
                    assert_eq!(found.resources, allowed.resource);
                    assert_eq!(found.scopes & !allowed.scopes, 0);
                }
            }
        });
    }
}

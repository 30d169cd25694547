//! A third-party filter, as in the example of `filters/README.md`: built here, registered, named in a chain, and run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use http::HeaderValue;
use tollgate_filter::{
    ApiError, Body, Contract, Ending, ErrorCode, Exchange, FailureMode, Filter, Outcome, Phase,
    Principal, ServiceIdentity, Step,
};

use tollgate_testing::{Script, StreamEnd, within};

use crate::rig::{CHAT, PRICE_OF_A_CHAT, Setup, chat, poll};

/// The operator's promise for HSTS, longer than the gateway's promise.
const LONGER: HeaderValue = HeaderValue::from_static("max-age=63072000; includeSubDomains");

/// Admits requests with the password, and counts their endings.
struct Password {
    word: String,
    complete: Arc<AtomicUsize>,
    others: Arc<AtomicUsize>,
}

impl Filter for Password {
    fn name(&self) -> &'static str {
        "password"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::End,
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let said = exchange.request.headers.get("x-password");
        if said.is_none_or(|said| said != self.word.as_str()) {
            let error = ApiError::new(ErrorCode::KeyNotPermitted, "Say the word in `X-Password`.");
            return Step::now(Outcome::refuse(error));
        }
        // The filter runs after `auth`, so the principal is known.
        let owner = exchange
            .get::<Principal>()
            .map(|principal| principal.account.to_string());
        let owner = owner.and_then(|owner| HeaderValue::try_from(owner).ok());
        if let Some(owner) = owner {
            exchange.reply_headers.insert("x-owner", owner);
        }
        exchange
            .reply_headers
            .insert("strict-transport-security", LONGER);
        Step::now(Outcome::Continue)
    }

    fn on_end(&self, _exchange: &mut Exchange, ending: Ending) {
        let counter = match ending {
            Ending::Complete => &self.complete,
            _ => &self.others,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_filter_of_an_operators_own_sees_refuses_and_marks_requests() {
    let (complete, others) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let counters = (complete.clone(), others.clone());
    let mut setup = Setup::with(&format!(
        "[[route]]\npath = \"{CHAT}\"\nmethods = [\"POST\"]\nscope = \"api:chat\"\n\
         chain = [\"auth\", \"password\", \"completions\", \"meter\"]"
    ));
    setup.customise = Box::new(|builder| {
        builder.filter("password", move |context| {
            // A filter is built from services, here from the service's name.
            let service: ServiceIdentity = context.services.get("password")?;
            Ok(Arc::new(Password {
                word: format!("{}-friend", service.name),
                complete: counters.0.clone(),
                others: counters.1.clone(),
            }))
        })
    });
    let rig = setup.start().await;
    for (what, client) in rig.clients() {
        for stream in [false, true] {
            let body = chat(stream).to_string();
            let refused = client
                .send(client.request("POST", CHAT, body.clone().into()))
                .await;
            assert_eq!(refused.status, 403, "{what}");
            assert_eq!(
                refused.json()["error"]["message"],
                "Say the word in `X-Password`.",
                "{what}"
            );
            let mut request = client.request("POST", CHAT, body.into());
            request
                .headers_mut()
                .insert("x-password", HeaderValue::from_static("svc-friend"));
            let answer = client.send(request).await;
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            assert_eq!(
                answer.header("x-owner"),
                Some(rig.account.to_string().as_str()),
                "{what}"
            );
            let promised = answer.header("strict-transport-security");
            assert_eq!(promised, LONGER.to_str().ok(), "{what}: as promised");
            rig.add_expected_charge(PRICE_OF_A_CHAT);
        }
    }
    rig.finish().await;
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    assert_eq!(
        (count(&complete), count(&others)),
        (8, 8),
        "each exchange ends once"
    );
}

/// Panics in the phase named by the settings.
struct Clumsy;

impl Filter for Clumsy {
    fn name(&self) -> &'static str {
        "clumsy"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::Event,
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let early = exchange.request.headers.contains_key("x-early");
        assert!(!early, "requested");
        Step::now(Outcome::Continue)
    }

    fn on_event(&self, exchange: &mut Exchange, event: &mut tollgate_filter::Event<'_>) {
        let late = exchange.request.body.windows(4).any(|four| four == b"late");
        let here = late && String::from_utf8_lossy(event.data()).contains("gate");
        assert!(!here, "requested");
    }
}

#[tokio::test]
async fn a_filter_that_panics_loses_one_request_and_nothing_else() {
    let mut setup = Setup::with(&format!(
        "[[route]]\npath = \"{CHAT}\"\nmethods = [\"POST\"]\nscope = \"api:chat\"\n\
         chain = [\"auth\", \"completions\", \"meter\", \"clumsy\"]"
    ));
    setup.customise = Box::new(|builder| builder.filter("clumsy", |_| Ok(Arc::new(Clumsy))));
    let rig = setup.start().await;
    for (what, client) in rig.clients() {
        let mut request = client.request("POST", CHAT, chat(false).to_string().into());
        request
            .headers_mut()
            .insert("x-early", HeaderValue::from_static("yes"));
        let answer = client.send(request).await;
        assert_eq!(answer.status, 500, "{what}");
        assert_eq!(answer.json()["error"]["code"], "internal_error", "{what}");
        assert!(answer.header("x-request-id").is_some(), "{what}");
        let promised = answer.header("strict-transport-security").is_some();
        assert_eq!(promised, what.contains("TLS"), "{what}");

        // In the middle of a stream, the client sees no proper end.
        rig.provider.script(Script::hold(4, "gate").once());
        let mut body = chat(true);
        body["late"] = true.into();
        let mut stream = client.stream(CHAT, &body).await;
        for _ in 0..4 {
            stream.next_event().await.expect("an event");
        }
        rig.provider.gate("gate").release(1);
        let (events, end) = stream.rest().await;
        assert!(matches!(end, StreamEnd::Cut(_)), "{what}: {end:?}");
        assert!(events.iter().all(|event| !event.is_done()), "{what}");

        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{what}: the next one is served");
        rig.record_charge(&answer.json());
    }
    let after = rig.finish().await;
    let aborted = after
        .endings()
        .iter()
        .filter(|ending| **ending == "aborted")
        .count();
    assert_eq!(aborted, 8, "{:?}", after.log);
}

/// Blocks the thread until a release, against the rules for filters.
#[derive(Clone, Default)]
struct Blocking {
    blocked: Arc<AtomicUsize>,
    free: Arc<(Mutex<bool>, Condvar)>,
}

impl Blocking {
    fn let_go(&self) {
        *self.free.0.lock().expect("not poisoned") = true;
        self.free.1.notify_all();
    }
}

impl Filter for Blocking {
    fn name(&self) -> &'static str {
        "blocking"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, _exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        self.blocked.fetch_add(1, Ordering::SeqCst);
        let free = self.free.0.lock().expect("not poisoned");
        let free = self.free.1.wait_while(free, |free| !*free);
        drop(free.expect("not poisoned"));
        Step::now(Outcome::Continue)
    }
}

#[tokio::test]
async fn a_blocked_worker_fails_the_liveness_check() {
    let mut setup = Setup::with(&format!(
        "server = {{ workers = 2 }}\n\
         [[route]]\npath = \"{CHAT}\"\nmethods = [\"POST\"]\nscope = \"api:chat\"\n\
         chain = [\"auth\", \"completions\", \"meter\", \"blocking\"]"
    ));
    let blocking = Blocking::default();
    let filter = blocking.clone();
    setup.customise =
        Box::new(move |builder| builder.filter("blocking", move |_| Ok(Arc::new(filter.clone()))));
    let rig = setup.start().await;
    let live = rig.admin_get("/live").await;
    assert_eq!((live.status, live.text()), (200, "live\n"));

    let client = rig.client();
    let waiting = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    let blocked = || blocking.blocked.load(Ordering::SeqCst) == 1;
    within("the blocked worker", poll(blocked)).await;
    let live = rig.admin_get("/live").await;
    assert_eq!(live.status, 503, "{}", live.text());
    let words = "1 of 2 workers do not answer: worker-";
    assert!(live.text().starts_with(words), "{}", live.text());
    let ready = rig.admin_get("/ready").await;
    assert_eq!(ready.status, 200, "the other one serves");
    assert!(ready.text().contains(words), "{}", ready.text());

    blocking.let_go();
    let answer = waiting.await.expect("the request ends");
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    assert_eq!(rig.admin_get("/live").await.status, 200);
    rig.finish().await;
}

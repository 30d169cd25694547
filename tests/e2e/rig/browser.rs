//! A browser without JavaScript: the browser keeps a single cookie, and submits forms with the CSRF token of the page.

use std::time::Duration;

use bytes::Bytes;
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_identity::{Login, SessionValue, session};
use tollgate_money::{AccountId, LoginId};
use tollgate_store::{Admission, NewLogin, Part, UnitOfWork, commit};
use tollgate_testing::{Answer, Client};

use super::Rig;

const COOKIE: &str = "__Host-svc-session";

/// A browser of a single person.
#[derive(Clone)]
pub(crate) struct Browser {
    url: String,
    cookie: String,
    /// The mark kept since the first sign-in, as a cookie.
    mark: String,
    token: String,
    /// The field `X-Forwarded-For` of a proxy in front.
    forwarded_for: Option<String>,
}

impl Browser {
    /// The address for the sign-in by [`Browser::signed_in`].
    pub(crate) const ADDRESS: &'static str = "ada@example.com";

    /// A new browser.
    pub(crate) fn new(rig: &Rig) -> Browser {
        Browser::at(&rig.url())
    }

    /// A new browser for the gateway at `url`.
    pub(crate) fn at(url: &str) -> Browser {
        Browser {
            url: url.to_owned(),
            cookie: String::new(),
            mark: String::new(),
            token: String::new(),
            forwarded_for: None,
        }
    }

    /// A browser signed in to the rig's account. Only once a rig: an address has a single account.
    pub(crate) async fn signed_in(rig: &Rig) -> Browser {
        Browser::signed_in_as(rig, rig.account, Browser::ADDRESS).await
    }

    /// A browser signed in to an account by an address new to the account.
    pub(crate) async fn signed_in_as(rig: &Rig, account: AccountId, address: &str) -> Browser {
        Browser::signed_in_at(rig, account, address, Clock::system().now()).await
    }

    /// A browser with an old sign-in: keys and payments need a confirmation of identity.
    pub(crate) async fn signed_in_a_while_ago(rig: &Rig) -> Browser {
        let at = Clock::system().now() - session::RECENT - Duration::from_secs(1);
        Browser::signed_in_at(rig, rig.account, Browser::ADDRESS, at).await
    }

    /// A browser signed in at a time of the gateway's clock.
    pub(crate) async fn signed_in_at(
        rig: &Rig,
        account: AccountId,
        address: &str,
        at: Timestamp,
    ) -> Browser {
        let login = add_login(rig, account, address).await;
        let entropy = Entropy::system();
        let store = &rig.books.store;
        let value = session::start_session(store, account, login, at, |out| entropy.fill(out));
        let value: SessionValue = value.await.expect("a session");
        Browser {
            cookie: format!("{COOKIE}={}", value.expose()),
            mark: String::new(),
            ..Browser::new(rig)
        }
    }

    /// A browser with the cookie of a session, for the gateway at `url`.
    pub(crate) fn holding(url: &str, session: &SessionValue) -> Browser {
        Browser {
            cookie: format!("{COOKIE}={}", session.expose()),
            ..Browser::at(url)
        }
    }

    /// Adds a proxy that reports `address` as the browser's address.
    pub(crate) fn forwarded_for(self, address: &str) -> Browser {
        Browser {
            forwarded_for: Some(address.to_owned()),
            ..self
        }
    }

    /// The sent cookie; empty before the first cookie.
    pub(crate) fn cookie(&self) -> &str {
        &self.cookie
    }

    /// The token of the forms on the current page.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Opens a page.
    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, &[], Bytes::new()).await
    }

    /// Opens a page with the `Accept` field `accept`.
    pub(crate) async fn get_as(&mut self, path: &str, accept: &str) -> Answer {
        self.send("GET", path, &[("accept", accept)], Bytes::new())
            .await
    }

    /// Opens a page with other header fields.
    pub(crate) async fn get_with(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.send("GET", path, fields, Bytes::new()).await
    }

    /// Goes where an answer leads.
    pub(crate) async fn follow(&mut self, answer: Answer) -> Answer {
        let location = answer.header("location").expect("a way on").to_owned();
        self.get(&location).await
    }

    /// Sends a form of the current page.
    pub(crate) async fn submit(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.token.clone();
        let mut all = vec![("csrf", token.as_str())];
        all.extend_from_slice(fields);
        self.post_with(path, &[], &all).await
    }

    /// Sends a form with other header fields, and without the page's token.
    pub(crate) async fn post_with(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        fields: &[(&str, &str)],
    ) -> Answer {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields);
        let mut all = vec![("content-type", "application/x-www-form-urlencoded")];
        all.extend_from_slice(headers);
        self.send("POST", path, &all, form.finish().into()).await
    }

    async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Answer {
        let client = Client::new(&self.url);
        let mut request = client.request(method, path, body);
        let fields = request.headers_mut();
        fields.remove("content-type");
        let cookies = [&*self.cookie, &*self.mark].map(str::to_owned);
        let cookies: Vec<String> = cookies.into_iter().filter(|one| !one.is_empty()).collect();
        if !cookies.is_empty() {
            fields.insert("cookie", cookies.join("; ").parse().expect("a value"));
        }
        if let Some(address) = &self.forwarded_for {
            fields.insert("x-forwarded-for", address.parse().expect("a value"));
        }
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().expect("a name");
            fields.insert(name, value.parse().expect("a value"));
        }
        let answer = client.send(request).await;
        for given in answer.headers.get_all("set-cookie") {
            let given = given.to_str().expect("text");
            let (pair, rest) = given.split_once(';').expect("attributes");
            let (kept, life) = match pair.starts_with(COOKIE) {
                true => (&mut self.cookie, 43_200),
                false => (&mut self.mark, 15_552_000),
            };
            let attributes = format!(" Path=/; Max-Age={life}; Secure; HttpOnly; SameSite=Lax");
            assert_eq!(rest, attributes);
            assert!(pair.starts_with("__Host-svc-"), "{pair}");
            *kept = pair.to_owned();
        }
        let text = std::str::from_utf8(&answer.body).unwrap_or("");
        if let Some((_, after)) = text.split_once("name=\"csrf\" value=\"") {
            self.token = after.split('"').next().unwrap_or("").to_owned();
        }
        answer
    }
}

/// Gives an account an address to sign in with.
pub(crate) async fn add_login(rig: &Rig, account: AccountId, address: &str) -> LoginId {
    let login = Login::read(address).expect("an address");
    let mut id = [0; 16];
    Entropy::system().fill(&mut id);
    let id = LoginId::from_bytes(id);
    let part = Part::InsertLogin(Box::new(NewLogin {
        id,
        account,
        kind: login.kind(),
        address: login.address().into(),
        verified_at: None,
        created_at: Clock::system().now(),
    }));
    let unit = UnitOfWork::of(part, Admission::Normal);
    commit(&*rig.books.store, unit).await.expect("a login");
    id
}

//! Forms and lists of an account's pages: a value typed beside a choice, changes of a key, and refused requests.

use serde_json::json;
use tollgate_clock::{Clock, Timestamp};
use tollgate_store::{CredentialRow, PageCursor, RequestsQuery};
use tollgate_testing::{Answer, Client, Script, within};

use crate::rig::{Browser, CHAT, Rig, chat};

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

fn has(page: &Answer, pieces: &[&str]) {
    for piece in pieces {
        assert!(page.text().contains(piece), "{piece} in {}", page.text());
    }
}

/// A day in the form of forms, `2026-11-21`, `ahead` days from today.
fn day(ahead: i64) -> (String, Timestamp) {
    let today = Clock::system().now().start_of_day();
    let day = Timestamp::from_micros(today.as_micros() + ahead * DAY);
    (day.rfc3339()[..10].to_owned(), day)
}

/// The key with the name `name`.
fn key_named(rig: &Rig, name: &str) -> Option<CredentialRow> {
    let keys = rig.books.store.account_credentials(rig.account);
    let mut keys = keys.expect("a read").into_iter();
    keys.find(|key| key.made.label.as_deref() == Some(name))
}

/// The names of the fields with a problem in a refused form, in order.
fn wrong_fields(page: &Answer) -> Vec<String> {
    assert_eq!(page.status, 422, "{}", page.text());
    let (_, after) = page.text().split_once("problems-title").expect("a summary");
    let (summary, _) = after.split_once("</ul>").expect("its end");
    let links = summary.split("href=\"#").skip(1);
    links
        .filter_map(|link| Some(link.split_once('"')?.0.to_owned()))
        .collect()
}

/// The preselected option is sent without a choice and does not contradict a typed day. Any other option contradicts a typed day.
#[tokio::test]
async fn an_end_date_typed_beside_the_choice_is_used_or_both_are_named() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    browser.get("/keys/create").await;
    let (typed, last) = day(45);
    let end = Timestamp::from_micros(last.as_micros() + DAY);
    for (name, ends) in [
        ("beside never", Some("never")),
        ("beside nothing", None),
        ("on a date", Some("date")),
    ] {
        let mut fields = vec![("name", name), ("may", "chat"), ("ends_on", &typed)];
        fields.extend(ends.map(|ends| ("ends", ends)));
        let page = browser.submit("/keys/create", &fields).await;
        assert_eq!(page.status, 200, "{}", page.text());
        let key = key_named(&rig, name).expect("it was made");
        assert_eq!(key.made.expires_at, Some(end), "{name}");
    }
    let fields = [
        ("name", "both"),
        ("may", "chat"),
        ("ends", "30"),
        ("ends_on", &typed),
    ];
    let page = browser.submit("/keys/create", &fields).await;
    assert_eq!(wrong_fields(&page), ["ends", "ends_on"]);
    has(&page, &["In 30 days", &format!("value=\"{typed}\"")]);
    assert!(key_named(&rig, "both").is_none());
    rig.finish().await;
}

#[tokio::test]
async fn buying_is_not_ticked_in_the_form_of_a_key() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    let page = browser.get("/keys/create").await;
    let ticked: Vec<&str> = page
        .text()
        .split("<input type=\"checkbox\"")
        .skip(1)
        .filter_map(|field| field.split_once('>'))
        .map(|(field, _)| field)
        .filter(|field| field.contains("name=\"may\"") && field.contains(" checked"))
        .filter_map(|field| field.split_once("value=\"")?.1.split('"').next())
        .collect();
    assert_eq!(ticked, ["chat", "completions", "models"]);
    rig.finish().await;
}

/// The content of a key's form, field by field.
fn form_of(page: &Answer) -> Vec<(String, String)> {
    let value = |field: &str, name: &str| {
        let (_, after) = field.split_once(&format!(" {name}=\""))?;
        after.split('"').next().map(str::to_owned)
    };
    let (_, form) = page
        .text()
        .split_once("<form class=\"panel")
        .expect("a form");
    let fields = form.split("<input").skip(1);
    fields
        .filter_map(|field| field.split_once('>'))
        .map(|(field, _)| field)
        .filter(|field| {
            !field.contains("\"radio\"") && !field.contains("\"checkbox\"")
                || field.contains(" checked")
        })
        .filter_map(|field| Some((value(field, "name")?, value(field, "value")?)))
        .filter(|(name, _)| name != "csrf")
        .collect()
}

/// The form with some fields replaced; an empty value takes a field away.
fn with(form: &[(String, String)], changed: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut fields: Vec<_> = form
        .iter()
        .filter(|(name, _)| changed.iter().all(|(other, _)| other != name))
        .cloned()
        .collect();
    let own = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
    fields.extend(
        changed
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(own),
    );
    fields
}

async fn submit(browser: &mut Browser, path: &str, form: &[(String, String)]) -> Answer {
    let fields: Vec<_> = form
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    browser.submit(path, &fields).await
}

#[tokio::test]
async fn a_key_is_changed_by_its_owner_and_counts_from_the_next_request() {
    let rig = Rig::start().await;
    let (id, secret) = rig
        .new_key(rig.account, |key| key.label = "ci".into())
        .await;
    let client = Client::new(&rig.url()).with_key(&secret);
    let first = client.post(CHAT, &chat(false)).await;
    assert_eq!(first.status, 200, "{}", first.text());
    rig.record_charge(&first.json());
    let mut browser = Browser::signed_in(&rig).await;
    let list = browser.get("/keys").await;
    has(
        &list,
        &[
            ">Created</th>",
            ">Expires</th>",
            ">Last used</th>",
            &format!("/keys/{id}/edit"),
        ],
    );
    let path = format!("/keys/{id}/edit");
    let page = browser.get(&path).await;
    let form = form_of(&page);
    let (typed, last) = day(10);

    // A model forbidden to the key, and a cap used up by the first request: earlier spending counts.
    let changed = [
        ("name", "ci-2"),
        ("models", "dear"),
        ("cap", "0.001"),
        ("cap_period", "month"),
        ("ends_on", &*typed),
    ];
    let done = submit(&mut browser, &path, &with(&form, &changed)).await;
    assert_eq!(done.status, 303, "{}", done.text());
    let list = browser.follow(done).await;
    has(
        &list,
        &[
            "Key ci-2 is changed.",
            "only dear",
            "up to 0.00 credits a month",
        ],
    );
    let key = key_named(&rig, "ci-2").expect("it is called that");
    assert_eq!(
        key.made.expires_at,
        Some(Timestamp::from_micros(last.as_micros() + DAY))
    );
    assert_eq!(
        client.post(CHAT, &chat(false)).await.status,
        403,
        "not one of its models"
    );

    // The form of the earlier version would undo the change.
    let stale = submit(&mut browser, &path, &with(&form, &[("name", "ci")])).await;
    assert_eq!(stale.status, 422);
    has(
        &stale,
        &["This key was changed meanwhile, so nothing was saved."],
    );
    let form = form_of(&browser.get(&path).await);
    let saved = submit(&mut browser, &path, &with(&form, &[("models", "")])).await;
    assert_eq!(saved.status, 303, "{}", saved.text());
    let refused = client.post(CHAT, &chat(false)).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "key_spending_cap");
    let form = form_of(&browser.get(&path).await);
    let saved = submit(
        &mut browser,
        &path,
        &with(&form, &[("cap", ""), ("ends_on", "")]),
    )
    .await;
    assert_eq!(saved.status, 303, "{}", saved.text());
    let key = key_named(&rig, "ci-2").expect("it is there");
    assert_eq!((key.made.expires_at, key.made.spending_cap), (None, None));
    let last = client.post(CHAT, &chat(false)).await;
    assert_eq!(last.status, 200, "{}", last.text());
    rig.record_charge(&last.json());

    for (field, value, wrong) in [
        ("name", "test", "name"),
        ("cap", "lots", "cap"),
        ("ends_on", "2020-01-01", "ends_on"),
    ] {
        let form = with(&form, &[(field, value)]);
        let page = submit(&mut browser, &path, &form).await;
        assert_eq!(wrong_fields(&page), [wrong]);
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_key_is_changed_only_by_a_recent_session_of_its_account() {
    let rig = Rig::start().await;
    let (id, _) = rig
        .new_key(rig.account, |key| key.label = "ci".into())
        .await;
    let path = format!("/keys/{id}/edit");
    let other = rig.new_account("free", 0).await;
    let mut stranger = Browser::signed_in_as(&rig, other, "eve@example.com").await;
    assert_eq!(stranger.get(&path).await.status, 404);
    stranger.get("/keys/create").await;
    let change = [("name", "mine"), ("version", "0")];
    assert_eq!(stranger.submit(&path, &change).await.status, 404);
    let mut owner = Browser::signed_in_a_while_ago(&rig).await;
    owner.get(&path).await;
    let token = [("name", "mine"), ("version", "0"), ("csrf", "none")];
    assert_eq!(owner.post_with(&path, &[], &token).await.status, 403);
    let asked = owner.submit(&path, &change).await;
    let way = asked.header("location").expect("a way on");
    assert!(way.starts_with("/confirm?next="), "{way}");
    has(&owner.get(&path).await, &["value=\"mine\""]);
    assert!(key_named(&rig, "mine").is_none());
    rig.finish().await;
}

/// A page of usage, as soon as the page has every piece: refused requests are written within seconds.
async fn usage_with(browser: &mut Browser, path: &str, pieces: &[&str]) -> Answer {
    let mut often = tokio::time::interval(std::time::Duration::from_millis(20));
    let complete = async {
        loop {
            let page = browser.get(path).await;
            if pieces.iter().all(|piece| page.text().contains(piece)) {
                return page;
            }
            often.tick().await;
        }
    };
    within(&format!("{pieces:?}"), complete).await
}

#[tokio::test]
async fn usage_lists_refused_and_failed_requests_with_status_code_and_time() {
    let rig = Rig::start().await;
    let (id, key) = rig
        .new_key(rig.account, |key| key.label = "ci".into())
        .await;
    let client = Client::new(&rig.url()).with_key(&key);
    let answered = rig.client().post(CHAT, &chat(false)).await;
    rig.record_charge(&answered.json());
    let unknown = json!({"model": "none", "messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(client.post(CHAT, &unknown).await.status, 400);
    rig.provider.script(Script::status(500).once());
    let failed = client.post(CHAT, &chat(false)).await;
    assert_eq!(failed.status, 502, "{}", failed.text());
    let mut browser = Browser::signed_in(&rig).await;
    let wanted = [
        "400 <code>model_not_supported</code>",
        "502 <code>",
        "2 more refused or failed",
        ">Refused</span>",
        ">Failed</span>",
        " ms</td>",
    ];
    let page = usage_with(&mut browser, "/usage", &wanted).await;
    assert_eq!(page.text().matches("<code>req_").count(), 3);
    let filtered = format!("/usage?key={id}");
    let page = browser.get(&filtered).await;
    has(&page, &["Only key ci", "Show all keys"]);
    assert_eq!(
        page.text().matches("<code>req_").count(),
        2,
        "of that key alone"
    );
    assert!(!browser.get("/usage").await.text().contains("Show all keys"));
    let nothing = browser.get("/usage?model=small").await;
    has(&nothing, &["Only model small", "Show all models"]);
    rig.finish().await;
}

/// The refused requests of an account in a second take rows for a hundred requests, and one row for the rest.
#[tokio::test]
async fn a_flood_of_refused_requests_is_a_bounded_number_of_rows() {
    let rig = Rig::start().await;
    let client = rig.client();
    let unknown = json!({"model": "none", "messages": [{"role": "user", "content": "Hi"}]});
    for _ in 0..130 {
        assert_eq!(client.post(CHAT, &unknown).await.status, 400);
    }
    let mut browser = Browser::signed_in(&rig).await;
    let page = usage_with(&mut browser, "/usage", &["130 more refused or failed"]).await;
    assert_eq!(page.text().matches("<code>req_").count(), 25, "a screen");
    let rows = rig.books.store.refusals(&RequestsQuery {
        account: rig.account,
        from: Timestamp::UNIX_EPOCH,
        to: Timestamp::MAX,
        model: None,
        credential: None,
        cursor: PageCursor::Newest,
        limit: 1_000,
    });
    let rows = rows.expect("a read");
    assert_eq!(rows.iter().map(|row| row.requests).sum::<u64>(), 130);
    // An hour may have ended in between.
    assert!((101..=130).contains(&rows.len()), "{} rows", rows.len());
    rig.finish().await;
}

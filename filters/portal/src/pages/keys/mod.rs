//! `/keys`: list of API keys with status, last use and spending.

pub(crate) mod create;
pub(crate) mod edit;
mod fields;
pub(crate) mod revoke;

use std::collections::HashMap;
use std::time::Duration;

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_filter::{Reply, Scope, Scopes};
use tollgate_identity::{Key, KeyId, list_keys};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros};
use tollgate_pages::format::{self, costs_2, credits_2, plural};
use tollgate_pages::parts::{self, Cell, Column, Tone};
use tollgate_pages::{NavItem, Page};
use tollgate_store::{ReadError, Reader, reading};

use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::usage::{DAY, Period};

/// Time for which a revoked key is listed.
const REVOKED_SHOWN: Duration = DAY.saturating_mul(90);
/// Threshold of the expiry warning.
const ENDS_SOON: Duration = DAY.saturating_mul(7);

/// The keys of an account, with their spending in the last 30 days.
pub(super) struct Keys {
    keys: Vec<Key>,
    spent: HashMap<CredentialId, Micros>,
}

impl Keys {
    pub(super) async fn read(
        context: &PortalContext,
        account: AccountId,
        now: Timestamp,
    ) -> Result<Keys, PageError> {
        let read = move |read: &Reader| -> Result<_, ReadError> {
            let period = Period::last(30, now);
            let days = read.usage_days(account, period.from(), period.to())?;
            Ok((list_keys(read, account)?, days))
        };
        let (mut keys, days) = reading(&context.store, read).await?;
        for key in &mut keys {
            // The cache is up to two minutes newer than the store.
            key.used_at = key.used_at.max(context.credentials.used_at(key.id.0));
        }
        let is_shown = |at: Timestamp| now.duration_since(at) < REVOKED_SHOWN;
        keys.retain(|key| key.revoked_at.is_none_or(is_shown));
        // Active keys first, expired keys next, revoked keys last; newest first within each group.
        keys.sort_by_key(|key| {
            let rank = match (key.revoked_at, is_ended(key, now)) {
                (Some(_), _) => 2,
                (None, true) => 1,
                (None, false) => 0,
            };
            (rank, std::cmp::Reverse(key.created_at))
        });
        let mut spent: HashMap<CredentialId, Micros> = HashMap::new();
        for day in &days {
            if let Some(id) = day.credential {
                let sum = spent.entry(id).or_default();
                *sum = sum.saturating_add(day.cost);
            }
        }
        Ok(Keys { keys, spent })
    }

    pub(super) fn find(&self, id: KeyId) -> Option<&Key> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// Whether an active key has this name.
    pub(super) fn is_taken(&self, name: &str, now: Timestamp) -> bool {
        let works = |key: &&Key| key.revoked_at.is_none() && !is_ended(key, now);
        self.keys
            .iter()
            .filter(works)
            .any(|key| key.label.as_deref() == Some(name))
    }
}

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let viewer = request.viewer(context)?;
    let keys = Keys::read(context, request.require_session()?.account, request.now).await?;
    // The notice reflects the stored state, not the query parameter.
    let named = |field| keys.find(request.query.text(field).parse().ok()?);
    let revoked = named("revoked").filter(|key| key.revoked_at.is_some());
    let changed = named("changed").filter(|key| key.version > 0);
    let content = html! {
        @if let Some(key) = revoked {
            (parts::notice(Tone::Good, &format!("Key {} is revoked.", name(key)), html! {}))
        }
        @if let Some(key) = changed {
            (parts::notice(Tone::Good, &format!("Key {} is changed.", name(key)), html! {}))
        }
        (parts::heading("API keys", Some(parts::link_button("/keys/create", "Create key", true))))
        (list(&keys, None, request.now))
    };
    let page = Page::dashboard("API keys", NavItem::Keys, viewer, content);
    Ok(request.page(context, &page))
}

/// The table of keys, with a newly created key highlighted.
fn list(keys: &Keys, made: Option<KeyId>, now: Timestamp) -> Markup {
    if keys.keys.is_empty() {
        let text = "No keys yet. A key lets your program call the API in your name.";
        return parts::empty(text, Some(("/keys/create", "Create key")));
    }
    let revoked = keys
        .keys
        .iter()
        .filter(|key| key.revoked_at.is_some())
        .count();
    let over = keys
        .keys
        .iter()
        .filter(|key| key.revoked_at.is_none() && is_ended(key, now))
        .count();
    let mut counts = vec![format!("{} active", keys.keys.len() - revoked - over)];
    for (number, word) in [(over, "expired"), (revoked, "revoked")] {
        if number > 0 {
            counts.push(format!("{number} {word}"));
        }
    }
    let columns = [
        Column::text("Name"),
        Column::text("Key"),
        Column::text("Status"),
        Column::text("May call"),
        Column::text("Created"),
        Column::text("Expires"),
        Column::text("Last used"),
        Column::number("30 days"),
        Column::text(""),
    ];
    let rows: Vec<Vec<Cell>> = keys
        .keys
        .iter()
        .map(|key| row(keys, key, made, now))
        .collect();
    let marked = made.and_then(|id| keys.keys.iter().position(|key| key.id == id));
    html! {
        section.panel {
            div.panel-head { h2 { "Your keys" } span.small.second { (counts.join(", ")) } }
            div.keys.scroll tabindex="0" role="region" aria-label="Table of your keys" { (parts::table("Your keys", &columns, &rows, marked)) }
        }
        p.second.small.narrow-text {
            "A revoked key is refused on the next request, everywhere within 2 seconds. Apps that you allowed by signing in are under "
            a href="/apps" { "Connected apps" } "."
        }
        p.second.small.narrow-text {
            "A person who finds one of your keys can revoke it without signing in: "
            a href="/docs/lifecycle#credentials" { "how" } ". You then get a mail."
        }
    }
}

fn row(keys: &Keys, key: &Key, made: Option<KeyId>, now: Timestamp) -> Vec<Cell> {
    let (tone, status) = status(key, made == Some(key.id), now);
    let spent = keys.spent.get(&key.id.0).copied().unwrap_or_default();
    let name = name(key);
    vec![
        Cell::new(html! { (name) }),
        Cell::new(html! { code { (key.hint.as_deref().unwrap_or_default().replace("...", "…")) } }),
        Cell::new(parts::pill(tone, &status)),
        Cell::labelled(html! { (may_call(key)) }),
        Cell::labelled(day(key.created_at, now)),
        Cell::labelled(html! {
            @match key.expires_at { Some(at) => (day(last_moment(at), now)), None => "Never" }
        }),
        Cell::labelled(html! {
            @match key.used_at { Some(at) => (format::relative_time(at, now)), None => "Never" }
        }),
        Cell::labelled(html! { (costs_2(spent)) }),
        Cell::new(html! {
            @if edit::can_change(key, now) {
                a.button.small.quiet href={ "/keys/" (key.id) "/edit" } { "Change" span.unseen { " key " (name) } }
                " "
            }
            @if key.revoked_at.is_none() {
                a.button.small.quiet.bad href={ "/keys/" (key.id) "/revoke" } { "Revoke" span.unseen { " key " (name) } }
            } @else {
                span.second.wide-only { "–" }
            }
        }),
    ]
}

/// The last moment before an end: a key that ends with a day shows that day and not the next.
fn last_moment(end: Timestamp) -> Timestamp {
    end - Duration::from_micros(1)
}

/// A day, with its time of day as the title.
fn day(at: Timestamp, now: Timestamp) -> Markup {
    html! { time datetime=(at.rfc3339()) title=(format::date_time(at)) { (format::date(at, now)) } }
}

/// The name given by its owner.
fn name(key: &Key) -> String {
    key.label
        .as_deref()
        .map_or_else(|| "a key without a name".to_owned(), format::single_line)
}

fn is_ended(key: &Key, now: Timestamp) -> bool {
    key.expires_at.is_some_and(|end| end <= now)
}

fn status(key: &Key, is_new: bool, now: Timestamp) -> (Tone, String) {
    let left = key.expires_at.map(|end| end.duration_since(now));
    match left {
        _ if key.revoked_at.is_some() => (Tone::Off, "Revoked".into()),
        _ if is_ended(key, now) => (Tone::Off, "Expired".into()),
        _ if is_new => (Tone::Info, "New".into()),
        Some(left) if left < DAY => (Tone::Warn, format!("Ends in {}", format::duration(left))),
        Some(left) if left < ENDS_SOON => {
            let days = left.as_secs() / DAY.as_secs();
            (
                Tone::Warn,
                format!("Ends in {}", plural(days as i64, "day")),
            )
        }
        _ => (Tone::Good, "Active".into()),
    }
}

/// Operations that a key can permit, in form order: scope, form value, short and long label.
pub(super) const OPERATIONS: [(Scope, &str, &str, &str); 4] = [
    (Scope::ApiChat, "chat", "Chat", "Send chat requests"),
    (
        Scope::ApiCompletions,
        "completions",
        "Text",
        "Send text requests (older form)",
    ),
    (
        Scope::ApiModels,
        "models",
        "Models",
        "See models and your balance",
    ),
    (
        Scope::CommerceSubscribe,
        "buy",
        "Buying Pro",
        "Buy or renew the Pro plan",
    ),
];

fn may_call(key: &Key) -> Markup {
    let scopes = Scopes::from_bits(key.scopes);
    let words: Vec<&str> = OPERATIONS
        .iter()
        .filter(|(scope, ..)| scopes.has(*scope))
        .map(|(_, _, word, _)| *word)
        .collect();
    let words = match words.len() {
        4 => "Everything".to_owned(),
        _ => {
            let joined = words.join(", ");
            let (first, rest) = joined.split_at(joined.len().min(1));
            format!("{first}{}", rest.to_lowercase().replace("pro", "Pro"))
        }
    };
    html! {
        (words)
        @if let Some(models) = &key.models {
            span.fine { "only " (format::single_line(&models.join(", "))) }
        }
        @if let Some(cap) = key.spending_cap {
            span.fine {
                "up to " (credits_2(cap.max)) " credits"
                @if cap.period == CapPeriod::Month { " a month" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_money::SpendingCap;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(20_000 * 86_400);

    fn key() -> Key {
        Key {
            id: KeyId(CredentialId::from_bytes([1; 16])),
            label: Some(Arc::from("ci-runner")),
            hint: None,
            scopes: Scopes::API.bits(),
            models: None,
            spending_cap: None,
            created_at: NOW,
            expires_at: None,
            revoked_at: None,
            used_at: None,
            version: 0,
        }
    }

    #[test]
    fn a_key_shows_its_status() {
        let micros = Duration::from_micros;
        //    ends, revoked, new
        check(None, false, false, "Active");
        check(None, false, true, "New");
        check(Some(NOW + 30 * DAY), false, false, "Active");
        check(
            Some(NOW + 6 * DAY + micros(5)),
            false,
            false,
            "Ends in 6 days",
        );
        check(Some(NOW + DAY), false, false, "Ends in 1 day");
        check(Some(NOW + DAY / 4), false, false, "Ends in 6 hours");
        check(Some(NOW), false, true, "Expired");
        check(Some(NOW - micros(5)), true, false, "Revoked");

        fn check(expires_at: Option<Timestamp>, revoked: bool, is_new: bool, expected: &str) {
            let key = Key {
                expires_at,
                revoked_at: revoked.then_some(NOW),
                ..key()
            };
            assert_eq!(status(&key, is_new, NOW).1, expected);
        }
    }

    #[test]
    fn a_key_shows_what_it_may_call() {
        let text_of = |key: Key| may_call(&key).into_string();
        assert_eq!(text_of(key()), "Everything");
        let scopes = Scopes::NONE
            .with(Scope::ApiModels)
            .with(Scope::ApiChat)
            .bits();
        assert_eq!(text_of(Key { scopes, ..key() }), "Chat, models");
        let scopes = Scopes::NONE
            .with(Scope::ApiChat)
            .with(Scope::CommerceSubscribe)
            .bits();
        assert_eq!(text_of(Key { scopes, ..key() }), "Chat, buying Pro");
        let limited = Key {
            models: Some(Arc::from([Arc::from("a<b")])),
            spending_cap: Some(SpendingCap {
                max: Micros::new(50_000_000),
                period: CapPeriod::Month,
            }),
            ..key()
        };
        let limited = text_of(limited);
        assert!(limited.contains("only a&lt;b"), "{limited}");
        assert!(limited.contains("up to 50.00 credits a month"), "{limited}");
    }
}

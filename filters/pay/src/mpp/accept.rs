//! Content negotiation of the payment method and intent: `Accept-Payment`.
//!
//! ```text
//! Accept-Payment = #( ( method / "*" ) "/" ( intent / "*" ) [ weight ] )
//! ```

use http::HeaderMap;

use super::METHOD;
use super::challenge::Intent;

/// The most entries that are read.
const ENTRIES_MAX: usize = 64;

/// The intents to send challenges for, by descending preference; never empty.
///
/// A charge is always offered. Only a client that names the subscription intent gets an offer for a subscription: a client with a wildcard
/// may not support subscriptions. An invalid field, and entries without a matching method or intent, have no effect
/// (draft-httpauth-payment-00, "Client Payment Preferences").
pub fn accepted_intents(headers: &HeaderMap) -> Vec<Intent> {
    let mut lines = String::new();
    for value in headers.get_all("accept-payment") {
        let Ok(line) = value.to_str() else {
            return vec![Intent::Charge];
        };
        if !lines.is_empty() {
            lines.push(',');
        }
        lines.push_str(line);
    }
    let Some(entries) = entries(&lines) else {
        return vec![Intent::Charge];
    };
    let mut found: Vec<(u16, Intent)> = [Intent::Charge, Intent::Subscription]
        .into_iter()
        .filter_map(|intent| {
            let (weight, exact) = weight(&entries, intent)?;
            let is_offered = intent == Intent::Charge || exact;
            (is_offered && weight > 0).then_some((weight, intent))
        })
        .collect();
    // At equal weight the widely supported intent comes first.
    found.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    match found.is_empty() {
        true => vec![Intent::Charge],
        false => found.into_iter().map(|(_, intent)| intent).collect(),
    }
}

struct Entry<'a> {
    method: &'a str,
    intent: &'a str,
    /// In thousandths.
    weight: u16,
}

/// The weight of an intent, and whether it was named; the most specific matching entry counts.
fn weight(entries: &[Entry<'_>], intent: Intent) -> Option<(u16, bool)> {
    let closeness = |entry: &&Entry<'_>| {
        let method = entry.method == METHOD;
        let named = entry.intent == intent.word();
        let fits = (method || entry.method == "*") && (named || entry.intent == "*");
        fits.then_some(2 * u8::from(method) + u8::from(named))
    };
    let best = entries
        .iter()
        .filter_map(|entry| Some((closeness(&entry)?, entry)));
    let (closeness, entry) = best.max_by_key(|(closeness, _)| *closeness)?;
    Some((entry.weight, closeness == 3))
}

/// The entries of a field; `None` for a malformed field, ignored as a whole.
fn entries(text: &str) -> Option<Vec<Entry<'_>>> {
    let mut entries = Vec::new();
    for item in text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        if entries.len() == ENTRIES_MAX {
            return None;
        }
        let (what, weight) = match item.split_once(';') {
            None => (item, 1_000),
            Some((what, parameter)) => (what.trim_end(), parse_weight(parameter.trim())?),
        };
        let (method, intent) = what.split_once('/')?;
        let is_word = |word: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:".contains(&byte);
            word == "*" || (!word.is_empty() && word.bytes().all(plain))
        };
        if !is_word(method) || !is_word(intent) {
            return None;
        }
        entries.push(Entry {
            method,
            intent,
            weight,
        });
    }
    Some(entries)
}

/// `q=` and a qvalue, in thousandths (RFC 9110 section 12.4.2).
fn parse_weight(parameter: &str) -> Option<u16> {
    let (name, value) = parameter.split_once('=')?;
    if !name.trim().eq_ignore_ascii_case("q") {
        return None;
    }
    let (whole, part) = value.trim().split_once('.').unwrap_or((value.trim(), ""));
    if part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = format!("{part:0<3}").parse::<u16>().ok()?;
    match (whole, part) {
        ("0", part) => Some(part),
        ("1", 0) => Some(1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn read(fields: &[&str]) -> Vec<Intent> {
        let mut headers = HeaderMap::new();
        for field in fields {
            let value = HeaderValue::from_bytes(field.as_bytes()).expect("a value");
            headers.append("accept-payment", value);
        }
        accepted_intents(&headers)
    }

    #[test]
    fn the_subscription_intent_is_offered_only_where_it_is_named() {
        use Intent::{Charge, Subscription};
        for (fields, intents) in [
            (&[][..], &[Charge][..]),
            (&[""], &[Charge]),
            (&["paypal/charge"], &[Charge]),
            (&["*/*"], &[Charge]),
            (&["paypal/*"], &[Charge]),
            (&["tempo/charge, stripe/*"], &[Charge]),
            (&["paypal/subscription"], &[Subscription]),
            (
                &["paypal/subscription;q=0.5, */*;q=0.1"],
                &[Subscription, Charge],
            ),
            (
                &["paypal/charge, paypal/subscription"],
                &[Charge, Subscription],
            ),
            (
                &["paypal/charge;q=0.5", "paypal/subscription"],
                &[Subscription, Charge],
            ),
            (&["paypal/charge;q=0, paypal/subscription"], &[Subscription]),
            (&["paypal/charge;q=0"], &[Charge]),
            (&["*/subscription"], &[Charge]),
            (&["paypal/subscription;q=0, paypal/charge"], &[Charge]),
            (&["paypal/*;q=0, */*"], &[Charge]),
            // Malformed: ignored whole.
            (&["paypal/subscription;q=2"], &[Charge]),
            (&["paypal/subscription;q=0.1234"], &[Charge]),
            (&["paypal/subscription;level=1"], &[Charge]),
            (&["paypal/subscription, x"], &[Charge]),
            (&["paypal/subscription, \u{e9}/x"], &[Charge]),
        ] {
            assert_eq!(read(fields), intents, "{fields:?}");
        }
    }

    proptest! {
        #[test]
        fn any_field_leaves_an_intent_to_offer(field in "[ -~]{0,200}") {
            prop_assert!(!read(&[&field]).is_empty());
        }
    }
}

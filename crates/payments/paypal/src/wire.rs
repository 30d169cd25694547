//! Parts that several of PayPal's messages share.

use serde::{Deserialize, Serialize};
use tollgate_money::Usd;

use crate::environment::Environment;
use crate::error::{Error, ErrorKind};

/// The only supported currency.
const USD: &str = "USD";

/// An amount (Orders v2, `money`): a currency and a decimal string.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Money {
    currency_code: String,
    value: String,
}

impl Money {
    /// The amount; `None` for another currency or more than two decimal places.
    pub(crate) fn usd(&self) -> Option<Usd> {
        (self.currency_code == USD)
            .then(|| self.value.parse().ok())
            .flatten()
    }
}

impl From<Usd> for Money {
    fn from(usd: Usd) -> Money {
        Money {
            currency_code: String::from(USD),
            value: usd.to_string(),
        }
    }
}

/// A link of an answer (Orders v2, `link_description`). Found by relation, never by position.
#[derive(Debug, Deserialize)]
pub(crate) struct Link {
    href: String,
    rel: String,
}

/// The approval URL: `payer-action` for an order with a payment source, otherwise `approve`. `None` for a page outside PayPal.
pub(crate) fn approval_url(links: &[Link], environment: &Environment) -> Option<String> {
    ["payer-action", "approve"]
        .iter()
        .find_map(|rel| links.iter().find(|link| link.rel == *rel))
        .map(|link| link.href.clone())
        .filter(|href| environment.is_page(href))
}

/// The id, if it is safe in a URL path.
pub(crate) fn path_segment<'a>(id: &'a str, what: &'static str) -> Result<&'a str, Error> {
    match is_id(id) {
        true => Ok(id),
        false => Err(Error::new(ErrorKind::Gone, what, "the id is malformed")),
    }
}

pub(crate) fn is_id(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dollars_and_cents_are_an_amount() {
        for (currency, value, cents) in [
            ("USD", "20.00", Some(2_000)),
            ("USD", "20", Some(2_000)),
            ("EUR", "20.00", None),
            ("usd", "20.00", None),
            ("USD", "20.001", None),
            ("USD", "1e3", None),
            ("USD", "", None),
        ] {
            let money = Money {
                currency_code: currency.into(),
                value: value.into(),
            };
            assert_eq!(
                money.usd(),
                cents.map(Usd::from_cents),
                "{currency} {value}"
            );
        }
        let money = Money::from(Usd::from_cents(19_900));
        let text = serde_json::to_string(&money).expect("a struct serialises");
        assert_eq!(text, r#"{"currency_code":"USD","value":"199.00"}"#);
    }

    #[test]
    fn the_approval_link_is_found_by_its_relation_and_only_at_paypals() {
        let environment = Environment::at("https://api-m.paypal.com").expect("an address");
        let find = |links: &str| {
            let links: Vec<Link> = serde_json::from_str(links).expect("links");
            approval_url(&links, &environment)
        };
        let page = "https://www.paypal.com/checkoutnow?token=1";
        assert_eq!(
            find(&format!(
                r#"[{{"href":"https://api-m.paypal.com/v2/checkout/orders/1","rel":"self","method":"GET"}},
                    {{"href":"{page}","rel":"payer-action","method":"GET"}}]"#
            )),
            Some(page.to_owned())
        );
        assert_eq!(
            find(&format!(r#"[{{"href":"{page}","rel":"approve"}}]"#)),
            Some(page.to_owned())
        );
        assert_eq!(
            find(r#"[{"href":"https://example.net/","rel":"payer-action"}]"#),
            None
        );
        assert_eq!(find("[]"), None);
    }

    #[test]
    fn an_id_that_is_unsafe_in_a_path_is_rejected() {
        for id in ["", "../x", "a/b", "a?b", "a b", &"x".repeat(65)] {
            assert!(!is_id(id), "{id}");
        }
        assert!(is_id("5O190127TN364715T"));
    }
}

//! Pieces of PayPal's messages that several of them have.

use serde::{Deserialize, Serialize};
use tollgate_money::Usd;

use crate::environment::Environment;

/// The one currency that is bought with.
const USD: &str = "USD";

/// An amount (Orders v2, `money`): a currency and a decimal text.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Money {
    currency_code: String,
    value: String,
}

impl Money {
    /// The amount; `None` when it is of another currency, or more exact than cents.
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

/// A link of an answer (Orders v2, `link_description`). Found by its relation, never by its place.
#[derive(Debug, Deserialize)]
pub(crate) struct Link {
    href: String,
    rel: String,
}

/// Where the buyer agrees: `payer-action` where the order names how it is paid, `approve` where it does not. An address that is not
/// PayPal's own is none.
pub(crate) fn approval(links: &[Link], environment: &Environment) -> Option<String> {
    ["payer-action", "approve"]
        .iter()
        .find_map(|rel| links.iter().find(|link| link.rel == *rel))
        .map(|link| link.href.clone())
        .filter(|href| environment.is_page(href))
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
            approval(&links, &environment)
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
}

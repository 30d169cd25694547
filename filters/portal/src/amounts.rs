//! Prices and credits as the pages show them.

use tollgate_money::{MICROS_PER_CREDIT, Micros, Usd};
use tollgate_pages::format;

/// A dollar amount: `199.00 USD`.
pub(crate) fn usd(price: Usd) -> String {
    let text = price.to_string();
    let (whole, cents) = text.split_once('.').unwrap_or((&text, "00"));
    let whole = whole
        .parse()
        .map_or_else(|_| whole.to_owned(), format::count);
    format!("{whole}.{cents} USD")
}

/// A credit amount, rounded down to two decimals at most: `2,000`, `333.33`.
pub(crate) fn amount(credits: Micros) -> String {
    let whole = credits.get() / MICROS_PER_CREDIT;
    match Micros::from_credits(whole) == Some(credits) {
        true => format::count(whole.unsigned_abs()),
        false => format::credits_2(credits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_formatted_for_people() {
        for (cents, text) in [
            (500, "5.00 USD"),
            (19_900, "199.00 USD"),
            (123_456_789, "1,234,567.89 USD"),
        ] {
            assert_eq!(usd(Usd::from_cents(cents)), text);
        }
        for (micros, text) in [
            (2_000_000_000, "2,000"),
            (333_333_333, "333.33"),
            (1_000_000, "1"),
        ] {
            assert_eq!(amount(Micros::new(micros)), text);
        }
    }
}

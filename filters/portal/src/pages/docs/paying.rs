//! Payment by programs, as far as configured.

use maud::{Markup, html};
use tollgate_pages::parts::{Cell, Column, table};
use tollgate_purchase::plan::{DAYS, PRICE, PaymentState, RetryAction};

use super::protocols;
use super::section::Section;
use crate::amounts::usd;
use crate::context::PortalContext;

pub(super) fn sections(context: &PortalContext) -> Vec<Section> {
    let mut sections = vec![
        Section {
            anchor: "credits",
            heading: "From the balance",
            content: html! {
                p {
                    "Completions are paid from the account’s credits. A 402 with the code " code { "insufficient_credits" }
                    " says how many are needed (" code { "required" } ", missing where the account has none), how many are free (" code { "available" }
                    ") and where a person adds some (" code { "topup_url" } ")."
                }
                p { "People add credits under " a href="/credits" { "Credits" } "." }
            },
        },
        plan(context),
    ];
    if protocols::protocols(context).next().is_some() {
        sections.extend(protocols::sections(context));
        sections.push(answers());
    }
    sections
}

fn plan(context: &PortalContext) -> Section {
    let plan = context.plans.plan();
    let includes = context.plan_benefits().join(", ");
    let columns = ["Protocol", "Price", "Approved by"].map(Column::text);
    let protocols: Vec<Vec<Cell>> = protocols::protocols(context)
        .map(|(protocol, _)| {
            let (paid, agrees) = protocol.terms();
            vec![
                Cell::new(html! { a href={ "#" (protocol.anchor()) } { (protocol.name()) } }),
                Cell::labelled(html! { (paid) }),
                Cell::labelled(html! { (agrees) }),
            ]
        })
        .collect();
    Section {
        anchor: "plan",
        heading: "The plan",
        content: html! {
            @if protocols.is_empty() {
                p { "Programs cannot buy the " (plan.name) " plan here: no payment address is configured." }
            } @else {
                p {
                    (plan.name) " costs " (usd(PRICE)) " a month. Each payment buys: " (includes) ". A program buys it for the account of its credential, which is a key or a token "
                    "with the scope " code { "commerce:subscribe" } ". " code { "GET " (context.address.base_url()) "/commerce/products/" (plan.slug) }
                    " describes it."
                }
                (table("Payment protocols for the plan", &columns, &protocols, None))
                p {
                    "An account has the plan at most once, whatever the protocol. A request for an account that has it is answered 200 with "
                    code { "already_active" } ", and nothing is charged. " (DAYS) " days bought with x402 can be bought again in the last "
                    (plan.renewal_days) " of them, and are added at the end."
                }
            }
        },
    }
}

/// Payment states and retry actions.
fn answers() -> Section {
    let states = PaymentState::ALL
        .iter()
        .map(|state| (state.word(), state.meaning()));
    let actions = RetryAction::ALL
        .iter()
        .map(|action| (action.word(), action.meaning()));
    Section {
        anchor: "answers",
        heading: "What to do next",
        content: html! {
            p {
                "Every response to a purchase has two members that are the same in every protocol: "
                code { "payment_state" } " is the state of the payment, " code { "retry_action" } " is what to do. "
                code { "detail" } " is a description for people."
            }
            (words("payment_state", "Means", states))
            (words("retry_action", "Do", actions))
            p {
                "After a broken connection the outcome is unknown. Send the same request again, with the same payment and the same "
                code { "idempotency_key" } ": the first response is repeated, and nothing is paid twice."
            }
        },
    }
}

fn words<'a>(
    name: &'a str,
    head: &'a str,
    each: impl Iterator<Item = (&'static str, &'static str)>,
) -> Markup {
    let rows: Vec<Vec<Cell>> = each
        .map(|(word, meaning)| {
            vec![
                Cell::new(html! { code { (word) } }),
                Cell::new(html! { (with_code_spans(meaning)) }),
            ]
        })
        .collect();
    table(name, &[Column::text(name), Column::text(head)], &rows, None)
}

/// A sentence with the names between backticks as code.
fn with_code_spans(sentence: &str) -> Markup {
    html! {
        @for (at, part) in sentence.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_payment_state_and_retry_action_is_explained() {
        let page = answers().content.into_string();
        let states = PaymentState::ALL.iter().map(|state| state.word());
        let actions = RetryAction::ALL.iter().map(|action| action.word());
        for word in states.chain(actions) {
            assert!(page.contains(&format!("<code>{word}</code>")), "{word}");
        }
        assert!(!page.contains('`'), "{page}");
    }
}

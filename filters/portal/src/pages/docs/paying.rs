//! How a program pays by itself, as far as this installation lets it.

use maud::html;

use super::Section;
use crate::house::House;

pub(super) fn sections(house: &House) -> Vec<Section> {
    let mut sections = vec![Section {
        anchor: "credits",
        heading: "From the balance",
        inside: html! {
            p {
                "Completions are paid from the account’s credits. A 402 with the code " code { "insufficient_credits" }
                " says how many are needed (" code { "required" } "), how many are free (" code { "available" }
                ") and where a person adds some (" code { "topup_url" } ")."
            }
            p { "People add credits under " a href="/credits" { "Credits" } "." }
        },
    }];
    let routes = &house.facts.payment_paths;
    sections.push(Section {
        anchor: "routes",
        heading: "Addresses",
        inside: html! {
            @if routes.is_empty() {
                p { "Programs cannot buy the Pro plan here at the moment: no address for it is set up." }
            } @else {
                p { "A program that may buy (scope " code { "commerce:subscribe" } ") does so at:" }
                ul.bullets { @for route in routes { li { code { (house.address.base_url()) (route) } } } }
            }
        },
    });
    sections
}

//! What stays, and how changes are told.

use maud::html;

use super::Section;
use crate::house::House;

pub(super) fn sections(house: &House) -> Vec<Section> {
    vec![
        Section {
            anchor: "versions",
            heading: "Versions",
            inside: html! {
                p {
                    "The version stands in the path: " code { (house.address.api()) } " is version 1. Within it, members, codes and models may be "
                    "added; nothing that a program relies on is taken away or changes its meaning. Pass over members that you do not know."
                }
            },
        },
        Section {
            anchor: "deprecation",
            heading: "Deprecation and sunset",
            inside: html! {
                p {
                    "Nothing is deprecated, and no end is set. Should an address be deprecated, its answers say so in the field "
                    code { "Deprecation" } " (RFC 9745) and link to what takes its place; a date in " code { "Sunset" }
                    " (RFC 8594) says from when on it may be gone."
                }
            },
        },
        Section {
            anchor: "credentials",
            heading: "Keys and tokens",
            inside: html! {
                p {
                    "A key works until it is revoked, or until the end that it was made with. A token of an app ends by itself; revoking the app "
                    "ends all of its tokens. Whatever is revoked is refused from the next request, everywhere within 2 seconds. A stream that is "
                    "under way goes on to its end."
                }
            },
        },
        Section {
            anchor: "prices",
            heading: "Prices",
            inside: html! {
                p { "A request is charged at the price that was in force when it began. What was charged is never changed afterwards." }
            },
        },
    ]
}

//! What stands around the inside of a page.

use maud::{Markup, html};
use tollgate_money::Micros;

use crate::format;
use crate::look::Links;

/// The pages of the dashboard that its menu lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// `/`
    Overview,
    /// `/keys`
    Keys,
    /// `/usage`
    Usage,
    /// `/credits`
    Credits,
    /// `/plan`
    Plan,
    /// `/apps`
    Apps,
    /// `/sandbox`
    Sandbox,
    /// `/docs`
    Docs,
}

const ACCOUNT: [Place; 6] = [
    Place::Overview,
    Place::Keys,
    Place::Usage,
    Place::Credits,
    Place::Plan,
    Place::Apps,
];

const BUILD: [Place; 2] = [Place::Sandbox, Place::Docs];

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Overview => "Overview",
            Place::Keys => "API keys",
            Place::Usage => "Usage",
            Place::Credits => "Credits",
            Place::Plan => "Plan",
            Place::Apps => "Connected apps",
            Place::Sandbox => "Sandbox",
            Place::Docs => "Docs",
        }
    }

    /// Its address.
    pub fn path(self) -> &'static str {
        match self {
            Place::Overview => "/",
            Place::Keys => "/keys",
            Place::Usage => "/usage",
            Place::Credits => "/credits",
            Place::Plan => "/plan",
            Place::Apps => "/apps",
            Place::Sandbox => "/sandbox",
            Place::Docs => "/docs",
        }
    }
}

/// Who looks at a page of the dashboard.
#[derive(Clone, Debug)]
pub struct Viewer {
    /// The address they signed in with.
    pub address: String,
    /// What they have free to spend.
    pub available: Micros,
    /// The session's token, for the form that signs out.
    pub csrf: String,
}

/// What stands around the inside of a page.
pub(crate) enum Frame {
    Solo,
    Dashboard(Place, Viewer),
    Open(Place),
}

impl Frame {
    pub(crate) fn around(&self, inside: &Markup, links: &Links<'_>) -> Markup {
        match self {
            Frame::Solo => html! {
                body.solo {
                    (skip())
                    header.crown { (brand(links)) }
                    main #main { div.card { (inside) } }
                    (legal(links))
                }
            },
            Frame::Dashboard(place, viewer) => html! {
                body.board {
                    (skip())
                    header.bar {
                        (brand(links))
                        a.bar-balance href="/credits" {
                            b { (format::credits_2(viewer.available)) } " credits"
                        }
                        (menu_button())
                    }
                    (side(*place, links, &foot(viewer)))
                    main #main { (inside) }
                }
            },
            Frame::Open(place) => html! {
                body.board {
                    (skip())
                    header.bar {
                        (brand(links))
                        a.bar-balance href="/sign-in" { "Sign in" }
                        (menu_button())
                    }
                    (side(*place, links, &html! {
                        p { a.button.small href="/sign-in" { "Sign in" } }
                    }))
                    main #main { (inside) }
                }
            },
        }
    }
}

fn skip() -> Markup {
    html! { a.skip href="#main" { "Skip to content" } }
}

fn menu_button() -> Markup {
    html! {
        button.menu-button type="button" popovertarget="menu" {
            svg aria-hidden="true" viewBox="0 0 16 16" width="16" height="16" {
                path d="M2 4.25h12M2 8h12M2 11.75h12" {}
            }
            "Menu"
        }
    }
}

/// The name, with the logo or the raised barrier.
fn brand(links: &Links<'_>) -> Markup {
    html! {
        a.brand href="/" {
            @match links.logo {
                Some(logo) => img.logo src=(logo) alt=(links.brand.name);,
                None => {
                    svg.mark aria-hidden="true" viewBox="0 0 28 28" width="28" height="28" {
                        rect.mark-ground width="28" height="28" rx="7" {}
                        path.mark-line d="M8 20.5h13M9.5 20v-6.5l10-5.5" {}
                    }
                    span { (links.brand.name) }
                }
            }
        }
    }
}

/// The side column, which on a phone is the menu that the bar opens.
fn side(current: Place, links: &Links<'_>, foot: &Markup) -> Markup {
    let group = |name: &str, id: &str, places: &[Place]| {
        html! {
            p.group id=(id) { (name) }
            ul aria-labelledby=(id) {
                @for &place in places {
                    li {
                        a href=(place.path()) aria-current=[(place == current).then_some("page")] { (place.name()) }
                    }
                }
            }
        }
    };
    html! {
        aside.side #menu popover {
            div.side-brand { (brand(links)) }
            nav aria-label="Main" {
                (group("Account", "menu-account", &ACCOUNT))
                (group("Build", "menu-build", &BUILD))
            }
            div.foot { (foot) }
        }
    }
}

fn foot(viewer: &Viewer) -> Markup {
    html! {
        p.foot-label { "Balance" }
        p.foot-balance { b { (format::credits_2(viewer.available)) } " credits" }
        p { a.button.small href="/credits/add" { "Add credits" } }
        p.foot-who { (format::line(&viewer.address)) }
        form method="post" action="/sign-out" {
            (crate::parts::csrf(&viewer.csrf))
            button.link type="submit" { "Sign out" }
        }
        p.foot-everywhere { a href="/sign-out/everywhere" { "Sign out everywhere" } }
    }
}

/// Terms, privacy and help, under a card.
fn legal(links: &Links<'_>) -> Markup {
    let brand = links.brand;
    let support = brand.support.as_ref().map(|support| {
        if support.contains('@') {
            format!("mailto:{support}")
        } else {
            support.clone()
        }
    });
    let all = [
        (brand.terms_url.clone(), "Terms"),
        (brand.privacy_url.clone(), "Privacy"),
        (support, "Help"),
    ];
    if all.iter().all(|(address, _)| address.is_none()) {
        return html! {};
    }
    html! {
        footer.legal {
            @for (address, name) in &all {
                @if let Some(address) = address {
                    a href=(address) { (name) }
                }
            }
        }
    }
}

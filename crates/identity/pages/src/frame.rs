//! Page layouts: card, dashboard, public documentation.

use maud::{Markup, html};
use tollgate_money::Micros;

use crate::format;
use crate::renderer::Links;

/// Navigation entries of the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NavItem {
    /// `/`
    Overview,
    Keys,
    Usage,
    Credits,
    Plan,
    Apps,
    Sandbox,
    Docs,
}

const ACCOUNT: [NavItem; 6] = [
    NavItem::Overview,
    NavItem::Keys,
    NavItem::Usage,
    NavItem::Credits,
    NavItem::Plan,
    NavItem::Apps,
];

const BUILD: [NavItem; 2] = [NavItem::Sandbox, NavItem::Docs];

impl NavItem {
    fn name(self) -> &'static str {
        match self {
            NavItem::Overview => "Overview",
            NavItem::Keys => "API keys",
            NavItem::Usage => "Usage",
            NavItem::Credits => "Credits",
            NavItem::Plan => "Plan",
            NavItem::Apps => "Connected apps",
            NavItem::Sandbox => "Sandbox",
            NavItem::Docs => "Docs",
        }
    }

    /// Path of the page.
    pub fn path(self) -> &'static str {
        match self {
            NavItem::Overview => "/",
            NavItem::Keys => "/keys",
            NavItem::Usage => "/usage",
            NavItem::Credits => "/credits",
            NavItem::Plan => "/plan",
            NavItem::Apps => "/apps",
            NavItem::Sandbox => "/sandbox",
            NavItem::Docs => "/docs",
        }
    }
}

/// The signed-in account in the view of the dashboard.
#[derive(Clone, Debug)]
pub struct Viewer {
    /// The sign-in address.
    pub address: String,
    /// The available balance.
    pub available: Micros,
    /// Whether credits can be bought here.
    pub sells_credits: bool,
    /// The CSRF token of the session, for the sign-out form.
    pub csrf: String,
    /// What the account has to act on, above the content of every page.
    pub notice: Option<Markup>,
}

/// Page layouts: card, dashboard, public documentation.
pub(crate) enum Frame {
    Card,
    Dashboard(NavItem, Viewer),
    Public(NavItem),
}

impl Frame {
    pub(crate) fn wrap(&self, content: &Markup, links: &Links<'_>) -> Markup {
        match self {
            Frame::Card => html! {
                body.solo {
                    (skip())
                    header.crown { (brand(links)) }
                    main #main { div.card { (content) } }
                    (legal_links(links))
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
                    (side(*place, links, &footer(viewer)))
                    main #main {
                        @if let Some(notice) = &viewer.notice { (notice) }
                        (content)
                    }
                }
            },
            Frame::Public(place) => html! {
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
                    main #main { (content) }
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

/// The brand name with its logo or the default icon.
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

/// The side column; on a phone, the menu of the top bar.
fn side(current: NavItem, links: &Links<'_>, footer: &Markup) -> Markup {
    let group = |name: &str, id: &str, places: &[NavItem]| {
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
            div.foot { (footer) }
        }
    }
}

fn footer(viewer: &Viewer) -> Markup {
    html! {
        p.foot-label { "Balance" }
        p.foot-balance { b { (format::credits_2(viewer.available)) } " credits" }
        @if viewer.sells_credits { p { a.button.small href="/credits/add" { "Add credits" } } }
        p.foot-who { (format::single_line(&viewer.address)) }
        form method="post" action="/sign-out" {
            (crate::parts::csrf(&viewer.csrf))
            button.link type="submit" { "Sign out" }
        }
        p.foot-everywhere { a href="/sign-out/everywhere" { "Sign out everywhere" } }
    }
}

/// Links to terms, privacy and support, below a card.
fn legal_links(links: &Links<'_>) -> Markup {
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

//! `/docs`: how to use this installation. Readable signed out.
//!
//! What can be made from what the code uses is made from it: codes of errors, limits, models, addresses.

mod buying;
mod errors;
mod lifecycle;
mod limits;
mod paying;
mod start;

use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_pages::{Page, Place, Script, parts};

use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// One page of the documentation.
struct Chapter {
    /// Its part of the address; empty for the first.
    path: &'static str,
    title: &'static str,
    /// Its sections: the anchor, the heading, and what stands there.
    sections: fn(&House) -> Vec<Section>,
}

/// One thing with a heading and an address of its own.
struct Section {
    anchor: &'static str,
    heading: &'static str,
    inside: Markup,
}

const CHAPTERS: [Chapter; 5] = [
    Chapter {
        path: "",
        title: "Quick start",
        sections: start::sections,
    },
    Chapter {
        path: "errors",
        title: "Errors",
        sections: errors::sections,
    },
    Chapter {
        path: "limits",
        title: "Limits",
        sections: limits::sections,
    },
    Chapter {
        path: "paying",
        title: "Paying from a program",
        sections: paying::sections,
    },
    Chapter {
        path: "lifecycle",
        title: "Lifecycle",
        sections: lifecycle::sections,
    },
];

pub(crate) async fn first(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    show(house, visit, &CHAPTERS[0])
}

pub(crate) async fn chapter(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let path = visit.params.get("chapter");
    let found = CHAPTERS[1..].iter().find(|chapter| chapter.path == path);
    show(house, visit, found.ok_or(Trouble::NotFound)?)
}

fn show(house: &House, visit: &Visit, chapter: &Chapter) -> Result<Reply, Trouble> {
    let sections = (chapter.sections)(house);
    let inside = html! {
        (parts::heading(chapter.title, None))
        div.docs {
            nav.docs-contents aria-label="Docs" {
                ul {
                    @for one in &CHAPTERS {
                        @let is_here = one.path == chapter.path;
                        li {
                            a href=(address(one)) aria-current=[is_here.then_some("page")] { (one.title) }
                            @if is_here {
                                ul {
                                    @for section in &sections { li { a href={ "#" (section.anchor) } { (section.heading) } } }
                                }
                            }
                        }
                    }
                }
            }
            div.docs-text {
                @for section in &sections {
                    section.panel.prose aria-labelledby=(section.anchor) {
                        h2 id=(section.anchor) {
                            a.anchor href={ "#" (section.anchor) } { (section.heading) }
                        }
                        (section.inside)
                    }
                }
            }
        }
    };
    let page = match visit.session {
        Some(_) => Page::framed(chapter.title, Place::Docs, visit.viewer(house)?, inside),
        None => Page::open(chapter.title, Place::Docs, inside),
    };
    Ok(visit.page(house, &page.with_script(Script::Copy)))
}

fn address(chapter: &Chapter) -> String {
    match chapter.path {
        "" => "/docs".to_owned(),
        path => format!("/docs/{path}"),
    }
}

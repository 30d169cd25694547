//! `/docs`: how to use this installation. Readable signed out.
//!
//! What can be made from what the code uses is made from it: codes of errors, limits, models, addresses.

mod errors;
mod lifecycle;
mod limits;
mod paying;
mod protocols;
mod start;

use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_pages::{Page, Place, Script, parts};

use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

/// One page of the documentation.
struct Chapter {
    /// Its part of the address; empty for the first.
    path: &'static str,
    title: &'static str,
    /// Its sections: the anchor, the heading, and what stands there.
    sections: fn(&PortalContext) -> Vec<Section>,
}

/// One thing with a heading and an address of its own.
struct Section {
    anchor: &'static str,
    heading: &'static str,
    content: Markup,
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

pub(crate) async fn first(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    show(context, request, &CHAPTERS[0])
}

pub(crate) async fn chapter(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let path = request.params.get("chapter");
    let found = CHAPTERS[1..].iter().find(|chapter| chapter.path == path);
    show(context, request, found.ok_or(PageError::NotFound)?)
}

fn show(
    context: &PortalContext,
    request: &PageRequest,
    chapter: &Chapter,
) -> Result<Reply, PageError> {
    let sections = (chapter.sections)(context);
    let content = html! {
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
                        (section.content)
                    }
                }
            }
        }
    };
    let page = match request.session {
        Some(_) => Page::framed(
            chapter.title,
            Place::Docs,
            request.viewer(context)?,
            content,
        ),
        None => Page::open(chapter.title, Place::Docs, content),
    };
    Ok(request.page(context, &page.with_script(Script::Copy)))
}

fn address(chapter: &Chapter) -> String {
    match chapter.path {
        "" => "/docs".to_owned(),
        path => format!("/docs/{path}"),
    }
}

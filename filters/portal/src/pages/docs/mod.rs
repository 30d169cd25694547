//! `/docs`: documentation of this installation, readable without signing in.
//!
//! Error codes, limits, models and URLs are generated from the configuration and from tables of the code.

mod errors;
mod lifecycle;
mod limits;
mod markdown;
mod paying;
mod protocols;
mod section;
mod start;

use http::StatusCode;
use maud::html;
use tollgate_filter::Reply;
use tollgate_pages::{NavItem, Page, Script, parts};

use self::section::Section;
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::public_pages::make_public;

/// One chapter of the documentation.
struct Chapter {
    /// Path segment; empty for the first chapter.
    path: &'static str,
    title: &'static str,
    /// Sections: anchor, heading and body.
    sections: fn(&PortalContext) -> Vec<Section>,
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
    if let Some(name) = path.strip_suffix(".md") {
        let found = CHAPTERS.iter().find(|chapter| file_name(chapter) == name);
        return Ok(text(context, found.ok_or(PageError::NotFound)?));
    }
    let found = CHAPTERS[1..].iter().find(|chapter| chapter.path == path);
    show(context, request, found.ok_or(PageError::NotFound)?)
}

/// A chapter as Markdown, for programs.
fn text(context: &PortalContext, chapter: &Chapter) -> Reply {
    let base = context.address.base_url();
    let mut text = format!("# {}\n", chapter.title);
    for section in (chapter.sections)(context) {
        text += &format!("\n## {}\n\n", section.heading);
        text += &markdown::of_html(&section.content.into_string(), base);
    }
    let media_type = "text/markdown; charset=utf-8";
    make_public(Reply::of(StatusCode::OK, media_type, text.into()))
}

/// The name of a chapter's Markdown, without its ending.
fn file_name(chapter: &Chapter) -> &'static str {
    match chapter.path {
        "" => "start",
        path => path,
    }
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
    let show = |page: Page| request.page(context, &page.with_script(Script::Copy));
    Ok(match request.session {
        Some(_) => {
            let viewer = request.viewer(context)?;
            show(Page::dashboard(
                chapter.title,
                NavItem::Docs,
                viewer,
                content,
            ))
        }
        None => make_public(show(Page::public(chapter.title, NavItem::Docs, content))),
    })
}

fn address(chapter: &Chapter) -> String {
    match chapter.path {
        "" => "/docs".to_owned(),
        path => format!("/docs/{path}"),
    }
}

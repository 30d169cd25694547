//! A page before rendering: title, layout, content, scripts.

use maud::{DOCTYPE, Markup, html};

use crate::frame::{Frame, NavItem, Viewer};
use crate::renderer::Links;

/// A page: title, layout and content.
///
/// The content contains the only `h1`; in dashboard pages [`crate::parts::heading`] renders it.
pub struct Page {
    title: String,
    frame: Frame,
    content: Markup,
    scripts: Vec<Script>,
    form_action: Option<String>,
    refused: bool,
    reload_secs: Option<u32>,
}

/// Scripts: progressive enhancement. Every page works without scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Copy buttons: those with `data-copy`, the id of the element to copy, shown once the script runs.
    Copy,
    /// The sandbox: calls the API and streams the answer.
    Sandbox,
}

impl Script {
    pub(crate) const ALL: [Script; 2] = [Script::Copy, Script::Sandbox];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Script::Copy => "copy",
            Script::Sandbox => "sandbox",
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Script::Copy => include_str!("assets/copy.js"),
            Script::Sandbox => include_str!("assets/sandbox.js"),
        }
    }
}

impl Page {
    /// A single card without navigation: sign-in, decisions, messages.
    pub fn card(title: impl Into<String>, content: Markup) -> Page {
        Page::new(title.into(), Frame::Card, content)
    }

    /// A dashboard page, for a signed-in account.
    pub fn dashboard(
        title: impl Into<String>,
        place: NavItem,
        viewer: Viewer,
        content: Markup,
    ) -> Page {
        Page::new(title.into(), Frame::Dashboard(place, viewer), content)
    }

    /// A public page with the side column.
    pub fn public(title: impl Into<String>, place: NavItem, content: Markup) -> Page {
        Page::new(title.into(), Frame::Public(place), content)
    }

    fn new(title: String, frame: Frame, content: Markup) -> Page {
        Page {
            title,
            frame,
            content,
            scripts: Vec::new(),
            form_action: None,
            refused: false,
            reload_secs: None,
        }
    }

    /// Adds a script.
    #[must_use]
    pub fn with_script(mut self, script: Script) -> Page {
        self.scripts.push(script);
        self
    }

    /// Permits a redirect of this page's form to one more origin: scheme, host and port.
    #[must_use]
    pub fn allow_form_action(self, origin: impl Into<String>) -> Page {
        Page {
            form_action: Some(origin.into()),
            ..self
        }
    }

    /// Marks the title as an error, for a rejected form.
    #[must_use]
    pub fn with_error_title(self) -> Page {
        Page {
            refused: true,
            ..self
        }
    }

    /// Makes the browser reload the page after a number of seconds.
    #[must_use]
    pub fn reload_after(self, secs: u32) -> Page {
        Page {
            reload_secs: Some(secs),
            ..self
        }
    }

    pub(crate) fn has_script(&self) -> bool {
        !self.scripts.is_empty()
    }

    pub(crate) fn form_action(&self) -> Option<&str> {
        self.form_action.as_deref()
    }

    pub(crate) fn reload_secs(&self) -> Option<u32> {
        self.reload_secs
    }

    pub(crate) fn write(&self, links: &Links<'_>) -> Markup {
        let brand = links.brand;
        let error = if self.refused { "Error: " } else { "" };
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    title { (error) (self.title) " – " (brand.name) }
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    @for sheet in links.sheets {
                        link rel="stylesheet" href=(sheet);
                    }
                    link rel="icon" href=(links.icon);
                    @for script in &self.scripts {
                        script src=(links.script(*script)) defer {}
                    }
                }
                (self.frame.wrap(&self.content, links))
            }
        }
    }
}

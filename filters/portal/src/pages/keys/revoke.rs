//! `/keys/{id}/revoke`: confirmation page and revocation.

use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::{Key, revoke_key};
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{NavItem, Page, format};

use super::{Keys, name};
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let key = find(context, request).await?;
    let viewer = request.viewer(context)?;
    let name = name(&key);
    let title = format!("Revoke {name}?");
    let content = html! {
        (parts::heading(&title, None))
        section.panel.narrow-panel {
            @if key.revoked_at.is_some() {
                (parts::notice(Tone::Info, &format!("Key {name} is revoked already."), html! {
                    a href="/keys" { "Back to your keys" }
                }))
            } @else {
                p {
                    "Programs that use it are refused from their next request, everywhere within 2 seconds. This cannot be undone. "
                    @match key.used_at {
                        Some(at) => { "Last used " (format::relative_time(at, request.now)) "." }
                        None => "It was never used.",
                    }
                }
                form method="post" {
                    (parts::csrf(&viewer.csrf))
                    div.actions {
                        (parts::destroy(&format!("Revoke key {name}")))
                        (parts::link_button("/keys", "Keep it", false))
                    }
                }
            }
        }
    };
    let page = Page::dashboard(title, NavItem::Keys, viewer, content);
    Ok(request.page(context, &page))
}

pub(crate) async fn revoke(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let key = find(context, request).await?;
    if key.revoked_at.is_none() {
        let revoked = revoke_key(&*context.store, key.id, request.now).await;
        revoked.map_err(|error| PageError::Store(Box::new(error)))?;
    }
    Ok(request.redirect(context, &format!("/keys?revoked={}", key.id)))
}

/// The key of the path; keys of other accounts are not found.
async fn find(context: &PortalContext, request: &PageRequest) -> Result<Key, PageError> {
    let id = request
        .params
        .get("id")
        .parse()
        .map_err(|_| PageError::NotFound)?;
    let keys = Keys::read(context, request.require_session()?.account, request.now).await?;
    keys.find(id).cloned().ok_or(PageError::NotFound)
}

//! `/keys/{id}/revoke`: names the key, what follows, and asks once.

use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::{Key, revoke_key};
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{Page, Place, format};

use super::{Keys, name};
use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let key = find(house, visit).await?;
    let viewer = visit.viewer(house)?;
    let name = name(&key);
    let title = format!("Revoke {name}?");
    let inside = html! {
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
                        Some(at) => { "Last used " (format::moment(at, visit.now)) "." }
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
    let page = Page::framed(title, Place::Keys, viewer, inside);
    Ok(visit.page(house, &page))
}

pub(crate) async fn revoke(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let key = find(house, visit).await?;
    if key.revoked_at.is_none() {
        let revoked = revoke_key(&*house.store, key.id, visit.now).await;
        revoked.map_err(|error| Trouble::Store(Box::new(error)))?;
    }
    Ok(visit.go(house, &format!("/keys?revoked={}", key.id)))
}

/// The key of the address, among those of whoever is signed in: somebody else's is not there.
async fn find(house: &House, visit: &Visit) -> Result<Key, Trouble> {
    let id = visit
        .params
        .get("id")
        .parse()
        .map_err(|_| Trouble::NotFound)?;
    let keys = Keys::read(house, visit.signed_in()?.account, visit.now).await?;
    keys.find(id).cloned().ok_or(Trouble::NotFound)
}

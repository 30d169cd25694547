//! `/keys/{id}/edit`: changes name, end, models and spending cap of a key.

use std::sync::Arc;

use maud::html;
use tollgate_clock::Timestamp;
use tollgate_filter::Reply;
use tollgate_identity::{ChangeKeyError, Key, KeyChange, KeyId, change_key_as};
use tollgate_money::{AccountId, CapPeriod, Micros, SpendingCap};
use tollgate_pages::parts::{self, Problem, Tone};
use tollgate_pages::{NavItem, Page, format};
use tollgate_store::reading;

use super::{Keys, fields, is_ended, last_moment, name};
use crate::context::PortalContext;
use crate::form::Form;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::usage::start_of_month;

/// The form, with the values of the key or those of the draft stored before the identity check.
pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let (key, _) = find(context, request).await?;
    let draft = request.take_draft(context).await?;
    let form = draft.unwrap_or_else(|| form_of(&key));
    let page = page(context, request, &key, &form, &[])?;
    Ok(request.page(context, &page))
}

pub(crate) async fn change(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let (key, keys) = find(context, request).await?;
    let session = request.require_session()?.clone();
    let now = request.now;
    let form = std::mem::take(&mut request.form);
    let mut problems = Vec::new();
    let label = fields::name(&form, &mut problems);
    if let Some(label) = label
        && key.label.as_deref() != Some(label)
        && keys.is_taken(label, now)
    {
        problems.push(fields::taken(label));
    }
    let expires_at = end(&key, &form, now, &mut problems);
    let spending_cap = fields::cap(&form, &mut problems);
    let models = fields::models(&form, &offered(context, &key));
    let (Some(label), true) = (label, problems.is_empty()) else {
        let page = page(context, request, &key, &form, &problems)?;
        return Ok(request.refused(context, page));
    };
    let change = KeyChange {
        label: label.to_owned(),
        models,
        spending_cap,
        spent: spent(context, session.account, key.id, spending_cap, now).await?,
        expires_at,
        at: now,
    };
    // The version shown by the form; a missing version matches no stored version.
    let version = form.text("version").parse().unwrap_or(-1);
    match change_key_as(&*context.store, key.id, version, change, &session).await {
        Ok(()) => {
            tracing::info!(key = %key.id, account = %session.account, request = request.request_id, "key changed by its owner");
            Ok(request.redirect(context, &format!("/keys?changed={}", key.id)))
        }
        Err(ChangeKeyError::Conflict(_)) => {
            let (key, _) = find(context, request).await?;
            let page = changed_page(context, request, &key)?;
            Ok(request.refused(context, page))
        }
        Err(ChangeKeyError::SignedOut) => Err(PageError::SignedOut),
        Err(ChangeKeyError::Store { source, .. }) => Err(source.into()),
        // Other errors were excluded by validation.
        Err(error) => Err(PageError::Internal(Box::new(error))),
    }
}

/// The key of the path among the account's keys; keys of other accounts and ended keys are not found.
async fn find(context: &PortalContext, request: &PageRequest) -> Result<(Key, Keys), PageError> {
    let id = request.params.get("id").parse();
    let id: KeyId = id.map_err(|_| PageError::NotFound)?;
    let keys = Keys::read(context, request.require_session()?.account, request.now).await?;
    let key = keys.find(id).cloned().ok_or(PageError::NotFound)?;
    match can_change(&key, request.now) {
        true => Ok((key, keys)),
        false => Err(PageError::NotFound),
    }
}

/// Whether a key can be changed: an ended key is final.
pub(super) fn can_change(key: &Key, now: Timestamp) -> bool {
    key.revoked_at.is_none() && !is_ended(key, now)
}

/// Spending already counted against a cap.
async fn spent(
    context: &PortalContext,
    account: AccountId,
    key: KeyId,
    cap: Option<SpendingCap>,
    now: Timestamp,
) -> Result<Micros, PageError> {
    let Some(cap) = cap else {
        return Ok(Micros::ZERO);
    };
    let since = match cap.period {
        CapPeriod::Month => start_of_month(now),
        CapPeriod::Total => Timestamp::MIN,
    };
    let spent = reading(&context.store, move |read| {
        read.credential_spent(account, key.0, since)
    });
    Ok(spent.await?)
}

/// The models to choose from: the models of this installation, and models of the key no longer on sale.
fn offered(context: &PortalContext, key: &Key) -> Vec<Arc<str>> {
    let mut models = fields::sold(context);
    let own = key.models.iter().flat_map(|models| models.iter());
    let gone: Vec<_> = own.filter(|model| !models.contains(model)).collect();
    models.extend(gone.into_iter().cloned());
    models
}

/// The last day of a key; empty for a key without an end.
fn last_day(key: &Key) -> String {
    let last = key.expires_at.map(last_moment);
    last.map_or_else(String::new, format::day)
}

/// The end by the form. The shown day stands for the key's end, possibly within that day.
fn end(key: &Key, form: &Form, now: Timestamp, problems: &mut Vec<Problem>) -> Option<Timestamp> {
    match form.text("ends_on") {
        "" => None,
        day if day == last_day(key) => key.expires_at,
        day => fields::last_day(day, now, problems),
    }
}

fn form_of(key: &Key) -> Form {
    let mut values = vec![
        ("name", key.label.as_deref().unwrap_or_default().to_owned()),
        ("version", key.version.to_string()),
        ("ends_on", last_day(key)),
    ];
    if let Some(cap) = key.spending_cap {
        let period = match cap.period {
            CapPeriod::Total => "total",
            CapPeriod::Month => "month",
        };
        values.push(("cap", cap.max.to_string()));
        values.push(("cap_period", period.to_owned()));
    }
    let models = key.models.iter().flat_map(|models| models.iter());
    values.extend(models.map(|model| ("models", model.to_string())));
    Form::of(values)
}

fn page(
    context: &PortalContext,
    request: &PageRequest,
    key: &Key,
    form: &Form,
    problems: &[Problem],
) -> Result<Page, PageError> {
    let viewer = request.viewer(context)?;
    let title = format!("Change {}", name(key));
    let content = html! {
        (parts::problems(problems))
        (parts::heading(&title, None))
        form.panel.stack.narrow-panel method="post" action={ "/keys/" (key.id) "/edit" } {
            (parts::csrf(&viewer.csrf))
            input type="hidden" name="version" value=(form.text("version"));
            (fields::name_field(form, problems))
            (fields::end_field(form, "The last day (UTC) on which it works. Empty for a key without an end.", problems))
            (fields::limit_fields(form, &offered(context, key), problems))
            p.second { "What the key may call cannot be changed: create another key for that. A change counts from the next request." }
            (parts::submit("Save changes", true))
            p { a href="/keys" { "Keep it as it is" } }
        }
    };
    Ok(Page::dashboard(title, NavItem::Keys, viewer, content))
}

/// The page for a form filled from outdated values.
fn changed_page(
    context: &PortalContext,
    request: &PageRequest,
    key: &Key,
) -> Result<Page, PageError> {
    let viewer = request.viewer(context)?;
    let title = format!("Change {}", name(key));
    let content = html! {
        (parts::notice(Tone::Bad, "This key was changed meanwhile, so nothing was saved.", html! {
            "Open it again to see its current values, and change those."
        }))
        (parts::heading(&title, None))
        section.panel.narrow-panel {
            div.actions {
                (parts::link_button(&format!("/keys/{}/edit", key.id), "Open it again", true))
                (parts::link_button("/keys", "Back to your keys", false))
            }
        }
    };
    Ok(Page::dashboard(title, NavItem::Keys, viewer, content))
}

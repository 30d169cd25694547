//! `/keys/create`: creates a key and shows its secret once.

use maud::{Markup, html};
use secrecy::ExposeSecret;
use tollgate_filter::{Reply, Resources, Scope, Scopes};
use tollgate_identity::{CreateKeyError, CreatedKey, KeyId, NewKey, create_key_as};
use tollgate_pages::parts::{self, Choice, Problem, Tone};
use tollgate_pages::{NavItem, Page, Script};

use super::{Keys, OPERATIONS, fields, list};
use crate::context::PortalContext;
use crate::form::Form;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::samples::ChatExample;

/// The form, empty or from the draft stored before the identity check.
pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let draft = request.take_draft(context).await?;
    // The draft only fills the form; the user submits it again.
    let form = draft.unwrap_or_default();
    let id = KeyId::draw(request.now, context.draw());
    let page = page(context, request, &form, id, &[])?;
    Ok(request.page(context, &page))
}

pub(crate) async fn create(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let session = request.require_session()?.clone();
    let account = session.account;
    let form = std::mem::take(&mut request.form);
    // The form carries the key id, an idempotency key: a form submitted twice creates one key.
    let id: Option<KeyId> = form.text("id").parse().ok();
    let id = id.unwrap_or_else(|| KeyId::draw(request.now, context.draw()));
    let keys = Keys::read(context, account, request.now).await?;
    if keys.find(id).is_some() {
        return already_created_page(context, request, &keys);
    }
    let mut problems = Vec::new();
    let label = fields::name(&form, &mut problems);
    if label.is_some_and(|label| keys.is_taken(label, request.now)) {
        problems.push(fields::taken(form.text("name")));
    }
    let key = NewKey {
        account,
        label: label.unwrap_or_default().to_owned(),
        resources: Resources::API.bits(),
        scopes: scopes(&form, &mut problems).bits(),
        expires_at: fields::end(&form, request.now, &mut problems),
        models: fields::models(&form, &fields::sold(context)),
        spending_cap: fields::cap(&form, &mut problems),
        created_at: request.now,
    };
    if !problems.is_empty() {
        let page = page(context, request, &form, id, &problems)?;
        return Ok(request.refused(context, page));
    }
    let (form, draw) = (&context.key_form, context.draw());
    match create_key_as(&*context.store, form, id, key, &session, draw).await {
        Ok(made) => created_page(context, request, &made).await,
        // The same form submitted twice concurrently.
        Err(CreateKeyError::AlreadyMade(_)) => {
            let keys = Keys::read(context, account, request.now).await?;
            already_created_page(context, request, &keys)
        }
        Err(CreateKeyError::SignedOut) => Err(PageError::SignedOut),
        Err(CreateKeyError::Store(error)) => Err(error.into()),
        // Other errors were excluded by validation.
        Err(error) => Err(PageError::Internal(Box::new(error))),
    }
}

/// The permitted operations.
fn scopes(form: &Form, problems: &mut Vec<Problem>) -> Scopes {
    let mut scopes = Scopes::NONE;
    for (scope, value, ..) in OPERATIONS {
        if form.all("may").any(|chosen| chosen == value) {
            scopes = scopes.with(scope);
        }
    }
    if scopes == Scopes::NONE {
        let text = "Choose at least one thing that the key may call.";
        problems.push(Problem::new("may", text));
    }
    scopes
}

/// The form.
fn page(
    context: &PortalContext,
    request: &PageRequest,
    form: &Form,
    id: KeyId,
    problems: &[Problem],
) -> Result<Page, PageError> {
    let viewer = request.viewer(context)?;
    let is_new = form.find("name").is_none();
    let may: Vec<_> = OPERATIONS
        .iter()
        .map(|(scope, value, _, words)| {
            // Whether a key can spend money by itself is decided by the person, not by the page.
            let is_preselected = is_new && *scope != Scope::CommerceSubscribe;
            let chosen = is_preselected || form.all("may").any(|chosen| chosen == *value);
            (*value, html! { (words) }, None, chosen)
        })
        .collect();
    let may = Choice {
        name: "may",
        legend: "May call",
        hint: None,
        options: may,
        several: true,
    };
    let content = html! {
        (parts::problems(problems))
        (parts::heading("Create a key", None))
        form.panel.stack.narrow-panel method="post" action="/keys/create" {
            (parts::csrf(&viewer.csrf))
            input type="hidden" name="id" value=(id);
            (fields::name_field(form, problems))
            (may.show(problems))
            (fields::end_fields(form, problems))
            (fields::limit_fields(form, &fields::sold(context), problems))
            (parts::submit("Create key", true))
        }
    };
    Ok(Page::dashboard(
        "Create a key",
        NavItem::Keys,
        viewer,
        content,
    ))
}

/// The only page that contains the secret.
async fn created_page(
    context: &PortalContext,
    request: &PageRequest,
    made: &CreatedKey,
) -> Result<Reply, PageError> {
    let viewer = request.viewer(context)?;
    let keys = Keys::read(context, request.require_session()?.account, request.now).await?;
    let name = keys.find(made.id).map(super::name).unwrap_or_default();
    let content = html! {
        (parts::heading("API keys", Some(parts::link_button("/keys/create", "Create key", false))))
        (secret_panel(context, &name, made))
        (list(&keys, Some(made.id), request.now))
    };
    let page =
        Page::dashboard("API keys", NavItem::Keys, viewer, content).with_script(Script::Copy);
    Ok(request.page(context, &page))
}

fn secret_panel(context: &PortalContext, name: &str, made: &CreatedKey) -> Markup {
    let model = context
        .settings
        .installation
        .catalog
        .default_model()
        .or(context.settings.installation.catalog.models().first());
    let variable = context.address.variable();
    let example =
        ChatExample::hello(model.map_or("MODEL", |model| &model.id)).curl(&context.address);
    let terminal = format!(
        "# paste the key, press Enter; it is not shown\nread -rs {variable} && export {variable}\n\n{example}"
    );
    html! {
        section.panel.ready role="status" aria-labelledby="ready" {
            h2 #ready { (parts::tick()) "Key “" (name) "” is ready" }
            p.second {
                b { "Copy it now. This is the only time it is shown." }
                " We store a fingerprint, not the key, so it cannot be shown again. If you lose it, revoke it and create another."
            }
            div.field {
                label for="secret" { "Secret key" }
                div.secret {
                    textarea #secret readonly rows="1" spellcheck="false" autocomplete="off" aria-describedby="secret-hint" {
                        (made.secret.expose_secret())
                    }
                    button.button.filled type="button" hidden data-copy="secret" { "Copy key" }
                }
                div.hint #secret-hint { "Keep it in an environment variable or a secret store, never in a web page, a URL or a repository." }
            }
            details {
                summary { "Try it in a terminal" }
                (parts::code("terminal", "Try it in a terminal", &terminal))
            }
            p { (parts::link_button("/keys", "I have saved the key", false)) }
        }
    }
}

/// The page for a form that already created its key.
fn already_created_page(
    context: &PortalContext,
    request: &PageRequest,
    keys: &Keys,
) -> Result<Reply, PageError> {
    let viewer = request.viewer(context)?;
    let content = html! {
        (parts::notice(Tone::Info, "This key was already created.", html! {
            "Its secret was shown once; if it is lost, revoke it and create another."
        }))
        (parts::heading("API keys", Some(parts::link_button("/keys/create", "Create key", true))))
        (list(keys, None, request.now))
    };
    let page = Page::dashboard("API keys", NavItem::Keys, viewer, content);
    Ok(request.page(context, &page))
}

//! `/keys/create`: creates a key and shows its secret once.

use std::sync::Arc;

use maud::{Markup, html};
use secrecy::ExposeSecret;
use tollgate_clock::Timestamp;
use tollgate_filter::{Reply, Resources, Scopes};
use tollgate_identity::{CreateKeyError, CreatedKey, KeyId, NewKey, create_key_as};
use tollgate_money::{CapPeriod, Micros, SpendingCap};
use tollgate_pages::format;
use tollgate_pages::parts::{self, Choice, Field, FieldKind, Problem, Tone};
use tollgate_pages::{NavItem, Page, Script};

use super::{Keys, OPERATIONS, list};
use crate::context::PortalContext;
use crate::form::Form;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::samples::ChatExample;
use crate::usage::{DAY, Period};

const NAME_CHARS_MAX: usize = 80;

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
    // The form carries the key id, an idempotency key: submitted twice, it creates one key.
    let id: Option<KeyId> = form.text("id").parse().ok();
    let id = id.unwrap_or_else(|| KeyId::draw(request.now, context.draw()));
    let keys = Keys::read(context, account, request.now).await?;
    if keys.find(id).is_some() {
        return already_created_page(context, request, &keys);
    }
    let mut problems = Vec::new();
    let fields = KeyForm::read(context, &form, request.now, &mut problems);
    if fields
        .name
        .is_some_and(|name| keys.is_taken(name, request.now))
    {
        let name = format::single_line(form.text("name"));
        problems.insert(
            0,
            Problem::new("name", format!("You already have a key called {name}.")),
        );
    }
    if !problems.is_empty() {
        let page = page(context, request, &form, id, &problems)?;
        return Ok(request.refused(context, page));
    }
    let key = NewKey {
        account,
        label: fields.name.unwrap_or_default().to_owned(),
        resources: Resources::API.bits(),
        scopes: fields.scopes.bits(),
        models: fields.models,
        spending_cap: fields.cap,
        expires_at: fields.expires_at,
        created_at: request.now,
    };
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

/// The validated fields of the form.
#[derive(Debug, Default)]
struct KeyForm<'a> {
    name: Option<&'a str>,
    scopes: Scopes,
    models: Option<Arc<[Arc<str>]>>,
    cap: Option<SpendingCap>,
    expires_at: Option<Timestamp>,
}

impl<'a> KeyForm<'a> {
    fn read(
        context: &PortalContext,
        form: &'a Form,
        now: Timestamp,
        problems: &mut Vec<Problem>,
    ) -> KeyForm<'a> {
        let mut fields = KeyForm::default();
        let mut wrong = |field: &str, text: &str| problems.push(Problem::new(field, text));
        let name = form.text("name");
        if name.is_empty() {
            wrong("name", "Give the key a name, for example ci-runner.");
        } else if name.chars().count() > NAME_CHARS_MAX {
            wrong("name", "Use at most 80 characters for the name.");
        } else if format::single_line(name) != name {
            wrong(
                "name",
                "Use only printable characters in the name, on one line.",
            );
        } else {
            fields.name = Some(name);
        }
        for (scope, value, ..) in OPERATIONS {
            if form.all("may").any(|chosen| chosen == value) {
                fields.scopes = fields.scopes.with(scope);
            }
        }
        if fields.scopes == Scopes::NONE {
            wrong("may", "Choose at least one thing that the key may call.");
        }
        let models: Vec<Arc<str>> = context
            .settings
            .installation
            .catalog
            .models()
            .iter()
            .filter(|model| form.all("models").any(|chosen| chosen == &*model.id))
            .map(|model| model.id.clone())
            .collect();
        fields.models = (!models.is_empty()).then(|| models.into());
        let cap = form.text("cap");
        if !cap.is_empty() {
            match cap.parse::<Micros>() {
                Ok(max) if max.is_positive() => {
                    let period = match form.text("cap_period") {
                        "total" => CapPeriod::Total,
                        _ => CapPeriod::Month,
                    };
                    fields.cap = Some(SpendingCap { max, period });
                }
                _ => wrong("cap", "Write the cap in credits, like 50 or 2.5."),
            }
        }
        fields.expires_at = match form.text("ends") {
            "30" => Some(now + 30 * DAY),
            "90" => Some(now + 90 * DAY),
            "date" => {
                let day = form.text("ends_on");
                // The key works until the end of its last day.
                match Period::read(day, day, now) {
                    Ok(last) if !day.is_empty() && last.to() > now => Some(last.to()),
                    Ok(_) if !day.is_empty() => {
                        wrong("ends_on", "Choose today or a later day.");
                        None
                    }
                    _ => {
                        wrong(
                            "ends_on",
                            &format!("Write the day like {}.", format::day(now + 90 * DAY)),
                        );
                        None
                    }
                }
            }
            _ => None,
        };
        fields
    }
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
        .map(|(_, value, _, words)| {
            let chosen = is_new || form.all("may").any(|chosen| chosen == *value);
            (*value, html! { (words) }, None, chosen)
        })
        .collect();
    let ends = form.find("ends").unwrap_or("never");
    let ends: Vec<_> = [
        ("never", "Never"),
        ("30", "In 30 days"),
        ("90", "In 90 days"),
        ("date", "On a date"),
    ]
    .map(|(value, words)| (value, html! { (words) }, None, value == ends))
    .to_vec();
    let models: Vec<_> = context
        .settings
        .installation
        .catalog
        .models()
        .iter()
        .map(|model| {
            let chosen = form.all("models").any(|chosen| chosen == &*model.id);
            (
                &*model.id,
                html! { (format::single_line(&model.id)) },
                None,
                chosen,
            )
        })
        .collect();
    let period = form.find("cap_period").unwrap_or("month");
    let periods = [
        ("month", "Each calendar month (UTC)"),
        ("total", "All time"),
    ]
    .map(|(value, words)| (value, html! { (words) }, None, value == period))
    .to_vec();
    let choice = |name, legend, hint: Option<&str>, options, several| Choice {
        name,
        legend,
        hint: hint.map(|hint| html! { (hint) }),
        options,
        several,
    };
    let content = html! {
        (parts::problems(problems))
        (parts::heading("Create a key", None))
        form.panel.stack.narrow-panel method="post" action="/keys/create" {
            (parts::csrf(&viewer.csrf))
            input type="hidden" name="id" value=(id);
            (Field::new("name", "Name").value(form.text("name")).hint(html! { "What the key is for, for example ci-runner." })
                .problem(problems).show())
            (choice("may", "May call", None, may, true).show(problems))
            (choice("ends", "Ends", None, ends, false).show(problems))
            (Field::new("ends_on", "End date").kind(FieldKind::Date).value(form.text("ends_on")).narrow().optional()
                .hint(html! { "For “On a date”: the last day (UTC) on which it works." }).problem(problems).show())
            @if !models.is_empty() {
                details.more-fields open[form.all("models").next().is_some()] {
                    summary { "Limit it to some models" }
                    (choice("models", "Models (optional)", Some("Leave all unchecked to allow every model, including new ones."), models, true)
                        .show(problems))
                }
            }
            details.more-fields open[!form.text("cap").is_empty()] {
                summary { "Limit what it spends" }
                (Field::new("cap", "Spending cap in credits").kind(FieldKind::Decimal).value(form.text("cap")).narrow().optional()
                    .hint(html! { "Requests with this key are refused once it has spent this much." }).problem(problems).show())
                (choice("cap_period", "The cap counts", None, periods, false).show(problems))
            }
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

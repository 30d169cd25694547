//! `/apps`: connected OAuth apps.

use std::sync::Arc;

use maud::html;
use tollgate_clock::Timestamp;
use tollgate_filter::{Reply, Scopes};
use tollgate_identity::oauth::{App, Destination};
use tollgate_money::GrantId;
use tollgate_pages::{NavItem, Page, format, parts};

use super::scope_text;
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

/// `GET /apps`
pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let account = request.require_session()?.account;
    let apps = context.authorization.apps(account).await?;
    let columns = [
        parts::Column::text("App"),
        parts::Column::text("Access goes to"),
        parts::Column::text("May do"),
        parts::Column::text("First allowed"),
        parts::Column::text("Last used"),
        parts::Column::text(""),
    ];
    let rows: Vec<_> = apps.iter().map(|app| row(app, request.now)).collect();
    let content = html! {
        (parts::heading("Connected apps", None))
        @if request.query.find("removed").is_some() {
            (parts::notice(parts::Tone::Good, "The app is removed.", html! {
                "Its requests are refused from now on."
            }))
        }
        @if apps.is_empty() {
            (parts::empty("No apps. When you allow an app to use your account it is listed here.", None))
        } @else {
            section.panel { (parts::table("Connected apps", &columns, &rows, None)) }
        }
    };
    let page = Page::dashboard(
        "Connected apps",
        NavItem::Apps,
        request.viewer(context)?,
        content,
    );
    Ok(request.page(context, &page))
}

fn row(app: &App, now: Timestamp) -> Vec<parts::Cell> {
    let name = name(app);
    let scopes = Scopes::from_bits(app.scopes);
    let may: Vec<&str> = scopes
        .less(Scopes::BUYING)
        .iter()
        .map(|scope| scope_text::of(scope).0)
        .collect();
    vec![
        parts::Cell::new(html! { (name) }),
        parts::Cell::labelled(html! { (destination(app)) }),
        parts::Cell::labelled(html! {
            (may.join(", "))
            @if scopes.has_any(Scopes::BUYING) { " " (parts::pill(parts::Tone::Warn, "Can buy")) }
        }),
        parts::Cell::labelled(format::relative_time(app.first_allowed_at, now)),
        parts::Cell::labelled(html! {
            @match app.used_at { Some(at) => (format::relative_time(at, now)), None => "Never" }
        }),
        parts::Cell::new(html! {
            a.button.quiet.bad.small href=(format!("/apps/{}/remove", app.id)) aria-label=(format!("Remove access for {name}")) {
                "Remove"
            }
        }),
    ]
}

/// `GET /apps/{id}/remove`
pub(crate) async fn confirm(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let app = find(context, request).await?;
    let name = name(&app);
    let title = format!("Remove access for {name}?");
    let content = html! {
        h1 { (title) }
        p.second {
            "Access went to " b { (destination(&app)) } ". The app is refused from its next request; it can ask you again. "
            @match app.used_at {
                Some(at) => { "Last used " (format::relative_time(at, request.now)) "." },
                None => "It was never used.",
            }
        }
        form method="post" action=(format!("/apps/{}/remove", app.id)) {
            (parts::csrf(&request.csrf(context)))
            div.actions {
                (parts::destroy(&format!("Remove access for {name}")))
                (parts::link_button("/apps", "Keep it", false))
            }
        }
    };
    Ok(request.page(context, &Page::card(title, content)))
}

/// `POST /apps/{id}/remove`
pub(crate) async fn remove(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let account = request.require_session()?.account;
    let client = client(context, request).await?;
    context.authorization.remove_app(account, client).await?;
    Ok(request.redirect(context, "/apps?removed=1"))
}

/// The connected app of the path.
async fn find(context: &PortalContext, request: &PageRequest) -> Result<App, PageError> {
    let account = request.require_session()?.account;
    let client = client(context, request).await?;
    let apps = context.authorization.apps(account).await?;
    apps.into_iter()
        .find(|app| app.client == client)
        .ok_or(PageError::NotFound)
}

/// The client of the grant in the path, which may have been revoked since the page was rendered.
async fn client(context: &PortalContext, request: &PageRequest) -> Result<Arc<str>, PageError> {
    let account = request.require_session()?.account;
    let grant = request
        .params
        .get("id")
        .parse::<GrantId>()
        .map_err(|_| PageError::NotFound)?;
    let client = context.authorization.client_of(account, grant).await?;
    client.ok_or(PageError::NotFound)
}

/// Destination of its authorization codes.
fn destination(app: &App) -> String {
    match &app.destination {
        Destination::Loopback => String::from("This computer"),
        Destination::Host { host, .. } => host.clone(),
    }
}

fn name(app: &App) -> String {
    match &app.name {
        Some(name) => format::single_line(name),
        None => String::from("an app without a name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_names_are_escaped_and_buying_is_marked() {
        let app = App {
            id: GrantId::from_bytes([1; 16]),
            client: "c_1".into(),
            name: Some("<b>Copilot</b>".into()),
            destination: Destination::of("https://app.example/cb"),
            resources: 1,
            scopes: Scopes::API.bits(),
            first_allowed_at: Timestamp::UNIX_EPOCH,
            used_at: None,
        };
        let columns = [parts::Column::text("App"); 6];
        let rows = [row(&app, Timestamp::UNIX_EPOCH)];
        let shown = parts::table("Connected apps", &columns, &rows, None).into_string();
        assert!(!shown.contains("<b>"), "{shown}");
        assert!(shown.contains("Can buy") && shown.contains("app.example"));
    }
}

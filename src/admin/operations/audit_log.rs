//! The list of the audit log.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_clock::Timestamp;
use tollgate_filter::ApiError;
use tollgate_store::{AuditLogQuery, AuditPosition};

use crate::admin::api::call::{Call, LIMIT, cursor};
use crate::admin::api::endpoint::{Endpoint, Route};
use crate::admin::api::state::ApiState;
use crate::admin::views::AuditRecordView;

/// Lists the records.
pub(in crate::admin) struct List;

/// A page of the audit log.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct AuditLogPage {
    data: Vec<AuditRecordView>,
    /// The cursor of the next page; null on the last.
    next: Option<String>,
}

impl Endpoint for List {
    type Answer = AuditLogPage;
    const ROUTE: Route = Route::read(
        "listAuditLog",
        "/audit-log",
        "List what operators have changed, newest first.",
    )
    .query(&[
        LIMIT,
        ("before", "The `next` of the page before."),
        ("actor", "Only the acts of one actor, such as `token NAME`."),
        ("subject", "Only the acts on one account, key or payment."),
    ]);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<AuditLogPage, ApiError> {
        let limit = call.limit()?;
        let before = match call.parameter("before") {
            None => None,
            Some(text) => Some(position(text).ok_or_else(|| cursor("before"))?),
        };
        let wanted = AuditLogQuery {
            before,
            actor: call.parameter("actor").map(Into::into),
            subject: call.parameter("subject").map(Into::into),
            limit: limit + 1,
        };
        let mut records = api.read(move |store| store.audit_log(&wanted)).await?;
        let has_more = records.len() > limit;
        records.truncate(limit);
        let last = records.last().filter(|_| has_more);
        Ok(AuditLogPage {
            next: last.map(|record| {
                let AuditPosition { at, node, number } = record.position();
                format!("{}.{node}.{number}", at.as_micros())
            }),
            data: records.iter().map(AuditRecordView::of).collect(),
        })
    }
}

fn position(text: &str) -> Option<AuditPosition> {
    let mut numbers = text.splitn(3, '.').map(|number| number.parse().ok());
    Some(AuditPosition {
        at: Timestamp::from_micros(numbers.next()??),
        node: numbers.next()??,
        number: numbers.next()??,
    })
}

//! `tollgate audit-log`: lists the acts of operators.

use tollgate_store::AuditLogQuery;

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;
use super::output::{self, Output};
use crate::admin::views::AuditRecordView;
use crate::args::AuditLogArgs;

/// Lists the newest records that the arguments select, newest first.
pub(super) fn run(
    args: AuditLogArgs,
    client: &ControlClient,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let wanted = AuditLogQuery {
        before: None,
        actor: args.actor.map(Into::into),
        subject: args.subject.map(Into::into),
        limit: args.limit,
    };
    let records = client.read()?.audit_log(&wanted)?;
    let shown: Vec<AuditRecordView> = records.iter().map(AuditRecordView::of).collect();
    let rows: Vec<[String; 7]> = shown
        .iter()
        .map(|record| {
            [
                record.at.clone(),
                record.actor.clone(),
                record.action.clone(),
                record.subject.as_deref().unwrap_or("-").to_owned(),
                record.outcome.to_owned(),
                record.detail.get().to_owned(),
                record.request.clone(),
            ]
        })
        .collect();
    let headings = [
        "TIME", "ACTOR", "ACTION", "SUBJECT", "OUTCOME", "DETAIL", "REQUEST",
    ];
    out.show(&shown, |out| output::table(out, headings, &rows))?;
    Ok(SUCCESS)
}

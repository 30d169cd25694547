//! Records of the audit log.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_store::AuditRecord;

/// One act of an operator.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AuditRecord")]
pub(crate) struct AuditRecordView {
    /// When, RFC 3339.
    pub(crate) at: String,
    /// By whom: `token NAME`, `uid NUMBER` for a user of the gateway's machine, `address ADDRESS` for a client of the admin address without a
    /// token, `signal SIGHUP` or `signal SIGUSR2` for the sender of a signal, `file watch`, or `holder of the key` for who revoked a key with it.
    pub(crate) actor: String,
    /// What was done, such as `key_create`.
    pub(crate) action: String,
    /// The account, key or payment that it was done to.
    pub(crate) subject: Option<String>,
    /// The id of the request.
    pub(crate) request: String,
    /// `done`; `repeated` (the reference had been booked before); `refused`; `begun` (an upgrade, which another process ends).
    pub(crate) outcome: &'static str,
    /// The parameters, without secrets.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub(crate) detail: Box<RawValue>,
    /// The node that has written it.
    pub(crate) node: i64,
    /// 1, 2, 3 ... within the node.
    pub(crate) number: i64,
    /// The hash over the record and the one before it of its node, in hex.
    pub(crate) hash: String,
}

impl AuditRecordView {
    /// The view of a record.
    pub(crate) fn of(record: &AuditRecord) -> AuditRecordView {
        let event = &record.event;
        let detail = RawValue::from_string(event.detail.to_string());
        // An edited record has to be shown as well.
        let detail = detail.unwrap_or_else(|_| {
            let text = serde_json::json!({ "unreadable": &*event.detail }).to_string();
            RawValue::from_string(text).expect("it is JSON")
        });
        AuditRecordView {
            at: event.at.rfc3339(),
            actor: event.actor.to_string(),
            action: event.action.to_string(),
            subject: event.subject.as_deref().map(str::to_owned),
            request: event.request.to_string(),
            outcome: event.outcome.word(),
            detail,
            node: record.node,
            number: record.number,
            hash: base16ct::lower::encode_string(&record.hash),
        }
    }
}

//! JSON views for operators, in commands and in the admin API.

mod account;
mod audit_log;
mod audit_report;
mod credits;
mod day;
mod export;
mod key;
mod line_page;
mod node;
mod payment;
mod usage;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_money::Micros;

pub(crate) use self::account::AccountView;
pub(crate) use self::audit_log::AuditRecordView;
pub(crate) use self::audit_report::AuditReportView;
pub(crate) use self::credits::{BalanceView, LineView};
pub(crate) use self::day::{day, read_day};
pub(crate) use self::export::AccountExport;
pub(crate) use self::key::KeyView;
pub(in crate::admin) use self::line_page::lines_before;
pub(crate) use self::node::NodeView;
pub(crate) use self::payment::{PaymentView, open_payments};
pub(crate) use self::usage::UsageView;

/// An amount of credits, exact to the last micro-credit.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Credits(#[schemars(with = "f64")] Box<RawValue>);

impl From<Micros> for Credits {
    fn from(amount: Micros) -> Credits {
        Credits(
            RawValue::from_string(amount.to_string()).expect("an amount prints as a JSON number"),
        )
    }
}
